"""Which cells of a grid are finished, which are stale, and which are to be run: by their hashes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offline_gntd.configuration import from_dict
from offline_gntd.datasets import DatasetNotFound
from offline_gntd.errors import UserError
from offline_gntd.experiments import provenance, results
from offline_gntd.experiments.definitions import Cell, Experiment, Protocol, settings_hash
from offline_gntd.experiments.record import FINISHED, DamagedRun, Record, read_description
from offline_gntd.experiments.sources import Source, check_compatible


@dataclass
class Plan:
    finished: list[Cell] = field(default_factory=list)
    stale: list[Cell] = field(default_factory=list)  # finished under another protocol, config or dataset
    todo: list[Cell] = field(default_factory=list)
    missing: dict[str, DatasetNotFound] = field(
        default_factory=dict
    )  # data that `todo` needs, and how to get it


def plan(experiment: Experiment, rerun_stale: bool = False) -> Plan:
    """Sort a grid's cells; with `rerun_stale`, what is stale is to be run. Unfit data is said here."""
    made = Plan()
    cells, sources, absent = experiment.cells(), {}, {}
    for cell in {(cell.source, cell.online, cell.seeds): cell for cell in cells}.values():
        try:
            sources[cell.source, cell.seeds] = cell.sources()
        except DatasetNotFound as error:
            absent[cell.source] = error  # of the highest seeds
    exported = results.read_exported(experiment.name)
    runs = exported.runs.to_dict("records") if exported else []
    exported_runs = {(run["dataset"], run["algorithm"], run["seed"]): run for run in runs}
    for cell in cells:
        here: tuple[Source, ...] = sources.get((cell.source, cell.seeds), ())
        try:
            found = state(cell, [source.sha256 for source in here], exported_runs)
        except DamagedRun:
            found = "missing"  # its job fails with the reason, and the others are run
        if found == "finished":
            made.finished.append(cell)
        elif found == "stale" and not rerun_stale:
            made.stale.append(cell)
        else:
            made.todo.append(cell)
            if here:
                check_compatible(cell.config, here[0])
            else:
                made.missing[cell.source] = absent[cell.source]
    return made


def state(
    cell: Cell, dataset_sha256s: list[str | None], exported_runs: dict[tuple, dict] | None = None
) -> str:
    """finished | stale | missing: by the run's folder, else by the exported run.

    A finished run that is shorter than asked for is missing if it can be continued. Raises DamagedRun if
    run.json contradicts itself.

    dataset_sha256s  one per seed; None where no data is needed, and empty where the data is not here: then
                     the hashes are not compared
    """
    states = set()
    for seed, dataset_sha256 in zip(cell.seeds, dataset_sha256s or [None] * len(cell.seeds), strict=True):
        local = read_description(cell.folder(seed)) or {}
        if local.get("status") in FINISHED:
            if _matches(local, cell, dataset_sha256):
                _check_consistent(local, cell, cell.folder(seed))
                states.add("finished" if _steps(local) == cell.protocol.steps else _if_continued(local, cell))
            else:
                states.add("stale")
        else:
            run = (exported_runs or {}).get((cell.dataset, cell.algorithm, seed))
            same = run and _matches(run, cell, dataset_sha256) and _steps(run) == cell.protocol.steps
            states.add("finished" if same else "missing")
    return next(found for found in ("missing", "stale", "finished") if found in states)


def _if_continued(run: dict[str, Any], cell: Cell) -> str:
    """The state of a finished run of another length: to be continued only if that keeps its numbers."""
    shorter = _steps(run) < cell.protocol.steps
    return "missing" if shorter and reached(cell) and run["versions"] == provenance.versions() else "stale"


def _steps(run: dict[str, Any]) -> int:
    return run["protocol"]["steps"]


def finished(cell: Cell) -> bool:
    """Whether a cell's runs are at their end, with the data as it is now."""
    try:
        return state(cell, [source.sha256 for source in cell.sources()]) == "finished"
    except (DatasetNotFound, DamagedRun):
        return False


def diverged(cell: Cell) -> bool:
    """Whether every run of a cell diverged, by the run folders."""
    return all((read_description(folder) or {}).get("status") == "diverged" for folder in cell.folders())


def _check_consistent(run: dict[str, Any], cell: Cell, folder: Path) -> None:
    """Raise DamagedRun unless a run's settings are those that its hash was computed from."""
    try:
        config = from_dict(type(cell.config), run["config"])
        same = settings_hash(config, Protocol(**run["protocol"]), run["stack"]) == run["config_hash"]
    except (UserError, TypeError, ValueError, AttributeError) as error:
        raise DamagedRun(folder, f"the settings in run.json are not valid: {error}") from error
    if not same:
        raise DamagedRun(folder, "the settings in run.json do not have its 'config_hash'")


def reached(cell: Cell) -> int:
    """The step a cell would go on from."""
    return max(set.intersection(*(Record(folder).checkpoint_steps() for folder in cell.folders())), default=0)


def _matches(run: dict[str, Any], cell: Cell, dataset_sha256: str | None) -> bool:
    return run["config_hash"] == cell.config_hash and dataset_sha256 in (None, run["dataset_sha256"])
