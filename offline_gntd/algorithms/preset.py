"""A preset: settings under the name that a table shows."""

from dataclasses import dataclass
from typing import Any

from offline_gntd.errors import UserError
from offline_gntd.tasks import Task


@dataclass(frozen=True)
class Preset:
    label: str
    config: Any


def check_actions(config: Any, task: Task) -> None:
    """Raise UserError if an algorithm for discrete actions is given a continuous task, or vice versa."""
    kinds = {True: "discrete", False: "continuous"}
    if config.discrete != task.discrete:
        raise UserError(
            f"{type(config).__name__} is for {kinds[config.discrete]} actions, but {task.env_id} has "
            f"{kinds[task.discrete]} actions. See: offline-gntd algorithms"
        )
