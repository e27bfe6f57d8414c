"""Find, read and write Minari datasets on this machine.

This package writes to datasets/minari. Others are read from Minari's folder, $MINARI_DATASETS_PATH or
~/.minari/datasets.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offline_gntd.datasets import hdf5
from offline_gntd.datasets.catalogue import MINARI_ID
from offline_gntd.datasets.dataset import DatasetNotFound
from offline_gntd.datasets.hdf5 import PART
from offline_gntd.errors import UserError
from offline_gntd.evaluation import make, task_of, task_of_spaces, without_import
from offline_gntd.files import home, parse_json, read_json, remove, sha256_of, writing
from offline_gntd.tasks import Task
from offline_gntd.transitions import row_width

NOTES_KEY = "offline_gntd"  # in a dataset's metadata: what this package noted when it wrote the dataset
NO_REFERENCES = ", since the Minari dataset gives none"  # added to the source of reference returns


def root() -> Path:
    """The folder that this package writes to."""
    return home() / "datasets" / "minari"


def user_root() -> Path:
    """The folder that Minari writes to."""
    return Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")


def is_id(name: str) -> bool:
    return MINARI_ID.fullmatch(name) is not None


def find(minari_id: str) -> Path | None:
    """The folder of a local dataset, or None. This package's folder comes first."""
    folders = (place / minari_id for place in (root(), user_root()))
    return next((folder for folder in folders if (folder / "data" / "metadata.json").is_file()), None)


def existing(minari_id: str) -> Path:
    folder = find(minari_id)
    if folder is None:
        raise DatasetNotFound(
            f"{minari_id} is not on this machine; get it with: offline-gntd datasets fetch {minari_id}"
        )
    return folder


def local_ids() -> list[str]:
    ids = set()
    for place in (root(), user_root()):
        for metadata in place.glob("**/data/metadata.json"):
            minari_id = metadata.parent.parent.relative_to(place).as_posix()
            if is_id(minari_id):
                ids.add(minari_id)
    return sorted(ids)


def metadata_of(folder: Path) -> dict[str, Any]:
    metadata = read_json(folder / "data" / "metadata.json")
    if not isinstance(metadata, dict):
        raise UserError(f"{folder / 'data' / 'metadata.json'} does not describe a Minari dataset")
    return metadata


def notes_of(folder: Path) -> dict[str, Any]:
    """The notes of `write`; empty for datasets that other programs wrote."""
    try:
        notes = parse_json(metadata_of(folder).get(NOTES_KEY, "{}"))
    except ValueError:
        return {}
    return notes if isinstance(notes, dict) else {}


def content_hash(folder: Path) -> str:
    """A hash of all files of a dataset."""
    files = sorted(path for path in (folder / "data").rglob("*") if path.is_file())
    parts = [f"{path.relative_to(folder).as_posix()} {sha256_of(path)}" for path in files]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def task_in(folder: Path, env: str | None = None) -> Task:
    """The task of a dataset: its evaluation environment, and its reference scores if it has any.

    env  an environment to use instead; required for an id that imports a module (`without_import`)
    """
    metadata = metadata_of(folder)
    spec = _spec(metadata.get("eval_env_spec") or metadata.get("env_spec"), folder)
    if env is not None and (spec is None or env != spec["id"]):
        task = task_of(env)
    elif spec is None:
        raise UserError(f"the Minari dataset {folder} does not name its environment; give --env")
    else:
        from minari.serialization import deserialize_space

        env_id = spec["id"] if env is not None else without_import(spec["id"], f"the Minari dataset {folder}")
        with hdf5.as_user_error(f"the Minari dataset {folder}"):
            obs, action = (deserialize_space(metadata[f"{kind}_space"]) for kind in ("observation", "action"))
            options = dict(spec.get("kwargs") or {})
        if spec.get("max_episode_steps") is not None:
            options["max_episode_steps"] = spec["max_episode_steps"]
        task = task_of_spaces(env_id, obs, action, options)
    low, high = metadata.get("ref_min_score"), metadata.get("ref_max_score")
    if isinstance(low, int | float) and isinstance(high, int | float) and high > low:
        return dataclasses.replace(task, reference_min=low, reference_max=high, reference_source="Minari")
    if task.reference_source.startswith("none"):
        return task
    return dataclasses.replace(task, reference_source=task.reference_source + NO_REFERENCES)


def episodes(folder: Path) -> Iterator[tuple[Any, Any, Any]]:
    """Minari's episodes with their observation and action spaces. Raises UserError for unequal lengths."""
    with _opened(folder) as dataset:
        iterator = iter(dataset.iterate_episodes())
        while True:
            with hdf5.as_user_error(f"the Minari dataset {folder}"):
                episode = next(iterator, None)
                if episode is None:
                    return
                columns = (episode.rewards, episode.actions, episode.terminations, episode.truncations)
                lengths = {len(column) for column in columns}
            if len(lengths) > 1 or lengths == {0}:
                raise UserError(f"episode {episode.id} of {folder} has arrays of lengths {sorted(lengths)}")
            yield episode, dataset.observation_space, dataset.action_space


def transitions(folder: Path, task: Task, totals: list[tuple[float, int, bool]]) -> Iterator[np.ndarray]:
    """Yield parts of the rows; append each episode's return, length and truncation to `totals`."""
    part: list[np.ndarray] = []
    count = 0
    for episode, *spaces in episodes(folder):
        with hdf5.as_user_error(f"the Minari dataset {folder}"):
            rows = _rows(episode, *spaces)
            truncated = bool(episode.truncations[-1]) and not bool(episode.terminations[-1])
            totals.append((float(np.sum(episode.rewards, dtype=np.float64)), len(rows), truncated))
        if rows.shape[1] != row_width(task):
            raise UserError(
                f"{folder} does not fit {task.env_id}: its rows have {rows.shape[1]} columns, not "
                f"{row_width(task)}"
            )
        part.append(rows)
        count += len(rows)
        if count >= PART:
            yield np.concatenate(part)
            part, count = [], 0
    if part:
        yield np.concatenate(part)


def write(
    folder: Path,
    minari_id: str,
    task: Task,
    buffers: Sequence[Any],
    notes: dict[str, Any],
    write_extra: Callable[[Path], None] = lambda data: None,
) -> None:
    """Write episode buffers as a Minari dataset in HDF5.

    notes        stored in the dataset's metadata
    write_extra  writes more files to the folder of the data
    """
    import minari

    environment = make(task.env_id, **task.env_options)
    # in a temporary root: if Minari fails, it leaves a folder that blocks the id
    with writing(folder) as temporary, _datasets_path(temporary / "root"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Minari asks for authors, links and the like
        dataset = minari.create_dataset_from_buffers(
            minari_id,
            buffers,
            env=environment.unwrapped,
            description=f"{minari_id}, written by offline-gntd",
            ref_min_score=task.reference_min,
            ref_max_score=task.reference_max,
            data_format="hdf5",
        )
        dataset.storage.update_metadata({NOTES_KEY: json.dumps(notes)})
        write_extra(temporary / "root" / minari_id / "data")
        for part in (temporary / "root" / minari_id).iterdir():
            part.rename(temporary / part.name)
        shutil.rmtree(temporary / "root")
    environment.close()


def download(minari_id: str) -> None:
    """Download a dataset, and those that it combines, into Minari's folder: completely or not at all."""
    import minari

    root = user_root()
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=root) as temporary:
        with _datasets_path(Path(temporary)):
            minari.download_dataset(minari_id)
        for metadata in list(Path(temporary).glob("**/data/metadata.json")):
            target = root / metadata.parents[1].relative_to(temporary)
            target.parent.mkdir(parents=True, exist_ok=True)
            remove(target)  # what an interrupted download left
            metadata.parents[1].rename(target)


def buffers_of(
    rows: np.ndarray, ends: np.ndarray, task: Task, truncated: np.ndarray | None = None
) -> list[Any]:
    """Rows [N, row_width] as Minari's episode buffers.

    ends       row after each episode's last row
    truncated  [N] bool, rows where the time limit ended an episode; by default where the last row of an
               episode is not terminal
    """
    from minari.data_collector import EpisodeBuffer

    o, a = task.obs_dim, 1 if task.discrete else task.action_dim
    obs, reward, next_obs = rows[:, :o], rows[:, o + a], rows[:, o + a + 1 : -1]
    action = rows[:, o].astype(np.int64) if task.discrete else rows[:, o : o + a]
    buffers: list[Any] = []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        terminations = rows[start:end, -1].astype(bool)
        truncations = np.zeros(end - start, bool)
        truncations[-1] = not terminations[-1] if truncated is None else truncated[end - 1]
        buffers.append(
            EpisodeBuffer(
                id=len(buffers),
                observations=np.concatenate([obs[start:end], next_obs[end - 1 : end]]),
                actions=action[start:end],
                rewards=reward[start:end],
                terminations=terminations,
                truncations=truncations,
                infos={},
            )
        )
    return buffers


def _rows(episode: Any, obs_space: Any, action_space: Any) -> np.ndarray:
    import gymnasium

    obs = flat_vectors(episode.observations, obs_space)
    steps = len(episode.rewards)
    if len(obs) != steps + 1:
        raise UserError(
            f"episode {episode.id} has {len(obs)} observations for {steps} steps, not {steps + 1}"
        )
    action = np.asarray(episode.actions).reshape(steps, -1)
    if isinstance(action_space, gymnasium.spaces.Discrete):
        action = action - action_space.start  # a network's outputs are numbered from 0
    columns = [obs[:-1], action, episode.rewards[:, None], obs[1:], episode.terminations[:, None]]
    with np.errstate(over="ignore", invalid="ignore"):  # the cache refuses what overflows
        return np.concatenate(columns, axis=1, dtype=np.float32, casting="unsafe")


def flat_vectors(values: Any, space: Any) -> np.ndarray:
    """Observations of any space as vectors [n, dim], in the order of gymnasium's FlattenObservation."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return np.concatenate([flat_vectors(values[key], part) for key, part in space.spaces.items()], axis=1)
    if isinstance(space, spaces.Tuple):
        parts = zip(values, space.spaces, strict=True)
        return np.concatenate([flat_vectors(value, part) for value, part in parts], axis=1)
    if isinstance(space, spaces.Discrete):
        return np.eye(int(space.n), dtype=np.float32)[np.asarray(values).reshape(-1) - space.start]
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        values = np.asarray(values)
        return values.reshape(len(values), -1)
    raise UserError(f"observation space {space} is not supported")


def _spec(text: Any, folder: Path) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        spec = parse_json(text)
        spec["id"] + ""  # raises TypeError unless it is a string
    except (TypeError, ValueError, KeyError) as error:
        raise UserError(f"cannot read env_spec of the Minari dataset {folder}: {error}") from error
    return spec


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[Any]:
    import minari

    data, metadata = folder / "data", metadata_of(folder)
    for key in ("observation_space", "action_space"):
        if not isinstance(metadata.get(key), str):  # without it, Minari makes the environment that it names
            raise UserError(f"the metadata of the Minari dataset {folder} lacks {key}")
    if (data / "main_data.hdf5").is_file():
        hdf5.check(data / "main_data.hdf5")
    with hdf5.as_user_error(f"the Minari dataset {folder}"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = minari.MinariDataset(data)
    yield dataset


@contextlib.contextmanager
def _datasets_path(folder: Path) -> Iterator[None]:
    """Set Minari's root folder, which Minari reads from the environment."""
    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = str(folder.resolve())
    try:
        yield
    finally:
        if before is None:
            del os.environ["MINARI_DATASETS_PATH"]
        else:
            os.environ["MINARI_DATASETS_PATH"] = before
