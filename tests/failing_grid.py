"""A grid of ten short cells, two of which fail: one by an exception, one because its worker is killed."""

import contextlib
import json
import os
import signal
import threading

from offline_gntd.experiments.definitions import Experiment, Protocol

SMALL = "@hidden_dims=16x16@batch_size=32"
BROKEN = "dqn@hidden_dims=9999999x9999999"  # too large for any machine: fails inside the run
VICTIM = "dqn@hidden_dims=256x256@batch_size=512"  # slow enough to be killed while it runs
SOUND = [f"{name}{SMALL}@learning_rate={rate / 1000}" for name in ("dqn", "gndqn") for rate in (1, 2, 3, 4)]
GRID = Experiment(
    "ten",
    ("cartpole-replay-small",),
    (*SOUND[:4], BROKEN, VICTIM, *SOUND[4:]),
    seeds=1,
    protocol=Protocol(steps=200, evaluate_every=100, evaluate_episodes=2),
)
COMMAND = ["run", GRID.name, "--datasets", *GRID.datasets, "--algorithms", *GRID.algorithms, "--seeds", "1"]
COMMAND += ["--steps", "200", "--evaluate-every", "100", "--evaluate-episodes", "2", "--workers", "2"]
COMMAND += ["--retries", "1"]


def cell_of(algorithm):
    [cell] = [cell for cell in GRID.cells() if cell.algorithm == algorithm]
    return cell


def sound_cells():
    return [cell for cell in GRID.cells() if cell.algorithm in SOUND]


@contextlib.contextmanager
def victim_killed():
    """Kill the worker of one cell whenever it is run; yields the killed process ids."""
    killed, over = [], threading.Event()
    description = cell_of(VICTIM).folder(0) / "run.json"

    def hunt():
        while not over.wait(0.005):
            with contextlib.suppress(OSError, ValueError):
                run = json.loads(description.read_text())
                if run["status"] == "running" and run["process"] not in killed:
                    os.kill(run["process"], signal.SIGKILL)
                    killed.append(run["process"])

    hunter = threading.Thread(target=hunt)
    hunter.start()
    try:
        yield killed
    finally:
        over.set()
        hunter.join()


def assert_two_failed(killed):
    """Two runs have the status failed, an error and a log; the others are done."""
    states = {cell.algorithm: json.loads((cell.folder(0) / "run.json").read_text()) for cell in GRID.cells()}
    assert {name for name, run in states.items() if run["status"] == "done"} == set(SOUND)
    assert {name for name, run in states.items() if run["status"] == "failed"} == {BROKEN, VICTIM}
    assert len(killed) == 2  # the attempt and its retry
    logs = {name: (cell_of(name).folder(0) / "run.log").read_text() for name in (BROKEN, VICTIM)}
    assert logs[BROKEN].count("Traceback") == 2
    assert states[BROKEN]["error"].splitlines() == [states[BROKEN]["error"]]
    assert "alloc" in states[BROKEN]["error"]
    assert logs[VICTIM].count(states[VICTIM]["error"]) == 2
    assert states[VICTIM]["log"] == str(
        cell_of(VICTIM).folder(0).relative_to(os.environ["OFFLINE_GNTD_HOME"]) / "run.log"
    )
    for cell in GRID.cells():
        assert not list(cell.folder(0).glob("lock-*"))
