"""`Task`: environment, dimensions and reference returns; the three MuJoCo bodies of D4RL's datasets."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np


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
    # lowest and highest action of the environment, if not −1 and 1: datasets are scaled to [−1, 1] when they
    # are loaded, and actions are scaled back for the environment
    action_range: list[list[float]] | None = None

    @property
    def action_bounds(self) -> np.ndarray:
        """The lowest and the highest action of the environment [2, action_dim]."""
        low, high = self.action_range or ([-1.0], [1.0])
        return np.array(np.broadcast_arrays(low, high, np.ones(self.action_dim))[:2], np.float32)

    @property
    def action_limits(self) -> tuple[float, float]:
        """The lowest and the highest action of the environment, over all dimensions."""
        low, high = self.action_bounds
        return float(low.min()), float(high.max())

    def to_unit(self, actions: np.ndarray) -> np.ndarray:
        """Actions of the environment [..., action_dim], scaled to [−1, 1]."""
        if self.action_range is None:
            return actions
        low, high = self.action_bounds
        return (actions - (high + low) / 2) / ((high - low) / 2)

    def to_environment(self, actions: np.ndarray) -> np.ndarray:
        """Actions in [−1, 1] [..., action_dim], scaled to the environment's range."""
        if self.action_range is None:
            return actions
        low, high = self.action_bounds
        return actions * ((high - low) / 2) + (high + low) / 2

    def score(self, returns):
        """Normalised score of a return, or of each return in an array."""
        return 100 * (returns - self.reference_min) / (self.reference_max - self.reference_min)

    def score_spread(self, spread):
        """Convert a standard deviation of returns to one of scores: scaled, not shifted."""
        return 100 * spread / (self.reference_max - self.reference_min)


@dataclass(frozen=True)
class Locomotion:
    """A body, with the same values in every split and version of D4RL."""

    body: str  # gymnasium's name without its version
    obs_dim: int
    action_dim: int
    reference_min: float  # d4rl.infos.REF_MIN_SCORE, the same for every split and version
    reference_max: float  # d4rl.infos.REF_MAX_SCORE
    height: float  # first component of an initial observation; all others are about 0 …
    reset_noise: float  # … up to this noise
    terminates: bool  # whether the environment has terminal states

    def task(self, env_version: str = "v4") -> Task:
        """The task in v4, which is closest to D4RL's environments, or in another version."""
        return Task(
            f"{self.body}-{env_version}",
            self.obs_dim,
            self.action_dim,
            False,
            self.reference_min,
            self.reference_max,
            "D4RL's constants",
        )


EPISODE_LIMIT = 1000  # steps

LOCOMOTION = {
    "halfcheetah": Locomotion("HalfCheetah", 17, 6, -280.178953, 12135.0, 0.0, 0.6, terminates=False),
    "hopper": Locomotion("Hopper", 11, 3, -20.272305, 3234.3, 1.25, 0.006, terminates=True),
    "walker2d": Locomotion("Walker2d", 17, 6, 1.629008, 4592.3, 1.25, 0.006, terminates=True),
}


def of_environment(env_id: str) -> Locomotion | None:
    """The body of a gymnasium id of any version, or None."""
    body = env_id.rpartition("-v")[0]
    return next((known for known in LOCOMOTION.values() if known.body == body), None)
