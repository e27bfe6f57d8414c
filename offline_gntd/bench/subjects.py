"""What is timed: updates of a preset on transitions of a task's size, and the machine's matrix products."""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from offline_gntd.algorithms import preset
from offline_gntd.nn.linalg import matmul
from offline_gntd.tasks import Task
from offline_gntd.transitions import Sampler, row_width

WARM_UP = 0.1  # seconds, and a period at least: buffers are made as they are first needed
GEMM = 256  # rows and columns of the product whose rate is the ceiling


def _task(name: str, obs_dim: int, action_dim: int, discrete: bool) -> Task:
    return Task(name, obs_dim, action_dim, discrete, 0.0, 1.0, "not needed to time an update")


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


def transitions(task: Task, rows: int) -> Tensor:
    """Rows with nothing to learn from; what they hold does not change an update's time."""
    made = torch.empty(rows, row_width(task)).normal_(generator=torch.Generator().manual_seed(0))
    action = made[:, task.obs_dim : -task.obs_dim - 2]
    action.copy_(action.abs().remainder(task.action_dim).floor() if task.discrete else action.tanh())
    made[:, -1] = (made[:, -1] > 2).float()
    return made


class Subject:
    """An agent of a preset, ready to be timed; `plain`, without its curvature."""

    def __init__(self, name: str, size: str, rows: Tensor, stack: int = 1, plain: bool = False):
        self.config, self.task, self.rows = settings(name), SIZES[size], rows
        if plain:
            self.config = dataclasses.replace(self.config, kfac=None)
        self.generators = [torch.Generator().manual_seed(seed) for seed in range(stack)]
        self.sample = Sampler(self.task, self.config.batch_size, self.generators)
        obs = rows[:, : self.task.obs_dim]
        self.agent = self.config.agent(self.task, self.generators, (obs.mean(0), obs.std(0)))
        kfac = getattr(self.config, "kfac", None)
        curvature = (kfac.factor_every, kfac.inverse_every) if kfac else ()
        # a timing covers whole periods of K-FAC and of a delayed actor
        self.period = math.lcm(getattr(self.config, "policy_freq", 1), *curvature)
        self.rate(WARM_UP)

    def update(self) -> None:
        self.agent.update(self.sample(self.rows))

    def rate(self, seconds: float) -> float:
        """Updates per second of every seed, over at least so long."""
        return len(self.generators) * rate(self.update, seconds, self.period)


def rate(call: Callable[[], Any], seconds: float, period: int = 1) -> float:
    """Calls per second, over at least so long and a whole number of periods."""
    calls, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds or not calls:
        for _ in range(period):
            call()
        calls += period
    return calls / elapsed


def gemm_flops(seconds: float = 0.2) -> float:
    """Floating-point operations per second of a float32 matrix product on this thread."""
    a, b = (torch.randn(1, GEMM, GEMM, generator=torch.Generator().manual_seed(i)) for i in range(2))
    out = torch.empty_like(a)
    return 2 * GEMM**3 * rate(lambda: matmul(a, b, out), seconds)
