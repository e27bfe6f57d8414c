"""What running an experiment would do, and how long it would take."""

from dataclasses import dataclass

from offline_gntd.errors import UserError
from offline_gntd.experiments import planning, rates
from offline_gntd.experiments.definitions import Cell, Experiment
from offline_gntd.experiments.planning import Plan
from offline_gntd.files import duration


@dataclass(frozen=True)
class Preview:
    plan: Plan
    workers: int
    seconds: dict[Cell, float | None]  # that each cell to be run will take; None where no rate was measured

    @property
    def total(self) -> float:
        return sum(value for value in self.seconds.values() if value is not None)

    @property
    def wall(self) -> float:
        """With the longest first, on as many workers."""
        ends = [0.0] * max(1, min(self.workers, len(self.seconds)))
        for value in sorted((value or 0.0 for value in self.seconds.values()), reverse=True):
            ends[ends.index(min(ends))] += value
        return max(ends)

    def text(self) -> str:
        lines = [self._line(cell) for cell in self.plan.todo]
        lines += [f"finished  {cell}" for cell in self.plan.finished]
        lines += [
            f"stale     {cell}: finished under other settings or data; --rerun-stale runs it again"
            for cell in self.plan.stale
        ]
        lines += [f"missing   {error}" for error in self.plan.missing.values()]
        return "\n".join([*lines, self._sum()])

    def _line(self, cell: Cell) -> str:
        step = planning.reached(cell)
        begun = f", from step {step:,}" if step else ""
        return f"to run    {cell}: {duration(self.seconds[cell])}{begun}"

    def _sum(self) -> str:
        count = len(self.plan.todo)
        words = f"{count} to run, {len(self.plan.finished)} finished, {len(self.plan.stale)} stale"
        if not count:
            return words
        unknown = sum(value is None for value in self.seconds.values())
        if unknown == count:
            return f"{words}; how long is not known: no run like these was measured"
        words += f"; {self.total / 3600:.1f} hours of work, {duration(self.wall)} on {self.workers} "
        words += "worker" if self.workers == 1 else "workers"
        return words + (f", {unknown} of unmeasured rate not counted" if unknown else "")


def preview(experiment: Experiment, workers: int, rerun_stale: bool = False) -> Preview:
    if workers < 1:
        raise UserError(f"--workers must be at least 1, not {workers}")
    plan, estimates = planning.plan(experiment, rerun_stale), rates.measured()
    seconds = {cell: estimates.seconds(cell, planning.reached(cell)) for cell in plan.todo}
    return Preview(plan, workers, seconds)
