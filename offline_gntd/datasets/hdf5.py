"""HDF5 files from anywhere, read with care.

Nothing outside the file is followed (external and virtual storage, links to other files), and no declared
size is believed until the bytes stored can account for it. Whatever h5py raises is a UserError here.
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from offline_gntd.errors import UserError

DEFLATE = 1100  # gzip shrinks by less than this
ROOM = 1 << 20  # bytes any array may take, however little is stored of it
SLAB = 1 << 16  # rows read at a time


class Column:
    """An array of an HDF5 file, read slice by slice."""

    def __init__(self, where: str, data: Any):
        self.where, self._data = where, data
        self.shape: tuple[int, ...] = data.shape
        self.dtype: np.dtype = data.dtype

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    def __getitem__(self, part: Any) -> np.ndarray:
        with _as_user_error(self.where):
            return np.asarray(self._data[part])


@contextlib.contextmanager
def reading(path: Path) -> Iterator[Mapping[str, Column]]:
    """The arrays of a file by their full names, `infos/qpos`, while it is open."""
    with _arrays(path) as arrays:
        yield {name: Column(f"{name} of {path}", item) for name, item in arrays}


def require(path: Path) -> None:
    """Refuse a file that is of another kind."""
    import h5py

    if path.is_file() and not h5py.is_hdf5(path):
        raise UserError(f"{path} is no HDF5 file")


def check(path: Path) -> None:
    """Refuse what `reading` would, with one array open at a time: thousands at once take gigabytes."""
    with _arrays(path) as arrays:
        for _ in arrays:
            pass


@contextlib.contextmanager
def _arrays(path: Path) -> Iterator[Iterator[tuple[str, Any]]]:
    import h5py

    check_is_file(path)
    with _as_user_error(str(path)):
        file = h5py.File(path, "r", locking=False)
    try:
        yield _sound_arrays(file, path)
    finally:
        with contextlib.suppress(Exception):  # a damaged file may fail to close as well
            file.close()


def _sound_arrays(file: Any, path: Path) -> Iterator[tuple[str, Any]]:
    """Every array with its name, checked as it comes."""
    import h5py

    size = path.stat().st_size
    for name in _links(file, path):
        with _as_user_error(f"{name} of {path}"):
            item = file[name]
            if not isinstance(item, h5py.Dataset) or item.shape is None:  # h5py.Empty holds nothing
                continue
            _refuse_outside_storage(item, f"{name} of {path}")
            _refuse_incredible_size(item, size, f"{name} of {path}")
        yield name, item


def check_is_file(path: Path) -> None:
    if path.is_dir():
        raise UserError(f"{path} is a folder, not an HDF5 file")
    if not path.exists():
        raise UserError(f"there is no file {path}")
    if not path.is_file():
        raise UserError(f"{path} is not a regular file")
    if path.stat().st_size == 0:
        raise UserError(f"{path} is empty")


def _links(file: Any, path: Path) -> list[str]:
    """All that is in the file. No link may name another file; then no soft link can leave this one either."""
    import h5py

    inside: list[str] = []
    outside: list[str] = []

    def visit(name: str, link: Any) -> None:
        (inside if isinstance(link, h5py.HardLink | h5py.SoftLink) else outside).append(name)

    with _as_user_error(str(path)):
        file.visititems_links(visit)
    if outside:
        raise UserError(f"{path} is refused: {outside[0]!r} in it is a link to another file")
    return inside


def _refuse_outside_storage(item: Any, where: str) -> None:
    if item.external or item.is_virtual:
        raise UserError(f"{where} is refused: its values are kept in another file")


def _refuse_incredible_size(item: Any, file_size: int, where: str) -> None:
    """A declared size must be one that the bytes stored can account for, compressed at best."""
    if item.dtype.hasobject:
        return  # nothing is read of these
    declared = int(np.prod([int(n) for n in item.shape], dtype=object) * item.dtype.itemsize)
    stored = min(item.id.get_storage_size(), file_size)
    bound = stored * DEFLATE + ROOM if item.chunks else max(stored, ROOM)
    chunk = int(np.prod(item.chunks or (1,), dtype=object)) * item.dtype.itemsize
    if declared > bound or chunk > file_size * DEFLATE + ROOM:
        raise UserError(
            f"{where} claims to be {item.shape} {item.dtype}, but only {stored:,} bytes are stored"
        )


@contextlib.contextmanager
def _as_user_error(where: str) -> Iterator[None]:
    try:
        yield
    except (UserError, KeyboardInterrupt):
        raise
    except Exception as error:  # h5py raises nearly anything on a damaged file
        raise UserError(f"cannot read {where}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip("'\"").splitlines() or [""])[0] or type(error).__name__
