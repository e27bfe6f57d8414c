"""The flat cache: a dataset as one memory-mapped float32 matrix, shared by every process that opens it.

A cache folder holds rows.npy [N, row_width], episodes.npy (return and length of each episode) and
dataset.json, which carries the rows' sha256 and the stamp (size, time) under which that was verified. A cache
is always derived from a source, so one that fails verification is thrown away and made anew.
"""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offline_gntd.datasets.dataset import Dataset
from offline_gntd.errors import UserError
from offline_gntd.files import home, read_json, write_json, writing
from offline_gntd.tasks import Task
from offline_gntd.transitions import row_width


class CorruptCache(UserError):
    """The cache is not what was written."""


def folder(name: str) -> Path:
    return home() / "datasets" / "cache" / name


def write(
    path: Path, name: str, task: Task, rows: np.ndarray, episodes: np.ndarray, provenance: dict[str, Any]
) -> Dataset:
    """Write a cache folder whole, and open it. episodes [E, 2]: return and length of each."""
    rows = np.ascontiguousarray(rows, np.float32)
    with writing(path) as temporary:
        temporary.mkdir()
        np.save(temporary / "rows.npy", rows)
        np.save(temporary / "episodes.npy", np.asarray(episodes, np.float64))
        description = {
            "name": name,
            "task": dataclasses.asdict(task),
            "sha256": hashlib.sha256(rows.data).hexdigest(),
            "stamp": _stamp(temporary / "rows.npy"),
            "provenance": provenance,
        }
        write_json(temporary / "dataset.json", description)
    return read(path)


def read(path: Path) -> Dataset:
    """Open a cache folder without reading its rows, or raise CorruptCache."""
    try:
        description = read_json(path / "dataset.json")
        task = Task(**description["task"])
        rows = np.load(path / "rows.npy", mmap_mode="c")  # copy-on-write: shared until written to
        episodes = np.load(path / "episodes.npy")
        if rows.dtype != np.float32 or rows.ndim != 2 or rows.shape[1] != row_width(task):
            raise ValueError(f"its rows are {rows.dtype} {rows.shape}")
        if description["stamp"] != _stamp(path / "rows.npy"):
            if hashlib.sha256(rows.data).hexdigest() != description["sha256"]:
                raise ValueError("its rows do not have their sha256")
            write_json(path / "dataset.json", description | {"stamp": _stamp(path / "rows.npy")})
    except (UserError, OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptCache(f"the flat cache {path} is corrupt: {error}") from error
    return Dataset(
        name=description["name"],
        task=task,
        rows=torch.from_numpy(rows),
        sha256=description["sha256"],
        episode_returns=episodes[:, 0],
        episode_lengths=episodes[:, 1].astype(int),
        provenance=description["provenance"],
    )


def _stamp(path: Path) -> list[int]:
    """What changes when the file does: its size and time of writing."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
