"""A grid as it runs: bars on a terminal, plain lines anywhere else."""

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from offline_gntd.experiments.definitions import Cell
from offline_gntd.experiments.forecast import Forecast
from offline_gntd.experiments.job import Ending, Progress
from offline_gntd.files import duration

LINE_SECONDS = 30.0  # between two plain lines on how far it is


class Display(Protocol):
    def progress(self, event: Progress) -> None: ...

    def ended(self, ending: Ending) -> None: ...

    def line(self, text: str) -> None: ...


@contextlib.contextmanager
def display(name: str, forecast: Forecast, quiet: bool, console: Console | None = None) -> Iterator[Display]:
    console = console or Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
    if console.is_terminal and not quiet:
        with _bars(console) as bars:
            yield Live(name, forecast, bars)
    else:
        yield Lines(name, forecast, console)


class Tally:
    """What both kinds know: each cell's latest score, how many have ended, how much is left."""

    def __init__(self, name: str, forecast: Forecast):
        self.name, self.forecast = name, forecast
        self.scores: dict[Cell, float] = {}
        self.ended_count = 0

    def hear(self, event: Progress | Ending) -> None:
        if isinstance(event, Ending):
            self.ended_count += 1
            done = event.kind in ("done", "diverged", "finished")
            (self.forecast.ended if done else self.forecast.without)(event.cell)
            return
        self.forecast.reached(event.cell, event.step)
        if event.score is not None:
            self.scores[event.cell] = event.score

    def score(self, cell: Cell) -> str:
        if cell not in self.scores:
            return ""
        return "diverged" if math.isnan(self.scores[cell]) else f"score {self.scores[cell]:.1f}"

    def summary(self) -> str:
        counts = f"{self.ended_count} of {len(self.forecast.cells)} ended, {self.forecast.done_share:.0%}"
        return f"{counts}, {duration(self.forecast.seconds_left())} left"


class Live:
    def __init__(self, name: str, forecast: Forecast, bars: Bars):
        self.tally, self.bars = Tally(name, forecast), bars
        self.whole = bars.add_task(name, total=1.0, detail="")
        self.tasks: dict[Cell, TaskID] = {}

    def progress(self, event: Progress) -> None:
        self.tally.hear(event)
        cell, steps = event.cell, event.cell.protocol.steps
        if cell not in self.tasks:
            self.tasks[cell] = self.bars.add_task(str(cell), total=steps, detail="")
        detail = f"{event.step:,}/{steps:,} {self.tally.score(cell)}"
        self.bars.update(self.tasks[cell], completed=event.step, detail=detail)
        self._update()

    def ended(self, ending: Ending) -> None:
        self.tally.hear(ending)
        if ending.cell in self.tasks:
            self.bars.remove_task(self.tasks.pop(ending.cell))
        self._update()

    def line(self, text: str) -> None:
        self.bars.console.print(text, markup=False)

    def _update(self) -> None:
        share = self.tally.forecast.done_share
        self.bars.update(self.whole, completed=share, detail=self.tally.summary())


class Lines:
    def __init__(self, name: str, forecast: Forecast, console: Console):
        self.tally, self.console = Tally(name, forecast), console
        self.last = time.monotonic()

    def progress(self, event: Progress) -> None:
        self.tally.hear(event)
        if time.monotonic() - self.last > LINE_SECONDS:
            self.last = time.monotonic()
            at = f"{event.cell} at {event.step:,} of {event.cell.protocol.steps:,}"
            parts = [self.tally.summary(), at, self.tally.score(event.cell)]
            self.line(f"{self.tally.name}: " + "; ".join(part for part in parts if part))

    def ended(self, ending: Ending) -> None:
        self.tally.hear(ending)
        parts = [f"{ending.kind}: {ending.cell}", self.tally.score(ending.cell), self.tally.summary()]
        self.line("; ".join(part for part in parts if part))

    def line(self, text: str) -> None:
        self.console.print(text, markup=False)


def _bars(console: Console) -> Bars:
    texts = [TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[detail]}")]
    return Bars(texts[0], BarColumn(bar_width=24), texts[1], console=console)
