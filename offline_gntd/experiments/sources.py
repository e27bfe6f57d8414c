"""What a cell learns from: a dataset per seed or, for an online algorithm, an environment."""

import warnings

import gymnasium

from offline_gntd.datasets import Dataset, DatasetNotFound, OnlineEnv, built_datasets, load
from offline_gntd.datasets.names import SEED
from offline_gntd.errors import UserError
from offline_gntd.evaluation import task_of
from offline_gntd.experiments.definitions import Cell

Source = Dataset | OnlineEnv


def is_family(source: str) -> bool:
    """Whether each seed has its own dataset: cartpole-replay, or a name or path with {seed} in it."""
    return source in built_datasets.FAMILIES or SEED in source


def member_of(source: str, seed: int) -> str:
    """The name or path of a seed's dataset; that of a dataset all seeds share is returned unchanged."""
    return built_datasets.member(source, seed).replace(SEED, str(seed))


def sources_of(cell: Cell) -> tuple[Source, ...]:
    """One source per seed; the same object where seeds share their data.

    Raises DatasetNotFound if data with a known name is not here, and UserError if the name is wrong.
    """
    if cell.online:
        return (_online_env(cell),) * len(cell.seeds)
    if not is_family(cell.source):
        return (_dataset(cell, cell.source),) * len(cell.seeds)
    try:
        sources = tuple(_dataset(cell, member_of(cell.source, seed)) for seed in cell.seeds)
    except DatasetNotFound as error:
        if cell.source not in built_datasets.FAMILIES:
            raise
        command = f"offline-gntd datasets build {cell.source} --seeds {max(cell.seeds) + 1}"
        raise DatasetNotFound(
            f"{cell.source} is not built for every seed; build it with: {command}"
        ) from error
    for source in sources[1:]:
        if source.task != sources[0].task:
            raise UserError(
                f"the datasets of a family must have one task: {sources[0].name} is of "
                f"{sources[0].task.env_id}, {source.name} of {source.task.env_id}"
            )
    return sources


def _dataset(cell: Cell, name: str) -> Dataset:
    try:
        return load(name)
    except DatasetNotFound:
        raise
    except UserError as error:
        if _why_no_environment(name):
            raise
        raise UserError(
            f"{name} is an environment, and {cell.algorithm} learns from a dataset; "
            "see: offline-gntd datasets list"
        ) from error


def _online_env(cell: Cell) -> OnlineEnv:
    if reason := _why_no_environment(cell.source):
        raise UserError(
            f"{cell.algorithm} learns in an environment such as Hopper-v5, not from {cell.source!r}: {reason}"
        )
    return OnlineEnv(name=cell.dataset, task=task_of(cell.source), origin="online", source=cell.source)


def _why_no_environment(name: str) -> str:
    """Why gymnasium has no environment of this name; empty if it has one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # out-of-date versions are chosen on purpose
            gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError) as error:
        return str(error).splitlines()[0]
    return ""
