"""What `load` returns, or raises."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from offline_gntd.errors import UserError
from offline_gntd.tasks import Task
from offline_gntd.transitions import Transitions, from_rows


class Missing(UserError):
    """The dataset has a name we know, and its data is not here."""


@dataclass(frozen=True)
class Dataset:
    name: str
    task: Task
    rows: Tensor  # [N, row_width] float32, memory-mapped: obs | action | reward | next_obs | terminated
    sha256: str  # of the rows' bytes
    episode_returns: np.ndarray  # [episodes]
    episode_lengths: np.ndarray  # [episodes]
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def transitions(self) -> Transitions:
        """All transitions as stored: nothing is normalised."""
        return from_rows(self.rows, self.task)

    def __len__(self) -> int:
        return len(self.rows)
