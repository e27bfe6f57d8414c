"""Which cells of a grid are finished, which are stale, and which are to be run: by their hashes."""

from dataclasses import dataclass, field
from typing import Any

from offline_gntd.datasets import Missing
from offline_gntd.experiments import compatibility, results
from offline_gntd.experiments.definitions import Cell, Experiment
from offline_gntd.experiments.record import FINISHED, Record, read_description
from offline_gntd.experiments.sources import Source, sources_of


@dataclass
class Plan:
    finished: list[Cell] = field(default_factory=list)
    stale: list[Cell] = field(default_factory=list)  # finished under another protocol, config or dataset
    todo: list[Cell] = field(default_factory=list)
    missing: dict[str, Missing] = field(default_factory=dict)  # data that `todo` needs, and how to get it


def plan(experiment: Experiment, redo: bool = False) -> Plan:
    """Sort a grid's cells; with `redo`, what is stale is to be run. Unfit data is said here."""
    made = Plan()
    cells, sources, absent = experiment.cells(), {}, {}
    for cell in {(cell.source, cell.online, cell.seeds): cell for cell in cells}.values():
        try:
            sources[cell.source, cell.seeds] = sources_of(cell)
        except Missing as error:
            absent[cell.source] = error  # of the highest seeds
    shipped = results.read_shipped(experiment.name)
    runs = shipped.runs.to_dict("records") if shipped else []
    shipped_runs = {(run["dataset"], run["algorithm"], run["seed"]): run for run in runs}
    for cell in cells:
        here: tuple[Source, ...] = sources.get((cell.source, cell.seeds), ())
        found = state(cell, [source.sha256 for source in here], shipped_runs)
        if found == "finished":
            made.finished.append(cell)
        elif found == "stale" and not redo:
            made.stale.append(cell)
        else:
            made.todo.append(cell)
            if here:
                compatibility.check(cell, here[0])
            else:
                made.missing[cell.source] = absent[cell.source]
    return made


def state(
    cell: Cell, dataset_sha256s: list[str | None], shipped_runs: dict[tuple, dict] | None = None
) -> str:
    """finished | stale | missing: by the run's folder, else by what was shipped with the same hashes.

    dataset_sha256s  one per seed; None where no data is needed, and empty where the data is not here: then
                     the hashes are not compared
    """
    states = set()
    for seed, dataset_sha256 in zip(cell.seeds, dataset_sha256s or [None] * len(cell.seeds), strict=True):
        local = read_description(cell.folder(seed)) or {}
        if local.get("status") in FINISHED:
            states.add("finished" if _matches(local, cell, dataset_sha256) else "stale")
        else:
            shipped = (shipped_runs or {}).get((cell.dataset, cell.algorithm, seed))
            states.add("finished" if shipped and _matches(shipped, cell, dataset_sha256) else "missing")
    return next(found for found in ("missing", "stale", "finished") if found in states)


def finished(cell: Cell) -> bool:
    """Whether a cell's runs are at their end, with the data as it is now."""
    try:
        return state(cell, [source.sha256 for source in sources_of(cell)]) == "finished"
    except Missing:
        return False


def reached(cell: Cell) -> int:
    """The step a cell would go on from."""
    return max(set.intersection(*(Record(folder).checkpoint_steps() for folder in cell.folders())), default=0)


def _matches(run: dict[str, Any], cell: Cell, dataset_sha256: str | None) -> bool:
    return run["config_hash"] == cell.config_hash and dataset_sha256 in (None, run["dataset_sha256"])
