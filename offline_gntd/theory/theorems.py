"""What the three theorems say of ε = ‖Q − Q^π‖²_μ: rates of its root, exponents of its floor, samples needed.

The theorems bound the root; a bound that falls like N^(−1/2) is an exponent −1 of the square. All are upper
bounds: nothing forbids to do better.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Theorem:
    name: str
    samples: float = -1.0  # exponent of the floor in N
    damping: float = 2.0  # in ω
    step: float | None = None  # in β; None: the bound has no such term
    width: float | None = None  # in m
    complexity: float = -1.0  # exponent of the samples needed, in ε
    td_complexity: float | None = None  # the best that the paper quotes for TD


THEOREMS = {
    "linear": Theorem("linear", td_complexity=-1.0),
    "relu": Theorem("two-layer ReLU", width=-1 / 3, td_complexity=-2.0),
    "smooth": Theorem("smooth network", step=2.0, complexity=-1.5),
}


def rate(discount: float, step: float) -> float:
    """Of ‖Q − Q^π‖_μ per iteration, for both kinds of network."""
    return 1 - (1 - discount) * step


def linear_rate(discount: float, smallest_eigenvalue: float) -> float:
    """Of the linear theorem, at its own β = (1 − γ)λ₀/4."""
    return 1 - (1 - discount) ** 2 * smallest_eigenvalue / 8
