"""Rounds of timings, taken in turn so that a machine's moods meet everything alike; medians of them."""

import multiprocessing
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import truediv
from statistics import median
from typing import Any

import torch

from offline_gntd.bench import flops
from offline_gntd.bench.subjects import SIZES, Subject, gemm_flops, rate, settings, transitions
from offline_gntd.processes import prepare

context = multiprocessing.get_context("forkserver")  # each process begins with torch imported, nothing else
context.set_forkserver_preload([__name__])
ROWS = 1_000_000  # of the transitions updates draw from
STACK = 5  # seeds
TURN = 20  # updates at least, of two that take turns


@dataclass
class Timings:
    """What the rounds said of one preset at one size."""

    rates: list[float] = field(default_factory=list)  # updates per second, one thread
    fractions: list[float] = field(default_factory=list)  # of the ceiling measured beside it
    together: list[float] = field(default_factory=list)  # updates per second of all workers
    stacked: list[float] = field(default_factory=list)  # of STACK seeds in one process, times one seed's
    kfac: list[float] = field(default_factory=list)  # an update's time, times that of one without curvature

    def summary(self, name: str, size: str, peak_mib: float) -> dict[str, Any]:
        config = settings(name)
        kfac, needed = getattr(config, "kfac", None), flops.of_update(config, SIZES[size])
        return {
            "updates_per_s": median(self.rates),
            "minimal_mflop": needed / 1e6 if needed else None,
            "ceiling_fraction": median(self.fractions) if self.fractions else None,
            "workers_updates_per_s": median(self.together),
            "workers_ratio": median(map(truediv, self.together, self.rates)),
            "stacked_ratio": median(self.stacked) if self.stacked else None,
            "kfac_ratio": median(self.kfac) if self.kfac else None,
            "peak_mib": peak_mib,
            "factor_period": kfac.factor_every if kfac else None,
            "inverse_period": kfac.inverse_every if kfac else None,
            "hidden_dims": list(getattr(config, "hidden_dims", ())),
        }


class Bench:
    """Presets at sizes, timed in processes of one thread each: one alone, and all at once."""

    def __init__(self, subjects: Sequence[tuple[str, str]], workers: int, seconds: float, rows: int = ROWS):
        self.subjects, self.workers, self.seconds, self.rows = subjects, workers, seconds, rows
        self.timings = {subject: Timings() for subject in subjects}
        self.gemm: list[float] = []

    def run(self, rounds: int, peers: Sequence[Any] = (), report: Callable[[], None] = lambda: None) -> None:
        barrier = context.Barrier(self.workers)
        with (
            context.Pool(1, prepare) as alone,
            context.Pool(self.workers, _prepare_with, (barrier,)) as team,
        ):
            for _ in range(rounds):
                for name, size in self.subjects:
                    self._time(name, size, alone, team)
                    for peer in peers:
                        peer.time(name, size, self.seconds)
                    report()

    def _time(self, name: str, size: str, alone, team) -> None:
        timings, needed = self.timings[name, size], flops.of_update(settings(name), SIZES[size])
        updates, ceiling = alone.apply(_timed, (name, size, self.rows, self.seconds))
        self.gemm.append(ceiling)
        timings.rates.append(updates)
        if needed:
            timings.fractions.append(updates * needed / ceiling)
        arguments = [(name, size, self.rows, self.seconds)] * self.workers
        timings.together.append(sum(team.starmap(_timed_together, arguments, chunksize=1)))
        if SIZES[size].discrete:  # networks so small that several are trained in one computation
            stacked, _ = alone.apply(_timed, (name, size, self.rows, self.seconds, STACK))
            timings.stacked.append(stacked / updates)
        if getattr(settings(name), "kfac", None):
            timings.kfac.append(alone.apply(_kfac_ratio, (name, size, self.rows, self.seconds)))

    def summary(self) -> dict[tuple[str, str], dict[str, Any]]:
        found = {}
        for name, size in self.subjects:
            with context.Pool(1, prepare) as fresh:
                peak = fresh.apply(_peak_mib, (name, size, self.rows))
            found[name, size] = self.timings[name, size].summary(name, size, peak)
        return found


# ---- in a process of its own ----

_barrier: Any = None
_rows: dict[str, torch.Tensor] = {}


def _prepare_with(barrier) -> None:
    global _barrier
    prepare()
    _barrier = barrier


def _transitions(size: str, rows: int) -> torch.Tensor:
    if size not in _rows:
        _rows[size] = transitions(SIZES[size], rows)
    return _rows[size]


def _timed(name: str, size: str, rows: int, seconds: float, stack: int = 1) -> tuple[float, float]:
    """Updates per second, and the floating-point operations per second before and after."""
    subject = Subject(name, size, _transitions(size, rows), stack)
    before = gemm_flops()
    updates = subject.rate(seconds)
    return updates, (before + gemm_flops()) / 2


def _kfac_ratio(name: str, size: str, rows: int, seconds: float) -> float:
    """The time of an update over that of one without curvature. They take short turns: if the machine's pace
    changes from second to second, it does for both."""
    subject = Subject(name, size, _transitions(size, rows))
    plain = Subject(name, size, _transitions(size, rows), plain=True)
    turn = subject.period * -(-TURN // subject.period)  # whole periods; plain's is a part of them
    spent = spent_plain = 0.0  # seconds
    while spent_plain < seconds:
        spent += turn / rate(subject.update, 0.0, turn)
        spent_plain += turn / rate(plain.update, 0.0, turn)
    return spent / spent_plain


def _timed_together(name: str, size: str, rows: int, seconds: float) -> float:
    subject = Subject(name, size, _transitions(size, rows))
    _barrier.wait()
    return subject.rate(seconds)


def _peak_mib(name: str, size: str, rows: int) -> float:
    Subject(name, size, transitions(SIZES[size], rows)).rate(0.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
