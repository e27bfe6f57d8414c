"""One attempt at a cell: what every engine calls, wherever it runs.

The cell is locked, looked at again, and run from its last checkpoint; whatever happens is told as an
`Ending`, recorded in its folder and written to its log.
"""

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from offline_gntd import extensions
from offline_gntd.errors import UserError
from offline_gntd.experiments import planning, trackers
from offline_gntd.experiments.definitions import Cell
from offline_gntd.experiments.lock import Held, Lock
from offline_gntd.experiments.record import LOG, DamagedRun, Record, read_description
from offline_gntd.experiments.sources import Source
from offline_gntd.files import Unwritable, home

REPORT_SECONDS = 0.5  # between two words on how far a run is


@dataclass(frozen=True)
class Options:
    """How runs are run; none of it changes their results."""

    device: str = "cpu"
    checkpoint_seconds: float | None = None  # None: a small share of the run's time
    trackers: tuple[str, ...] = ()  # tensorboard, wandb


@dataclass(frozen=True)
class Progress:
    cell: Cell
    step: int
    score: float | None = None  # when there is a new one


@dataclass(frozen=True)
class Ending:
    """What became of an attempt.

    done        the run is at its end
    diverged    it is at its end, and all its seeds diverged
    finished    somebody else had finished it
    held        somebody else is at it
    stopped     it was asked to stop
    failed      an error that another attempt may not meet
    died        its process was killed, or its machine lost
    refused     an error that it would: a user's mistake, a dataset that is gone
    unwritable  the disk is full or read-only: the next cell would fare no better
    """

    cell: Cell
    kind: str
    error: str = ""


class Repeatable(Exception):
    """An error of a user's algorithm before its first evaluation: another attempt would raise it again."""


def attempt(
    cell: Cell,
    options: Options,
    report: Callable[[Progress], None] = lambda progress: None,
    stopping: Callable[[], bool] = lambda: False,
    sources: tuple[Source, ...] | None = None,
) -> Ending:
    from offline_gntd.experiments.run import Stopped

    try:
        with Lock(cell.folders()) as lock, _logged(cell) as log:
            try:
                return _run(cell, options, report, stopping, sources, lock)
            except (Held, Stopped, Unwritable):
                raise
            except Exception as error:
                traceback.print_exc(file=log)
                kind = "refused" if isinstance(error, UserError | Repeatable) else "failed"
                _describe_failure(cell, _one_line(error))
                return Ending(cell, kind, _one_line(error))
    except Held:
        return Ending(cell, "held")
    except Stopped:
        return Ending(cell, "stopped")
    except (Unwritable, OSError) as error:  # the log cannot be written either
        return Ending(cell, "unwritable", str(error))


def _run(
    cell: Cell, options: Options, report, stopping, sources: tuple[Source, ...] | None, lock: Lock
) -> Ending:
    from offline_gntd.experiments.run import Run
    from offline_gntd.processes import prepare

    prepare()
    sources = cell.sources() if sources is None else sources
    if planning.state(cell, [source.sha256 for source in sources]) == "finished":
        return Ending(cell, "finished")
    run = Run(cell, options.device, sources)
    last_report = -REPORT_SECONDS

    def tell(step: int, score: float | None) -> None:
        nonlocal last_report
        if score is not None:
            tracking.write(run.records)
        if score is not None or time.monotonic() - last_report > REPORT_SECONDS:
            last_report = time.monotonic()
            report(Progress(cell, step, score))

    def stop() -> bool:
        lock.check()
        return stopping()

    with trackers.opened(options.trackers) as tracking:
        try:
            run.execute(tell, stop, options.checkpoint_seconds)
        except (UserError, OSError, MemoryError):
            raise
        except Exception as error:
            if not run.evaluated and _is_users(cell.config):
                raise Repeatable(_one_line(error)) from error
            raise
    return Ending(cell, "diverged" if all(record.diverged for record in run.records) else "done")


def _is_users(config: Any) -> bool:
    """Whether an algorithm is defined in a file that the user imported."""
    source = getattr(sys.modules.get(type(config).__module__), "__file__", None)
    return source is not None and Path(source) in extensions.files()


def log_of(cell: Cell) -> Path:
    return cell.folder(cell.seeds[0]) / LOG


def died(cell: Cell, error: str, log: str = "") -> Ending:
    """The ending of an attempt whose process is gone, and can say no more."""
    with contextlib.suppress(OSError), log_of(cell).open("a", encoding="utf-8") as file:
        file.write(f"{log}{error}\n")
    return Ending(cell, "died", error)


def record_death(ending: Ending) -> None:
    """Leave on disk what a process that is gone could not."""
    with contextlib.suppress(Held, Unwritable), Lock(ending.cell.folders()):
        _describe_failure(ending.cell, ending.error)


def _describe_failure(cell: Cell, error: str) -> None:
    for folder in cell.folders():
        record = Record(folder)
        try:
            description = read_description(folder)
        except DamagedRun:
            continue  # left as it is, for the user to look at
        record.description = description or {
            "experiment": cell.experiment,
            "dataset": cell.dataset,
            "algorithm": cell.algorithm,
        }
        record.describe(status="failed", error=error, log=str(log_of(cell).relative_to(home())))


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, UserError | Repeatable) else f"{type(error).__name__}: {text}"


@contextlib.contextmanager
def _logged(cell: Cell) -> Iterator[TextIO]:
    """All that the process says, dying words of its libraries included, goes to the log of the first run."""
    with log_of(cell).open("a", encoding="utf-8", buffering=1) as log:
        print(f"-- {datetime.now(UTC).isoformat(timespec='seconds')}, process {os.getpid()}", file=log)
        kept = {1: os.dup(1), 2: os.dup(2)}
        try:
            for number in kept:
                os.dup2(log.fileno(), number)
            yield log
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            for number, copy in kept.items():
                os.dup2(copy, number)
                os.close(copy)
