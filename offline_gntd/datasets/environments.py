"""Gymnasium environments, made quietly, and the evaluation every score comes from."""

import warnings
from collections.abc import Callable, Sequence

import gymnasium
import numpy as np
import torch
from torch import Tensor

from offline_gntd.tasks import Task


def make(env_id: str) -> gymnasium.Env:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # out-of-date versions are chosen on purpose
        return gymnasium.make(env_id)


class Evaluator:
    """Whole episodes of a stack of policies, stepped together.

    Every episode has an environment of its own and is waited for, so short episodes are not favoured. Its
    start depends on the seed, the key and its number alone: results do not depend on what ran before.
    """

    def __init__(self, task: Task, seeds: Sequence[int], episodes: int):
        self.task, self.seeds, self.episodes = task, tuple(seeds), episodes
        self.environments = [make(task.env_id) for _ in range(len(seeds) * episodes)]

    def returns(self, act: Callable[[Tensor], Tensor], key: int, device: str = "cpu") -> np.ndarray:
        """Undiscounted returns [seeds, episodes] of act: obs [seeds, episodes, obs_dim] -> actions."""
        shape = (len(self.seeds), self.episodes)
        obs = np.zeros((shape[0] * shape[1], self.task.obs_dim), np.float32)
        returns = np.zeros(len(obs))
        for i, environment in enumerate(self.environments):
            start = np.random.SeedSequence([self.seeds[i // self.episodes], key, i % self.episodes])
            obs[i], _ = environment.reset(seed=int(start.generate_state(1)[0]))
        live = list(range(len(obs)))
        while live:
            actions = act(torch.from_numpy(obs).view(*shape, -1).to(device)).cpu().numpy()
            actions = actions.reshape(len(obs), *actions.shape[2:])
            still_live = []
            for i in live:
                obs[i], reward, terminated, truncated, _ = self.environments[i].step(actions[i])
                returns[i] += reward
                if not (terminated or truncated):
                    still_live.append(i)
            live = still_live
        return returns.reshape(shape)

    def close(self) -> None:
        for environment in self.environments:
            environment.close()
