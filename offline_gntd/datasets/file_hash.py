"""The sha256 of files, remembered under a stamp so that a large file is not read at every opening."""

import contextlib
import hashlib
from pathlib import Path

from offline_gntd.errors import UserError
from offline_gntd.files import home, read_json, write_json


def sha256_of(path: Path) -> str:
    """Of a file's content: read once, and again when the file's size, times or place on disk have changed."""
    path = path.resolve()
    try:
        status = path.stat()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    notes = home() / "datasets" / "cache" / "fingerprints"
    note = notes / f"{hashlib.sha256(str(path).encode()).hexdigest()}.json"
    with contextlib.suppress(UserError, KeyError, TypeError):
        known = read_json(note)
        if known["path"] == str(path) and known["stamp"] == stamp and len(known["sha256"]) == 64:
            return known["sha256"]
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    with contextlib.suppress(UserError):  # it is only remembered for speed
        write_json(note, {"path": str(path), "stamp": stamp, "sha256": sha256})
    return sha256
