"""Sets built here, whatever built them: under a name of ours, stored as Minari datasets."""

from pathlib import Path
from typing import Any

import numpy as np

from offline_gntd.datasets import flat, minari_store
from offline_gntd.datasets.dataset import About, Dataset, Missing
from offline_gntd.errors import UserError
from offline_gntd.tasks import Task

FLAGS = ("transitions", "seed", "steps", "algorithm")  # options with a name of their own


def path(name: str) -> Path:
    return minari_store.root() / minari_id(name)


def minari_id(name: str) -> str:
    return f"{name}-v0"


def existing(name: str) -> Path:
    if not path(name).exists():
        raise Missing(f"{name} is not built yet; build it with: offline-gntd datasets build {name}")
    return path(name)


def store(name: str, task: Task, rows: np.ndarray, ends: np.ndarray, provenance: dict[str, Any]) -> None:
    """Rows of a built set as a Minari dataset under our id."""
    minari_store.write(
        path(name), minari_id(name), task, minari_store.buffers_of(rows, ends, task), provenance
    )


def load(name: str, task: Task) -> Dataset:
    """A built set from its flat cache, which is made anew from the Minari dataset if need be."""
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
            return flat.write(flat.folder(name), about, key, rows, totals)
        except UserError as error:
            raise UserError(f"{error}. Mend with: offline-gntd datasets build {name} --force") from error

    return flat.cached(flat.folder(name), key, make)


def is_built(name: str, task: Task, options: dict[str, Any]) -> bool:
    """Whether a set is here as asked for; one that was built with other options is not replaced unasked."""
    if not path(name).exists():
        return False
    facts = load(name, task).provenance
    built = {key: facts.get(key) for key, value in options.items() if facts.get(key) != value}
    if built:
        asked = {key: options[key] for key in built}
        raise UserError(f"{name} was built with {words(built)}, not {words(asked)}; --force builds it again")
    return True


def words(options: dict[str, Any]) -> str:
    """Options as a command line has them."""
    return " ".join(
        f"--{key} {value}" if key in FLAGS else f"--set {key}={value}" for key, value in options.items()
    )
