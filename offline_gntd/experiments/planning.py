"""Which cells of a grid are finished, stale or to be run, and how long the rest would take."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offline_gntd import versions
from offline_gntd.configuration import from_dict
from offline_gntd.datasets import DatasetNotFound
from offline_gntd.errors import UserError
from offline_gntd.experiments import results
from offline_gntd.experiments.definitions import Cell, Experiment, Protocol, settings_hash
from offline_gntd.experiments.estimates import Rates, known_rates, last_checkpoint
from offline_gntd.experiments.record import FINISHED, DamagedRun, read_description
from offline_gntd.experiments.sources import DataSource, check_compatible
from offline_gntd.files import duration


@dataclass
class Plan:
    finished: list[Cell] = field(default_factory=list)
    stale: list[Cell] = field(default_factory=list)  # finished with other settings, data or steps
    todo: list[Cell] = field(default_factory=list)
    missing: dict[str, DatasetNotFound] = field(default_factory=dict)  # datasets that `todo` needs
    sources: dict[tuple, tuple[DataSource, ...]] = field(default_factory=dict)  # by (source, seeds)


def plan(experiment: Experiment, rerun_stale: bool = False) -> Plan:
    """Sort the cells of a grid; with `rerun_stale`, stale cells are to be run.

    Raises UserError if an algorithm cannot learn from its data.
    """
    plan, cells = Plan(), experiment.cells()
    not_found: dict[str, DatasetNotFound] = {}
    for cell in {(cell.source, cell.online, cell.seeds): cell for cell in cells}.values():
        try:
            plan.sources[cell.source, cell.seeds] = cell.sources()
        except DatasetNotFound as error:
            not_found[cell.source] = error  # the error of the highest seeds names the full command
    exported = results.read_exported(experiment.name)
    runs = exported.runs.to_dict("records") if exported else []
    exported_runs = {(run["dataset"], run["algorithm"], run["seed"]): run for run in runs}
    for cell in cells:
        sources = plan.sources.get((cell.source, cell.seeds), ())
        try:
            cell_state = state(cell, [source.sha256 for source in sources], exported_runs)
        except DamagedRun:
            cell_state = "missing"  # its job fails with the reason, and the others are run
        if cell_state == "finished":
            plan.finished.append(cell)
        elif cell_state == "stale" and not rerun_stale:
            plan.stale.append(cell)
        else:
            plan.todo.append(cell)
            if sources:
                check_compatible(cell.config, sources[0])
            else:
                plan.missing[cell.source] = not_found[cell.source]
    return plan


def state(
    cell: Cell, dataset_sha256s: list[str | None], exported_runs: dict[tuple, dict] | None = None
) -> str:
    """finished | stale | missing, by the run's folder, or by the exported run if it has no folder.

    A finished run with fewer steps than the cell is missing if it can be continued. Raises DamagedRun if
    run.json contradicts itself.

    dataset_sha256s  one per seed; None for an environment. Empty if the data is not on this machine: then the
                     hashes are not compared
    """
    states = set()
    for seed, dataset_sha256 in zip(cell.seeds, dataset_sha256s or [None] * len(cell.seeds), strict=True):
        run = read_description(cell.folder(seed)) or {}
        if run.get("status") in FINISHED:
            if not _matches(run, cell, dataset_sha256):
                states.add("stale")
                continue
            _check_consistent(run, cell, cell.folder(seed))
            states.add("finished" if _steps(run) == cell.protocol.steps else _state_if_continued(run, cell))
        else:
            run = (exported_runs or {}).get((cell.dataset, cell.algorithm, seed), {})
            same = run and _matches(run, cell, dataset_sha256) and _steps(run) == cell.protocol.steps
            states.add("finished" if same else "missing")
    return next(state for state in ("missing", "stale", "finished") if state in states)


def _matches(run: dict[str, Any], cell: Cell, dataset_sha256: str | None) -> bool:
    return run["config_hash"] == cell.config_hash and dataset_sha256 in (None, run["dataset_sha256"])


def _steps(run: dict[str, Any]) -> int:
    return run["protocol"]["steps"]


def _state_if_continued(run: dict[str, Any], cell: Cell) -> str:
    """A shorter run is continued only if that gives the numbers of one long run."""
    shorter = _steps(run) < cell.protocol.steps
    resumable = last_checkpoint(cell) and run["versions"] == versions.versions()
    return "missing" if shorter and resumable else "stale"


def _check_consistent(run: dict[str, Any], cell: Cell, folder: Path) -> None:
    """Raise DamagedRun unless a run's settings are those that its hash was computed from."""
    try:
        config = from_dict(type(cell.config), run["config"])
        same = settings_hash(config, Protocol(**run["protocol"]), run["stack"]) == run["config_hash"]
    except (UserError, TypeError, ValueError, AttributeError) as error:
        raise DamagedRun(folder, f"the settings in run.json are not valid: {error}") from error
    if not same:
        raise DamagedRun(folder, "the settings in run.json do not have its 'config_hash'")


def is_finished(cell: Cell) -> bool:
    """Whether a cell is finished with the data that is on this machine."""
    try:
        return state(cell, [source.sha256 for source in cell.sources()]) == "finished"
    except (DatasetNotFound, DamagedRun):
        return False


def is_diverged(cell: Cell) -> bool:
    """Whether every run of a cell diverged, by the run folders."""
    return all((read_description(folder) or {}).get("status") == "diverged" for folder in cell.folders())


@dataclass(frozen=True)
class Preview:
    """What running an experiment would do, and how long it would take."""

    plan: Plan
    workers: int
    seconds: dict[Cell, float | None]  # of each cell to be run; None if no rate is known

    @property
    def total(self) -> float:
        return sum(value for value in self.seconds.values() if value is not None)

    @property
    def wall(self) -> float:
        """The time until the last worker is finished, with the longest cells first."""
        ends = [0.0] * max(1, min(self.workers, len(self.seconds)))
        for value in sorted((value or 0.0 for value in self.seconds.values()), reverse=True):
            ends[ends.index(min(ends))] += value
        return max(ends)

    def text(self) -> str:
        lines = [self._line(cell) for cell in self.plan.todo]
        lines += [f"finished  {cell}" for cell in self.plan.finished]
        lines += [
            f"stale     {cell}: finished with other settings or data; --rerun-stale runs it again"
            for cell in self.plan.stale
        ]
        lines += [f"missing   {error}" for error in self.plan.missing.values()]
        return "\n".join([*lines, self._summary()])

    def _line(self, cell: Cell) -> str:
        step = last_checkpoint(cell)
        resumed = f", from step {step:,}" if step else ""
        return f"to run    {cell}: {duration(self.seconds[cell])}{resumed}"

    def _summary(self) -> str:
        count = len(self.plan.todo)
        text = f"{count} to run, {len(self.plan.finished)} finished, {len(self.plan.stale)} stale"
        if not count:
            return text
        unknown = sum(value is None for value in self.seconds.values())
        if unknown == count:
            return f"{text}; no time estimate: the data is missing"
        text += f"; {duration(self.total)} of work, {duration(self.wall)} on {self.workers} "
        text += "worker" if self.workers == 1 else "workers"
        return text + (f", without {unknown} that have no estimate" if unknown else "")


def preview(experiment: Experiment, workers: int, rerun_stale: bool = False, measure: bool = True) -> Preview:
    """A plan with times; with `measure`, rates that no earlier run gives are measured now."""
    experiment_plan, rates = plan(experiment, rerun_stale), known_rates()
    if measure:
        rates = rates.with_measured(experiment_plan.todo, experiment_plan.sources)
    seconds = {cell: _seconds(cell, rates) for cell in experiment_plan.todo}
    return Preview(experiment_plan, workers, seconds)


def _seconds(cell: Cell, rates: Rates) -> float | None:
    return rates.seconds(cell, last_checkpoint(cell))
