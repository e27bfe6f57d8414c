"""Runs that are killed at any moment: what they leave in the end are the bits of a run that was not."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import bits
import pytest
from d4rl_files import arrays, write

from offline_gntd.command_line import main
from offline_gntd.runs.experiments import Cell, Protocol

KILLS = {"gndqn": 6, "td3_bc": 7, "gntd3_bc": 7}
STEPS = {"gndqn": 8_000, "td3_bc": 2_000, "gntd3_bc": 1_200}  # some twenty seconds of work


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", KILLS)
def test_killed_at_random_moments_it_leaves_the_same_bits(algorithm, small_dataset, home):
    source = "cartpole-replay-small"
    if algorithm != "gndqn":
        source = str(write(home / "hopper_random-v2.hdf5", arrays(steps=1000, ends=((500, "timeout"),))))
    protocol = Protocol(STEPS[algorithm], evaluate_every=STEPS[algorithm] // 5, evaluate_episodes=2)

    def cell(experiment):
        return Cell(experiment, source, algorithm, (0,), protocol)

    def command(experiment):
        words = ["run", experiment, "--datasets", source, "--algorithms", algorithm, "--seeds", "1"]
        words += ["--steps", str(protocol.steps), "--evaluate-every", str(protocol.evaluate_every)]
        words += ["--evaluate-episodes", "2", "--workers", "1", "--retries", "0", "--checkpoint-seconds", "1"]
        return words

    assert main(command("undisturbed")) == 0
    expected = bits.read(cell("undisturbed").folder(0))
    about = json.loads((cell("undisturbed").folder(0) / "run.json").read_text())
    span = about["training_seconds"] / (KILLS[algorithm] + 2)  # so that it is not over before the last kill

    moments, resumed_at = random.Random(algorithm), []
    folder = cell("killed").folder(0)
    victim = None
    for _ in range(KILLS[algorithm]):
        grid = subprocess.Popen(
            [sys.executable, "-m", "offline_gntd", *command("killed")], stderr=subprocess.DEVNULL
        )
        victim = worker_of(folder, but=victim)
        time.sleep(moments.uniform(0, span))
        os.kill(victim, signal.SIGKILL)
        assert grid.wait(60) == 1
        assert json.loads((folder / "run.json").read_text())["status"] == "failed"
        steps = [int(path.stem.partition("-")[2]) for path in folder.glob("checkpoint-*.pt")]
        # without a checkpoint it begins anew
        resumed_at = [*resumed_at, max(steps)] if steps else []
    assert main(command("killed")) == 0
    assert json.loads((folder / "run.json").read_text())["resumed_at"] == resumed_at
    assert resumed_at[-1] > 0
    assert bits.read(folder) == expected
    assert not list(folder.glob(".*"))  # nor anything half written
    print(f"{algorithm}: {KILLS[algorithm]} kills, resumed at {resumed_at}")


def worker_of(folder, but):
    """The process that now runs a run."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            about = json.loads((folder / "run.json").read_text())
        except (OSError, ValueError):
            about = {}
        if about.get("status") == "running" and about["process"] != but:
            return about["process"]
        time.sleep(0.01)
    raise AssertionError(f"nobody runs {folder}")


@pytest.mark.slow
def test_checkpoints_take_less_than_a_hundredth_of_a_runs_time(small_dataset):
    """With the period they have by default, and networks as large as the defaults."""
    words = ["--seeds", "1", "--steps", "25000", "--evaluate-every", "25000", "--evaluate-episodes", "1"]
    assert main(["run", "long", "--datasets", "cartpole-replay-small", "--algorithms", "gndqn", *words]) == 0
    cell = Cell("long", "cartpole-replay-small", "gndqn", (0,), Protocol(25_000, 25_000, 1))
    about = json.loads((cell.folder(0) / "run.json").read_text())
    share = about["checkpoint_seconds"] / (about["training_seconds"] + about["evaluation_seconds"])
    assert about["training_seconds"] > 15  # long enough for more than the last one
    assert 0 < share < 0.01
    print(f"checkpoints took {share:.3%} of {about['training_seconds']:.0f} s")
