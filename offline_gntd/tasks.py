"""A task: dimensions, environment and reference returns."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Task:
    env_id: str  # the gymnasium environment it is scored in
    obs_dim: int
    action_dim: int  # number of actions when discrete
    discrete: bool
    reference_min: float  # return of a random policy: score 0
    reference_max: float  # return of an expert: score 100
    reference_source: str
    env_options: dict[str, Any] = field(default_factory=dict)  # keyword arguments of gymnasium.make

    def score(self, returns):
        """Normalised score of a return or of an array of returns."""
        return 100 * (returns - self.reference_min) / (self.reference_max - self.reference_min)

    def score_spread(self, spread):
        """The standard deviation of scores for that of returns: scaled, not shifted."""
        return 100 * spread / (self.reference_max - self.reference_min)
