"""Datasets that this package builds: names, tasks, storage. `offline_gntd.collection` builds them.

A discrete name such as cartpole-replay is a family with one dataset per seed. Its members are
cartpole-replay-s0, cartpole-replay-s1 …
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from offline_gntd.datasets import cache, catalogue, minari_store
from offline_gntd.datasets.cache import CachedSource, Contents
from offline_gntd.datasets.dataset import Dataset, DatasetInfo, DatasetNotFound
from offline_gntd.errors import UserError, unknown
from offline_gntd.files import Unwritable, check_path_length
from offline_gntd.tasks import LOCOMOTION, Task

DISCRETE_TASKS = {  # reference returns measured by benchmarks/references.py
    "cartpole": Task("CartPole-v1", 4, 2, True, 22.5, 500.0, "random: 2,000 episodes; expert: the limit"),
    "acrobot": Task("Acrobot-v1", 6, 3, True, -498.7, -84.6, "random: 2,000 episodes; expert: converged DQN"),
}
FAMILIES = {  # one dataset per seed
    f"{environment}-{kind}{size}": task
    for environment, task in DISCRETE_TASKS.items()
    for kind in ("replay", "medium-replay")
    for size in ("", "-small")
}
MEMBER = re.compile(r"(.+)-s(0|[1-9][0-9]{0,18})")
DEFAULT_SEEDS = 5  # members of a family that `datasets build` builds
TASKS = {  # every name that can be built, except members of families
    **FAMILIES,
    **{f"{body}-{split}-local": LOCOMOTION[body].task() for body in LOCOMOTION for split in catalogue.SPLITS},
}
FLAGS = ("transitions", "seed", "steps", "algorithm")  # options with their own command-line flag


def family_of(name: str) -> str | None:
    """The family that a name is, or belongs to: cartpole-replay for cartpole-replay-s3; or None."""
    match = MEMBER.fullmatch(name)
    family = match[1] if match else name
    return family if family in FAMILIES else None


def is_name(name: str) -> bool:
    return name in TASKS or family_of(name) is not None


def member(name: str, seed: int = 0) -> str:
    """The name of a family's member; any other name is returned unchanged."""
    return f"{name}-s{seed}" if name in FAMILIES else name


def task_of(name: str) -> Task:
    """The task of a name. Raises UserError if no such dataset can be built."""
    check_path_length(name)
    name = family_of(name) or name
    if name in catalogue.entries():
        raise UserError(f"{name} cannot be built; download it with: offline-gntd datasets fetch {name}")
    if name not in TASKS:
        raise unknown("dataset", name, TASKS, "See: offline-gntd datasets list")
    return TASKS[name]


def path(name: str) -> Path:
    return minari_store.root() / minari_id(name)


def minari_id(name: str) -> str:
    return f"{member(name)}-v0"


def existing(name: str) -> Path:
    if not path(name).exists():
        raise DatasetNotFound(
            f"{member(name)} is not built yet; build it with: offline-gntd datasets build {name}"
        )
    return path(name)


def store(
    name: str,
    rows: np.ndarray,
    ends: np.ndarray,
    options: dict[str, Any],
    provenance: dict[str, Any],
    truncated: np.ndarray | None = None,
) -> None:
    """Write rows [N, row_width] as a Minari dataset.

    ends        row after each episode's last row
    options     the build options, from which the command that repeats the build is noted
    provenance  other notes
    truncated   see `minari_store.buffers_of`
    """
    task = task_of(name)
    command = f"offline-gntd datasets build {name} {as_arguments(options)}"
    buffers = minari_store.buffers_of(rows, ends, task, truncated)
    minari_store.write(
        path(name), minari_id(name), task, buffers, options | {"command": command} | provenance
    )


def cached_source(name: str) -> CachedSource:
    """How a built dataset is read from its Minari folder. A family's name means its first member."""
    task, name = task_of(name), member(name)
    stored = existing(name)

    @contextlib.contextmanager
    def contents() -> Iterator[Contents]:
        episodes: list[tuple[float, int, bool]] = []
        try:
            notes = minari_store.notes_of(stored)
            info = DatasetInfo(name=name, task=task, origin="built", source=name, provenance=notes)
            yield info, minari_store.transitions(stored, task, episodes), episodes
        except Unwritable:
            raise
        except UserError as error:
            command = f"offline-gntd datasets build {name} --force"
            raise UserError(f"{error}. Build it again with: {command}") from error

    def key() -> str:
        return minari_store.content_hash(stored)

    return CachedSource(cache.folder(name), key(), contents, key)


def load(name: str) -> Dataset:
    return cache.load(cached_source(name))


def is_built(name: str, options: dict[str, Any]) -> bool:
    """Whether a dataset was built with these options; raises UserError if it was built with others."""
    if not path(name).exists():
        return False
    provenance = load(name).provenance
    other = {key: provenance.get(key) for key, value in options.items() if provenance.get(key) != value}
    if other:
        wanted = as_arguments({key: options[key] for key in other})
        raise UserError(f"{name} was built with {as_arguments(other)}, not {wanted}; --force builds it again")
    return True


def as_arguments(options: dict[str, Any]) -> str:
    """Options as command-line arguments."""
    return " ".join(
        f"--{key} {value}" if key in FLAGS else f"--set {key}={value}"
        for key, value in options.items()
        if value is not None
    )
