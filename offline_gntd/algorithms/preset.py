"""A preset: an algorithm's settings under the name a table shows."""

import math
from dataclasses import dataclass
from typing import Any

from offline_gntd.errors import UserError
from offline_gntd.nn.optimisers import check_optimiser
from offline_gntd.tasks import Task


@dataclass(frozen=True)
class Preset:
    label: str
    config: Any


def check_settings(config: Any) -> None:
    """Refuse what no algorithm can run with: said where a setting is read, not where it fails."""
    check_optimiser(getattr(config, "optimiser", "adam"))
    counts = ("batch_size", "policy_freq", "candidates", "acting_candidates", "samples", "evaluation_steps")
    for name in counts:
        if getattr(config, name, 1) < 1:
            raise ValueError(f"{name} must be at least 1, not {getattr(config, name)}")
    for name in ("hidden_dims", "vae_hidden_dims"):
        if min(getattr(config, name, ()), default=1) < 1:
            raise ValueError(f"{name} must be at least 1 each, not {getattr(config, name)}")
    for name, value in vars(config).items():
        if name.endswith("learning_rate") and not 0 < value < math.inf:
            raise ValueError(f"{name} must be more than 0, not {value}")
    if not 0 <= getattr(config, "discount", 0) < 1:
        raise ValueError(f"discount must be in [0, 1), not {config.discount}")


def check_actions(config: Any, task: Task) -> None:
    """Refuse an algorithm for the other kind of actions than the task has."""
    kinds = {True: "discrete", False: "continuous"}
    if config.discrete != task.discrete:
        raise UserError(
            f"{type(config).__name__} learns {kinds[config.discrete]} actions, and {task.env_id} has "
            f"{kinds[task.discrete]} ones; choose another algorithm. See: offline-gntd algorithms"
        )
