"""Our arrays are those of d4rl 1.1, and our catalogue is its own. `make conformance` provides the venv."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from d4rl_files import AWKWARD, arrays, write

from offline_gntd.datasets import catalogue, download, load
from offline_gntd.tasks import LOCOMOTION

pytestmark = pytest.mark.conformance

SCRIPT = Path(__file__).with_name("reference.py")
VENV = Path(os.environ.get("OFFLINE_GNTD_D4RL_VENV", Path(__file__).parents[2] / ".venv-d4rl"))


def ask(*arguments) -> None:
    """d4rl's answer, from a Python that has d4rl and not us."""
    python = VENV / "bin" / "python"
    assert python.exists(), f"there is no {python}; run: make conformance"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([python, SCRIPT, *map(str, arguments)], check=True, env=environment, capture_output=True)


def assert_equal(files, tmp_path, **options) -> None:
    ask(tmp_path / "reference.npz", *files)
    reference = np.load(tmp_path / "reference.npz")
    for number, path in enumerate(files):
        ours = load(path, **options).transitions
        theirs = [
            reference[f"{number}/{key}"]
            for key in ("observations", "actions", "rewards", "next_observations", "terminals")
        ]
        for mine, array in zip(ours, theirs, strict=True):
            assert array.dtype in (np.float32, bool)
            np.testing.assert_array_equal(mine.numpy(), array.astype(np.float32), err_msg=str(path))


def test_genuine_excerpts(shared, tmp_path):
    files = sorted((shared / "d4rl" / "excerpts").glob("*.hdf5"))
    assert len(files) == 12
    assert_equal(files, tmp_path)


def test_every_layout_with_awkward_endings(tmp_path):
    files = []
    for layout in ("v0", "v1-replay", "v2"):
        for number, ends in enumerate(AWKWARD.values()):
            for environment in LOCOMOTION:
                path = tmp_path / layout / f"{environment}_{number}.hdf5"
                files.append(write(path, arrays(layout, environment, ends)))
    assert_equal(files, tmp_path)


def test_without_timeouts_and_terminals_steps_are_counted_alike(tmp_path):
    """After a terminal d4rl counts one too many, so there is nothing to agree with."""
    data = arrays("v0-old", ends=(), steps=3500)
    assert_equal([write(tmp_path / "hopper_x.hdf5", data)], tmp_path)


def test_without_timeouts_the_first_episode_after_a_terminal_shows_the_difference(tmp_path):
    data = arrays("v0-old", ends=((500, "terminal"),), steps=2600)
    path = write(tmp_path / "hopper_x.hdf5", data)
    ask(tmp_path / "reference.npz", path)
    theirs = np.load(tmp_path / "reference.npz")["0/observations"]
    ours = load(path).transitions.obs.numpy()
    left_out = [1499, 2499]  # the thousandth steps after the terminal at row 499
    np.testing.assert_array_equal(ours, np.delete(data["observations"][:-1], left_out, axis=0))
    np.testing.assert_array_equal(theirs, np.delete(data["observations"][:-1], [1498, 2498], axis=0))


def test_the_catalogue_is_d4rls(tmp_path):
    ask(tmp_path / "infos.json")
    infos = json.loads((tmp_path / "infos.json").read_text())
    theirs = {
        name
        for name in infos
        if name.split("-")[0] in LOCOMOTION and name.rpartition("-")[2] in catalogue.VERSIONS
    }
    assert theirs == set(catalogue.entries())
    for name, entry in catalogue.entries().items():
        url, low, high = infos[name]
        assert url == download.HOST.replace("{path}", entry.path)
        body = LOCOMOTION[entry.environment]
        assert (low, high) == (body.reference_min, body.reference_max)
