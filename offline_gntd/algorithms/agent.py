"""A preset, and the base classes of agents on the fast path: stacked networks, gradients by a tape."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from offline_gntd.errors import UserError
from offline_gntd.nn.critic import Critic
from offline_gntd.nn.mlp import MLP
from offline_gntd.tasks import Task

Statistics = tuple[Tensor, Tensor]  # mean and std of the observations, [obs_dim] or [seeds, 1, obs_dim]
EPSILON = 1e-3  # added to the standard deviation, as in TD3+BC


@dataclass(frozen=True)
class Preset:
    """Settings under the name that a table shows."""

    label: str
    config: Any


def check_actions(config: Any, task: Task) -> None:
    """Raise UserError if an algorithm for discrete actions is given a continuous task, or vice versa."""
    kinds = {True: "discrete", False: "continuous"}
    if config.discrete != task.discrete:
        raise UserError(
            f"{type(config).__name__} is for {kinds[config.discrete]} actions, but {task.env_id} has "
            f"{kinds[task.discrete]} actions. See: offline-gntd algorithms"
        )


class Normaliser:
    """(obs − mean) / (std + 1e-3) per seed; without statistics, the identity.

    The statistics are part of the agent's state, so that a stored policy keeps them.
    """

    def __init__(self, statistics: Statistics | None, seeds: int, obs_dim: int, device: torch.device):
        self.mean = torch.zeros(seeds, 1, obs_dim, device=device)
        self.scale = torch.ones(seeds, 1, obs_dim, device=device)
        if statistics is not None:
            mean, std = statistics
            self.mean.copy_(mean)
            self.scale.copy_(std).add_(EPSILON)

    def __call__(self, obs: Tensor) -> Tensor:
        """For obs [seeds or 1, n, obs_dim]."""
        return (obs - self.mean).div_(self.scale)

    def state_dict(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "scale": self.scale}


class Agent:
    """Trains a stack of seeds. Holds the settings, the task, one generator per seed and the normaliser."""

    def __init__(
        self,
        config: Any,
        task: Task,
        generators: Sequence[torch.Generator],
        obs_statistics: Statistics | None = None,
    ):
        check_actions(config, task)
        self.config, self.task, self.generators = config, task, generators
        self.seeds, self.device = len(generators), generators[0].device
        statistics = obs_statistics if getattr(config, "normalise_obs", False) else None
        self.normalise = Normaliser(statistics, self.seeds, task.obs_dim, self.device)

    def networks(self, *dims: int, per_seed: tuple[int, ...] = ()) -> MLP:
        """Initialised networks with these layer sizes, stacked as (seeds, *per_seed)."""
        precision = getattr(self.config, "precision", "float32")
        return MLP(dims, (self.seeds, *per_seed), self.device, precision).initialise(self.generators)


class TwinCriticAgent(Agent):
    """An agent with two critics Q(s, a) per seed."""

    critic: Critic

    def twin_critics(self) -> Critic:
        config, input_dim = self.config, self.task.obs_dim + self.task.action_dim
        networks = self.networks(input_dim, *config.hidden_dims, 1, per_seed=(2,))
        return Critic(
            networks, config.batch_size, config.critic_learning_rate, config.critic_optimiser, config.kfac
        )

    @staticmethod
    def twin_values(critics: MLP, obs: Tensor, action: Tensor) -> Tensor:
        """Q(s, a) of both critics [seeds, 2, n] for normalised obs [seeds, n, obs_dim], without a tape."""
        return critics(torch.cat([obs, action], -1)[:, None])[..., 0]
