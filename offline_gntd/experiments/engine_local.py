"""One-thread worker processes on this machine, which end when their parent ends."""

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
from offline_gntd.experiments.job import JobResult, Options, Progress, lost_job, run_job
from offline_gntd.processes import end_with_parent

STOP = "stop"
EXIT_SECONDS = 10.0  # that a process may take to end after its pipe was closed


class Local:
    """Every worker has a separate pipe and shares nothing, so that killing one does not affect the others."""

    def __init__(self, workers: int | None, options: Options):
        self.worker_count, self.options = workers or os.cpu_count() or 1, options
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
        while self.waiting and len(self.workers) < self.worker_count:
            self.workers.append(Worker(self.options))
            self._feed(self.workers[-1])

    def poll(self, seconds: float) -> Iterator[Progress | JobResult]:
        ready = wait([worker.connection for worker in self.workers], seconds)
        for worker in [worker for worker in self.workers if worker.connection in ready]:
            try:
                event = worker.connection.recv()
            except (EOFError, OSError):
                yield from self._replace(worker)
                continue
            if isinstance(event, JobResult):
                worker.cell = None
                self._feed(worker)
            yield event
        while self.stopping and self.waiting:
            yield JobResult(self.waiting.popleft(), "stopped")

    def stop(self) -> None:
        self.stopping = True
        for worker in self.workers:
            worker.send(STOP)

    def _feed(self, worker: "Worker") -> None:
        if worker.cell is None and self.waiting and not self.stopping:
            worker.cell = self.waiting.popleft()
            worker.send(worker.cell)

    def _replace(self, worker: "Worker") -> Iterator[JobResult]:
        worker.process.join(EXIT_SECONDS)
        worker.process.kill()
        worker.process.join()
        self.workers.remove(worker)
        if worker.cell is not None:
            yield lost_job(worker.cell, _exit_reason(worker.process.exitcode))
        self.submit([])


class Worker:
    def __init__(self, options: Options):
        context = multiprocessing.get_context("spawn")
        self.cell: Cell | None = None
        self.connection, worker_end = context.Pipe()
        self.process = context.Process(target=_work, args=(worker_end, options), daemon=True)
        self.process.start()
        worker_end.close()  # so that the end of the worker closes the pipe

    def send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # the worker died; the next poll reports it
            self.connection.send(message)


def _exit_reason(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"its worker ended with exit code {exit_code}"
    name = signal.Signals(-exit_code).name
    return f"its worker was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


def _work(connection: Connection, options: Options) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent decides when to stop
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()
    faulthandler.enable()
    with contextlib.suppress(EOFError):
        while True:
            message = connection.recv()
            if message != STOP:  # the only message sent during a job, which checks for it by `poll`
                _send(connection, run_job(message, options, partial(_send, connection), connection.poll))


def _send(connection: Connection, event: Progress | JobResult) -> None:
    try:
        connection.send(event)
    except OSError:
        os._exit(1)  # the parent is gone; the run has not failed
