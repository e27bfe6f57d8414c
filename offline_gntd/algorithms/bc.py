"""Behaviour cloning: a deterministic policy fitted to the dataset's actions by mean squared error.

It has the network and defaults of TD3+BC's actor, so that the two differ only in the critic.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offline_gntd import checks
from offline_gntd.algorithms.agent import Agent, Preset
from offline_gntd.nn.learner import state_of
from offline_gntd.nn.mlp import PRECISIONS
from offline_gntd.nn.policies import Policy
from offline_gntd.transitions import Transitions


@dataclass(frozen=True)
class BC:
    hidden_dims: tuple[int, ...] = (256, 256)
    batch_size: int = 256
    learning_rate: float = 3e-4
    normalise_obs: bool = True  # to zero mean and unit variance over the dataset
    precision: str = "float32"  # float32 | bfloat16, for the matrix products of an update

    discrete = False  # not a field: the kind of actions

    def __post_init__(self):
        checks.positive(self, "hidden_dims", "batch_size", "learning_rate")
        checks.choice(self, "precision", PRECISIONS)

    def agent(self, *args) -> "BCAgent":
        return BCAgent(self, *args)


class BCAgent(Agent):
    def __init__(self, *args):
        super().__init__(*args)
        network = self.networks(self.task.obs_dim, *self.config.hidden_dims, self.task.action_dim)
        self.policy = Policy(network, self.config.batch_size, self.config.learning_rate)

    def act(self, obs: Tensor) -> Tensor:
        return self.policy.network(self.normalise(obs)).tanh_()

    @torch.inference_mode()
    def update(self, batch: Transitions) -> dict[str, Tensor]:
        """One step of the policy; loss = E[(π(s) − a)²]."""
        action = self.policy.forward(self.normalise(batch.obs))  # [seeds, batch, action_dim]
        error = action - batch.action
        self.policy.backward(error * (2 / error[0].numel()))  # the mean is over batch and action dimensions
        self.policy.step()
        return {"loss": error.square()}

    def measure(self, transitions: Sequence[Transitions]) -> dict[str, Tensor]:
        """No metrics: there is no value function."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        return state_of(policy=self.policy, obs=self.normalise)


PRESETS = {"bc": Preset("BC", BC())}
