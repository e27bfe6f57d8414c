"""One owner per run, on a shared file system too; an owner that died loses it.

A lock is a file `lock-<n>` in the run's folder, made with O_EXCL; of several the highest n owns the run.
Whoever finds its owner dead makes lock-<n+1>: of two that try, one succeeds. On one machine an owner is dead
when its process is gone. Elsewhere it is dead when the heartbeat, the file's time, has not changed while we
watched: times are compared with one another, never with our clock, which may be wrong or jump.
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
HEARTBEAT = 10.0  # seconds between two signs of life
PATIENCE = 60.0  # seconds without one after which an owner on another machine is dead


class Held(Exception):
    """Somebody else has the run."""


class Lock:
    """The lock of some folders, all or none; one that is Held may be waited for.

    `check` tells an owner that was taken for dead that it was.
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
            for folder in self.folders:
                self.paths.append(self._acquire(folder))
        except BaseException:
            self.release()
            raise
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def _acquire(self, folder: Path) -> Path:
        while True:
            try:
                return _acquire(folder)
            except Held:
                if not self.wait:
                    raise
                time.sleep(0.05)

    def release(self) -> None:
        self.released.set()
        for path in self.paths:
            with contextlib.suppress(OSError):
                path.unlink()

    def check(self) -> None:
        if self.lost:
            raise Held

    def _beat(self) -> None:
        while not self.released.wait(HEARTBEAT):
            for path in self.paths:
                try:
                    os.utime(path)
                    self.lost |= _newest(path.parent) != path
                except FileNotFoundError:
                    self.lost = not self.released.is_set()
                except OSError:  # the file system is away for a moment
                    pass


class Watch:
    """Whether folders are held by anyone, as seen over time."""

    def __init__(self, folders: Sequence[Path]):
        self.folders = folders
        self.heartbeats: dict[Path, tuple[Any, float]] = {}  # what was seen, and since when

    def held(self) -> bool:
        return any([self._held(folder) for folder in self.folders])  # a list: each is to be looked at

    def _held(self, folder: Path) -> bool:
        path = _newest(folder)
        if path is None:
            return False
        owner, heartbeat = _read(path)
        if owner.get("machine") == machine():
            return _lives(owner)
        now = time.monotonic()
        seen, since = self.heartbeats.get(path, (heartbeat, now))
        since = since if seen == heartbeat else now
        self.heartbeats[path] = (heartbeat, since)
        return now - since < PATIENCE


def owner(folder: Path) -> dict[str, Any] | None:
    """Who holds a folder, as far as one look can tell, and for how long it has been silent by our clock."""
    path = _newest(folder)
    found, heartbeat = _read(path) if path else ({}, None)
    if heartbeat is None or (found.get("machine") == machine() and not _lives(found)):
        return None
    return found | {"silent_seconds": max(0.0, time.time() - heartbeat / 1e9)}


def _acquire(folder: Path) -> Path:
    before = _newest(folder)
    if before is not None and not _dead(before):
        raise Held
    path = folder / f"lock-{0 if before is None else _number(before) + 1}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            json.dump(_ourselves(), file)
    except FileExistsError:
        raise Held from None
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink()
        raise Unwritable(path, error) from error
    if _newest(folder) != path:  # the one before was dead long since, and its successor is at work
        path.unlink(missing_ok=True)
        raise Held
    if before is not None:
        before.unlink(missing_ok=True)
    return path


def _dead(path: Path) -> bool:
    owner, heartbeat = _read(path)
    if owner.get("machine") == machine():
        return not _lives(owner)
    watched_until = time.monotonic() + PATIENCE
    while time.monotonic() < watched_until:
        time.sleep(min(1.0, PATIENCE / 10))
        if _read(path)[1] != heartbeat:
            return False
    return True


def _newest(folder: Path) -> Path | None:
    locks = (path for path in folder.glob("lock-*") if NAME.fullmatch(path.name))
    return max(locks, key=_number, default=None)


def _number(path: Path) -> int:
    return int(path.name.partition("-")[2])


def _read(path: Path) -> tuple[dict[str, Any], int | None]:
    """The owner, as far as it has written it, and its last heartbeat. Opened, since a stat may be old."""
    try:
        with path.open(encoding="utf-8") as file:
            heartbeat = os.fstat(file.fileno()).st_mtime_ns
            try:
                owner = json.load(file)
            except (ValueError, RecursionError):
                owner = None
            return (owner if _is_owner(owner) else {}), heartbeat
    except OSError:
        return {}, None


def _is_owner(value: Any) -> bool:
    """Whether a lock's content is what `_ourselves` writes."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("machine"), str)
        and type(value.get("process")) is int
        and 0 < value["process"] < 2**31
        and isinstance(value.get("born"), str | None)
    )


@functools.cache
def machine() -> str:
    """A running system: processes of two containers on one host do not see each other."""
    parts = [platform.node()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _ourselves() -> dict[str, Any]:
    process = os.getpid()
    return {"machine": machine(), "host": platform.node(), "process": process, "born": _born(process)}


def _lives(owner: dict[str, Any]) -> bool:
    if owner["born"] is not None:
        return _born(owner["process"]) == owner["born"]
    try:
        os.kill(owner["process"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _born(process: int) -> str | None:
    """When a process started, since its number may be used again; None when it is gone, or on no Linux."""
    try:
        state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else fields[18]
