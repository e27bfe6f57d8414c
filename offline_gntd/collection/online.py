"""Online learning: environments stepped by the agent's exploration policy, a replay buffer, and batches.

The discrete datasets and the online algorithms of a grid learn this way. A checkpoint holds the
transitions in the buffer and, for each environment, the number of its episode and the actions taken in it:
an episode depends on nothing else, so it is replayed when a run resumes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from offline_gntd.collection.vector_collector import VectorCollector
from offline_gntd.nn.noise import uniform
from offline_gntd.tasks import Task
from offline_gntd.transitions import Sampler, Transitions, row_width

COLLECTING = 2**32 - 1  # distinguishes a seed's environments from its evaluations, which have a step here


@dataclass(frozen=True)
class OnlineSettings:
    """What `OnlineBatches` needs to know; an online algorithm's settings have these fields too."""

    batch_size: int
    random_steps: int  # uniformly random steps before the first batch
    buffer_size: int  # transitions of a seed that are stored; the oldest are overwritten
    environments: int = 1  # of each seed, stepped together
    timeouts_terminal: bool = False  # whether a time limit stops bootstrapping in the batches


class ReplayBuffer:
    """The last `capacity` transitions of each seed, in one tensor so that a batch is one gather."""

    def __init__(self, task: Task, seeds: int, capacity: int):
        self.capacity = capacity
        self.rows = torch.zeros(seeds, capacity, row_width(task))  # terminated as in the batches
        self.truncated = torch.zeros(seeds, capacity, dtype=torch.bool)
        self.added = 0  # transitions of each seed, overwritten ones included

    def __len__(self) -> int:
        """Stored transitions of each seed."""
        return min(self.added, self.capacity)

    def add(self, seed: int, rows: Tensor, truncated: Tensor) -> None:
        """Store n transitions of one seed; after all seeds, call `advance(n)`."""
        place = (self.added + torch.arange(len(rows))) % self.capacity
        self.rows[seed, place], self.truncated[seed, place] = rows, truncated

    def advance(self, count: int) -> None:
        self.added += count

    def ranges(self) -> list[tuple[int, int]]:
        """Each seed's part of rows.flatten(0, 1)."""
        return [(i * self.capacity, i * self.capacity + len(self)) for i in range(len(self.rows))]

    def in_order(self, seed: int) -> tuple[Tensor, Tensor]:
        """Rows [n, row_width] and truncated [n] of a seed, oldest first."""
        oldest = self.added % self.capacity if self.added > self.capacity else 0
        order = (oldest + torch.arange(len(self))) % self.capacity
        return self.rows[seed, order], self.truncated[seed, order]

    def restore(self, seed: int, rows: Tensor, truncated: Tensor, added: int) -> None:
        """Put back what `in_order` gave when `added` transitions had been added."""
        self.added = added - len(rows)
        self.add(seed, rows, truncated)
        self.added = added


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
        device: str = "cpu",
    ):
        self.task, self.settings, self.generators, self.device = task, settings, generators, device
        self.collectors = [VectorCollector(task, (s, COLLECTING), 1, settings.environments) for s in seeds]
        self.buffer = ReplayBuffer(task, len(seeds), settings.buffer_size)
        self.sampler = Sampler(task, settings.batch_size, generators)
        self.steps = 0  # of each seed, all its environments together
        # for each seed: return so far of each environment's episode, and returns of finished episodes
        self.current_returns = torch.zeros(len(seeds), settings.environments, dtype=torch.float64)
        self.finished_returns: list[list[float]] = [[] for _ in seeds]

    def batch(self, agent) -> Transitions | None:
        """Take one step in every environment; then a batch per seed, or None during the random steps."""
        self.step(agent.explore)
        return None if self.steps <= self.settings.random_steps else self.sample()

    def step(self, explore: Callable[[Tensor], Tensor]) -> None:
        """One step in every environment, random at first.

        explore  obs [seeds, environments, obs_dim] -> actions [seeds, environments, …]
        """
        if self.steps < self.settings.random_steps:
            actions = self._random_actions()
        else:
            obs = torch.stack([collector.obs for collector in self.collectors])
            actions = explore(obs.to(self.device)).cpu()
        for i, (collector, action) in enumerate(zip(self.collectors, actions, strict=True)):
            collector.forget()
            collector.step(action)
            rows, truncated = collector.kept.rows[0].clone(), collector.kept.truncated[0]
            self._count_returns(i, rows, truncated)
            if self.settings.timeouts_terminal:
                rows[truncated, -1] = 1.0
            self.buffer.add(i, rows, truncated)
        self.buffer.advance(self.settings.environments)
        self.steps += self.settings.environments

    def sample(self) -> Transitions:
        """A batch for each seed, drawn uniformly from its part of the buffer."""
        batch = self.sampler(self.buffer.rows.flatten(0, 1).to(self.device), self.buffer.ranges())
        return batch

    def reset(self) -> None:
        """Abandon the current episodes and begin new ones."""
        for collector in self.collectors:
            collector.reset()
        self.current_returns.zero_()

    def _random_actions(self) -> Tensor:
        count = self.settings.environments
        if not self.task.discrete:
            return uniform(self.generators, count, self.task.action_dim).cpu()
        draws = [
            torch.randint(self.task.action_dim, (count,), generator=generator, device=generator.device)
            for generator in self.generators
        ]
        return torch.stack(draws).cpu()

    def _count_returns(self, i: int, rows: Tensor, truncated: Tensor) -> None:
        rewards = rows[:, -self.task.obs_dim - 2].double()
        self.current_returns[i] += rewards
        for j in torch.nonzero(truncated | rows[:, -1].bool())[:, 0].tolist():
            self.finished_returns[i].append(float(self.current_returns[i, j]))
            self.current_returns[i, j] = 0.0

    def metrics(self, i: int) -> dict[str, float]:
        """Mean return of a seed's episodes that ended since the last call, if any did."""
        finished, self.finished_returns[i] = self.finished_returns[i], []
        return {"collected_return": float(np.mean(finished))} if finished else {}

    def state(self, i: int) -> dict[str, Tensor]:
        """Everything that seed i's future batches depend on, but for its generator."""
        rows, truncated = self.buffer.in_order(i)
        state = self.collectors[i].state() | {
            "steps": torch.tensor(self.steps),
            "rows": rows,
            "truncated": truncated,
            "current_returns": self.current_returns[i].clone(),
            "finished_returns": torch.tensor(self.finished_returns[i], dtype=torch.float64),
        }
        return {f"online.{name}": tensor for name, tensor in state.items()}

    def restore(self, states: Sequence[dict[str, Tensor]]) -> None:
        """Continue from the states of all seeds."""
        for i, state in enumerate(states):
            own = {name.removeprefix("online."): t for name, t in state.items() if name.startswith("online.")}
            self.steps = int(own.pop("steps"))
            self.buffer.restore(i, own.pop("rows"), own.pop("truncated"), self.steps)
            self.current_returns[i] = own.pop("current_returns")
            self.finished_returns[i] = own.pop("finished_returns").tolist()
            self.collectors[i].restore(own)

    def close(self) -> None:
        for collector in self.collectors:
            collector.close()
