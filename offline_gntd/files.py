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


def home() -> Path:
    """The folder that holds datasets/, results/ and analysis/."""
    return Path(os.environ.get("OFFLINE_GNTD_HOME", "."))


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` (a file or a folder) that takes its place on success.

    Whatever goes wrong, `path` is either as it was or complete.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        if temporary.is_dir() and path.is_dir():  # a folder cannot be renamed over a full one
            replaced = temporary.with_suffix(".old")
            path.rename(replaced)
            temporary.rename(path)
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            temporary.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        remove(temporary)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with writing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
