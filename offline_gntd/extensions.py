"""User files: Python files with PRESETS (algorithms) or DATASETS, given with --import.

The paths are stored in an environment variable, so that every process a command starts imports them too.
"""

import hashlib
import os
import sys
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import Any

from offline_gntd.errors import UserError, first_line
from offline_gntd.files import check_name

VARIABLE = "OFFLINE_GNTD_IMPORT"  # paths, separated as in PATH
KINDS = {"PRESETS": "preset", "DATASETS": "dataset"}


def use(path: Path) -> None:
    """Import a file, again if it has changed, in this process and in the processes that it starts.

    Raises UserError if the file cannot be imported or does not define legal PRESETS or DATASETS.
    """
    try:
        path = path.resolve()
    except (OSError, RuntimeError) as error:  # a loop of symbolic links; RuntimeError until Python 3.13
        raise UserError(f"cannot import {path}: {first_line(error)}") from error
    if os.pathsep in str(path):
        raise UserError(f"cannot import {path}: its path contains {os.pathsep!r}")
    module = _import(path)
    if not any(hasattr(module, variable) for variable in KINDS):
        raise UserError(f"{path} defines neither PRESETS nor DATASETS")
    for variable, kind in KINDS.items():
        entries = getattr(module, variable, {})
        if not isinstance(entries, dict):
            raise UserError(f"{path}: {variable} must be a dict by name, not {type(entries).__name__}")
        for name in entries:
            check_name(f"{kind} ({path})", name)
    if path not in files():
        os.environ[VARIABLE] = os.pathsep.join(map(str, [*files(), path]))


def files() -> list[Path]:
    return [Path(path) for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]


def user_entries(variable: str, built_in: Collection[str]) -> dict[str, Any]:
    """All PRESETS or DATASETS of the user's files. Raises UserError for a name that already exists."""
    entries: dict[str, Any] = {}
    for path in files():
        for name, entry in getattr(_module(path), variable, {}).items():
            check_name(f"{KINDS[variable]} ({path})", name)
            if name in built_in or name in entries:
                raise UserError(f"{path} cannot use {name!r} in {variable}: that name is taken")
            entries[name] = entry
    return entries


def file_hashes() -> dict[str, str]:
    """The sha256 of every user file as it was imported, by path."""
    return {str(path): f"sha256 {_module(path).__dict__['__sha256__']}" for path in files()}


def _module(path: Path) -> ModuleType:
    """The module of a file, imported once in a process."""
    return sys.modules.get(_module_name(path)) or _import(path)


def _module_name(path: Path) -> str:
    return f"offline_gntd_import_{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"


def _import(path: Path) -> ModuleType:
    """Read and execute a file. The stored hash is of the executed bytes: the file may change later."""
    try:
        source = path.read_bytes() if path.is_file() else None
    except OSError as error:
        raise UserError(f"cannot import {path}: {first_line(error)}") from error
    if source is None:
        raise UserError(f"cannot import {path}: there is no such file")
    name, sha256 = _module_name(path), hashlib.sha256(source).hexdigest()
    module = sys.modules.get(name)
    if module is not None and module.__dict__["__sha256__"] == sha256:
        return module
    module = ModuleType(name)
    module.__dict__.update(__file__=str(path), __sha256__=sha256)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        line = getattr(error, "lineno", None) or _line(error, path)
        reason = "the file ends the process" if isinstance(error, SystemExit) else first_line(error)
        raise UserError(f"cannot import {path}: line {line}: {type(error).__name__}: {reason}") from error
    return module


def _line(error: BaseException, path: Path) -> int | str:
    """The last line of the file in an error's traceback."""
    line: int | str = "?"
    trace = error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
