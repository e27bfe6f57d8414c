"""`load`: one function for every kind of dataset. What a name or a file stands for is decided here."""

import dataclasses
import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from offline_gntd import extensions
from offline_gntd.datasets import (
    authors,
    built,
    cache,
    catalogue,
    conversion,
    d4rl,
    hdf5,
    minari_store,
    user_datasets,
)
from offline_gntd.datasets.catalogue import Entry
from offline_gntd.datasets.d4rl import Recording
from offline_gntd.datasets.dataset import Dataset, DatasetInfo
from offline_gntd.datasets.download import locate
from offline_gntd.datasets.file_hash import sha256_of
from offline_gntd.datasets.names import FILE_SUFFIXES, safe
from offline_gntd.errors import UserError, unknown
from offline_gntd.evaluation import task_of
from offline_gntd.locomotion import EPISODE_LIMIT, LOCOMOTION, of_environment
from offline_gntd.tasks import Task


def load(
    source: str | Path | Mapping[str, np.ndarray], env: str | None = None, episode_limit: int | None = None
) -> Dataset:
    """Open a dataset.

    source         hopper-medium-v2 (D4RL), mujoco/hopper/medium-v0 (Minari), cartpole-replay-s0 (built;
                   cartpole-replay is its first member), a name in an imported file, the path of an HDF5 file
                   in D4RL's layout, the path of a buffer of the paper's authors (`datasets.authors`), or the
                   dict of d4rl's env.get_dataset()
    env            hopper, Hopper-v4, cartpole …: the environment, if a file or dict does not name it
    episode_limit  steps, for data that has neither timeouts nor next_observations
    """
    if isinstance(source, Mapping):
        return _load_dict(source, env, episode_limit)
    kind = kind_of(source)
    if kind == "built":
        return built.load(str(source))
    if kind == "d4rl":
        return _load_d4rl(catalogue.entries()[str(source)], env)
    if kind == "minari":
        return _load_minari(str(source), env)
    if kind == "imported":
        return _load_imported(str(source))
    if kind == "authors":
        return _load_authors(Path(source), env, episode_limit)
    return _load_file(Path(source), env, episode_limit)


def kind_of(source: str | Path) -> str:
    """built | d4rl | imported | authors | minari | file; DatasetNotFound for a Minari id not here, else an error.

    D4RL's ids and ours come first, so that nothing else is ever taken for one of them.
    """
    name = str(source)
    if isinstance(source, str) and built.is_name(name):
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
    known = [*built.TASKS, *catalogue.entries(), *user_datasets.sources(), *minari_store.local_ids()]
    raise unknown("dataset", name, known, "See: offline-gntd datasets list")


@dataclass(frozen=True)
class Identity:
    """What a file in D4RL's layout was found to be."""

    task: Task
    origin: str  # d4rl | file
    entry: Entry | None = None  # of the catalogue, by the file's sha256
    namesake: Entry | None = None  # of the catalogue, by the file's name alone
    episode_limit: int | None = None

    def about(self, **more: Any) -> DatasetInfo:
        entry = self.entry or self.namesake
        known = {}
        if entry:
            known = {"d4rl_id": entry.id, "version": entry.version, "notes": entry.notes}
        return DatasetInfo(task=self.task, origin=self.origin, **known | more)

    def key(self, source_sha256: str) -> str:
        """Of all the flat cache depends on."""
        parts = [source_sha256, dataclasses.asdict(self.task), self.episode_limit]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def identify(path: Path, env: str | None = None, episode_limit: int | None = None) -> Identity:
    """A file's task: by its sha256 in the catalogue, then by its name, else by `env`; never by its shapes."""
    _check_limit(episode_limit)
    entry = catalogue.by_sha256(sha256_of(path))
    if entry:
        return _of_entry(entry, env)
    converted = conversion.task_noted_in(path)
    if converted and env is None:
        return Identity(converted, "file", episode_limit=episode_limit)
    namesake = catalogue.by_file_name(path.name)
    named = catalogue.environment_in(path.stem)
    if named:
        _refuse_contradiction(path.name, named, env)
        known = namesake.episode_limit if namesake else EPISODE_LIMIT
        return Identity(LOCOMOTION[named].task(), "file", None, namesake, episode_limit or known)
    if env is None:
        hdf5.require(path)
        raise UserError(
            f"{path} does not say what it was recorded in; name it with --env, or in the file's own name: "
            f"{', '.join(LOCOMOTION)}. A run has no --env; it takes what this writes: offline-gntd datasets "
            f"convert {path} --format d4rl --env …"
        )
    task, limit = task_named(env)
    return Identity(task, "file", episode_limit=episode_limit or limit)


def _check_limit(episode_limit: int | None) -> None:
    if episode_limit is not None and episode_limit < 1:
        raise UserError(f"--episode-limit must be at least 1, not {episode_limit}")


def task_named(env: str) -> tuple[Task, int | None]:
    """The task of D4RL's name of a body, or of a gymnasium id; and its episode limit."""
    if env in LOCOMOTION:
        return LOCOMOTION[env].task(), EPISODE_LIMIT
    known = of_environment(env)
    if known:
        return known.task(env.rpartition("-")[2]), EPISODE_LIMIT
    try:
        return task_of(env), _limit_of(env)
    except UserError as error:
        raise UserError(f"{error}; --env takes {', '.join(LOCOMOTION)} or a gymnasium id") from error


def _limit_of(env_id: str) -> int | None:
    import gymnasium

    return gymnasium.spec(env_id).max_episode_steps


def _of_entry(entry: Entry, env: str | None) -> Identity:
    _refuse_contradiction(entry.id, entry.environment, env)
    return Identity(entry.locomotion.task(), "d4rl", entry, entry, entry.episode_limit)


def _refuse_contradiction(name: str, environment: str, env: str | None) -> None:
    if env is not None and env != environment and of_environment(env) is not LOCOMOTION[environment]:
        raise UserError(f"{name} is of {environment}, but --env says {env}")


def name_of(path: Path, identity: Identity) -> str:
    """A file's own name; never one that stands for something else."""
    name = safe(path.stem)
    taken = built.is_name(name) or name in catalogue.entries()
    return f"{name}-file" if taken and not (identity.entry and identity.entry.id == name) else name


def _load_d4rl(entry: Entry, env: str | None) -> Dataset:
    identity = _of_entry(entry, env)
    key = identity.key(entry.sha256)
    about = identity.about(name=entry.id, source=entry.id, provenance={"sha256": entry.sha256})
    folder = cache.folder(entry.id)
    # The key is known without the file: a sound cache does not need it any more
    return cache.cached(folder, key, lambda: _cache_file(locate(entry), identity, about, folder, key))


def _load_file(path: Path, env: str | None, episode_limit: int | None) -> Dataset:
    identity = identify(path, env, episode_limit)
    sha256, full = sha256_of(path), str(path.resolve())
    key = identity.key(sha256)
    name = name_of(path, identity)
    facts = conversion.notes_in(path) | {"file": full, "sha256": sha256}
    about = identity.about(name=name, source=full, provenance=facts)
    folder = cache.folder(f"{name}-{hashlib.sha256(full.encode()).hexdigest()[:8]}")
    return cache.cached(folder, key, lambda: _cache_file(path, identity, about, folder, key))


def _cache_file(path: Path, identity: Identity, about: DatasetInfo, folder: Path, key: str) -> Dataset:
    with hdf5.reading(path) as columns:
        recording = d4rl.recording(columns, identity.task, str(path), identity.episode_limit)
        about = _with_boundaries(about, recording)
        for note in about.notes:  # said once, when the data is first read
            tqdm.write(f"note on {about.name}: {note}", file=sys.stderr)
        return cache.write(folder, about, key, recording.transitions(), recording.episodes())


def _load_authors(path: Path, env: str | None, episode_limit: int | None) -> Dataset:
    task, limit = authors_task(path, env, episode_limit)
    files = {file.name: sha256_of(file) for file in authors.files_of(path)}
    parts = [files, dataclasses.asdict(task), limit]
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    full = str(path.resolve())
    name = safe(path.stem if path.suffix == ".npz" else path.name)
    about = DatasetInfo(name=name, task=task, origin="authors", source=full, provenance={"files": files})
    folder = cache.folder(f"{name}-{hashlib.sha256(full.encode()).hexdigest()[:8]}")
    return cache.cached(
        folder, key, lambda: cache.write(folder, about, key, *authors.read(path, task, limit))
    )


def authors_task(path: Path, env: str | None, episode_limit: int | None) -> tuple[Task, int | None]:
    """The task and the episode limit of a buffer, by its file's name (CartPole-v1_0_Replay) or by `env`."""
    _check_limit(episode_limit)
    named = [name for name in built.DISCRETE_TASKS if name in path.name.lower()]
    given = [name for name, task in built.DISCRETE_TASKS.items() if env in (name, task.env_id)]
    if named and env is not None and given != named:
        raise UserError(f"{path.name} is of {named[0]}, but --env says {env}")
    if not named and env is None:
        raise UserError(
            f"{path} does not name its environment; name it with --env, or in the file's name: "
            f"{', '.join(built.DISCRETE_TASKS)}"
        )
    if named or given:
        task = built.DISCRETE_TASKS[(named or given)[0]]
        return task, episode_limit or _limit_of(task.env_id)
    assert env is not None
    task, limit = task_named(env)
    return task, episode_limit or limit


def _load_dict(arrays: Mapping[str, np.ndarray], env: str | None, episode_limit: int | None) -> Dataset:
    _check_limit(episode_limit)
    if env is None:
        raise UserError(f"a dict does not say what it was recorded in; give env: {', '.join(LOCOMOTION)}")
    task, limit = task_named(env)
    columns = {key: np.asarray(value) for key, value in arrays.items()}
    recording = d4rl.recording(columns, task, "the dict", episode_limit or limit)
    about = _with_boundaries(DatasetInfo(name="dict", task=task, origin="dict"), recording)
    return cache.in_memory(about, np.concatenate(list(recording.transitions())), recording.episodes())


def _load_minari(minari_id: str, env: str | None) -> Dataset:
    folder = minari_store.existing(minari_id)
    task = minari_store.task_in(folder, env)
    name, notes = safe(minari_id), minari_store.notes_of(folder)
    about = DatasetInfo(
        name=name,
        task=task,
        origin="minari",
        source=minari_id,
        version=minari_id.rpartition("-")[2],
        provenance={"folder": str(folder), **notes},
    )
    parts = [minari_store.fingerprint(folder), dataclasses.asdict(task)]
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    stored = cache.folder(f"minari-{name}")

    def make() -> Dataset:
        if conversion.NOTE in notes:  # a D4RL file in another form: its own boundary rule holds
            recording, converted = conversion.recording_in(folder, about)
            return cache.write(stored, converted, key, recording.transitions(), recording.episodes())
        totals: list[tuple[float, int, bool]] = []
        return cache.write(stored, about, key, minari_store.transitions(folder, task, totals), totals)

    return cache.cached(stored, key, make)


def _load_imported(name: str) -> Dataset:
    task, _ = imported_task(name)
    files = extensions.fingerprints()
    parts = [name, files, dataclasses.asdict(task)]
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    about = DatasetInfo(name=name, task=task, origin="imported", source=name, provenance={"files": files})
    folder = cache.folder(f"imported-{name}")

    def make() -> Dataset:
        recording = imported_recording(name)
        whole = _with_boundaries(about, recording)
        return cache.write(folder, whole, key, recording.transitions(), recording.episodes())

    return cache.cached(folder, key, make)


def imported_recording(name: str) -> Recording:
    """What the function behind a user's own dataset makes, in D4RL's terms."""
    task, limit = imported_task(name)
    columns = {column: np.asarray(values) for column, values in user_datasets.sources()[name].make().items()}
    return d4rl.recording(columns, task, name, limit)


def imported_task(name: str) -> tuple[Task, int | None]:
    source = user_datasets.sources()[name]
    task, limit = task_named(source.env_id)
    if source.reference_min is None or source.reference_max is None:
        return task, limit
    own = dataclasses.replace(
        task,
        reference_min=source.reference_min,
        reference_max=source.reference_max,
        reference_source="the file it is imported from",
    )
    return own, limit


def _with_boundaries(about: DatasetInfo, recording: Recording) -> DatasetInfo:
    facts = {"steps": len(recording), "boundaries": recording.boundaries}
    return dataclasses.replace(about, provenance=about.provenance | facts)
