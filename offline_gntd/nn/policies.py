"""Policies as stacks of networks, deterministic or Gaussian, squashed by tanh into [−1, 1]; random draws."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from offline_gntd.nn.learner import Learner

LOG_STD_RANGE = (-20.0, 2.0)
LARGEST_ACTION = 0.999999  # the inverse of tanh is not computed nearer to ±1


class Policy(Learner):
    """a = tanh(network(…)): a deterministic policy, or a decoder of observations and latents."""

    def forward(self, *parts: Tensor) -> Tensor:
        self.action = super().forward(*parts).tanh_()
        return self.action

    def backward(self, grad_action: Tensor) -> None:
        """Compute the gradient from ∂loss/∂action [*stack, batch, action_dim]."""
        super().backward(grad_action * (1 - self.action.square()))


class Gaussian(NamedTuple):
    """Normal distributions of u, the action before squashing: a = tanh(u)."""

    mean: Tensor  # [seeds, batch, action_dim]
    log_std: Tensor
    in_range: Tensor  # where log_std is not clipped, and therefore has a gradient

    @classmethod
    def of(cls, output: Tensor) -> "Gaussian":
        """From a network's outputs [seeds, batch, 2 · action_dim]."""
        mean, log_std = output.clone().chunk(2, -1)
        in_range = (log_std >= LOG_STD_RANGE[0]) & (log_std <= LOG_STD_RANGE[1])
        return cls(mean, log_std.clamp(*LOG_STD_RANGE), in_range)

    def sample(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [seeds, batch, n, action_dim] and log π(a) [seeds, batch, n] for standard normal noise
        [seeds, batch, n, action_dim]."""
        u = torch.addcmul(self.mean[..., None, :], self.log_std.exp()[..., None, :], noise)
        # log(1 − tanh²u) = 2 (log 2 − u − softplus(−2u)), which does not overflow
        log_det = 2 * (math.log(2) - u - softplus(-2 * u))
        log_density = -0.5 * noise.square() - self.log_std[..., None, :] - 0.5 * math.log(2 * math.pi)
        return u.tanh(), (log_density - log_det).sum(-1)

    def sample_grad(
        self, noise: Tensor, action: Tensor, grad_action: Tensor, grad_log_prob: Tensor
    ) -> Tensor:
        """∂/∂output [seeds, batch, 2 · action_dim] of grad_action · a + grad_log_prob · log π(a), for one
        reparametrised sample a = tanh(mean + std · noise).

        noise, action and grad_action are [seeds, batch, action_dim], grad_log_prob [seeds or 1, 1, 1]. With
        the noise fixed, log π changes by 2 tanh(u) along u, and by −1 along log_std at fixed u.
        """
        grad_u = grad_action * (1 - action.square()) + grad_log_prob * 2 * action
        return self._output_grad(grad_u, grad_u * self.log_std.exp() * noise - grad_log_prob)

    def log_prob_grad(self, action: Tensor) -> Tensor:
        """∂ log π(action)/∂output for given actions [seeds, batch, action_dim]."""
        u = action.clamp(-LARGEST_ACTION, LARGEST_ACTION).atanh()
        deviation = (u - self.mean) / self.log_std.exp()
        return self._output_grad(deviation / self.log_std.exp(), deviation.square() - 1)

    def _output_grad(self, grad_mean: Tensor, grad_log_std: Tensor) -> Tensor:
        return torch.cat([grad_mean, grad_log_std * self.in_range], -1)


def normal(generators: Sequence[torch.Generator], *shape: int, std: float = 1.0) -> Tensor:
    """Normal draws of mean 0 [seeds, *shape], each seed's from its generator."""
    draws = torch.empty(len(generators), *shape, device=generators[0].device)
    for draw, generator in zip(draws, generators, strict=True):
        draw.normal_(0, std, generator=generator)
    return draws


def uniform(generators: Sequence[torch.Generator], *shape: int) -> Tensor:
    """Uniform draws in [−1, 1], the range of actions: [seeds, *shape]."""
    draws = torch.empty(len(generators), *shape, device=generators[0].device)
    for draw, generator in zip(draws, generators, strict=True):
        draw.uniform_(-1, 1, generator=generator)
    return draws
