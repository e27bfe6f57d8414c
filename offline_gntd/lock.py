"""One owner per folder, on a shared file system too; an owner that died loses its lock.

A lock is a file `lock-<n>` in the folder, created with O_EXCL; the highest n owns the folder. A process
that finds the owner dead creates lock-<n+1>: if two processes try, one succeeds. An owner on this machine is
dead if its process is gone. An owner on another machine is dead if its heartbeat, the file's modification
time, does not change while we watch. These times are compared only with each other, never with our clock,
which may be wrong or jump.
"""

import contextlib
import functools
import json
import os
import platform
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offline_gntd.files import Unwritable

NAME = re.compile(r"lock-\d{1,18}")
HEARTBEAT = 10.0  # seconds between two heartbeats
TIMEOUT = 60.0  # seconds without a heartbeat after which an owner on another machine is dead


class Locked(Exception):
    """Another process has the lock."""


class Lock:
    """The lock of several folders, of all or of none. Raises Locked, unless `wait` is set.

    `check` raises Locked if another process has taken this owner for dead.
    """

    def __init__(self, folders: Sequence[Path], wait: bool = False):
        self.folders, self.wait = folders, wait
        self.paths: list[Path] = []
        self.lost = False
        self.released = threading.Event()

    def __enter__(self) -> "Lock":
        return self.acquire()

    def __exit__(self, *exception: Any) -> None:
        self.release()

    def acquire(self) -> "Lock":
        try:
            while len(self.paths) < len(self.folders):
                try:
                    self.paths.append(_lock(self.folders[len(self.paths)]))
                except Locked:
                    if not self.wait:
                        raise
                    time.sleep(0.05)
        except BaseException:
            self.release()
            raise
        threading.Thread(target=self._send_heartbeats, daemon=True).start()
        return self

    def release(self) -> None:
        self.released.set()
        for path in self.paths:
            if _read(path)[0] == _this_process():  # the file may be a later owner's
                with contextlib.suppress(OSError):
                    path.unlink()

    def check(self) -> None:
        if self.lost:
            raise Locked

    def _send_heartbeats(self) -> None:
        while not self.released.wait(HEARTBEAT):
            for path in self.paths:
                try:
                    owner, heartbeat = _read(path)
                    if heartbeat is not None and owner != _this_process():  # numbers are used again
                        self.lost = True
                        continue
                    os.utime(path)
                    self.lost |= _newest(path.parent) != path
                except FileNotFoundError:
                    self.lost = not self.released.is_set()
                except OSError:  # the file system is not available for a moment
                    pass


class Watch:
    """Whether any of several folders is locked, observed over time."""

    def __init__(self, folders: Sequence[Path]):
        self.folders = folders
        self.heartbeats: dict[Path, tuple[Any, float]] = {}  # the last heartbeat, and when we first saw it

    def is_locked(self) -> bool:
        return any([self._is_locked(folder) for folder in self.folders])  # a list: observe every folder

    def _is_locked(self, folder: Path) -> bool:
        path = _newest(folder)
        if path is None:
            return False
        owner, heartbeat = _read(path)
        if owner.get("machine") == machine():
            return _is_alive(owner)
        if path not in self.heartbeats or self.heartbeats[path][0] != heartbeat:
            self.heartbeats[path] = (heartbeat, time.monotonic())
        return time.monotonic() - self.heartbeats[path][1] < TIMEOUT


def owner(folder: Path) -> dict[str, Any] | None:
    """The owner of a folder and the seconds since its last heartbeat by our clock; None if it has none."""
    path = _newest(folder)
    content, heartbeat = _read(path) if path else ({}, None)
    if heartbeat is None or (content.get("machine") == machine() and not _is_alive(content)):
        return None
    return content | {"silent_seconds": max(0.0, time.time() - heartbeat / 1e9)}


def _lock(folder: Path) -> Path:
    """Create the lock file of a folder without an owner or with a dead one; raise Locked for any other."""
    before = _newest(folder)
    if before is not None and not _is_dead(before):
        raise Locked
    path = folder / f"lock-{0 if before is None else _number(before) + 1}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            json.dump(_this_process(), file)
    except FileExistsError:
        raise Locked from None
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink()
        raise Unwritable(path, error) from error
    if _newest(folder) != path:  # another process has already succeeded the dead owner
        path.unlink(missing_ok=True)
        raise Locked
    if before is not None:
        before.unlink(missing_ok=True)
    return path


def _is_dead(path: Path) -> bool:
    """Whether the owner is gone; an owner on another machine is watched for up to TIMEOUT."""
    owner, heartbeat = _read(path)
    if owner.get("machine") == machine():
        return not _is_alive(owner)
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        time.sleep(min(1.0, TIMEOUT / 10))
        if _read(path)[1] != heartbeat:
            return False
    return True


def _newest(folder: Path) -> Path | None:
    locks = (path for path in folder.glob("lock-*") if NAME.fullmatch(path.name))
    return max(locks, key=_number, default=None)


def _number(path: Path) -> int:
    return int(path.name.partition("-")[2])


def _read(path: Path) -> tuple[dict[str, Any], int | None]:
    """The owner, or {} if the file does not name one, and its last heartbeat, or None if it is gone.

    The file is opened because a network file system may cache the result of a stat."""
    try:
        with path.open(encoding="utf-8") as file:
            heartbeat = os.fstat(file.fileno()).st_mtime_ns
            try:
                content = json.load(file)
            except (ValueError, RecursionError):
                content = None
            return (content if isinstance(content, dict) else {}), heartbeat
    except OSError:
        return {}, None


@functools.cache
def machine() -> str:
    """A running system; two containers on one host differ, since they do not see each other's processes."""
    parts = [platform.node()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _this_process() -> dict[str, Any]:
    process = os.getpid()
    return {
        "machine": machine(),
        "host": machine().partition(" ")[0],  # as it was at the start: a laptop's may change
        "process": process,
        "start_time": _start_time(process),
    }


def _is_alive(owner: dict[str, Any]) -> bool:
    if owner.get("start_time") is not None:
        return _start_time(owner["process"]) == owner["start_time"]
    try:
        os.kill(owner["process"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _start_time(process: int) -> str | None:
    """When a process started, since its number may be reused; None if it is gone, or if this is not Linux."""
    try:
        state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else fields[18]
