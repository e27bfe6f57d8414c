"""Steps on a flat parameter buffer: one call for a whole stack of networks."""

import torch
from torch import Tensor

from offline_gntd.errors import unknown


class Adam:
    """torch.optim.Adam's fused step with its default betas and epsilon.

    The operator itself: torch.optim's way to it costs as much again for a network of this size.
    """

    def __init__(self, flat: Tensor, learning_rate: float):
        self.flat, self.learning_rate = flat, learning_rate
        self.mean, self.square = torch.zeros_like(flat), torch.zeros_like(flat)
        self.count = torch.zeros((), device=flat.device)

    def step(self, gradient: Tensor) -> None:
        self.count += 1
        torch._fused_adam_(
            [self.flat],
            [gradient],
            [self.mean],
            [self.square],
            [],
            [self.count],
            lr=self.learning_rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "square": self.square, "count": self.count}


class Plain:
    """θ ← θ − β d, as the paper writes it."""

    def __init__(self, flat: Tensor, learning_rate: float):
        self.flat, self.learning_rate = flat, learning_rate

    def step(self, gradient: Tensor) -> None:
        self.flat.sub_(gradient, alpha=self.learning_rate)

    def state_dict(self) -> dict[str, Tensor]:
        return {}


OPTIMISERS: dict[str, type[Adam | Plain]] = {"adam": Adam, "plain": Plain}


def check_optimiser(name: str) -> None:
    if name not in OPTIMISERS:
        raise unknown("optimiser", name, OPTIMISERS)


def optimiser(name: str, flat: Tensor, learning_rate: float) -> Adam | Plain:
    check_optimiser(name)
    return OPTIMISERS[name](flat, learning_rate)
