"""Checks of settings, for a config's __post_init__. They raise ValueError.

A field may hold a tuple: its items are checked one by one. None always passes.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any


def positive(config: Any, *names: str) -> None:
    _check(config, names, lambda value: 0 < value < math.inf, "positive and finite")


def nonnegative(config: Any, *names: str) -> None:
    _check(config, names, lambda value: 0 <= value < math.inf, "at least 0 and finite")


def fraction(config: Any, *names: str) -> None:
    _check(config, names, lambda value: 0 <= value <= 1, "in [0, 1]")


def below_one(config: Any, *names: str) -> None:
    _check(config, names, lambda value: 0 <= value < 1, "in [0, 1)")


def choice(config: Any, name: str, legal: Iterable[str]) -> None:
    value = getattr(config, name)
    if value not in legal:
        raise ValueError(f"{name} must be one of {', '.join(legal)}, not {value!r}")


def _check(config: Any, names: tuple[str, ...], is_legal: Callable[[Any], bool], words: str) -> None:
    for name in names:
        value = getattr(config, name)
        items = value if isinstance(value, tuple) else (value,)
        if not all(item is None or is_legal(item) for item in items):
            raise ValueError(f"{name} must be {words}, not {value}")
