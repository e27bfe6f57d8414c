"""Runs that are killed at random moments and resumed: they end with the bits of an undisturbed run."""

import json
import multiprocessing
import os
import random
import signal
import sys
import time

import bits
import pytest
from d4rl_files import arrays, write

from offline_gntd.cli import main
from offline_gntd.experiments.definitions import Cell, Protocol
from offline_gntd.experiments.job import Options, run_job

KILLS = {"gndqn": 6, "td3_bc": 7, "gntd3_bc": 7}
STEPS = {"gndqn": 5_000, "td3_bc": 1_500, "gntd3_bc": 1_000}  # some seconds of work
CHECKPOINTS = 12  # in that time

PROCESSES = multiprocessing.get_context("forkserver")  # torch is imported once
PROCESSES.set_forkserver_preload(["offline_gntd.experiments.run", "offline_gntd.experiments.job"])


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", KILLS)
def test_a_run_killed_at_random_moments_ends_with_the_same_bits(algorithm, small_dataset, home):
    source = "cartpole-replay-small"
    if algorithm != "gndqn":
        source = str(write(home / "hopper_random-v2.hdf5", arrays(steps=1000, ends=((500, "timeout"),))))
    protocol = Protocol(STEPS[algorithm], evaluate_every=STEPS[algorithm] // 5, evaluate_episodes=2)

    undisturbed, killed = (
        Cell(name, source, algorithm, (0,), protocol) for name in ("undisturbed", "killed")
    )
    assert finish(undisturbed) == 0
    expected = bits.read(undisturbed.folder(0))
    description = json.loads((undisturbed.folder(0) / "run.json").read_text())
    folder, resumed_at = killed.folder(0), []
    often = description["training_seconds"] / CHECKPOINTS
    for moment in moments(KILLS[algorithm], description["training_seconds"]):
        run = start(killed, often)
        wait_for_status(folder, process=run.pid)
        time.sleep(moment)
        run.kill()
        run.join()
        assert run.exitcode == -signal.SIGKILL
        assert [path.name for path in folder.glob("lock-*")]  # it held its lock until it was killed
        steps = [int(path.stem.partition("-")[2]) for path in folder.glob("checkpoint-*.pt")]
        resumed_at = [*resumed_at, max(steps)] if steps else []  # without a checkpoint it starts again
    assert finish(killed) == 0
    assert json.loads((folder / "run.json").read_text())["resumed_at"] == resumed_at
    assert resumed_at[-1] > 0
    assert bits.read(folder) == expected
    assert not list(folder.glob(".*"))  # no partial files
    print(f"{algorithm}: {KILLS[algorithm]} kills, resumed at {resumed_at}")


def moments(count, seconds):
    """Random times in random order that add up to less than the time of the run."""
    draw = random.Random(count)
    span = 1.5 * seconds / (count + 1)
    found = [span * (i + draw.random()) / count for i in range(count)]
    draw.shuffle(found)
    return found


def start(cell, checkpoint_seconds=1.0):
    """Execute a run in a separate process."""
    arguments = (cell, checkpoint_seconds, os.environ["OFFLINE_GNTD_HOME"])
    process = PROCESSES.Process(target=make_attempt, args=arguments)
    process.start()
    return process


def finish(cell):
    process = start(cell)
    process.join()
    return process.exitcode


def make_attempt(cell, checkpoint_seconds, home):
    os.environ["OFFLINE_GNTD_HOME"] = home  # the fork server has the variable of the first test
    sys.exit(run_job(cell, Options(checkpoint_seconds=checkpoint_seconds)).kind != "done")


def wait_for_status(folder, process):
    """Wait until a process has started or resumed the run."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            description = json.loads((folder / "run.json").read_text())
        except (OSError, ValueError):
            description = {}
        if description.get("process") == process:
            return
        time.sleep(0.01)
    raise AssertionError(f"{process} does not run {folder}")


@pytest.mark.slow
def test_checkpoints_take_less_than_a_hundredth_of_a_runs_time(small_dataset):
    """With the default period and the default network size."""
    words = ["--seeds", "1", "--steps", "24000", "--evaluate-every", "24000", "--evaluate-episodes", "1"]
    assert main(["run", "long", "--datasets", "cartpole-replay-small", "--algorithms", "gndqn", *words]) == 0
    cell = Cell("long", "cartpole-replay-small", "gndqn", (0,), Protocol(24_000, 24_000, 1))
    description = json.loads((cell.folder(0) / "run.json").read_text())
    share = description["checkpoint_seconds"] / (
        description["training_seconds"] + description["evaluation_seconds"]
    )
    assert description["training_seconds"] > 15  # long enough for more than the last one
    assert 0 < share < 0.01
    print(f"checkpoints took {share:.3%} of {description['training_seconds']:.0f} s")
