"""PG-TD and PG-GNTD (Ke, Zhang & Wen): entropy-regularised policy gradient with a replay buffer, online.

The critic takes one TD or GNTD step per environment step, towards the value of the current policy. After
every `policy_freq` critic steps (the paper's "25-step policy evaluation") the policy takes one step up
E[Q(s, a) + λ H(π(·|s))]. Q is the value of the rewards alone: the target has no entropy term.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offline_gntd import checks
from offline_gntd.algorithms.agent import Agent, Preset
from offline_gntd.algorithms.bellman import bellman_target
from offline_gntd.nn.critic import Critic
from offline_gntd.nn.kfac import KFAC
from offline_gntd.nn.learner import Learner, Target, state_of
from offline_gntd.nn.mlp import PRECISIONS, Tape
from offline_gntd.nn.optimisers import Optimiser
from offline_gntd.nn.policies import Gaussian, normal
from offline_gntd.transitions import Transitions


@dataclass(frozen=True)
class PolicyGradient:
    hidden_dims: tuple[int, ...] = (400, 300)  # of policy and critic
    batch_size: int = 256
    environments: int = 1  # stepped together; a step of the run is one step in each
    random_steps: int = 25_000  # at the start, with uniformly random actions and no updates
    buffer_size: int = 1_000_000  # transitions
    policy_freq: int = 25  # critic updates per policy update
    actor_learning_rate: float = 3e-4
    critic_learning_rate: float = 3e-4  # β
    critic_optimiser: Optimiser = Optimiser()  # the policy's is Adam with its defaults
    discount: float = 0.99  # γ
    tau: float = 0.02  # Polyak averaging of the target critic at every update
    entropy_weight: float = 0.5  # λ
    kfac: KFAC | None = None  # Gauss-Newton steps of the critic by Kronecker factors (Algorithm 3)
    precision: str = "float32"  # float32 | bfloat16: of the matrix products in an update

    discrete = False  # not fields: the kind of actions, and that it learns in an environment
    normalise_obs = False
    online = True

    def __post_init__(self):
        checks.positive(self, "hidden_dims", "batch_size", "environments", "buffer_size", "policy_freq")
        checks.positive(self, "actor_learning_rate", "critic_learning_rate")
        checks.nonnegative(self, "random_steps", "entropy_weight")
        checks.fraction(self, "tau")
        checks.below_one(self, "discount")
        checks.choice(self, "precision", PRECISIONS)

    def agent(self, *args) -> "PolicyGradientAgent":
        return PolicyGradientAgent(self, *args)


class PolicyGradientAgent(Agent):
    """A squashed Gaussian policy, one critic and its target per seed."""

    def __init__(self, *args):
        super().__init__(*args)
        config, task, batch = self.config, self.task, self.config.batch_size
        policy = self.networks(task.obs_dim, *config.hidden_dims, 2 * task.action_dim)
        self.policy = Learner(policy, batch, config.actor_learning_rate)
        critic = self.networks(task.obs_dim + task.action_dim, *config.hidden_dims, 1)
        self.critic = Critic(critic, batch, config.critic_learning_rate, config.critic_optimiser, config.kfac)
        self.target_critic = Target(critic, batch)
        self.policy_values = Tape(critic, batch)  # Q(s, π(s)), which the policy maximises
        self.updates = torch.zeros((), dtype=torch.int64)  # on the CPU

    def act(self, obs: Tensor) -> Tensor:
        return Gaussian.of(self.policy.network(obs)).mean.tanh_()

    def explore(self, obs: Tensor) -> Tensor:
        """Actions a ~ π(s) [seeds, n, action_dim] for obs [seeds, n, obs_dim]."""
        return self._sample(Gaussian.of(self.policy.network(obs)))[0]

    def _sample(self, policy: Gaussian) -> tuple[Tensor, Tensor, Tensor]:
        """One action per state, its noise [seeds, n, action_dim] and log π(a) [seeds, n]."""
        noise = normal(self.generators, *policy.mean.shape[1:])
        action, log_prob = policy.sample(noise[..., None, :])
        return action[..., 0, :], noise, log_prob[..., 0]

    @torch.inference_mode()
    def update(self, batch: Transitions) -> dict[str, Tensor]:
        metrics = self._update_critic(batch)
        self.updates += 1
        if int(self.updates) % self.config.policy_freq == 0:
            self._update_policy(batch.obs)
        return metrics

    def _update_critic(self, batch: Transitions) -> dict[str, Tensor]:
        """One step of the critic.

        loss = E[δ²], δ = Q(s,a) − r − γ(1−terminated) Q_target(s′,a′), a′ ~ π(s′)
        """
        next_value = self.target_critic.forward(batch.next_obs, self.explore(batch.next_obs))[..., 0]
        value = self.critic.forward(batch.obs, batch.action)[..., 0]  # [seeds, batch]
        residual = value - bellman_target(batch, next_value, self.config.discount)
        self.critic.update(residual * (2 / self.config.batch_size))
        self.target_critic.polyak_update(self.config.tau)
        return {"loss": residual.square(), "value": value, "largest_value": value.abs().amax(-1)}

    def _update_policy(self, obs: Tensor) -> None:
        """One step of the policy; loss = E[λ log π(a|s) − Q(s, a)], a ~ π(s)."""
        policy = Gaussian.of(self.policy.forward(obs))
        action, noise, _ = self._sample(policy)
        self.policy_values.forward(obs, action)
        self.policy_values.backward(-1 / self.config.batch_size)
        dq_da = self.policy_values.input_grad(start=self.task.obs_dim)
        weight = torch.full_like(dq_da[:1, :1, :1], self.config.entropy_weight / self.config.batch_size)
        self.policy.backward(policy.sample_grad(noise, action, dq_da, weight))
        self.policy.step()

    def measure(self, transitions: Sequence[Transitions] | None) -> dict[str, Tensor]:
        """K-FAC's diagnostics; there is no dataset to measure TD errors over."""
        return self.critic.diagnostics()

    def state_dict(self) -> dict[str, Tensor]:
        parts = {"policy": self.policy, "critic": self.critic, "target_critic": self.target_critic}
        return state_of(**parts) | {"updates": self.updates}


PRESETS = {
    "pg_td": Preset("PG-TD", PolicyGradient()),
    "pg_gntd": Preset("PG-GNTD", PolicyGradient(kfac=KFAC(damping=0.25))),
    # the values of the authors' run script
    "pg_td_script": Preset("PG-TD (script)", PolicyGradient()),
    "pg_gntd_script": Preset("PG-GNTD (script)", PolicyGradient(kfac=KFAC(damping=0.5))),
}
