"""The home folder, and files: written under a temporary name and renamed; tensors and hashes of files.

This module does not import torch until tensors are read or written.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from offline_gntd.errors import UserError, first_line

LONGEST_NAME = 200  # bytes in one part of a path; file systems allow 255, and temporary files add some
LONGEST_PATH = 4000  # bytes; Linux allows 4096
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")  # safe as the name of a folder


class Unwritable(UserError):
    """The disk is full or the folder is read-only, so other files cannot be written there either."""

    def __init__(self, path: Path, error: OSError):
        super().__init__(f"cannot write {path}: {first_line(error)}")


def home() -> Path:
    """The folder that holds datasets/, results/ and analysis/."""
    return Path(os.environ.get("OFFLINE_GNTD_HOME", "."))


def safe_name(text: str) -> str:
    """Letters, digits, - _ . only, not hidden: mujoco/hopper/medium-v0 becomes mujoco-hopper-medium-v0."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "unnamed"


def check_name(kind: str, name: Any) -> None:
    """Raise UserError unless a user's name for a preset, dataset or experiment is safe as a folder name."""
    if not isinstance(name, str) or len(name) > LONGEST_NAME or not NAME.fullmatch(name):
        shown = f"{name[:40]}…" if isinstance(name, str) and len(name) > LONGEST_NAME else name
        raise UserError(
            f"{shown!r} cannot name a {kind}: use letters, digits and - _ . (at most {LONGEST_NAME}), and "
            "begin with a letter, a digit or _"
        )


def check_path_length(path: str | Path) -> None:
    """Raise UserError for a name or path that no file system can hold."""
    text = str(path)
    encoded = os.fsencode(text)
    if len(encoded) > LONGEST_PATH or any(len(part) > LONGEST_NAME for part in encoded.split(b"/")):
        raise UserError(
            f"{text[:40]!r}… ({len(text)} characters) is too long: a path may have {LONGEST_PATH} bytes, and "
            f"a name {LONGEST_NAME}"
        )
    if b"\0" in encoded:
        raise UserError(f"{text[:40]!r} is not a name or a path: it contains a null character")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path` (a file or a folder) that replaces it on success.

    After any error, `path` is either unchanged or complete. Replacing a folder takes two renames: a process
    killed between them leaves the old folder as .NAME.….old.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        if temporary.is_dir() and path.is_dir():  # a folder cannot be renamed over a non-empty one
            replaced = temporary.with_suffix(".old")
            path.rename(replaced)
            try:
                temporary.rename(path)
            except OSError:
                replaced.rename(path)
                raise
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            temporary.replace(path)
    except OSError as error:
        raise Unwritable(path, error) from error
    finally:
        remove(temporary)


def require_writable(folder: Path) -> None:
    """Raise UserError if a folder cannot be written to: called before hours of work, not after."""
    existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    if not existing.is_dir():
        raise UserError(f"cannot write to {folder}: {existing} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(
            f"cannot write to {folder}: {existing} is read-only; set OFFLINE_GNTD_HOME to another folder"
        )


def remove(path: Path) -> None:
    """Delete a file or a folder, if it exists."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file and flush it to disk, so that a power cut leaves the old content or the new."""
    with writing(path) as temporary, temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error


def parse_json(text: Any) -> Any:
    """The value of a JSON text; raises ValueError for any fault, also for too many nested brackets."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("its brackets are nested too deeply") from error
    except TypeError as error:
        raise ValueError(f"it is not text but {type(text).__name__}") from error


def listing(paths: Sequence[Path]) -> str:
    """Files of one folder in one line: analysis: first.md, first.tex"""
    return f"{paths[0].parent}: {', '.join(path.name for path in paths)}"


def duration(seconds: float | None) -> str:
    """Time for a person to read: 2 d 4 h, 3 h 20 min, 4 min, 12 s."""
    if seconds is None:
        return "?"
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    minutes = round(seconds / 60)
    hours, days = minutes // 60, minutes // 1440
    if days:
        return f"{days} d {hours % 24} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min"


# ---- tensors: with a checksum, and read without executing anything that a file may contain ----

MAGIC = b"offline_gntd sha256 "  # followed by the payload's hex digest, a line feed, the payload


class Unreadable(UserError):
    """A file does not contain what was written to it."""


def save_tensors(path: Path, content: Any) -> None:
    """Write tensors, numbers, strings, and lists and dicts of them."""
    import torch

    buffer = io.BytesIO()  # torch.save to a file hides that the disk is full
    torch.save(content, buffer)
    # not getbuffer(): a view that an error of the disk leaves in a traceback crashes Python 3.12's collector
    payload = buffer.getvalue()
    write_bytes(path, MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)


def load_tensors(path: Path) -> Any:
    """What `save_tensors` wrote. Raises Unreadable for a missing, damaged or foreign file."""
    import torch

    try:
        head, _, payload = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise Unreadable(f"cannot read {path}: {first_line(error)}") from error
    if head != MAGIC + hashlib.sha256(payload).hexdigest().encode():
        raise Unreadable(f"{path} is damaged, or was not written by offline_gntd (checksum)")
    try:
        return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises nearly anything
        raise Unreadable(f"{path} cannot be loaded: {first_line(error)}") from error


# ---- the sha256 of files: stored with the file's size and times, so that a large file is read once ----

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
        raise UserError(f"cannot read {path}: {first_line(error)}") from error
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
        raise UserError(f"cannot read {path}: {first_line(error)}") from error
    return path, [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
