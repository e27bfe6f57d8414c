"""Tasks of Ray, on a cluster that is there or on one made for the grid on this machine.

Where every node sees the folder of datasets and results, nothing else is needed. Where one does not, data
goes out and runs come back through Ray: at each checkpoint, so that a lost node's runs go on elsewhere.
"""

import dataclasses
import logging
import os
import platform
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
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
from offline_gntd.experiments.job import Ending, Options, Progress, attempt, died
from offline_gntd.experiments.lock import Held, Lock
from offline_gntd.experiments.sources import Source
from offline_gntd.files import home, remove, write_bytes

STOP_SECONDS = 1.0  # between two looks at whether to stop

Files = dict[int, dict[str, bytes]]  # of a cell's runs: seed -> name -> content


@dataclass(frozen=True)
class Delivery:
    cell: Cell
    files: Files


class Ray:
    def __init__(
        self, workers: int | None, options: Options, address: str | None = None, ship: bool | None = None
    ):
        self.workers, self.options, self.address = workers, options, address
        self.ship = ship  # None: find out
        self.token = home().resolve() / f".seen-{uuid.uuid4().hex}"  # by the nodes that share the folder
        self.tasks: dict[ray.ObjectRef, Cell] = {}
        self.data: dict[tuple, ray.ObjectRef] = {}  # what was shipped
        self.locks: dict[Cell, Lock] = {}  # of what was shipped: no node sees them
        self.refused: list[Ending] = []

    def __enter__(self) -> "Ray":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self.address is None:
            settings |= {"num_cpus": self.workers or os.cpu_count(), "include_dashboard": False}
        if extensions.files():  # a cluster's processes have its environment, not this one's
            settings["runtime_env"] = {"env_vars": {extensions.VARIABLE: os.environ[extensions.VARIABLE]}}
        try:
            _knock(self.address or "")
            ray.init(self.address or "local", **settings)
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(f"no Ray cluster at {self.address}: {str(error).splitlines()[0]}") from error
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.desk = ray.remote(Desk).options(num_cpus=0, scheduling_strategy=here).remote()
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
                except Held:
                    self.refused.append(Ending(cell, "held"))
                    continue
                task = ray.remote(_shipped).options(max_retries=0, **resources)
                arguments: tuple[Any, ...] = (self._ship(cell), _pack(cell))
            else:
                task = ray.remote(_in_place).options(max_retries=0, **resources)
                arguments = (self.token,)
            self.tasks[task.remote(cell, self.options, self.desk, *arguments)] = cell

    def poll(self, seconds: float) -> Iterator[Progress | Ending]:
        refused, self.refused = self.refused, []
        yield from refused
        if not self.tasks:
            time.sleep(seconds)
            return
        ended, _ = ray.wait(list(self.tasks), timeout=seconds)
        for event in ray.get(self.desk.drain.remote()):
            if isinstance(event, Delivery):
                _unpack(event.cell, event.files)
            else:
                yield event
        for task in ended:
            yield self._ending(task)

    def stop(self) -> None:
        ray.get(self.desk.stop.remote())

    def _ship(self, cell: Cell) -> list[ray.ObjectRef]:
        """The cell's sources, one per seed; each is put into Ray's store once."""
        return [self._put(source) for source in cell.sources()]

    def _put(self, source: Any) -> Any:
        key = (source.source, source.sha256)
        if key not in self.data:
            if isinstance(source, Dataset):
                # Ray shares arrays between the processes of a node, and copies tensors
                as_array: Any = source.rows.numpy()
                source = dataclasses.replace(source, rows=as_array)
            self.data[key] = ray.put(source)
        return self.data[key]

    def _ending(self, task: ray.ObjectRef) -> Ending:
        cell = self.tasks.pop(task)
        if cell in self.locks:
            self.locks.pop(cell).release()
        try:
            return ray.get(task)
        except ray.exceptions.RayError as error:
            return died(cell, f"its worker was lost: {type(error).__name__}", f"{error}\n")


def _knock(address: str) -> None:
    """Raise at once where nobody answers: Ray itself would try for minutes."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if port.isdecimal():  # not `auto`
        socket.create_connection((host, int(port)), timeout=10).close()


class Desk:
    """Beside the grid: where attempts report, deliver, and ask whether to stop."""

    def __init__(self):
        self.events: list[Progress | Delivery] = []
        self.stopped = False

    def tell(self, event: Progress | Delivery) -> None:
        self.events.append(event)

    def drain(self) -> list[Progress | Delivery]:
        events, self.events = self.events, []
        return events

    def stop(self) -> None:
        self.stopped = True

    def is_stopped(self) -> bool:
        return self.stopped


# ---- on a node ----


def _in_place(cell: Cell, options: Options, desk: Any, token: Path) -> Ending:
    if not token.exists():
        raise FileNotFoundError(f"{platform.node()} does not see {token.parent}, as the other nodes do")
    os.environ["OFFLINE_GNTD_HOME"] = str(token.parent)
    stop = Stop(desk)
    return Ending(cell, "stopped") if stop() else attempt(cell, options, desk.tell.remote, stop)


def _shipped(cell: Cell, options: Options, desk: Any, refs: list[ray.ObjectRef], files: Files) -> Ending:
    stop = Stop(desk)
    if stop():
        return Ending(cell, "stopped")
    fetched = {ref: _with_tensor(ray.get(ref)) for ref in set(refs)}  # seeds that share data share the object
    sources = tuple(fetched[ref] for ref in refs)
    with tempfile.TemporaryDirectory(prefix="offline-gntd-") as folder:
        os.environ["OFFLINE_GNTD_HOME"] = folder
        _unpack(cell, files)
        delivered = None

        def tell(progress: Progress) -> None:
            nonlocal delivered
            desk.tell.remote(progress)
            checkpoints = _checkpoints(cell)
            if checkpoints and checkpoints != delivered:
                delivered = checkpoints
                ray.get(desk.tell.remote(Delivery(cell, _pack(cell))))

        ending = attempt(cell, options, tell, stop, sources)
        ray.get(desk.tell.remote(Delivery(cell, _pack(cell))))
    return ending


def _with_tensor(source: Any) -> Source:
    """A source as it was before it was shipped: with a tensor of rows instead of an array."""
    if not isinstance(source, Dataset):
        return source
    return dataclasses.replace(source, rows=torch.from_numpy(source.rows))


class Stop:
    """Whether the grid was stopped, asked now and then; a grid that does not answer is gone."""

    def __init__(self, desk: Any):
        self.desk, self.asked, self.answer = desk, -STOP_SECONDS, False

    def __call__(self) -> bool:
        if time.monotonic() - self.asked >= STOP_SECONDS:
            self.asked = time.monotonic()
            try:
                self.answer = ray.get(self.desk.is_stopped.remote())
            except ray.exceptions.RayError:
                self.answer = True
        return self.answer


# ---- what is shipped ----


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
    """Checkpoints first: what else there is may then be made of them."""
    for seed, contents in files.items():
        folder = cell.folder(seed)
        before = set(folder.glob("checkpoint-*.pt"))
        for name in sorted(contents, key=lambda name: not name.startswith("checkpoint-")):
            write_bytes(folder / name, contents[name])
        for path in before - {folder / name for name in contents}:
            remove(path)
