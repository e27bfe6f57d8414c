"""What `load` returns, or raises."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from offline_gntd.errors import UserError
from offline_gntd.tasks import Task
from offline_gntd.transitions import Transitions, from_rows


class DatasetNotFound(UserError):
    """The dataset has a name we know, and its data is not here."""


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """All there is to say of a dataset but its data."""

    name: str  # safe as a folder's name
    task: Task
    origin: str  # built | d4rl | minari | imported | file | dict | authors | online
    source: str = ""  # what `load` takes to open it again: a name, or a file's full path
    d4rl_id: str | None = None  # the D4RL id it is, or by its file's name is meant to be
    version: str | None = None  # v0 | v1 | v2 of a D4RL set, vN of a Minari set
    notes: tuple[str, ...] = ()  # what is known to be wrong with it
    provenance: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Dataset(DatasetInfo):
    rows: Tensor  # [N, row_width] float32, memory-mapped: obs | action | reward | next_obs | terminated
    sha256: str  # of the rows' bytes, and of the truncated rows' numbers where there are any
    episode_returns: np.ndarray  # [episodes]
    episode_lengths: np.ndarray  # [episodes]
    truncated: np.ndarray  # numbers of the rows at which a time limit cut an episode, which did not terminate
    obs_mean: np.ndarray  # [obs_dim] float32, over the rows' obs
    obs_std: np.ndarray  # [obs_dim] float32, without any addition

    @property
    def transitions(self) -> Transitions:
        """All transitions as stored: nothing is normalised."""
        return from_rows(self.rows, self.task)

    @property
    def score(self) -> float:
        """The mean over its episodes."""
        return self.task.score(float(self.episode_returns.mean()))

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, kw_only=True)
class OnlineEnv(DatasetInfo):
    """An environment in the place of a dataset: for algorithms that collect their batches as they learn."""

    sha256: None = None  # there are no rows to begin with
    score: None = None
