"""The home folder, and writing files: under a temporary name first, then renamed."""

import contextlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from offline_gntd.errors import UserError

LONGEST_NAME = 200  # bytes in one part of a path; file systems allow 255, and temporary files add some
LONGEST_PATH = 4000  # bytes; Linux allows 4096
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")  # safe as the name of a folder


class Unwritable(UserError):
    """A full disk or a read-only folder: other files cannot be written there either."""

    def __init__(self, path: Path, error: OSError):
        super().__init__(f"cannot write {path}: {error.strerror or error}")


def home() -> Path:
    """The folder that holds datasets/, results/ and analysis/."""
    return Path(os.environ.get("OFFLINE_GNTD_HOME", "."))


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
