"""`load` and `convert` for every kind of dataset; `Source`, a dataset defined in a user file (--import)."""

import contextlib
import dataclasses
import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from offline_gntd import extensions
from offline_gntd.datasets import (
    authors,
    built_datasets,
    cache,
    catalogue,
    conversion,
    d4rl,
    hdf5,
    minari_store,
    ogbench_files,
)
from offline_gntd.datasets.cache import CachedSource, Contents
from offline_gntd.datasets.d4rl import Identity, Recording
from offline_gntd.datasets.dataset import Dataset, DatasetInfo
from offline_gntd.datasets.download import locate
from offline_gntd.errors import UserError, first_line, unknown
from offline_gntd.evaluation import task_named
from offline_gntd.files import check_path_length, safe_name, sha256_of
from offline_gntd.tasks import LOCOMOTION, Task


def load(
    source: str | Path | Mapping[str, np.ndarray], env: str | None = None, episode_limit: int | None = None
) -> Dataset:
    """Open a dataset.

    source         hopper-medium-v2 (D4RL), mujoco/hopper/medium-v0 (Minari), cartpole-replay-s0 (built;
                   cartpole-replay is its first member), a name in a user file, the path of an HDF5 file in
                   D4RL's layout, the path of a buffer of the paper's authors (`datasets.authors`), the
                   dict of d4rl's env.get_dataset(), a single-task dataset of OGBench by name or path
    env            hopper, Hopper-v4, cartpole …: the environment, if a file or dict does not name it
    episode_limit  steps, for data with neither timeouts nor next_observations

    Raises UserError if the dataset is unknown or unreadable, and DatasetNotFound if its name is known but its
    data is not on this machine.
    """
    if isinstance(source, Mapping):
        return _load_dict(source, env, episode_limit)
    return cache.load(cached_source(source, env, episode_limit))


def cached_source(
    source: str | Path, env: str | None = None, episode_limit: int | None = None
) -> CachedSource:
    """Where the cache of a dataset is, and how it is built."""
    kind = kind_of(source)
    if kind == "built":
        return built_datasets.cached_source(str(source))
    if kind == "d4rl":
        return _d4rl(str(source), env)
    if kind == "minari":
        return _minari(str(source), env)
    if kind == "imported":
        return _imported(str(source))
    if kind == "ogbench":
        return _ogbench(str(source))
    if kind == "authors":
        return _authors(Path(source), env, episode_limit)
    return _file(Path(source), env, episode_limit)


def kind_of(source: str | Path) -> str:
    """built | d4rl | imported | ogbench | authors | minari | file. Built and D4RL's names take precedence.

    Raises DatasetNotFound for a Minari id that is not on this machine, and UserError for any other name.
    """
    check_path_length(source)
    try:
        return _kind_of(source)
    except OSError as error:
        raise UserError(f"cannot read {source}: {first_line(error)}") from error


def _kind_of(source: str | Path) -> str:
    name, path = str(source), Path(source)
    if isinstance(source, str) and built_datasets.is_name(name):
        return "built"
    if isinstance(source, str) and name in catalogue.entries():
        return "d4rl"
    if isinstance(source, str) and name in user_sources():
        return "imported"
    if ogbench_files.is_name(name) or ogbench_files.is_file(path):
        ogbench_path(name)
        return "ogbench"
    if authors.is_buffer(path):
        authors.require_files(path)
        return "authors"
    if isinstance(source, Path) or path.is_file() or name.endswith(catalogue.FILE_SUFFIXES):
        hdf5.check_is_file(path)
        return "file"
    if path.exists() or name.startswith(("/", "./", "../")):
        hdf5.check_is_file(path)
    if minari_store.is_id(name) and ("/" in name or minari_store.find(name)):
        minari_store.existing(name)
        return "minari"
    known = [*built_datasets.TASKS, *catalogue.entries(), *user_sources(), *minari_store.local_ids()]
    raise unknown("dataset", name, known, "See: offline-gntd datasets list")


def convert(
    source: str | Path,
    to: str,
    env: str | None = None,
    episode_limit: int | None = None,
    replace: bool = False,
) -> str:
    """Write a dataset in the other format; returns the Minari id or the path that was written."""
    kind = kind_of(source)
    if kind in ("imported", "authors", "ogbench"):
        raise UserError(f"{source} cannot be converted: convert takes D4RL files and Minari datasets")
    if kind == "file" and to == "d4rl" and env is not None:
        path = Path(source)
        return str(conversion.with_task(path, d4rl.identify(path, env, episode_limit), replace))
    other = "minari" if kind in ("d4rl", "file") else "d4rl"
    if to != other:
        raise UserError(f"{source} already has the format {to}; give --format {other}")
    if to == "minari":
        return _to_minari(str(source), kind, env, episode_limit, replace)
    if kind == "built":
        folder, task = built_datasets.existing(str(source)), built_datasets.task_of(str(source))
    else:
        folder = minari_store.existing(str(source))
        task = minari_store.task_in(folder, env)
    return str(conversion.to_d4rl(folder, safe_name(str(source)), task, replace))


def _to_minari(source: str, kind: str, env: str | None, episode_limit: int | None, replace: bool) -> str:
    path = locate(catalogue.entries()[source]) if kind == "d4rl" else Path(source)
    identity = d4rl.identify(path, env, episode_limit)
    name = source if kind == "d4rl" else file_name(path, identity)
    info = identity.info(name=name, source=str(path.resolve()), provenance={"sha256": identity.sha256})
    with identity.reading(path) as recording:
        return conversion.to_minari(recording, info, replace)


# ---- files and dicts in D4RL's layout ----


def file_name(path: Path, identity: Identity) -> str:
    """A dataset name for a file, with -file appended if that name belongs to another dataset."""
    name = safe_name(path.stem)
    taken = built_datasets.is_name(name) or name in catalogue.entries()
    return f"{name}-file" if taken and not (identity.entry and identity.entry.id == name) else name


def _d4rl(name: str, env: str | None) -> CachedSource:
    entry = catalogue.entries()[name]
    identity = d4rl.of_entry(entry, env)
    info = identity.info(name=name, source=name, provenance={"sha256": entry.sha256})
    # the key is known without the file, so that a cache is enough
    return _hdf5(cache.folder(name), identity, info, lambda: locate(entry))


def _file(path: Path, env: str | None, episode_limit: int | None) -> CachedSource:
    identity = d4rl.identify(path, env, episode_limit)
    name = file_name(path, identity)
    folder, full = _folder(name, path)
    provenance = d4rl.notes_stored_in(path) | {"file": full, "sha256": identity.sha256}
    info = identity.info(name=name, source=full, provenance=provenance)
    return _hdf5(folder, identity, info, lambda: path)


def _folder(name: str, path: Path) -> tuple[Path, str]:
    """The cache folder of a file, and the file's full path."""
    full = path.resolve()
    return cache.folder(f"{name}-{hashlib.sha256(os.fsencode(full)).hexdigest()[:8]}"), str(full)


def _hdf5(folder: Path, identity: Identity, info: DatasetInfo, find: Callable[[], Path]) -> CachedSource:
    """A file in D4RL's layout; `find` returns its path."""

    @contextlib.contextmanager
    def contents() -> Iterator[Contents]:
        with identity.reading(find()) as recording:
            for note in info.notes:  # printed once, when the cache is built
                tqdm.write(f"note on {info.name}: {note}", file=sys.stderr)
            yield recording.described(info), recording.transitions(), recording.episodes()

    key = identity.key(identity.sha256)
    return CachedSource(folder, key, contents, lambda: identity.key(sha256_of(find())))


def _load_dict(arrays: Mapping[str, np.ndarray], env: str | None, episode_limit: int | None) -> Dataset:
    d4rl.check_limit(episode_limit)
    if env is None:
        raise UserError(f"a dict does not name its environment; give env, such as {', '.join(LOCOMOTION)}")
    task, limit = task_named(env)
    recording = d4rl.recording(as_arrays(arrays, "the dict"), task, "the dict", episode_limit or limit)
    info = recording.described(DatasetInfo(name="dict", task=task, origin="dict"))
    return cache.in_memory(info, np.concatenate(list(recording.transitions())), recording.episodes())


# ---- buffers of the paper's authors ----


def _authors(path: Path, env: str | None, episode_limit: int | None) -> CachedSource:
    task, limit = authors.task_of(path, env, episode_limit)
    name = safe_name(path.stem if path.suffix == ".npz" else path.name)
    folder, full = _folder(name, path)
    files = authors.file_hashes(path)
    info = DatasetInfo(name=name, task=task, origin="authors", source=full, provenance={"files": files})

    @contextlib.contextmanager
    def contents() -> Iterator[Contents]:
        rows, episodes = authors.read(path, task, limit)
        yield info, [rows], episodes

    def key(files: dict[str, str]) -> str:
        return cache.key_of(files, dataclasses.asdict(task), limit)

    return CachedSource(folder, key(files), contents, lambda: key(authors.file_hashes(path)))


# ---- OGBench ----


def ogbench_path(source: str) -> Path:
    """The file of a dataset of OGBench, given by its name or path."""
    path = Path(source)
    if not ogbench_files.is_file(path):
        return ogbench_files.locate(source)
    hdf5.check_is_file(path)
    return path


def _ogbench(source: str) -> CachedSource:
    path, name = ogbench_path(source), Path(source).stem if source.endswith(".npz") else source
    task = ogbench_files.task_named(name)
    folder, full = _folder(name, path)
    sha256, package = sha256_of(path), ogbench_files.package_version()
    provenance = {"file": full, "sha256": sha256, "ogbench": package}
    opened_by = full if ogbench_files.is_file(Path(source)) else source
    info = DatasetInfo(name=name, task=task, origin="ogbench", source=opened_by, provenance=provenance)

    @contextlib.contextmanager
    def contents() -> Iterator[Contents]:
        rows, episodes = ogbench_files.read(path, name, task)
        yield info, [rows], episodes

    def key(sha256: str) -> str:
        return cache.key_of(sha256, dataclasses.asdict(task), package)

    return CachedSource(folder, key(sha256), contents, lambda: key(sha256_of(path)))


# ---- Minari ----


def _minari(minari_id: str, env: str | None) -> CachedSource:
    folder = minari_store.existing(minari_id)
    content = minari_store.content_hash(folder)  # before anything else is read
    task = minari_store.task_in(folder, env)
    name, notes = safe_name(minari_id), minari_store.notes_of(folder)
    info = DatasetInfo(
        name=name,
        task=task,
        origin="minari",
        source=minari_id,
        version=minari_id.rpartition("-")[2],
        provenance={"folder": str(folder), **notes},
    )

    @contextlib.contextmanager
    def contents() -> Iterator[Contents]:
        if conversion.NOTE in notes:  # a converted D4RL file: D4RL's rule for boundaries applies
            recording, converted = conversion.recording_in(folder, info)
            yield converted, recording.transitions(), recording.episodes()
        else:
            episodes: list[tuple[float, int, bool]] = []
            yield info, minari_store.transitions(folder, task, episodes), episodes

    def key(content: str) -> str:
        return cache.key_of(content, dataclasses.asdict(task))

    stored = cache.folder(f"minari-{name}")
    return CachedSource(stored, key(content), contents, lambda: key(minari_store.content_hash(folder)))


# ---- user files: DATASETS = {"name": Source("CartPole-v1", make)} ----


@dataclass(frozen=True)
class Source:
    """An entry of DATASETS. `make` is called once, and again when the user's files change."""

    env_id: str  # a gymnasium id, which the file may register
    make: Callable[[], Mapping[str, np.ndarray]]  # returns D4RL's keys: observations, actions, rewards …
    # returns of scores 0 and 100; without both, D4RL's, or the score is the return
    reference_min: float | None = None
    reference_max: float | None = None


def user_sources() -> dict[str, Source]:
    """The datasets of all user files, by name."""
    entries = extensions.user_entries("DATASETS", [*built_datasets.TASKS, *catalogue.entries()])
    for name, source in entries.items():
        if not isinstance(source, Source):
            raise UserError(f"DATASETS[{name!r}] must be a Source, not {type(source).__name__}")
        if built_datasets.is_name(name):
            raise UserError(f"DATASETS cannot use {name!r}: that name is taken")
    return entries


def user_task(name: str) -> tuple[Task, int | None]:
    """The task of a user's dataset, and the episode limit of its environment."""
    source = user_sources()[name]
    task, limit = task_named(source.env_id)
    if source.reference_min is None or source.reference_max is None:
        return task, limit
    if not source.reference_max > source.reference_min:
        raise UserError(f"DATASETS[{name!r}]: reference_max must be more than reference_min")
    task = dataclasses.replace(
        task,
        reference_min=source.reference_min,
        reference_max=source.reference_max,
        reference_source="the file it is imported from",
    )
    return task, limit


def user_recording(name: str) -> Recording:
    """Call the dataset's `make`. Raises UserError if it fails or does not return a dict of arrays."""
    task, limit = user_task(name)
    try:
        columns = user_sources()[name].make()
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"make() of DATASETS[{name!r}] failed: {reason}") from error
    if not isinstance(columns, Mapping):
        raise UserError(
            f"make() of DATASETS[{name!r}] must return a dict of arrays, not {type(columns).__name__}"
        )
    return d4rl.recording(
        as_arrays(columns, f"what make() of DATASETS[{name!r}] returned"), task, name, limit
    )


def as_arrays(columns: Mapping[str, Any], where: str) -> dict[str, np.ndarray]:
    try:
        return {key: np.asarray(values) for key, values in columns.items()}
    except ValueError as error:  # ragged lists
        raise UserError(f"{where} has values that are no arrays: {first_line(error)}") from error


def _imported(name: str) -> CachedSource:
    task, _ = user_task(name)
    files = extensions.file_hashes()
    info = DatasetInfo(name=name, task=task, origin="imported", source=name, provenance={"files": files})

    @contextlib.contextmanager
    def contents() -> Iterator[Contents]:
        recording = user_recording(name)
        yield recording.described(info), recording.transitions(), recording.episodes()

    key = cache.key_of(name, files, dataclasses.asdict(task))
    return CachedSource(cache.folder(f"imported-{name}"), key, contents, lambda: key)
