"""The problems of the theorems' measurements: small Markov chains and the paper's three function classes.

A chain has n = |S||A| state-action pairs under a fixed policy; everything about it is known in closed form.
The function classes are linear, two-layer ReLU and a smooth two-layer network. Shapes: θ [seeds, p], values
Q(θ) [seeds, n], Jacobians J = ∂Q/∂θ [seeds, n, p]. All in float64, for several seeds at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

STATES, ACTIONS = 8, 2


@dataclass(frozen=True)
class Chains:
    transition: Tensor  # P^π [seeds, n, n]: from a pair to the next
    reward: Tensor  # [seeds, n]
    discount: float  # γ

    @property
    def _identity(self) -> Tensor:
        return torch.eye(self.transition.shape[-1], dtype=self.transition.dtype)

    @cached_property
    def stationary(self) -> Tensor:
        """μ [seeds, n] with μᵀP = μᵀ: μᵀ = 1ᵀ(I − P + 11ᵀ)⁻¹."""
        system = self._identity - self.transition + 1
        return torch.linalg.solve(system.mT, torch.ones_like(self.reward))

    @cached_property
    def values(self) -> Tensor:
        """Q^π = (I − γP)⁻¹ r [seeds, n]."""
        system = self._identity - self.discount * self.transition
        return torch.linalg.solve(system, self.reward)

    @cached_property
    def joint(self) -> Tensor:
        """The distribution 𝒟 of a tuple (pair, next pair): [seeds, n, n]."""
        return self.stationary[..., None] * self.transition

    def backup(self, Q: Tensor) -> Tensor:
        """T^π Q."""
        return self.reward + self.discount * torch.einsum("sij,sj->si", self.transition, Q)

    def norm(self, f: Tensor) -> Tensor:
        """‖f‖_μ [seeds]."""
        return (self.stationary * f.square()).sum(-1).sqrt()

    def rewarded_for(self, Q: Tensor) -> "Chains":
        """These chains with the rewards that make Q their Q^π."""
        reward = Q - self.discount * torch.einsum("sij,sj->si", self.transition, Q)
        return Chains(self.transition, reward, self.discount)


def chains(problem: str, rngs: Sequence[np.random.Generator], discount: float) -> Chains:
    """One chain per generator: `random`, or `chain`, where the seeds differ only in their rewards."""
    processes = [PROBLEMS[problem](rng) for rng in rngs]
    transition = np.stack([_pair_transition(moves, policy) for moves, policy in processes])
    reward = np.stack([rng.uniform(-1, 1, STATES * ACTIONS) for rng in rngs])
    return Chains(torch.from_numpy(transition), torch.from_numpy(reward), discount)


def _random(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Transition probabilities P(s′|s, a) [S, A, S] and a policy [S, A], both uniform over the simplex."""
    return rng.dirichlet(np.ones(STATES), (STATES, ACTIONS)), rng.dirichlet(np.ones(ACTIONS), STATES)


def _chain(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """States in a row: an action moves left or right, or with probability 0.1 the other way, if it can."""
    moves = np.zeros((STATES, ACTIONS, STATES))
    for state in range(STATES):
        left, right = max(state - 1, 0), min(state + 1, STATES - 1)
        for action, (likely, other) in enumerate(((left, right), (right, left))):
            moves[state, action, likely] += 0.9
            moves[state, action, other] += 0.1
    return moves, np.full((STATES, ACTIONS), 0.5)


def _pair_transition(moves: np.ndarray, policy: np.ndarray) -> np.ndarray:
    """P^π((s, a), (s′, a′)) = P(s′|s, a) π(a′|s′)."""
    pairs = STATES * ACTIONS
    return (moves[..., None] * policy).reshape(pairs, pairs)


PROBLEMS = {"random": _random, "chain": _chain}


# ---- function classes ----


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
    """Q = m^(−1/2) Σ_r b_r ψ(θ_rᵀφ) with fixed signs b; ψ is ReLU, or tanh if smooth."""

    features: Tensor  # φ [seeds, n, d]
    signs: Tensor  # b [seeds, m]
    smooth: bool

    def draw(self, rngs: Sequence[np.random.Generator]) -> Tensor:
        return _normal(rngs, self.signs.shape[-1] * self.features.shape[-1])

    def linearised(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        width, size = self.signs.shape[-1], self.features.shape[-1]
        h = self.features @ theta.unflatten(-1, (width, size)).mT  # [seeds, n, m]
        psi, dpsi_dh = (h.tanh(), 1 - h.tanh().square()) if self.smooth else (h.relu(), (h > 0).double())
        outer = self.signs[:, None] / width**0.5  # ∂Q/∂ψ
        J = (dpsi_dh * outer)[..., None] * self.features[:, :, None]
        return (psi * outer).sum(-1), J.flatten(-2)


Approximation = Linear | TwoLayer
SETTINGS = {"linear": 6, "relu": 6, "smooth": 3}  # the paper's three function classes: features d of each


def approximation(setting: str, pairs: int, width: int, rngs: Sequence[np.random.Generator]) -> Approximation:
    """A function class with random features, ‖φ(s, a)‖ ≤ 1; = 1 for networks, so that no two are parallel."""
    features = _normal(rngs, pairs, SETTINGS[setting])
    if setting == "linear":
        return Linear(features / features.norm(dim=-1).amax(-1)[:, None, None])
    signs = torch.from_numpy(np.stack([rng.choice([-1.0, 1.0], width) for rng in rngs]))
    return TwoLayer(features / features.norm(dim=-1, keepdim=True), signs, smooth=setting == "smooth")


def _normal(rngs: Sequence[np.random.Generator], *shape: int) -> Tensor:
    return torch.from_numpy(np.stack([rng.standard_normal(shape) for rng in rngs]))
