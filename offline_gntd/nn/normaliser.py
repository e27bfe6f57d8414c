"""Observation normalisation. Its statistics are part of the agent's state, so a stored policy keeps them."""

import torch
from torch import Tensor

Statistics = tuple[
    Tensor, Tensor
]  # mean and standard deviation of the observations, [obs_dim] or [seeds, 1, obs_dim]
EPSILON = 1e-3  # added to the standard deviation, as in TD3+BC


class Normaliser:
    """(obs − mean) / (std + 1e-3) per seed; without statistics, the identity."""

    def __init__(self, statistics: Statistics | None, seeds: int, obs_dim: int, device: torch.device):
        self.mean = torch.zeros(seeds, 1, obs_dim, device=device)
        self.scale = torch.ones(seeds, 1, obs_dim, device=device)
        if statistics is not None:
            mean, std = statistics
            self.mean.copy_(mean)
            self.scale.copy_(std).add_(EPSILON)

    def __call__(self, obs: Tensor) -> Tensor:
        """For obs [seeds or 1, n, obs_dim]."""
        return (obs - self.mean).div_(self.scale)

    def state_dict(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "scale": self.scale}
