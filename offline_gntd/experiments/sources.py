"""The data of a run: one dataset per seed or, for an online algorithm, an environment."""

import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from offline_gntd.algorithms.agent import check_actions
from offline_gntd.datasets import Dataset, DatasetNotFound, OnlineEnv, built_datasets, load
from offline_gntd.datasets.catalogue import SEED, results_name
from offline_gntd.errors import UserError
from offline_gntd.evaluation import make, task_of

DataSource = Dataset | OnlineEnv
TOLERANCE = 1e-3  # stored actions may exceed [−1, 1] by this, because of rounding


def is_family(source: str) -> bool:
    """Whether each seed has a different dataset: cartpole-replay, or a name or path with {seed} in it."""
    return source in built_datasets.FAMILIES or SEED in source


def member_of(source: str, seed: int) -> str:
    """The name or path of a seed's dataset; that of a dataset all seeds share is returned unchanged."""
    return built_datasets.member(source, seed).replace(SEED, str(seed))


def is_online(config: Any) -> bool:
    """Whether an algorithm learns in an environment and needs no dataset."""
    return getattr(config, "online", False)


def sources_of(source: str, config: Any, seeds: Sequence[int]) -> tuple[DataSource, ...]:
    """One source per seed; the same object where seeds share their data.

    source  the name or path of a dataset or of a family; the id of an environment if the algorithm is online

    Raises DatasetNotFound if a known dataset is not on this machine, and UserError for an unknown name.
    """
    if is_online(config):
        return (_online_env(source, config),) * len(seeds)
    if not is_family(source):
        return (_dataset(source, config),) * len(seeds)
    try:
        sources = tuple(_dataset(member_of(source, seed), config) for seed in seeds)
    except DatasetNotFound as error:
        if source not in built_datasets.FAMILIES:
            raise
        command = f"offline-gntd datasets build {source} --seeds {max(seeds) + 1}"
        raise DatasetNotFound(f"{source} is not built for every seed; build it with: {command}") from error
    for other in sources[1:]:
        if other.task != sources[0].task:
            raise UserError(
                f"the datasets of a family must have one task: {sources[0].name} has "
                f"{sources[0].task.env_id}, {other.name} has {other.task.env_id}"
            )
    return sources


def _dataset(name: str, config: Any) -> Dataset:
    try:
        return load(name)
    except DatasetNotFound:
        raise
    except UserError as error:
        if _why_no_environment(name):
            raise
        raise UserError(
            f"{name} is an environment, and {type(config).__name__} learns from a dataset; "
            "see: offline-gntd datasets list"
        ) from error


def _online_env(source: str, config: Any) -> OnlineEnv:
    if reason := _why_no_environment(source):
        raise UserError(
            f"{type(config).__name__} learns in an environment such as Hopper-v4, not from {source!r}: "
            f"{reason}"
        )
    return OnlineEnv(name=results_name(source), task=task_of(source), origin="online", source=source)


def _why_no_environment(name: str) -> str:
    """Why gymnasium has no environment of this name; empty if it has one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # out-of-date versions are chosen on purpose
            gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError) as error:
        return str(error).splitlines()[0]
    return ""


def check_compatible(config: Any, source: DataSource) -> None:
    """Raise UserError unless the algorithm can learn from the source: the actions must be of its kind and,
    if continuous, in the policies' range [−1, 1]."""
    check_actions(config, source.task)
    if source.task.discrete:
        return
    environment = make(source.task.env_id, **source.task.env_options)
    space = environment.action_space
    environment.close()
    assert isinstance(space, gymnasium.spaces.Box)  # a continuous task has no other
    if np.abs(space.high - 1).max() + np.abs(space.low + 1).max() > 0:
        raise UserError(
            f"{source.task.env_id} takes actions from {np.min(space.low):g} to {np.max(space.high):g}; "
            "the algorithms for continuous actions act from −1 to 1"
        )
    if isinstance(source, Dataset):
        largest = float(source.transitions.action.abs().max())
        if largest > 1 + TOLERANCE:
            raise UserError(
                f"the actions of {source.name} reach {largest:g}, beyond the range of {source.task.env_id}, "
                f"−1 to 1; see: offline-gntd datasets check {source.source}"
            )
