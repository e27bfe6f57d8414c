"""The paper's three function classes, with their Jacobians: linear, two-layer ReLU, a smooth network.

Parameters θ are [seeds, p], values Q(θ) [seeds, n], Jacobians J = ∂Q/∂θ [seeds, n, p].
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from offline_gntd.errors import unknown


@dataclass(frozen=True)
class Linear:
    """Q = Φθ."""

    features: Tensor  # Φ [seeds, n, d]

    def draw(self, rngs: Sequence[np.random.Generator]) -> Tensor:
        return _normal(rngs, self.features.shape[-1])

    def linearised(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Q(θ) and J(θ)."""
        return torch.einsum("snd,sd->sn", self.features, theta), self.features


@dataclass(frozen=True)
class TwoLayer:
    """Q = m^(−1/2) Σ_r b_r ψ(θ_rᵀφ), the signs b fixed: ψ is ReLU, or tanh for a smooth network."""

    features: Tensor  # φ [seeds, n, d]
    signs: Tensor  # b [seeds, m]
    smooth: bool

    def draw(self, rngs: Sequence[np.random.Generator]) -> Tensor:
        return _normal(rngs, self.signs.shape[-1] * self.features.shape[-1])

    def linearised(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        width, size = self.signs.shape[-1], self.features.shape[-1]
        h = self.features @ theta.unflatten(-1, (width, size)).mT  # [seeds, n, m]
        active, slope = (h.tanh(), 1 - h.tanh().square()) if self.smooth else (h.relu(), (h > 0).double())
        outer = self.signs[:, None] / width**0.5  # ∂Q/∂ψ
        J = (slope * outer)[..., None] * self.features[:, :, None]
        return (active * outer).sum(-1), J.flatten(-2)


Approximation = Linear | TwoLayer
SETTINGS = {"linear": 6, "relu": 6, "smooth": 3}  # the paper's, and the number d of features in each


def approximation(setting: str, pairs: int, width: int, rngs: Sequence[np.random.Generator]) -> Approximation:
    """Random features with ‖φ(s, a)‖ ≤ 1; the networks' are of length 1 each, so that no two are parallel."""
    if setting not in SETTINGS:
        raise unknown("setting", setting, SETTINGS)
    features = _normal(rngs, pairs, SETTINGS[setting])
    if setting == "linear":
        return Linear(features / features.norm(dim=-1).amax(-1)[:, None, None])
    signs = torch.from_numpy(np.stack([rng.choice([-1.0, 1.0], width) for rng in rngs]))
    return TwoLayer(features / features.norm(dim=-1, keepdim=True), signs, smooth=setting == "smooth")


def _normal(rngs: Sequence[np.random.Generator], *shape: int) -> Tensor:
    return torch.from_numpy(np.stack([rng.standard_normal(shape) for rng in rngs]))
