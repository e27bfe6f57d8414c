"""Random draws for a stack of seeds, each seed's from its own generator."""

from collections.abc import Sequence

import torch
from torch import Tensor


def normal(generators: Sequence[torch.Generator], *shape: int, std: float = 1.0) -> Tensor:
    """Normal draws of mean 0 [seeds, *shape]."""
    draws = torch.empty(len(generators), *shape, device=generators[0].device)
    for draw, generator in zip(draws, generators, strict=True):
        draw.normal_(0, std, generator=generator)
    return draws


def uniform(generators: Sequence[torch.Generator], *shape: int) -> Tensor:
    """Uniform draws in [−1, 1], the range of actions: [seeds, *shape]."""
    draws = torch.empty(len(generators), *shape, device=generators[0].device)
    for draw, generator in zip(draws, generators, strict=True):
        draw.uniform_(-1, 1, generator=generator)
    return draws
