"""Reading HDF5 files from any source safely.

Nothing outside the file is followed (external and virtual storage, links to other files). A declared size is
accepted only if the stored bytes can account for it. Every error of h5py becomes a UserError.
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from offline_gntd.errors import UserError, first_line

DEFLATE = 1100  # upper bound on the compression ratio of gzip
SMALL = 1 << 20  # bytes that any array may take, whatever its stored size
PART = 1 << 16  # rows read at a time
DEEPEST = 32  # groups inside each other; D4RL's and Minari's files have at most 5


class Column:
    """An array of an HDF5 file, read slice by slice."""

    def __init__(self, where: str, data: Any):
        self.where, self._data = where, data
        self.shape: tuple[int, ...] = data.shape
        self.dtype: np.dtype = data.dtype

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    def __getitem__(self, part: Any) -> np.ndarray:
        with as_user_error(self.where):
            return np.asarray(self._data[part])


@contextlib.contextmanager
def reading(path: Path) -> Iterator[Mapping[str, Column]]:
    """The arrays of an open file by their full names, such as `infos/qpos`."""
    with _opened(path) as file:
        yield {name: Column(f"{name} of {path}", item) for name, item in _arrays(file, path)}


def check(path: Path) -> None:
    """Raise UserError as `reading` does, with one array open at a time: thousands at once take gigabytes."""
    with _opened(path) as file:
        for _ in _arrays(file, path):
            pass


def check_is_file(path: Path) -> None:
    try:
        if path.is_dir():
            raise UserError(f"{path} is a folder, not an HDF5 file")
        if not path.exists():
            raise UserError(f"there is no file {path}")
        if not path.is_file():
            raise UserError(f"{path} is not a regular file")
        if path.stat().st_size == 0:
            raise UserError(f"{path} is empty")
    except OSError as error:
        raise UserError(f"cannot read {path}: {first_line(error)}") from error


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    import h5py

    check_is_file(path)
    with as_user_error(str(path)):
        if not h5py.is_hdf5(path):
            raise UserError(f"{path} is not an HDF5 file")
        file = h5py.File(path, "r", locking=False)
    try:
        yield file
    finally:
        with contextlib.suppress(Exception):  # closing a damaged file may fail too
            file.close()


def _arrays(file: Any, path: Path) -> Iterator[tuple[str, Any]]:
    """Every array of a file with its full name. Raises UserError for an array that is not safe to read."""
    import h5py

    size = path.stat().st_size
    for name in _links(file, path):
        where = f"{name} of {path}"
        with as_user_error(where):
            item = file[name]
            if not isinstance(item, h5py.Dataset) or item.shape is None:  # h5py.Empty has no values
                continue
            if item.external or item.is_virtual:
                raise UserError(f"{where} is refused: its values are stored in another file")
            _check_size(item, size, where)
        yield name, item


def _links(file: Any, path: Path) -> list[str]:
    """The names of all arrays and soft links. Raises UserError for a link to another file."""
    import h5py

    names: list[str] = []
    groups, seen = [("", file)], set()
    with as_user_error(str(path)):
        while groups:
            prefix, group = groups.pop()
            if prefix.count("/") > DEEPEST:
                raise UserError(f"{path} is refused: its groups are nested more than {DEEPEST} deep")
            address = h5py.h5o.get_info(group.id).addr
            if address in seen:  # a group may contain itself
                continue
            seen.add(address)
            for key in group:
                link = group.get(key, getlink=True)
                if not isinstance(link, h5py.HardLink | h5py.SoftLink):
                    raise UserError(f"{path} is refused: {prefix + key!r} is a link to another file")
                if isinstance(link, h5py.HardLink) and group.get(key, getclass=True) is h5py.Group:
                    groups.append((f"{prefix}{key}/", group[key]))
                else:
                    names.append(prefix + key)
    return names


def _check_size(item: Any, file_size: int, where: str) -> None:
    """Raise UserError if the stored bytes, even compressed at best, cannot account for the declared size."""
    if item.dtype.hasobject:
        return  # such arrays are not read
    declared = int(np.prod([int(n) for n in item.shape], dtype=object) * item.dtype.itemsize)
    stored = min(item.id.get_storage_size(), file_size)
    bound = stored * DEFLATE + SMALL if item.chunks else max(stored, SMALL)
    chunk = int(np.prod(item.chunks or (1,), dtype=object)) * item.dtype.itemsize
    if declared > bound or chunk > file_size * DEFLATE + SMALL:
        raise UserError(f"{where} declares {item.shape} {item.dtype}, but only {stored:,} bytes are stored")


@contextlib.contextmanager
def as_user_error(where: str) -> Iterator[None]:
    """Turn any exception into a UserError: on a damaged file, h5py and Minari raise nearly anything."""
    try:
        yield
    except (UserError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise UserError(f"cannot read {where}: {first_line(error)}") from error
