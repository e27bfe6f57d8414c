"""The cache: a dataset as one memory-mapped float32 matrix, shared by every process that opens it.

    rows.npy       [N, row_width] float32
    episodes.npy   [episodes, 3] float64: return, length, 1 if a time limit ended the episode at its last row
    dataset.json   description, key of the source, and checksums: sha256 of rows and truncations (the
                   dataset's sha256), of the episodes, and of the description itself

Opening verifies the description, the episodes, and the header, size and times of rows.npy. The rows
themselves are hashed when they are written, when the file's times have changed, by `datasets check`, and at
the start and end of every run (`Dataset.verify`). A stale or damaged cache is built again from its source.
"""

import contextlib
import dataclasses
import hashlib
import json
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from offline_gntd.datasets.dataset import Dataset, DatasetInfo, data_sha256, finish_sha256
from offline_gntd.errors import UserError, first_line
from offline_gntd.files import changed, home, read_json, write_json, writing
from offline_gntd.tasks import Task
from offline_gntd.transitions import row_width

FORMAT = 3  # a cache in another format is built again

# metadata; parts of the rows [n, row_width]; episodes [E, 3] (return, length, truncated), complete after the
# last part
Contents = tuple[DatasetInfo, Iterable[np.ndarray], Any]


class Unusable(UserError):
    """The cache is damaged, or was built from something else."""


class NoCache(Unusable):
    """There is no cache."""


@dataclass(frozen=True)
class CachedSource:
    """A dataset that is read through the cache."""

    folder: Path
    key: str  # hash of the source's content and of the settings it is read with
    contents: Callable[[], AbstractContextManager[Contents]]  # reads the source
    current_key: Callable[[], str]  # the key, computed again after reading


def folder(name: str) -> Path:
    return home() / "datasets" / "cache" / name


def key_of(*parts: Any) -> str:
    """A cache key: the hash of JSON values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def load(source: CachedSource) -> Dataset:
    """Open the cache of a source; build it if it is missing, stale or damaged."""
    try:
        return read(source.folder, source.key)
    except NoCache:
        pass
    except Unusable as error:
        tqdm.write(f"{error}; building it again", file=sys.stderr)
    try:
        _write(source)
    except UserError:
        with contextlib.suppress(Unusable):  # another process built it meanwhile
            return read(source.folder, source.key)
        raise
    return read(source.folder, source.key)


def _write(source: CachedSource) -> None:
    """Write the cache folder of a source. Raises UserError if the source changes while it is read."""
    with source.contents() as (info, parts, episodes), writing(source.folder) as temporary:
        temporary.mkdir()
        summary = _write_rows(temporary / "rows.npy", parts, info)
        if source.current_key() != source.key:
            raise changed(info.source)
        episodes = np.asarray(episodes, np.float64)
        np.save(temporary / "episodes.npy", episodes)
        description = {
            "format": FORMAT,
            "key": source.key,
            **dataclasses.asdict(info),
            **summary.description(episodes),
            "episodes_sha256": hashlib.sha256(episodes.tobytes()).hexdigest(),
        }
        description |= {"digest": _digest(description), "stamp": _stamp(temporary / "rows.npy")}
        write_json(temporary / "dataset.json", description)


def in_memory(info: DatasetInfo, rows: np.ndarray, episodes: np.ndarray) -> Dataset:
    """A dataset without a cache."""
    rows = _scaled(rows, info.task)
    summary = Summary(info)
    summary.add(rows)
    episodes = np.asarray(episodes, np.float64)
    return _dataset(info, rows, episodes, summary.description(episodes))


def truncated_rows(episodes: np.ndarray) -> np.ndarray:
    """Row numbers where a time limit ended an episode, from episodes [E, 3]."""
    return (np.cumsum(episodes[:, 1]).astype(np.int64) - 1)[episodes[:, 2] > 0]


def read(path: Path, key: str, verify: bool = False) -> Dataset:
    """Open a cache folder, or raise Unusable.

    verify  hash the rows even if the size and times of their file are unchanged
    """
    if not path.exists():
        raise NoCache(f"there is no cache {path}")
    try:
        description = read_json(path / "dataset.json")
        if description.get("format") != FORMAT:
            raise Unusable(f"the cache {path} was written by another version")
        if description["digest"] != _digest(description):
            raise ValueError("its description does not match its checksum")
        if description["key"] != key:
            raise Unusable(f"the cache {path} was built from another source")
        rows = np.load(path / "rows.npy", mmap_mode="c")  # copy-on-write: shared until written to
        episodes = np.load(path / "episodes.npy")
        info = DatasetInfo(
            **{field.name: description[field.name] for field in dataclasses.fields(DatasetInfo)}
            | {"task": Task(**description["task"]), "notes": tuple(description["notes"])}
        )
        if rows.dtype != np.float32 or rows.ndim != 2 or rows.shape[1] != row_width(info.task):
            raise ValueError(f"its rows are {rows.dtype} {rows.shape}")
        if episodes.dtype != np.float64 or episodes.ndim != 2 or episodes.shape[1] != 3:
            raise ValueError(f"its episodes are {episodes.dtype} {episodes.shape}")
        if hashlib.sha256(episodes.tobytes()).hexdigest() != description["episodes_sha256"]:
            raise ValueError("its episodes do not match their checksum")
        if verify or description["stamp"] != _stamp(path / "rows.npy"):
            if data_sha256(rows, truncated_rows(episodes)) != description["sha256"]:
                raise ValueError("its rows do not match their sha256")
            with contextlib.suppress(UserError):  # a read-only cache is verified each time
                write_json(path / "dataset.json", description | {"stamp": _stamp(path / "rows.npy")})
    except Unusable:
        raise
    except Exception as error:  # a damaged .npy header may raise tokenize's errors, among others
        raise Unusable(f"the cache {path} is damaged: {first_line(error)}") from error
    return _dataset(info, rows, episodes, description, path / "rows.npy")


def illegal_actions(actions: np.ndarray, count: int) -> np.ndarray:
    """Where discrete actions, stored as floats, are not whole numbers from 0 to count - 1."""
    return (actions < 0) | (actions >= count) | (actions != np.round(actions))


class Summary:
    """The sha256 of rows, and the mean and standard deviation of their observations, updated part by part."""

    def __init__(self, info: DatasetInfo):
        self.name, self.task, self.obs_dim = info.name, info.task, info.task.obs_dim
        self.count = 0
        self.hash = hashlib.sha256()
        self.shift: np.ndarray | None = None  # near the mean, so that the sum of squares stays accurate

    def add(self, rows: np.ndarray) -> None:
        """Add rows [n, row_width]. Raises UserError for NaN and infinite values and for illegal actions."""
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            row = self.count + int(np.argmin(finite))
            raise UserError(
                f"{self.name} contains NaN or infinite values, first in transition {row:,}; for a full "
                "report run: offline-gntd datasets check"
            )
        if self.task.discrete:
            wrong = illegal_actions(rows[:, self.obs_dim], self.task.action_dim)
            if wrong.any():
                row, action = self.count + int(np.argmax(wrong)), rows[np.argmax(wrong), self.obs_dim]
                legal = f"a whole number from 0 to {self.task.action_dim - 1}"
                raise UserError(f"{self.name}: the action of transition {row:,} is {action:g}, not {legal}")
        self.hash.update(rows.data)
        obs = rows[:, : self.obs_dim].astype(np.float64)
        if self.shift is None:
            self.shift = obs.mean(axis=0) if len(obs) else np.zeros(self.obs_dim)
            self.sum, self.squares = np.zeros(self.obs_dim), np.zeros(self.obs_dim)
        obs -= self.shift
        self.count += len(obs)
        self.sum += obs.sum(axis=0)
        self.squares += np.einsum("ij,ij->j", obs, obs)

    def description(self, episodes: np.ndarray) -> dict[str, Any]:
        """The summary as JSON. Raises UserError if there are no rows, or if a return is not finite."""
        if self.shift is None or not self.count:
            raise UserError(f"{self.name} contains no transitions")
        if not np.isfinite(episodes).all():
            raise UserError(f"{self.name} contains an episode with a NaN or infinite return")
        mean = self.sum / self.count
        variance = np.maximum(self.squares / self.count - mean**2, 0.0)
        return {
            "sha256": finish_sha256(self.hash, truncated_rows(episodes)),
            "obs_mean": (self.shift + mean).astype(np.float32).tolist(),
            "obs_std": np.sqrt(variance).astype(np.float32).tolist(),
        }


def _scaled(part: np.ndarray, task: Task) -> np.ndarray:
    """Rows [n, row_width] with continuous actions scaled to [−1, 1]."""
    rows = np.ascontiguousarray(part, np.float32)
    if task.action_range is None or not len(rows):
        return rows
    rows, columns = rows.copy(), slice(task.obs_dim, task.obs_dim + task.action_dim)
    rows[:, columns] = task.to_unit(rows[:, columns])
    return rows


def _write_rows(path: Path, parts: Iterable[np.ndarray], info: DatasetInfo) -> Summary:
    """Write an .npy file part by part; the header, which has the number of rows, is written again last."""
    summary, width = Summary(info), row_width(info.task)
    with path.open("wb") as file:
        _write_header(file, 0, width)
        start = file.tell()
        for part in parts:
            rows = _scaled(part, info.task)
            summary.add(rows)
            file.write(rows.data)
        file.seek(0)
        _write_header(file, summary.count, width)
        if file.tell() != start:
            raise AssertionError("numpy pads .npy headers, so that any number of rows fits")
    return summary


def _write_header(file: Any, count: int, width: int) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": (count, width)}
    np.lib.format.write_array_header_1_0(file, header)


def _dataset(
    info: DatasetInfo,
    rows: np.ndarray,
    episodes: np.ndarray,
    summary: dict[str, Any],
    rows_file: Path | None = None,
) -> Dataset:
    return Dataset(
        **{field.name: getattr(info, field.name) for field in dataclasses.fields(DatasetInfo)},
        rows=torch.from_numpy(rows),
        sha256=summary["sha256"],
        episode_returns=episodes[:, 0],
        episode_lengths=episodes[:, 1].astype(int),
        truncated=truncated_rows(episodes),
        obs_mean=np.asarray(summary["obs_mean"], np.float32),
        obs_std=np.asarray(summary["obs_std"], np.float32),
        rows_file=rows_file,
    )


def _digest(description: dict[str, Any]) -> str:
    """A checksum of a description without the checksum itself and the stamp, which may be renewed."""
    content = {key: value for key, value in description.items() if key not in ("digest", "stamp")}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _stamp(path: Path) -> list[int]:
    """The size and times of a file, which change when it is written."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
