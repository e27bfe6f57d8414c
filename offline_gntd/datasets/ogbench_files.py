"""OGBench's single-task datasets, by name or as .npz files. They need the package ogbench.

A file such as cube-single-play-v0.npz has trajectories without rewards. For a task such as
cube-single-play-singletask-task2-v0, ogbench computes the rewards and `masks` of each state: a mask of 0 is a
terminal state, also within a trajectory, and the end of a trajectory is a time limit. A policy is scored by
its success rate in the task's environment.
"""

import dataclasses
import importlib.util
import re
from importlib.metadata import version
from pathlib import Path

import numpy as np

from offline_gntd.datasets.d4rl import check_numbers
from offline_gntd.datasets.dataset import DatasetNotFound
from offline_gntd.errors import UserError, first_line
from offline_gntd.evaluation import OGBENCH, task_of
from offline_gntd.files import home
from offline_gntd.tasks import Task

STATE_BASED = ("pointmaze", "antmaze", "humanoidmaze", "antsoccer", "cube", "scene", "puzzle")
NAME = re.compile(rf"(?:{'|'.join(STATE_BASED)})(?:-[a-z0-9]+)+-v\d+")
HOST = "https://rail.eecs.berkeley.edu/datasets/ogbench"


def is_name(name: str) -> bool:
    return NAME.fullmatch(name) is not None and "singletask" in name.split("-")


def is_file(path: Path) -> bool:
    return path.suffix == ".npz" and NAME.fullmatch(path.stem) is not None


def split_name(name: str) -> tuple[str, str]:
    """The environment and the file of a dataset: antmaze-large-singletask-v0 and antmaze-large-navigate-v0.

    A name without `singletask` stands for OGBench's default task.
    """
    words = name.split("-")
    if "singletask" not in words:
        words.insert(-1, "singletask")
    at = words.index("singletask")
    if at < 2:
        raise UserError(
            f"{name} is not a dataset of OGBench: it lacks the environment or the type of the data"
        )
    return "-".join(words[: at - 1] + words[at:]), "-".join([*words[:at], words[-1]])


def locate(name: str) -> Path:
    """The file of a named dataset on this machine; raises DatasetNotFound."""
    file = f"{split_name(name)[1]}.npz"
    for folder in folders():
        if (folder / file).is_file():
            return folder / file
    raise DatasetNotFound(f"{name} is not on this machine; download {HOST}/{file} to {folders()[0]}")


def folders() -> list[Path]:
    """Where files are looked for: this package's folder and OGBench's."""
    return [home() / "datasets" / "ogbench", Path.home() / ".ogbench" / "data"]


def local_names() -> list[str]:
    """The default task of each file on this machine."""
    stems = {path.stem for folder in folders() for path in folder.glob("*.npz") if is_file(path)}
    parts = [stem.rpartition("-v") for stem in stems]
    return sorted(f"{data}-singletask-v{version}" for data, _, version in parts)


def task_named(name: str) -> Task:
    """The task of a dataset's environment, scored by its success rate."""
    if importlib.util.find_spec("ogbench") is None:
        raise UserError(f"{name} needs the package ogbench: pip install 'offline_gntd[ogbench]'")
    task = task_of(OGBENCH + split_name(name)[0])
    return dataclasses.replace(
        task,
        reference_min=0.0,
        reference_max=1.0,
        reference_source="success rate, as OGBench defines success",
    )


def package_version() -> str:
    return version("ogbench")


def read(path: Path, name: str, task: Task) -> tuple[np.ndarray, np.ndarray]:
    """Rows [N, row_width] float32 and episodes [E, 3] (success, length, truncated) of a file and a task."""
    import gymnasium
    from ogbench.relabel_utils import relabel_dataset
    from ogbench.utils import load_dataset

    environment = gymnasium.make(task.env_id)
    try:
        arrays = load_dataset(path, add_info=True)  # without unpickling, as np.load does by default
        for key in arrays.keys() & {"qpos", "button_states"}:  # they decide the rewards
            check_numbers(arrays[key], key, str(path))
            if not np.isfinite(arrays[key]).all():
                raise UserError(f"{path}: {key} contains NaN or infinite values")
        relabel_dataset(split_name(name)[0], environment, arrays)
    except UserError:
        raise
    except KeyError as error:
        raise UserError(f"{path} is no dataset of OGBench: it lacks {error}") from error
    except Exception as error:  # errors of numpy, zipfile and ogbench
        raise UserError(f"cannot read {path} as a dataset of OGBench: {first_line(error)}") from error
    finally:
        environment.close()
    if not np.isin(arrays["terminals"], (0, 1)).all():
        raise UserError(f"{path}: terminals contains values other than 0 and 1")
    steps = len(arrays["observations"])
    if not steps:
        raise UserError(f"{path} contains no transitions")
    widths = {"observations": task.obs_dim, "actions": task.action_dim, "next_observations": task.obs_dim}
    for key, width in widths.items():
        check_numbers(arrays[key], key, str(path))
        if arrays[key].shape != (steps, width):
            raise UserError(f"{path}: {key} has shape {arrays[key].shape}, not ({steps}, {width})")
    rewards, terminated = arrays["rewards"], 1 - arrays["masks"]
    columns = [arrays["observations"], arrays["actions"], rewards[:, None], arrays["next_observations"]]
    with np.errstate(over="ignore"):  # the cache refuses infinite values
        rows = np.concatenate([*columns, terminated[:, None]], axis=1, dtype=np.float32)
    last = arrays["terminals"] > 0
    last[-1] = True
    ends = np.flatnonzero(last) + 1
    starts = np.concatenate([[0], ends[:-1]])
    successes = np.maximum.reduceat(terminated, starts)  # as in the task's environment, see `SuccessAsReward`
    return rows, np.stack([successes, ends - starts, terminated[ends - 1] == 0], axis=1)
