"""Policy evaluation by TD and by exact GNTD (Algorithm 1): N fresh tuples an iteration, or expectations.

Of N i.i.d. tuples only the number of each (pair, next pair) matters, and it is multinomial: an iteration
costs the same for every N.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from offline_gntd.nn.exact import direction
from offline_gntd.theory.approximations import Approximation
from offline_gntd.theory.chains import Chains


def frequencies(chains: Chains, samples: int, rngs: Sequence[np.random.Generator]) -> Tensor:
    """How often each (pair, next pair) is among N tuples: [seeds, n, n], adding up to 1."""
    counts = [
        rng.multinomial(samples, joint.flatten()).reshape(joint.shape)
        for rng, joint in zip(rngs, _normalised(chains.joint), strict=True)
    ]
    return torch.from_numpy(np.stack(counts) / samples)


def _normalised(joint: Tensor) -> np.ndarray:
    """Rounding must not make a distribution add up to more than 1."""
    return (joint.clamp_min(0) / joint.sum((-2, -1), keepdim=True)).numpy()


def mean_residual(chains: Chains, Q: Tensor, frequency: Tensor) -> tuple[Tensor, Tensor]:
    """How often each pair was drawn, and its mean δ = Q(s, a) − r − γQ(s′, a′): [seeds, n] each."""
    drawn = frequency.sum(-1)
    next_value = torch.einsum("sij,sj->si", frequency, Q) / drawn.clamp_min(1e-300)
    return drawn, torch.where(drawn > 0, Q - chains.reward - chains.discount * next_value, 0.0)


def semi_gradient(J: Tensor, drawn: Tensor, residual: Tensor) -> Tensor:
    """g = E[δ ∇Q] [seeds, p]."""
    return torch.einsum("snp,sn->sp", J, drawn * residual)


def gauss_newton(J: Tensor, drawn: Tensor, residual: Tensor, damping: float) -> Tensor:
    """(H + ωI)⁻¹ g [seeds, p]: a pair drawn with frequency ν is a row weighed by √ν."""
    weight = (drawn * J.shape[-2]).sqrt()  # `direction` divides by the rows
    return direction(J * weight[..., None], residual * weight, damping)


def iterates(
    chains: Chains,
    approximation: Approximation,
    theta: Tensor,
    step: Tensor,
    damping: float | None,
    samples: int,
    rngs: Sequence[np.random.Generator],
) -> Iterator[Tensor]:
    """Q(θ⁰), Q(θ¹), … [seeds, n] for steps β [seeds]; damping none is TD, samples 0 exact expectations."""
    while True:
        Q, J = approximation.linearised(theta)
        yield Q
        frequency = frequencies(chains, samples, rngs) if samples else chains.joint
        drawn, residual = mean_residual(chains, Q, frequency)
        if damping is None:
            d = semi_gradient(J, drawn, residual)
        else:
            d = gauss_newton(J, drawn, residual, damping)
        theta = theta - step[:, None] * d


def curvature(chains: Chains, J: Tensor) -> Tensor:
    """H = E[∇Q ∇Qᵀ] [seeds, p, p], or its kernel [seeds, n, n] if that is smaller: of equal spectrum but for
    zeros."""
    rows = J * chains.stationary.sqrt()[..., None]
    return rows.mT @ rows if rows.shape[-1] <= rows.shape[-2] else rows @ rows.mT
