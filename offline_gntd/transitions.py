"""A dataset and a batch are the same type, one indexed from the other.

Transitions are kept as rows (obs | action | reward | next_obs | terminated) of one float32 matrix, so that
drawing a batch is one gather. A discrete action is one column holding its number.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from offline_gntd.tasks import Task


class Transitions(NamedTuple):
    obs: Tensor  # [..., obs_dim]
    action: Tensor  # [..., action_dim], or whole numbers [...] when discrete
    reward: Tensor  # [...]
    next_obs: Tensor  # [..., obs_dim]
    terminated: Tensor  # [...] 1 where the episode ended by itself; a time limit never sets it


def row_width(task: Task) -> int:
    return 2 * task.obs_dim + (1 if task.discrete else task.action_dim) + 2


def from_rows(rows: Tensor, task: Task) -> Transitions:
    """The named columns of rows [..., row_width], as views but for discrete actions."""
    action_width = 1 if task.discrete else task.action_dim
    obs, action, reward, next_obs, terminated = rows.split_with_sizes(
        [task.obs_dim, action_width, 1, task.obs_dim, 1], dim=-1
    )
    if task.discrete:
        action = action[..., 0].long()
    return Transitions(obs, action, reward[..., 0], next_obs, terminated[..., 0])


def sample(rows: Tensor, task: Task, batch: int, generators: Sequence[torch.Generator]) -> Transitions:
    """One batch per seed, drawn uniformly with the seed's own generator: [seeds, batch, ...]."""
    draws = [torch.randint(len(rows), (batch,), generator=g, device=g.device) for g in generators]
    index = draws[0] if len(draws) == 1 else torch.cat(draws)
    return from_rows(rows.index_select(0, index.to(rows.device)).view(len(generators), batch, -1), task)
