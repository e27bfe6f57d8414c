"""Run the cells of an experiment on an engine.

Finished runs are skipped, failed runs are tried again, and runs locked by another process are waited for.
"""

import contextlib
import importlib
import importlib.util
import math
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from offline_gntd.errors import UserError, unknown
from offline_gntd.experiments import definitions, planning
from offline_gntd.experiments.definitions import Cell, Experiment
from offline_gntd.experiments.job import Engine, JobResult, Options, Progress, log_path, record_lost_job
from offline_gntd.experiments.planning import Rates, known_rates, last_checkpoint
from offline_gntd.experiments.progress import Display, Forecast, open_display
from offline_gntd.files import require_writable
from offline_gntd.lock import Watch

POLL_SECONDS = 0.5
RETRIES = 2  # further attempts at a cell that failed
DEFAULT_OPTIONS = Options()
ENGINES = {"local": "Local", "ray": "Ray", "slurm": "Slurm"}  # class in the module engine_<name>
EXTRAS = {"ray": "ray", "slurm": "submitit", "tensorboard": "tensorboard", "wandb": "wandb"}  # packages


@dataclass
class GridResult:
    """The cells of a grid by what happened to them."""

    finished_before: list[Cell] = field(default_factory=list)
    stale: list[Cell] = field(default_factory=list)
    done: list[Cell] = field(default_factory=list)
    diverged: list[Cell] = field(default_factory=list)  # every seed diverged
    done_elsewhere: list[Cell] = field(default_factory=list)  # by another process, since this grid started
    failed: list[Cell] = field(default_factory=list)
    stopped: str = ""  # the reason, if the grid was stopped

    @property
    def complete(self) -> bool:
        return not (self.stale or self.failed or self.stopped)

    @property
    def all_diverged(self) -> bool:
        """Whether there are finished runs and all of them diverged, in this grid or before it."""
        cells = [*self.finished_before, *self.diverged, *self.done_elsewhere]
        return bool(cells) and not self.done and all(map(planning.is_diverged, cells))


def run(
    experiment: Experiment,
    workers: int | None = None,
    options: Options = DEFAULT_OPTIONS,
    rerun_stale: bool = False,
    retries: int = RETRIES,
    engine_name: str = "local",
    quiet: bool = False,
    **engine_settings: Any,
) -> GridResult:
    """Run the missing cells of an experiment; with `rerun_stale`, the stale ones too.

    Raises UserError for impossible settings and for missing data, before anything is written.
    """
    check(workers, options, retries, engine_name)
    plan = planning.plan(experiment, rerun_stale)
    for error in plan.missing.values():
        raise error
    result = GridResult(plan.finished, plan.stale)
    if not plan.todo:
        if definitions.stored_path(experiment.name).parent.exists() and not plan.stale:
            definitions.store(experiment)  # so that a table includes these runs
        return result
    require_writable(definitions.stored_path(experiment.name).parent)
    rates = known_rates()
    cells = ordered(plan.todo, rates)
    with open_engine(engine_name, workers, options, **engine_settings) as engine:
        definitions.store(experiment)
        with open_display(experiment.name, Forecast(cells, rates), quiet) as display:
            Grid(engine, cells, retries, result, display).work()
    return result


def check(workers: int | None, options: Options, retries: int, engine_name: str) -> None:
    """Raise UserError for settings that no grid can be run with."""
    if workers is not None and workers < 1:
        raise UserError(f"--workers must be at least 1, not {workers}")
    if retries < 0:
        raise UserError(f"--retries must be at least 0, not {retries}")
    if options.checkpoint_seconds is not None and not options.checkpoint_seconds > 0:
        raise UserError(f"--checkpoint-seconds must be more than 0, not {options.checkpoint_seconds:g}")
    if engine_name not in ENGINES:
        raise unknown("engine", engine_name, ENGINES)
    for extra in (engine_name, *options.trackers):
        if extra in EXTRAS and importlib.util.find_spec(EXTRAS[extra]) is None:
            raise UserError(f"{extra} is not installed; run: pip install 'offline_gntd[{extra}]'")


def open_engine(name: str, workers: int | None, options: Options, **settings: Any) -> Engine:
    """settings  `address` for Ray, `parameters` for Slurm"""
    module = importlib.import_module(f"offline_gntd.experiments.engine_{name}")
    return getattr(module, ENGINES[name])(workers, options, **settings)


def ordered(cells: Sequence[Cell], rates: Rates) -> list[Cell]:
    """The order in which cells are run: seed by seed, so that a stopped grid leaves complete seeds; within a
    seed the longest first, so that none is left alone at the end. Cells of unknown length come first."""

    def key(cell: Cell) -> tuple[int, float]:
        seconds = rates.seconds(cell, last_checkpoint(cell))
        return cell.seeds[0], -math.inf if seconds is None else -seconds

    return sorted(cells, key=key)


class Grid:
    """Gives cells to an engine until each has a result."""

    def __init__(
        self, engine: Engine, cells: Sequence[Cell], retries: int, result: GridResult, display: Display
    ):
        self.engine, self.retries, self.result, self.display = engine, retries, result, display
        self.cells, self.pending = cells, set(cells)
        self.failures: Counter[Cell] = Counter()
        self.locked: dict[Cell, Watch] = {}  # cells that other processes run
        self.interrupted = False

    def work(self) -> None:
        """Submit all cells and handle the engine's events until none is pending."""
        for cell in self.cells:
            watch = Watch(cell.folders())
            if watch.is_locked():
                self._wait_for(cell, watch)
        self.engine.submit([cell for cell in self.cells if cell not in self.locked])
        with _interrupts(self):
            while self.pending:
                if self.interrupted and not self.result.stopped:
                    self.display.line("stopping: the runs write their checkpoints; Ctrl-C again to stop now")
                    self.stop("interrupted")
                for event in self.engine.poll(POLL_SECONDS):
                    if isinstance(event, Progress):
                        self.display.progress(event)
                    else:
                        self._handle(event)
                self._check_locked()

    def stop(self, reason: str) -> None:
        """End all runs with a checkpoint; `work` returns when they have ended."""
        self.result.stopped = self.result.stopped or reason
        self.engine.stop()

    def _handle(self, result: JobResult) -> None:
        cell = result.cell
        finished = {
            "done": self.result.done,
            "diverged": self.result.diverged,
            "finished": self.result.done_elsewhere,
        }
        if result.kind == "locked":
            self._wait_for(cell, Watch(cell.folders()))
            return
        if result.kind in ("failed", "lost"):
            self.failures[cell] += 1
            if self.failures[cell] <= self.retries and not self.result.stopped:
                count = f"{self.failures[cell]} of {self.retries}"
                self.display.line(f"{cell}: {result.error}; trying again, {count}")
                self.engine.submit([cell])
                return
        if result.kind in ("failed", "lost", "refused"):
            if result.kind == "lost":
                record_lost_job(result)
            self.result.failed.append(cell)
            self.display.line(f"failed: {cell}: {result.error.rstrip('.')}; see {log_path(cell)}")
        elif result.kind == "unwritable":
            self.stop(result.error)
        elif result.kind in finished:
            finished[result.kind].append(cell)
        self.pending.discard(cell)
        self.display.ended(result)

    def _wait_for(self, cell: Cell, watch: Watch) -> None:
        self.locked[cell] = watch
        self.display.line(f"{cell}: locked by another process; waiting for it")

    def _check_locked(self) -> None:
        """Take over cells that other processes have unlocked, whether finished or not."""
        if self.result.stopped:
            self.pending -= set(self.locked)
            self.locked = {}
            return
        for cell in [cell for cell, watch in self.locked.items() if not watch.is_locked()]:
            del self.locked[cell]
            if planning.is_finished(cell):
                self._handle(JobResult(cell, "finished"))
            else:
                self.engine.submit([cell])


@contextlib.contextmanager
def _interrupts(grid: Grid) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM lets every run write its checkpoint and end; the second kills them."""

    def interrupt(number, frame):
        if grid.interrupted:
            raise KeyboardInterrupt
        grid.interrupted = True

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can handle signals
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
