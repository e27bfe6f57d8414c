"""CQL(H) (Kumar et al. 2020) on SAC with automatic temperature; with kfac set, Gauss-Newton critics.

The Gauss-Newton matrix is that of the TD part: E[∇Q ∇Qᵀ] at the data's actions. It preconditions the critics'
whole gradient, the conservative term's included, whose own curvature is left out.
"""

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from offline_gntd import bellman
from offline_gntd.algorithms.continuous import ActorCritic, Settings
from offline_gntd.algorithms.preset import Preset
from offline_gntd.nn.kfac import KFAC
from offline_gntd.nn.learner import Learner, Target, state_of
from offline_gntd.nn.mlp import Gradient, Tape
from offline_gntd.nn.noise import normal, uniform
from offline_gntd.nn.optimisers import Adam
from offline_gntd.nn.policies import Gaussian
from offline_gntd.transitions import Transitions

STATES_AT_ONCE = 32  # of the conservative term: what 30 samples of each leave behind stays in the cache


@dataclass(frozen=True)
class CQL(Settings):
    hidden_dims: tuple[int, ...] = (256, 256, 256)  # hidden units of policy and critics
    batch_size: int = 256
    actor_learning_rate: float = 1e-4  # of the policy and of its temperature
    critic_learning_rate: float = 3e-4  # β
    optimiser: str = "adam"  # adam | plain; of the critics. The others' is Adam
    discount: float = 0.99  # γ
    tau: float = 0.005  # Polyak rate of the critics
    alpha: float = 5.0  # weight of the conservative term
    samples: int = 10  # actions in its logsumexp from each of: uniform, π(s), π(s′)
    warm_up: int = 40_000  # updates in which the policy clones the data instead of climbing Q
    normalise_obs: bool = False
    kfac: KFAC | None = None  # Gauss-Newton step of the critics by Kronecker factors (Algorithm 3)

    def within(self, steps: int) -> "CQL":
        """For a run of so many updates: a short one does not spend more than 5 % of them on cloning."""
        return dataclasses.replace(self, warm_up=min(self.warm_up, steps // 20))

    def agent(self, *made_from) -> "CQLAgent":
        return CQLAgent(self, *made_from)


class CQLAgent(ActorCritic):
    """A squashed Gaussian policy with its temperature, and twin critics, per seed."""

    def __init__(self, *made_from):
        super().__init__(*made_from)
        config, task, batch = self.config, self.task, self.config.batch_size
        policy = self.networks(task.obs_dim, *config.hidden_dims, 2 * task.action_dim)
        self.policy = Learner(policy, batch, config.actor_learning_rate)
        self.critic = self.twin_critics()
        critics = self.critic.network
        self.next_policy = Tape(policy, batch)
        self.policy_values = Tape(critics, batch)  # Q(s, π(s)), which the policy climbs
        self.states_at_once = math.gcd(batch, STATES_AT_ONCE)
        self.sampled_values = Tape(critics, self.states_at_once * 3 * config.samples)
        self.target_critic = Target(critics, batch)
        self.conservative_step = torch.zeros_like(critics.flat)
        self.step_of_part = torch.zeros_like(critics.flat)
        self.gradient_of_part = Gradient(self.sampled_values, self.step_of_part)
        self.log_temperature = critics.flat.new_zeros(len(self.generators))
        self.temperature_optimiser = Adam(self.log_temperature, config.actor_learning_rate)
        self.updates = torch.zeros((), dtype=torch.int64)

    def act(self, obs: Tensor) -> Tensor:
        return self._greedy(self.normalise(obs))

    def _greedy(self, obs: Tensor) -> Tensor:
        return Gaussian.of(self.policy.network(obs)).mean.tanh()

    @torch.inference_mode()
    def update(self, batch: Transitions) -> dict[str, Tensor]:
        """All losses are those of the parameters before the update, but for the temperature's."""
        config, shape = self.config, (self.config.batch_size, 1 + self.config.samples, self.task.action_dim)
        obs, next_obs = self.normalise(batch.obs), self.normalise(batch.next_obs)
        # the first sample of each state is SAC's, the others the conservative term's
        current, next_ = (
            Gaussian.of(self.policy.forward(obs)),
            Gaussian.of(self.next_policy.forward(next_obs)),
        )
        noise = normal(self.generators, *shape)
        actions, log_densities = current.sample(noise)  # [seeds, batch, 1 + samples, action_dim]; without it
        next_actions, next_log_densities = next_.sample(normal(self.generators, *shape))

        temperature = self._adjust_temperature(log_densities[..., 0])  # [seeds]
        on_action, on_output = self._improvement(obs, actions[..., 0, :], batch.action, current)
        on_density = (temperature / config.batch_size)[:, None, None]
        signal = current.sample_signal(noise[..., 0, :], actions[..., 0, :], on_action, on_density)
        self.policy.backward(signal + on_output)

        next_value = self.target_critic.forward(next_obs[:, None], next_actions[:, None, ..., 0, :])
        target = bellman.target(batch, next_value[..., 0].amin(1), config.discount)  # [seeds, batch]
        value = self.critic.forward(obs[:, None], batch.action[:, None])[..., 0]  # [seeds, 2, batch]
        residual = value - target[:, None]
        soft_maximum = self._conserve(
            obs,
            torch.cat([next_actions[..., 1:, :], actions[..., 1:, :]], -2),
            torch.cat([next_log_densities[..., 1:], log_densities[..., 1:]], -1),
        )
        # squared error and −α Q(s, a), the conservative term's data half
        weight = (2 * residual - config.alpha).div_(config.batch_size)
        self.critic.descend(weight, more=self.conservative_step)
        self.policy.step()
        self.target_critic.follow(config.tau)
        self.updates += 1
        return {
            "loss": residual.square(),
            "value": value,
            "conservative_gap": soft_maximum - value,
            "temperature": temperature,
        }

    def _adjust_temperature(self, log_density: Tensor) -> Tensor:
        """One step towards an entropy of −action_dim; the temperature [seeds] after it."""
        self.temperature_optimiser.step(self.task.action_dim - log_density.mean(-1))
        return self.log_temperature.exp()

    def _improvement(
        self, obs: Tensor, action: Tensor, data_action: Tensor, policy: Gaussian
    ) -> tuple[Tensor, Tensor]:
        """What the policy's loss holds beside its entropy, as derivatives by its action and by its output:
        −E[min Q(s, π(s))], or while it warms up −E[log π(a|s)]."""
        zero = obs.new_zeros(())
        if int(self.updates) < self.config.warm_up:
            return zero, policy.likelihood_signal(data_action) / -obs.shape[1]
        values = self.policy_values.forward(obs[:, None], action[:, None])  # [seeds, 2, batch, 1]
        lower = values == values.amin(1, keepdim=True)
        self.policy_values.backward(lower.float() / -obs.shape[1])
        return self.policy_values.input_signal(start=self.task.obs_dim).sum(1), zero

    def _conserve(self, obs: Tensor, actions: Tensor, log_densities: Tensor) -> Tensor:
        """The gradient of α E[log Σ_a exp(Q(s, a) − log μ(a))], a from uniform, π(s′) and π(s), kept in
        `conservative_step`; and the logsumexp [seeds, 2, batch] itself."""
        uniform_actions = uniform(self.generators, obs.shape[1], self.config.samples, self.task.action_dim)
        uniform_density = log_densities.new_full(
            uniform_actions.shape[:-1], -self.task.action_dim * math.log(2)
        )
        actions = torch.cat([uniform_actions, actions], -2)  # [seeds, batch, samples, action_dim]
        log_densities = torch.cat([uniform_density, log_densities], -1)  # [seeds, batch, samples]
        self.conservative_step.zero_()
        parts = zip(*(x.split(self.states_at_once, 1) for x in (obs, actions, log_densities)), strict=True)
        return torch.cat([self._conserve_part(*part) for part in parts], -1)

    def _conserve_part(self, obs: Tensor, actions: Tensor, log_densities: Tensor) -> Tensor:
        """The same of a few states, added to `conservative_step`."""
        obs, actions = obs.repeat_interleave(actions.shape[2], dim=1), actions.flatten(1, 2)
        values = self.sampled_values.forward(obs[:, None], actions[:, None])
        corrected = values.view(len(obs), 2, *log_densities.shape[1:]) - log_densities[:, None]
        weight = corrected.softmax(-1).mul_(self.config.alpha / self.config.batch_size)
        self.sampled_values.backward(weight.view_as(values))
        self.gradient_of_part()
        self.conservative_step += self.step_of_part
        return corrected.logsumexp(-1)

    def measure(self, transitions: Transitions) -> dict[str, Tensor]:
        return bellman.measure(transitions, self._values, self.config.discount) | self.critic.diagnostics()

    def _values(self, part: Transitions) -> tuple[Tensor, Tensor]:
        """Q(s, a) of both critics [seeds, 2, n] and min Q(s′, tanh μ(s′)) [seeds, n]."""
        obs, next_obs = self.normalise(part.obs), self.normalise(part.next_obs)
        next_value = self.both_values(next_obs, self._greedy(next_obs)).amin(1)
        return self.both_values(obs, part.action), next_value

    def state_dict(self) -> dict[str, Tensor]:
        networks = {"policy": self.policy, "critic": self.critic, "target_critic": self.target_critic}
        state = state_of(**networks, temperature=self.temperature_optimiser, obs=self.normalise)
        return state | {"log_temperature": self.log_temperature, "updates": self.updates}


PRESETS = {
    "cql": Preset("CQL", CQL()),
    "gn_cql": Preset("GN-CQL", CQL(kfac=KFAC(damping=0.25, momentum=0.2, average_G=True))),
}
