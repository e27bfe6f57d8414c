"""All the runs of an experiment.

What is finished is not run again, what fails is tried again, what another grid has in hand is waited for.
"""

import contextlib
import math
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from offline_gntd.errors import UserError
from offline_gntd.experiments import definitions, planning, rates, trackers
from offline_gntd.experiments.definitions import Cell, Experiment
from offline_gntd.experiments.display import Display, display
from offline_gntd.experiments.engines import Engine, engine, require_engine
from offline_gntd.experiments.forecast import Forecast
from offline_gntd.experiments.job import Ending, Options, Progress, log_of, record_death
from offline_gntd.experiments.lock import Watch
from offline_gntd.files import require_writable

POLL_SECONDS = 0.5
RETRIES = 2  # further attempts at a cell that failed
DEFAULTS = Options()


@dataclass
class Outcome:
    """What became of the cells of a grid."""

    finished_before: list[Cell] = field(default_factory=list)
    stale: list[Cell] = field(default_factory=list)
    done: list[Cell] = field(default_factory=list)
    diverged: list[Cell] = field(default_factory=list)  # in all their seeds
    done_elsewhere: list[Cell] = field(default_factory=list)  # by another grid, meanwhile
    failed: list[Cell] = field(default_factory=list)
    stopped: str = ""  # why, if it was

    @property
    def complete(self) -> bool:
        return not (self.stale or self.failed or self.stopped)

    @property
    def all_diverged(self) -> bool:
        """Whether there are finished runs and all of them diverged, in this grid or before it."""
        cells = [*self.finished_before, *self.done, *self.diverged, *self.done_elsewhere]
        return bool(cells) and not self.done and all(map(planning.diverged, cells))


def run(
    experiment: Experiment,
    workers: int | None = None,
    options: Options = DEFAULTS,
    rerun_stale: bool = False,
    retries: int = RETRIES,
    engine_name: str = "local",
    quiet: bool = False,
    **engine_settings: Any,
) -> Outcome:
    """Run what is missing of an experiment; with `rerun_stale`, what is stale too."""
    check(workers, options, retries, engine_name)
    plan = planning.plan(experiment, rerun_stale)
    for error in plan.missing.values():
        raise error
    outcome = Outcome(plan.finished, plan.stale)
    if not plan.todo:
        if definitions.stored_path(experiment.name).exists() and not plan.stale:
            definitions.store(experiment)  # runs made some other way are asked for from now on
        return outcome
    require_writable(definitions.stored_path(experiment.name).parent)
    estimates = rates.measured()
    todo = ordered(plan.todo, estimates)
    with engine(engine_name, workers, options, **engine_settings) as made:
        definitions.store(experiment)
        with display(experiment.name, Forecast(todo, estimates), quiet) as shown:
            Grid(made, todo, retries, outcome, shown).work()
    return outcome


def check(workers: int | None, options: Options, retries: int, engine_name: str) -> None:
    """Raise UserError for settings that no grid can be run with."""
    if workers is not None and workers < 1:
        raise UserError(f"--workers must be at least 1, not {workers}")
    if retries < 0:
        raise UserError(f"--retries must be at least 0, not {retries}")
    if options.checkpoint_seconds is not None and not options.checkpoint_seconds > 0:
        raise UserError(f"--checkpoint-seconds must be more than 0, not {options.checkpoint_seconds:g}")
    trackers.require(options.trackers)
    require_engine(engine_name)


def ordered(cells: Sequence[Cell], estimates: rates.Rates) -> list[Cell]:
    """Seed by seed, so that a grid stopped early leaves whole seeds; within a seed the longest runs first, so
    that none is left alone at the end. A run of unknown length may be long."""

    def place(cell: Cell) -> tuple[int, float]:
        seconds = estimates.seconds(cell, planning.reached(cell))
        return cell.seeds[0], -math.inf if seconds is None else -seconds

    return sorted(cells, key=place)


class Grid:
    """Cells on their way through an engine."""

    def __init__(self, engine: Engine, cells: Sequence[Cell], retries: int, outcome: Outcome, shown: Display):
        self.engine, self.retries, self.outcome, self.shown = engine, retries, outcome, shown
        self.unsettled = set(cells)
        self.cells = cells
        self.failures: Counter[Cell] = Counter()
        self.elsewhere: dict[Cell, Watch] = {}  # that others are at
        self.interrupted = False

    def work(self) -> None:
        for cell in self.cells:
            watch = Watch(cell.folders())
            if watch.held():
                self._leave(cell, watch)
        self.engine.submit([cell for cell in self.cells if cell not in self.elsewhere])
        with _interrupts(self):
            while self.unsettled:
                if self.interrupted and not self.outcome.stopped:
                    self.shown.line("stopping: the runs write their checkpoints; Ctrl-C again to stop now")
                    self.stop("interrupted")
                for event in self.engine.poll(POLL_SECONDS):
                    if isinstance(event, Progress):
                        self.shown.progress(event)
                    else:
                        self._settle(event)
                self._look_elsewhere()

    def stop(self, why: str) -> None:
        self.outcome.stopped = self.outcome.stopped or why
        self.engine.stop()

    def _settle(self, ending: Ending) -> None:
        cell = ending.cell
        if ending.kind == "held":
            self._leave(cell, Watch(cell.folders()))
            return
        if ending.kind in ("failed", "died"):
            self.failures[cell] += 1
            if self.failures[cell] <= self.retries and not self.outcome.stopped:
                self.shown.line(
                    f"{cell}: {ending.error}; trying again, {self.failures[cell]} of {self.retries}"
                )
                self.engine.submit([cell])
                return
        if ending.kind in ("failed", "died", "refused"):
            if ending.kind == "died":
                record_death(ending)
            self.outcome.failed.append(cell)
            self.shown.line(f"failed: {cell}: {ending.error}; see {log_of(cell)}")
        elif ending.kind == "unwritable":
            self.stop(ending.error)
        elif ending.kind == "done":
            self.outcome.done.append(cell)
        elif ending.kind == "diverged":
            self.outcome.diverged.append(cell)
        elif ending.kind == "finished":
            self.outcome.done_elsewhere.append(cell)
        self.unsettled.discard(cell)
        self.shown.ended(ending)

    def _leave(self, cell: Cell, watch: Watch) -> None:
        self.elsewhere[cell] = watch
        self.shown.line(f"{cell}: another grid is at it; waiting for that")

    def _look_elsewhere(self) -> None:
        """Take over what others have let go of, finished or not."""
        if self.outcome.stopped:
            self.unsettled -= set(self.elsewhere)
            self.elsewhere = {}
            return
        for cell in [cell for cell, watch in self.elsewhere.items() if not watch.held()]:
            del self.elsewhere[cell]
            if planning.finished(cell):
                self._settle(Ending(cell, "finished"))
            else:
                self.engine.submit([cell])


@contextlib.contextmanager
def _interrupts(grid: Grid) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) lets every run write its checkpoint and end; the second ends them now."""

    def interrupt(number, frame):
        if grid.interrupted:
            raise KeyboardInterrupt
        grid.interrupted = True

    if threading.current_thread() is not threading.main_thread():
        yield  # signals go to the main thread
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
