"""How long a run will take, from the rates of runs that were measured."""

import contextlib
import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from offline_gntd.errors import UserError
from offline_gntd.experiments import results
from offline_gntd.experiments.definitions import Cell
from offline_gntd.experiments.record import last_evaluation, read_description
from offline_gntd.files import home


@dataclass(frozen=True)
class Rate:
    """Of a whole stack of seeds."""

    seconds_per_update: float
    seconds_per_episode: float  # one per seed

    def seconds(self, cell: Cell, since: int = 0) -> float:
        """To take a cell from a step to its end."""
        protocol = cell.protocol
        evaluations = -(-protocol.steps // protocol.evaluate_every) - since // protocol.evaluate_every
        episodes = evaluations * protocol.evaluate_episodes
        return (protocol.steps - since) * self.seconds_per_update + episodes * self.seconds_per_episode


class Rates:
    """The median rate of runs like a cell: on its dataset if there are any, else of its algorithm."""

    def __init__(self, rates: dict[tuple, list[Rate]]):
        self.rates = rates

    def of(self, cell: Cell) -> Rate | None:
        for key in _keys(cell.algorithm, cell.dataset, len(cell.seeds)):
            if found := self.rates.get(key):
                return Rate(
                    statistics.median(rate.seconds_per_update for rate in found),
                    statistics.median(rate.seconds_per_episode for rate in found),
                )
        return None

    def seconds(self, cell: Cell, since: int = 0) -> float | None:
        rate = self.of(cell)
        return rate.seconds(cell, since) if rate else None


def measured() -> Rates:
    """From every run folder and all shipped results."""
    rates: dict[tuple, list[Rate]] = defaultdict(list)
    folder = home() / "results"
    found = []
    for path in folder.glob("*/*/*/seed-*/run.json"):
        with contextlib.suppress(UserError):  # one that cannot be read has no rate
            run = read_description(path.parent) or {}
            if "config_hash" in run:
                found.append(run | _so_far(path.parent))
    for path in folder.glob("*.runs.csv"):
        if shipped := results.read_exported(path.name.removesuffix(".runs.csv")):
            found += shipped.runs.to_dict("records")
    for run in found:
        if run.get("steps") and run.get("training_seconds"):
            for key in _keys(run["algorithm"], run["dataset"], run["stack"]):
                rates[key].append(_rate(run))
    return Rates(rates)


def _so_far(folder) -> dict[str, float]:
    """What a run's last evaluation says, at its end or not."""
    row = last_evaluation(folder)
    if row is None:
        return {}
    return {
        "steps": row["step"],
        "training_seconds": row["training_seconds"],
        "evaluation_seconds": row["evaluation_seconds"],
    }


def _rate(run: dict[str, Any]) -> Rate:
    protocol = run["protocol"]
    episodes = -(-run["steps"] // protocol["evaluate_every"]) * protocol["evaluate_episodes"]
    return Rate(run["training_seconds"] / run["steps"], run["evaluation_seconds"] / episodes)


def _keys(algorithm: str, dataset: str, stack: int) -> list[tuple]:
    """From the closest likeness to the widest: a variant may be as slow as its preset."""
    preset = algorithm.partition("@")[0]
    return [(algorithm, dataset, stack), (algorithm, stack), (preset, dataset, stack), (preset, stack)]
