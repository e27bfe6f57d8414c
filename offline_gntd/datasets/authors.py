"""The replay buffers of the paper's authors: five .npy files with a common prefix, or one .npz file.

    <prefix>_state.npy, _action.npy, _reward.npy, _next_state.npy, _not_done.npy    (`not_done` contains done)
    observations, actions, rewards, next_observations, dones                        (the keys of an .npz file)

`done` does not distinguish a terminal state from the time limit. A row is truncated if it is done and is the
last step that the limit allows (500 in CartPole and Acrobot), else terminated. An episode also ends where the
next row does not continue it; such a row is neither.
"""

import re
from pathlib import Path

import numpy as np

from offline_gntd.datasets.built_datasets import DISCRETE_TASKS
from offline_gntd.datasets.d4rl import check_limit, check_numbers
from offline_gntd.errors import UserError, first_line
from offline_gntd.evaluation import limit_of, task_named
from offline_gntd.files import sha256_of
from offline_gntd.tasks import Task

FILES = {  # the key in an .npz file, and the ending of an .npy file's name
    "observations": "state",
    "actions": "action",
    "rewards": "reward",
    "next_observations": "next_state",
    "dones": "not_done",
}

NAME = re.compile(r"(CartPole|Acrobot)-v1_\d+_(Medium-)?Replay")  # of the authors' buffers


def files_of(source: Path) -> list[Path]:
    """The files of a buffer: the .npz file itself, or the .npy files with this prefix."""
    if source.suffix == ".npz":
        return [source]
    return [source.with_name(f"{source.name}_{ending}.npy") for ending in FILES.values()]


def is_buffer(source: Path) -> bool:
    """Whether a path is an .npz file, the prefix of a buffer's files, or named like the authors' buffers."""
    if source.suffix == ".npz" or NAME.fullmatch(source.name):
        return True
    return bool(source.name) and any(path.is_file() for path in files_of(source))


def require_files(source: Path) -> None:
    missing = [path.name for path in files_of(source) if not path.is_file()]
    if missing and source.suffix == ".npz":
        raise UserError(f"there is no file {source}")
    if len(missing) == len(FILES):
        raise UserError(
            f"there are no files {source}_*.npy; copy the folder gntd/buffers of the authors' repository "
            f"(GitHub: kezhifa1006/gntd) to {source.parent}"
        )
    if missing:
        raise UserError(f"{source} is incomplete: {', '.join(missing)} is missing in {source.parent}")


def file_hashes(source: Path) -> dict[str, str]:
    return {file.name: sha256_of(file) for file in files_of(source)}


def task_of(source: Path, env: str | None, episode_limit: int | None) -> tuple[Task, int | None]:
    """The task and the episode limit of a buffer, by its file's name (CartPole-v1_0_Replay) or by `env`."""
    check_limit(episode_limit)
    named = [name for name in DISCRETE_TASKS if name in source.name.lower()]
    given = [name for name, task in DISCRETE_TASKS.items() if env in (name, task.env_id)]
    if named and env is not None and given != named:
        raise UserError(f"{source.name} was recorded in {named[0]}, but --env is {env}")
    if named or given:
        task = DISCRETE_TASKS[(named or given)[0]]
        return task, episode_limit or limit_of(task.env_id)
    if env is None:
        raise UserError(
            f"{source} does not name its environment; give --env or rename the file to contain one of "
            f"{', '.join(DISCRETE_TASKS)}"
        )
    task, limit = task_named(env)
    return task, episode_limit or limit


def read(source: Path, task: Task, limit: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Rows [N, row_width] float32 and episodes [E, 3] (return, length, truncated) of a buffer.

    limit  longest episode in steps, or None
    """
    require_files(source)
    arrays = _arrays(source)
    steps = len(arrays["observations"]) if arrays["observations"].ndim else 0
    if not steps:
        raise UserError(f"{source} contains no transitions")
    action_width = 1 if task.discrete else task.action_dim
    widths = {"observations": task.obs_dim, "next_observations": task.obs_dim, "actions": action_width}
    columns = {key: _column(source, key, array, steps, widths.get(key, 1)) for key, array in arrays.items()}
    done = columns["dones"][:, 0]
    if not np.isin(done, (0, 1)).all():
        raise UserError(f"{source}: dones contains values other than 0 and 1")
    continues = (columns["next_observations"][:-1] == columns["observations"][1:]).all(axis=1)
    last = done.astype(bool)  # rows that end an episode
    last[:-1] |= ~continues
    last[-1] = True
    ends = np.flatnonzero(last) + 1
    starts = np.concatenate([[0], ends[:-1]])
    truncated = (done[ends - 1] == 1) & (ends - starts == limit)
    columns["dones"][ends[truncated] - 1] = 0
    rows = np.concatenate([columns[key] for key in FILES], axis=1)
    returns = np.add.reduceat(columns["rewards"][:, 0].astype(np.float64), starts)
    return rows, np.stack([returns, ends - starts, truncated], axis=1)


def _arrays(source: Path) -> dict[str, np.ndarray]:
    """The five arrays by their keys, as stored. Objects are never unpickled."""
    try:
        if source.suffix != ".npz":
            paths = dict(zip(FILES, files_of(source), strict=True))
            return {key: np.lib.format.open_memmap(path, mode="r") for key, path in paths.items()}
        with np.load(source, allow_pickle=False) as stored:
            missing = [key for key in FILES if key not in stored]
            if missing:
                raise UserError(f"{source} has no {missing[0]!r}; a buffer needs {', '.join(FILES)}")
            return {key: stored[key] for key in FILES}
    except UserError:
        raise
    except Exception as error:  # numpy raises errors of zipfile, zlib and tokenize too
        raise UserError(f"cannot read {source}: {first_line(error)}") from error


def _column(source: Path, key: str, array: np.ndarray, steps: int, width: int) -> np.ndarray:
    """A writable float32 copy [steps, width] of an array that is stored as [steps, width] or [steps]."""
    check_numbers(array, key, str(source))
    if array.shape[:1] != (steps,):
        rows = array.shape[0] if array.ndim else "no"
        raise UserError(f"{source}: {key} has {rows} rows, but observations has {steps}")
    if array.shape != (steps, width) and not (width == 1 and array.shape == (steps,)):
        raise UserError(f"{source}: {key} has shape {array.shape}, not ({steps}, {width})")
    with np.errstate(over="ignore"):  # the cache refuses infinite values
        return array.reshape(steps, width).astype(np.float32)
