"""Slurm array jobs, by submitit: a job that Slurm stops is queued again and resumes from its checkpoint.

On a machine without Slurm, submitit runs the same jobs as local processes.
"""

import os
import shutil
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import submitit

from offline_gntd.errors import UserError
from offline_gntd.experiments.definitions import Cell
from offline_gntd.experiments.job import JobResult, Options, Progress, at_most_every, lost_job, run_job
from offline_gntd.experiments.record import DamagedRun, last_evaluation
from offline_gntd.files import home, remove

DEFAULTS = {"name": "offline-gntd", "timeout_min": 240, "mem_gb": 4, "cpus_per_task": 1}  # of each job
REQUEUES = 1000  # how often a job may reach its time limit
STOP_SECONDS = 2.0  # between two checks for the stop file


class Slurm:
    def __init__(self, workers: int | None, options: Options, parameters: dict[str, str] | None = None):
        self.options = options
        started = time.strftime("%Y%m%d-%H%M%S")
        self.folder = home().resolve() / "results" / f".jobs-{started}-{os.getpid()}"
        self.on_slurm = shutil.which("sbatch") is not None
        self.job_limit = workers or (256 if self.on_slurm else os.cpu_count() or 1)
        self.parameters = {f"slurm_{name}": _number(value) for name, value in (parameters or {}).items()}
        self.waiting: deque[Cell] = deque()
        self.jobs: dict[submitit.Job, Cell] = {}
        self.reported: dict[Cell, int] = {}  # the last reported step
        self.stopping = False

    def __enter__(self) -> "Slurm":
        self.executor = submitit.AutoExecutor(
            self.folder, "slurm" if self.on_slurm else "local", slurm_max_num_timeout=REQUEUES
        )
        try:
            self.executor.update_parameters(
                **DEFAULTS,
                slurm_array_parallelism=self.job_limit,
                slurm_additional_parameters={"requeue": True},  # also if its node is lost
            )
            self.executor.update_parameters(**self.parameters)
        except (NameError, ValueError, TypeError, AssertionError) as error:
            remove(self.folder)
            raise UserError(f"--slurm: {str(error).splitlines()[0]}") from error
        return self

    def __exit__(self, *exception: Any) -> None:
        for job in self.jobs:
            job.cancel(check=False)
        if not self.jobs:
            remove(self.folder)

    def submit(self, cells: Sequence[Cell]) -> None:
        self.waiting.extend(cells)
        # Slurm queues jobs that it cannot run yet; local processes would all start at once
        count = (
            len(self.waiting) if self.on_slurm else min(len(self.waiting), self.job_limit - len(self.jobs))
        )
        batch = [self.waiting.popleft() for _ in range(count)]
        if batch:
            job = Job(self.options, home().resolve(), self._stop_file)
            self.jobs |= zip(self.executor.map_array(job, batch), batch, strict=True)

    def poll(self, seconds: float) -> Iterator[Progress | JobResult]:
        time.sleep(seconds)
        while self.stopping and self.waiting:
            yield JobResult(self.waiting.popleft(), "stopped")
        for job, cell in list(self.jobs.items()):
            yield from self._progress(cell)
            if self.stopping and self.on_slurm and job.state == "PENDING":
                job.cancel(check=False)
                del self.jobs[job]
                yield JobResult(cell, "stopped")
            elif job.done():
                del self.jobs[job]
                yield _result(job, cell)
        if not self.stopping:
            self.submit([])

    def stop(self) -> None:
        self.stopping = True
        self._stop_file.touch()

    @property
    def _stop_file(self) -> Path:
        return self.folder / "stop"

    def _progress(self, cell: Cell) -> Iterator[Progress]:
        try:
            row = last_evaluation(cell.folder(cell.seeds[0]))
        except DamagedRun:
            return  # the run rewrites the file at its next evaluation
        if row and row["step"] != self.reported.get(cell):
            self.reported[cell] = int(row["step"])
            yield Progress(cell, int(row["step"]), row["score"])


@dataclass
class Job:
    """The function that submitit calls, and calls again after a time limit or a preemption."""

    options: Options
    home: Path
    stop_file: Path

    def __call__(self, cell: Cell) -> JobResult:
        os.environ["OFFLINE_GNTD_HOME"] = str(self.home)
        if self.stop_file.exists():
            return JobResult(cell, "stopped")
        return run_job(cell, self.options, stopping=at_most_every(STOP_SECONDS, self.stop_file.exists))

    def checkpoint(self, cell: Cell) -> submitit.helpers.DelayedSubmission:
        return submitit.helpers.DelayedSubmission(self, cell)


def _result(job: submitit.Job, cell: Cell) -> JobResult:
    try:
        return job.result()
    except Exception as error:
        return lost_job(
            cell, f"its job ended as {job.state}", f"job {job.job_id}: {job.stderr() or ''}{error}\n"
        )


def _number(text: str) -> int | str:
    return int(text) if text.isdecimal() else text
