"""Corrupted HDF5 files end in a clean error or a sound load; see fuzz_hdf5.py."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("fuzz_hdf5.py")


def fuzz(first: int, count: int) -> str:
    """In a process of its own, since a crash of the HDF5 library would take the tests with it."""
    done = subprocess.run([sys.executable, SCRIPT, str(first), str(count)], capture_output=True, text=True)
    last = done.stderr.split()[-1:]
    assert done.returncode == 0, f"file {last}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def test_300_corrupted_files():
    assert "refused as leaving the file" in fuzz(0, 300)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(300, 2700, 300))
def test_more_corrupted_files(first):
    fuzz(first, 300)
