"""A grid of 24 short cells, two of which fail: one by an exception, one because its worker is killed."""

import contextlib
import json
import os
import signal
import threading

from offline_gntd.experiments.definitions import Experiment, Protocol

SMALL = "@hidden_dims=16x16@batch_size=32"
BROKEN = "dqn@hidden_dims=9999999x9999999"  # too large for any machine: fails inside the run
VICTIM = "dqn@hidden_dims=512x512@batch_size=1024"  # slow enough to be met alive
SOUND = [
    f"{name}{SMALL}@learning_rate={rate / 1000}"
    for name in ("dqn", "gndqn")
    for rate in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
]
GRID = Experiment(
    "twenty-four",
    ("cartpole-replay-small",),
    (*SOUND[:10], BROKEN, VICTIM, *SOUND[10:]),
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
    """Kill the worker of one cell as often as it is run; yields the numbers of those killed."""
    killed, over = [], threading.Event()
    description = cell_of(VICTIM).folder(0) / "run.json"

    def hunt():
        while not over.wait(0.005):
            with contextlib.suppress(OSError, ValueError):
                about = json.loads(description.read_text())
                if about["status"] == "running" and about["process"] not in killed:
                    os.kill(about["process"], signal.SIGKILL)
                    killed.append(about["process"])

    hunter = threading.Thread(target=hunt)
    hunter.start()
    try:
        yield killed
    finally:
        over.set()
        hunter.join()


def assert_two_failed(killed):
    """22 done; the two failed with what is needed to know why."""
    states = {cell.algorithm: json.loads((cell.folder(0) / "run.json").read_text()) for cell in GRID.cells()}
    assert {name for name, about in states.items() if about["status"] == "done"} == set(SOUND)
    assert {name for name, about in states.items() if about["status"] == "failed"} == {BROKEN, VICTIM}
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
