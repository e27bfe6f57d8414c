"""What is measured of the theorems: one policy evaluation, for several seeds at once."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from offline_gntd.theory.approximations import Approximation, approximation
from offline_gntd.theory.chains import ACTIONS, STATES, Chains, chains
from offline_gntd.theory.policy_evaluation import curvature, iterates

GROWTH = 1.15  # from one recorded iteration to the next, about
START = 0.5  # deviation of a smooth network's θ⁰ from a solution: Assumption 4 is of no use far from it
FLOOR = 0.25  # share of the iterations, the last ones, that a floor is averaged over
STEP = 0.3  # β where nothing else is said

Measured = list[tuple[str, int, Tensor]]  # a quantity, the iteration it is of, its values [seeds]


@dataclass(frozen=True)
class Trial:
    setting: str  # linear | relu | smooth
    problem: str = "random"  # random | chain
    method: str = "gntd"  # gntd | td
    samples: int = 0  # N, tuples per iteration; 0: exact expectations
    step: float | None = STEP  # β; of TD in units of 1/λ_max(H) at the start. None: the linear theorem's own
    damping: float = 1e-4  # ω; TD has none
    width: int = 128  # m of the ReLU network; the smooth one has 3 units, so that H can be regular
    iterations: int = 1_000  # K
    realisable: bool = True  # the rewards are such that Q^π is in the function class
    discount: float = 0.9  # γ
    seeds: int = 10

    def measure(self) -> Measured:
        """‖Q − Q^π‖²_μ at iterations ever farther apart, its floor, and what the theorems ask to know."""
        problem, functions, theta = self._make()
        _, J = functions.linearised(theta)
        spectrum = torch.linalg.eigvalsh(curvature(problem, J))
        iterations = iterates(
            problem,
            functions,
            theta,
            self._steps(spectrum),
            None if self.method == "td" else self.damping,
            self.samples,
            self._generators(2),
        )
        errors = [
            problem.norm(Q - problem.values).square()
            for Q, _ in zip(iterations, range(self.iterations + 1), strict=False)
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
        rngs = self._generators(1)
        functions = approximation(
            self.setting, STATES * ACTIONS, 3 if self.setting == "smooth" else self.width, rngs
        )
        start = functions.draw(rngs)
        if self.realisable and self.setting != "relu":  # which has more parameters than there are pairs
            solution = functions.draw(rngs)
            problem = problem.rewarded_for(functions.linearised(solution)[0])
            if self.setting == "smooth":
                start = solution + START * start
        return problem, functions, start

    def _generators(self, purpose: int) -> list[np.random.Generator]:
        """Trials of a seed share their problem, functions and start, whatever else they differ in."""
        return [np.random.default_rng([seed, purpose]) for seed in range(self.seeds)]

    def _steps(self, spectrum: Tensor) -> Tensor:
        """β of every seed."""
        if self.step is None:
            return (1 - self.discount) * spectrum[:, 0] / 4
        return (
            self.step / spectrum[:, -1] if self.method == "td" else torch.full_like(spectrum[:, 0], self.step)
        )


def recorded(iterations: int) -> list[int]:
    """0, 1, 2, … ever farther apart, and the last."""
    chosen = [0]
    while chosen[-1] < iterations:
        chosen.append(min(iterations, max(chosen[-1] + 1, int(chosen[-1] * GROWTH))))
    return chosen


def projection_error(problem: Chains, J: Tensor) -> Tensor:
    """‖Π_μ Q^π − Q^π‖²_μ for the projection onto the span of J's columns: [seeds]."""
    weight = problem.stationary.sqrt()[..., None]
    target = weight * problem.values[..., None]
    coefficients = torch.linalg.pinv(weight * J) @ target
    return (weight * J @ coefficients - target).square().sum((-2, -1))
