"""How long runs take: rates of earlier runs, rates measured on the spot, and the time left in a grid."""

import contextlib
import dataclasses
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offline_gntd import processes
from offline_gntd.errors import UserError
from offline_gntd.evaluation import Evaluator
from offline_gntd.experiments import results
from offline_gntd.experiments.definitions import Cell
from offline_gntd.experiments.record import Record, last_evaluation, read_description
from offline_gntd.experiments.sources import DataSource
from offline_gntd.experiments.training import Training
from offline_gntd.files import home

MEASURED_UPDATES = 60  # at most, after WARM_UP_UPDATES
MEASURED_SECONDS = 1.0
WARM_UP_UPDATES = 3
DEFAULT_SECONDS = 1e-3  # per update, in a forecast without any known rate: only proportions matter


@dataclass(frozen=True)
class Rate:
    """The time of one process, which trains all seeds of a cell."""

    seconds_per_update: float
    seconds_per_episode: float  # one episode of every seed

    def seconds(self, cell: Cell, start: int = 0) -> float:
        """The time from step `start` to the end of a cell."""
        protocol = cell.protocol
        evaluations = -(-protocol.steps // protocol.evaluate_every) - start // protocol.evaluate_every
        episodes = evaluations * protocol.evaluate_episodes
        return (protocol.steps - start) * self.seconds_per_update + episodes * self.seconds_per_episode


class Rates:
    """Rates by algorithm, dataset and number of seeds per process, see `_keys`."""

    def __init__(self, rates: dict[tuple, list[Rate]]):
        self.rates = rates

    def of(self, cell: Cell) -> Rate | None:
        """The median rate of the most similar runs; None if there are none."""
        for key in _keys(cell.algorithm, cell.dataset, len(cell.seeds)):
            if rates := self.rates.get(key):
                return Rate(
                    statistics.median(rate.seconds_per_update for rate in rates),
                    statistics.median(rate.seconds_per_episode for rate in rates),
                )
        return None

    def seconds(self, cell: Cell, start: int = 0) -> float | None:
        rate = self.of(cell)
        return rate.seconds(cell, start) if rate else None

    def with_measured(self, cells: Iterable[Cell], sources: dict[tuple, tuple[DataSource, ...]]) -> "Rates":
        """These rates and, for cells without one, a rate measured now: once per algorithm and task.

        sources  by (cell.source, cell.seeds); cells without are left out
        """
        rates, measured = dict(self.rates), {}
        for cell in cells:
            data = sources.get((cell.source, cell.seeds))
            if not data or self.of(cell):
                continue
            key = (cell.algorithm, data[0].task.env_id, len(cell.seeds))
            if key not in measured:
                measured[key] = measure(cell, data)
            if rate := measured[key]:
                rates[cell.algorithm, cell.dataset, len(cell.seeds)] = [rate]
        return Rates(rates)


def measure(cell: Cell, sources: Sequence[DataSource]) -> Rate | None:
    """Train for about a second and evaluate one episode; None if that fails, as the run itself would."""
    processes.prepare()
    config = cell.config
    if hasattr(config, "random_steps"):  # these have no update
        config = dataclasses.replace(config, random_steps=0)
    try:
        with (
            contextlib.closing(Training(config, sources, cell.seeds)) as training,
            contextlib.closing(Evaluator(training.task, cell.seeds, episodes=1)) as evaluator,
        ):
            training.train(WARM_UP_UPDATES)
            start, deadline = time.perf_counter(), time.perf_counter() + MEASURED_SECONDS
            while training.step < WARM_UP_UPDATES + MEASURED_UPDATES and time.perf_counter() < deadline:
                training.train(training.step + 1)
            per_update = (time.perf_counter() - start) / (training.step - WARM_UP_UPDATES)
            start = time.perf_counter()
            evaluator.returns(training.act, 0)
            return Rate(per_update, time.perf_counter() - start)
    except Exception:
        return None


def known_rates() -> Rates:
    """The rates of all run folders and all exported results."""
    rates: dict[tuple, list[Rate]] = defaultdict(list)
    folder = home() / "results"
    runs = []
    for path in folder.glob("*/*/*/seed-*/run.json"):
        with contextlib.suppress(UserError):  # a damaged run has no rate
            run = read_description(path.parent) or {}
            if "config_hash" in run:
                runs.append(run | _timing(path.parent))
    for path in folder.glob("*.runs.csv"):
        if exported := results.read_exported(path.name.removesuffix(".runs.csv")):
            runs += exported.runs.to_dict("records")
    for run in runs:
        if run.get("steps") and run.get("training_seconds"):
            for key in _keys(run["algorithm"], run["dataset"], run["stack"]):
                rates[key].append(_rate(run))
    return Rates(rates)


def _timing(folder: Path) -> dict[str, float]:
    """Steps and seconds up to a run's last evaluation, whether it is finished or not."""
    row = last_evaluation(folder)
    if row is None:
        return {}
    return {"steps": row["step"]} | {name: row[name] for name in ("training_seconds", "evaluation_seconds")}


def _rate(run: dict[str, Any]) -> Rate:
    protocol = run["protocol"]
    episodes = -(-run["steps"] // protocol["evaluate_every"]) * protocol["evaluate_episodes"]
    return Rate(run["training_seconds"] / run["steps"], run["evaluation_seconds"] / episodes)


def _keys(algorithm: str, dataset: str, seeds: int) -> list[tuple]:
    """From the most similar runs to the least: the preset's rate stands in for that of its variants."""
    preset = algorithm.partition("@")[0]
    return [(algorithm, dataset, seeds), (algorithm, seeds), (preset, dataset, seeds), (preset, seeds)]


def last_checkpoint(cell: Cell) -> int:
    """The step from which a cell would resume; 0 without a checkpoint of all its seeds."""
    return max(set.intersection(*(Record(folder).checkpoint_steps() for folder in cell.folders())), default=0)


class Forecast:
    """The time left in a running grid: its progress so far, with cells weighted by their expected time."""

    def __init__(self, cells: Sequence[Cell], rates: Rates):
        self.cells = tuple(cells)
        seconds = {cell: rates.seconds(cell) for cell in cells}
        known = [(value, cell.protocol.steps) for cell, value in seconds.items() if value is not None]
        mean = sum(value for value, _ in known) / sum(steps for _, steps in known) if known else 0.0
        self.work = {
            cell: value or cell.protocol.steps * (mean or DEFAULT_SECONDS) for cell, value in seconds.items()
        }
        self.share = {cell: last_checkpoint(cell) / cell.protocol.steps for cell in cells}
        self.start_time, self.start_share = time.monotonic(), dict(self.share)

    def set_step(self, cell: Cell, step: int) -> None:
        self.share[cell] = step / cell.protocol.steps

    def remove(self, cell: Cell) -> None:
        """Leave out a cell that will not be finished by this grid."""
        self.work.pop(cell, None)

    @property
    def done_share(self) -> float:
        return self._weighted(self.share) / (sum(self.work.values()) or 1.0)

    def seconds_left(self) -> float | None:
        done = self._weighted(self.share) - self._weighted(self.start_share)
        left = sum(self.work.values()) - self._weighted(self.share)
        return (time.monotonic() - self.start_time) * left / done if done > 0 else None

    def _weighted(self, share: dict[Cell, float]) -> float:
        return sum(work * share[cell] for cell, work in self.work.items())
