"""The progress of experiments: shown while a grid runs, and read from the run folders on any machine."""

import contextlib
import dataclasses
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from offline_gntd import lock
from offline_gntd.errors import UserError
from offline_gntd.experiments import definitions, results
from offline_gntd.experiments.definitions import Cell
from offline_gntd.experiments.job import JobResult, Progress
from offline_gntd.experiments.planning import Rates, continues, known_rates, last_checkpoint
from offline_gntd.experiments.record import FINISHED, LOG, DamagedRun, last_evaluation, read_description
from offline_gntd.files import duration

LINE_SECONDS = 30.0  # between two plain progress lines
DEFAULT_SECONDS = 1e-3  # per update, in a forecast without any known rate: only proportions matter

# ---- a running grid ----


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


class Display:
    """Bars for the grid and its running cells, or plain lines if `bars` is None."""

    def __init__(self, name: str, forecast: Forecast, console: Console, bars: Bars | None):
        self.name, self.forecast, self.console, self.bars = name, forecast, console, bars
        self.scores: dict[Cell, float] = {}
        self.ended_count = 0
        self.tasks: dict[Cell, TaskID] = {}
        self.total = bars.add_task(name, total=1.0, detail="") if bars else None
        self.last_line = time.monotonic()

    def progress(self, event: Progress) -> None:
        cell, steps = event.cell, event.cell.protocol.steps
        self.forecast.set_step(cell, event.step)
        if event.score is not None:
            self.scores[cell] = event.score
        if self.bars:
            if cell not in self.tasks:
                self.tasks[cell] = self.bars.add_task(str(cell), total=steps, detail="")
            detail = f"{event.step:,}/{steps:,} {self._score(cell)}"
            self.bars.update(self.tasks[cell], completed=event.step, detail=detail)
            self._update_total(self.bars)
        elif time.monotonic() - self.last_line > LINE_SECONDS:
            self.last_line = time.monotonic()
            step = f"{cell} at {event.step:,} of {steps:,}"
            self._join(f"{self.name}: {self._summary()}", step, self._score(cell))

    def ended(self, result: JobResult) -> None:
        cell = result.cell
        self.ended_count += 1
        if result.kind in ("done", "diverged", "finished"):
            self.forecast.set_step(cell, cell.protocol.steps)
        else:
            self.forecast.remove(cell)
        if self.bars:
            if cell in self.tasks:
                self.bars.remove_task(self.tasks.pop(cell))
            self._update_total(self.bars)
        else:
            kind = "failed" if result.kind in ("refused", "lost") else result.kind
            self._join(f"{kind}: {cell}", self._score(cell), self._summary())

    def line(self, text: str) -> None:
        self.console.print(text, markup=False)

    def _join(self, *parts: str) -> None:
        self.line("; ".join(part for part in parts if part))

    def _update_total(self, bars: Bars) -> None:
        assert self.total is not None  # there are bars
        bars.update(self.total, completed=self.forecast.done_share, detail=self._summary())

    def _score(self, cell: Cell) -> str:
        if cell not in self.scores:
            return ""
        return "diverged" if math.isnan(self.scores[cell]) else f"score {self.scores[cell]:.1f}"

    def _summary(self) -> str:
        counts = f"{self.ended_count} of {len(self.forecast.cells)} ended, {self.forecast.done_share:.0%}"
        if self.ended_count == len(self.forecast.cells):
            return counts
        return f"{counts}, {duration(self.forecast.seconds_left())} left"


@contextlib.contextmanager
def open_display(
    name: str, forecast: Forecast, quiet: bool = False, console: Console | None = None
) -> Iterator[Display]:
    """Bars on a terminal, plain lines elsewhere."""
    console = console or Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
    if not console.is_terminal or quiet:
        yield Display(name, forecast, console, bars=None)
        return
    texts = [TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[detail]}")]
    with Bars(texts[0], BarColumn(bar_width=24), texts[1], console=console) as bars:
        yield Display(name, forecast, console, bars)


# ---- status, from files alone ----

STATES = ("done", "diverged", "running", "failed", "stale", "waiting")


@dataclass(frozen=True)
class RunStatus:
    dataset: str
    algorithm: str
    seed: int
    state: str
    step: int = 0  # at the last evaluation or checkpoint
    steps: int = 0  # in total
    score: float | None = None
    updates_per_second: float | None = None  # evaluations included
    seconds_left: float | None = None
    host: str | None = None
    silent_seconds: float = 0.0  # since its owner's last heartbeat
    error: str | None = None
    log: str | None = None
    damaged: bool = False  # its files cannot be read

    def text(self) -> str:
        parts = [f"{self.state:<9}{self.dataset} {self.algorithm} seed {self.seed}"]
        if self.step and self.state != "done":
            parts.append(f"{self.step:,} of {self.steps:,}")
        if self.score is not None:
            parts.append(f"score {self.score:.1f}")
        if self.state == "running":
            if self.updates_per_second:
                parts.append(f"{self.updates_per_second:.0f} updates/s")
            parts += [f"{duration(self.seconds_left)} left", f"on {self.host}"]
            if self.silent_seconds > lock.TIMEOUT:
                parts.append(f"no heartbeat for {duration(self.silent_seconds)}")
        if self.error:
            parts += [self.error, f"see {self.log}"]
        return ", ".join(parts)


@dataclass(frozen=True)
class Status:
    experiment: str
    runs: tuple[RunStatus, ...]
    seconds_left: float | None  # with the present processes; None if nothing runs or a rate is unknown

    @property
    def damaged(self) -> bool:
        return any(run.damaged for run in self.runs)

    @property
    def counts(self) -> Counter[str]:
        return Counter(run.state for run in self.runs)

    def headline(self) -> str:
        counts = ", ".join(f"{self.counts[state]} {state}" for state in STATES if self.counts[state])
        left = f"; {duration(self.seconds_left)} left" if self.counts["running"] else ""
        return f"{self.experiment}: {counts}{left}"

    def text(self) -> str:
        return "\n".join([*(run.text() for run in self.runs), self.headline()])

    def to_dict(self) -> dict[str, Any]:
        counts = {state: self.counts[state] for state in STATES}
        return dataclasses.asdict(self) | {"counts": counts}


def read_status(name: str, verify: bool = False) -> Status:
    """The state of every run; with `verify`, finished runs are compared with their checkpoints."""
    cells = definitions.find(name).cells()
    exported, rates = results.exported_runs(name), known_rates()
    runs: list[RunStatus] = []
    left: list[float | None] = []  # per unfinished cell
    running = 0
    for cell in cells:
        cell_runs = [_read_run(cell, seed, exported, rates, verify) for seed in cell.seeds]
        runs += cell_runs
        states = {run.state for run in cell_runs}
        running += "running" in states
        if states & {"running", "waiting", "failed"}:
            known = [run.seconds_left for run in cell_runs if run.seconds_left is not None]
            left.append(max(known, default=None))
    known = [seconds for seconds in left if seconds is not None]
    return Status(name, tuple(runs), sum(known) / running if running and len(known) == len(left) else None)


def _read_run(cell: Cell, seed: int, exported: dict[tuple, dict], rates: Rates, verify: bool) -> RunStatus:
    folder = cell.folder(seed)
    key = (cell.dataset, cell.algorithm, seed)
    run = RunStatus(*key, "waiting", steps=cell.protocol.steps)
    try:
        description, last = read_description(folder) or {}, last_evaluation(folder)
        if verify:
            results.verify(folder)
    except DamagedRun as error:
        log = str(folder / LOG)
        return dataclasses.replace(run, state="failed", error=str(error), log=log, damaged=True)
    owner = lock.owner(folder)
    if not description and not owner:
        description = exported.get(key, {})
    if last:
        seconds = last["training_seconds"] + last["evaluation_seconds"]
        rate = last["step"] / seconds if seconds > 0 else None
        run = dataclasses.replace(run, score=last["score"], updates_per_second=rate)
    finished = description.get("status") in FINISHED and not owner
    known = finished and (folder.exists() or description["protocol"]["steps"] >= cell.protocol.steps)
    if known and not continues(description, cell):
        state = "stale" if _has_other_settings(cell, description) else description["status"]
        return dataclasses.replace(run, state=state, step=description.get("steps", 0))
    step = last_checkpoint(cell)
    if owner and last:
        step = max(step, int(last["step"]))
    run = dataclasses.replace(run, step=step, seconds_left=rates.seconds(cell, step))
    if owner:
        silent = owner["silent_seconds"]
        return dataclasses.replace(run, state="running", host=owner.get("host"), silent_seconds=silent)
    if description.get("status") == "failed":
        return dataclasses.replace(
            run, state="failed", error=description.get("error"), log=description.get("log")
        )
    return run


def _has_other_settings(cell: Cell, description: dict[str, Any]) -> bool:
    if description["protocol"]["steps"] != cell.protocol.steps:
        return True
    try:
        return description["config_hash"] != cell.config_hash
    except UserError:
        return False  # an algorithm of a file that is not imported now
