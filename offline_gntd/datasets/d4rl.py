"""Files in D4RL's layouts, v0 to v2: their transitions, task and origin.

The transitions are the arrays of d4rl.qlearning_dataset, without its loop. Episode boundaries: next_obs is
the observation of the next row. A row marked as a timeout has no next_obs and is left out, as is the last
row. A terminal row is kept: its next_obs is of another episode, and unused.

A file is identified by its sha256, or by its name; never by its shapes: HalfCheetah and Walker2d share them.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offline_gntd.datasets import cache, catalogue, hdf5
from offline_gntd.datasets.catalogue import Entry
from offline_gntd.datasets.dataset import DatasetInfo
from offline_gntd.datasets.hdf5 import PART
from offline_gntd.errors import UserError
from offline_gntd.evaluation import task_named, without_import
from offline_gntd.files import parse_json, sha256_of
from offline_gntd.tasks import EPISODE_LIMIT, LOCOMOTION, Task, of_environment

KEYS = ("observations", "actions", "rewards", "terminals")
TASK_ATTRIBUTE = "offline_gntd"  # attributes of HDF5 files written by this package
NOTES_ATTRIBUTE = "offline_gntd_notes"


# ---- transitions ----


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
            with np.errstate(over="ignore", invalid="ignore"):  # the cache refuses what overflows
                yield np.concatenate(parts, axis=1, dtype=np.float32, casting="unsafe")

    def described(self, info: DatasetInfo) -> DatasetInfo:
        """`info` with the number of steps, and with how the episode boundaries were obtained."""
        facts = {"steps": len(self), "boundaries": self.boundaries}
        return dataclasses.replace(info, provenance=info.provenance | facts)


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
            check_numbers(columns[key], key, where)
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
    check_limit(limit)
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


def check_limit(episode_limit: int | None) -> None:
    if episode_limit is not None and episode_limit < 1:
        raise UserError(f"--episode-limit must be at least 1, not {episode_limit}")


def check_numbers(column: Any, key: str, where: str) -> None:
    if column.dtype.kind not in "biuf":
        raise UserError(f"{where}: {key} has dtype {column.dtype}, not numbers")


def _one_per_step(columns: Mapping[str, Any], key: str, steps: int, where: str) -> np.ndarray:
    check_numbers(columns[key], key, where)
    if columns[key].shape not in ((steps,), (steps, 1)):
        raise UserError(f"{where}: {key} has shape {columns[key].shape}, not ({steps},)")
    return np.asarray(columns[key][:]).reshape(steps)


def _flags(columns: Mapping[str, Any], key: str, steps: int, where: str) -> np.ndarray:
    values = _one_per_step(columns, key, steps, where)
    if not ((values == 0) | (values == 1)).all():
        raise UserError(f"{where}: {key} contains values other than 0 and 1")
    return values.astype(bool)


# ---- what a file is ----


@dataclass(frozen=True)
class Identity:
    """What a file in D4RL's layout is."""

    task: Task
    origin: str  # d4rl | file
    sha256: str = ""  # hash of the file
    entry: Entry | None = None  # in the catalogue, by the file's sha256
    namesake: Entry | None = None  # in the catalogue, by the file's name alone
    episode_limit: int | None = None

    def info(self, **more: Any) -> DatasetInfo:
        entry = self.entry or self.namesake
        known = {"d4rl_id": entry.id, "version": entry.version, "notes": entry.notes} if entry else {}
        return DatasetInfo(task=self.task, origin=self.origin, **known | more)

    def key(self, sha256: str) -> str:
        """The cache key of a file with this sha256."""
        return cache.key_of(sha256, dataclasses.asdict(self.task), self.episode_limit)

    @contextlib.contextmanager
    def reading(self, path: Path) -> Iterator[Recording]:
        """The recording in the file, open while the context lasts."""
        with hdf5.reading(path) as columns:
            yield recording(columns, self.task, str(path), self.episode_limit)


def identify(path: Path, env: str | None = None, episode_limit: int | None = None) -> Identity:
    """A file's identity: by its sha256, its task attribute, its name, or `env`; never by shapes."""
    check_limit(episode_limit)
    sha256, published = sha256_of(path), catalogue.entries().values()
    entry = next((entry for entry in published if entry.sha256 == sha256), None)
    if entry:
        return of_entry(entry, env)
    stored = task_stored_in(path) if env is None else None
    if stored:
        limit = episode_limit or notes_stored_in(path).get("episode_limit")
        return Identity(stored, "file", sha256, episode_limit=limit)
    environment = catalogue.environment_in(path.stem)
    if environment:
        task = _task_of(path.name, environment, env)
        namesake = next((entry for entry in published if entry.file_name == path.name), None)
        known = namesake.episode_limit if namesake else EPISODE_LIMIT
        return Identity(task, "file", sha256, None, namesake, episode_limit or known)
    if env is None:
        hdf5.check(path)  # the name matters only if this is an HDF5 file
        raise UserError(
            f"{path} does not name its environment; give --env or rename the file to contain one of "
            f"{', '.join(LOCOMOTION)}. `run` has no --env; first write a file that names it: offline-gntd "
            f"datasets convert {path} --format d4rl --env ENV"
        )
    task, limit = task_named(env)
    return Identity(task, "file", sha256, episode_limit=episode_limit or limit)


def of_entry(entry: Entry, env: str | None) -> Identity:
    """The identity of a file published by D4RL."""
    task = _task_of(entry.id, entry.environment, env)
    return Identity(task, "d4rl", entry.sha256, entry, entry, entry.episode_limit)


def _task_of(name: str, environment: str, env: str | None) -> Task:
    """The task of data that was recorded in hopper, halfcheetah or walker2d; `env` may give the version."""
    if env is None or env == environment:
        return LOCOMOTION[environment].task()
    if of_environment(env) is not LOCOMOTION[environment]:
        raise UserError(f"{name} was recorded in {environment}, but --env is {env}")
    return task_named(env)[0]


def task_stored_in(path: Path) -> Task | None:
    """The task that this package stored in an HDF5 file; None for other files."""
    try:
        task = Task(**_attribute(path, TASK_ATTRIBUTE))
    except TypeError:
        return None
    values: dict[str, Any] = vars(task)  # as stored, of any type
    if not isinstance(values["obs_dim"], int) or not isinstance(values["env_id"], str):
        return None
    return dataclasses.replace(task, env_id=without_import(task.env_id, str(path)))


def notes_stored_in(path: Path) -> dict[str, Any]:
    """Other provenance that this package stored in an HDF5 file."""
    return _attribute(path, NOTES_ATTRIBUTE)


def _attribute(path: Path, name: str) -> dict[str, Any]:
    import h5py

    hdf5.check_is_file(path)
    try:
        with h5py.File(path, "r", locking=False) as file:
            value = parse_json(file.attrs[name])
    except Exception:  # no such attribute, or a damaged file, which its reader reports
        return {}
    return value if isinstance(value, dict) else {}
