"""What an algorithm is asked to solve: the shapes it sees and the returns it is scored between."""

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
    env_options: dict[str, Any] = field(default_factory=dict)  # what gymnasium.make is given beside the id

    def score(self, returns):
        """Normalised score of a return, or of an array of them."""
        return 100 * (returns - self.reference_min) / (self.reference_max - self.reference_min)

    def score_spread(self, spread):
        """A standard deviation of returns as one of scores: scaled, never shifted."""
        return 100 * spread / (self.reference_max - self.reference_min)
