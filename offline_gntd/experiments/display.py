"""The progress of a grid: bars on a terminal, plain lines elsewhere."""

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from offline_gntd.experiments.definitions import Cell
from offline_gntd.experiments.estimates import Forecast
from offline_gntd.experiments.job import JobResult, Progress
from offline_gntd.files import duration

LINE_SECONDS = 30.0  # between two plain progress lines


class Display(Protocol):
    def progress(self, event: Progress) -> None: ...

    def ended(self, result: JobResult) -> None: ...

    def line(self, text: str) -> None: ...


@contextlib.contextmanager
def open_display(
    name: str, forecast: Forecast, quiet: bool, console: Console | None = None
) -> Iterator[Display]:
    console = console or Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
    if console.is_terminal and not quiet:
        with _bars(console) as bars:
            yield BarDisplay(name, forecast, bars)
    else:
        yield LineDisplay(name, forecast, console)


class Tally:
    """Each cell's latest score, the number of ended cells, and the time left."""

    def __init__(self, name: str, forecast: Forecast):
        self.name, self.forecast = name, forecast
        self.scores: dict[Cell, float] = {}
        self.ended_count = 0

    def add(self, event: Progress | JobResult) -> None:
        if isinstance(event, JobResult):
            self.ended_count += 1
            if event.kind in ("done", "diverged", "finished"):
                self.forecast.set_step(event.cell, event.cell.protocol.steps)
            else:
                self.forecast.remove(event.cell)
            return
        self.forecast.set_step(event.cell, event.step)
        if event.score is not None:
            self.scores[event.cell] = event.score

    def score(self, cell: Cell) -> str:
        if cell not in self.scores:
            return ""
        return "diverged" if math.isnan(self.scores[cell]) else f"score {self.scores[cell]:.1f}"

    def summary(self) -> str:
        counts = f"{self.ended_count} of {len(self.forecast.cells)} ended, {self.forecast.done_share:.0%}"
        if self.ended_count == len(self.forecast.cells):
            return counts
        return f"{counts}, {duration(self.forecast.seconds_left())} left"


class BarDisplay:
    def __init__(self, name: str, forecast: Forecast, bars: Bars):
        self.tally, self.bars = Tally(name, forecast), bars
        self.total = bars.add_task(name, total=1.0, detail="")
        self.tasks: dict[Cell, TaskID] = {}

    def progress(self, event: Progress) -> None:
        self.tally.add(event)
        cell, steps = event.cell, event.cell.protocol.steps
        if cell not in self.tasks:
            self.tasks[cell] = self.bars.add_task(str(cell), total=steps, detail="")
        detail = f"{event.step:,}/{steps:,} {self.tally.score(cell)}"
        self.bars.update(self.tasks[cell], completed=event.step, detail=detail)
        self._update_total()

    def ended(self, result: JobResult) -> None:
        self.tally.add(result)
        if result.cell in self.tasks:
            self.bars.remove_task(self.tasks.pop(result.cell))
        self._update_total()

    def line(self, text: str) -> None:
        self.bars.console.print(text, markup=False)

    def _update_total(self) -> None:
        share = self.tally.forecast.done_share
        self.bars.update(self.total, completed=share, detail=self.tally.summary())


class LineDisplay:
    def __init__(self, name: str, forecast: Forecast, console: Console):
        self.tally, self.console = Tally(name, forecast), console
        self.last_line = time.monotonic()

    def progress(self, event: Progress) -> None:
        self.tally.add(event)
        if time.monotonic() - self.last_line > LINE_SECONDS:
            self.last_line = time.monotonic()
            step = f"{event.cell} at {event.step:,} of {event.cell.protocol.steps:,}"
            parts = [self.tally.summary(), step, self.tally.score(event.cell)]
            self.line(f"{self.tally.name}: " + "; ".join(part for part in parts if part))

    def ended(self, result: JobResult) -> None:
        self.tally.add(result)
        kind = "failed" if result.kind in ("refused", "lost") else result.kind
        parts = [f"{kind}: {result.cell}", self.tally.score(result.cell), self.tally.summary()]
        self.line("; ".join(part for part in parts if part))

    def line(self, text: str) -> None:
        self.console.print(text, markup=False)


def _bars(console: Console) -> Bars:
    texts = [TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[detail]}")]
    return Bars(texts[0], BarColumn(bar_width=24), texts[1], console=console)
