"""Which cells of a grid are finished, stale or to be run, and how long they take.

The time comes from the most similar runs in results/ or, before there are any, from a short measurement.
"""

import contextlib
import dataclasses
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from offline_gntd import extensions, processes, versions
from offline_gntd.algorithms import CATALOGUE
from offline_gntd.collection import online
from offline_gntd.configuration import from_dict
from offline_gntd.datasets import DatasetNotFound
from offline_gntd.errors import UserError
from offline_gntd.evaluation import Evaluator
from offline_gntd.experiments import results
from offline_gntd.experiments.definitions import Cell, Experiment, Protocol, settings_hash
from offline_gntd.experiments.record import FINISHED, DamagedRun, Record, last_evaluation, read_description
from offline_gntd.experiments.training import DataSource, Training, check_compatible
from offline_gntd.files import duration, home

MEASURED_UPDATES = 60  # at most


@dataclass
class Plan:
    """The cells of a grid by their state."""

    finished: list[Cell] = field(default_factory=list)
    stale: list[Cell] = field(default_factory=list)  # finished with other settings, data or steps
    todo: list[Cell] = field(default_factory=list)
    missing: dict[str, DatasetNotFound] = field(default_factory=dict)  # datasets that `todo` needs
    sources: dict[tuple, tuple[DataSource, ...]] = field(default_factory=dict)  # by (source, seeds)


def plan(experiment: Experiment, rerun_stale: bool = False) -> Plan:
    """Sort the cells of a grid by their state; with `rerun_stale`, stale cells go to `todo`.

    Raises UserError if an algorithm cannot learn from its data.
    """
    result, cells = Plan(), experiment.cells()
    not_found: dict[str, DatasetNotFound] = {}
    for cell in {(cell.source, cell.online, cell.seeds): cell for cell in cells}.values():
        try:
            result.sources[cell.source, cell.seeds] = cell.sources()
        except DatasetNotFound as error:
            not_found[cell.source] = error  # the error of the highest seeds names the full command
    exported = results.exported_runs(experiment.name)
    for cell in cells:
        sources = result.sources.get((cell.source, cell.seeds), ())
        try:
            cell_state = state(cell, [source.sha256 for source in sources], exported)
        except DamagedRun:
            cell_state = "missing"  # its job fails with the reason; the other cells are run
        if cell_state == "finished":
            result.finished.append(cell)
        elif cell_state == "stale" and not rerun_stale:
            result.stale.append(cell)
        else:
            result.todo.append(cell)
            if sources:
                check_compatible(cell.config, sources[0])
            else:
                result.missing[cell.source] = not_found[cell.source]
    return result


def state(cell: Cell, dataset_sha256s: list[str | None], exported: dict[tuple, dict] | None = None) -> str:
    """finished | stale | missing, by the run folders, or by the exported runs where there is no folder.

    A finished run with fewer steps than the cell is missing if it can be continued; a run that has got
    further than the cell's last step is stale. Raises DamagedRun if run.json contradicts itself.

    dataset_sha256s  one per seed; None for an environment. Empty if the data is not on this machine: then the
                     hashes are not compared
    exported         runs by (dataset, algorithm, seed)
    """
    states = set()
    for seed, dataset_sha256 in zip(cell.seeds, dataset_sha256s or [None] * len(cell.seeds), strict=True):
        run = read_description(cell.folder(seed)) or {}
        if run.get("status") in FINISHED:
            if not _matches(run, cell, dataset_sha256):
                states.add("stale")
                continue
            _check_consistent(run, cell, seed)
            unfinished = "missing" if continues(run, cell) else "stale"
            states.add("finished" if _steps(run) == cell.protocol.steps else unfinished)
        elif max(Record(cell.folder(seed)).checkpoint_steps(), default=0) > cell.protocol.steps:
            states.add("stale")  # stopped in a longer run, which a shorter one would replace
        else:
            run = (exported or {}).get((cell.dataset, cell.algorithm, seed), {})
            same = run and _matches(run, cell, dataset_sha256) and _steps(run) == cell.protocol.steps
            states.add("finished" if same else "missing")
    return next(state for state in ("missing", "stale", "finished") if state in states)


def with_changed_files(cells: Sequence[Cell]) -> list[Cell]:
    """The cells of user algorithms that finished with another content of the imported file."""
    hashes = extensions.file_hashes()
    changed = []
    for cell in cells:
        files = (read_description(cell.folders()[0]) or {}).get("versions", {})
        differs = any(files.get(path, sha256) != sha256 for path, sha256 in hashes.items())
        if differs and cell.algorithm.partition("@")[0] not in CATALOGUE:
            changed.append(cell)
    return changed


def _matches(run: dict[str, Any], cell: Cell, dataset_sha256: str | None) -> bool:
    return run["config_hash"] == cell.config_hash and dataset_sha256 in (None, run["dataset_sha256"])


def _steps(run: dict[str, Any]) -> int:
    return run["protocol"]["steps"]


def continues(run: dict[str, Any], cell: Cell) -> bool:
    """Whether a finished run is shorter than the cell and continuing it gives the numbers of one long run."""
    resumable = last_checkpoint(cell) > 0 and run["versions"] == versions.versions()
    return resumable and _steps(run) < cell.protocol.steps and run["config_hash"] == cell.config_hash


def _check_consistent(run: dict[str, Any], cell: Cell, seed: int) -> None:
    """Raise DamagedRun unless a run's settings are those that its hash was computed from."""
    try:
        config = from_dict(type(cell.config), run["config"])
        same = settings_hash(config, Protocol(**run["protocol"]), run["stack"]) == run["config_hash"]
    except (UserError, TypeError, ValueError, AttributeError) as error:
        raise DamagedRun(cell.folder(seed), f"the settings in run.json are not valid: {error}") from error
    if not same:
        raise DamagedRun(cell.folder(seed), "the settings in run.json do not have its 'config_hash'")


def is_finished(cell: Cell) -> bool:
    """Whether a cell is finished with the data that is on this machine."""
    try:
        return state(cell, [source.sha256 for source in cell.sources()]) == "finished"
    except (DatasetNotFound, DamagedRun):
        return False


def is_diverged(cell: Cell) -> bool:
    """Whether every run of a cell diverged, by the run folders."""
    return all((read_description(folder) or {}).get("status") == "diverged" for folder in cell.folders())


def last_checkpoint(cell: Cell) -> int:
    """The step from which a cell would resume; 0 without a checkpoint of all its seeds."""
    steps = set.intersection(*(Record(folder).checkpoint_steps() for folder in cell.folders()))
    return max((step for step in steps if step <= cell.protocol.steps), default=0)


# ---- time estimates ----


@dataclass(frozen=True)
class Rate:
    """The time of one process, which trains all seeds of a cell."""

    seconds_per_update: float
    seconds_per_episode: float  # one episode of every seed

    def seconds(self, cell: Cell, start: int = 0) -> float:
        """The time from step `start` to the end of a cell."""
        protocol = cell.protocol
        evaluations = -(-protocol.steps // protocol.evaluate_every) - start // protocol.evaluate_every
        episodes = evaluations * protocol.evaluate_episodes
        return (protocol.steps - start) * self.seconds_per_update + episodes * self.seconds_per_episode


class Rates:
    """Rates by the keys of `_keys`: algorithm, dataset and seeds per process."""

    def __init__(self, rates: dict[tuple, list[Rate]]):
        self.rates = rates

    def rate(self, cell: Cell) -> Rate | None:
        """The median rate of the most similar runs; None without such runs."""
        for key in _keys(cell.algorithm, cell.dataset, len(cell.seeds)):
            if rates := self.rates.get(key):
                return Rate(
                    statistics.median(rate.seconds_per_update for rate in rates),
                    statistics.median(rate.seconds_per_episode for rate in rates),
                )
        return None

    def seconds(self, cell: Cell, start: int = 0) -> float | None:
        rate = self.rate(cell)
        return rate.seconds(cell, start) if rate else None

    def with_measured(self, plan: Plan) -> "Rates":
        """These rates and, for the cells without one, rates measured now, one per algorithm and task."""
        rates, measured = dict(self.rates), {}
        for cell in plan.todo:
            sources = plan.sources.get((cell.source, cell.seeds))
            if not sources or self.rate(cell):
                continue
            key = (cell.algorithm, sources[0].task.env_id, len(cell.seeds))
            if key not in measured:
                measured[key] = measure_rate(cell, sources)
            if rate := measured[key]:
                rates[cell.algorithm, cell.dataset, len(cell.seeds)] = [rate]
        return Rates(rates)


def _keys(algorithm: str, dataset: str, seeds: int) -> list[tuple]:
    """Keys from the most similar runs to the least. A variant without runs has the rate of its preset in the
    same precision."""
    name, *changes = algorithm.split("@")
    preset = "@".join([name, *(change for change in changes if change.startswith("precision="))])
    return [(algorithm, dataset, seeds), (algorithm, seeds), (preset, dataset, seeds), (preset, seeds)]


def measure_rate(cell: Cell, sources: Sequence[DataSource]) -> Rate | None:
    """Train for at most two seconds and evaluate one episode; None if that fails, as the run itself would."""
    processes.prepare()
    config = cell.config
    if hasattr(config, "random_steps"):  # a random step has no update
        config = dataclasses.replace(config, random_steps=0)
    try:
        with (
            contextlib.closing(Training(config, sources, cell.seeds)) as training,
            contextlib.closing(Evaluator(training.task, cell.seeds, episodes=1)) as evaluator,
        ):
            per_second = online.measure_rate(lambda: training.train(training.step + 1), MEASURED_UPDATES)
            start = time.perf_counter()
            evaluator.returns(training.act, 0)
            return Rate(1 / per_second, time.perf_counter() - start)
    except Exception:
        return None


def known_rates() -> Rates:
    """The rates of all run folders and all exported results."""
    runs: list[dict[str, Any]] = []
    folder = home() / "results"
    for path in folder.glob("*/*/*/seed-*/run.json"):
        with contextlib.suppress(UserError):  # a damaged run has no rate
            run, last = read_description(path.parent) or {}, last_evaluation(path.parent)
            if "config_hash" in run:
                # an unfinished run has the steps and times of its last evaluation
                runs.append(run | ({"steps": last["step"]} | last if last else {}))
    for path in folder.glob("*.runs.csv"):
        runs += results.exported_runs(path.name.removesuffix(".runs.csv")).values()
    rates: dict[tuple, list[Rate]] = defaultdict(list)
    for run in runs:
        if run.get("steps") and run.get("training_seconds"):
            for key in _keys(run["algorithm"], run["dataset"], run["stack"]):
                rates[key].append(_rate(run))
    return Rates(rates)


def _rate(run: dict[str, Any]) -> Rate:
    protocol = run["protocol"]
    episodes = -(-run["steps"] // protocol["evaluate_every"]) * protocol["evaluate_episodes"]
    return Rate(run["training_seconds"] / run["steps"], run["evaluation_seconds"] / episodes)


@dataclass(frozen=True)
class Preview:
    """What running an experiment would do, and how long it would take."""

    plan: Plan
    workers: int
    seconds: dict[Cell, float | None]  # per cell in `todo`; None if no rate is known

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
        lines = []
        for cell in self.plan.todo:
            step, seconds = last_checkpoint(cell), self.seconds[cell]
            resumed = f", from step {step:,}" if step else ""
            lines.append(
                f"to run    {cell}: {'no estimate' if seconds is None else duration(seconds)}{resumed}"
            )
        lines += [f"finished  {cell}" for cell in self.plan.finished]
        lines += [
            f"stale     {cell}: finished with other settings, data or steps; --rerun-stale runs it again"
            for cell in self.plan.stale
        ]
        lines += [f"missing   {error}" for error in self.plan.missing.values()]
        return "\n".join([*lines, self._summary()])

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
        rates = rates.with_measured(experiment_plan)
    seconds = {cell: rates.seconds(cell, last_checkpoint(cell)) for cell in experiment_plan.todo}
    return Preview(experiment_plan, workers, seconds)
