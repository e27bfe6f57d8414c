"""TD3+BC (Fujimoto & Gu 2021); with kfac set, GNTD3+BC (Ke, Zhang & Wen).

With alpha none (no behaviour cloning) it is TD3 (Fujimoto, van Hoof & Meger 2018), which can learn online.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from offline_gntd import checks
from offline_gntd.algorithms.agent import Preset, TwinCriticAgent
from offline_gntd.algorithms.bellman import bellman_target, td_errors
from offline_gntd.nn.kfac import KFAC
from offline_gntd.nn.learner import Target, state_of
from offline_gntd.nn.mlp import PRECISIONS, Tape
from offline_gntd.nn.optimisers import Optimiser
from offline_gntd.nn.policies import Policy, normal
from offline_gntd.transitions import Transitions


@dataclass(frozen=True)
class AlphaSchedule:
    """The adaptive α of the GNTD authors' code, which their paper does not mention.

    At every `every`-th update from `start` to `end`, 1/α changes by rate · (MSE(π(s), a) − goal), if the MSE
    is within `margin` of the goal.
    """

    start: int = 300_000  # updates
    end: int = 600_000
    every: int = 200
    goal: float = 0.075
    margin: float = 0.2
    rate: float = 1e-3
    lowest: float = 0.1  # limits of 1/α
    highest: float = 1.0

    def __post_init__(self):
        checks.positive(self, "every", "goal", "margin", "rate", "lowest", "highest")
        checks.nonnegative(self, "start", "end")


@dataclass(frozen=True)
class TD3BC:
    hidden_dims: tuple[int, ...] = (256, 256)  # actor and critics
    batch_size: int = 256
    actor_learning_rate: float = 3e-4
    critic_learning_rate: float = 3e-4  # β
    critic_optimiser: Optimiser = Optimiser()  # the actor's is Adam with its defaults
    critic_loss_weight: float = 1.0  # factor of each critic's mean squared error; ½ in the GNTD authors' code
    discount: float = 0.99  # γ
    tau: float = 0.005  # Polyak averaging of both targets, at every actor update
    policy_noise: float = 0.2  # standard deviation of the target policy's smoothing noise
    noise_clip: float = 0.5
    policy_freq: int = 2  # critic updates per actor update
    alpha: float | None = 2.5  # weight of Q / mean |Q| against behaviour cloning; none: TD3
    alpha_schedule: AlphaSchedule | None = None
    normalise_obs: bool = True  # to zero mean and unit variance over the dataset
    kfac: KFAC | None = None  # Gauss-Newton step of the critics by Kronecker factors (Algorithm 3)
    precision: str = "float32"  # float32 | bfloat16, for the matrix products of an update

    discrete = False  # not a field: the kind of actions

    def __post_init__(self):
        checks.positive(self, "hidden_dims", "batch_size", "actor_learning_rate", "critic_learning_rate")
        checks.positive(self, "critic_loss_weight", "policy_freq", "alpha")
        checks.nonnegative(self, "policy_noise", "noise_clip")
        checks.fraction(self, "tau")
        checks.below_one(self, "discount")
        checks.choice(self, "precision", PRECISIONS)

    def agent(self, *args) -> "TD3BCAgent":
        """args  task, generators, obs_statistics; see Agent"""
        return TD3BCAgent(self, *args)


class TD3BCAgent(TwinCriticAgent):
    """One actor and two critics per seed, each with a target."""

    def __init__(self, *args):
        super().__init__(*args)
        config, task, batch = self.config, self.task, self.config.batch_size
        actor = self.networks(task.obs_dim, *config.hidden_dims, task.action_dim)
        self.actor = Policy(actor, batch, config.actor_learning_rate)
        self.critic = self.twin_critics()
        self.first_critic = Tape(self.critic.network.member(0), batch)  # Q₁, which the actor maximises
        self.target_actor = Target(actor, batch)
        self.target_critic = Target(self.critic.network, batch)
        self.alpha = torch.full((self.seeds, 1, 1), config.alpha or 0.0, device=self.device)
        self.updates = torch.zeros((), dtype=torch.int64)  # on the CPU

    def act(self, obs: Tensor) -> Tensor:
        return self.actor.network(self.normalise(obs)).tanh_()

    def explore(self, obs: Tensor, noise: float) -> Tensor:
        """Actions with normal noise of this standard deviation, clipped to [−1, 1]."""
        action = self.act(obs)
        return action.add_(normal(self.generators, *action.shape[1:], std=noise)).clamp_(-1, 1)

    @torch.inference_mode()
    def update(self, batch: Transitions) -> dict[str, Tensor]:
        """One step of the critics and, at every `policy_freq`-th update, of the actor and the targets."""
        obs, next_obs = self.normalise(batch.obs), self.normalise(batch.next_obs)
        self.updates += 1
        residual, value = self._update_critics(batch, obs, next_obs)
        if int(self.updates) % self.config.policy_freq == 0:
            self._update_actor(obs, batch.action)
            self.target_actor.polyak_update(self.config.tau)
            self.target_critic.polyak_update(self.config.tau)
        return {"loss": residual.square(), "value": value}

    def _update_critics(self, batch: Transitions, obs: Tensor, next_obs: Tensor) -> tuple[Tensor, Tensor]:
        """One step of each critic; returns δ and Q(s, a) [seeds, 2, batch].

        loss = critic_loss_weight · E[δ²], δ = Q(s,a) − r − γ(1−terminated) min Q_target(s′,a′)
        """
        target = bellman_target(batch, self._next_value(next_obs), self.config.discount)  # [seeds, batch]
        value = self.critic.forward(obs[:, None], batch.action[:, None])[..., 0]  # [seeds, 2, batch]
        residual = value - target[:, None]  # δ
        dloss_dq = residual * (2 * self.config.critic_loss_weight / self.config.batch_size)
        self.critic.update(dloss_dq)  # semi-gradient, or with kfac the Gauss-Newton direction
        return residual, value

    def _next_value(self, next_obs: Tensor) -> Tensor:
        """min Q_target(s′, a′) [seeds, batch], a′ the target policy's action with clipped noise."""
        action = self.target_actor.forward(next_obs).tanh_()  # [seeds, batch, action_dim]
        noise = normal(self.generators, *action.shape[1:], std=self.config.policy_noise)
        action += noise.clamp_(-self.config.noise_clip, self.config.noise_clip)
        return self.target_critic.forward(next_obs[:, None], action.clamp_(-1, 1)[:, None])[..., 0].amin(1)

    def _update_actor(self, obs: Tensor, data_action: Tensor) -> None:
        """One step of the actor.

        loss = E[(π(s) − a)²] − λ E[Q₁(s, π(s))], λ = α / E|Q₁(s, π(s))| held constant; TD3: −E[Q₁(s, π(s))]
        """
        action = self.actor.forward(obs)  # [seeds, batch, action_dim]
        value = self.first_critic.forward(obs, action)  # [seeds, batch, 1]
        self.first_critic.backward(1.0)
        dq_da = self.first_critic.input_grad(start=self.task.obs_dim)  # [seeds, batch, action_dim]
        if self.config.alpha is None:
            self.actor.backward(dq_da / -self.config.batch_size)
        else:
            self._adapt_alpha(action, data_action)
            scale = self.alpha / value.abs().sum((-2, -1), keepdim=True)  # λ / batch [seeds, 1, 1]
            cloning_grad = (action - data_action) * (2 / action[0].numel())  # the mean is over action_dim too
            self.actor.backward(cloning_grad - scale * dq_da)
        self.actor.step()

    def _adapt_alpha(self, action: Tensor, data_action: Tensor) -> None:
        """Change α as `AlphaSchedule` says."""
        schedule, updates = self.config.alpha_schedule, int(self.updates)
        if schedule is None or not schedule.start <= updates <= schedule.end or updates % schedule.every:
            return
        excess = (action - data_action).square().mean((-2, -1), keepdim=True) - schedule.goal  # [seeds, 1, 1]
        inverse = (1 / self.alpha + schedule.rate * excess).clamp(schedule.lowest, schedule.highest)
        self.alpha.copy_(torch.where(excess.abs() < schedule.margin, 1 / inverse, self.alpha))

    def measure(self, transitions: Sequence[Transitions]) -> dict[str, Tensor]:
        return td_errors(transitions, self._values, self.config.discount) | self.critic.diagnostics()

    def _values(self, part: Transitions) -> tuple[Tensor, Tensor, Tensor]:
        obs, next_obs = self.normalise(part.obs), self.normalise(part.next_obs)
        online, target = self.critic.network, self.target_critic.network
        next_action = self.actor.network(next_obs).tanh_()
        target_action = self.target_actor.network(next_obs).tanh_()
        return (
            self.twin_values(online, obs, part.action),
            self.twin_values(online, next_obs, next_action).amin(1),
            self.twin_values(target, next_obs, target_action).amin(1),
        )

    def state_dict(self) -> dict[str, Tensor]:
        parts = {"actor": self.actor, "critic": self.critic, "obs": self.normalise}
        targets = {"target_actor": self.target_actor, "target_critic": self.target_critic}
        return state_of(**parts, **targets) | {"alpha": self.alpha, "updates": self.updates}


AUTHORS_ADAM = Optimiser(eps=1e-6, bias_correction=False)
AUTHORS = TD3BC(
    hidden_dims=(400, 300),
    critic_optimiser=AUTHORS_ADAM,
    critic_loss_weight=0.5,
    alpha_schedule=AlphaSchedule(),
)

# the winners of the experiment ablation-gntd3_bc
TUNED = TD3BC(critic_learning_rate=1e-3, critic_optimiser=Optimiser(bias_correction=False))
GAUSS_NEWTON = TD3BC(
    critic_optimiser=Optimiser(beta1=0.0, eps=1e-6, bias_correction=False),
    critic_loss_weight=0.5,
    kfac=KFAC(damping=0.1, output_scale=0.5),
)
V01 = TD3BC(kfac=KFAC(ema_decay=0.8, start="batch", factor_every=10, inverse_every=20))

PRESETS = {
    "td3_bc": Preset("TD3+BC", TD3BC()),
    "td3_bc_tuned": Preset("TD3+BC (tuned)", TUNED),
    "gntd3_bc": Preset("GNTD3+BC", GAUSS_NEWTON),
    "gntd3_bc_v01": Preset("GNTD3+BC (0.1)", V01),  # the preset of version 0.1
    # as the authors of the GNTD paper ran them
    "td3_bc_authors": Preset("TD3+BC (authors)", AUTHORS),
    "gntd3_bc_authors": Preset(
        "GNTD3+BC (authors)",
        replace(
            AUTHORS,
            critic_optimiser=replace(AUTHORS_ADAM, beta1=0.0),
            kfac=KFAC(damping=0.1, output_scale=0.5),
        ),
    ),
}
