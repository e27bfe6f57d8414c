"""Where attempts are made: processes here, a Ray cluster, Slurm jobs. None knows what an attempt does."""

import importlib
import importlib.util
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from offline_gntd.errors import UserError
from offline_gntd.experiments.definitions import Cell
from offline_gntd.experiments.job import Ending, Options, Progress


class Engine(Protocol):
    """Makes an attempt at every cell it is given, first come first served, and tells what becomes of each.

    An attempt whose process died is an Ending like any other: nothing here retries.
    """

    def __enter__(self) -> "Engine": ...

    def __exit__(self, *exception: Any) -> None:
        """No attempt outlives this."""

    def submit(self, cells: Sequence[Cell]) -> None: ...

    def poll(self, seconds: float) -> Iterable[Progress | Ending]:
        """What has happened since, after at most so many seconds."""

    def stop(self) -> None:
        """Ask every attempt to end with a checkpoint; those not begun end as they are."""


ENGINES = {"local": "Local", "ray": "Ray", "slurm": "Slurm"}
PACKAGES = {"ray": "ray", "slurm": "submitit"}  # an extra for each


def require_engine(name: str) -> None:
    """Raise UserError unless the packages of an engine are installed."""
    package = PACKAGES.get(name)
    if package and importlib.util.find_spec(package) is None:
        raise UserError(f"--engine {name} needs an extra: pip install 'offline_gntd[{name}]'")


def engine(name: str, workers: int | None, options: Options, **settings: Any) -> Engine:
    """Settings are the engine's own: `address` of Ray, `parameters` of Slurm."""
    require_engine(name)
    module = importlib.import_module(f"offline_gntd.experiments.engines.{name}")
    return getattr(module, ENGINES[name])(workers, options, **settings)
