"""Kronecker-factored Gauss-Newton curvature of a value network (Algorithm 3, GNTD-KFAC).

The Gauss-Newton matrix is H = E[∇Q ∇Qᵀ]. For layer l with input p̄ and q = ∂Q/∂h, h the layer's output, its
block is approximated by P ⊗ G with P = E[p̄ p̄ᵀ] and G = E[q qᵀ]; the paper writes Q̂ for G. The direction is
    d_l = (P + √ω I)⁻¹ · g_l · (G + √ω I)⁻¹    for the gradient g_l [fan_in + 1, fan_out].
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offline_gntd import checks
from offline_gntd.nn.linalg import damped_inverse, matmul, update_second_moment

RATIO_EVERY = 20  # updates between two measurements of ‖d‖ / ‖gradient‖


@dataclass(frozen=True)
class KFAC:
    """Settings. The defaults are from the authors' code, except damping, which is from the paper."""

    damping: float = 0.25  # ω, split between the two factors
    ema_decay: float = 0.9  # weight of the old value in the averaged factors; 1 − η in the paper
    average: str = "both"  # both | P; a factor that is not averaged is the last batch's
    start: str = "identity"  # identity | batch: the factors before the first average
    factor_every: int = 5  # updates between two updates of P and G
    inverse_every: int = 50  # updates between two updates of their inverses
    split: str = "even"  # even: √ω on both factors | trace: balanced by their mean eigenvalues
    output_scale: float = 1.0  # the factors are those of output_scale · Q

    def __post_init__(self):
        checks.positive(self, "damping", "factor_every", "inverse_every", "output_scale")
        checks.below_one(self, "ema_decay")
        checks.choice(self, "average", ("both", "P"))
        checks.choice(self, "start", ("identity", "batch"))
        checks.choice(self, "split", ("even", "trace"))


class KroneckerFactors:
    """The factors of every layer of a stack of networks and their damped inverses.

    Tensors have the stack flattened into one dimension, `networks`. Where a factor cannot be inverted,
    I / damping replaces its inverse and the layer's damping is multiplied by 10; every successful inversion
    lowers it by a tenth, down to ω.
    """

    def __init__(self, config: KFAC, layers: Sequence[Tensor]):
        """layers  the weights [*stack, fan_in + 1, fan_out] of every layer, for their shapes and device"""
        self.config, self.stack, device = config, layers[0].shape[:-2], layers[0].device
        networks = self.stack.numel()
        self.updates = torch.zeros((), dtype=torch.int64)  # on the CPU: reading it never waits for a GPU
        self.P = [torch.eye(w.shape[-2], device=device).repeat(networks, 1, 1) for w in layers]
        self.G = [torch.eye(w.shape[-1], device=device).repeat(networks, 1, 1) for w in layers]
        self.P_inverse = [torch.zeros_like(P) for P in self.P]
        self.G_inverse = [torch.zeros_like(G) for G in self.G]
        self.P_inverse_g = [torch.empty_like(w.flatten(0, -3)) for w in layers]  # buffer of `precondition`
        self.boost = torch.ones(networks, len(layers), device=device)  # a layer's damping / ω
        self.failures = torch.zeros_like(self.boost)
        self.step_ratio = torch.zeros(self.stack[0], device=device)  # ‖d‖ / ‖gradient‖ per seed
        self.seconds = 0.0  # spent in this process

    @property
    def due(self) -> bool:
        """Whether the next `update` uses its batch; if not, its arguments are ignored."""
        return int(self.updates) % self.config.factor_every == 0

    def update(self, inputs: Sequence[Tensor], grad_outputs: Sequence[Tensor]) -> None:
        """Average a batch into the factors at every `factor_every`-th call; compute the inverses at every
        `inverse_every`-th.

        inputs        p̄ of every layer [networks, batch, fan_in + 1]
        grad_outputs  q of every layer [networks, batch, fan_out]
        """
        start, count = time.perf_counter(), int(self.updates)
        if self.due:
            self._update_factors(inputs, grad_outputs, first=count == 0)
        if count % self.config.inverse_every == 0:
            self._update_inverses()
        self.updates += 1
        self.seconds += time.perf_counter() - start

    def _update_factors(self, inputs: Sequence[Tensor], grad_outputs: Sequence[Tensor], first: bool) -> None:
        decay = 0.0 if first and self.config.start == "batch" else self.config.ema_decay
        decay_G = decay if self.config.average == "both" else 0.0
        for P, p in zip(self.P, inputs, strict=True):
            update_second_moment(P, p, decay)
        for G, q in zip(self.G, grad_outputs, strict=True):
            update_second_moment(G, q, decay_G, scale=self.config.output_scale**2)

    def _update_inverses(self) -> None:
        for l, (damping_P, damping_G) in enumerate(self._damping()):
            exists = damped_inverse(self.P[l], damping_P, out=self.P_inverse[l])
            exists &= damped_inverse(self.G[l], damping_G, out=self.G_inverse[l])
            self.failures[:, l] += ~exists
            self.boost[:, l] *= torch.where(exists, 0.9, 10.0)
        self.boost.clamp_(1, 1e12)

    def _damping(self) -> list[tuple[Tensor, Tensor]]:
        """The damping of P and of G [networks] for every layer: √ω each, or balanced by their traces."""
        dampings = []
        for P, G, damping in zip(self.P, self.G, (self.config.damping * self.boost).unbind(-1), strict=True):
            pi = torch.ones_like(damping)
            if self.config.split == "trace":  # Martens & Grosse 2015, section 6.3
                ratio = mean_eigenvalue(P) / mean_eigenvalue(G).clamp_min(1e-12)
                pi = ratio.clamp(1e-6, 1e6).sqrt()
            dampings.append((damping.sqrt() * pi, damping.sqrt() / pi))
        return dampings

    def precondition(self, gradients: Sequence[Tensor]) -> None:
        """g ← P⁻¹ · g · G⁻¹ of every layer [*stack, fan_in + 1, fan_out], in place."""
        start, measured = time.perf_counter(), int(self.updates) % RATIO_EVERY == 1
        before = self._norm(gradients) if measured else None
        for l, gradient in enumerate(gradients):
            g = gradient.flatten(0, -3)
            matmul(self.P_inverse[l], g, out=self.P_inverse_g[l])
            matmul(self.P_inverse_g[l], self.G_inverse[l], out=g)
        if before is not None:
            torch.div(self._norm(gradients), before, out=self.step_ratio)
        self.seconds += time.perf_counter() - start

    def _norm(self, gradients: Sequence[Tensor]) -> Tensor:
        return torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)

    def diagnostics(self) -> dict[str, Tensor]:
        """Per seed: the worst condition number of a damped factor, the largest damping, failed inversions."""
        conditions = []
        for P, G, dampings in zip(self.P, self.G, self._damping(), strict=True):
            for factor, damping in zip((P, G), dampings, strict=True):
                spectrum = torch.linalg.eigvalsh(torch.nan_to_num(factor, posinf=0, neginf=0))
                conditions.append((spectrum[:, -1] + damping) / (spectrum[:, 0].clamp_min(0) + damping))
        return {
            "kfac_condition": self._per_seed(torch.stack(conditions, -1)).amax(-1),
            "kfac_damping": self._per_seed(self.config.damping * self.boost).amax(-1),
            "kfac_failures": self._per_seed(self.failures).sum(-1),
            "kfac_step_ratio": self.step_ratio,
            "kfac_seconds": torch.full_like(self.step_ratio, self.seconds),
        }

    def _per_seed(self, values: Tensor) -> Tensor:
        return values.reshape(self.stack[0], -1)

    def live_tensors(self) -> dict[str, Tensor]:
        """The tensors themselves: `networks` first, except `updates` [] and `step_ratio` [seeds]."""
        state = {"boost": self.boost, "failures": self.failures}
        for name in ("P", "G", "P_inverse", "G_inverse"):
            state |= {f"{name}.{l}": factor for l, factor in enumerate(getattr(self, name))}
        return state | {"updates": self.updates, "step_ratio": self.step_ratio}

    def state_dict(self) -> dict[str, Tensor]:
        state = self.live_tensors()
        shared = {name: state.pop(name) for name in ("updates", "step_ratio")}  # not [networks, …]
        return {name: tensor.unflatten(0, self.stack) for name, tensor in state.items()} | shared


def mean_eigenvalue(factor: Tensor) -> Tensor:
    return factor.diagonal(dim1=-2, dim2=-1).mean(-1)
