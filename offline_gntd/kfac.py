"""Kronecker-factored Gauss-Newton curvature of a value network (Algorithm 3, GNTD-KFAC).

P = E[p̄ p̄ᵀ] of a layer's input and G = E[q qᵀ] of its output (the paper's P and Q matrices); the step of
layer l is d_l = (P + √ω I)⁻¹ · gradient · (G + √ω I)⁻¹.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offline_gntd.networks import Gradient
from offline_gntd.products import (
    NARROW,
    aligned,
    average_second_moment,
    damped_inverse,
    damped_root,
    product,
    solution,
)


@dataclass(frozen=True)
class KFAC:
    damping: float = 0.25  # ω, split between the two factors
    momentum: float = 0.05  # η, the weight of the new batch in the averaged factors
    average_G: bool = False  # Algorithm 3 averages P only; G is the batch's
    factor_every: int = 10  # updates between refreshes of P and G; the paper's is 1
    inverse_every: int = 20  # updates between refreshes of the inverses; the paper's is 1
    split: str = "even"  # even: √ω on both factors (the paper); trace: balanced by their mean eigenvalues

    def __post_init__(self):
        if not self.damping > 0:
            raise ValueError(f"damping must be positive, not {self.damping}")
        if not 0 < self.momentum <= 1:
            raise ValueError(f"momentum must be in (0, 1], not {self.momentum}")
        if self.factor_every < 1 or self.inverse_every < 1:
            raise ValueError("factor_every and inverse_every must be at least 1")
        if self.split not in ("even", "trace"):
            raise ValueError(f"split must be 'even' or 'trace', not {self.split!r}")


def mean_eigenvalue(factor: Tensor) -> Tensor:
    return factor.diagonal(dim1=-2, dim2=-1).mean(-1)


class KroneckerFactors:
    """The factors and inverses of every layer of a stack: what K-FAC remembers between updates.

    Where a factor cannot be inverted, its damping alone is, and that layer's damping is multiplied by 10;
    every sound inverse lets it fall back by a tenth. No update on a device waits for that to be read.

    A layer of few outputs is solved for, not multiplied: its `P_inverse` is the Cholesky factor.
    """

    def __init__(self, config: KFAC, gradient: Gradient):
        self.config, self.tape, tape = config, gradient.tape, gradient.tape
        self.updates = torch.zeros((), dtype=torch.int64)  # on the CPU: reading it never waits for a device
        self.P, self.G = _squares(tape.inputs), _squares(tape.signals)
        self.P_inverse, self.G_inverse = _squares(tape.inputs), _squares(tape.signals)
        self.boost = tape.output.new_ones(tape.networks, len(self.P))  # [networks, layers]
        self.failures = torch.zeros_like(self.boost)
        self._products = []
        for layer, P, G in zip(gradient.layers, self.P_inverse, self.G_inverse, strict=True):
            half = aligned(layer, *layer.shape)
            times_P = solution if _is_solved(layer) else product
            self._products += [times_P(P, layer, out=half), product(half, G, out=layer)]

    @property
    def due(self) -> bool:
        """Whether the next refresh takes in the tape's batch."""
        return int(self.updates) % self.config.factor_every == 0

    def refresh(self) -> None:
        """Take in the tape's batch, as far as this update is one that refreshes."""
        count = int(self.updates)
        if self.due:
            self._average(first=count == 0)
        if count % self.config.inverse_every == 0:
            self._invert()
        self.updates += 1

    def _average(self, first: bool) -> None:
        eta = self.config.momentum
        for P, p in zip(self.P, self.tape.inputs, strict=True):
            average_second_moment(P, p, 1.0 if first else eta)
        for G, q in zip(self.G, self.tape.signals, strict=True):
            average_second_moment(G, q, eta if self.config.average_G and not first else 1.0)

    def _invert(self) -> None:
        layers = []
        for l, (P, G, damping) in enumerate(self._layers()):
            on_P, on_G = self._split(P, G, damping)
            invert_P = damped_root if _is_solved(self.tape.weights[l]) else damped_inverse
            sound = invert_P(P, on_P, out=self.P_inverse[l])
            layers.append(sound & damped_inverse(G, on_G, out=self.G_inverse[l]))
        sound = torch.stack(layers, -1)  # [networks, layers]
        self.failures += ~sound
        self.boost.mul_(torch.where(sound, 0.9, 10.0)).clamp_(1, 1e12)

    def _layers(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """P, G and the damping in force of every layer."""
        return zip(self.P, self.G, (self.config.damping * self.boost).unbind(-1), strict=True)

    def _split(self, P: Tensor, G: Tensor, damping: Tensor) -> tuple[Tensor, Tensor]:
        root = damping.sqrt()
        if self.config.split == "even":
            return root, root
        # Martens & Grosse 2015, section 6.3: π = √(mean eigenvalue of P / that of G)
        pi = (mean_eigenvalue(P) / mean_eigenvalue(G).clamp_min(1e-12)).clamp(1e-6, 1e6).sqrt()
        return root * pi, root / pi

    def precondition(self) -> None:
        """Turn every layer's gradient into d_l, in place."""
        for multiply in self._products:
            multiply()

    def diagnostics(self) -> dict[str, Tensor]:
        """Per seed: the worst condition of a damped factor, the largest damping in force, failures so far."""
        conditions = []
        for P, G, on_layer in self._layers():
            for factor, damping in zip((P, G), self._split(P, G, on_layer), strict=True):
                spectrum = torch.linalg.eigvalsh(torch.nan_to_num(factor, posinf=0, neginf=0))
                conditions.append((spectrum[:, -1] + damping) / (spectrum[:, 0].clamp_min(0) + damping))
        return {
            "kfac_condition": self._per_seed(torch.stack(conditions, -1)).amax(-1),
            "kfac_damping": self._per_seed(self.config.damping * self.boost).amax(-1),
            "kfac_failures": self._per_seed(self.failures).sum(-1),
        }

    def _per_seed(self, values: Tensor) -> Tensor:
        """[networks, n] -> [seeds, the rest]"""
        return values.reshape(self.tape.network.stack[0], -1)

    def tensors(self) -> dict[str, Tensor]:
        state = {"boost": self.boost, "failures": self.failures}
        for name in ("P", "G", "P_inverse", "G_inverse"):
            state |= {f"{name}.{l}": tensor for l, tensor in enumerate(getattr(self, name))}
        by_seed = {name: tensor.unflatten(0, self.tape.network.stack) for name, tensor in state.items()}
        return by_seed | {"updates": self.updates}


def _squares(likes: Sequence[Tensor]) -> list[Tensor]:
    """A square matrix [networks, n, n] for each x [networks, batch, n]."""
    return [x.new_zeros(len(x), x.shape[-1], x.shape[-1]) for x in likes]


def _is_solved(layer: Tensor) -> bool:
    return layer.shape[-1] < NARROW
