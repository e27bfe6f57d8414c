"""Behaviour cloning: a deterministic policy fitted to the data's actions by mean squared error.

The policy is TD3+BC's (and CORL's baseline), tanh at the end, and so are the defaults: what BC lacks against
TD3+BC is the critic and nothing else.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from offline_gntd.algorithms.continuous import Agent, Settings
from offline_gntd.algorithms.preset import Preset
from offline_gntd.nn.learner import state_of
from offline_gntd.nn.policies import Policy
from offline_gntd.transitions import Transitions


@dataclass(frozen=True)
class BC(Settings):
    hidden_dims: tuple[int, ...] = (256, 256)  # hidden units
    batch_size: int = 256
    learning_rate: float = 3e-4
    normalise_obs: bool = True  # to zero mean and unit variance over the dataset

    def agent(self, *made_from) -> "BCAgent":
        return BCAgent(self, *made_from)


class BCAgent(Agent):
    def __init__(self, *made_from):
        super().__init__(*made_from)
        network = self.networks(self.task.obs_dim, *self.config.hidden_dims, self.task.action_dim)
        self.policy = Policy(network, self.config.batch_size, self.config.learning_rate)

    def act(self, obs: Tensor) -> Tensor:
        return self.policy.network(self.normalise(obs)).tanh_()

    @torch.inference_mode()
    def update(self, batch: Transitions) -> dict[str, Tensor]:
        action = self.policy.forward(self.normalise(batch.obs))  # [seeds, batch, action_dim]
        error = action - batch.action
        self.policy.backward(error * (2 / error[0].numel()))  # of the mean over batch and dimensions
        self.policy.step()
        return {"loss": error.square()}

    def measure(self, transitions: Transitions) -> dict[str, Tensor]:
        """Nothing: a policy alone has no values."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        return state_of(policy=self.policy, obs=self.normalise)


PRESETS = {"bc": Preset("BC", BC())}
