"""Datasets defined in user files (--import): DATASETS = {"name": Source("CartPole-v1", make)}."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from offline_gntd import extensions
from offline_gntd.datasets import built_datasets, cache, catalogue, d4rl
from offline_gntd.datasets.cache import CachedSource, Contents
from offline_gntd.datasets.d4rl import Recording
from offline_gntd.datasets.dataset import DatasetInfo
from offline_gntd.datasets.hdf5 import first_line
from offline_gntd.datasets.identity import task_named, with_boundaries
from offline_gntd.errors import UserError
from offline_gntd.tasks import Task


@dataclass(frozen=True)
class Source:
    """An entry of DATASETS. `make` is called once, and again when the user's files change."""

    env_id: str  # a gymnasium id, which the file may register
    make: Callable[[], Mapping[str, np.ndarray]]  # returns D4RL's keys: observations, actions, rewards …
    reference_min: float | None = None  # return of score 0
    reference_max: float | None = (
        None  # return of score 100; without both, D4RL's, or the score is the return
    )


def sources() -> dict[str, Source]:
    entries = extensions.user_entries("DATASETS", [*built_datasets.TASKS, *catalogue.entries()])
    for name, source in entries.items():
        if not isinstance(source, Source):
            raise UserError(f"DATASETS[{name!r}] must be a Source, not {type(source).__name__}")
    return entries


def task_of(name: str) -> tuple[Task, int | None]:
    """The task of a user's dataset, and the episode limit of its environment."""
    source = sources()[name]
    task, limit = task_named(source.env_id)
    if source.reference_min is None or source.reference_max is None:
        return task, limit
    task = dataclasses.replace(
        task,
        reference_min=source.reference_min,
        reference_max=source.reference_max,
        reference_source="the file it is imported from",
    )
    return task, limit


def recording(name: str) -> Recording:
    """Call the dataset's `make`. Raises UserError if it fails or returns something else than arrays."""
    task, limit = task_of(name)
    try:
        columns = sources()[name].make()
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"make() of DATASETS[{name!r}] failed: {reason}") from error
    if not isinstance(columns, Mapping):
        raise UserError(
            f"make() of DATASETS[{name!r}] must return a dict of arrays, not {type(columns).__name__}"
        )
    try:
        arrays = {key: np.asarray(values) for key, values in columns.items()}
    except ValueError as error:
        raise UserError(f"make() of DATASETS[{name!r}] returned no arrays: {first_line(error)}") from error
    return d4rl.recording(arrays, task, name, limit)


def cached_source(name: str) -> CachedSource:
    task, _ = task_of(name)
    files = extensions.file_hashes()
    info = DatasetInfo(name=name, task=task, origin="imported", source=name, provenance={"files": files})

    @contextlib.contextmanager
    def contents() -> Iterator[Contents]:
        steps = recording(name)
        yield with_boundaries(info, steps), steps.transitions(), steps.episodes()

    key = cache.key_of(name, files, dataclasses.asdict(task))
    return CachedSource(cache.folder(f"imported-{name}"), key, contents, lambda: key)
