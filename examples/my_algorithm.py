"""AWAC (Nair et al. 2020) in one file that lives outside the package.

offline-gntd run mine --import my_algorithm.py --algorithms awac td3_bc --datasets hopper-medium-v2
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.distributions import Independent, Normal
from torch.optim import Adam

from offline_gntd import AutogradAgent
from offline_gntd.algorithms import Preset


@dataclass(frozen=True)
class AWAC:
    """Its fields are what --set changes: --set temperature=0.3"""

    hidden_dim: int = 256
    batch_size: int = 256
    learning_rate: float = 3e-4
    discount: float = 0.99
    tau: float = 0.005
    temperature: float = 1.0  # λ
    max_weight: float = 100.0
    normalise_obs: bool = True

    discrete = False  # not a field: the kind of actions

    def agent(self, *args):
        return AWACAgent.stack(self, *args)


class AWACAgent(AutogradAgent):
    def __init__(self, config, task):
        super().__init__(config, task)
        self.actor = mlp(task.obs_dim, config.hidden_dim, task.action_dim)
        self.log_std = nn.Parameter(torch.zeros(task.action_dim))
        pair = task.obs_dim + task.action_dim
        self.critics = nn.ModuleList(mlp(pair, config.hidden_dim, 1) for _ in range(2))
        self.target_critics = self.target(self.critics, config.tau)
        self.optimisers["critic"] = Adam(self.critics.parameters(), config.learning_rate)
        self.optimisers["actor"] = Adam([*self.actor.parameters(), self.log_std], config.learning_rate)

    def policy(self, obs):
        return Independent(Normal(self.actor(obs).tanh(), self.log_std.clamp(-5, 2).exp()), 1)

    def q(self, critics, obs, action):
        return torch.stack([critic(torch.cat([obs, action], -1))[..., 0] for critic in critics])

    def losses(self, batch):
        config = self.config
        with torch.no_grad():
            next_action = self.policy(batch.next_obs).sample().clamp(-1, 1)
            next_q = self.q(self.target_critics, batch.next_obs, next_action).amin(0)
            target = batch.reward + config.discount * (1 - batch.terminated) * next_q
            action = self.policy(batch.obs).sample().clamp(-1, 1)
            value = self.q(self.critics, batch.obs, action).amin(0)
        q = self.q(self.critics, batch.obs, batch.action)  # [2, batch]
        advantage = q.detach().amin(0) - value
        weight = (advantage / config.temperature).exp().clamp_max(config.max_weight)
        return {
            "critic": (q - target).square().mean(1).sum(),
            "actor": -(weight * self.policy(batch.obs).log_prob(batch.action)).mean(),
        }

    def act(self, obs):
        return self.actor(obs).tanh()


def mlp(n_in, hidden, n_out):
    return nn.Sequential(
        nn.Linear(n_in, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, n_out)
    )


PRESETS = {"awac": Preset("AWAC", AWAC())}
