"""The two kinds of measurements.

`Trial` measures policy evaluation by TD or by exact GNTD (Algorithm 1). An iteration uses exact expectations
or N fresh i.i.d. tuples. Only the count of each (pair, next pair) among the tuples matters, and the counts
are multinomial, so an iteration costs the same for every N.

`Comparison` measures K-FAC's direction against the exact Gauss-Newton direction on one batch.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from offline_gntd.nn.exact import direction, gauss_newton_weights
from offline_gntd.nn.kfac import KFAC, KroneckerFactors
from offline_gntd.nn.mlp import MLP, Tape
from offline_gntd.theory.problems import ACTIONS, STATES, Approximation, Chains, approximation, chains

GROWTH = 1.15  # approximate ratio of successive recorded iterations
START = 0.5  # standard deviation of a smooth network's θ⁰ around a solution: Assumption 4 holds only near one
FLOOR = 0.25  # share of the iterations, the last ones, that a floor is averaged over
STEP = 0.3  # default β

Measured = list[tuple[str, int, Tensor]]  # quantity, iteration, values [seeds]


# ---- policy evaluation


@dataclass(frozen=True)
class Trial:
    setting: str  # linear | relu | smooth
    problem: str = "random"  # random | chain
    method: str = "gntd"  # gntd | td
    samples: int = 0  # N, tuples per iteration; 0: exact expectations
    step: float | None = STEP  # β, for TD in units of 1/λ_max(H) at θ⁰; None: β of the linear theorem
    damping: float = 1e-4  # ω; not used by TD
    width: int = 128  # m of the ReLU network; the smooth one has 3 units, so that H can be invertible
    iterations: int = 1_000  # K
    realisable: bool = True  # the rewards are chosen so that Q^π is in the function class
    discount: float = 0.9  # γ
    seeds: int = 10

    def measure(self) -> Measured:
        """‖Q − Q^π‖²_μ at the `recorded` iterations, its floor, λ_min(H) and the projection error."""
        problem, functions, theta = self._make()
        _, J = functions.linearised(theta)
        spectrum = torch.linalg.eigvalsh(curvature(problem, J))
        damping = None if self.method == "td" else self.damping
        step, rngs = self._steps(spectrum), self._generators(2)
        path = iterates(problem, functions, theta, step, damping, self.samples, rngs)
        errors = [
            problem.norm(Q - problem.values).square() for Q in itertools.islice(path, self.iterations + 1)
        ]
        last = errors[-max(1, int(FLOOR * self.iterations)) :]
        return [
            ("smallest_eigenvalue", 0, spectrum[:, 0]),
            ("projection_error", 0, projection_error(problem, J)),
            *(("error", k, errors[k]) for k in recorded(self.iterations)),
            ("floor", self.iterations, torch.stack(last).mean(0)),
        ]

    def _make(self) -> tuple[Chains, Approximation, Tensor]:
        problem = chains(self.problem, self._generators(0), self.discount)
        rngs, width = self._generators(1), 3 if self.setting == "smooth" else self.width
        functions = approximation(self.setting, STATES * ACTIONS, width, rngs)
        start = functions.draw(rngs)
        if self.realisable and self.setting != "relu":  # which has more parameters than pairs
            solution = functions.draw(rngs)
            problem = problem.rewarded_for(functions.linearised(solution)[0])
            if self.setting == "smooth":
                start = solution + START * start
        return problem, functions, start

    def _generators(self, purpose: int) -> list[np.random.Generator]:
        """One per seed. Trials with the same seed share problem, features and θ⁰, whatever else differs."""
        return [np.random.default_rng([seed, purpose]) for seed in range(self.seeds)]

    def _steps(self, spectrum: Tensor) -> Tensor:
        """β [seeds]."""
        if self.step is None:
            return (1 - self.discount) * spectrum[:, 0] / 4
        if self.method == "td":
            return self.step / spectrum[:, -1]
        return torch.full_like(spectrum[:, 0], self.step)


def recorded(iterations: int) -> list[int]:
    """The iterations to record: 0, 1, 2, … with growing distances, and the last."""
    chosen = [0]
    while chosen[-1] < iterations:
        chosen.append(min(iterations, max(chosen[-1] + 1, int(chosen[-1] * GROWTH))))
    return chosen


def projection_error(problem: Chains, J: Tensor) -> Tensor:
    """‖Π_μ Q^π − Q^π‖²_μ [seeds], Π_μ the projection onto the column space of J."""
    weight = problem.stationary.sqrt()[..., None]
    target = weight * problem.values[..., None]
    coefficients = torch.linalg.pinv(weight * J) @ target
    return (weight * J @ coefficients - target).square().sum((-2, -1))


def frequencies(chains: Chains, samples: int, rngs: Sequence[np.random.Generator]) -> Tensor:
    """Share of each (pair, next pair) among N tuples: [seeds, n, n], which sum to 1."""
    # rounding may make the sum larger than 1, which numpy refuses
    normalised = chains.joint.clamp_min(0) / chains.joint.sum((-2, -1), keepdim=True)
    counts = [
        rng.multinomial(samples, joint.flatten()).reshape(joint.shape)
        for rng, joint in zip(rngs, normalised.numpy(), strict=True)
    ]
    return torch.from_numpy(np.stack(counts) / samples)


def mean_residual(chains: Chains, Q: Tensor, frequency: Tensor) -> tuple[Tensor, Tensor]:
    """Share of each pair, and its mean δ = Q(s, a) − r − γQ(s′, a′): [seeds, n] each."""
    drawn = frequency.sum(-1)
    next_value = torch.einsum("sij,sj->si", frequency, Q) / drawn.clamp_min(1e-300)
    return drawn, torch.where(drawn > 0, Q - chains.reward - chains.discount * next_value, 0.0)


def semi_gradient(J: Tensor, drawn: Tensor, residual: Tensor) -> Tensor:
    """g = E[δ ∇Q] [seeds, p]."""
    return torch.einsum("snp,sn->sp", J, drawn * residual)


def gauss_newton(J: Tensor, drawn: Tensor, residual: Tensor, damping: float) -> Tensor:
    """(H + ωI)⁻¹ g [seeds, p]: a pair with share ν is a row of J multiplied by √ν."""
    weight = (drawn * J.shape[-2]).sqrt()  # `direction` divides by the number of rows
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
    """Q(θ⁰), Q(θ¹), … [seeds, n] for steps β [seeds]. Damping None is TD; samples 0 is exact expectations."""
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
    """H = E[∇Q ∇Qᵀ] [seeds, p, p], or the smaller kernel [seeds, n, n] with the same nonzero eigenvalues."""
    rows = J * chains.stationary.sqrt()[..., None]
    return rows.mT @ rows if rows.shape[-1] <= rows.shape[-2] else rows @ rows.mT


# ---- directions


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
