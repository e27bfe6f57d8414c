"""A user's own algorithms and datasets: Python files that live anywhere, named by --import.

A file may define PRESETS, as every file of algorithms/ does, and DATASETS, names with a
datasets.imported.Source each. Which files there are is kept in the environment, so that every process that a
command starts, by whatever means, has them too.
"""

import hashlib
import importlib.util
import os
import sys
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import Any

from offline_gntd.errors import UserError

VARIABLE = "OFFLINE_GNTD_IMPORT"  # paths, separated as those in PATH
PARTS = ("PRESETS", "DATASETS")


def use(path: Path) -> None:
    """Import a file here and in all processes started from here."""
    path = path.resolve()
    module = _module(path)
    if not any(hasattr(module, part) for part in PARTS):
        raise UserError(f"{path} defines neither PRESETS nor DATASETS")
    for part in PARTS:
        entries = getattr(module, part, {})
        if not isinstance(entries, dict):
            raise UserError(f"{path}: {part} must be a dict by name, not {type(entries).__name__}")
    if path not in files():
        os.environ[VARIABLE] = os.pathsep.join(map(str, [*files(), path]))


def files() -> list[Path]:
    return [Path(path) for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]


def own(part: str, taken: Collection[str]) -> dict[str, Any]:
    """All that the user's files define as PRESETS or DATASETS; no name may be taken already."""
    found: dict[str, Any] = {}
    for path in files():
        entries = getattr(_module(path), part, {})
        for name in entries:
            if name in taken or name in found:
                raise UserError(f"{path} cannot call one of its {part} {name!r}: that name is taken")
        found |= entries
    return found


def fingerprints() -> dict[str, str]:
    """sha256 of every file, by its path."""
    return {str(path): f"sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in files()}


def _module(path: Path) -> ModuleType:
    name = f"offline_gntd_import_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise UserError(f"cannot import {path}: there is no such file")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"cannot import {path}: it is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        line = getattr(error, "lineno", None) or _line(error, path)
        raise UserError(f"cannot import {path}: line {line}: {type(error).__name__}: {error}") from error
    return module


def _line(error: BaseException, path: Path) -> int | str:
    """The last line of the file on the way to an error."""
    line: int | str = "?"
    trace = error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
