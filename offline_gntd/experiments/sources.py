"""What a cell learns from: a dataset or, for an algorithm that collects its own batches, an environment."""

import warnings

import gymnasium

from offline_gntd.datasets import Arena, Dataset, Missing, load
from offline_gntd.errors import UserError
from offline_gntd.evaluation import task_of
from offline_gntd.experiments.definitions import Cell

Source = Dataset | Arena


def source_of(cell: Cell) -> Source:
    if cell.online:
        return _arena(cell)
    try:
        return load(cell.source)
    except Missing:
        raise
    except UserError as error:
        if _no_environment(cell.source):
            raise
        raise UserError(
            f"{cell.source} is an environment, and {cell.algorithm} learns from a dataset; "
            "see: offline-gntd datasets list"
        ) from error


def _arena(cell: Cell) -> Arena:
    if reason := _no_environment(cell.source):
        raise UserError(
            f"{cell.algorithm} collects its own batches, in an environment such as Hopper-v5, "
            f"and {cell.source!r} is none: {reason}"
        )
    return Arena(name=cell.dataset, task=task_of(cell.source), origin="online", source=cell.source)


def _no_environment(name: str) -> str:
    """Why gymnasium has no environment of this name; nothing where it has."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # out-of-date versions are chosen on purpose
            gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError) as error:
        return str(error).splitlines()[0]
    return ""
