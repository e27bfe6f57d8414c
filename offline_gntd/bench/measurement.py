"""Timings of updates, in rounds.

The presets are timed in turn, round after round, so that changes of the machine's speed affect all of them;
a result is the median over the rounds. Each timing runs in a process with one thread.
"""

import dataclasses
import json
import math
import multiprocessing
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import truediv
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from offline_gntd.algorithms import preset
from offline_gntd.bench import flops
from offline_gntd.configuration import to_dict
from offline_gntd.errors import UserError
from offline_gntd.nn.linalg import matmul
from offline_gntd.nn.mlp import PRECISIONS
from offline_gntd.processes import prepare
from offline_gntd.tasks import Task
from offline_gntd.transitions import Sampler, row_width

context = multiprocessing.get_context("forkserver")  # its processes start with torch imported
context.set_forkserver_preload([__name__])
ROWS = 1_000_000  # transitions that updates draw from
STACK = 5  # seeds of a stacked timing
TURN = 20  # updates at least, where two agents take turns
WARM_UP = 0.1  # seconds before a timing; buffers are allocated when they are first needed
GEMM = 256  # rows and columns of the matrix product that measures the ceiling


def _task(name: str, obs_dim: int, action_dim: int, discrete: bool) -> Task:
    return Task(name, obs_dim, action_dim, discrete, 0.0, 1.0, "not used by a timing")


SIZES = {
    "halfcheetah": _task("HalfCheetah", 17, 6, discrete=False),
    "hopper": _task("Hopper", 11, 3, discrete=False),
    "cartpole": _task("CartPole", 4, 2, discrete=True),
    "acrobot": _task("Acrobot", 6, 3, discrete=True),
}
MAIN_SIZE = {False: "halfcheetah", True: "cartpole"}  # of continuous and discrete presets


def settings(name: str) -> Any:
    """A preset's settings as they are for most of a long run: after CQL's warm-up."""
    config = preset(name).config
    return dataclasses.replace(config, warm_up=0) if hasattr(config, "warm_up") else config


def random_rows(task: Task, count: int) -> Tensor:
    """Random transitions [count, row_width]: an update's time does not depend on their values."""
    rows = torch.empty(count, row_width(task)).normal_(generator=torch.Generator().manual_seed(0))
    action = rows[:, task.obs_dim : -task.obs_dim - 2]
    action.copy_(action.abs().remainder(task.action_dim).floor() if task.discrete else action.tanh())
    rows[:, -1] = (rows[:, -1] > 2).float()
    return rows


class TimedAgent:
    """An agent of a preset with the rows it draws from; `without_kfac` removes its curvature."""

    def __init__(self, name: str, size: str, rows: Tensor, stack: int = 1, without_kfac: bool = False):
        self.config, self.task, self.rows = settings(name), SIZES[size], rows
        if without_kfac:
            self.config = dataclasses.replace(self.config, kfac=None)
        self.generators = [torch.Generator().manual_seed(seed) for seed in range(stack)]
        self.sample = Sampler(self.task, self.config.batch_size, self.generators)
        obs = rows[:, : self.task.obs_dim]
        self.agent = self.config.agent(self.task, self.generators, (obs.mean(0), obs.std(0)))
        kfac = getattr(self.config, "kfac", None)
        periods = (kfac.factor_every, kfac.inverse_every) if kfac else ()
        # a timing covers whole periods of K-FAC and of a delayed actor
        self.period = math.lcm(getattr(self.config, "policy_freq", 1), *periods)
        self.rate(WARM_UP)

    def update(self) -> None:
        self.agent.update(self.sample(self.rows))

    def rate(self, seconds: float) -> float:
        """Updates per second, summed over the seeds."""
        return len(self.generators) * rate(self.update, seconds, self.period)


def rate(call: Callable[[], Any], seconds: float, period: int = 1) -> float:
    """Calls per second, measured over at least this many seconds and a whole number of periods."""
    calls, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds or not calls:
        for _ in range(period):
            call()
        calls += period
    return calls / elapsed


def gemm_flops(precision: str = "float32", seconds: float = 0.2) -> float:
    """Floating-point operations per second of a matrix product on this thread."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 1, GEMM, GEMM, generator=generator).to(PRECISIONS[precision])
    out = torch.empty_like(a)
    return 2 * GEMM**3 * rate(lambda: matmul(a, b, out), seconds)


@dataclass
class Timings:
    """Measurements of a preset at a size, one value per round."""

    rates: list[float] = field(default_factory=list)  # updates per second, one thread
    ceilings: list[float] = field(default_factory=list)  # FLOP/s of matrix products in the preset's precision
    workers: list[float] = field(default_factory=list)  # updates per second of all workers
    stacked: list[float] = field(default_factory=list)  # rate of STACK seeds in one process / rate
    kfac: list[float] = field(default_factory=list)  # time of an update / time without curvature

    def summary(self, name: str, size: str, peak_mib: float) -> dict[str, Any]:
        config = settings(name)
        kfac, needed = getattr(config, "kfac", None), flops.of_update(config, SIZES[size])
        pairs = zip(self.rates, self.ceilings, strict=True)
        shares = [needed * rate / ceiling for rate, ceiling in pairs] if needed else []
        return {
            "updates_per_s": median(self.rates),
            "minimal_mflop": needed / 1e6 if needed else None,
            "precision": getattr(config, "precision", "float32"),
            "ceiling_gflops": median(self.ceilings) / 1e9,
            "ceiling_fraction": median(shares) if shares else None,
            "workers_updates_per_s": median(self.workers),
            "workers_ratio": median(map(truediv, self.workers, self.rates)),
            "stacked_ratio": median(self.stacked) if self.stacked else None,
            "kfac_ratio": median(self.kfac) if self.kfac else None,
            "peak_mib": peak_mib,
            "factor_period": kfac.factor_every if kfac else None,
            "inverse_period": kfac.inverse_every if kfac else None,
            "hidden_dims": list(getattr(config, "hidden_dims", ())),
        }


class Bench:
    """Timings of (preset, size) pairs: in one process, and in all workers at once."""

    def __init__(self, pairs: Sequence[tuple[str, str]], workers: int, seconds: float, rows: int = ROWS):
        self.pairs, self.workers, self.seconds, self.rows = pairs, workers, seconds, rows
        self.timings = {pair: Timings() for pair in pairs}

    def run(self, rounds: int, peer: "D3rlpy | None", report: Callable[[], Any]) -> None:
        """Time every pair in every round; `report` is called after each."""
        barrier = context.Barrier(self.workers)
        with (
            context.Pool(1, prepare) as single,
            context.Pool(self.workers, _prepare_with, (barrier,)) as team,
        ):
            for _ in range(rounds):
                for name, size in self.pairs:
                    self._time(name, size, single, team)
                    if peer:
                        peer.time(name, size, self.seconds)
                    report()

    def _time(self, name: str, size: str, single, team) -> None:
        timings, arguments = self.timings[name, size], (name, size, self.rows, self.seconds)
        updates, ceiling = single.apply(_rate_and_ceiling, arguments)
        timings.rates.append(updates)
        timings.ceilings.append(ceiling)
        timings.workers.append(sum(team.starmap(_rate_together, [arguments] * self.workers, chunksize=1)))
        if SIZES[size].discrete:  # small networks, of which runs train several seeds in one process
            stacked, _ = single.apply(_rate_and_ceiling, (*arguments, STACK))
            timings.stacked.append(stacked / updates)
        if getattr(settings(name), "kfac", None):
            timings.kfac.append(single.apply(_kfac_ratio, arguments))

    def summary(self) -> dict[tuple[str, str], dict[str, Any]]:
        summaries = {}
        for name, size in self.pairs:
            with context.Pool(1, prepare) as fresh:
                peak = fresh.apply(_peak_mib, (name, size, self.rows))
            summaries[name, size] = self.timings[name, size].summary(name, size, peak)
        return summaries


# ---- called in the timing processes ----

_barrier: Any = None
_rows: dict[str, Tensor] = {}


def _prepare_with(barrier) -> None:
    global _barrier
    prepare()
    _barrier = barrier


def _rows_of(size: str, count: int) -> Tensor:
    if size not in _rows:
        _rows[size] = random_rows(SIZES[size], count)
    return _rows[size]


def _rate_and_ceiling(name: str, size: str, rows: int, seconds: float, stack: int = 1) -> tuple[float, float]:
    """Updates per second, and the FLOP/s of matrix products: the mean of just before and just after."""
    agent = TimedAgent(name, size, _rows_of(size, rows), stack)
    precision = getattr(agent.config, "precision", "float32")
    before = gemm_flops(precision)
    updates = agent.rate(seconds)
    return updates, (before + gemm_flops(precision)) / 2


def _kfac_ratio(name: str, size: str, rows: int, seconds: float) -> float:
    """Time of an update / time without curvature. The two take short turns, so that changes of the machine's
    speed affect both."""
    agent = TimedAgent(name, size, _rows_of(size, rows))
    plain = TimedAgent(name, size, _rows_of(size, rows), without_kfac=True)
    turn = agent.period * -(-TURN // agent.period)  # whole periods; plain's period divides it
    spent = spent_plain = 0.0  # seconds
    while spent_plain < seconds:
        spent += turn / rate(agent.update, 0.0, turn)
        spent_plain += turn / rate(plain.update, 0.0, turn)
    return spent / spent_plain


def _rate_together(name: str, size: str, rows: int, seconds: float) -> float:
    agent = TimedAgent(name, size, _rows_of(size, rows))
    _barrier.wait()
    return agent.rate(seconds)


def _peak_mib(name: str, size: str, rows: int) -> float:
    TimedAgent(name, size, random_rows(SIZES[size], rows)).rate(0.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# ---- another library, in the same rounds ----


class D3rlpy:
    """d3rlpy in a separate Python environment; bench/d3rlpy_peer.py answers over a pipe."""

    name = "d3rlpy"
    algorithms = ("bc", "td3_bc", "bcq", "cql")

    def __init__(self, python: Path, rows: int):
        path = shutil.which(python)
        if not path or subprocess.run([path, "-c", "import d3rlpy"], capture_output=True).returncode:
            raise UserError(f"no Python with d3rlpy at {python}; install one with: make peers")
        self.rows = rows  # transitions that it draws from
        self.rates: dict[str, list[float]] = {}
        self._process = subprocess.Popen(
            [python, Path(__file__).with_name("d3rlpy_peer.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def time(self, name: str, size: str, seconds: float) -> None:
        """Time the same algorithm once, if d3rlpy has it."""
        if name not in self.algorithms or size != "halfcheetah":
            return
        task = SIZES[size]
        request = {
            "algorithm": name,
            "obs_dim": task.obs_dim,
            "action_dim": task.action_dim,
            "rows": self.rows,
            "seconds": seconds,
        }
        assert self._process.stdin is not None  # it was started with both pipes
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request | {"config": to_dict(settings(name))}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise UserError("d3rlpy stopped without an answer; check its environment with: make conformance")
        self.rates.setdefault(name, []).append(json.loads(answer))

    def summary(self, ours: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
        """d3rlpy's updates per second, and the ratio of ours to it: the median over rounds."""
        return {
            name: {
                "updates_per_s": median(rates),
                "ratio": median(our / their for our, their in zip(ours[name], rates, strict=True)),
            }
            for name, rates in self.rates.items()
        }

    def close(self) -> None:
        self._process.communicate()  # closes its input and waits
