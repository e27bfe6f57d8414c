"""The datasets that this package builds: their names and tasks, how they are stored, and reading them.

Building them is `offline_gntd.collection`; reading needs no algorithm.
"""

from pathlib import Path
from typing import Any

import numpy as np

from offline_gntd.datasets import cache, catalogue, minari_store
from offline_gntd.datasets.dataset import About, Dataset, Missing
from offline_gntd.errors import UserError, unknown
from offline_gntd.locomotion import LOCOMOTION
from offline_gntd.tasks import Task

DISCRETE_TASKS = {  # reference returns measured by benchmarks/references.py
    "cartpole": Task("CartPole-v1", 4, 2, True, 22.5, 500.0, "random: 2,000 episodes; expert: the limit"),
    "acrobot": Task("Acrobot-v1", 6, 3, True, -498.7, -84.6, "random: 2,000 episodes; expert: converged DQN"),
}
SPLITS = ("random", "medium", "medium-replay", "medium-expert", "expert", "full-replay")
TASKS = {  # every name that can be built
    **{
        f"{body}-{kind}{size}": task
        for body, task in DISCRETE_TASKS.items()
        for kind in ("replay", "medium-replay")
        for size in ("", "-small")
    },
    **{f"{body}-{split}-local": LOCOMOTION[body].task() for body in LOCOMOTION for split in SPLITS},
}
FLAGS = ("transitions", "seed", "steps", "algorithm")  # options with a flag of their own on the command line


def task_of(name: str) -> Task:
    if name in catalogue.entries():
        raise UserError(f"{name} is not built but fetched, with: offline-gntd datasets fetch {name}")
    if name not in TASKS:
        raise unknown("dataset", name, TASKS, "See: offline-gntd datasets list")
    return TASKS[name]


def path(name: str) -> Path:
    return minari_store.root() / minari_id(name)


def minari_id(name: str) -> str:
    return f"{name}-v0"


def existing(name: str) -> Path:
    if not path(name).exists():
        raise Missing(f"{name} is not built yet; build it with: offline-gntd datasets build {name}")
    return path(name)


def store(
    name: str, rows: np.ndarray, ends: np.ndarray, options: dict[str, Any], provenance: dict[str, Any]
) -> None:
    """Write rows as a Minari dataset, with the options it was built with and the command that repeats it."""
    task = task_of(name)
    facts = options | {"command": f"offline-gntd datasets build {name} {words(options)}"} | provenance
    minari_store.write(path(name), minari_id(name), task, minari_store.buffers_of(rows, ends, task), facts)


def load(name: str) -> Dataset:
    """A built dataset from its cache, which is made from the Minari dataset if it is missing or outdated."""
    task = task_of(name)
    key = minari_store.fingerprint(existing(name))

    def make() -> Dataset:
        totals: list[tuple[float, int]] = []
        try:
            about = About(
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
