"""Behaviour cloning: a deterministic policy fitted to the data's actions by mean squared error.

The policy is TD3+BC's (and CORL's baseline), tanh at the end, and so are the defaults: what BC lacks against
TD3+BC is the critic and nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offline_gntd.algorithms.preset import Preset, check_actions, check_settings
from offline_gntd.learner import tensors_of
from offline_gntd.networks import MLP
from offline_gntd.observations import Normaliser, Statistics
from offline_gntd.policy import Policy
from offline_gntd.tasks import Task
from offline_gntd.transitions import Transitions


@dataclass(frozen=True)
class BC:
    widths: tuple[int, ...] = (256, 256)  # hidden units
    batch_size: int = 256
    learning_rate: float = 3e-4
    normalise_obs: bool = True  # to zero mean and unit variance over the dataset

    discrete = False  # not a field: which actions it learns

    def __post_init__(self):
        check_settings(self)

    def agent(
        self, task: Task, generators: Sequence[torch.Generator], obs_statistics: Statistics | None = None
    ) -> "BCAgent":
        check_actions(self, task)
        return BCAgent(self, task, generators, obs_statistics)


class BCAgent:
    def __init__(
        self,
        config: BC,
        task: Task,
        generators: Sequence[torch.Generator],
        obs_statistics: Statistics | None,
    ):
        seeds, device = len(generators), generators[0].device
        network = MLP((task.obs_dim, *config.widths, task.action_dim), (seeds,), device)
        self.policy = Policy(network.initialise(generators), config.batch_size, config.learning_rate)
        statistics = obs_statistics if config.normalise_obs else None
        self.normalise = Normaliser(statistics, network.flat, seeds, task.obs_dim)

    def act(self, obs: Tensor) -> Tensor:
        return self.policy.network(self.normalise(obs)).tanh_()

    def update(self, batch: Transitions) -> dict[str, Tensor]:
        action = self.policy.forward(self.normalise(batch.obs))  # [seeds, batch, action_dim]
        error = action - batch.action
        self.policy.backward(error * (2 / error[0].numel()))  # of the mean over batch and dimensions
        self.policy.step()
        return {"loss": error.square().mean((-2, -1))}

    def measure(self, transitions: Transitions) -> dict[str, Tensor]:
        """Nothing: a policy alone has no values."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        return tensors_of(policy=self.policy, obs=self.normalise)


PRESETS = {"bc": Preset("BC", BC())}
