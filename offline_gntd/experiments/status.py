"""The progress of an experiment, read from its files alone, on whatever machine it runs."""

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import Any

from offline_gntd.errors import UserError
from offline_gntd.experiments import definitions, lock, results
from offline_gntd.experiments.definitions import Cell
from offline_gntd.experiments.estimates import Rates, known_rates, last_checkpoint
from offline_gntd.experiments.record import FINISHED, LOG, DamagedRun, last_evaluation, read_description
from offline_gntd.files import duration

STATES = ("done", "diverged", "running", "failed", "stale", "waiting")


@dataclass(frozen=True)
class RunStatus:
    dataset: str
    algorithm: str
    seed: int
    state: str
    step: int = 0  # of the last evaluation or checkpoint
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
            parts += [f"{self.updates_per_second:.0f} updates/s"] if self.updates_per_second else []
            parts += [f"{duration(self.seconds_left)} left", f"on {self.host}"]
            parts += (
                [f"silent for {duration(self.silent_seconds)}"] if self.silent_seconds > lock.TIMEOUT else []
            )
        if self.error:
            parts += [self.error, f"see {self.log}"]
        return ", ".join(parts)


@dataclass(frozen=True)
class Status:
    experiment: str
    runs: tuple[RunStatus, ...]
    seconds_left: (
        float | None
    )  # with as many runs at a time as now; None if nothing runs or a rate is unknown

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


def read(name: str, verify: bool = False) -> Status:
    """The state of every run; with `verify`, finished runs are compared with their checkpoints."""
    experiment = definitions.find(name)
    exported = results.read_exported(name)
    rows = exported.runs.to_dict("records") if exported else []
    exported_runs = {(run["dataset"], run["algorithm"], run["seed"]): run for run in rows}
    rates = known_rates()
    runs: list[RunStatus] = []
    left: list[float | None] = []  # per unfinished cell
    running = 0
    for cell in experiment.cells():
        cell_runs = [_read(cell, seed, exported_runs, rates, verify) for seed in cell.seeds]
        runs += cell_runs
        states = {run.state for run in cell_runs}
        running += "running" in states
        if states & {"running", "waiting", "failed"}:
            left.append(
                max((run.seconds_left for run in cell_runs if run.seconds_left is not None), default=None)
            )
    known_left = [seconds for seconds in left if seconds is not None]
    all_known = running and len(known_left) == len(left)
    return Status(name, tuple(runs), sum(known_left) / running if all_known else None)


def _read(cell: Cell, seed: int, exported_runs: dict[tuple, dict], rates: Rates, verify: bool) -> RunStatus:
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
    if not description and not owner and key in exported_runs:
        description = exported_runs[key]
    if last:
        seconds = last["training_seconds"] + last["evaluation_seconds"]
        rate = last["step"] / seconds if seconds > 0 else None
        run = dataclasses.replace(run, score=last["score"], updates_per_second=rate)
    if description.get("status") in FINISHED and not owner:
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
    try:
        return description["config_hash"] != cell.config_hash
    except UserError:
        return False  # an algorithm of a file that is not imported now
