"""Grids over worker processes: what is finished is skipped, what fails is recorded."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from offline_gntd.errors import UserError
from offline_gntd.runs import experiments, grid, results
from offline_gntd.runs.experiments import Experiment, Protocol
from offline_gntd.runs.planning import plan

FAST = "@widths=16x16@batch_size=32"
STUDY = Experiment(
    "study",
    ("cartpole-replay-small",),
    ("dqn" + FAST, "gndqn" + FAST),
    seeds=3,
    protocol=Protocol(steps=60, evaluate_every=30, evaluate_episodes=2, stack=2),
)


def counts(outcome):
    return {name: len(getattr(outcome, name)) for name in ("done", "failed", "finished_before", "stale")}


def test_a_grid_runs_what_is_missing_and_no_more(small_dataset):
    assert counts(grid.run(STUDY, workers=2, quiet=True)) == {
        "done": 4,
        "failed": 0,
        "finished_before": 0,
        "stale": 0,
    }
    found = results.read("study")
    assert len(found.runs) == 6
    assert len(found.evaluations) == 12
    again = grid.run(STUDY, workers=2, quiet=True)
    assert counts(again)["finished_before"] == 4
    (STUDY.cells()[0].folder(1) / "run.json").unlink()
    assert [cell.seeds for cell in plan(STUDY).todo] == [(0, 1)]  # the stack that seed 1 belongs to
    # the shipped form counts as done, and reads like the folders
    grid.run(STUDY, workers=1, quiet=True)
    before = results.read("study")
    results.ship("study")
    for path in sorted((experiments.stored_path("study").parent).rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    shipped = results.read("study")
    key = [*results.KEY, "step"]
    assert shipped.evaluations[key].values.tolist() == before.evaluations[key].values.tolist()
    assert shipped.evaluations["score"].tolist() == pytest.approx(before.evaluations["score"].tolist())
    assert shipped.runs["config"].tolist() == before.runs["config"].tolist()
    assert not plan(STUDY).todo
    assert experiments.find("study") == STUDY  # as it was run, though nothing but the results is left


def test_runs_of_other_settings_are_stale_and_redone_only_when_asked(small_dataset):
    cell = STUDY.cells()[0]
    for seed in cell.seeds:
        cell.folder(seed).mkdir(parents=True)
        description = {"status": "done", "config_hash": "another", "dataset_sha256": small_dataset.sha256}
        (cell.folder(seed) / "run.json").write_text(json.dumps(description))
    assert plan(STUDY).stale == [cell]
    assert cell not in plan(STUDY).todo
    assert cell in plan(STUDY, redo=True).todo


def test_a_run_that_fails_is_recorded_and_the_others_go_on(small_dataset):
    broken = Experiment(
        "broken",
        STUDY.datasets,
        # a network too large for any machine: an error inside the run, not in its settings
        ("dqn@widths=9999999x9999999", "dqn" + FAST),
        seeds=1,
        protocol=STUDY.protocol,
    )
    outcome = grid.run(broken, workers=1, retries=1, quiet=True)
    assert counts(outcome) == {"done": 1, "failed": 1, "finished_before": 0, "stale": 0}
    folder = broken.cells()[0].folder(0)
    assert json.loads((folder / "run.json").read_text())["status"] == "failed"
    assert (folder / "run.log").read_text().count("Traceback") == 2  # the attempt and one retry
    assert [cell.algorithm for cell in plan(broken).todo] == ["dqn@widths=9999999x9999999"]


def test_missing_data_is_said_before_anything_runs(home):
    with pytest.raises(UserError, match="datasets build cartpole-replay-small"):
        grid.run(STUDY, quiet=True)
    assert not list(home.iterdir())


def test_a_grid_may_be_run_in_parts(small_dataset):
    experiments.store(STUDY)
    experiments.store(Experiment("study", ("other",), ("td",), seeds=5, protocol=STUDY.protocol))
    whole = experiments.find("study")
    assert whole.datasets == ("cartpole-replay-small", "other")
    assert whole.algorithms == (*STUDY.algorithms, "td")
    assert whole.seeds == 5


def test_workers_end_when_their_grid_is_killed(small_dataset, home):
    command = [sys.executable, "-m", "offline_gntd", "run", "endless", "--datasets", "cartpole-replay-small"]
    command += ["--algorithms", "dqn", "--seeds", "1", "--steps", "100000000", "--workers", "1"]
    parent = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ)
    try:
        description = home / "results/endless/cartpole-replay-small/dqn/seed-0/run.json"
        worker = None
        deadline = time.monotonic() + 240
        while worker is None and time.monotonic() < deadline:
            time.sleep(0.2)
            if description.exists():
                worker = json.loads(description.read_text())["process"]
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert worker is not None
    deadline = time.monotonic() + 10
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{worker}").exists()
