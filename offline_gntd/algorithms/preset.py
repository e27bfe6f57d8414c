"""A preset: an algorithm's settings under the name a table shows."""

from dataclasses import dataclass
from typing import Any

from offline_gntd.errors import UserError
from offline_gntd.tasks import Task


@dataclass(frozen=True)
class Preset:
    label: str
    config: Any


def check_actions(config: Any, task: Task) -> None:
    """Refuse an algorithm for the other kind of actions than the task has."""
    kinds = {True: "discrete", False: "continuous"}
    if config.discrete != task.discrete:
        raise UserError(
            f"{type(config).__name__} learns {kinds[config.discrete]} actions, and {task.env_id} has "
            f"{kinds[task.discrete]} ones; choose another algorithm. See: offline-gntd algorithms"
        )
