"""CQL(H) (Kumar et al. 2020) on SAC with automatic temperature; with kfac set, Gauss-Newton critics.

The Gauss-Newton matrix is the TD loss's, E[∇Q ∇Qᵀ] at the dataset's actions. It preconditions the
gradient of the whole loss; the curvature of the conservative term is ignored.
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
from offline_gntd.nn.mlp import PRECISIONS, Tape
from offline_gntd.nn.optimisers import Optimiser, Stepper
from offline_gntd.nn.policies import Gaussian, normal, uniform
from offline_gntd.transitions import Transitions

STATES_AT_ONCE = 32  # in the conservative term: the activations of their 30 samples each fit the cache


@dataclass(frozen=True)
class CQL:
    hidden_dims: tuple[int, ...] = (256, 256, 256)  # policy and critics
    batch_size: int = 256
    actor_learning_rate: float = 1e-4  # policy and its temperature
    critic_learning_rate: float = 3e-4  # β
    critic_optimiser: Optimiser = Optimiser()  # the others' is Adam with its defaults
    discount: float = 0.99  # γ
    tau: float = 0.005  # Polyak averaging of the critics
    alpha: float = 5.0  # weight of the conservative term
    samples: int = 10  # actions in its logsumexp from each of uniform, π(s) and π(s′)
    warm_up: int = 40_000  # updates during which the policy clones the data instead of maximising Q
    normalise_obs: bool = False
    kfac: KFAC | None = None  # Gauss-Newton step of the critics by Kronecker factors (Algorithm 3)
    precision: str = "float32"  # float32 | bfloat16, for the matrix products of an update

    discrete = False  # not a field: the kind of actions

    def __post_init__(self):
        checks.positive(
            self, "hidden_dims", "batch_size", "actor_learning_rate", "critic_learning_rate", "samples"
        )
        checks.nonnegative(self, "alpha", "warm_up")
        checks.fraction(self, "tau")
        checks.below_one(self, "discount")
        checks.choice(self, "precision", PRECISIONS)

    def within(self, steps: int) -> "CQL":
        """The settings for a run of this many updates: the warm-up is at most 5 % of them."""
        return dataclasses.replace(self, warm_up=min(self.warm_up, steps // 20))

    def agent(self, *args) -> "CQLAgent":
        return CQLAgent(self, *args)


class CQLAgent(TwinCriticAgent):
    """A squashed Gaussian policy with its temperature, and twin critics, per seed."""

    def __init__(self, *args):
        super().__init__(*args)
        config, task, batch = self.config, self.task, self.config.batch_size
        policy = self.networks(task.obs_dim, *config.hidden_dims, 2 * task.action_dim)
        self.policy = Learner(policy, batch, config.actor_learning_rate)
        self.critic = self.twin_critics()
        critics = self.critic.network
        self.next_policy = Tape(policy, batch)
        self.policy_values = Tape(critics, batch)  # Q(s, π(s)), which the policy maximises
        self.states_at_once = math.gcd(batch, STATES_AT_ONCE)
        self.sampled_values = Tape(critics, self.states_at_once * 3 * config.samples)
        self.target_critic = Target(critics, batch)
        self.conservative_gradient = torch.zeros_like(critics.flat)
        self.part_gradient = torch.zeros_like(critics.flat)
        self.log_temperature = critics.flat.new_zeros(self.seeds)
        self.temperature_optimiser = Stepper(self.log_temperature, config.actor_learning_rate)
        self.updates = torch.zeros((), dtype=torch.int64)

    def act(self, obs: Tensor) -> Tensor:
        return self._greedy(self.normalise(obs))

    def _greedy(self, obs: Tensor) -> Tensor:
        return Gaussian.from_output(self.policy.network(obs)).mean.tanh()

    @torch.inference_mode()
    def update(self, batch: Transitions) -> dict[str, Tensor]:
        """All losses use the parameters before the update, and the new temperature.

        critics      E[δ²] + α (E[log Σ_a exp Q(s,a)] − E[Q(s,a)])
        policy       E[temperature · log π(a|s) − min Q(s,a)], a ~ π(s)
        temperature  −log_temperature · (E[log π(a|s)] − action_dim)
        """
        config, shape = self.config, (self.config.batch_size, 1 + self.config.samples, self.task.action_dim)
        obs, next_obs = self.normalise(batch.obs), self.normalise(batch.next_obs)
        current = Gaussian.from_output(self.policy.forward(obs))
        next_ = Gaussian.from_output(self.next_policy.forward(next_obs))
        # the first sample of each state is for SAC's losses, the others for the conservative term
        noise = normal(self.generators, *shape)
        actions, log_probs = current.sample(noise)  # [seeds, batch, 1 + samples, …]
        next_actions, next_log_probs = next_.sample(normal(self.generators, *shape))

        temperature = self._update_temperature(log_probs[..., 0])  # [seeds]
        grad_action, grad_output = self._policy_grads(obs, actions[..., 0, :], batch.action, current)
        grad_log_prob = (temperature / config.batch_size)[:, None, None]
        sample_grad = current.sample_grad(noise[..., 0, :], actions[..., 0, :], grad_action, grad_log_prob)
        self.policy.backward(sample_grad + grad_output)

        next_value = self.target_critic.forward(next_obs[:, None], next_actions[:, None, ..., 0, :])
        target = bellman_target(batch, next_value[..., 0].amin(1), config.discount)  # [seeds, batch]
        value = self.critic.forward(obs[:, None], batch.action[:, None])[..., 0]  # [seeds, 2, batch]
        residual = value - target[:, None]
        soft_maximum = self._conservative_term(
            obs,
            torch.cat([next_actions[..., 1:, :], actions[..., 1:, :]], -2),
            torch.cat([next_log_probs[..., 1:], log_probs[..., 1:]], -1),
        )
        # ∂/∂Q(s, a) of E[δ²] − α E[Q(s, a)]; conservative_gradient holds the gradient of the logsumexp
        dloss_dq = (2 * residual - config.alpha).div_(config.batch_size)
        self.critic.update(dloss_dq, extra_gradient=self.conservative_gradient)
        self.policy.step()
        self.target_critic.polyak_update(config.tau)
        self.updates += 1
        return {
            "loss": residual.square(),
            "value": value,
            "conservative_gap": soft_maximum - value,
            "temperature": temperature,
        }

    def _update_temperature(self, log_prob: Tensor) -> Tensor:
        """One step towards an entropy of −action_dim; returns the new temperature [seeds]."""
        self.temperature_optimiser.step(self.task.action_dim - log_prob.mean(-1))
        return self.log_temperature.exp()

    def _policy_grads(
        self, obs: Tensor, action: Tensor, data_action: Tensor, policy: Gaussian
    ) -> tuple[Tensor, Tensor]:
        """∂loss/∂action and ∂loss/∂output of the policy's loss without its entropy term.

        loss = −E[min Q(s, π(s))], or during the warm-up −E[log π(a|s)] for the data's action a
        """
        zero = obs.new_zeros(())
        if int(self.updates) < self.config.warm_up:
            return zero, policy.log_prob_grad(data_action) / -obs.shape[1]
        values = self.policy_values.forward(obs[:, None], action[:, None])  # [seeds, 2, batch, 1]
        lower = values == values.amin(1, keepdim=True)
        self.policy_values.backward(lower.float() / -obs.shape[1])
        return self.policy_values.input_grad(start=self.task.obs_dim).sum(1), zero

    def _conservative_term(self, obs: Tensor, actions: Tensor, log_probs: Tensor) -> Tensor:
        """log Σ_a exp(Q(s, a) − log μ(a)) [seeds, 2, batch], a from uniform, π(s′) and π(s).

        The gradient of α times its mean is written to `conservative_gradient`.
        """
        uniform_actions = uniform(self.generators, obs.shape[1], self.config.samples, self.task.action_dim)
        uniform_log_prob = log_probs.new_full(uniform_actions.shape[:-1], -self.task.action_dim * math.log(2))
        actions = torch.cat([uniform_actions, actions], -2)  # [seeds, batch, samples, action_dim]
        log_probs = torch.cat([uniform_log_prob, log_probs], -1)  # [seeds, batch, samples]
        self.conservative_gradient.zero_()
        parts = zip(*(x.split(self.states_at_once, 1) for x in (obs, actions, log_probs)), strict=True)
        return torch.cat([self._conservative_part(*part) for part in parts], -1)

    def _conservative_part(self, obs: Tensor, actions: Tensor, log_probs: Tensor) -> Tensor:
        """The same for some of the states; adds their gradient to `conservative_gradient`."""
        obs, actions = obs.repeat_interleave(actions.shape[2], dim=1), actions.flatten(1, 2)
        values = self.sampled_values.forward(obs[:, None], actions[:, None])
        corrected = values.view(len(obs), 2, *log_probs.shape[1:]) - log_probs[:, None]
        weight = corrected.softmax(-1).mul_(self.config.alpha / self.config.batch_size)
        self.sampled_values.backward(weight.view_as(values))
        self.sampled_values.parameter_grad(out=self.part_gradient)
        self.conservative_gradient += self.part_gradient
        return corrected.logsumexp(-1)

    def measure(self, transitions: Sequence[Transitions]) -> dict[str, Tensor]:
        return td_errors(transitions, self._values, self.config.discount) | self.critic.diagnostics()

    def _values(self, part: Transitions) -> tuple[Tensor, Tensor, Tensor]:
        obs, next_obs = self.normalise(part.obs), self.normalise(part.next_obs)
        online, target, next_action = self.critic.network, self.target_critic.network, self._greedy(next_obs)
        return (
            self.twin_values(online, obs, part.action),
            self.twin_values(online, next_obs, next_action).amin(1),
            self.twin_values(target, next_obs, next_action).amin(1),
        )

    def state_dict(self) -> dict[str, Tensor]:
        networks = {"policy": self.policy, "critic": self.critic, "target_critic": self.target_critic}
        state = state_of(**networks, temperature=self.temperature_optimiser, obs=self.normalise)
        return state | {"log_temperature": self.log_temperature, "updates": self.updates}


PRESETS = {
    "cql": Preset("CQL", CQL()),
    "gn_cql": Preset(
        "GN-CQL", CQL(kfac=KFAC(ema_decay=0.8, start="batch", factor_every=10, inverse_every=20))
    ),
}
