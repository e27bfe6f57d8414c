"""How far an experiment is, from its files alone: whoever runs it, on whatever machine."""

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import Any

from offline_gntd.errors import UserError
from offline_gntd.experiments import definitions, lock, planning, rates, results
from offline_gntd.experiments.definitions import Cell
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
    steps: int = 0  # in all
    score: float | None = None
    updates_per_second: float | None = None  # evaluations included
    seconds_left: float | None = None
    host: str | None = None
    silent_seconds: float = 0.0  # since its owner's last sign of life
    error: str | None = None
    log: str | None = None
    damaged: bool = False  # its files cannot be read

    def text(self) -> str:
        words = [f"{self.state:<9}{self.dataset} {self.algorithm} seed {self.seed}"]
        if self.step and self.state != "done":
            words.append(f"{self.step:,} of {self.steps:,}")
        if self.score is not None:
            words.append(f"score {self.score:.1f}")
        if self.state == "running":
            words += [f"{self.updates_per_second:.0f} updates/s"] if self.updates_per_second else []
            words += [f"{duration(self.seconds_left)} left", f"on {self.host}"]
            words += (
                [f"silent for {duration(self.silent_seconds)}"] if self.silent_seconds > lock.PATIENCE else []
            )
        if self.error:
            words += [self.error, f"see {self.log}"]
        return ", ".join(words)


@dataclass(frozen=True)
class Status:
    experiment: str
    runs: tuple[RunStatus, ...]
    seconds_left: (
        float | None
    )  # at the present number of runs at a time; None when nothing runs or no rate is known

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
    shipped = results.read_exported(name)
    shipped_runs = shipped.runs.to_dict("records") if shipped else []
    by_key = {(run["dataset"], run["algorithm"], run["seed"]): run for run in shipped_runs}
    estimates = rates.measured()
    runs: list[RunStatus] = []
    left: list[float | None] = []  # per cell that is not at its end
    at_once = 0
    for cell in experiment.cells():
        found = [_read(cell, seed, by_key, estimates, verify) for seed in cell.seeds]
        runs += found
        states = {run.state for run in found}
        at_once += "running" in states
        if states & {"running", "waiting", "failed"}:
            left.append(
                max((run.seconds_left for run in found if run.seconds_left is not None), default=None)
            )
    known_left = [seconds for seconds in left if seconds is not None]
    all_known = at_once and len(known_left) == len(left)
    return Status(name, tuple(runs), sum(known_left) / at_once if all_known else None)


def _read(
    cell: Cell, seed: int, shipped: dict[tuple, dict], estimates: rates.Rates, verify: bool
) -> RunStatus:
    folder = cell.folder(seed)
    key = (cell.dataset, cell.algorithm, seed)
    run = RunStatus(*key, "waiting", steps=cell.protocol.steps)
    try:
        about, last = read_description(folder) or {}, last_evaluation(folder)
        if verify:
            results.verify(folder)
    except DamagedRun as error:
        log = str(folder / LOG)
        return dataclasses.replace(run, state="failed", error=str(error), log=log, damaged=True)
    owner = lock.owner(folder)
    if not about and not owner and key in shipped:
        about = shipped[key]
    if last:
        seconds = last["training_seconds"] + last["evaluation_seconds"]
        rate = last["step"] / seconds if seconds > 0 else None
        run = dataclasses.replace(run, score=last["score"], updates_per_second=rate)
    if about.get("status") in FINISHED and not owner:
        state = "stale" if _is_of_other_settings(cell, about) else about["status"]
        return dataclasses.replace(run, state=state, step=about.get("steps", 0))
    step = planning.reached(cell)
    if owner and last:
        step = max(step, int(last["step"]))
    run = dataclasses.replace(run, step=step, seconds_left=estimates.seconds(cell, step))
    if owner:
        silent = owner["silent_seconds"]
        return dataclasses.replace(run, state="running", host=owner.get("host"), silent_seconds=silent)
    if about.get("status") == "failed":
        return dataclasses.replace(run, state="failed", error=about.get("error"), log=about.get("log"))
    return run


def _is_of_other_settings(cell: Cell, about: dict[str, Any]) -> bool:
    try:
        return about["config_hash"] != cell.config_hash
    except UserError:
        return False  # an algorithm that is not known here, of a file that was imported
