"""The flat cache: a dataset as one memory-mapped float32 matrix, shared by every process that opens it.

A cache folder holds rows.npy [N, row_width], episodes.npy (return and length of each episode, and 1 where a
time limit cut it at its last row) and dataset.json, which carries the key of the source it was made from, the
sha256 of the data and the stamp (size, times) under which that was verified. A cache is always derived from a
source, so one that is stale or fails verification is deleted and made again.
"""

import contextlib
import dataclasses
import hashlib
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from offline_gntd.datasets.dataset import Dataset, DatasetInfo
from offline_gntd.errors import UserError
from offline_gntd.files import home, read_json, write_json, writing
from offline_gntd.tasks import Task
from offline_gntd.transitions import row_width

FORMAT = 3  # of the folder; a cache in another format is made again


class Unusable(UserError):
    """The cache is not what was written, or was made from something else."""


class Absent(Unusable):
    """There is no cache."""


def folder(name: str) -> Path:
    return home() / "datasets" / "cache" / name


def cached(path: Path, key: str, make: Callable[[], Dataset]) -> Dataset:
    """The cache made from the source with this key; when it is not to be used, what `make` makes of it."""
    try:
        return read(path, key)
    except Absent:
        pass
    except Unusable as error:
        tqdm.write(f"{error}; making it anew", file=sys.stderr)
    try:
        return make()
    except UserError:
        with contextlib.suppress(Unusable):  # another process made it meanwhile, in our way
            return read(path, key)
        raise


def write(
    path: Path, about: DatasetInfo, key: str, rows: np.ndarray | Iterable[np.ndarray], episodes: Any
) -> Dataset:
    """Write a cache folder whole, and open it.

    rows may come in slabs; episodes [E, 3] (return, length, truncated) is read after the last slab.
    """
    slabs = [rows] if isinstance(rows, np.ndarray) else rows
    with writing(path) as temporary:
        temporary.mkdir()
        summary = _write_rows(temporary / "rows.npy", slabs, about)
        episodes = np.asarray(episodes, np.float64)
        np.save(temporary / "episodes.npy", episodes)
        description = {
            "format": FORMAT,
            "key": key,
            **dataclasses.asdict(about),
            **summary.description(truncated_rows(episodes)),
            "episodes_sha256": hashlib.sha256(episodes.tobytes()).hexdigest(),
        }
        description |= {"digest": _digest(description), "stamp": _stamp(temporary / "rows.npy")}
        write_json(temporary / "dataset.json", description)
    return read(path, key)


def in_memory(about: DatasetInfo, rows: np.ndarray, episodes: np.ndarray) -> Dataset:
    """A dataset that is kept nowhere."""
    rows = np.ascontiguousarray(rows, np.float32)
    summary = Summary(about)
    summary.add(rows)
    episodes = np.asarray(episodes, np.float64)
    return _dataset(about, rows, episodes, summary.description(truncated_rows(episodes)))


def truncated_rows(episodes: np.ndarray) -> np.ndarray:
    """Numbers of the rows at which a time limit cut an episode, from episodes [E, 3]."""
    return (np.cumsum(episodes[:, 1]).astype(np.int64) - 1)[episodes[:, 2] > 0]


def _sha256(rows_hash: Any, truncated: np.ndarray) -> str:
    """The hash of a dataset: its rows and, where there are any, its truncated rows' numbers."""
    rows_hash.update(truncated.tobytes())
    return rows_hash.hexdigest()


def read(path: Path, key: str) -> Dataset:
    """Open a cache folder without reading its rows, or raise Unusable."""
    if not path.exists():
        raise Absent(f"there is no flat cache {path}")
    try:
        description = read_json(path / "dataset.json")
        if description.get("format") != FORMAT:
            raise Unusable(f"the flat cache {path} was made by another version")
        if description["digest"] != _digest(description):
            raise ValueError("its description has been changed")
        if description["key"] != key:
            raise Unusable(f"the flat cache {path} was made from another source")
        rows = np.load(path / "rows.npy", mmap_mode="c")  # copy-on-write: shared until written to
        episodes = np.load(path / "episodes.npy")
        about = DatasetInfo(
            **{field.name: description[field.name] for field in dataclasses.fields(DatasetInfo)}
            | {"task": Task(**description["task"]), "notes": tuple(description["notes"])}
        )
        if rows.dtype != np.float32 or rows.ndim != 2 or rows.shape[1] != row_width(about.task):
            raise ValueError(f"its rows are {rows.dtype} {rows.shape}")
        if hashlib.sha256(episodes.tobytes()).hexdigest() != description["episodes_sha256"]:
            raise ValueError("its episodes have been changed")
        if description["stamp"] != _stamp(path / "rows.npy"):
            if _sha256(hashlib.sha256(rows.data), truncated_rows(episodes)) != description["sha256"]:
                raise ValueError("its rows do not have their sha256")
            with contextlib.suppress(UserError):  # a cache that is only to be read is verified each time
                write_json(path / "dataset.json", description | {"stamp": _stamp(path / "rows.npy")})
    except Unusable:
        raise
    except (UserError, OSError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise Unusable(f"the flat cache {path} is corrupt: {error}") from error
    return _dataset(about, rows, episodes, description)


class Summary:
    """sha256, mean and standard deviation of rows that come slab by slab; what is not finite is refused."""

    def __init__(self, about: DatasetInfo):
        self.name, self.obs_dim = about.name, about.task.obs_dim
        self.count = 0
        self.hash = hashlib.sha256()
        self.shift: np.ndarray | None = None  # near the mean, so that the squares do not swallow it

    def add(self, rows: np.ndarray) -> None:
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            row = self.count + int(np.argmin(finite))
            raise UserError(
                f"{self.name} holds NaN or infinite values, first in transition {row:,}; "
                f"see what else with: offline-gntd datasets check"
            )
        self.hash.update(rows.data)
        obs = rows[:, : self.obs_dim].astype(np.float64)
        if self.shift is None:
            self.shift = obs.mean(axis=0) if len(obs) else np.zeros(self.obs_dim)
            self.sum, self.squares = np.zeros(self.obs_dim), np.zeros(self.obs_dim)
        obs -= self.shift
        self.count += len(obs)
        self.sum += obs.sum(axis=0)
        self.squares += np.einsum("ij,ij->j", obs, obs)

    def description(self, truncated: np.ndarray) -> dict[str, Any]:
        if self.shift is None or not self.count:
            raise UserError(f"{self.name} holds no transitions")
        mean = self.sum / self.count
        variance = np.maximum(self.squares / self.count - mean**2, 0.0)
        return {
            "sha256": _sha256(self.hash, truncated),
            "obs_mean": (self.shift + mean).astype(np.float32).tolist(),
            "obs_std": np.sqrt(variance).astype(np.float32).tolist(),
        }


def _write_rows(path: Path, slabs: Iterable[np.ndarray], about: DatasetInfo) -> Summary:
    """An .npy file whose number of rows is known only at its end, where its header is written again."""
    summary, width = Summary(about), row_width(about.task)
    with path.open("wb") as file:
        _write_header(file, 0, width)
        start = file.tell()
        for slab in slabs:
            rows = np.ascontiguousarray(slab, np.float32)
            summary.add(rows)
            file.write(rows.data)
        file.seek(0)
        _write_header(file, summary.count, width)
        if file.tell() != start:
            raise AssertionError("the header of an .npy file leaves room for any number of rows")
    return summary


def _write_header(file: Any, count: int, width: int) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": (count, width)}
    np.lib.format.write_array_header_1_0(file, header)


def _dataset(about: DatasetInfo, rows: np.ndarray, episodes: np.ndarray, summary: dict[str, Any]) -> Dataset:
    return Dataset(
        **{field.name: getattr(about, field.name) for field in dataclasses.fields(DatasetInfo)},
        rows=torch.from_numpy(rows),
        sha256=summary["sha256"],
        episode_returns=episodes[:, 0],
        episode_lengths=episodes[:, 1].astype(int),
        truncated=truncated_rows(episodes),
        obs_mean=np.asarray(summary["obs_mean"], np.float32),
        obs_std=np.asarray(summary["obs_std"], np.float32),
    )


def _digest(description: dict[str, Any]) -> str:
    """Of all that is written once; the stamp may be renewed."""
    lasting = {key: value for key, value in description.items() if key not in ("digest", "stamp")}
    return hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()


def _stamp(path: Path) -> list[int]:
    """What changes when the file does: its size and times."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
