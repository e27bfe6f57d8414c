"""How much of a grid is left, as it runs: its own pace, weighed with what is known of each cell's length."""

import time
from collections.abc import Sequence

from offline_gntd.experiments import planning
from offline_gntd.experiments.definitions import Cell
from offline_gntd.experiments.rates import Rates

UNKNOWN = 1e-3  # seconds an update may take where nothing at all is known; only proportions matter


class Forecast:
    def __init__(self, cells: Sequence[Cell], rates: Rates):
        self.cells = tuple(cells)
        seconds = {cell: rates.seconds(cell) for cell in cells}
        known = [(value, cell.protocol.steps) for cell, value in seconds.items() if value is not None]
        typical = sum(value for value, _ in known) / sum(steps for _, steps in known) if known else UNKNOWN
        self.work = {cell: value or cell.protocol.steps * typical for cell, value in seconds.items()}
        self.share = {cell: planning.reached(cell) / cell.protocol.steps for cell in cells}
        self.began, self.start = time.monotonic(), dict(self.share)

    def reached(self, cell: Cell, step: int) -> None:
        self.share[cell] = step / cell.protocol.steps

    def ended(self, cell: Cell) -> None:
        self.share[cell] = 1.0

    def without(self, cell: Cell) -> None:
        """It will not be finished here."""
        self.work.pop(cell, None)

    @property
    def done_share(self) -> float:
        return self._weigh(self.share) / (sum(self.work.values()) or 1.0)

    def seconds_left(self) -> float | None:
        done = self._weigh(self.share) - self._weigh(self.start)
        left = sum(self.work.values()) - self._weigh(self.share)
        return (time.monotonic() - self.began) * left / done if done > 0 else None

    def _weigh(self, share: dict[Cell, float]) -> float:
        return sum(work * share[cell] for cell, work in self.work.items())
