"""Our built sets as Minari datasets: the exchange format, and the source the flat cache is derived from."""

import contextlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from offline_gntd.datasets.environments import make
from offline_gntd.errors import UserError
from offline_gntd.files import home, writing
from offline_gntd.tasks import Task
from offline_gntd.transitions import row_width


def root() -> Path:
    return home() / "datasets" / "minari"


def minari_id(name: str) -> str:
    return f"{name}-v0"


def path(name: str) -> Path:
    return root() / minari_id(name)


def write(name: str, task: Task, rows: np.ndarray, ends: np.ndarray, provenance: dict[str, Any]) -> None:
    """Store rows [N, row_width] of a discrete task, episodes ending at `ends` (exclusive), under our id.

    An episode whose last row is not terminated is truncated there.
    """
    import minari
    from minari.data_collector import EpisodeBuffer

    obs, action, reward, next_obs, terminated = _columns(rows, task)
    buffers = []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        over = terminated[start:end].astype(bool)
        truncated = np.zeros(end - start, bool)
        truncated[-1] = not over[-1]
        buffers.append(
            EpisodeBuffer(
                id=len(buffers),
                observations=np.concatenate([obs[start:end], next_obs[end - 1 : end]]),
                actions=action[start:end],
                rewards=reward[start:end],
                terminations=over,
                truncations=truncated,
                infos={},
            )
        )
    environment = make(task.env_id)
    # In a root of its own: a creation that fails would leave a folder that blocks the id
    with writing(path(name)) as temporary, _datasets_path(temporary / "root"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Minari asks for authors, links and the like
        dataset = minari.create_dataset_from_buffers(
            minari_id(name),
            buffers,
            env=environment,
            description=f"{name}, built by offline-gntd",
            ref_min_score=task.reference_min,
            ref_max_score=task.reference_max,
            data_format="hdf5",
        )
        dataset.storage.update_metadata({"offline_gntd": json.dumps(provenance)})
        for part in (temporary / "root" / minari_id(name)).iterdir():
            part.rename(temporary / part.name)
        shutil.rmtree(temporary / "root")
    environment.close()


def read(name: str, task: Task) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Rows, episode ends and provenance of a set written by `write`."""
    import minari

    try:
        with _datasets_path(root()):
            dataset = minari.load_dataset(minari_id(name))
            episodes = list(dataset.iterate_episodes())
            provenance = json.loads(dataset.storage.metadata["offline_gntd"])
    except Exception as error:  # Minari lets h5py's and its own errors through
        raise UserError(
            f"cannot read the Minari dataset {path(name)}: {error}. Mend with: "
            f"offline-gntd datasets build {name} --force"
        ) from error
    rows = np.concatenate([_rows(episode) for episode in episodes])
    if rows.shape[1] != row_width(task):
        raise UserError(f"{path(name)} is not a dataset of {task.env_id}")
    return rows, np.cumsum([len(episode.rewards) for episode in episodes]), provenance


def _columns(rows: np.ndarray, task: Task) -> tuple[np.ndarray, ...]:
    o = task.obs_dim
    return rows[:, :o], rows[:, o].astype(np.int64), rows[:, o + 1], rows[:, o + 2 : -1], rows[:, -1]


def _rows(episode: Any) -> np.ndarray:
    columns = [
        episode.observations[:-1],
        episode.actions[:, None],
        episode.rewards[:, None],
        episode.observations[1:],
        episode.terminations[:, None],
    ]
    return np.concatenate(columns, axis=1).astype(np.float32)


@contextlib.contextmanager
def _datasets_path(folder: Path) -> Iterator[None]:
    """Minari takes its root from the environment alone."""
    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = str(folder.resolve())
    try:
        yield
    finally:
        if before is None:
            del os.environ["MINARI_DATASETS_PATH"]
        else:
            os.environ["MINARI_DATASETS_PATH"] = before
