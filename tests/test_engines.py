"""The same grid on every engine: the same bits, the same failures. `make test-all` has what they need."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import bits
import pytest
from failing_grid import BROKEN, COMMAND, GRID, VICTIM, assert_two_failed, cell_of, sound_cells, victim_killed

from offline_gntd import extensions
from offline_gntd.cli import main
from offline_gntd.experiments import grid
from offline_gntd.experiments.definitions import Experiment, Protocol
from offline_gntd.experiments.job import JobResult, Options, Progress

EXAMPLES = Path(__file__).parents[1] / "examples"
SOUND = [word for word in COMMAND if word not in (BROKEN, VICTIM)]
LONG = Experiment(
    "long",
    GRID.datasets,
    ("dqn@hidden_dims=16x16@batch_size=32",),
    seeds=2,
    protocol=Protocol(steps=10_000, evaluate_every=2_000, evaluate_episodes=2),
)


@pytest.fixture(autouse=True)
def ray_with_normal_priority(monkeypatch):
    """By default, Ray's workers have a lower priority than all other processes."""
    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")


@pytest.fixture
def elsewhere(small_dataset, home, monkeypatch):
    """Runs a grid locally, returns its bits, and changes to a new home with the same data."""

    def local(experiment, cells):
        grid.run(experiment, workers=2, retries=0, quiet=True)
        found = bits.of_cells(cells)
        other = home / "other"
        shutil.copytree(home / "datasets", other / "datasets")
        monkeypatch.setenv("OFFLINE_GNTD_HOME", str(other))
        return found

    return local


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ray", "slurm"])
def test_a_grid_with_failures_on_another_engine(engine, elsewhere, capfd):
    pytest.importorskip({"ray": "ray", "slurm": "submitit"}[engine])
    expected = elsewhere(GRID, sound_cells())
    capfd.readouterr()
    with victim_killed() as killed:
        assert main([*COMMAND, "--engine", engine]) == 1
    assert "8 done, 2 failed" in capfd.readouterr().out
    assert_two_failed(killed)
    assert bits.of_cells(sound_cells()) == expected
    assert main([*COMMAND, "--engine", engine]) == 1
    assert "1 done, 8 finished before, 1 failed" in capfd.readouterr().out
    assert json.loads((cell_of(VICTIM).folder(0) / "run.json").read_text())["status"] == "done"


@pytest.fixture
def two_nodes():
    """A Ray cluster of processes of this machine: a head that runs nothing, and a node of one CPU."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield cluster, cluster.add_node(num_cpus=1)
    cluster.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("ship", [False, True])
def test_runs_of_a_lost_node_resume_on_another(ship, two_nodes, elsewhere, monkeypatch):
    """With a shared folder, and without one, where run folders are sent through Ray."""
    from offline_gntd.experiments.engine_ray import Ray

    expected = elsewhere(LONG, LONG.cells())
    cluster, node = two_nodes
    with Ray(None, Options(checkpoint_seconds=0.5), cluster.address, ship=ship) as engine:
        assert engine.ship is ship
        engine.submit(LONG.cells())
        endings, lost = {}, None
        deadline = time.monotonic() + 900
        while len(endings) < 2 and time.monotonic() < deadline:
            for event in engine.poll(0.2):
                if isinstance(event, Progress) and event.step > 3_000 and lost is None:
                    lost = event.cell
                    cluster.remove_node(node, allow_graceful=False)
                    cluster.add_node(num_cpus=1)
                elif isinstance(event, JobResult) and event.kind == "lost":
                    engine.submit([event.cell])
                elif isinstance(event, JobResult):
                    endings[event.cell] = event.kind
    assert list(endings.values()) == ["done", "done"]
    [resumed] = json.loads((lost.folder(lost.seeds[0]) / "run.json").read_text())["resumed_at"]
    assert resumed > 0
    assert bits.of_cells(LONG.cells()) == expected


@pytest.mark.slow
def test_an_existing_cluster_imports_the_users_file(two_nodes, home, monkeypatch, capfd):
    monkeypatch.setenv(extensions.VARIABLE, "")
    cluster, _ = two_nodes
    command = ["run", "mine", "--algorithms", "awac", "--seeds", "1", "--datasets", "mountaincar-noisy"]
    command += ["--steps", "50", "--evaluate-episodes", "1"]
    for name in ("my_algorithm.py", "my_dataset.py"):
        command += ["--import", str(EXAMPLES / name)]
    assert main([*command, "--engine", "ray", "--address", cluster.address]) == 0
    assert "1 done" in capfd.readouterr().out


@pytest.mark.slow
def test_a_job_that_slurm_stops_is_requeued_and_resumes(elsewhere):
    """Slurm sends this signal before a time limit or a preemption."""
    pytest.importorskip("submitit")
    from offline_gntd.experiments.engine_slurm import Slurm

    expected = elsewhere(LONG, LONG.cells()[:1])
    [cell] = LONG.cells()[:1]
    interrupted = []
    with Slurm(1, Options(checkpoint_seconds=0.2)) as engine:
        engine.submit([cell])
        ending, deadline = None, time.monotonic() + 900
        while ending is None and time.monotonic() < deadline:
            for event in engine.poll(0.1):
                if isinstance(event, Progress) and not interrupted:
                    interrupted.append(event.step)
                    os.kill(json.loads((cell.folder(0) / "run.json").read_text())["process"], signal.SIGUSR2)
                elif isinstance(event, JobResult):
                    ending = event
    assert ending.kind == "done"
    [resumed] = json.loads((cell.folder(0) / "run.json").read_text())["resumed_at"]
    assert resumed >= interrupted[0] - 2_000
    assert bits.of_cells([cell]) == expected


@pytest.mark.slow
def test_slurm_gets_one_array_with_the_given_parameters(small_dataset, home, monkeypatch):
    """A script in place of sbatch keeps the file that it is given."""
    pytest.importorskip("submitit")
    from offline_gntd.experiments.engine_slurm import Slurm

    bin = home / "bin"
    bin.mkdir()
    for name, answer in {
        "sbatch": f'cp "$1" {home}/given; echo "Submitted batch job 12"',
        "srun": "",
        "sacct": "",
    }.items():
        (bin / name).write_text(f"#!/bin/sh\n{answer}\n")
        (bin / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")
    engine = Slurm(3, Options(), parameters={"partition": "long", "time": "60", "mem": "8GB"})
    with engine:
        engine.submit(GRID.cells())
        given = (home / "given").read_text()
        engine.jobs.clear()
    for line in (
        "--array=0-9%3",
        "--partition=long",
        "--time=60",
        "--mem=8GB",
        "--cpus-per-task=1",
        "--requeue",
        "--open-mode=append",
    ):
        assert f"#SBATCH {line}" in given, given


@pytest.mark.slow
def test_pending_slurm_jobs_are_cancelled_when_the_grid_stops(home):
    pytest.importorskip("submitit")
    from offline_gntd.experiments.engine_slurm import Slurm

    class Queued:
        state, cancelled = "PENDING", False

        def done(self):
            return False

        def cancel(self, check):
            self.cancelled = True

    with Slurm(1, Options()) as engine:
        engine.on_slurm, job = True, Queued()
        engine.jobs[job] = LONG.cells()[0]
        assert not list(engine.poll(0))
        engine.stop()
        assert [event.kind for event in engine.poll(0)] == ["stopped"]
        assert job.cancelled
        assert not engine.jobs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--engine", "ray", "--address", "127.0.0.1:1"], "no Ray cluster at 127.0.0.1:1"),
        (["--engine", "slurm", "--slurm", "partitoin=long"], "partitoin"),
    ],
)
def test_an_unavailable_engine_is_one_line(arguments, words, small_dataset, home, capfd):
    pytest.importorskip({"ray": "ray", "slurm": "submitit"}[arguments[1]])
    capfd.readouterr()
    assert main([*SOUND, *arguments]) == 2
    error = capfd.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (home / "results" / GRID.name).exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--address", "auto"], "--address applies to --engine ray"),
        (["--slurm", "time=5"], "--slurm applies to --engine slurm"),
        (["--engine", "slurm", "--slurm", "time"], "--slurm takes name=value, not 'time'"),
        (["--retries", "-1"], "--retries must be at least 0"),
        (["--checkpoint-seconds", "0"], "--checkpoint-seconds must be more than 0"),
        (["--checkpoint-seconds", "nan"], "--checkpoint-seconds must be more than 0"),
    ],
)
def test_meaningless_settings_are_refused(arguments, words, small_dataset, home, capfd):
    capfd.readouterr()
    assert main([*SOUND, *arguments]) == 2
    error = capfd.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (home / "results").exists()


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [(["--engine", "ray"], "ray"), (["--engine", "slurm"], "slurm"), (["--wandb"], "wandb")],
)
def test_an_extra_that_is_not_installed_is_named(arguments, extra, small_dataset, home, monkeypatch, capfd):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    capfd.readouterr()
    assert main([*SOUND, *arguments]) == 2
    assert f"pip install 'offline_gntd[{extra}]'" in capfd.readouterr().err
    assert not (home / "results").exists()
