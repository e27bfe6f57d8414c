"""D4RL's layouts, v0 to v2, as transitions: the arrays of d4rl.qlearning_dataset, without its loop.

Episode boundaries: next_obs is the observation of the next row. A row marked as a timeout has no next_obs
and is left out, as is the last row. A terminal row is kept: its next_obs is of another episode, and unused.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from offline_gntd.datasets.hdf5 import PART
from offline_gntd.errors import UserError
from offline_gntd.tasks import Task

KEYS = ("observations", "actions", "rewards", "terminals")


@dataclass(frozen=True)
class Recording:
    """The steps of a D4RL file or dict in order of time. Its columns can be sliced like arrays."""

    where: str  # for messages
    columns: Mapping[str, Any]
    rewards: np.ndarray  # [steps] as stored
    terminals: np.ndarray  # [steps] bool
    timeouts: np.ndarray  # [steps] bool: as stored, or inferred
    boundaries: str  # how the timeouts were obtained
    episode_limit: int | None = None  # steps, if timeouts were counted with it

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def used(self) -> np.ndarray:
        """[steps - 1] bool: which rows are transitions; the last row never is."""
        return ~self.timeouts[:-1]

    @property
    def ends(self) -> np.ndarray:
        """Row after each episode's last row; the end of the file may cut the last episode."""
        ends = np.flatnonzero(self.terminals | self.timeouts) + 1
        return ends if len(ends) and ends[-1] == len(self) else np.append(ends, len(self))

    @property
    def lengths(self) -> np.ndarray:
        """Steps of each episode."""
        return np.diff(self.ends, prepend=0)

    def episodes(self) -> np.ndarray:
        """[episodes, 3]: return, length, and 0, over all rows, also those that are no transitions.

        The third column is 0 because no transition is truncated: timeouts are left out. Raises UserError for
        a reward that is NaN or infinite as float32.
        """
        with np.errstate(over="ignore"):
            finite = np.isfinite(self.rewards.astype(np.float32))
        if not finite.all():
            raise UserError(
                f"{self.where}: the reward in row {int(np.argmin(finite)):,} is NaN, infinite or too large"
            )
        returns = np.add.reduceat(self.rewards.astype(np.float64), self.ends - self.lengths)
        return np.stack([returns, self.lengths, np.zeros(len(self.ends))], axis=1)

    def transitions(self, rows_at_once: int = PART) -> Iterator[np.ndarray]:
        """Parts of the float32 rows obs | action | reward | next_obs | terminated."""
        for start in range(0, len(self) - 1, rows_at_once):
            stop = min(start + rows_at_once, len(self) - 1)
            used = self.used[start:stop]
            obs = self.columns["observations"][start : stop + 1]
            parts = (
                obs[:-1][used],
                self.columns["actions"][start:stop].reshape(stop - start, -1)[used],
                self.rewards[start:stop, None][used],
                obs[1:][used],
                self.terminals[start:stop, None][used],
            )
            rows = np.empty((int(used.sum()), sum(part.shape[1] for part in parts)), np.float32)
            with np.errstate(over="ignore", invalid="ignore"):  # the cache refuses what overflows
                np.concatenate(parts, axis=1, out=rows, casting="unsafe")
            yield rows


def recording(
    columns: Mapping[str, Any], task: Task, where: str, episode_limit: int | None = None
) -> Recording:
    """Check arrays under D4RL's keys against each other and the task. Raises UserError."""
    for key in KEYS:
        if key not in columns:
            raise UserError(f"{where} has no {key!r}; a D4RL dataset needs {', '.join(KEYS)}")
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
                raise UserError(f"{where}: {key} has {rows} rows, but rewards has {steps}")
            if columns[key].shape not in legal:
                raise UserError(
                    f"{where}: {key} has shape {columns[key].shape}; {task.env_id} needs {legal[0]}"
                )
    rewards = _one_per_step(columns, "rewards", steps, where)
    terminals = _flags(columns, "terminals", steps, where)
    counted = None
    if "timeouts" in columns:
        timeouts, boundaries = _flags(columns, "timeouts", steps, where), "as stored"
    elif "next_observations" in columns:
        timeouts = timeouts_by_next_observations(columns) & ~terminals
        boundaries = "no timeouts stored: inferred where next_observations differ from the next row"
    elif episode_limit is not None:
        timeouts, counted = timeouts_by_limit(terminals, episode_limit), episode_limit
        boundaries = f"no timeouts stored: counted with an episode limit of {episode_limit} steps"
    else:
        raise UserError(f"{where} has no timeouts; give the longest episode with --episode-limit STEPS")
    result = Recording(where, columns, rewards, terminals, timeouts, boundaries, counted)
    if not result.used.any():
        raise UserError(f"{where} has no transitions: every row is a timeout")
    return result


def timeouts_by_limit(terminals: np.ndarray, limit: int) -> np.ndarray:
    """Rows where an episode reaches its limit, counted from each terminal and each limit.

    d4rl counts one step too many after a terminal, and so cuts the next episode a step early.
    """
    if limit < 1:
        raise UserError(f"--episode-limit must be at least 1, not {limit}")
    ends = np.flatnonzero(terminals)
    starts = np.concatenate([[0], ends + 1])  # after each terminal
    step = np.arange(len(terminals)) - np.repeat(starts, np.diff(np.append(starts, len(terminals))))
    return step % limit == limit - 1


def timeouts_by_next_observations(columns: Mapping[str, Any]) -> np.ndarray:
    """Rows where the stored next observation differs from the observation of the next row."""
    obs, next_obs = columns["observations"], columns["next_observations"]
    differs = np.zeros(obs.shape[0], bool)
    for start in range(0, obs.shape[0] - 1, PART):
        stop = min(start + PART, obs.shape[0] - 1)
        differs[start:stop] = (next_obs[start:stop] != obs[start + 1 : stop + 1]).any(axis=1)
    return differs


def _check_numbers(column: Any, key: str, where: str) -> None:
    if column.dtype.kind not in "biuf":
        raise UserError(f"{where}: {key} has dtype {column.dtype}, not numbers")


def _one_per_step(columns: Mapping[str, Any], key: str, steps: int, where: str) -> np.ndarray:
    _check_numbers(columns[key], key, where)
    if columns[key].shape not in ((steps,), (steps, 1)):
        raise UserError(f"{where}: {key} has shape {columns[key].shape}, not ({steps},)")
    return np.asarray(columns[key][:]).reshape(steps)


def _flags(columns: Mapping[str, Any], key: str, steps: int, where: str) -> np.ndarray:
    values = _one_per_step(columns, key, steps, where)
    if not ((values == 0) | (values == 1)).all():
        raise UserError(f"{where}: {key} contains values other than 0 and 1")
    return values.astype(bool)
