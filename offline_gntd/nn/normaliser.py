"""Observation statistics: they belong to the agent, so that a stored policy sees what it was trained on."""

import torch
from torch import Tensor

Statistics = tuple[Tensor, Tensor]  # mean and standard deviation of a dataset's observations, [obs_dim] each
SMALLEST_SCALE = 1e-3  # added to the standard deviation, as in TD3+BC


class Normaliser:
    """(obs − mean) / (std + 1e-3) per seed; without statistics, observations are left as they are."""

    def __init__(self, statistics: Statistics | None, seeds: int, obs_dim: int, device: torch.device):
        self.mean = torch.zeros(seeds, 1, obs_dim, device=device)
        self.scale = torch.ones(seeds, 1, obs_dim, device=device)
        if statistics is not None:
            mean, std = statistics
            self.mean.copy_(mean)
            self.scale.copy_(std).add_(SMALLEST_SCALE)

    def __call__(self, obs: Tensor) -> Tensor:
        """For obs [seeds or 1, n, obs_dim]."""
        return (obs - self.mean).div_(self.scale)

    def state_dict(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "scale": self.scale}
