"""The datasets that this package builds: their names and tasks, how they are stored, and reading them.

A discrete name such as cartpole-replay is a family with one dataset for each seed: its members are
cartpole-replay-s0, cartpole-replay-s1 … Building is `offline_gntd.collection`; reading needs no algorithm.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from offline_gntd.datasets import cache, catalogue, minari_store
from offline_gntd.datasets.dataset import Dataset, DatasetInfo, DatasetNotFound
from offline_gntd.errors import UserError, unknown
from offline_gntd.locomotion import LOCOMOTION
from offline_gntd.tasks import Task

DISCRETE_TASKS = {  # reference returns measured by benchmarks/references.py
    "cartpole": Task("CartPole-v1", 4, 2, True, 22.5, 500.0, "random: 2,000 episodes; expert: the limit"),
    "acrobot": Task("Acrobot-v1", 6, 3, True, -498.7, -84.6, "random: 2,000 episodes; expert: converged DQN"),
}
SPLITS = ("random", "medium", "medium-replay", "medium-expert", "expert", "full-replay")
FAMILIES = {  # one dataset for each seed
    f"{environment}-{kind}{size}": task
    for environment, task in DISCRETE_TASKS.items()
    for kind in ("replay", "medium-replay")
    for size in ("", "-small")
}
MEMBER = re.compile(r"(.+)-s(0|[1-9][0-9]*)")
DEFAULT_SEEDS = 5  # members of a family that `datasets build` makes
TASKS = {  # every name that can be built, members of families aside
    **FAMILIES,
    **{f"{body}-{split}-local": LOCOMOTION[body].task() for body in LOCOMOTION for split in SPLITS},
}
FLAGS = ("transitions", "seed", "steps", "algorithm")  # options with a flag of their own on the command line


def family_of(name: str) -> str | None:
    """The family that a name is, or is a member of: cartpole-replay for cartpole-replay-s3; or None."""
    member = MEMBER.fullmatch(name)
    family = member[1] if member else name
    return family if family in FAMILIES else None


def is_name(name: str) -> bool:
    return name in TASKS or family_of(name) is not None


def member(name: str, seed: int = 0) -> str:
    """The name of a family's member; any other name as it is."""
    return f"{name}-s{seed}" if name in FAMILIES else name


def task_of(name: str) -> Task:
    name = family_of(name) or name
    if name in catalogue.entries():
        raise UserError(f"{name} is not built but fetched, with: offline-gntd datasets fetch {name}")
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
    """Write rows as a Minari dataset, with the options it was built with and the command that repeats it.

    rows [N, row_width], ends: where episodes end (exclusive), truncated: see `minari_store.buffers_of`.
    """
    task = task_of(name)
    facts = options | {"command": f"offline-gntd datasets build {name} {words(options)}"} | provenance
    buffers = minari_store.buffers_of(rows, ends, task, truncated)
    minari_store.write(path(name), minari_id(name), task, buffers, facts)


def load(name: str) -> Dataset:
    """A built dataset (the first member of a family) from its cache.

    The cache is made from the Minari dataset if it is missing or outdated.
    """
    task, name = task_of(name), member(name)
    key = minari_store.fingerprint(existing(name))

    def make() -> Dataset:
        totals: list[tuple[float, int, bool]] = []
        try:
            about = DatasetInfo(
                name=name,
                task=task,
                origin="built",
                source=name,
                provenance=minari_store.notes_of(path(name)),
            )
            rows = minari_store.transitions(path(name), task, totals)
            return cache.write(cache.folder(name), about, key, rows, totals)
        except UserError as error:
            raise UserError(f"{error}. Mend with: offline-gntd datasets build {name} --force") from error

    return cache.cached(cache.folder(name), key, make)


def is_built(name: str, options: dict[str, Any]) -> bool:
    """Whether a set is here as asked for; one that was built with other options is not replaced unasked."""
    if not path(name).exists():
        return False
    facts = load(name).provenance
    built = {key: facts.get(key) for key, value in options.items() if facts.get(key) != value}
    if built:
        asked = {key: options[key] for key in built}
        raise UserError(f"{name} was built with {words(built)}, not {words(asked)}; --force builds it again")
    return True


def words(options: dict[str, Any]) -> str:
    """Options as a command line has them."""
    return " ".join(
        f"--{key} {value}" if key in FLAGS else f"--set {key}={value}"
        for key, value in options.items()
        if value is not None
    )
