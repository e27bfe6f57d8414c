"""`Dataset`, which `load` returns, and `OnlineEnv`, which replaces it for online algorithms."""

import contextlib
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from offline_gntd.errors import UserError
from offline_gntd.tasks import Task
from offline_gntd.transitions import Transitions, from_rows


class DatasetNotFound(UserError):
    """The name is known, but its data is not on this machine."""


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """Metadata of a dataset."""

    name: str  # safe as a folder name
    task: Task
    origin: str  # built | d4rl | minari | ogbench | imported | file | dict | authors | online
    source: str = ""  # the argument of `load` that opens it again: a name, or a file's full path
    d4rl_id: str | None = None  # the D4RL file it is or, by its file name, claims to be
    version: str | None = None  # v0 | v1 | v2 of a D4RL file, vN of a Minari dataset
    notes: tuple[str, ...] = ()  # known issues
    provenance: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Dataset(DatasetInfo):
    rows: Tensor  # [N, row_width] float32, memory-mapped: obs | action | reward | next_obs | terminated
    sha256: str  # hash of the bytes of `rows` and then of `truncated`
    episode_returns: np.ndarray  # [episodes]
    episode_lengths: np.ndarray  # [episodes]
    truncated: np.ndarray  # row numbers (int64) where a time limit, not a terminal state, ended the episode
    obs_mean: np.ndarray  # [obs_dim] float32, over the rows' obs
    obs_std: np.ndarray  # [obs_dim] float32, without an added constant
    rows_file: Path | None = None  # where `rows` are mapped from

    @property
    def transitions(self) -> Transitions:
        """All transitions; observations are not normalised, actions are scaled to [−1, 1]."""
        return from_rows(self.rows, self.task)

    @property
    def score(self) -> float:
        """Normalised score of the mean episode return."""
        return self.task.score(float(self.episode_returns.mean()))

    def verify(self) -> None:
        """Raise UserError unless the rows still have this sha256. Takes 0.1 s for a million rows.

        `load` trusts the size and times of a cache file. This method reads the rows, so it notices a bit that
        changed on disk or in memory.
        """
        if data_sha256(self.rows.numpy(), self.truncated) == self.sha256:
            return
        if self.rows_file is not None:
            with contextlib.suppress(OSError):
                os.utime(self.rows_file)  # the next `load` verifies the file, and replaces it if damaged
        raise UserError(
            f"the rows of {self.name} no longer match their sha256 {self.sha256[:12]}…: the cache file or "
            "the memory is damaged. The next command verifies the cache and rebuilds it if it is damaged"
        )

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, kw_only=True)
class OnlineEnv(DatasetInfo):
    """An environment in place of a dataset, for algorithms that collect their batches."""

    sha256: None = None  # there are no rows before training
    score: None = None


def data_sha256(rows: np.ndarray, truncated: np.ndarray) -> str:
    """The sha256 of a dataset's rows and then of the numbers of its truncated rows."""
    return finish_sha256(hashlib.sha256(np.ascontiguousarray(rows).data), truncated)


def finish_sha256(rows_hash: Any, truncated: np.ndarray) -> str:
    """`data_sha256` from a hash object that was updated with all rows."""
    rows_hash.update(truncated.tobytes())
    return rows_hash.hexdigest()


def verify(sources: Iterable[DatasetInfo]) -> None:
    """Verify each distinct dataset once; environments are skipped."""
    for source in {id(source): source for source in sources}.values():
        if isinstance(source, Dataset):
            source.verify()
