"""Where things are kept, and how a file is written: under a temporary name, then renamed."""

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from offline_gntd.errors import UserError


class Unwritable(UserError):
    """A full disk, a read-only folder: whatever else would be written there would fail too."""

    def __init__(self, path: Path, error: OSError):
        super().__init__(f"cannot write {path}: {error.strerror or error}")


def home() -> Path:
    """The folder that holds datasets/, results/ and analysis/."""
    return Path(os.environ.get("OFFLINE_GNTD_HOME", "."))


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` (a file or a folder) that takes its place on success.

    Whatever goes wrong, `path` is either as it was or complete. But a folder in the place of another is away
    for the instant between two renames: killed right then, the other one is beside it as .NAME.….old.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        if temporary.is_dir() and path.is_dir():  # a folder cannot be renamed over a full one
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
    """Refuse early, before hours of work, a folder that could not be written to at their end."""
    existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    if not existing.is_dir():
        raise UserError(f"cannot write to {folder}: {existing} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to {folder}: {existing} is read-only; set OFFLINE_GNTD_HOME elsewhere")


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def write_bytes(path: Path, content: bytes) -> None:
    """On disk when this returns, so that a power cut leaves the file before or this one."""
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
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error


def duration(seconds: float | None) -> str:
    """2 d 4 h, 3 h 20 min, 4 min, 12 s."""
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
