"""A job is one attempt to run a cell; `Engine` is the interface of what runs jobs: local, Ray, Slurm.

A job locks the cell, reads its state again, and runs it from its last checkpoint. The JobResult says what
happened; errors are also recorded in the run's folder and in its log.
"""

import contextlib
import math
import os
import sys
import time
import traceback
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from offline_gntd import extensions
from offline_gntd.errors import UserError
from offline_gntd.experiments import planning
from offline_gntd.experiments.definitions import Cell
from offline_gntd.experiments.record import LOG, DamagedRun, Record, Trackers, read_description
from offline_gntd.experiments.run import Run, Stopped
from offline_gntd.experiments.training import DataSource
from offline_gntd.files import Unwritable, home
from offline_gntd.lock import Lock, Locked
from offline_gntd.processes import prepare

REPORT_SECONDS = 0.5  # between two progress reports of a run


@dataclass(frozen=True)
class Options:
    """How jobs are executed; no option changes a result."""

    device: str = "cpu"
    checkpoint_seconds: float | None = None  # None: a small share of the run's time
    trackers: tuple[str, ...] = ()  # tensorboard, wandb


@dataclass(frozen=True)
class Progress:
    cell: Cell
    step: int
    score: float | None = None  # if the run was evaluated at this step


@dataclass(frozen=True)
class JobResult:
    """What happened to a job; `kind` is one of

    done        the run is finished
    diverged    the run is finished, and all its seeds diverged
    finished    another process had finished it
    locked      another process is running it
    stopped     it was asked to stop
    failed      an error that another attempt may avoid
    lost        its process was killed, or its machine lost
    refused     an error that another attempt would repeat: a user's mistake, missing data, a damaged file
    unwritable  the disk is full or read-only, which affects all cells
    """

    cell: Cell
    kind: str
    error: str = ""


class Engine(typing.Protocol):
    """Runs a job for every submitted cell, in order, and reports its progress and its result.

    If a job's process dies, its result is `lost`. Engines do not retry.
    """

    def __enter__(self) -> "Engine": ...

    def __exit__(self, *exception: Any) -> None:
        """End all jobs."""

    def submit(self, cells: Sequence[Cell]) -> None: ...

    def poll(self, seconds: float) -> Iterable[Progress | JobResult]:
        """The events since the last call; waits for at most `seconds`."""

    def stop(self) -> None:
        """Ask every job to checkpoint and end; jobs that have not started end at once."""


class Repeatable(Exception):
    """An error of a user's algorithm before its first evaluation, which another attempt would repeat."""


def run_job(
    cell: Cell,
    options: Options,
    report: Callable[[Progress], None] = lambda progress: None,
    stopping: Callable[[], bool] = lambda: False,
    sources: tuple[DataSource, ...] | None = None,
) -> JobResult:
    """Run a cell under its lock, with its output in its log. Returns errors as a JobResult.

    report    called with the progress of the run
    stopping  called every few updates; if it returns True, the run checkpoints and ends
    sources   the cell's data, if it is not to be loaded from this machine's disk
    """
    try:
        with Lock(cell.folders()) as lock, _output_to_log(cell) as log:
            try:
                return _run(cell, options, report, stopping, sources, lock)
            except (Locked, Stopped, Unwritable):
                raise
            except Exception as error:
                traceback.print_exc(file=log)
                kind = "refused" if isinstance(error, UserError | Repeatable) else "failed"
                _record_failure(cell, _one_line(error))
                return JobResult(cell, kind, _one_line(error))
    except Locked:
        return JobResult(cell, "locked")
    except Stopped:
        return JobResult(cell, "stopped")
    except (Unwritable, OSError) as error:  # the log cannot be written either
        return JobResult(cell, "unwritable", str(error))


def _run(
    cell: Cell,
    options: Options,
    report: Callable[[Progress], None],
    stopping: Callable[[], bool],
    sources: tuple[DataSource, ...] | None,
    lock: Lock,
) -> JobResult:
    """The part of `run_job` that may raise."""
    prepare()
    sources = cell.sources() if sources is None else sources
    if planning.state(cell, [source.sha256 for source in sources]) == "finished":
        return JobResult(cell, "finished")
    run, trackers = Run(cell, options.device, sources), Trackers(options.trackers)
    last_report = -REPORT_SECONDS

    def report_progress(step: int, score: float | None) -> None:
        nonlocal last_report
        if score is not None:
            trackers.write(run.records)
        if score is not None or time.monotonic() - last_report > REPORT_SECONDS:
            last_report = time.monotonic()
            report(Progress(cell, step, score))

    def stop() -> bool:
        lock.check()
        return stopping()

    with contextlib.closing(trackers):
        try:
            run.execute(report_progress, stop, options.checkpoint_seconds)
        except (UserError, OSError, MemoryError, Locked, Stopped):
            raise
        except Exception as error:
            if not run.evaluated and _is_users(cell.config):
                raise Repeatable(_one_line(error)) from error
            raise
    return JobResult(cell, "diverged" if all(record.diverged for record in run.records) else "done")


def _is_users(config: Any) -> bool:
    """Whether an algorithm is defined in a file that the user imported."""
    source = getattr(sys.modules.get(type(config).__module__), "__file__", None)
    return source is not None and Path(source) in extensions.files()


def at_most_every(seconds: float, check: Callable[[], bool]) -> Callable[[], bool]:
    """A function that calls `check` at most once in this time, and returns False in between."""
    last_check = -math.inf

    def checked() -> bool:
        nonlocal last_check
        if time.monotonic() - last_check < seconds:
            return False
        last_check = time.monotonic()
        return check()

    return checked


def log_path(cell: Cell) -> Path:
    """The log of a cell: in the folder of its first seed."""
    return cell.folder(cell.seeds[0]) / LOG


def lost_job(cell: Cell, error: str, output: str = "") -> JobResult:
    """The result of a job that lost its process; `output` and `error` are added to the log."""
    with contextlib.suppress(OSError), log_path(cell).open("a", encoding="utf-8") as file:
        file.write(f"{output}{error}\n")
    return JobResult(cell, "lost", error)


def record_lost_job(result: JobResult) -> None:
    with contextlib.suppress(Locked, Unwritable), Lock(result.cell.folders()):
        _record_failure(result.cell, result.error)


def _record_failure(cell: Cell, error: str) -> None:
    for folder in cell.folders():
        record = Record(folder)
        try:
            description = read_description(folder)
        except DamagedRun:
            continue  # kept for the user to look at
        record.description = description or {
            "experiment": cell.experiment,
            "dataset": cell.dataset,
            "algorithm": cell.algorithm,
        }
        record.describe(status="failed", error=error, log=str(log_path(cell).relative_to(home())))


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, UserError | Repeatable) else f"{type(error).__name__}: {text}"


@contextlib.contextmanager
def _output_to_log(cell: Cell) -> Iterator[TextIO]:
    """Redirect the output of this process, including C libraries, to the cell's log."""
    with log_path(cell).open("a", encoding="utf-8", buffering=1) as log:
        print(f"-- {datetime.now(UTC).isoformat(timespec='seconds')}, process {os.getpid()}", file=log)
        copies = {1: os.dup(1), 2: os.dup(2)}
        try:
            for number in copies:
                os.dup2(log.fileno(), number)
            yield log
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            for number, copy in copies.items():
                os.dup2(copy, number)
                os.close(copy)
