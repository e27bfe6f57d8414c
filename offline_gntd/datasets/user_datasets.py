"""Datasets of a user's own file: what each is scored in, and the function that makes it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from offline_gntd import extensions
from offline_gntd.datasets import built, catalogue
from offline_gntd.datasets.names import safe
from offline_gntd.errors import UserError


@dataclass(frozen=True)
class Source:
    """An entry of DATASETS. `make` is called once, and again when the imported files change."""

    env_id: str  # a gymnasium id, which the file may register itself
    make: Callable[[], Mapping[str, np.ndarray]]  # D4RL's keys: observations, actions, rewards, terminals …
    reference_min: float | None = None  # the return of score 0 …
    reference_max: float | None = (
        None  # … and of 100; without both, D4RL's, else a score is the return itself
    )


def sources() -> dict[str, Source]:
    own = extensions.own("DATASETS", [*built.TASKS, *catalogue.entries()])
    for name, source in own.items():
        if not isinstance(source, Source):
            raise UserError(f"DATASETS[{name!r}] must be a Source, not {type(source).__name__}")
        if safe(name) != name:
            raise UserError(f"{name!r} is no name for a dataset: letters, digits, - _ . only")
    return own
