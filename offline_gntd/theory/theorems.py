"""The predictions of the three theorems for ε = ‖Q − Q^π‖²_μ: rates, exponents of its floor, samples needed.

The theorems bound √ε, so a bound of order N^(−1/2) is the exponent −1 of ε. All are upper bounds: a
measurement may be better.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Theorem:
    name: str
    samples: float = -1.0  # exponent of the floor in N
    damping: float = 2.0  # in ω
    step: float | None = None  # in β; None: the bound does not depend on β
    width: float | None = None  # in m
    complexity: float = -1.0  # exponent of the samples needed, in ε
    td_complexity: float | None = None  # for TD: the best that the paper cites


THEOREMS = {
    "linear": Theorem("linear", td_complexity=-1.0),
    "relu": Theorem("two-layer ReLU", width=-1 / 3, td_complexity=-2.0),
    "smooth": Theorem("smooth network", step=2.0, complexity=-1.5),
}


def rate(discount: float, step: float) -> float:
    """The factor of ‖Q − Q^π‖_μ per iteration, in both theorems about networks."""
    return 1 - (1 - discount) * step


def linear_rate(discount: float, smallest_eigenvalue: float) -> float:
    """The same in the linear theorem, at its β = (1 − γ)λ₀/4."""
    return 1 - (1 - discount) ** 2 * smallest_eigenvalue / 8
