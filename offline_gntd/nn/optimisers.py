"""Optimiser steps on a flat parameter buffer [*stack, parameters]: one call for a whole stack of networks.

`Optimiser` holds the settings, `Stepper` the state of one optimiser.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from offline_gntd import checks
from offline_gntd.errors import unknown

KINDS = ("adam", "plain")
UNCORRECTED = 1e8  # steps after which Adam's bias corrections are exactly 1 in float32


@dataclass(frozen=True)
class Optimiser:
    kind: str = "adam"  # adam | plain: θ ← θ − β d, as the paper writes it
    beta1: float = 0.9  # decay of Adam's mean
    beta2: float = 0.999  # decay of Adam's mean square
    eps: float = 1e-8
    bias_correction: bool = True  # whether Adam corrects the bias of its two means
    max_grad_norm: float | None = None  # limit on each network's gradient norm, before preconditioning
    max_step_rms: float | None = None  # limit on the root mean square of each network's step / learning rate

    def __post_init__(self):
        if self.kind not in KINDS:
            raise unknown("optimiser", self.kind, KINDS)
        checks.below_one(self, "beta1", "beta2")
        checks.positive(self, "eps", "max_grad_norm", "max_step_rms")


class Stepper:
    """Applies a gradient (or a preconditioned one) to a parameter buffer."""

    def __init__(self, flat: Tensor, learning_rate: float, config: Optimiser = Optimiser()):
        self.flat, self.learning_rate, self.config = flat, learning_rate, config
        self.mean, self.square = torch.zeros_like(flat), torch.zeros_like(flat)
        self.count = torch.full((), 0.0 if config.bias_correction else UNCORRECTED, device=flat.device)

    def step(self, gradient: Tensor) -> None:
        limit = self.config.max_step_rms
        before = self.flat.clone() if limit is not None else None
        if self.config.kind == "plain":
            self.flat.sub_(gradient, alpha=self.learning_rate)
        else:
            self._adam(gradient)
        if limit is not None and before is not None:
            step = self.flat - before
            rms = step.square().mean(-1, keepdim=True).sqrt() / self.learning_rate  # per network
            torch.addcmul(before, step, (limit / rms).clamp_max(1), out=self.flat)

    def _adam(self, gradient: Tensor) -> None:
        """torch.optim.Adam's fused operator, called directly: torch.optim would double its time here."""
        self.count += 1
        torch._fused_adam_(
            [self.flat],
            [gradient],
            [self.mean],
            [self.square],
            [],
            [self.count],
            lr=self.learning_rate,
            beta1=self.config.beta1,
            beta2=self.config.beta2,
            weight_decay=0.0,
            eps=self.config.eps,
            amsgrad=False,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Tensor]:
        if self.config.kind == "plain":
            return {}
        return {"mean": self.mean, "square": self.square, "count": self.count}


def clip_grad_norm(gradient: Tensor, max_norm: float) -> None:
    """Scale each network's gradient [*stack, parameters] to a norm of at most max_norm, in place."""
    norm = gradient.norm(dim=-1, keepdim=True)
    gradient.mul_((max_norm / (norm + 1e-6)).clamp_max(1))
