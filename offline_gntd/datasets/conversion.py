"""Convert D4RL files to Minari datasets and back without loss.

A Minari episode has L steps and L + 1 observations. In a D4RL file, some rows have no next observation. The
Minari episodes leave out these steps, because readers would take an invented observation for a real one.
What Minari cannot store (those rows, dtypes, metadata) goes into a small HDF5 file next to its data, from
which every array is restored exactly.
"""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from offline_gntd.datasets import d4rl, hdf5, minari_store
from offline_gntd.datasets.d4rl import NOTES_ATTRIBUTE, TASK_ATTRIBUTE, Recording
from offline_gntd.datasets.dataset import DatasetInfo
from offline_gntd.errors import UserError
from offline_gntd.evaluation import without_import
from offline_gntd.files import home, safe_name, writing
from offline_gntd.tasks import Task

NOTE = "d4rl"  # the key of a conversion in `minari_store.notes_of`
EXTRA_FILE = "d4rl.hdf5"  # what Minari cannot store
NAMESPACE = "d4rl-files"  # not Minari's own D4RL/…
INFOS = "infos/"


def to_minari(recording: Recording, info: DatasetInfo, replace: bool = False) -> str:
    """Write a recording as a Minari dataset and return its id."""
    name = info.name.replace(".", "-")
    minari_id = f"{NAMESPACE}/{name}" if minari_store.is_id(name) else f"{NAMESPACE}/{name}-v0"
    folder = minari_store.root() / minari_id
    _check_replace(folder, replace)
    columns = {key: column[()] for key, column in recording.columns.items()}
    complete = _complete_steps(recording)
    buffers = _buffers(recording, columns, complete)
    rebuilt = _rebuilt(buffers, complete, columns)
    notes = {
        NOTE: {
            "about": dataclasses.asdict(info),
            "steps": len(recording),
            "columns": {key: [columns[key].dtype.str, list(columns[key].shape)] for key in rebuilt},
            "episode_limit": recording.episode_limit,
        }
    }

    def write_extra_file(data: Path) -> None:
        import h5py

        with h5py.File(data / EXTRA_FILE, "w") as file:
            file["left_out"] = np.flatnonzero(~complete)
            for key, values in rebuilt.items():
                rows = _different_rows(columns[key], values)
                file[f"patches/{key}/rows"], file[f"patches/{key}/values"] = rows, columns[key][rows]
            for key, column in recording.columns.items():
                if key not in rebuilt:
                    file.create_dataset(f"rest/{key}", data=columns[key], dtype=column.dtype)

    minari_store.write(folder, minari_id, info.task, buffers, notes, write_extra_file)
    return minari_id


def columns_in(folder: Path) -> dict[str, np.ndarray]:
    """Every array of the D4RL file that `to_minari` converted."""
    note = minari_store.notes_of(folder)[NOTE]
    episodes = [episode for episode, *_ in minari_store.episodes(folder)]
    with hdf5.reading(folder / "data" / EXTRA_FILE) as extra:
        left_out = extra["left_out"][:]
        if note["steps"] != len(left_out) + sum(len(episode.rewards) for episode in episodes):
            raise ValueError("its number of steps is not that of its episodes")
        complete = np.ones(note["steps"], bool)
        complete[left_out] = False
        empty = {
            key: np.zeros(tuple(shape), np.dtype(kind)) for key, (kind, shape) in note["columns"].items()
        }
        columns = _rebuilt(episodes, complete, empty)
        for key in empty:
            columns[key][extra[f"patches/{key}/rows"][:]] = extra[f"patches/{key}/values"][:]
        rest = {key: column[()] for key, column in extra.items() if key.startswith("rest/")}
    return columns | {key.removeprefix("rest/"): value for key, value in rest.items()}


def recording_in(folder: Path, info: DatasetInfo) -> tuple[Recording, DatasetInfo]:
    """The recording of a converted file, and `info` with the task, version and notes of that file."""
    with _complete(folder):
        note = minari_store.notes_of(folder)[NOTE]
        original = note["about"]
        task = Task(**original["task"])
        if task.env_id != info.task.env_id:  # the user gave another one, or none
            task = dataclasses.replace(task, env_id=without_import(task.env_id, str(folder)))
        info = dataclasses.replace(
            info,
            task=task,
            origin=original["origin"],
            d4rl_id=original.get("d4rl_id", original.get("stands_for")),
            version=original["version"],
            notes=tuple(original["notes"]),
        )
        recording = d4rl.recording(columns_in(folder), info.task, str(folder), note["episode_limit"])
    return recording, info


@contextlib.contextmanager
def _complete(folder: Path) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UserError(f"{folder} is an incomplete conversion of a D4RL file: {error}") from error


def with_task(source: Path, identity: d4rl.Identity, replace: bool = False) -> Path:
    """Write a D4RL file again with the name of its environment."""
    path = home() / "datasets" / "converted" / f"{safe_name(source.stem)}.hdf5"
    _check_replace(path, replace)
    with identity.reading(source) as recording:
        columns = {key: column[()] for key, column in recording.columns.items()}
        write_d4rl(path, columns, identity.task, {"episode_limit": recording.episode_limit})
    return path


def to_d4rl(minari_folder: Path, name: str, task: Task, replace: bool = False) -> Path:
    """Write a Minari dataset as a D4RL file: in the v2 layout, or as it was before `to_minari`."""
    path = home() / "datasets" / "converted" / f"{name}.hdf5"
    _check_replace(path, replace)
    notes = minari_store.notes_of(minari_folder)
    if NOTE in notes:
        with _complete(minari_folder):
            note = notes[NOTE]
            limit = {"episode_limit": note["episode_limit"]}
            columns, task = columns_in(minari_folder), Task(**note["about"]["task"])
        write_d4rl(path, columns, task, limit)
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
    """Write a file in D4RL's layout, with its task and other notes as attributes."""
    import h5py

    with writing(path) as temporary, h5py.File(temporary, "w") as file:
        for key, value in columns.items():
            file.create_dataset(key, data=value, compression="gzip" if np.ndim(value) else None)
        if task:
            file.attrs[TASK_ATTRIBUTE] = json.dumps(dataclasses.asdict(task))
        if notes:
            file.attrs[NOTES_ATTRIBUTE] = json.dumps(dict(notes))


def _v2_columns(folder: Path, task: Task) -> dict[str, np.ndarray]:
    parts: dict[str, list[np.ndarray]] = {key: [] for key in (*d4rl.KEYS, "timeouts", "next_observations")}
    for episode, obs_space, _ in minari_store.episodes(folder):
        obs = minari_store.flat_vectors(episode.observations, obs_space)
        truncations = np.array(episode.truncations, bool)
        truncations[-1] |= not episode.terminations[-1]  # D4RL marks every end as terminal or timeout
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


def _complete_steps(recording: Recording) -> np.ndarray:
    """[steps] bool: steps with a known next observation, and terminal steps, which need none."""
    complete = np.ones(len(recording), bool)
    if "next_observations" not in recording.columns:
        last = recording.ends - 1
        complete[last] = recording.terminals[last]
    return complete


def _buffers(recording: Recording, columns: Mapping[str, np.ndarray], complete: np.ndarray) -> list[Any]:
    from minari.data_collector import EpisodeBuffer

    obs, steps = columns["observations"], len(recording)
    infos = {key: value for key, value in columns.items() if _is_step_info(key, value, steps)}
    ends = recording.ends
    buffers: list[Any] = []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        stop = end if complete[end - 1] else end - 1
        if stop == start:
            continue  # a single step without a next observation
        if stop < end:
            last = obs[stop : stop + 1]
        elif "next_observations" in columns:
            last = columns["next_observations"][stop - 1 : stop]
        else:
            last = obs[stop - 1 : stop]  # terminal: the next observation is never used
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
                infos=_episode_infos(infos, start, stop),
            )
        )
    if not buffers:
        raise UserError(f"{recording.where} has no episode of two or more steps")
    return buffers


def _rebuilt(
    episodes: list[Any], complete: np.ndarray, like: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The per-step arrays among `like`, filled from Minari's episodes; incomplete steps stay 0."""
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
        if key not in sources and not _is_step_info(key, array, len(complete)):
            continue
        source = sources.get(key) or functools.partial(_step_info, key)
        values = np.concatenate([np.asarray(source(episode)) for episode in episodes])
        rebuilt[key] = np.zeros(array.shape, array.dtype)
        rebuilt[key][complete] = values.reshape(len(values), *array.shape[1:])
    return rebuilt


def _different_rows(original: np.ndarray, rebuilt: np.ndarray) -> np.ndarray:
    """Rows where the bytes of two arrays differ."""
    one, two = (
        np.ascontiguousarray(array).view(np.uint8).reshape(len(array), -1) for array in (original, rebuilt)
    )
    return np.flatnonzero((one != two).any(axis=1))


def _is_step_info(key: str, array: np.ndarray, steps: int) -> bool:
    return key.startswith(INFOS) and array.ndim >= 1 and len(array) == steps and array.dtype.kind in "biuf"


def _episode_infos(infos: Mapping[str, np.ndarray], start: int, stop: int) -> dict[str, Any]:
    """Infos of an episode as nested dicts. The last is repeated: Minari stores one per observation."""
    tree: dict[str, Any] = {}
    for key, value in infos.items():
        *groups, leaf = key.removeprefix(INFOS).split("/")
        branch = tree
        for group in groups:
            branch = branch.setdefault(group, {})
        branch[leaf] = np.concatenate([value[start:stop], value[stop - 1 : stop]])
    return tree


def _step_info(key: str, episode: Any) -> np.ndarray:
    values = episode.infos
    for part in key.removeprefix(INFOS).split("/"):
        values = values[part]
    return values[:-1]


def _check_replace(path: Path, replace: bool) -> None:
    if path.exists() and not replace:
        raise UserError(f"{path} already exists; --force replaces it")
