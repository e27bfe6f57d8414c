"""Where a run's batches come from: drawn from a dataset, or collected by the very policy that is learned."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offline_gntd.collection.vector_collector import VectorCollector
from offline_gntd.datasets import Arena, Dataset
from offline_gntd.experiments.sources import Source
from offline_gntd.nn.normaliser import Statistics
from offline_gntd.transitions import Sampler, Transitions, from_rows

COLLECTING = 2**32 - 1  # keys the streams of a seed, apart from its evaluations, whose key is a step


class Drawn:
    """Batches drawn uniformly from the rows of a dataset, by each seed's generator."""

    def __init__(self, dataset: Dataset, batch_size: int, generators: Sequence[torch.Generator], device: str):
        self.sample = Sampler(dataset.task, batch_size, generators)
        self.rows = dataset.rows if device == "cpu" else dataset.rows.to(device)
        self.statistics: Statistics | None = (
            torch.from_numpy(dataset.obs_mean),
            torch.from_numpy(dataset.obs_std),
        )
        # for what is measured over all of them, where the networks are
        self.transitions: Transitions | None = from_rows(self.rows, dataset.task)

    def batch(self, agent: Any) -> Transitions:
        return self.sample(self.rows)

    def metrics(self, i: int) -> dict[str, float]:
        return {}

    def state(self, i: int) -> dict[str, Tensor]:
        return {}

    def restore(self, states: Sequence[dict[str, Tensor]]) -> None:
        pass

    def close(self) -> None:
        pass


class Collected:
    """Batches lived by the agent's policy as it is now, each used once.

    Every seed has environments of its own, in which episodes go on from one batch to the next; all seeds are
    asked for their actions in one pass.
    """

    statistics = transitions = None  # nothing is known before it is lived

    def __init__(self, arena: Arena, config: Any, seeds: Sequence[int], device: str):
        self.task, self.device = arena.task, device
        self.rounds = config.batch_size // config.environments
        self.streams = [
            VectorCollector(arena.task, (seed, COLLECTING), self.rounds, config.environments) for seed in seeds
        ]
        self.so_far = torch.zeros(len(seeds), config.environments, dtype=torch.float64)  # of present episodes
        self.ended: list[list[float]] = [[] for _ in seeds]  # returns of episodes since the last evaluation

    def batch(self, agent: Any) -> Transitions:
        for streams in self.streams:
            streams.forget()
        for _ in range(self.rounds):
            obs = torch.stack([streams.obs for streams in self.streams])
            actions = agent.explore(obs.to(self.device)).cpu()  # [seeds, environments, action_dim]
            for streams, action in zip(self.streams, actions, strict=True):
                streams.step(action)
        self._count()
        rows = torch.stack([streams.kept.rows.flatten(0, 1) for streams in self.streams])
        return from_rows(rows.to(self.device), self.task)

    def _count(self) -> None:
        """Add the batch's rewards to the returns of the episodes they belong to."""
        reward = self.task.obs_dim + self.task.action_dim
        for so_far, ended, streams in zip(self.so_far.numpy(), self.ended, self.streams, strict=True):
            rewards, over = streams.kept.rows[..., reward].double().numpy(), streams.kept.over.numpy()
            for i, mine in enumerate(rewards.T):
                last = 0
                for end in (np.flatnonzero(over[:, i]) + 1).tolist():
                    ended.append(float(so_far[i] + mine[last:end].sum()))
                    so_far[i], last = 0.0, end
                so_far[i] += mine[last:].sum()

    def metrics(self, i: int) -> dict[str, float]:
        """The mean return of the episodes that ended since this was last asked, if any did."""
        ended, self.ended[i] = self.ended[i], []
        return {"collected_return": float(np.mean(ended))} if ended else {}

    def state(self, i: int) -> dict[str, Tensor]:
        lived = {f"streams.{name}": tensor for name, tensor in self.streams[i].state().items()}
        ended = torch.tensor(self.ended[i], dtype=torch.float64)
        return lived | {"streams.so_far": self.so_far[i].clone(), "streams.ended": ended}

    def restore(self, states: Sequence[dict[str, Tensor]]) -> None:
        for i, (streams, state) in enumerate(zip(self.streams, states, strict=True)):
            mine = {
                name.removeprefix("streams."): tensor
                for name, tensor in state.items()
                if name.startswith("streams.")
            }
            self.so_far[i], self.ended[i] = mine.pop("so_far"), mine.pop("ended").tolist()
            streams.restore(mine)

    def close(self) -> None:
        for streams in self.streams:
            streams.close()


def experience(
    source: Source, config: Any, seeds: Sequence[int], generators: Sequence[torch.Generator], device: str
) -> Drawn | Collected:
    if isinstance(source, Arena):
        return Collected(source, config, seeds, device)
    return Drawn(source, config.batch_size, generators, device)
