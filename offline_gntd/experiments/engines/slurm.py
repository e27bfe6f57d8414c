"""Array jobs of Slurm, by submitit: a job that Slurm stops is queued again and goes on from its checkpoint.

Where there is no Slurm, submitit runs the same jobs as processes of this machine.
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
from offline_gntd.experiments.job import Ending, Options, Progress, attempt, died
from offline_gntd.experiments.record import DamagedRun, last_evaluation
from offline_gntd.files import home, remove

DEFAULTS = {"name": "offline-gntd", "timeout_min": 240, "mem_gb": 4, "cpus_per_task": 1}  # of one job
REQUEUES = 1000  # times a job may run into its time limit
STOP_SECONDS = 2.0  # between two looks at whether to stop


class Slurm:
    def __init__(self, workers: int | None, options: Options, parameters: dict[str, str] | None = None):
        self.options = options
        started = time.strftime("%Y%m%d-%H%M%S")
        self.folder = home().resolve() / "results" / f".jobs-{started}-{os.getpid()}"
        self.on_slurm = shutil.which("sbatch") is not None
        self.at_once = workers or (256 if self.on_slurm else os.cpu_count() or 1)
        given = parameters or {}
        self.parameters = {f"slurm_{name}": _number(value) for name, value in given.items()}
        self.waiting: deque[Cell] = deque()
        self.jobs: dict[submitit.Job, Cell] = {}
        self.seen: dict[Cell, int] = {}  # the last step told of
        self.stopping = False

    def __enter__(self) -> "Slurm":
        self.executor = submitit.AutoExecutor(
            self.folder, "slurm" if self.on_slurm else "local", slurm_max_num_timeout=REQUEUES
        )
        try:
            self.executor.update_parameters(
                **DEFAULTS,
                slurm_array_parallelism=self.at_once,
                slurm_additional_parameters={"requeue": True},  # also when its node is lost
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
        # Slurm queues what it cannot run yet; processes would all start at once
        count = len(self.waiting) if self.on_slurm else min(len(self.waiting), self.at_once - len(self.jobs))
        batch = [self.waiting.popleft() for _ in range(count)]
        if batch:
            job = Job(self.options, home().resolve(), self._stop_file)
            self.jobs |= zip(self.executor.map_array(job, batch), batch, strict=True)

    def poll(self, seconds: float) -> Iterator[Progress | Ending]:
        time.sleep(seconds)
        while self.stopping and self.waiting:
            yield Ending(self.waiting.popleft(), "stopped")
        for job, cell in list(self.jobs.items()):
            yield from self._progress(cell)
            if self.stopping and self.on_slurm and job.state == "PENDING":
                job.cancel(check=False)
                del self.jobs[job]
                yield Ending(cell, "stopped")
            elif job.done():
                del self.jobs[job]
                yield _ending(job, cell)
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
        if row and row["step"] != self.seen.get(cell):
            self.seen[cell] = int(row["step"])
            yield Progress(cell, int(row["step"]), row["score"])


@dataclass
class Job:
    """What submitit calls, and calls again when the job was stopped by its time limit or by a greater one."""

    options: Options
    home: Path
    stop_file: Path
    looked: float = 0.0

    def __call__(self, cell: Cell) -> Ending:
        os.environ["OFFLINE_GNTD_HOME"] = str(self.home)
        if self.stop_file.exists():
            return Ending(cell, "stopped")
        return attempt(cell, self.options, stopping=self._stopping)

    def checkpoint(self, cell: Cell) -> submitit.helpers.DelayedSubmission:
        return submitit.helpers.DelayedSubmission(Job(self.options, self.home, self.stop_file), cell)

    def _stopping(self) -> bool:
        if time.monotonic() - self.looked < STOP_SECONDS:
            return False
        self.looked = time.monotonic()
        return self.stop_file.exists()


def _ending(job: submitit.Job, cell: Cell) -> Ending:
    try:
        return job.result()
    except Exception as error:
        return died(cell, f"its job ended as {job.state}", f"job {job.job_id}: {job.stderr() or ''}{error}\n")


def _number(text: str) -> int | str:
    return int(text) if text.isdecimal() else text
