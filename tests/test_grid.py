"""Grids over worker processes: what is finished is skipped, what fails is recorded."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fabricated import write_run
from failing_grid import BROKEN, COMMAND, GRID, VICTIM, assert_two_failed, cell_of, sound_cells, victim_killed

from offline_gntd.cli import main
from offline_gntd.errors import UserError
from offline_gntd.experiments import definitions, grid, results
from offline_gntd.experiments.definitions import Experiment, Protocol
from offline_gntd.experiments.planning import Rate, Rates, plan

FAST = "@hidden_dims=16x16@batch_size=32"
STUDY = Experiment(
    "study",
    ("cartpole-replay-small",),
    ("dqn" + FAST, "gndqn" + FAST),
    seeds=4,
    protocol=Protocol(steps=60, evaluate_every=30, evaluate_episodes=2, seeds_per_process=2),
)


def counts(outcome):
    return {name: len(getattr(outcome, name)) for name in ("done", "failed", "finished_before", "stale")}


def test_a_grid_runs_only_missing_cells(small_dataset):
    assert counts(grid.run(STUDY, workers=1, quiet=True)) == {
        "done": 4,
        "failed": 0,
        "finished_before": 0,
        "stale": 0,
    }
    found = results.read("study")
    assert len(found.runs) == 8
    assert len(found.evaluations) == 16
    again = grid.run(STUDY, workers=2, quiet=True)
    assert counts(again)["finished_before"] == 4
    # finished runs are added to the stored experiment
    definitions.stored_path("study").write_text(json.dumps(replace(STUDY, seeds=1).to_dict()))
    grid.run(STUDY, quiet=True)
    assert definitions.find("study") == STUDY
    (STUDY.cells()[0].folder(1) / "run.json").unlink()
    assert [cell.seeds for cell in plan(STUDY).todo] == [(0, 1)]  # the stack that seed 1 belongs to
    # exported runs count as done, and are read like run folders
    grid.run(STUDY, workers=1, quiet=True)
    before = results.read("study")
    results.export(definitions.find("study"))
    for path in sorted((definitions.stored_path("study").parent).rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    exported = results.read("study")
    key = [*results.KEY, "step"]
    assert exported.evaluations[key].values.tolist() == before.evaluations[key].values.tolist()
    assert exported.evaluations["score"].tolist() == pytest.approx(before.evaluations["score"].tolist())
    assert exported.runs["config"].tolist() == before.runs["config"].tolist()
    assert not plan(STUDY).todo
    assert definitions.find("study") == STUDY  # from the exported files alone


def test_runs_with_other_settings_are_stale(small_dataset):
    cell = STUDY.cells()[0]
    for seed in cell.seeds:
        write_run(STUDY, cell.algorithm, seed, [1.0], dataset=cell.dataset, config_hash="another")
    assert plan(STUDY).stale == [cell]
    assert cell not in plan(STUDY).todo
    assert cell in plan(STUDY, rerun_stale=True).todo


def test_a_failed_run_is_recorded_and_the_others_continue(small_dataset):
    broken = Experiment(
        "broken",
        STUDY.datasets,
        # a network too large for any machine: an error inside the run, not in its settings
        ("dqn@hidden_dims=9999999x9999999", "dqn" + FAST),
        seeds=1,
        protocol=STUDY.protocol,
    )
    outcome = grid.run(broken, workers=1, retries=1, quiet=True)
    assert counts(outcome) == {"done": 1, "failed": 1, "finished_before": 0, "stale": 0}
    folder = broken.cells()[0].folder(0)
    assert json.loads((folder / "run.json").read_text())["status"] == "failed"
    assert (folder / "run.log").read_text().count("Traceback") == 2  # the attempt and one retry
    assert [cell.algorithm for cell in plan(broken).todo] == ["dqn@hidden_dims=9999999x9999999"]


def test_missing_data_is_reported_before_anything_runs(home):
    with pytest.raises(UserError, match="datasets build cartpole-replay-small"):
        grid.run(STUDY, quiet=True)
    assert not list(home.iterdir())


def test_a_grid_may_be_run_in_parts(small_dataset):
    definitions.store(STUDY)
    definitions.store(Experiment("study", ("other",), ("td",), seeds=6, protocol=STUDY.protocol))
    whole = definitions.find("study")
    assert whole.datasets == ("cartpole-replay-small", "other")
    assert whole.algorithms == (*STUDY.algorithms, "td")
    assert whole.seeds == 6


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


def test_failed_cells_are_recorded_and_only_those_are_run_again(small_dataset, capfd):
    with victim_killed() as killed:
        assert main(COMMAND) == 1
    output = capfd.readouterr()
    assert "8 done, 2 failed" in output.out
    assert f"failed: {cell_of(VICTIM)}: its worker was killed by SIGKILL" in output.err
    assert "trying again, 1 of 1" in output.err
    assert_two_failed(killed)
    assert main(["status", GRID.name]) == 0
    assert "8 done, 2 failed" in capfd.readouterr().out
    before = {cell: (cell.folder(0) / "run.json").stat().st_mtime_ns for cell in sound_cells()}
    assert main(COMMAND) == 1  # no worker is killed this time
    assert "1 done, 8 finished before, 1 failed" in capfd.readouterr().out
    assert {cell: (cell.folder(0) / "run.json").stat().st_mtime_ns for cell in sound_cells()} == before


def test_two_grids_at_once_run_every_cell_once(small_dataset):
    command = [sys.executable, "-m", "offline_gntd", *COMMAND, "--workers", "1"]
    command = [word for word in command if word not in (BROKEN, VICTIM)]
    grids = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) for _ in range(2)]
    output = [grid.communicate(timeout=300)[0] for grid in grids]
    assert [grid.returncode for grid in grids] == [0, 0]
    done = [int(match.group(1)) if (match := re.search(r"(\d+) done(,|$)", text)) else 0 for text in output]
    assert sum(done) == len(sound_cells()), output
    for cell in sound_cells():
        run = json.loads((cell.folder(0) / "run.json").read_text())
        assert (run["status"], run["resumed_at"]) == ("done", [])


@pytest.mark.slow
def test_a_waiting_grid_takes_over_the_runs_of_a_killed_one(small_dataset, home):
    """The first is killed with its cell unfinished; the second, started meanwhile, finishes it."""
    command = [sys.executable, "-m", "offline_gntd", "run", "shared", "--datasets", "cartpole-replay-small"]
    command += ["--algorithms", "dqn" + FAST, "--seeds", "1", "--steps", "20000", "--evaluate-every", "10000"]
    command += ["--evaluate-episodes", "1", "--workers", "1", "--checkpoint-seconds", "0.2"]
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ)
    folder = home / "results/shared/cartpole-replay-small" / ("dqn" + FAST) / "seed-0"
    wait_for(lambda: list(folder.glob("checkpoint-*.pt")))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    second = subprocess.Popen([*command[:-2], "--retries", "0"], env=os.environ, **pipes)
    assert "locked by another process" in second.stderr.readline()
    first.kill()
    first.wait()
    assert "1 done" in second.communicate(timeout=300)[0]
    run = json.loads((folder / "run.json").read_text())
    assert run["status"] == "done"
    assert run["resumed_at"]


def test_ctrl_c_stops_a_grid_with_checkpoints(small_dataset, home):
    command = [sys.executable, "-m", "offline_gntd", "run", "endless", "--datasets", "cartpole-replay-small"]
    command += ["--algorithms", "dqn", "gndqn", "--seeds", "1", "--steps", "100000000", "--workers", "1"]
    grid = subprocess.Popen(command, stderr=subprocess.PIPE, env=os.environ, text=True)
    folder = home / "results/endless/cartpole-replay-small/dqn/seed-0"
    wait_for(lambda: (folder / "run.json").exists())
    grid.send_signal(signal.SIGINT)
    _, output = grid.communicate(timeout=60)
    assert grid.returncode == 1
    assert "the same command resumes the runs" in output
    assert json.loads((folder / "run.json").read_text())["status"] == "stopped"
    assert len(list(folder.glob("checkpoint-*.pt"))) == 1
    assert not list(folder.glob("lock-*"))
    assert not (home / "results/endless/cartpole-replay-small/gndqn").exists()  # not started after Ctrl-C


@pytest.mark.slow
def test_a_second_ctrl_c_ends_the_grid_at_once(small_dataset, home):
    command = [sys.executable, "-m", "offline_gntd", "run", "endless", "--datasets", "cartpole-replay-small"]
    command += ["--algorithms", "dqn", "--seeds", "1", "--steps", "100000000", "--workers", "1"]
    grid = subprocess.Popen(command, stderr=subprocess.PIPE, env=os.environ, text=True)
    folder = home / "results/endless/cartpole-replay-small/dqn/seed-0"
    wait_for(lambda: (folder / "run.json").exists())
    for _ in range(2):
        grid.send_signal(signal.SIGINT)
        time.sleep(0.02)
    _, output = grid.communicate(timeout=60)
    assert grid.returncode == 130
    assert "Traceback" not in output
    worker = json.loads((folder / "run.json").read_text())["process"]
    assert not Path(f"/proc/{worker}").exists()


def test_the_longest_runs_come_first(small_dataset):
    """Cells of unknown length are first, since they may be the longest."""
    study = replace(STUDY, algorithms=("td" + FAST, *STUDY.algorithms), seeds=2)
    quick, slow = (Rate(seconds, 0.0) for seconds in (1e-4, 1e-2))
    known = {("dqn" + FAST, 2): [quick], ("gndqn" + FAST, 2): [slow]}
    order = [cell.algorithm for cell in grid.ordered(study.cells(), Rates(known))]
    assert order == ["td" + FAST, "gndqn" + FAST, "dqn" + FAST]


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
