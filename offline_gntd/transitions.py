"""Transitions: the same type for a dataset and for a batch.

They are rows (obs | action | reward | next_obs | terminated) of one float32 matrix, so that drawing a batch
is one gather. A discrete action is one column with its number.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from offline_gntd.tasks import Task


class Transitions(NamedTuple):
    obs: Tensor  # [..., obs_dim]
    action: Tensor  # [..., action_dim], or integers [...] if discrete
    reward: Tensor  # [...]
    next_obs: Tensor  # [..., obs_dim]
    terminated: Tensor  # [...] 1 in a terminal state; a time limit never sets it


def row_width(task: Task) -> int:
    return 2 * task.obs_dim + (1 if task.discrete else task.action_dim) + 2


def from_rows(rows: Tensor, task: Task) -> Transitions:
    """The named columns of rows [..., row_width]: views, except for discrete actions."""
    action_width = 1 if task.discrete else task.action_dim
    obs, action, reward, next_obs, terminated = rows.split_with_sizes(
        [task.obs_dim, action_width, 1, task.obs_dim, 1], dim=-1
    )
    if task.discrete:
        action = action[..., 0].long()
    return Transitions(obs, action, reward[..., 0], next_obs, terminated[..., 0])


class Batch(Transitions):
    """Transitions [seeds, batch, …] drawn from a dataset, with the numbers of their rows."""

    rows: Tensor  # all rows of the dataset [n, row_width]
    row_index: Tensor  # the row of each transition [seeds, batch]

    def of_seed(self, i: int, **columns: Tensor) -> "Batch":
        """The batch [batch, …] of one seed; `columns` [seeds, batch, …] replace those of the same name."""
        batch = Batch(*(column[i] for column in self._replace(**columns)))
        batch.rows, batch.row_index = self.rows, self.row_index[i]
        return batch

    def next_action(self) -> tuple[Tensor, Tensor]:
        """The data's action a′ in s′ [..., action_dim], and whether it is known [...].

        It is the action of the next row, and it is known if that row begins in the state that this one ends
        in: not at the end of an episode.
        """
        obs_dim, action_dim = self.obs.shape[-1], self.action.shape[-1]
        now, then = self.rows[self.row_index], self.rows[(self.row_index + 1).clamp_max(len(self.rows) - 1)]
        next_obs = now[..., obs_dim + action_dim + 1 : -1]
        known = (next_obs == then[..., :obs_dim]).all(-1)
        return then[..., obs_dim : obs_dim + action_dim], known


class Sampler:
    """Draws one batch per seed, uniformly, with the seed's generator.

    All batches use the same memory: a batch is valid until the next one is drawn.
    """

    def __init__(self, task: Task, batch: int, generators: Sequence[torch.Generator]):
        self.task, self.generators, device = task, generators, generators[0].device
        self._index = torch.empty(len(generators) * batch, dtype=torch.int64, device=device)
        self._index_by_seed = self._index.split(batch)
        self._drawn = torch.empty(len(generators) * batch, row_width(task), device=device)
        self._by_seed = self._drawn.unflatten(0, (len(generators), batch))
        self._batch = Batch(*from_rows(self._by_seed, task))
        self._batch.row_index = self._index.unflatten(0, (len(generators), batch))

    def __call__(self, rows: Tensor, ranges: Sequence[tuple[int, int]] | None = None) -> Batch:
        """A batch [seeds, batch, …] from rows [n, row_width].

        ranges  first row and row after the last to draw from, per seed; by default all rows
        """
        ranges = [(0, len(rows))] * len(self.generators) if ranges is None else ranges
        draws = zip(self._index_by_seed, self.generators, ranges, strict=True)
        for index, generator, (start, stop) in draws:
            index.random_(start, stop, generator=generator)
        torch.index_select(rows, 0, self._index, out=self._drawn)
        if self.task.discrete:  # discrete actions are converted to integers: copies, not views of `_drawn`
            index, self._batch = self._batch.row_index, Batch(*from_rows(self._by_seed, self.task))
            self._batch.row_index = index
        self._batch.rows = rows
        return self._batch
