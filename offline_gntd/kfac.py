"""Kronecker-factored Gauss-Newton curvature of a value network (Algorithm 3, GNTD-KFAC).

P = E[p̄ p̄ᵀ] of a layer's input and G = E[q qᵀ] of its output (the paper's P and Q matrices); the step of
layer l is d_l = (P + √ω I)⁻¹ · gradient · (G + √ω I)⁻¹.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offline_gntd.networks import Tape, product


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


def damped_inverse(factor: Tensor, damping: Tensor) -> tuple[Tensor, Tensor]:
    """(factor + damping I)⁻¹ for factor [..., n, n] and damping [...], and where it could be had [...].

    Where it could not, the inverse given is that of the identity, and nothing is raised.
    """
    eye = torch.eye(factor.shape[-1], device=factor.device)
    cholesky, info = torch.linalg.cholesky_ex(factor + damping[..., None, None] * eye)
    sound = (info == 0) & cholesky.diagonal(dim1=-2, dim2=-1).isfinite().all(-1)
    return torch.cholesky_inverse(torch.where(sound[..., None, None], cholesky, eye)), sound


def mean_eigenvalue(factor: Tensor) -> Tensor:
    return factor.diagonal(dim1=-2, dim2=-1).mean(-1)


class KroneckerFactors:
    """The factors and inverses of every layer of a stack: what K-FAC remembers between updates.

    A factorisation that fails keeps the last sound inverse and multiplies that network's damping by 10;
    every sound one lets it fall back by a tenth. No update waits for that to be read.
    """

    def __init__(self, config: KFAC, tape: Tape):
        self.config, self.stack = config, tape.network.stack
        self.updates = torch.zeros((), dtype=torch.int64)  # on the CPU: reading it never waits for a device
        self.P = [p.new_zeros(p.shape[0], p.shape[-1], p.shape[-1]) for p in tape.inputs]
        self.G = [q.new_zeros(q.shape[0], q.shape[-1], q.shape[-1]) for q in tape.signals]
        self.P_inverse = [torch.zeros_like(P) for P in self.P]
        self.G_inverse = [torch.zeros_like(G) for G in self.G]
        self.boost = tape.output.new_ones(tape.output.shape[0], len(self.P))  # [networks, layers]
        self.failures = torch.zeros_like(self.boost)
        self.half_steps = [torch.empty_like(w) for w in tape.weights]

    def refresh(self, tape: Tape) -> bool:
        """Take in the tape's batch, as far as this update is one that refreshes; whether inverses are new."""
        count = int(self.updates)
        if count % self.config.factor_every == 0:
            self._average(tape, first=count == 0)
        renewed = count % self.config.inverse_every == 0
        if renewed:
            self._invert(first=count == 0)
        self.updates += 1
        return renewed

    def _average(self, tape: Tape, first: bool) -> None:
        eta = self.config.momentum
        for P, p in zip(self.P, tape.inputs, strict=True):
            _accumulate(P, p, 1.0 if first else eta)
        for G, q in zip(self.G, tape.signals, strict=True):
            _accumulate(G, q, eta if self.config.average_G and not first else 1.0)

    def _invert(self, first: bool) -> None:
        for l, (P, G) in enumerate(zip(self.P, self.G, strict=True)):
            damping = self.config.damping * self.boost[:, l]
            on_P, on_G = self._split(P, G, damping)
            P_inverse, P_sound = damped_inverse(P, on_P)
            G_inverse, G_sound = damped_inverse(G, on_G)
            sound = P_sound & G_sound
            if first:  # with nothing to fall back on, the damping alone
                for inverse in (self.P_inverse[l], self.G_inverse[l]):
                    inverse.zero_().diagonal(dim1=-2, dim2=-1).fill_(self.config.damping**-0.5)
            keep = sound[:, None, None]
            self.P_inverse[l].copy_(torch.where(keep, P_inverse, self.P_inverse[l]))
            self.G_inverse[l].copy_(torch.where(keep, G_inverse, self.G_inverse[l]))
            self.failures[:, l] += ~sound
            self.boost[:, l] *= torch.where(sound, 0.9, 10.0)
        self.boost.clamp_(1, 1e12)

    def _split(self, P: Tensor, G: Tensor, damping: Tensor) -> tuple[Tensor, Tensor]:
        root = damping.sqrt()
        if self.config.split == "even":
            return root, root
        # Martens & Grosse 2015, section 6.3: π = √(mean eigenvalue of P / that of G)
        pi = (mean_eigenvalue(P) / mean_eigenvalue(G).clamp_min(1e-12)).clamp(1e-6, 1e6).sqrt()
        return root * pi, root / pi

    def precondition(self, gradients: Sequence[Tensor]) -> None:
        """Turn every layer's gradient [*stack, fan_in + 1, fan_out] into d_l, in place."""
        for gradient, P, G, half in zip(
            gradients, self.P_inverse, self.G_inverse, self.half_steps, strict=True
        ):
            gradient = gradient.flatten(0, -3)
            product(P, gradient, out=half)
            product(half, G, out=gradient)

    def diagnostics(self) -> dict[str, Tensor]:
        """Per seed: the worst condition of a damped factor, the largest damping in force, failures so far."""
        conditions = []
        for l, (P, G) in enumerate(zip(self.P, self.G, strict=True)):
            dampings = self._split(P, G, self.config.damping * self.boost[:, l])
            for factor, damping in zip((P, G), dampings, strict=True):
                spectrum = torch.linalg.eigvalsh(torch.nan_to_num(factor, posinf=0, neginf=0))
                conditions.append((spectrum[:, -1] + damping) / (spectrum[:, 0].clamp_min(0) + damping))
        return {
            "kfac_condition": self._per_seed(torch.stack(conditions, -1)).amax(-1),
            "kfac_damping": self._per_seed(self.config.damping * self.boost).amax(-1),
            "kfac_failures": self._per_seed(self.failures).sum(-1),
        }

    def _per_seed(self, values: Tensor) -> Tensor:
        """[networks, n] -> [seeds, the rest]"""
        return values.reshape(self.stack[0], -1)

    def tensors(self) -> dict[str, Tensor]:
        state = {"boost": self.boost, "failures": self.failures}
        for name in ("P", "G", "P_inverse", "G_inverse"):
            state |= {f"{name}.{l}": tensor for l, tensor in enumerate(getattr(self, name))}
        by_seed = {name: tensor.unflatten(0, self.stack) for name, tensor in state.items()}
        return by_seed | {"updates": self.updates}


def _accumulate(factor: Tensor, x: Tensor, weight: float) -> None:
    """factor ← (1 − weight) factor + weight E[x xᵀ]."""
    torch.baddbmm(factor, x.mT, x, beta=1 - weight, alpha=weight / x.shape[-2], out=factor)
