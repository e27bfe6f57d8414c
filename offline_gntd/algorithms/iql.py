"""IQL (Kostrikov, Nair & Levine 2021); with kfac set, a Gauss-Newton step of the critics Q.

Q bootstraps from V(s′), and V is fitted to an upper expectile of Q over the dataset's actions, so that no
other action is ever evaluated. The policy clones the data, weighted by exp(β · advantage).
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offline_gntd import checks
from offline_gntd.algorithms.agent import Preset, TwinCriticAgent
from offline_gntd.algorithms.bellman import bellman_target, td_errors
from offline_gntd.nn.kfac import KFAC
from offline_gntd.nn.learner import Learner, Target, state_of
from offline_gntd.nn.mlp import PRECISIONS
from offline_gntd.nn.optimisers import Optimiser, Stepper
from offline_gntd.nn.policies import Policy
from offline_gntd.transitions import Transitions

LOG_STD_RANGE = (-5.0, 2.0)


@dataclass(frozen=True)
class IQL:
    hidden_dims: tuple[int, ...] = (256, 256)  # policy, critics and V
    batch_size: int = 256
    actor_learning_rate: float = 3e-4  # at the start of the schedule
    decay_steps: int | None = 1_000_000  # length of its cosine schedule, a run's updates; none: constant
    critic_learning_rate: float = 3e-4  # β of the Gauss-Newton step
    critic_optimiser: Optimiser = Optimiser()  # the others' is Adam with its defaults
    value_learning_rate: float = 3e-4
    discount: float = 0.99  # γ
    tau: float = 0.005  # Polyak averaging of the critics
    expectile: float = 0.7  # τ in the paper
    inverse_temperature: float = 3.0  # β in the paper
    max_weight: float = 100.0  # limit on exp(β · advantage)
    normalise_obs: bool = False
    scale_rewards: bool = True  # so that the returns of the dataset's episodes span 1,000
    kfac: KFAC | None = None  # Gauss-Newton step of the critics by Kronecker factors (Algorithm 3)
    precision: str = "float32"  # float32 | bfloat16, for the matrix products of an update

    discrete = False  # not a field: the kind of actions

    def __post_init__(self):
        checks.positive(self, "hidden_dims", "batch_size", "actor_learning_rate", "decay_steps")
        checks.positive(self, "critic_learning_rate", "value_learning_rate", "max_weight")
        checks.nonnegative(self, "inverse_temperature")
        checks.fraction(self, "tau", "expectile")
        checks.below_one(self, "discount")
        checks.choice(self, "precision", PRECISIONS)

    def within(self, steps: int) -> "IQL":
        """The settings for a run of this many updates: the policy's learning rate falls to 0 at its end."""
        return self if self.decay_steps is None else dataclasses.replace(self, decay_steps=steps)

    def agent(self, *args) -> "IQLAgent":
        return IQLAgent(self, *args)


class IQLAgent(TwinCriticAgent):
    """A Gaussian policy, twin critics with targets and a state-value network per seed."""

    def __init__(self, *args):
        super().__init__(*args)
        config, task, batch = self.config, self.task, self.config.batch_size
        policy = self.networks(task.obs_dim, *config.hidden_dims, task.action_dim)
        self.policy = Policy(policy, batch, config.actor_learning_rate)  # the mean, tanh(network(s))
        self.log_std = policy.flat.new_zeros(self.seeds, task.action_dim)  # the same in all states
        self.log_std_optimiser = Stepper(self.log_std, config.actor_learning_rate)
        self.critic = self.twin_critics()
        self.target_critic = Target(self.critic.network, batch)
        value = self.networks(task.obs_dim, *config.hidden_dims, 1)
        self.state_value = Learner(value, batch, config.value_learning_rate)
        self.updates = torch.zeros((), dtype=torch.int64)  # on the CPU

    def act(self, obs: Tensor) -> Tensor:
        return self.policy.network(self.normalise(obs)).tanh_()

    @torch.inference_mode()
    def update(self, batch: Transitions) -> dict[str, Tensor]:
        """V first; the policy and the critics use the new V. The advantage uses the target critics."""
        obs, next_obs = self.normalise(batch.obs), self.normalise(batch.next_obs)
        q = self.target_critic.forward(obs[:, None], batch.action[:, None])[..., 0].amin(1)  # [seeds, batch]
        value_loss = self._update_value(obs, q)
        weight = self._update_policy(obs, batch.action, q)
        residual, value = self._update_critics(batch, obs, next_obs)
        self.target_critic.polyak_update(self.config.tau)
        self.updates += 1
        return {"loss": residual.square(), "value": value, "value_loss": value_loss, "weight": weight}

    def _update_value(self, obs: Tensor, q: Tensor) -> Tensor:
        """One step down E[w (q − V(s))²], w = τ where q > V(s), else 1 − τ."""
        difference = q - self.state_value.forward(obs)[..., 0]  # [seeds, batch]
        weighted = torch.where(difference > 0, self.config.expectile, 1 - self.config.expectile) * difference
        self.state_value.backward(weighted[..., None] * (-2 / self.config.batch_size))
        self.state_value.step()
        return weighted * difference

    def _update_policy(self, obs: Tensor, data_action: Tensor, q: Tensor) -> Tensor:
        """One step down −E[w log N(a; μ(s), σ²)], w = min(exp(β (q − V(s))), max_weight)."""
        advantage = q - self.state_value.forward(obs)[..., 0]
        weight = (self.config.inverse_temperature * advantage).exp_().clamp_max_(self.config.max_weight)
        log_std = self.log_std.clamp(*LOG_STD_RANGE)[:, None]  # [seeds, 1, action_dim]
        deviation = (data_action - self.policy.forward(obs)) / log_std.exp()
        scale = weight[..., None] / -self.config.batch_size
        self.policy.backward(scale * deviation / log_std.exp())
        grad_log_std = (scale * (deviation.square() - 1)).sum(1)  # [seeds, action_dim]
        in_range = self.log_std.clamp(*LOG_STD_RANGE) == self.log_std
        for optimiser in (self.policy.optimiser, self.log_std_optimiser):
            optimiser.learning_rate = self._actor_learning_rate()
        self.policy.step()
        self.log_std_optimiser.step(grad_log_std * in_range)
        return weight

    def _actor_learning_rate(self) -> float:
        config = self.config
        if config.decay_steps is None:
            return config.actor_learning_rate
        progress = min(int(self.updates) / config.decay_steps, 1.0)
        return config.actor_learning_rate * 0.5 * (1 + math.cos(math.pi * progress))

    def _update_critics(self, batch: Transitions, obs: Tensor, next_obs: Tensor) -> tuple[Tensor, Tensor]:
        """One step down E[δ²] of each critic, δ = Q(s,a) − r − γ(1−terminated) V(s′)."""
        target = bellman_target(batch, self.state_value.forward(next_obs)[..., 0], self.config.discount)
        value = self.critic.forward(obs[:, None], batch.action[:, None])[..., 0]  # [seeds, 2, batch]
        residual = value - target[:, None]
        self.critic.update(residual * (2 / self.config.batch_size))
        return residual, value

    def measure(self, transitions: Sequence[Transitions]) -> dict[str, Tensor]:
        return td_errors(transitions, self._values, self.config.discount) | self.critic.diagnostics()

    def _values(self, part: Transitions) -> tuple[Tensor, Tensor, Tensor]:
        obs, next_obs = self.normalise(part.obs), self.normalise(part.next_obs)
        next_value = self.state_value.network(next_obs)[..., 0]  # V has no target network
        return self.twin_values(self.critic.network, obs, part.action), next_value, next_value

    def state_dict(self) -> dict[str, Tensor]:
        networks = {"policy": self.policy, "critic": self.critic, "target_critic": self.target_critic}
        networks |= {"state_value": self.state_value, "log_std": self.log_std_optimiser}
        state = state_of(**networks, obs=self.normalise)
        return state | {"log_std.value": self.log_std, "updates": self.updates}


PRESETS = {
    "iql": Preset("IQL", IQL()),
    "gn_iql": Preset(
        "GN-IQL", IQL(kfac=KFAC(ema_decay=0.8, start="batch", factor_every=10, inverse_every=20))
    ),
}
