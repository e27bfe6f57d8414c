"""Ray tasks, on an existing cluster or on one started on this machine for the grid.

If every node sees the folder of datasets and results, jobs read and write there. Otherwise data and run
folders are sent through Ray, run folders at each checkpoint, so that the runs of a lost node can be resumed.
"""

import dataclasses
import logging
import os
import platform
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from offline_gntd import extensions
from offline_gntd.datasets import Dataset
from offline_gntd.errors import UserError
from offline_gntd.experiments.definitions import Cell
from offline_gntd.experiments.job import JobResult, Options, Progress, at_most_every, lost_job, run_job
from offline_gntd.experiments.training import DataSource
from offline_gntd.files import home, remove, write_bytes
from offline_gntd.lock import Lock, Locked

STOP_SECONDS = 1.0  # between two checks for a stop request

Files = dict[int, dict[str, bytes]]  # the run folders of a cell: seed -> name -> content


@dataclass(frozen=True)
class Delivery:
    cell: Cell
    files: Files


class Ray:
    def __init__(
        self, workers: int | None, options: Options, address: str | None = None, ship: bool | None = None
    ):
        self.workers, self.options, self.address = workers, options, address
        self.ship = ship  # send files through Ray; None: only if a node does not see the folder
        self.token = (
            home().resolve() / f".seen-{uuid.uuid4().hex}"
        )  # nodes that share the folder see this file
        self.tasks: dict[ray.ObjectRef, Cell] = {}
        self.data: dict[tuple, ray.ObjectRef] = {}  # data in Ray's store
        self.locks: dict[Cell, Lock] = {}  # if files are sent, nodes see no locks
        self.refused: list[JobResult] = []

    def __enter__(self) -> "Ray":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self.address is None:
            settings |= {"num_cpus": self.workers or os.cpu_count(), "include_dashboard": False}
        if extensions.files():  # processes of a cluster do not inherit our environment
            settings["runtime_env"] = {"env_vars": {extensions.VARIABLE: os.environ[extensions.VARIABLE]}}
        try:
            _check_address(self.address or "")
            ray.init(self.address or "local", **settings)
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(f"no Ray cluster at {self.address}: {str(error).splitlines()[0]}") from error
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.mailbox = ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=here).remote()
        self.token.parent.mkdir(parents=True, exist_ok=True)
        self.token.touch()
        if self.ship is None:
            self.ship = not _seen_everywhere(self.token)
        return self

    def __exit__(self, *exception: Any) -> None:
        for task in self.tasks:
            ray.cancel(task, force=True)
        for lock in self.locks.values():
            lock.release()
        remove(self.token)
        ray.shutdown()

    def submit(self, cells: Sequence[Cell]) -> None:
        resources = {"num_cpus": 1, "num_gpus": 1 if self.options.device.startswith("cuda") else 0}
        for cell in cells:
            if self.ship:
                try:
                    self.locks[cell] = Lock(cell.folders()).acquire()
                except Locked:
                    self.refused.append(JobResult(cell, "locked"))
                    continue
                task = ray.remote(_shipped).options(max_retries=0, **resources)
                arguments: tuple[Any, ...] = ([self._put(source) for source in cell.sources()], _pack(cell))
            else:
                task = ray.remote(_in_place).options(max_retries=0, **resources)
                arguments = (self.token,)
            self.tasks[task.remote(cell, self.options, self.mailbox, *arguments)] = cell

    def poll(self, seconds: float) -> Iterator[Progress | JobResult]:
        refused, self.refused = self.refused, []
        yield from refused
        if not self.tasks:
            time.sleep(seconds)
            return
        ended, _ = ray.wait(list(self.tasks), timeout=seconds)
        for event in ray.get(self.mailbox.drain.remote()):
            if isinstance(event, Delivery):
                _unpack(event.cell, event.files)
            else:
                yield event
        for task in ended:
            yield self._result(task)

    def stop(self) -> None:
        ray.get(self.mailbox.stop.remote())

    def _put(self, source: Any) -> ray.ObjectRef:
        """A reference to a source in Ray's store, where it is put once."""
        key = (source.source, source.sha256)
        if key not in self.data:
            if isinstance(source, Dataset):
                # Ray shares arrays between the processes of a node, but copies tensors
                as_array: Any = source.rows.numpy()
                source = dataclasses.replace(source, rows=as_array)
            self.data[key] = ray.put(source)
        return self.data[key]

    def _result(self, task: ray.ObjectRef) -> JobResult:
        cell = self.tasks.pop(task)
        if cell in self.locks:
            self.locks.pop(cell).release()
        try:
            return ray.get(task)
        except ray.exceptions.RayError as error:
            return lost_job(cell, f"its worker was lost: {type(error).__name__}", f"{error}\n")


def _check_address(address: str) -> None:
    """Raise OSError at once if nothing listens there: Ray itself would try for minutes."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if port.isdecimal():  # not `auto`
        socket.create_connection((host, int(port)), timeout=10).close()


class Mailbox:
    """An actor on the grid's node, to which jobs send progress and files, and which tells them to stop."""

    def __init__(self):
        self.events: list[Progress | Delivery] = []
        self.stopped = False

    def send(self, event: Progress | Delivery) -> None:
        self.events.append(event)

    def drain(self) -> list[Progress | Delivery]:
        events, self.events = self.events, []
        return events

    def stop(self) -> None:
        self.stopped = True

    def is_stopped(self) -> bool:
        return self.stopped


# ---- on a node ----


def _in_place(cell: Cell, options: Options, mailbox: Any, token: Path) -> JobResult:
    if not token.exists():
        raise FileNotFoundError(f"{platform.node()} does not see {token.parent}, which the other nodes do")
    os.environ["OFFLINE_GNTD_HOME"] = str(token.parent)
    stopping = _stopping(mailbox)
    if stopping():
        return JobResult(cell, "stopped")
    return run_job(cell, options, mailbox.send.remote, stopping)


def _shipped(
    cell: Cell, options: Options, mailbox: Any, refs: list[ray.ObjectRef], files: Files
) -> JobResult:
    stopping = _stopping(mailbox)
    if stopping():
        return JobResult(cell, "stopped")
    fetched = {ref: _with_tensor(ray.get(ref)) for ref in set(refs)}  # seeds that share data share the object
    sources = tuple(fetched[ref] for ref in refs)
    with tempfile.TemporaryDirectory(prefix="offline-gntd-") as folder:
        os.environ["OFFLINE_GNTD_HOME"] = folder
        _unpack(cell, files)
        delivered = None

        def report(progress: Progress) -> None:
            nonlocal delivered
            mailbox.send.remote(progress)
            checkpoints = _checkpoints(cell)
            if checkpoints and checkpoints != delivered:
                delivered = checkpoints
                ray.get(mailbox.send.remote(Delivery(cell, _pack(cell))))

        result = run_job(cell, options, report, stopping, sources)
        ray.get(mailbox.send.remote(Delivery(cell, _pack(cell))))
    return result


def _with_tensor(source: Any) -> DataSource:
    """A source with a tensor of rows again, which was sent as an array."""
    if not isinstance(source, Dataset):
        return source
    return dataclasses.replace(source, rows=torch.from_numpy(source.rows))


def _stopping(mailbox: Any) -> Callable[[], bool]:
    """A function that returns whether the grid was stopped; a grid that does not answer is gone."""

    def is_stopped() -> bool:
        try:
            return ray.get(mailbox.is_stopped.remote())
        except ray.exceptions.RayError:
            return True

    return at_most_every(STOP_SECONDS, is_stopped)


# ---- files and data that are sent ----


def _seen_everywhere(path: Path) -> bool:
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    there = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
    look = ray.remote(_exists)
    return all(ray.get([look.options(num_cpus=0, scheduling_strategy=node).remote(path) for node in there]))


def _exists(path: Path) -> bool:
    return path.exists()


def _checkpoints(cell: Cell) -> list[str]:
    return sorted(str(path) for folder in cell.folders() for path in folder.glob("checkpoint-*.pt"))


def _pack(cell: Cell) -> Files:
    def content(folder: Path) -> dict[str, bytes]:
        files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("lock-")]
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}

    return {seed: content(cell.folder(seed)) for seed in cell.seeds}


def _unpack(cell: Cell, files: Files) -> None:
    """Write files into run folders, checkpoints first: the other files can be recreated from them."""
    for seed, contents in files.items():
        folder = cell.folder(seed)
        before = set(folder.glob("checkpoint-*.pt"))
        for name in sorted(contents, key=lambda name: not name.startswith("checkpoint-")):
            write_bytes(folder / name, contents[name])
        for path in before - {folder / name for name in contents}:
            remove(path)
