"""Presets (settings under the name that a table shows) and the checks of settings."""

import math
from dataclasses import dataclass
from typing import Any

from offline_gntd.errors import UserError
from offline_gntd.tasks import Task

PRECISIONS = ("float32",)


@dataclass(frozen=True)
class Preset:
    label: str
    config: Any


def require_positive(config: Any, *names: str) -> None:
    """Raise ValueError unless each named field (or all its items) is finite and positive; None passes."""
    _require(config, names, lambda value: 0 < value < math.inf, "positive and finite")


def require_nonnegative(config: Any, *names: str) -> None:
    _require(config, names, lambda value: 0 <= value < math.inf, "at least 0 and finite")


def require_fraction(config: Any, *names: str) -> None:
    _require(config, names, lambda value: 0 <= value <= 1, "in [0, 1]")


def _require(config: Any, names: tuple[str, ...], legal: Any, words: str) -> None:
    for name in names:
        value = getattr(config, name)
        items = value if isinstance(value, tuple) else (value,)
        if not all(item is None or legal(item) for item in items):
            raise ValueError(f"{name} must be {words}, not {value}")


def require_discount(config: Any) -> None:
    if not 0 <= config.discount < 1:
        raise ValueError(f"discount must be in [0, 1), not {config.discount}")


def require_precision(config: Any) -> None:
    if config.precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, not {config.precision!r}")


def check_actions(config: Any, task: Task) -> None:
    """Raise UserError if an algorithm for discrete actions is given a continuous task, or vice versa."""
    kinds = {True: "discrete", False: "continuous"}
    if config.discrete != task.discrete:
        raise UserError(
            f"{type(config).__name__} is for {kinds[config.discrete]} actions, but {task.env_id} has "
            f"{kinds[task.discrete]} actions. See: offline-gntd algorithms"
        )
