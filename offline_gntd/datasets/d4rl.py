"""D4RL's layouts, from v0 to v2, as transitions: the arrays of d4rl.qlearning_dataset, without its loop.

One rule for episode boundaries: next_obs is the observation of the row after; a row marked as a timeout has
none and is left out, as is the last row; a terminal row stays, since what follows it is never looked at.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from offline_gntd.datasets.hdf5 import SLAB
from offline_gntd.errors import UserError
from offline_gntd.tasks import Task

KEYS = ("observations", "actions", "rewards", "terminals")


@dataclass(frozen=True)
class Recording:
    """A D4RL file or dict: steps in the order of time, one row each. Its columns slice like arrays."""

    where: str  # for messages
    columns: Mapping[str, Any]
    rewards: np.ndarray  # [steps] as stored
    terminals: np.ndarray  # [steps] bool
    timeouts: np.ndarray  # [steps] bool: as stored, or found
    boundaries: str  # how the timeouts were found
    episode_limit: int | None = None  # steps, where they were counted

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def kept(self) -> np.ndarray:
        """Which of the rows but the last are transitions."""
        return ~self.timeouts[:-1]

    @property
    def ends(self) -> np.ndarray:
        """Where episodes end, exclusive; the last may be cut by the end of the file."""
        ends = np.flatnonzero(self.terminals | self.timeouts) + 1
        return ends if len(ends) and ends[-1] == len(self) else np.append(ends, len(self))

    def episodes(self) -> np.ndarray:
        """Return, length and truncation of every episode [episodes, 3], with rows that are left out below.

        No transition is truncated: a row marked as a timeout is left out.
        """
        ends = self.ends
        starts = np.concatenate([[0], ends[:-1]])
        returns = np.add.reduceat(self.rewards.astype(np.float64), starts)
        return np.stack([returns, ends - starts, np.zeros(len(ends))], axis=1)

    def transitions(self, rows_at_once: int = SLAB) -> Iterator[np.ndarray]:
        """Float32 rows obs | action | reward | next_obs | terminated, some at a time."""
        kept, rewards = self.kept, self.rewards
        for start in range(0, len(kept), rows_at_once):
            stop = min(start + rows_at_once, len(kept))
            keep = kept[start:stop]
            obs = self.columns["observations"][start : stop + 1]
            parts = (
                obs[:-1][keep],
                self.columns["actions"][start:stop].reshape(stop - start, -1)[keep],
                rewards[start:stop, None][keep],
                obs[1:][keep],
                self.terminals[start:stop, None][keep],
            )
            rows = np.empty((int(keep.sum()), sum(part.shape[1] for part in parts)), np.float32)
            with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is refused by the cache
                np.concatenate(parts, axis=1, out=rows, casting="unsafe")
            yield rows


def recording(
    columns: Mapping[str, Any], task: Task, where: str, episode_limit: int | None = None
) -> Recording:
    """Arrays under D4RL's keys, checked against each other and the task."""
    for key in KEYS:
        if key not in columns:
            raise UserError(f"{where} has no {key!r}; a D4RL dataset has: {', '.join(KEYS)}")
    steps = columns["rewards"].shape[0] if columns["rewards"].shape else 0
    if steps < 2:
        raise UserError(f"{where} has fewer than two rows of rewards: {columns['rewards'].shape}")
    obs_shape = (steps, task.obs_dim)
    action_shapes = ((steps,), (steps, 1)) if task.discrete else ((steps, task.action_dim),)
    shapes = {"observations": (obs_shape,), "actions": action_shapes, "next_observations": (obs_shape,)}
    for key, legal in shapes.items():
        if key in columns:
            _check_numbers(columns[key], key, where)
            if columns[key].shape[:1] != (steps,):
                rows = columns[key].shape[0] if columns[key].shape else "no"
                raise UserError(f"{where}: {key} has {rows} rows and rewards {steps}")
            if columns[key].shape not in legal:
                raise UserError(
                    f"{where}: {key} is {columns[key].shape}, not {legal[0]} as {task.env_id} has it"
                )
    rewards = _one_per_step(columns, "rewards", steps, where)
    terminals = _flags(columns, "terminals", steps, where)
    counted = None
    if "timeouts" in columns:
        timeouts, boundaries = _flags(columns, "timeouts", steps, where), "as stored"
    elif "next_observations" in columns:
        timeouts = timeouts_by_next_observations(columns) & ~terminals
        boundaries = "no timeouts stored: found where next_observations part from the row after"
    elif episode_limit is not None:
        timeouts, counted = timeouts_by_limit(terminals, episode_limit), episode_limit
        boundaries = f"no timeouts stored: counted with an episode limit of {episode_limit} steps"
    else:
        raise UserError(f"{where} has no timeouts; say how long an episode may be with --episode-limit")
    found = Recording(where, columns, rewards, terminals, timeouts, boundaries, counted)
    if not found.kept.any():
        raise UserError(f"{where} has no transitions: every row is a timeout")
    return found


def timeouts_by_limit(terminals: np.ndarray, limit: int) -> np.ndarray:
    """Steps at which an episode reaches its limit, counted anew after every terminal and every limit.

    d4rl counts one too many after a terminal, and so cuts the episodes that follow one a step early.
    """
    if limit < 1:
        raise UserError(f"--episode-limit must be at least 1, not {limit}")
    ends = np.flatnonzero(terminals)
    starts = np.concatenate([[0], ends + 1])  # of the stretches between terminals
    step = np.arange(len(terminals)) - np.repeat(starts, np.diff(np.append(starts, len(terminals))))
    return step % limit == limit - 1


def timeouts_by_next_observations(columns: Mapping[str, Any]) -> np.ndarray:
    """Rows whose own next observation is not the one of the row after."""
    obs, next_obs = columns["observations"], columns["next_observations"]
    differs = np.zeros(obs.shape[0], bool)
    for start in range(0, obs.shape[0] - 1, SLAB):
        stop = min(start + SLAB, obs.shape[0] - 1)
        differs[start:stop] = (next_obs[start:stop] != obs[start + 1 : stop + 1]).any(axis=1)
    return differs


def _check_numbers(column: Any, key: str, where: str) -> None:
    if column.dtype.kind not in "biuf":
        raise UserError(f"{where}: {key} holds {column.dtype}, not numbers")


def _one_per_step(columns: Mapping[str, Any], key: str, steps: int, where: str) -> np.ndarray:
    _check_numbers(columns[key], key, where)
    if columns[key].shape not in ((steps,), (steps, 1)):
        raise UserError(f"{where}: {key} is {columns[key].shape}, not ({steps},)")
    return np.asarray(columns[key][:]).reshape(steps)


def _flags(columns: Mapping[str, Any], key: str, steps: int, where: str) -> np.ndarray:
    values = _one_per_step(columns, key, steps, where)
    if not ((values == 0) | (values == 1)).all():
        raise UserError(f"{where}: {key} holds values other than 0 and 1")
    return values.astype(bool)
