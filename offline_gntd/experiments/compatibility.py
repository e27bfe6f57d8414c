"""Whether an algorithm can learn from a dataset, or in an environment, at all: said before anything runs."""

import gymnasium
import numpy as np

from offline_gntd.algorithms.preset import check_actions
from offline_gntd.datasets import Dataset
from offline_gntd.errors import UserError
from offline_gntd.evaluation import make
from offline_gntd.experiments.definitions import Cell
from offline_gntd.experiments.sources import Source

ROOM = 1e-3  # by which stored actions may exceed their range: float32 and tanh round


def check(cell: Cell, source: Source) -> None:
    """Refuse the wrong kind of actions, and continuous ones in another range than the policies' [−1, 1]."""
    check_actions(cell.config, source.task)
    if source.task.discrete:
        return
    environment = make(source.task.env_id, **source.task.env_options)
    space = environment.action_space
    environment.close()
    assert isinstance(space, gymnasium.spaces.Box)  # a task of continuous actions has no other
    if np.abs(space.high - 1).max() + np.abs(space.low + 1).max() > 0:
        raise UserError(
            f"{source.task.env_id} takes actions from {np.min(space.low):g} to {np.max(space.high):g}; "
            f"the algorithms for continuous actions act from −1 to 1"
        )
    if isinstance(source, Dataset):
        _check_actions_of(source)


def _check_actions_of(dataset: Dataset) -> None:
    largest = float(dataset.transitions.action.abs().max())
    if largest > 1 + ROOM:
        raise UserError(
            f"the actions of {dataset.name} reach {largest:g}, beyond the range of {dataset.task.env_id}, "
            f"−1 to 1; see: offline-gntd datasets check {dataset.source}"
        )
