"""One-thread worker processes on this machine, which end when their parent does."""

import contextlib
import faulthandler
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from offline_gntd.experiments.definitions import Cell
from offline_gntd.experiments.job import Ending, Options, Progress, attempt, died
from offline_gntd.processes import end_with_parent

STOP = "stop"
DYING_SECONDS = 10.0  # that a process may take to end after its pipe has


class Local:
    """A worker has a pipe of its own and shares nothing: one that is killed harms no other."""

    def __init__(self, workers: int | None, options: Options):
        self.at_once, self.options = workers or os.cpu_count() or 1, options
        self.waiting: deque[Cell] = deque()
        self.workers: list[Worker] = []
        self.stopping = False

    def __enter__(self) -> "Local":
        return self

    def __exit__(self, *exception: Any) -> None:
        for worker in self.workers:
            worker.process.kill()
        for worker in self.workers:
            worker.process.join()

    def submit(self, cells: Sequence[Cell]) -> None:
        self.waiting.extend(cells)
        for worker in self.workers:
            self._feed(worker)
        while self.waiting and len(self.workers) < self.at_once:
            self.workers.append(Worker(self.options))
            self._feed(self.workers[-1])

    def poll(self, seconds: float) -> Iterator[Progress | Ending]:
        ready = wait([worker.connection for worker in self.workers], seconds)
        for worker in [worker for worker in self.workers if worker.connection in ready]:
            try:
                event = worker.connection.recv()
            except (EOFError, OSError):
                yield from self._replace(worker)
                continue
            if isinstance(event, Ending):
                worker.cell = None
                self._feed(worker)
            yield event
        while self.stopping and self.waiting:
            yield Ending(self.waiting.popleft(), "stopped")

    def stop(self) -> None:
        self.stopping = True
        for worker in self.workers:
            worker.send(STOP)

    def _feed(self, worker: "Worker") -> None:
        if worker.cell is None and self.waiting and not self.stopping:
            worker.cell = self.waiting.popleft()
            worker.send(worker.cell)

    def _replace(self, worker: "Worker") -> Iterator[Ending]:
        worker.process.join(DYING_SECONDS)
        worker.process.kill()
        worker.process.join()
        self.workers.remove(worker)
        if worker.cell is not None:
            yield died(worker.cell, _why(worker.process.exitcode))
        self.submit([])


class Worker:
    def __init__(self, options: Options):
        context = multiprocessing.get_context("spawn")
        self.cell: Cell | None = None
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, options), daemon=True)
        self.process.start()
        theirs.close()  # so that its end is seen here

    def send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # it has died, as the next poll will tell
            self.connection.send(message)


def _why(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"its worker ended with exit code {exit_code}"
    name = signal.Signals(-exit_code).name
    return f"its worker was killed by {name}" + (", perhaps for want of memory" if name == "SIGKILL" else "")


def _work(connection: Connection, options: Options) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent decides
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()
    faulthandler.enable()
    with contextlib.suppress(EOFError):
        while True:
            message = connection.recv()
            if message != STOP:  # the one thing that is sent while an attempt is made
                _tell(connection, attempt(message, options, partial(_tell, connection), connection.poll))


def _tell(connection: Connection, event: Progress | Ending) -> None:
    try:
        connection.send(event)
    except OSError:
        os._exit(1)  # nobody is left to hear it, and that is no failure of the run
