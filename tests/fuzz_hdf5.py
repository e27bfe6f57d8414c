"""Corrupted HDF5 files, one per number: each must give a UserError or load correctly.

    python tests/fuzz_hdf5.py FIRST COUNT      uses a temporary folder; prints one line of counts

A crash, a hang, another exception or growing memory ends it with the number of the file.
"""

import contextlib
import io
import os
import resource
import signal
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
from d4rl_files import arrays, write

from offline_gntd.datasets import load
from offline_gntd.datasets.check import check
from offline_gntd.errors import UserError

SECONDS = 20  # of CPU time per file
MEGABYTES = 400  # that the process may grow over all files

KEYS = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations", "infos/qpos")


def truncate(path, rng):
    content = path.read_bytes()
    path.write_bytes(content[: int(rng.integers(len(content)))])


def flip(path, rng, within=1.0):
    content = bytearray(path.read_bytes())
    for place in rng.integers(max(1, int(len(content) * within)), size=int(rng.integers(1, 40))):
        content[place] ^= int(rng.integers(1, 256))
    path.write_bytes(content)


def flip_structure(path, rng):
    """Flip bytes near the signatures of HDF5's own structures."""
    content = bytearray(path.read_bytes())
    places = [i for mark in (b"OHDR", b"TREE", b"SNOD", b"HEAP", b"\x89HDF") for i in _all(content, mark)]
    start = int(rng.choice(places))
    for place in start + rng.integers(0, 200, size=int(rng.integers(1, 6))):
        if place < len(content):
            content[place] = int(rng.integers(256))
    path.write_bytes(content)


def _all(content, mark):
    place = content.find(mark)
    while place >= 0:
        yield place
        place = content.find(mark, place + 1)


def blank(path, rng):
    content = bytearray(path.read_bytes())
    start = int(rng.integers(len(content)))
    size = int(rng.integers(1, 4096))
    content[start : start + size] = bytes([int(rng.choice([0, 255]))]) * len(content[start : start + size])
    path.write_bytes(content)


def shift(path, rng):
    content = path.read_bytes()
    place, size = int(rng.integers(len(content))), int(rng.integers(1, 64))
    path.write_bytes(
        content[:place] + rng.bytes(size) + content[place:]
        if rng.random() < 0.5
        else content[:place] + content[place + size :]
    )


def huge_dimension(path, rng):
    """Replace the number of steps where it is stored as a dimension."""
    content = path.read_bytes()
    size = int(rng.choice([2**62, 2**40, 2**33, 10**9, 10**7, 0, 99, 101]))
    path.write_bytes(
        content.replace((100).to_bytes(8, "little"), size.to_bytes(8, "little"), int(rng.integers(1, 9)))
    )


def declare(path, rng):
    """Declare sizes that are not stored."""
    key = str(rng.choice(KEYS))
    rows = int(rng.choice([10**6, 10**9, 10**12, 2**40]))
    with h5py.File(path, "a") as file:
        del file[key]
        width = (rows,) if key in ("rewards", "terminals", "timeouts") else (rows, 11)
        chunks = (int(rng.choice([1, 1000, 10**6])), *width[1:])
        file.create_dataset(key, shape=width, chunks=chunks, dtype="f4", compression="gzip")


def reshape(path, rng):
    key = str(rng.choice(KEYS))
    shapes = [(100,), (100, 1), (1, 100), (99,), (101, 11), (100, 11, 1), (0,), (0, 11), (), (100, 0), (2, 2)]
    with h5py.File(path, "a") as file:
        del file[key]
        file[key] = np.ones(shapes[int(rng.integers(len(shapes)))], rng.choice(["f4", "f8", "i8", "?"]))


def retype(path, rng):
    key = str(rng.choice(KEYS))
    kinds = ["f2", "f4", "f8", "i1", "u8", "?", "c8", "S5", "V4", [("a", "f4"), ("b", "i4")]]
    with h5py.File(path, "a") as file:
        shape = file[key].shape
        del file[key]
        choice = int(rng.integers(len(kinds) + 3))
        if choice < len(kinds):
            file[key] = np.zeros(shape, np.dtype(kinds[choice]))
        elif choice == len(kinds):
            file.create_dataset(key, shape, h5py.string_dtype())
        elif choice == len(kinds) + 1:
            file.create_dataset(key, shape, h5py.ref_dtype)
        else:
            file[key] = h5py.Empty("f4")


def remove(path, rng):
    with h5py.File(path, "a") as file:
        for key in rng.choice(KEYS, size=int(rng.integers(1, 4)), replace=False):
            del file[key]
            if rng.random() < 0.3:
                file.create_group(key)


def poison(path, rng):
    with h5py.File(path, "a") as file:
        key = str(rng.choice(KEYS[:3]))
        values = file[key][:]
        values.reshape(-1)[int(rng.integers(values.size))] = rng.choice([np.nan, np.inf, -np.inf, 3e38])
        file[key][...] = values


def link(path, rng):
    """Links out of the file, to nowhere and in circles."""
    key = str(rng.choice(KEYS))
    other = write(path.with_name("other.hdf5"), arrays(seed=1))
    with h5py.File(path, "a") as file:
        del file[key]
        kind = int(rng.integers(8))
        if kind == 0:
            file[key] = h5py.ExternalLink(str(other), key)
        elif kind == 1:
            file["way"] = h5py.ExternalLink(str(other), "/")
            file[key] = h5py.SoftLink(f"/way/{key}")
        elif kind == 2:
            file[key] = h5py.SoftLink("/nowhere")
        elif kind == 3:
            file[key] = h5py.SoftLink(f"/{key}")
        elif kind == 4:
            file["elsewhere"] = arrays()[key]
            file[key] = h5py.SoftLink("/elsewhere")
        elif kind == 5:
            layout = h5py.VirtualLayout(arrays()[key].shape, "f4")
            layout[...] = h5py.VirtualSource(str(other), key, arrays()[key].shape)
            file.create_virtual_dataset(key, layout)
        elif kind == 6:
            raw = path.with_name("raw.bin")
            raw.write_bytes(bytes(8800))
            file.create_dataset(key, arrays()[key].shape, "f4", external=[(str(raw), 0, 8800)])
        else:
            group = file.create_group("a/b/c")
            group["again"] = file["a"]
            file[key] = arrays()[key]


HARMS = (
    truncate, flip, flip_structure, flip_structure, blank, shift, huge_dimension, declare, reshape, retype,
    remove, poison, link,
)  # fmt: skip
OUTSIDE = ("link to another file", "stored in another file")


def one(number: int, folder: Path) -> str:
    """Make the file with a number and open it; returns the outcome."""
    rng = np.random.default_rng(number)
    path = write(
        folder / f"hopper_{number}.hdf5", arrays(str(rng.choice(["v2", "v1-replay"])), seed=number % 7)
    )
    harm = HARMS[number % len(HARMS)]
    harm(path, rng)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            report = check(path)
        assert report.verdict in ("sound", "warnings", "unusable")
    except UserError:
        pass
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            dataset = load(path)
    except UserError as error:
        if "\n" in str(error):
            raise
        return "refused as leaving the file" if any(part in str(error) for part in OUTSIDE) else "refused"
    assert bool(dataset.rows.isfinite().all())
    assert np.isfinite(dataset.obs_std).all()
    assert len(dataset) > 0
    return "loaded"


def main(first: int, count: int) -> int:
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        os.environ["OFFLINE_GNTD_HOME"] = name
        baseline = None
        for number in range(first, first + count):
            folder = Path(name) / str(number)
            signal.setitimer(signal.ITIMER_PROF, SECONDS)  # ends the process, wherever it hangs
            print(number, end=" ", file=sys.stderr, flush=True)
            try:
                counts[one(number, folder)] += 1
            except Exception:
                print(f"file {number}: {traceback.format_exc()}")
                return 1
            used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            baseline = baseline or used
            if used - baseline > MEGABYTES:
                print(f"file {number}: {used - baseline:.0f} MB more than at the start")
                return 1
    print(", ".join(f"{value} {key}" for key, value in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
