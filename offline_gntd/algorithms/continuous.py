"""What the algorithms for continuous actions share: how settings become an agent, and an agent's frame."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from offline_gntd.algorithms.preset import check_actions, check_settings
from offline_gntd.nn.critic import Critic
from offline_gntd.nn.mlp import MLP
from offline_gntd.nn.normaliser import Normaliser, Statistics
from offline_gntd.tasks import Task


class Settings:
    """Base of the frozen dataclasses of settings."""

    discrete = False  # not a field: which actions it learns

    def __post_init__(self):
        check_settings(self)


class Agent:
    """What it is made from, the networks it makes of that, and observations as they are normalised."""

    def __init__(
        self,
        config: Any,
        task: Task,
        generators: Sequence[torch.Generator],
        obs_statistics: Statistics | None = None,
    ):
        check_actions(config, task)
        self.config, self.task, self.generators = config, task, generators
        statistics = obs_statistics if config.normalise_obs else None
        self.normalise = Normaliser(statistics, len(generators), task.obs_dim, generators[0].device)

    def networks(self, *widths: int, of_each: tuple[int, ...] = ()) -> MLP:
        """Initialised networks: one per seed, or `of_each` of them."""
        stack = (len(self.generators), *of_each)
        return MLP(widths, stack, self.generators[0].device).initialise(self.generators)


class ActorCritic(Agent):
    """An agent with twin critics."""

    critic: Critic

    def twin_critics(self) -> Critic:
        config, inputs = self.config, self.task.obs_dim + self.task.action_dim
        networks = self.networks(inputs, *config.hidden_dims, 1, of_each=(2,))
        return Critic(networks, config.batch_size, config.critic_learning_rate, config.optimiser, config.kfac)

    def both_values(self, obs: Tensor, action: Tensor) -> Tensor:
        """Q(s, a) of both critics [seeds, 2, n] for normalised obs, with nothing kept."""
        return self.critic.network(torch.cat([obs, action.expand(len(obs), -1, -1)], -1)[:, None])[..., 0]
