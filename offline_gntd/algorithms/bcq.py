"""BCQ for continuous actions (Fujimoto, Meger & Precup 2019); with kfac set, Gauss-Newton critics.

A variational auto-encoder (VAE) of the data's actions proposes candidates, a perturbation network moves each
by at most Φ, and the critics choose among them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offline_gntd import checks
from offline_gntd.algorithms.agent import Preset, TwinCriticAgent
from offline_gntd.algorithms.bellman import bellman_target, td_errors
from offline_gntd.nn.kfac import KFAC
from offline_gntd.nn.learner import Learner, Target, state_of
from offline_gntd.nn.mlp import MLP, PRECISIONS, Tape
from offline_gntd.nn.optimisers import Optimiser
from offline_gntd.nn.policies import Policy, normal
from offline_gntd.transitions import Transitions

LATENT_CLIP = 0.5  # limit on the latents that actions are decoded from
LOG_STD_RANGE = (-4.0, 15.0)  # limits on the encoder's log σ
ACTING_SEED = 0  # for the latents of `act`


@dataclass(frozen=True)
class BCQ:
    hidden_dims: tuple[int, ...] = (400, 300)  # critics and perturbation network
    vae_hidden_dims: tuple[int, ...] = (750, 750)  # encoder and decoder; latents have 2 · action_dim
    batch_size: int = 100
    vae_learning_rate: float = 1e-3
    actor_learning_rate: float = 1e-3  # perturbation network
    critic_learning_rate: float = 1e-3  # β
    critic_optimiser: Optimiser = Optimiser()  # the other networks' is Adam with its defaults
    discount: float = 0.99  # γ
    tau: float = 0.005  # Polyak averaging of critics and perturbation network
    kl_weight: float = 0.5  # in the VAE's loss
    perturbation: float = 0.05  # Φ
    clipping: float = 0.75  # λ, weight of the smaller critic in the target
    candidates: int = 10  # actions the target maximises over
    acting_candidates: int = 100  # actions the policy maximises over
    normalise_obs: bool = False
    kfac: KFAC | None = None  # Gauss-Newton step of the critics by Kronecker factors (Algorithm 3)
    precision: str = "float32"  # float32 | bfloat16, for the matrix products of an update

    discrete = False  # not a field: the kind of actions

    def __post_init__(self):
        checks.positive(
            self, "hidden_dims", "vae_hidden_dims", "batch_size", "candidates", "acting_candidates"
        )
        checks.positive(self, "vae_learning_rate", "actor_learning_rate", "critic_learning_rate")
        checks.nonnegative(self, "kl_weight", "perturbation")
        checks.fraction(self, "tau", "clipping")
        checks.below_one(self, "discount")
        checks.choice(self, "precision", PRECISIONS)

    def agent(self, *args) -> "BCQAgent":
        return BCQAgent(self, *args)


class BCQAgent(TwinCriticAgent):
    """Encoder, decoder, perturbation network and twin critics per seed."""

    def __init__(self, *args):
        super().__init__(*args)
        config, task, batch = self.config, self.task, self.config.batch_size
        pair, self.latent = task.obs_dim + task.action_dim, 2 * task.action_dim
        encoder = self.networks(pair, *config.vae_hidden_dims, 2 * self.latent)
        decoder = self.networks(task.obs_dim + self.latent, *config.vae_hidden_dims, task.action_dim)
        actor = self.networks(pair, *config.hidden_dims, task.action_dim)
        self.encoder = Learner(encoder, batch, config.vae_learning_rate)
        self.decoder = Policy(decoder, batch, config.vae_learning_rate)
        self.actor = Policy(actor, batch, config.actor_learning_rate)
        self.critic = self.twin_critics()
        critics = self.critic.network
        self.first_critic = Tape(critics.member(0), batch)  # Q₁, which the perturbation maximises
        self.proposals = Tape(decoder, batch * config.candidates)
        self.target_actor = Target(actor, batch * config.candidates)
        self.target_critic = Target(critics, batch * config.candidates)
        # fixed draws by their number, so that the policy is deterministic
        self.latents = {n: self._fixed_latents(n) for n in (config.candidates, config.acting_candidates)}

    def _fixed_latents(self, count: int) -> Tensor:
        generator = torch.Generator(self.device).manual_seed(ACTING_SEED)
        return normal([generator], count, self.latent).clamp_(-LATENT_CLIP, LATENT_CLIP)  # [1, count, latent]

    def act(self, obs: Tensor) -> Tensor:
        """The best of `acting_candidates` by Q₁."""
        networks = self.actor.network, self.critic.network
        action, values = self._candidates(self.normalise(obs), self.config.acting_candidates, *networks)
        best = values[:, 0].argmax(-1)[..., None, None].expand(-1, -1, 1, action.shape[-1])
        return action.gather(-2, best)[..., 0, :]

    def _candidates(self, obs: Tensor, count: int, actor: MLP, critics: MLP) -> tuple[Tensor, Tensor]:
        """Actions [seeds, n, count, action_dim] and both critics' values [seeds, 2, n, count]."""
        shape = (*obs.shape[:2], count)
        latent = self.latents[count].repeat(obs.shape[0], obs.shape[1], 1)
        obs = obs.repeat_interleave(count, dim=1)  # [seeds, n · count, obs_dim]
        action = self.decoder.network(torch.cat([obs, latent], -1)).tanh_()
        action = self._perturbed(action, actor(torch.cat([obs, action], -1)).tanh_())
        return action.view(*shape, -1), self.twin_values(critics, obs, action).view(shape[0], 2, *shape[1:])

    def _perturbed(self, action: Tensor, direction: Tensor) -> Tensor:
        return (action + self.config.perturbation * direction).clamp_(-1, 1)

    @torch.inference_mode()
    def update(self, batch: Transitions) -> dict[str, Tensor]:
        obs, next_obs = self.normalise(batch.obs), self.normalise(batch.next_obs)
        vae_loss = self._update_vae(obs, batch.action)
        residual, value = self._update_critics(batch, obs, next_obs)
        self._update_actor(obs)
        self.target_actor.polyak_update(self.config.tau)
        self.target_critic.polyak_update(self.config.tau)
        return {"loss": residual.square(), "value": value, "vae_loss": vae_loss}

    def _update_vae(self, obs: Tensor, data_action: Tensor) -> Tensor:
        """One step of encoder and decoder; returns the loss [seeds].

        loss = E[(decoded − a)²] + kl_weight · KL(N(μ, σ²) ‖ N(0, 1)), decoded from μ + σ · noise
        """
        mean, log_std = self.encoder.forward(obs, data_action).chunk(2, -1)  # [seeds, batch, latent] each
        std = log_std.clamp(*LOG_STD_RANGE).exp()
        noise = normal(self.generators, *mean.shape[1:])
        error = self.decoder.forward(obs, mean + std * noise) - data_action
        divergence = 0.5 * (mean.square() + std.square() - 1) - std.log()
        loss = error.square().mean((-2, -1)) + self.config.kl_weight * divergence.mean((-2, -1))

        self.decoder.backward(error * (2 / error[0].numel()))  # the means are over the last dimension too
        grad_latent = self.decoder.tape.input_grad(start=self.task.obs_dim)
        kl_weight = self.config.kl_weight / mean[0].numel()
        in_range = (log_std >= LOG_STD_RANGE[0]) & (log_std <= LOG_STD_RANGE[1])
        grad_log_std = (grad_latent * noise * std + kl_weight * (std.square() - 1)) * in_range
        self.encoder.backward(torch.cat([grad_latent + kl_weight * mean, grad_log_std], -1))
        self.decoder.step()
        self.encoder.step()
        return loss

    def _update_critics(self, batch: Transitions, obs: Tensor, next_obs: Tensor) -> tuple[Tensor, Tensor]:
        """One step of each critic; returns δ and Q(s, a) [seeds, 2, batch].

        loss = E[δ²], δ = Q(s,a) − r − γ(1−terminated) max_a′ Q_target(s′,a′) over the candidates a′
        """
        target = bellman_target(batch, self._next_value(next_obs), self.config.discount)  # [seeds, batch]
        value = self.critic.forward(obs[:, None], batch.action[:, None])[..., 0]  # [seeds, 2, batch]
        residual = value - target[:, None]
        self.critic.update(residual * (2 / self.config.batch_size))
        return residual, value

    def _generate(self, tape: Tape, obs: Tensor) -> Tensor:
        """Actions decoded from clipped latents: [seeds, batch, action_dim]."""
        latent = normal(self.generators, tape.batch, self.latent).clamp_(-LATENT_CLIP, LATENT_CLIP)
        return tape.forward(obs, latent).tanh_()

    def _next_value(self, next_obs: Tensor) -> Tensor:
        """Soft clipped double Q-learning over the candidates: [seeds, batch]."""
        next_obs = next_obs.repeat_interleave(self.config.candidates, dim=1)
        action = self._generate(self.proposals, next_obs)
        action = self._perturbed(action, self.target_actor.forward(next_obs, action).tanh_())
        values = self.target_critic.forward(next_obs[:, None], action[:, None])[..., 0]
        return self._soft_clipped(values).unflatten(-1, (-1, self.config.candidates)).amax(-1)

    def _soft_clipped(self, values: Tensor) -> Tensor:
        """λ min + (1 − λ) max over the critics [seeds, 2, …]."""
        return torch.lerp(values.amax(1), values.amin(1), self.config.clipping)

    def _update_actor(self, obs: Tensor) -> None:
        """One step of the perturbation network ξ; loss = −E[Q₁(s, a + Φ ξ(s, a))], a from the decoder."""
        proposed = self._generate(self.decoder.tape, obs)
        moved = proposed + self.config.perturbation * self.actor.forward(obs, proposed)
        self.first_critic.forward(obs, moved.clamp(-1, 1))
        self.first_critic.backward(-1 / obs.shape[1])
        dq_da = self.first_critic.input_grad(start=self.task.obs_dim)
        self.actor.backward(self.config.perturbation * dq_da * (moved.abs() <= 1))
        self.actor.step()

    def measure(self, transitions: Sequence[Transitions]) -> dict[str, Tensor]:
        errors = td_errors(transitions, self._values, self.config.discount, max_rows=2_048)
        return errors | self.critic.diagnostics()

    def _values(self, part: Transitions) -> tuple[Tensor, Tensor, Tensor]:
        obs, next_obs = self.normalise(part.obs), self.normalise(part.next_obs)
        online = self.actor.network, self.critic.network
        target = self.target_actor.network, self.target_critic.network
        _, values = self._candidates(next_obs, self.config.candidates, *online)
        _, target_values = self._candidates(next_obs, self.config.candidates, *target)
        return (
            self.twin_values(self.critic.network, obs, part.action),
            self._soft_clipped(values).amax(-1),
            self._soft_clipped(target_values).amax(-1),
        )

    def state_dict(self) -> dict[str, Tensor]:
        vae = {"encoder": self.encoder, "decoder": self.decoder}
        targets = {"target_actor": self.target_actor, "target_critic": self.target_critic}
        return state_of(**vae, actor=self.actor, critic=self.critic, **targets, obs=self.normalise)


PRESETS = {
    "bcq": Preset("BCQ", BCQ()),
    "gn_bcq": Preset(
        "GN-BCQ", BCQ(kfac=KFAC(ema_decay=0.8, start="batch", factor_every=10, inverse_every=20))
    ),
}
