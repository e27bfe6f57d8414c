"""The sha256 of files. It is stored with the file's size and times, so that a large file is read once."""

import contextlib
import hashlib
import os
import time
from pathlib import Path

from offline_gntd.errors import UserError
from offline_gntd.files import home, read_json, write_json

RECENT = 2_000_000_000  # ns; a change this soon after another may leave the same time stamp


def sha256_of(path: Path) -> str:
    """The sha256 of a file's content. Raises UserError if the file changes while it is read.

    The file is read again when its size, times or inode have changed, or were recent when it was last read.
    """
    path, stamp = _stamp(path)
    stored = home() / "datasets" / "cache" / "file-hashes"
    stored = stored / f"{hashlib.sha256(os.fsencode(path)).hexdigest()}.json"
    with contextlib.suppress(UserError, KeyError, TypeError):
        known = read_json(stored)
        if known["path"] == str(path) and known["stamp"] == stamp and len(known["sha256"]) == 64:
            return known["sha256"]
    read_at = time.time_ns()
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    if _stamp(path)[1] != stamp:
        raise changed(path)
    if read_at - max(stamp[1:3]) > RECENT:
        with contextlib.suppress(UserError):  # it is stored only for speed
            write_json(stored, {"path": str(path), "stamp": stamp, "sha256": sha256})
    return sha256


def changed(path: Path | str) -> UserError:
    return UserError(f"{path} changed while it was read; run the command again when it is complete")


def _stamp(path: Path) -> tuple[Path, list[int]]:
    """The full path of a file, and what changes with its content: size, times, inode."""
    try:
        path = path.resolve()
        status = path.stat()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, until Python 3.13
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    return path, [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
