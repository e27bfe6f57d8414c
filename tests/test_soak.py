"""Random faults against a small grid; its results must equal those of an undisturbed grid.

make soak SECONDS=600
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import bits
import pytest

from offline_gntd.experiments import grid
from offline_gntd.experiments.definitions import Experiment, Protocol

SMALL = "@hidden_dims=16x16@batch_size=32"
STUDY = Experiment(
    "study",
    ("cartpole-replay-small",),
    ("dqn" + SMALL, "gndqn" + SMALL),
    seeds=2,
    protocol=Protocol(steps=3_000, evaluate_every=1_000, evaluate_episodes=2),
)
COMMAND = ["run", "study", "--datasets", *STUDY.datasets, "--algorithms", *STUDY.algorithms, "--seeds", "2"]
COMMAND += ["--steps", "3000", "--evaluate-every", "1000", "--evaluate-episodes", "2", "--workers", "2"]
COMMAND += ["--checkpoint-seconds", "0.2"]
GRID_SECONDS = 240  # a lock whose owner is unreadable is waited for a minute


@pytest.mark.soak
def test_random_faults_change_no_bits(small_dataset, home, monkeypatch):
    seconds, seed = float(os.environ.get("SOAK_SECONDS", "60")), int(os.environ.get("SOAK_SEED", time.time()))
    print(f"\nSOAK_SEED={seed}")
    start = time.monotonic()
    grid.run(STUDY, workers=2, quiet=True)
    expected = bits.of_cells(STUDY.cells())
    soak = Soak(disk(home), random.Random(seed), pause=(time.monotonic() - start) / 3)
    try:
        shutil.copytree(home / "datasets", soak.home / "datasets")
        monkeypatch.setenv("OFFLINE_GNTD_HOME", str(soak.home))
        end, rounds = time.monotonic() + seconds, 0
        while time.monotonic() < end or not rounds:
            soak.round()
            assert differences(bits.of_cells(STUDY.cells()), expected) == [], keep(soak.home)
            rounds += 1
            shutil.rmtree(soak.home / "results")
    finally:
        subprocess.run(["umount", "-l", str(soak.home)], capture_output=True)
        print(f"faults: {dict(soak.faults)}; reactions: {dict(soak.reactions)}")
    print(f"{rounds} grids of {len(expected)} runs ended with the bits of the undisturbed one")


def differences(runs, expected):
    return [
        (run, part) for run in expected for part in expected[run] if runs[run][part] != expected[run][part]
    ]


def keep(home):
    """Copy the results to a folder that outlives the file system of the test; returns its path."""
    return shutil.copytree(home / "results", home.parent / "kept-results")


def disk(home):
    """A small file system of its own that can be filled, or a folder where it cannot be mounted."""
    folder = home / "soak"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        print("no right to mount a tmpfs: the disk is never full")
    return folder


class Soak:
    def __init__(self, home, draw, pause):
        """pause  mean seconds between two faults, of which one in six kills the grid"""
        self.home, self.draw, self.pause = home, draw, pause
        self.faults, self.reactions = Counter(), Counter()
        self.kinds = [self.kill, self.kill_grid, self.stop, self.flip, self.flip]
        if os.path.ismount(home):
            self.kinds.append(self.fill)

    def round(self):
        """Run the grid under faults until it is finished, then damage what it left and have that found."""
        while not self.run_grid():
            self.mend()
        for _ in range(3):
            self.flip()
        finished = False
        while not finished:
            finished = self.run_grid(disturbed=False)
            finished &= not self.mend()

    def run_grid(self, disturbed=True):
        """One command, with faults while it runs; whether it ended with everything done."""
        with (self.home.parent / "soak.log").open("w+") as log:
            command = [sys.executable, "-m", "offline_gntd", *COMMAND]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ)
            deadline = time.monotonic() + GRID_SECONDS
            while self.process.poll() is None:
                assert time.monotonic() < deadline, f"the grid hangs: {self.lines(log)}"
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(self.draw.uniform(0, 2 * self.pause))
                if disturbed and self.process.poll() is None and time.monotonic() < deadline - 120:
                    self.draw.choice(self.kinds)()
            lines = self.lines(log)
        assert self.process.returncode in (0, 1, 2, -signal.SIGKILL), lines
        assert "Traceback" not in lines
        self.reactions[f"exit {self.process.returncode}"] += 1
        return self.process.returncode == 0

    @staticmethod
    def lines(log):
        log.flush()
        log.seek(0)
        return log.read()

    def mend(self):
        """What the messages tell the user to do; whether there was anything to do."""
        command = [sys.executable, "-m", "offline_gntd", "status", "study", "--verify", "--json"]
        output = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=GRID_SECONDS)
        assert "Traceback" not in output.stderr, output.stderr
        if "delete it and run study again" in output.stderr:
            (self.home / "results/study/experiment.json").unlink()
            self.reactions["damaged experiment.json"] += 1
            return True
        if "no experiment 'study'" in output.stderr:
            return False
        assert output.returncode in (0, 2), output
        [status] = json.loads(output.stdout)
        damaged = [run for run in status["runs"] if run["damaged"]]
        for run in damaged:
            assert "delete its folder" in run["error"]
            self.reactions["damaged run"] += 1
            folder = self.home / "results/study" / run["dataset"] / run["algorithm"] / f"seed-{run['seed']}"
            shutil.rmtree(folder)
        return bool(damaged)

    # ---- the faults ----

    def workers(self):
        for path in (self.home / "results").glob("*/*/*/seed-*/run.json"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                process = json.loads(path.read_text())["process"]
                parent = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == self.process.pid:
                    yield process

    def kill(self):
        if workers := sorted(self.workers()):
            self.faults["worker killed"] += 1
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.draw.choice(workers), signal.SIGKILL)

    def kill_grid(self):
        self.faults["grid killed"] += 1
        self.process.kill()
        self.process.wait()

    def stop(self):
        process = self.draw.choice([self.process.pid, *self.workers()])
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGSTOP)
            self.faults["process stopped"] += 1
            time.sleep(self.draw.uniform(0.1, 3))
            os.kill(process, signal.SIGCONT)

    def flip(self):
        files = sorted(path for path in (self.home / "results").rglob("*") if path.is_file())
        with contextlib.suppress(OSError, IndexError, ValueError):
            path = self.draw.choice(files)
            content = bytearray(path.read_bytes())
            bit = self.draw.randrange(8 * len(content))
            content[bit // 8] ^= 1 << bit % 8
            times = path.stat().st_atime_ns, path.stat().st_mtime_ns
            with path.open("r+b") as file:
                file.write(content)
            os.utime(path, ns=times)  # a write would count as a heartbeat of a lock
            self.faults[f"bit flipped in {path.name.partition('-')[0]}"] += 1

    def fill(self):
        free = shutil.disk_usage(self.home).free
        ballast = self.home / "ballast"
        with contextlib.suppress(OSError):
            ballast.write_bytes(b"\0" * max(0, free - self.draw.choice([0, 20_000, 300_000])))
        self.faults["disk full"] += 1
        time.sleep(self.draw.uniform(0.2, 2))
        ballast.unlink(missing_ok=True)
