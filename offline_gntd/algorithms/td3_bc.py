"""TD3+BC (Fujimoto & Gu 2021); with kfac set, GNTD3+BC (Ke, Zhang & Wen).

Without cloning (alpha none) it is TD3 (Fujimoto, van Hoof & Meger 2018), which explores and learns online.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import vector_norm

from offline_gntd import bellman
from offline_gntd.algorithms.continuous import ActorCritic, Settings
from offline_gntd.algorithms.preset import Preset
from offline_gntd.nn.kfac import KFAC
from offline_gntd.nn.learner import Target, state_of
from offline_gntd.nn.mlp import Tape
from offline_gntd.nn.noise import normal
from offline_gntd.nn.policies import Policy
from offline_gntd.transitions import Transitions


@dataclass(frozen=True)
class TD3BC(Settings):
    hidden_dims: tuple[int, ...] = (256, 256)  # hidden units of actor and critics
    batch_size: int = 256
    actor_learning_rate: float = 3e-4
    critic_learning_rate: float = 3e-4  # β
    optimiser: str = "adam"  # adam | plain; of the critics. The actor's is Adam
    discount: float = 0.99  # γ
    tau: float = 0.005  # Polyak rate of both targets, at every actor update
    policy_noise: float = 0.2  # standard deviation of the target policy's smoothing noise
    noise_clip: float = 0.5
    policy_freq: int = 2  # critic updates per actor update
    alpha: float | None = 2.5  # weight of the value, in units of its mean size, against cloning; none: TD3
    normalise_obs: bool = True  # to zero mean and unit variance over the dataset
    kfac: KFAC | None = None  # Gauss-Newton step of the critics by Kronecker factors (Algorithm 3)

    def agent(self, *made_from) -> "TD3BCAgent":
        return TD3BCAgent(self, *made_from)


class TD3BCAgent(ActorCritic):
    """An actor and twin critics per seed."""

    def __init__(self, *made_from):
        super().__init__(*made_from)
        config, task, batch = self.config, self.task, self.config.batch_size
        actor = self.networks(task.obs_dim, *config.hidden_dims, task.action_dim)
        self.critic = self.twin_critics()
        critics, memory = self.critic.network, self.critic.tape.memory
        # targets, critics and actor are done with one after the other; Q₁ is climbed while the actor waits
        of_actor, of_first_critic = memory.halves()
        self.actor = Policy(actor, batch, config.actor_learning_rate, memory=of_actor)
        self.first_critic = Tape(critics.member(0), batch, of_first_critic)
        self.target_actor, self.target_critic = Target(actor, batch, of_actor), Target(critics, batch, memory)
        self.updates = torch.zeros((), dtype=torch.int64)

    def act(self, obs: Tensor) -> Tensor:
        return self.actor.network(self.normalise(obs)).tanh_()

    def explore(self, obs: Tensor, noise: float) -> Tensor:
        """Actions with normal noise of this standard deviation added, within their range."""
        action = self.act(obs)
        return action.add_(normal(self.generators, *action.shape[1:], std=noise)).clamp_(-1, 1)

    @torch.inference_mode()
    def update(self, batch: Transitions) -> dict[str, Tensor]:
        obs, next_obs = self.normalise(batch.obs), self.normalise(batch.next_obs)
        target = bellman.target(batch, self._next_value(next_obs), self.config.discount)  # [seeds, batch]
        value = self.critic.forward(obs[:, None], batch.action[:, None])[..., 0]  # [seeds, 2, batch]
        residual = value - target[:, None]
        self.critic.descend(residual * (2 / self.config.batch_size))  # 2: the derivative of the square
        self.updates += 1
        if int(self.updates) % self.config.policy_freq == 0:
            self._improve(obs, batch.action)
            self.target_actor.follow(self.config.tau)
            self.target_critic.follow(self.config.tau)
        return {"loss": residual.square(), "value": value}

    def _next_value(self, next_obs: Tensor) -> Tensor:
        """Clipped double Q-learning with target policy smoothing: [seeds, batch]."""
        action = self.target_actor.forward(next_obs).tanh_()
        noise = normal(self.generators, *action.shape[1:], std=self.config.policy_noise)
        action += noise.clamp_(-self.config.noise_clip, self.config.noise_clip)
        return self.target_critic.forward(next_obs[:, None], action.clamp_(-1, 1)[:, None])[..., 0].amin(1)

    def _improve(self, obs: Tensor, data_action: Tensor) -> None:
        """One step of the actor down −λ E[Q₁(s, π(s))] + E[(π(s) − a)²], with λ = α / E|Q₁|; without α, down
        −E[Q₁(s, π(s))] alone."""
        action = self.actor.forward(obs)
        value = self.first_critic.forward(obs, action)  # [seeds, batch, 1]
        self.first_critic.backward(1.0)
        slope = self.first_critic.input_signal(start=self.task.obs_dim)  # ∂Q₁/∂a [seeds, batch, action_dim]
        if self.config.alpha is None:
            signal = slope / -action.shape[1]
        else:
            # λ, with the mean over the batch of the term it weighs
            scale = self.config.alpha / vector_norm(value, 1, (-2, -1), keepdim=True)
            cloning = (action - data_action).mul_(2 / action[0].numel())
            signal = cloning.addcmul_(scale, slope, value=-1)
        self.actor.backward(signal)
        self.actor.step()

    def measure(self, transitions: Transitions) -> dict[str, Tensor]:
        return bellman.measure(transitions, self._values, self.config.discount) | self.critic.diagnostics()

    def _values(self, part: Transitions) -> tuple[Tensor, Tensor]:
        """Q(s, a) of both critics [seeds, 2, n] and min Q(s′, π(s′)) [seeds, n]."""
        obs, next_obs = self.normalise(part.obs), self.normalise(part.next_obs)
        next_action = self.actor.network(next_obs).tanh_()
        return self.both_values(obs, part.action), self.both_values(next_obs, next_action).amin(1)

    def state_dict(self) -> dict[str, Tensor]:
        parts = {"actor": self.actor, "critic": self.critic, "obs": self.normalise}
        targets = {"target_actor": self.target_actor, "target_critic": self.target_critic}
        return state_of(**parts, **targets) | {"updates": self.updates}


PRESETS = {
    "td3_bc": Preset("TD3+BC", TD3BC()),
    # both factors averaged: docs/differences.md; its learning rate and rank: docs/choosing.md
    "gntd3_bc": Preset("GNTD3+BC", TD3BC(kfac=KFAC(damping=0.25, momentum=0.2, average_G=True, rank=64))),
}
