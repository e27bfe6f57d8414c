"""D4RL's layout as Minari's and back, losing nothing.

Minari has episodes of L steps and L + 1 observations; a D4RL file has rows, some of which have no next
observation. A step whose next observation is unknown is left out of the Minari episodes, since any made-up
one would be read as true. What Minari has no place for (those rows, the dtypes, the metadata) is kept in a
small HDF5 file beside its data, so that the way back gives every array as it was.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from offline_gntd.datasets import d4rl, hdf5, minari_store
from offline_gntd.datasets.d4rl import Recording
from offline_gntd.datasets.dataset import DatasetInfo
from offline_gntd.errors import UserError
from offline_gntd.files import home, writing
from offline_gntd.tasks import Task

NOTE = "d4rl"  # the key of a conversion among our notes in Minari's metadata
BESIDE = "d4rl.hdf5"  # what Minari has no place for
NAMESPACE = "d4rl-files"  # never Minari's own D4RL/…
INFOS = "infos/"
NOTES = f"{minari_store.OURS}_notes"  # an attribute of the files we write


def minari_id(name: str) -> str:
    """The id of a converted file; Minari wants a version."""
    return f"{NAMESPACE}/{name}" if minari_store.is_id(name) else f"{NAMESPACE}/{name}-v0"


def to_minari(recording: Recording, about: DatasetInfo, replace: bool = False) -> str:
    """Write a recording as a Minari dataset of ours; its id."""
    identifier = minari_id(about.name.replace(".", "-"))
    folder = minari_store.root() / identifier
    _refuse_to_replace(folder, replace)
    columns = {key: column[()] for key, column in recording.columns.items()}
    steps = len(recording)
    whole_steps = _whole_steps(recording)
    buffers = _buffers(recording, columns, whole_steps)
    rebuilt = _rows_of(buffers, whole_steps, columns)
    per_step = {key: value for key, value in rebuilt.items() if key in columns}
    rest = {key: value for key, value in columns.items() if key not in per_step}
    patches = {key: _patch(columns[key], per_step[key]) for key in per_step}
    notes = {
        NOTE: {
            "about": dataclasses.asdict(about),
            "steps": steps,
            "columns": {key: [columns[key].dtype.str, list(columns[key].shape)] for key in per_step},
            "episode_limit": recording.episode_limit,
        }
    }

    def write_beside(path: Path) -> None:
        import h5py

        with h5py.File(path, "w") as file:
            file["left_out"] = np.flatnonzero(~whole_steps)
            for key, (rows, values) in patches.items():
                file[f"patches/{key}/rows"], file[f"patches/{key}/values"] = rows, values
            for key, value in rest.items():
                file.create_dataset(f"rest/{key}", data=value, dtype=recording.columns[key].dtype)

    minari_store.write(folder, identifier, about.task, buffers, notes, {BESIDE: write_beside})
    return identifier


def columns_in(folder: Path) -> dict[str, np.ndarray]:
    """Every array of the D4RL file that `to_minari` was given."""
    note = minari_store.notes_of(folder)[NOTE]
    with hdf5.reading(folder / "data" / BESIDE) as beside:
        left_out = beside["left_out"][:]
        whole_steps = np.ones(note["steps"], bool)
        whole_steps[left_out] = False
        episodes = [episode for episode, *_ in minari_store.episodes(folder)]
        like = {key: _empty(*shape) for key, shape in note["columns"].items()}
        columns = _rows_of(episodes, whole_steps, like)
        for key in like:
            columns[key][beside[f"patches/{key}/rows"][:]] = beside[f"patches/{key}/values"][:]
        rest = {key: column[()] for key, column in beside.items() if key.startswith("rest/")}
    return columns | {key.removeprefix("rest/"): value for key, value in rest.items()}


def recording_in(folder: Path, about: DatasetInfo) -> tuple[Recording, DatasetInfo]:
    """A converted file's recording, and what was known of the file."""
    try:
        note = minari_store.notes_of(folder)[NOTE]
        original = note["about"]
        about = dataclasses.replace(
            about,
            task=Task(**original["task"]),
            origin=original["origin"],
            version=original["version"],
            notes=tuple(original["notes"]),
        )
        recording = d4rl.recording(columns_in(folder), about.task, str(folder), note["episode_limit"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UserError(f"{folder} is not a whole conversion of a D4RL file: {error}") from error
    return recording, about


def to_d4rl(minari_folder: Path, name: str, task: Task, replace: bool = False) -> Path:
    """Write a Minari dataset as a file in D4RL's layout, v2's unless it was converted from another."""
    path = home() / "datasets" / "converted" / f"{name}.hdf5"
    _refuse_to_replace(path, replace)
    notes = minari_store.notes_of(minari_folder)
    if NOTE in notes:
        write_d4rl(path, columns_in(minari_folder))
    else:
        level = {"level": notes["level"]} if "level" in notes else {}
        write_d4rl(path, _v2_columns(minari_folder, task), task, level)
    return path


def write_d4rl(
    path: Path,
    columns: Mapping[str, Any],
    task: Task | None = None,
    notes: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """A file in D4RL's layout, with a note of its task and what else is to be known of it."""
    import h5py

    with writing(path) as temporary, h5py.File(temporary, "w") as file:
        for key, value in columns.items():
            file.create_dataset(key, data=value, compression="gzip" if np.ndim(value) else None)
        if task:
            file.attrs[minari_store.OURS] = json.dumps(dataclasses.asdict(task))
        if notes:
            file.attrs[NOTES] = json.dumps(dict(notes))


def task_noted_in(path: Path) -> Task | None:
    """The task a file says it is of, where we wrote it."""
    try:
        task = Task(**_attribute(path, minari_store.OURS))
    except TypeError:
        return None
    return task if isinstance(task.obs_dim, int) and isinstance(task.env_id, str) else None


def notes_in(path: Path) -> dict[str, Any]:
    """What else we noted in a file that we wrote."""
    return _attribute(path, NOTES)


def _attribute(path: Path, name: str) -> dict[str, Any]:
    import h5py

    hdf5.check_is_file(path)
    try:
        with h5py.File(path, "r", locking=False) as file:
            value = json.loads(file.attrs[name])
    except Exception:  # no such note, or a damaged file, which is for its reader to say
        return {}
    return value if isinstance(value, dict) else {}


def _v2_columns(folder: Path, task: Task) -> dict[str, np.ndarray]:
    parts: dict[str, list[np.ndarray]] = {key: [] for key in (*d4rl.KEYS, "timeouts", "next_observations")}
    for episode, obs_space, _ in minari_store.episodes(folder):
        obs = minari_store.flat_vectors(episode.observations, obs_space)
        truncations = np.array(episode.truncations, bool)
        truncations[-1] |= not episode.terminations[-1]  # D4RL has no other mark for an end
        values = (obs[:-1], episode.actions, episode.rewards, episode.terminations, truncations, obs[1:])
        for column, value in zip(parts.values(), values, strict=True):
            column.append(np.asarray(value))
    if not parts["rewards"]:
        raise UserError(f"the Minari dataset {folder} has no episodes")
    columns = {key: np.concatenate(values) for key, values in parts.items()}
    columns["terminals"] = columns["terminals"].astype(bool)
    if not task.discrete:
        columns["actions"] = columns["actions"].reshape(len(columns["actions"]), -1)
    return columns


def _whole_steps(recording: Recording) -> np.ndarray:
    """Steps whose next observation is known, or of no interest since they are terminal."""
    last = np.zeros(len(recording), bool)
    last[recording.ends - 1] = True
    if "next_observations" in recording.columns:
        return np.ones(len(recording), bool)
    return ~last | recording.terminals


def _buffers(recording: Recording, columns: Mapping[str, np.ndarray], whole_steps: np.ndarray) -> list[Any]:
    from minari.data_collector import EpisodeBuffer

    obs, steps = columns["observations"], len(recording)
    infos = {key: value for key, value in columns.items() if _is_step_info(key, value, steps)}
    ends = recording.ends
    buffers: list[Any] = []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        stop = end if whole_steps[end - 1] else end - 1
        if stop == start:
            continue  # a single step of unknown outcome
        if stop < end:
            last = obs[stop : stop + 1]
        elif "next_observations" in columns:
            last = columns["next_observations"][stop - 1 : stop]
        else:
            last = obs[stop - 1 : stop]  # terminal: what follows is never looked at
        truncated = recording.timeouts[start:stop].copy()
        truncated[-1] |= not recording.terminals[stop - 1]
        buffers.append(
            EpisodeBuffer(
                id=len(buffers),
                observations=np.concatenate([obs[start:stop], last]),
                actions=columns["actions"][start:stop],
                rewards=recording.rewards[start:stop],
                terminations=recording.terminals[start:stop],
                truncations=truncated,
                infos=_nested({key: _with_last_again(value[start:stop]) for key, value in infos.items()}),
            )
        )
    if not buffers:
        raise UserError(f"{recording.where} has no episode of two steps")
    return buffers


def _rows_of(
    episodes: list[Any], whole_steps: np.ndarray, like: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The arrays `like` as far as Minari's episodes tell; rows that are no whole steps stay 0."""
    steps = len(whole_steps)
    sources: dict[str, Callable[[Any], np.ndarray]] = {
        "observations": lambda episode: episode.observations[:-1],
        "next_observations": lambda episode: episode.observations[1:],
        "actions": lambda episode: episode.actions,
        "rewards": lambda episode: episode.rewards,
        "terminals": lambda episode: episode.terminations,
        "timeouts": lambda episode: episode.truncations,
    }
    rebuilt = {}
    for key, array in like.items():
        if key not in sources and not _is_step_info(key, array, steps):
            continue
        source = sources.get(key) or functools.partial(_step_info, key)
        values = np.concatenate([np.asarray(source(episode)) for episode in episodes])
        rebuilt[key] = np.zeros(array.shape, array.dtype)
        rebuilt[key][whole_steps] = values.reshape(len(values), *array.shape[1:])
    return rebuilt


def _patch(true: np.ndarray, rebuilt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where an array is not, byte for byte, what Minari tells, and what it is there."""
    as_bytes = [
        np.ascontiguousarray(array).view(np.uint8).reshape(len(array), -1) for array in (true, rebuilt)
    ]
    rows = np.flatnonzero((as_bytes[0] != as_bytes[1]).any(axis=1))
    return rows, true[rows]


def _is_step_info(key: str, array: np.ndarray, steps: int) -> bool:
    return key.startswith(INFOS) and array.ndim >= 1 and len(array) == steps and array.dtype.kind in "biuf"


def _nested(infos: Mapping[str, np.ndarray]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in infos.items():
        *groups, leaf = key.removeprefix(INFOS).split("/")
        place = tree
        for group in groups:
            place = place.setdefault(group, {})
        place[leaf] = value
    return tree


def _step_info(key: str, episode: Any) -> np.ndarray:
    found = episode.infos
    for part in key.removeprefix(INFOS).split("/"):
        found = found[part]
    return found[:-1]


def _with_last_again(values: np.ndarray) -> np.ndarray:
    """Minari's infos go with observations, of which there is one more."""
    return np.concatenate([values, values[-1:]])


def _empty(dtype: str, shape: list[int]) -> np.ndarray:
    return np.zeros(tuple(shape), np.dtype(dtype))


def _refuse_to_replace(path: Path, replace: bool) -> None:
    if path.exists() and not replace:
        raise UserError(f"{path} is there already; --force replaces it")
