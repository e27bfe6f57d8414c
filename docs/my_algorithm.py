"""An algorithm and a dataset of one's own, in one file: a logistic policy, and CartPole under a clumsy hand.

offline-gntd run mine --import my_algorithm.py --algorithms logistic dqn --datasets cartpole-clumsy
"""

from collections.abc import Sequence
from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
from torch import Tensor

from offline_gntd.algorithms import Preset
from offline_gntd.datasets import Source
from offline_gntd.tasks import Task
from offline_gntd.transitions import Transitions


@dataclass(frozen=True)
class Logistic:
    """Its fields are what --set changes: --set learning_rate=0.1"""

    batch_size: int = 256
    learning_rate: float = 0.5

    discrete = True  # not a field: which actions it learns

    def agent(self, task: Task, generators: Sequence[torch.Generator], obs_statistics=None) -> "Agent":
        return Agent(self, task, generators)


class Agent:
    """Clones the data's actions by logistic regression; one set of weights per seed."""

    def __init__(self, config: Logistic, task: Task, generators: Sequence[torch.Generator]):
        shape = (task.obs_dim, task.action_dim)
        self.config = config
        self.weights = torch.stack([0.01 * torch.randn(shape, generator=g) for g in generators])  # [seeds, …]

    def act(self, obs: Tensor) -> Tensor:
        return (obs @ self.weights).argmax(-1)

    def update(self, batch: Transitions) -> dict[str, Tensor]:
        log_likelihood = (batch.obs @ self.weights).log_softmax(-1)  # [seeds, batch, actions]
        chosen = torch.nn.functional.one_hot(batch.action, self.weights.shape[-1])
        error = log_likelihood.exp() - chosen
        self.weights -= self.config.learning_rate * batch.obs.mT @ error / batch.obs.shape[-2]
        return {"loss": -(log_likelihood * chosen).sum(-1).mean(-1)}  # one number per seed

    def measure(self, transitions: Transitions) -> dict[str, Tensor]:
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """All that the next update depends on, for exact resumption."""
        return {"weights": self.weights}


def clumsy(steps: int = 5_000) -> dict[str, np.ndarray]:
    """Pushes towards where the pole falls, at random one time in three; arrays under D4RL's keys."""
    environment, rng = gymnasium.make("CartPole-v1"), np.random.default_rng(0)
    rows = {key: [] for key in ("observations", "actions", "rewards", "terminals", "timeouts")}
    obs, _ = environment.reset(seed=0)
    for _ in range(steps):
        action = int(rng.integers(2)) if rng.random() < 1 / 3 else int(obs[2] + obs[3] > 0)
        rows["observations"].append(obs)
        obs, reward, terminated, truncated, _ = environment.step(action)
        for key, value in zip(list(rows)[1:], (action, reward, terminated, truncated), strict=True):
            rows[key].append(value)
        if terminated or truncated:
            obs, _ = environment.reset()
    return {key: np.array(values) for key, values in rows.items()}


PRESETS = {"logistic": Preset("Logistic", Logistic())}
DATASETS = {"cartpole-clumsy": Source("CartPole-v1", clumsy, reference_min=22.5, reference_max=500.0)}
