"""K-FAC's direction compared with the exact Gauss-Newton direction on one batch, by depth and width."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from offline_gntd.nn.exact import gauss_newton_weights
from offline_gntd.nn.kfac import KFAC, KroneckerFactors
from offline_gntd.nn.mlp import MLP, Tape
from offline_gntd.theory.policy_evaluation import Measured, frequencies, mean_residual
from offline_gntd.theory.problems import ACTIONS, STATES, approximation, chains


@dataclass(frozen=True)
class Comparison:
    depth: int = 1  # hidden layers
    width: int = 64  # units of each
    damping: float = 0.25  # ω
    samples: int = 256  # N
    problem: str = "random"
    discount: float = 0.9  # γ
    seeds: int = 10

    def measure(self) -> Measured:
        """Each direction's angle to the exact one in degrees, and its reach: the share of the mean squared
        residual that a step of the best length along it removes, to first order."""
        tape, residual = self._batch()
        exact = self._gradient(tape, gauss_newton_weights(tape, residual, self.damping))
        gradient = self._gradient(tape, residual)
        kfac = gradient.clone()
        factors = KroneckerFactors(KFAC(damping=self.damping, start="batch"), tape.network.layers)
        factors.update(tape.inputs, tape.grad_outputs)
        factors.precondition(tape.network.views(kfac))
        measured = []
        for name, d in (("exact", exact), ("kfac", kfac), ("gradient", gradient)):
            measured += [
                (f"{name}_angle", 0, angle(d, exact)),
                (f"{name}_reach", 0, reach(tape, d, residual)),
            ]
        return measured

    def _batch(self) -> tuple[Tape, Tensor]:
        """A tape after both passes over N sampled pairs, and their residuals [seeds, N]."""
        rngs = [np.random.default_rng([seed, 3]) for seed in range(self.seeds)]
        problem = chains(self.problem, rngs, self.discount)
        features = approximation("relu", STATES * ACTIONS, 1, rngs).features.float()
        network = MLP((features.shape[-1], *[self.width] * self.depth, 1), (self.seeds,))
        network.initialise([torch.Generator().manual_seed(seed) for seed in range(self.seeds)])
        Q = network(features)[..., 0]
        frequency = frequencies(problem, self.samples, rngs)
        drawn, residual = mean_residual(problem, Q.double(), frequency)
        counts = (drawn * self.samples).round().long()
        rows = torch.stack([torch.arange(STATES * ACTIONS).repeat_interleave(count) for count in counts])
        tape = Tape(network, self.samples)
        tape.forward(features.gather(1, rows[..., None].expand(-1, -1, features.shape[-1])))
        tape.backward(1.0)
        return tape, residual.float().gather(1, rows)

    def _gradient(self, tape: Tape, weight: Tensor) -> Tensor:
        flat = torch.zeros_like(tape.network.flat)
        tape.parameter_grad(flat, weight / self.samples)
        tape.backward(1.0)  # restores q, which parameter_grad has multiplied
        return flat


def angle(a: Tensor, b: Tensor) -> Tensor:
    """Degrees between vectors [seeds, p]."""
    return torch.nn.functional.cosine_similarity(a, b, dim=-1).clamp(-1, 1).acos().rad2deg()


def reach(tape: Tape, d: Tensor, residual: Tensor) -> Tensor:
    """1 − min_c ‖δ − c Jd‖² / ‖δ‖² = cos²(Jd, δ) [seeds]; row i of Jd is Σ_l p̄_lᵀ D_l q_l."""
    layers = zip(tape.inputs, tape.network.views(d), tape.grad_outputs, strict=True)
    change = torch.stack([((p @ D) * q).sum(-1) for p, D, q in layers]).sum(0)
    return torch.nn.functional.cosine_similarity(change, residual, dim=-1).square()
