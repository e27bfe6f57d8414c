"""`load`: one function for every kind of dataset."""

import contextlib
import dataclasses
import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from tqdm import tqdm

from offline_gntd.datasets import (
    authors,
    built_datasets,
    cache,
    catalogue,
    conversion,
    d4rl,
    hdf5,
    minari_store,
    user_datasets,
)
from offline_gntd.datasets.cache import CachedSource, Contents
from offline_gntd.datasets.dataset import Dataset, DatasetInfo
from offline_gntd.datasets.download import locate
from offline_gntd.datasets.file_hash import sha256_of
from offline_gntd.datasets.identity import (
    Identity,
    check_limit,
    identify,
    limit_of,
    notes_stored_in,
    of_entry,
    task_named,
    with_boundaries,
)
from offline_gntd.datasets.names import FILE_SUFFIXES, safe
from offline_gntd.errors import UserError, unknown
from offline_gntd.files import check_path_length
from offline_gntd.locomotion import LOCOMOTION
from offline_gntd.tasks import Task


def load(
    source: str | Path | Mapping[str, np.ndarray], env: str | None = None, episode_limit: int | None = None
) -> Dataset:
    """Open a dataset.

    source         hopper-medium-v2 (D4RL), mujoco/hopper/medium-v0 (Minari), cartpole-replay-s0 (built;
                   cartpole-replay is its first member), a name in a user file, the path of an HDF5 file in
                   D4RL's layout, the path of a buffer of the paper's authors (`datasets.authors`), or the
                   dict of d4rl's env.get_dataset()
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
        return user_datasets.cached_source(str(source))
    if kind == "authors":
        return _authors(Path(source), env, episode_limit)
    return _file(Path(source), env, episode_limit)


def kind_of(source: str | Path) -> str:
    """built | d4rl | imported | authors | minari | file. D4RL's names and built ones take precedence.

    Raises DatasetNotFound for a Minari id that is not on this machine, and UserError for any other name.
    """
    check_path_length(source)
    try:
        return _kind_of(source)
    except OSError as error:
        raise UserError(f"cannot read {source}: {error.strerror or error}") from error


def _kind_of(source: str | Path) -> str:
    name = str(source)
    if isinstance(source, str) and built_datasets.is_name(name):
        return "built"
    if isinstance(source, str) and name in catalogue.entries():
        return "d4rl"
    if isinstance(source, str) and name in user_datasets.sources():
        return "imported"
    if authors.is_buffer(Path(name)):
        authors.require_files(Path(name))
        return "authors"
    if isinstance(source, Path) or Path(name).is_file() or name.endswith(FILE_SUFFIXES):
        hdf5.check_is_file(Path(source))
        return "file"
    if Path(name).exists() or name.startswith(("/", "./", "../")):
        hdf5.check_is_file(Path(name))
    if minari_store.is_id(name) and ("/" in name or minari_store.find(name)):
        minari_store.existing(name)
        return "minari"
    local = minari_store.local_ids()
    known = [*built_datasets.TASKS, *catalogue.entries(), *user_datasets.sources(), *local]
    raise unknown("dataset", name, known, "See: offline-gntd datasets list")


def name_of(path: Path, identity: Identity) -> str:
    """A dataset name for a file, with -file appended if that name belongs to another dataset."""
    name = safe(path.stem)
    taken = built_datasets.is_name(name) or name in catalogue.entries()
    return f"{name}-file" if taken and not (identity.entry and identity.entry.id == name) else name


def _d4rl(name: str, env: str | None) -> CachedSource:
    entry = catalogue.entries()[name]
    identity = of_entry(entry, env)
    info = identity.info(name=name, source=name, provenance={"sha256": entry.sha256})
    # the key is known without the file, so that a cache is enough
    return _hdf5(cache.folder(name), identity, info, lambda: locate(entry))


def _file(path: Path, env: str | None, episode_limit: int | None) -> CachedSource:
    identity = identify(path, env, episode_limit)
    name = name_of(path, identity)
    folder, full = _folder(name, path)
    provenance = notes_stored_in(path) | {"file": full, "sha256": identity.sha256}
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
        path = find()
        with hdf5.reading(path) as columns:
            recording = d4rl.recording(columns, identity.task, str(path), identity.episode_limit)
            for note in info.notes:  # printed once, when the cache is built
                tqdm.write(f"note on {info.name}: {note}", file=sys.stderr)
            yield with_boundaries(info, recording), recording.transitions(), recording.episodes()

    key = identity.key(identity.sha256)
    return CachedSource(folder, key, contents, lambda: identity.key(sha256_of(find())))


def _authors(path: Path, env: str | None, episode_limit: int | None) -> CachedSource:
    task, limit = authors_task(path, env, episode_limit)
    name = safe(path.stem if path.suffix == ".npz" else path.name)
    folder, full = _folder(name, path)
    files = _hashes(path)
    info = DatasetInfo(name=name, task=task, origin="authors", source=full, provenance={"files": files})

    @contextlib.contextmanager
    def contents() -> Iterator[Contents]:
        yield (info, *authors.read(path, task, limit))

    def key(files: dict[str, str]) -> str:
        return cache.key_of(files, dataclasses.asdict(task), limit)

    return CachedSource(folder, key(files), contents, lambda: key(_hashes(path)))


def _hashes(path: Path) -> dict[str, str]:
    return {file.name: sha256_of(file) for file in authors.files_of(path)}


def authors_task(path: Path, env: str | None, episode_limit: int | None) -> tuple[Task, int | None]:
    """The task and the episode limit of a buffer, by its file's name (CartPole-v1_0_Replay) or by `env`."""
    check_limit(episode_limit)
    tasks = built_datasets.DISCRETE_TASKS
    named = [name for name in tasks if name in path.name.lower()]
    given = [name for name, task in tasks.items() if env in (name, task.env_id)]
    if named and env is not None and given != named:
        raise UserError(f"{path.name} was recorded in {named[0]}, but --env is {env}")
    if not named and env is None:
        raise UserError(
            f"{path} does not name its environment; give --env or rename the file to contain one of "
            f"{', '.join(tasks)}"
        )
    if named or given:
        task = tasks[(named or given)[0]]
        return task, episode_limit or limit_of(task.env_id)
    assert env is not None
    task, limit = task_named(env)
    return task, episode_limit or limit


def _load_dict(arrays: Mapping[str, np.ndarray], env: str | None, episode_limit: int | None) -> Dataset:
    check_limit(episode_limit)
    if env is None:
        raise UserError(f"a dict does not name its environment; give env, such as {', '.join(LOCOMOTION)}")
    task, limit = task_named(env)
    columns = {key: np.asarray(value) for key, value in arrays.items()}
    recording = d4rl.recording(columns, task, "the dict", episode_limit or limit)
    info = with_boundaries(DatasetInfo(name="dict", task=task, origin="dict"), recording)
    return cache.in_memory(info, np.concatenate(list(recording.transitions())), recording.episodes())


def _minari(minari_id: str, env: str | None) -> CachedSource:
    folder = minari_store.existing(minari_id)
    content = minari_store.content_hash(folder)  # before anything else is read
    task = minari_store.task_in(folder, env)
    name, notes = safe(minari_id), minari_store.notes_of(folder)
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
