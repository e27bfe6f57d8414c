"""Policies as stacks of networks: deterministic, and Gaussian squashed into the range of actions [−1, 1]."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from offline_gntd.nn.learner import Learner

tanh_backward = torch.ops.aten.tanh_backward.default  # signal · (1 − action²)
LOG_STD_RANGE = (-20.0, 2.0)
LARGEST_ACTION = 0.999999  # nearer to ±1 an action's pre-image under tanh is not to be told


class Policy(Learner):
    """a = tanh(network(…)): a policy of observations, or a decoder of observations and latents."""

    def forward(self, *parts: Tensor) -> Tensor:
        self.action = super().forward(*parts).tanh_()
        return self.action

    def backward(self, signal: Tensor) -> None:
        """From ∂loss/∂action [*stack, batch, action_dim] to the gradient."""
        super().backward(tanh_backward(signal, self.action))


class Gaussian(NamedTuple):
    """Normal distributions of u, the action before it is squashed: a = tanh(u)."""

    mean: Tensor  # [seeds, batch, action_dim]
    log_std: Tensor
    within: Tensor  # where log_std is not clipped, and so can be learned

    @classmethod
    def of(cls, output: Tensor) -> "Gaussian":
        """From a network's outputs [seeds, batch, 2 · action_dim]."""
        mean, log_std = output.clone().chunk(2, -1)
        within = (log_std >= LOG_STD_RANGE[0]) & (log_std <= LOG_STD_RANGE[1])
        return cls(mean, log_std.clamp(*LOG_STD_RANGE), within)

    def sample(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions and their log-densities [seeds, batch, n] for noise [seeds, batch, n, action_dim]."""
        u = torch.addcmul(self.mean[..., None, :], self.log_std.exp()[..., None, :], noise)
        # log(1 − tanh²u) = 2 (log 2 − u − softplus(−2u)), which no u overflows
        volume = 2 * (math.log(2) - u - softplus(-2 * u))
        log_density = -0.5 * noise.square() - self.log_std[..., None, :] - 0.5 * math.log(2 * math.pi)
        return u.tanh(), (log_density - volume).sum(-1)

    def sample_signal(self, noise: Tensor, action: Tensor, on_action: Tensor, on_density: Tensor) -> Tensor:
        """∂/∂output of on_action · a + on_density · log π(a) for one sample a, with a moving with the output:
        [seeds, batch, 2 · action_dim] from noise, action, on_action [seeds, batch, action_dim] and on_density
        [seeds or 1, 1, 1]. Along u, log π changes by 2 tanh(u) alone: noise stays what it was."""
        on_u = on_action * (1 - action.square()) + on_density * 2 * action
        return self._signal(on_u, on_u * self.log_std.exp() * noise - on_density)

    def likelihood_signal(self, action: Tensor) -> Tensor:
        """∂/∂output of log π(action) for given actions [seeds, batch, action_dim]."""
        u = action.clamp(-LARGEST_ACTION, LARGEST_ACTION).atanh()
        away = (u - self.mean) / self.log_std.exp()
        return self._signal(away / self.log_std.exp(), away.square() - 1)

    def _signal(self, on_mean: Tensor, on_log_std: Tensor) -> Tensor:
        return torch.cat([on_mean, on_log_std * self.within], -1)
