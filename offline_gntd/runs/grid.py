"""All the runs of an experiment, over one-thread worker processes; what is finished is not run again."""

import contextlib
import multiprocessing
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field

from tqdm import tqdm

from offline_gntd.datasets import Missing, load
from offline_gntd.errors import UserError
from offline_gntd.files import require_writable, write_text
from offline_gntd.runs import experiments, fitness, results
from offline_gntd.runs.experiments import Cell, Experiment
from offline_gntd.runs.record import FINISHED, Record, read_description


@dataclass
class Outcome:
    """What became of the cells of a grid."""

    finished_before: list[Cell] = field(default_factory=list)
    stale: list[Cell] = field(default_factory=list)  # finished under another protocol, config or dataset
    done: list[Cell] = field(default_factory=list)
    failed: list[Cell] = field(default_factory=list)
    stopped: bool = False

    @property
    def complete(self) -> bool:
        return not (self.stale or self.failed or self.stopped)


def run(
    experiment: Experiment,
    workers: int | None = None,
    device: str = "cpu",
    checkpoint_seconds: float = 300.0,
    redo: bool = False,
    quiet: bool = False,
) -> Outcome:
    """Run what is missing of an experiment; with `redo`, what is stale too."""
    if workers is not None and workers < 1:
        raise UserError(f"--workers must be at least 1, not {workers}")
    outcome, todo = plan(experiment, redo)
    if not todo:
        return outcome
    require_writable(experiments.stored_path(experiment.name).parent)
    experiments.store(experiment)
    workers = min(workers or os.cpu_count() or 1, len(todo))
    context = multiprocessing.get_context("spawn")
    progress, stop = context.Queue(), context.Event()
    pool = ProcessPoolExecutor(
        workers, context, _prepare_worker, (progress, stop, device, checkpoint_seconds)
    )
    total = sum(len(cell.seeds) * cell.protocol.steps for cell in todo)
    with pool, tqdm(total=total, desc=experiment.name, unit="update", unit_scale=True, disable=quiet) as bar:
        futures = {pool.submit(_execute, cell): cell for cell in todo}
        with _interrupts(stop, bar):
            for future in _as_they_finish(futures, progress, bar):
                _settle(future, futures[future], outcome, bar)
    return outcome


def plan(experiment: Experiment, redo: bool = False) -> tuple[Outcome, list[Cell]]:
    """Which cells are finished or stale, and which are to be run."""
    outcome, todo = Outcome(), []
    shipped = results.read_shipped(experiment.name)
    runs = shipped.runs.to_dict("records") if shipped else []
    shipped_runs = {(run["dataset"], run["algorithm"], run["seed"]): run for run in runs}
    hashes = {source: _dataset_hash(source) for source in experiment.datasets}
    for cell in experiment.cells():
        state = _state(cell, hashes[cell.source], shipped_runs)
        if state == "finished":
            outcome.finished_before.append(cell)
        elif state == "stale" and not redo:
            outcome.stale.append(cell)
        else:
            todo.append(cell)
    # data that is missing or unfit is said before anything runs
    needed = {cell.source: load(cell.source) for cell in todo}
    for cell in todo:
        fitness.check(cell, needed[cell.source])
    return outcome, todo


def _dataset_hash(source: str) -> str | None:
    """None where the data is not here, which matters only to a run that needs it."""
    try:
        return load(source).sha256
    except Missing:
        return None


def _state(cell: Cell, dataset_sha256: str | None, shipped_runs: dict) -> str:
    """finished | stale | missing: by the run's folder, else by what was shipped with the same hashes."""
    states = []
    for seed in cell.seeds:
        local = read_description(cell.folder(seed)) or {}
        if local.get("status") in FINISHED:
            states.append("finished" if _matches(local, cell, dataset_sha256) else "stale")
        else:
            shipped = shipped_runs.get((cell.dataset, cell.algorithm, seed))
            states.append("finished" if shipped and _matches(shipped, cell, dataset_sha256) else "missing")
    return "missing" if "missing" in states else "stale" if "stale" in states else "finished"


def _matches(run: dict, cell: Cell, dataset_sha256: str | None) -> bool:
    return run["config_hash"] == cell.config_hash and dataset_sha256 in (None, run["dataset_sha256"])


def _as_they_finish(futures: dict[Future, Cell], progress, bar: tqdm) -> Iterator[Future]:
    """Yield futures as they finish, showing the workers' progress in between."""
    steps: dict[Cell, int] = {}
    pending = set(futures)
    while pending:
        finished, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
        with contextlib.suppress(queue.Empty):
            while True:
                cell, step, score = progress.get_nowait()
                bar.update((step - steps.get(cell, 0)) * len(cell.seeds))
                bar.set_postfix_str(f"{cell}: score {score:.1f}")
                steps[cell] = step
        yield from finished


def _settle(future: Future, cell: Cell, outcome: Outcome, bar: tqdm) -> None:
    if future.cancelled():
        outcome.stopped = True
        return
    try:
        result = future.result()
    except Exception as error:  # the worker itself died
        result = f"its worker died: {error}"
    if result is None:
        outcome.done.append(cell)
    elif result == "stopped":
        outcome.stopped = True
    else:
        outcome.failed.append(cell)
        bar.write(f"failed: {cell}: {result}", file=sys.stderr)


@contextlib.contextmanager
def _interrupts(stop, bar: tqdm) -> Iterator[None]:
    """The first Ctrl-C lets every run write its checkpoint and end; the second ends them now."""

    def interrupted(signum, frame):
        if stop.is_set():
            for child in multiprocessing.active_children():
                child.kill()
            raise KeyboardInterrupt
        stop.set()
        bar.write("stopping: the runs write their checkpoints; Ctrl-C again to stop now", file=sys.stderr)

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# ---- in the worker ----

_worker: tuple = ()


def _prepare_worker(progress, stop, device: str, checkpoint_seconds: float) -> None:
    import torch

    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    _worker = (progress, stop, device, checkpoint_seconds)


def _end_with_parent() -> None:
    """A worker does not outlive the grid, however that ended; its checkpoint is as good as ever."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _execute(cell: Cell) -> str | None:
    """Run a cell; None when it is done, 'stopped', or the error in one line, its trace left in the folder."""
    from offline_gntd.runs.run import Run, Stopped

    progress, stop, device, checkpoint_seconds = _worker
    if stop.is_set():
        return "stopped"
    try:
        Run(cell, device).execute(
            lambda step, score: progress.put((cell, step, score)), stop.is_set, checkpoint_seconds
        )
    except Stopped:
        return "stopped"
    except Exception as error:
        for seed in cell.seeds:
            record = Record(cell.folder(seed))
            record.description = read_description(record.folder) or {"experiment": cell.experiment}
            record.describe(status="failed", error=str(error))
            write_text(record.folder / "error.log", traceback.format_exc())
        return f"{type(error).__name__}: {error}; see {cell.folder(cell.seeds[0]) / 'error.log'}"
    return None
