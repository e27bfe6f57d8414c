"""Small Markov decision processes under a fixed policy: chains of state-action pairs, all in closed form.

A pair (s, a) is one index of n = |S||A|; the first axis is the seeds'.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from offline_gntd.errors import unknown

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
        """The same chains with the reward under which Q is Q^π."""
        reward = Q - self.discount * torch.einsum("sij,sj->si", self.transition, Q)
        return Chains(self.transition, reward, self.discount)


def chains(problem: str, rngs: Sequence[np.random.Generator], discount: float) -> Chains:
    """One process per generator: `random`, or the `chain`, which is the same for all but for its rewards."""
    if problem not in PROBLEMS:
        raise unknown("problem", problem, PROBLEMS)
    drawn = [PROBLEMS[problem](rng) for rng in rngs]
    transition = np.stack([_of_pairs(moves, policy) for moves, policy in drawn])
    reward = np.stack([rng.uniform(-1, 1, STATES * ACTIONS) for rng in rngs])
    return Chains(torch.from_numpy(transition), torch.from_numpy(reward), discount)


def _random(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Moves P(s′|s, a) [S, A, S] and a policy [S, A], both drawn uniformly."""
    return rng.dirichlet(np.ones(STATES), (STATES, ACTIONS)), rng.dirichlet(np.ones(ACTIONS), STATES)


def _chain(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """States in a row: an action leads left or right, one time in ten the other way; the ends hold."""
    moves = np.zeros((STATES, ACTIONS, STATES))
    for state in range(STATES):
        left, right = max(state - 1, 0), min(state + 1, STATES - 1)
        for action, (meant, other) in enumerate(((left, right), (right, left))):
            moves[state, action, meant] += 0.9
            moves[state, action, other] += 0.1
    return moves, np.full((STATES, ACTIONS), 0.5)


def _of_pairs(moves: np.ndarray, policy: np.ndarray) -> np.ndarray:
    """P^π((s, a), (s′, a′)) = P(s′|s, a) π(a′|s′)."""
    pairs = STATES * ACTIONS
    return (moves[..., None] * policy).reshape(pairs, pairs)


PROBLEMS = {"random": _random, "chain": _chain}
