"""ReBRAC (Tarasov et al. 2023); with kfac set, a Gauss-Newton step of the critics.

TD3+BC with deeper networks, LayerNorm in the critics, large batches, and behaviour cloning in the actor's
loss and in the critics' target, each with a weight of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from offline_gntd import checks
from offline_gntd.algorithms.agent import Preset
from offline_gntd.algorithms.autograd import AutogradAgent, Losses, SeedStack
from offline_gntd.algorithms.bellman import bellman_target
from offline_gntd.nn.gauss_newton import GaussNewton
from offline_gntd.nn.kfac import KFAC
from offline_gntd.tasks import Task
from offline_gntd.transitions import Batch, Transitions


@dataclass(frozen=True)
class ReBRAC:
    hidden_dims: tuple[int, ...] = (256, 256, 256)  # of actor and critics
    batch_size: int = 1024
    actor_learning_rate: float = 1e-3
    critic_learning_rate: float = 1e-3
    discount: float = 0.99  # γ
    tau: float = 0.005  # Polyak averaging of both targets, at every actor update
    policy_noise: float = 0.2  # standard deviation of the target policy's smoothing noise
    noise_clip: float = 0.5
    policy_freq: int = 2  # critic updates per actor update
    actor_bc_weight: float = 0.01  # β₁, of (π(s) − a)² in the actor's loss
    critic_bc_weight: float = 0.01  # β₂, of (π(s′) − a′)² in the critics' target
    normalise_obs: bool = False
    kfac: KFAC | None = None  # Gauss-Newton step of the critics by Kronecker factors (Algorithm 3)
    precision: str = "float32"  # float32 only

    discrete = False  # not a field: the kind of actions

    def __post_init__(self):
        checks.positive(self, "hidden_dims", "batch_size", "actor_learning_rate", "critic_learning_rate")
        checks.positive(self, "policy_freq")
        checks.nonnegative(self, "policy_noise", "noise_clip", "actor_bc_weight", "critic_bc_weight")
        checks.fraction(self, "tau")
        checks.below_one(self, "discount")
        checks.choice(self, "precision", ["float32"])

    def agent(self, *args) -> SeedStack:
        return ReBRACAgent.stack(self, *args)


class ReBRACAgent(AutogradAgent):
    def __init__(self, config: ReBRAC, task: Task):
        super().__init__(config, task)
        self.actor: nn.Module = Actor(config, task)
        self.critic: nn.Module = TwinCritics(config, task)
        self.target_actor = self.target(self.actor, config.tau)
        self.target_critic = self.target(self.critic, config.tau)
        adam = torch.optim.Adam(self.actor.parameters(), lr=config.actor_learning_rate, fused=True)
        self.optimisers["actor"] = adam
        if config.kfac:
            kfac = asdict(config.kfac)
            self.optimisers["critic"] = GaussNewton(self.critic, lr=config.critic_learning_rate, **kfac)
        else:
            adam = torch.optim.Adam(self.critic.parameters(), lr=config.critic_learning_rate, fused=True)
            self.optimisers["critic"] = adam

    def act(self, obs: Tensor) -> Tensor:
        return self.actor(obs)

    @property
    def actor_due(self) -> bool:
        return int(self.updates) % self.config.policy_freq == 0

    def losses(self, batch: Batch) -> Iterator[Losses]:
        yield self.critic_loss(batch)
        if self.actor_due:
            yield {"actor": self.actor_loss(batch)}

    def polyak_update(self) -> None:
        if self.actor_due:
            super().polyak_update()

    def critic_loss(self, batch: Batch) -> Losses:
        """Σ_i E[δ_i²], δ_i = Q_i(s,a) − r − γ(1−terminated) (min Q(s′,ã) − β₂ (ã − a′)²), ã = π(s′) + noise.

        The penalty is 0 where a′, the data's action in s′, is not known.
        """
        config = self.config
        with torch.no_grad():
            noise = (config.policy_noise * torch.randn_like(batch.action)).clamp_(
                -config.noise_clip, config.noise_clip
            )
            action = (self.target_actor(batch.next_obs) + noise).clamp_(-1, 1)
            data_action, known = batch.next_action()
            penalty = (action - data_action).square().sum(-1) * known
            next_value = self.target_critic(batch.next_obs, action).amin(0)
            target = bellman_target(batch, next_value - config.critic_bc_weight * penalty, config.discount)
        value = self.critic(batch.obs, batch.action)  # [2, batch]
        squares = (value - target).square()
        self.metrics |= {"loss": squares, "value": value}
        loss = squares.mean(1).sum()
        return {"critic": (loss, value) if config.kfac else loss}

    def actor_loss(self, batch: Batch) -> Tensor:
        """E[β₁ (π(s) − a)² − λ min Q(s, π(s))], λ = 1 / E|min Q(s, π(s))|, not differentiated."""
        action = self.actor(batch.obs)
        value = self.critic(batch.obs, action).amin(0)  # [batch]
        cloning = (action - batch.action).square().sum(-1)
        return (self.config.actor_bc_weight * cloning - value / value.detach().abs().mean()).mean()

    def values(self, batch: Transitions) -> tuple[Tensor, Tensor, Tensor]:
        next_value = self.critic(batch.next_obs, self.actor(batch.next_obs)).amin(0)
        target_value = self.target_critic(batch.next_obs, self.target_actor(batch.next_obs)).amin(0)
        return self.critic(batch.obs, batch.action), next_value, target_value


class Actor(nn.Module):
    def __init__(self, config: ReBRAC, task: Task):
        super().__init__()
        self.layers = layers((task.obs_dim, *config.hidden_dims, task.action_dim), False, 1e-3)

    def forward(self, obs: Tensor) -> Tensor:
        return self.layers(obs).tanh()


class TwinCritics(nn.Module):
    def __init__(self, config: ReBRAC, task: Task):
        super().__init__()
        dims = (task.obs_dim + task.action_dim, *config.hidden_dims, 1)
        self.critics = nn.ModuleList(layers(dims, True, 3e-3) for _ in range(2))

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        x = torch.cat([obs, action], -1)
        return torch.stack([critic(x)[..., 0] for critic in self.critics])  # [2, …]


def layers(dims: Sequence[int], layer_norm: bool, last: float) -> nn.Sequential:
    """ReLU layers, each followed by LayerNorm if set, and a linear one. Hidden biases start at 0.1, the last
    layer uniform in ±last, as the authors have them."""
    modules: list[nn.Module] = []
    for fan_in, fan_out in pairwise(dims[:-1]):
        linear = nn.Linear(fan_in, fan_out)
        nn.init.constant_(linear.bias, 0.1)
        modules += [linear, nn.ReLU(), *([nn.LayerNorm(fan_out, eps=1e-6)] if layer_norm else [])]
    linear = nn.Linear(dims[-2], dims[-1])
    nn.init.uniform_(linear.weight, -last, last)
    nn.init.uniform_(linear.bias, -last, last)
    return nn.Sequential(*modules, linear)


PRESETS = {
    "rebrac": Preset("ReBRAC", ReBRAC()),
    "gn_rebrac": Preset(
        "GN-ReBRAC", ReBRAC(kfac=KFAC(ema_decay=0.8, start="batch", factor_every=10, inverse_every=20))
    ),
}
