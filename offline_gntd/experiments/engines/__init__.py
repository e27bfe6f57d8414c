"""Where jobs run: processes of this machine, a Ray cluster, or Slurm jobs."""

import importlib
import importlib.util
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from offline_gntd.errors import UserError
from offline_gntd.experiments.definitions import Cell
from offline_gntd.experiments.job import JobResult, Options, Progress


class Engine(Protocol):
    """Runs a job for every submitted cell, in order, and reports its progress and its result.

    A job whose process died has a result too (`lost`): engines do not retry.
    """

    def __enter__(self) -> "Engine": ...

    def __exit__(self, *exception: Any) -> None:
        """End all jobs."""

    def submit(self, cells: Sequence[Cell]) -> None: ...

    def poll(self, seconds: float) -> Iterable[Progress | JobResult]:
        """The events since the last call; waits for at most `seconds`."""

    def stop(self) -> None:
        """Ask every job to checkpoint and end; jobs that have not started end at once."""


ENGINES = {"local": "Local", "ray": "Ray", "slurm": "Slurm"}
PACKAGES = {"ray": "ray", "slurm": "submitit"}  # optional dependencies


def require_engine(name: str) -> None:
    """Raise UserError unless the packages of an engine are installed."""
    package = PACKAGES.get(name)
    if package and importlib.util.find_spec(package) is None:
        raise UserError(f"--engine {name} needs an extra: pip install 'offline_gntd[{name}]'")


def open_engine(name: str, workers: int | None, options: Options, **settings: Any) -> Engine:
    """settings  those of the engine: `address` of Ray, `parameters` of Slurm"""
    require_engine(name)
    module = importlib.import_module(f"offline_gntd.experiments.engines.{name}")
    return getattr(module, ENGINES[name])(workers, options, **settings)
