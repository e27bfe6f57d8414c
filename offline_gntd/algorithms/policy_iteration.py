"""PG-TD and PG-GNTD (Ke, Zhang & Wen): entropy-regularised policy iteration, on batches collected on-policy.

A round evaluates the policy that collected its batch, by steps of TD or GNTD each on the whole batch, and
then takes one step up E[Q(s, a) + λH(π(·|s))]. Q is that of the rewards alone, without entropy in its target.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from offline_gntd import bellman
from offline_gntd.algorithms.continuous import Agent, Settings
from offline_gntd.algorithms.preset import Preset
from offline_gntd.nn.critic import Critic
from offline_gntd.nn.kfac import KFAC
from offline_gntd.nn.learner import Learner, state_of
from offline_gntd.nn.mlp import Tape
from offline_gntd.nn.noise import normal
from offline_gntd.nn.policies import Gaussian
from offline_gntd.transitions import Transitions


@dataclass(frozen=True)
class PolicyIteration(Settings):
    hidden_dims: tuple[int, ...] = (64,)  # hidden units of policy and critic: one layer, as in the paper
    batch_size: int = 512  # samples collected per round
    environments: int = 16  # of each seed, stepped together
    evaluation_steps: int = 25  # of the critic per round, each on the whole batch
    actor_learning_rate: float = 3e-4  # one step per round
    critic_learning_rate: float = 3e-4  # β
    optimiser: str = "adam"  # adam | plain; of the critic. The policy's is Adam
    discount: float = 0.99  # γ
    entropy_weight: float = 0.01  # λ
    kfac: KFAC | None = None  # Gauss-Newton steps of the critic by Kronecker factors (Algorithm 3)

    normalise_obs = False  # not a field: there is no dataset to take statistics of
    online = True  # not a field: it collects its own batches

    def __post_init__(self):
        super().__post_init__()
        if self.environments < 1 or self.batch_size % self.environments:
            raise ValueError(
                f"batch_size {self.batch_size} is no multiple of {self.environments} environments"
            )

    def agent(self, *made_from) -> "PolicyIterationAgent":
        return PolicyIterationAgent(self, *made_from)


class PolicyIterationAgent(Agent):
    """A squashed Gaussian policy and one critic per seed."""

    def __init__(self, *made_from):
        super().__init__(*made_from)
        config, task, batch = self.config, self.task, self.config.batch_size
        policy = self.networks(task.obs_dim, *config.hidden_dims, 2 * task.action_dim)
        self.policy = Learner(policy, batch, config.actor_learning_rate)
        critic = self.networks(task.obs_dim + task.action_dim, *config.hidden_dims, 1)
        self.critic = Critic(critic, batch, config.critic_learning_rate, config.optimiser, config.kfac)
        self.next_values = Tape(critic, batch)
        self.policy_values = Tape(critic, batch)  # Q(s, π(s)), which the policy climbs

    def act(self, obs: Tensor) -> Tensor:
        return Gaussian.of(self.policy.network(obs)).mean.tanh_()

    def explore(self, obs: Tensor) -> Tensor:
        """Actions a ~ π(s) [seeds, n, action_dim] for obs [seeds, n, obs_dim]."""
        return self._sample(Gaussian.of(self.policy.network(obs)))[0]

    def _sample(self, policy: Gaussian) -> tuple[Tensor, Tensor, Tensor]:
        """An action a ~ π each, the noise it came from [seeds, n, action_dim], and log π(a) [seeds, n]."""
        noise = normal(self.generators, *policy.mean.shape[1:])
        action, log_density = policy.sample(noise[..., None, :])
        return action[..., 0, :], noise, log_density[..., 0]

    @torch.inference_mode()
    def update(self, batch: Transitions) -> dict[str, Tensor]:
        """A round."""
        for _ in range(self.config.evaluation_steps):
            seen = self._evaluate(batch)
        return seen | {"entropy": self._improve(batch.obs)}

    def _evaluate(self, batch: Transitions) -> dict[str, Tensor]:
        next_action = self.explore(batch.next_obs)
        next_value = self.next_values.forward(batch.next_obs, next_action)[..., 0]
        value = self.critic.forward(batch.obs, batch.action)[..., 0]  # [seeds, batch]
        residual = value - bellman.target(batch, next_value, self.config.discount)
        self.critic.descend(residual / self.config.batch_size)
        return {"loss": residual.square(), "value": value, "largest_value": value.abs().amax(-1)}

    def _improve(self, obs: Tensor) -> Tensor:
        """One step of the policy up E[Q(s, a) − λ log π(a|s)]; the entropy [seeds, batch] before it."""
        policy = Gaussian.of(self.policy.forward(obs))
        action, noise, log_density = self._sample(policy)
        self.policy_values.forward(obs, action)
        self.policy_values.backward(-1 / self.config.batch_size)
        slope = self.policy_values.input_signal(start=self.task.obs_dim)
        weight = torch.full_like(slope[:1, :1, :1], self.config.entropy_weight / self.config.batch_size)
        self.policy.backward(policy.sample_signal(noise, action, slope, weight))
        self.policy.step()
        return -log_density

    def measure(self, transitions: None) -> dict[str, Tensor]:
        """The curvature's diagnostics: all else is of the batch, which nothing is left of."""
        return self.critic.diagnostics()

    def state_dict(self) -> dict[str, Tensor]:
        return state_of(policy=self.policy, critic=self.critic)


PRESETS = {
    "pg_td": Preset("PG-TD", PolicyIteration()),
    "pg_gntd": Preset("PG-GNTD", PolicyIteration(kfac=KFAC(damping=0.25))),
}
