"""Online learning: environments stepped by the agent's exploration policy, a replay buffer, and batches.

The discrete datasets, the MuJoCo splits and the online algorithms of a grid all learn this way. A checkpoint
holds the replay buffer and, for each environment, the number of its episode and the actions taken in it; the
episode is replayed when a run resumes.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from offline_gntd.collection.vector_collector import VectorCollector
from offline_gntd.nn.noise import uniform
from offline_gntd.tasks import Task
from offline_gntd.transitions import Sampler, Transitions, row_width

COLLECTING = 2**32 - 1  # second part of the key of a seed's environments; evaluations use their step
PREFIX = "online."  # of names in a checkpoint
MEASURED_CALLS = 200  # to measure a rate, at most …
MEASURED_SECONDS = 2.0  # … and for at most this long


@dataclass(frozen=True)
class OnlineSettings:
    batch_size: int
    random_steps: int  # uniformly random steps before the first update
    buffer_size: int  # transitions of a seed that are stored; then the oldest are overwritten
    environments: int = 1  # per seed, stepped together
    updates_per_step: float = 1.0  # per step of one environment
    timeouts_terminal: bool = False  # whether a time limit stops bootstrapping in the batches


class ReplayBuffer:
    """The last `capacity` transitions of each seed, in one tensor so that a batch is one gather."""

    def __init__(self, task: Task, seeds: int, capacity: int, device: str = "cpu"):
        self.capacity = capacity
        self.rows = torch.zeros(seeds, capacity, row_width(task), device=device)  # terminated as in batches
        self.truncated = torch.zeros(seeds, capacity, dtype=torch.bool)
        self.added = 0  # transitions of each seed, overwritten ones included

    def __len__(self) -> int:
        """Stored transitions of each seed."""
        return min(self.added, self.capacity)

    def add(self, rows: Sequence[Tensor], truncated: Sequence[Tensor]) -> None:
        """Store the same number n of transitions of every seed: rows [n, row_width] and truncated [n]."""
        count = len(rows[0])
        places = (self.added + torch.arange(count)) % self.capacity
        for seed, (new_rows, new_truncated) in enumerate(zip(rows, truncated, strict=True)):
            self.rows[seed, places] = new_rows.to(self.rows.device)
            self.truncated[seed, places] = new_truncated
        self.added += count

    def ranges(self) -> list[tuple[int, int]]:
        """Each seed's part of rows.flatten(0, 1)."""
        return [(i * self.capacity, i * self.capacity + len(self)) for i in range(len(self.rows))]

    def in_order(self, seed: int) -> tuple[Tensor, Tensor]:
        """Copies of the rows [n, row_width] and truncated [n] of a seed, oldest first."""
        oldest = self.added % self.capacity if self.added > self.capacity else 0
        order = (oldest + torch.arange(len(self))) % self.capacity
        return self.rows[seed, order].cpu(), self.truncated[seed, order]

    def restore(self, rows: Sequence[Tensor], truncated: Sequence[Tensor], added: int) -> None:
        """Store what `in_order` returned for each seed after `added` transitions."""
        self.added = added - len(rows[0])
        self.add(rows, truncated)


class OnlineBatches:
    """Collects transitions in every seed's environments and draws batches from those collected so far."""

    statistics = None  # of observations: unknown in advance
    transitions = None  # no dataset to measure over

    def __init__(
        self,
        task: Task,
        settings: OnlineSettings,
        seeds: Sequence[int],
        generators: Sequence[torch.Generator],
        stream: int = COLLECTING,
    ):
        """stream  with a seed, the key of its environments' episodes"""
        self.task, self.settings, self.generators = task, settings, generators
        self.device = str(generators[0].device)
        self.collectors = [VectorCollector(task, (seed, stream), settings.environments) for seed in seeds]
        self.buffer = ReplayBuffer(task, len(seeds), settings.buffer_size, self.device)
        self.sampler = Sampler(task, settings.batch_size, generators)
        self.steps = 0  # of each seed, all its environments together
        # for each seed: return so far of each environment's episode, and returns of finished episodes
        self.current_returns = torch.zeros(len(seeds), settings.environments, dtype=torch.float64)
        self.finished_returns: list[list[float]] = [[] for _ in seeds]

    def batch(self, agent) -> Transitions | None:
        """Take one step in every environment; then a batch per seed, or None during the random steps."""
        return self.sample() if self.step(agent.explore) else None

    def step(self, explore: Callable[[Tensor], Tensor]) -> int:
        """One step in every environment, random at first. Returns the number of updates that it makes due.

        explore  obs [seeds, environments, obs_dim] -> actions [seeds, environments, …]
        """
        if self.steps < self.settings.random_steps:
            actions = self._random_actions()
        else:
            obs = torch.stack([collector.obs for collector in self.collectors])
            actions = explore(obs.to(self.device))
        due = self._updates_due()
        taken = zip(self.collectors, actions.cpu(), strict=True)
        rows, truncated = zip(*(collector.step(action) for collector, action in taken), strict=True)
        self._count_returns(rows, truncated)
        if self.settings.timeouts_terminal:
            for seed_rows, cut in zip(rows, truncated, strict=True):
                seed_rows[cut, -1] = 1.0
        self.buffer.add(rows, truncated)
        self.steps += self.settings.environments
        return self._updates_due() - due

    def _updates_due(self) -> int:
        """Updates that should have been made by now."""
        return int(max(0, self.steps - self.settings.random_steps) * self.settings.updates_per_step)

    def sample(self) -> Transitions:
        """A batch for each seed, drawn uniformly from its part of the buffer."""
        return self.sampler(self.buffer.rows.flatten(0, 1), self.buffer.ranges())

    def reset(self) -> None:
        """Abandon the current episodes and begin new ones."""
        for collector in self.collectors:
            collector.reset()
        self.current_returns.zero_()

    def _random_actions(self) -> Tensor:
        count = self.settings.environments
        if not self.task.discrete:
            return uniform(self.generators, count, self.task.action_dim)
        shape, choices = (count,), self.task.action_dim
        draws = [torch.randint(choices, shape, generator=g, device=g.device) for g in self.generators]
        return torch.stack(draws)

    def _count_returns(self, rows: Sequence[Tensor], truncated: Sequence[Tensor]) -> None:
        reward = -self.task.obs_dim - 2
        for i, (seed_rows, cut) in enumerate(zip(rows, truncated, strict=True)):
            self.current_returns[i] += seed_rows[:, reward].double()
            for j in torch.nonzero(cut | seed_rows[:, -1].bool())[:, 0].tolist():
                self.finished_returns[i].append(float(self.current_returns[i, j]))
                self.current_returns[i, j] = 0.0

    def metrics(self, i: int) -> dict[str, float]:
        """Mean return of a seed's episodes that ended since the last call, if any did."""
        finished, self.finished_returns[i] = self.finished_returns[i], []
        return {"collected_return": float(np.mean(finished))} if finished else {}

    def state(self, i: int) -> dict[str, Tensor]:
        """Everything that seed i's future batches depend on, except its generator."""
        rows, truncated = self.buffer.in_order(i)
        state = self.collectors[i].state() | {
            "steps": torch.tensor(self.steps),
            "rows": rows,
            "truncated": truncated,
            "current_returns": self.current_returns[i].clone(),
            "finished_returns": torch.tensor(self.finished_returns[i], dtype=torch.float64),
        }
        return {f"{PREFIX}{name}": tensor for name, tensor in state.items()}

    def restore(self, states: Sequence[dict[str, Tensor]]) -> None:
        """Continue from the states of all seeds."""
        parts = [
            {name.removeprefix(PREFIX): tensor for name, tensor in state.items() if name.startswith(PREFIX)}
            for state in states
        ]
        self.steps = int(parts[0]["steps"])
        self.buffer.restore(
            [part["rows"] for part in parts], [part["truncated"] for part in parts], self.steps
        )
        for i, part in enumerate(parts):
            self.current_returns[i] = part["current_returns"]
            self.finished_returns[i] = part["finished_returns"].tolist()
            self.collectors[i].restore(part)

    def close(self) -> None:
        for collector in self.collectors:
            collector.close()


def measure_rate(work: Callable[[], object], most: int) -> float:
    """Calls of `work` per second, without the first one, which may be slower. Makes at most `most` calls."""
    work()
    began, count = time.perf_counter(), 0
    while count < max(1, min(MEASURED_CALLS, most - 1)):
        work()
        count += 1
        if time.perf_counter() - began >= MEASURED_SECONDS:
            break
    return count / (time.perf_counter() - began)
