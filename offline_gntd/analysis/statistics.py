"""Statistics of scores over seeds and tasks (Agarwal et al. 2021, Deep RL at the edge of the precipice).

Scores are [..., runs, tasks]; a statistic is a function of the last two axes, so that one call takes all the
resamples of a bootstrap. Resampling is stratified: every task draws anew from its own runs. Intervals are
percentiles of the resamples.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

RESAMPLES = 10_000
CONFIDENCE = 0.95
GOAL = 100.0  # the score an optimality gap is measured from: an expert's
FEW_RUNS = 10  # below this, percentile intervals are narrower than they claim
SEED = 0  # of every resample that ends up in a table or a figure

Statistic = Callable[[np.ndarray], np.ndarray]


def caution(runs: int) -> list[str]:
    """The warning that few runs deserve."""
    if runs >= FEW_RUNS:
        return []
    return [f"FEW SEEDS ({runs}): bootstrap intervals of fewer than {FEW_RUNS} are narrower than they say."]


class Estimate(NamedTuple):
    value: float
    low: float
    high: float

    def covers(self, value: float) -> bool:
        return self.low <= value <= self.high

    def complement(self) -> "Estimate":
        """Of the opposite event, where this is of a probability."""
        return Estimate(1 - self.value, 1 - self.high, 1 - self.low)


def mean(scores: np.ndarray) -> np.ndarray:
    return scores.mean((-2, -1))


def median(scores: np.ndarray) -> np.ndarray:
    """Over tasks, of each task's mean over runs."""
    return np.median(scores.mean(-2), axis=-1)


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """The mean of all runs on all tasks without the lowest and the highest quarter of them."""
    pooled = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    quarter = pooled.shape[-1] // 4
    return pooled[..., quarter : pooled.shape[-1] - quarter].mean(-1)


def optimality_gap(scores: np.ndarray, goal: float = GOAL) -> np.ndarray:
    """By how much runs fall short of the goal on average; what is beyond it makes up for nothing."""
    return goal - np.minimum(scores, goal).mean((-2, -1))


AGGREGATES: dict[str, Statistic] = {
    "mean": mean,
    "median": median,
    "IQM": interquartile_mean,
    "optimality gap": optimality_gap,
}


def resample(scores: np.ndarray, rng: Generator, count: int = RESAMPLES) -> np.ndarray:
    """`count` stratified resamples of scores [runs, tasks]: [count, runs, tasks]."""
    index = rng.integers(len(scores), size=(count, *scores.shape))
    return np.take_along_axis(scores[None], index, axis=1)


def interval(draws: np.ndarray, confidence: float = CONFIDENCE) -> tuple[np.ndarray, np.ndarray]:
    """The middle `confidence` of draws [count, ...]."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail], axis=0)
    return low, high


def estimates(
    scores: np.ndarray, statistics: Mapping[str, Statistic], rng: Generator, count: int = RESAMPLES
) -> dict[str, Estimate]:
    """Every statistic of scores [runs, tasks] with its interval, all from the same resamples."""
    draws = resample(scores, rng, count)
    return {
        name: Estimate(float(statistic(scores)), *map(float, interval(statistic(draws))))
        for name, statistic in statistics.items()
    }


def probability_of_improvement(x: np.ndarray, y: np.ndarray) -> float:
    """That a run of x beats one of y on a task taken at random: [runs, tasks] each. A tie is half a win."""
    return float(_wins(x, y).mean())


def improvement(x: np.ndarray, y: np.ndarray, rng: Generator, count: int = RESAMPLES) -> Estimate:
    """The probability of improvement with its interval, x and y resampled apart."""
    wins = _wins(x, y)
    draws = np.einsum("cti,tij,ctj->c", _counts(x, rng, count), wins, _counts(y, rng, count), optimize=True)
    return Estimate(float(wins.mean()), *map(float, interval(draws / wins.size)))


def performance_profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """The share of runs [runs, tasks] whose score is above each threshold."""
    return (scores[..., None] > thresholds).mean((0, 1))


def profile_band(
    scores: np.ndarray, thresholds: np.ndarray, rng: Generator, count: int = RESAMPLES
) -> tuple[np.ndarray, np.ndarray]:
    """The pointwise interval of a performance profile."""
    above = (scores.T[..., None] > thresholds).astype(float)  # [tasks, runs, thresholds]
    draws = _counts(scores, rng, count).reshape(count, -1) @ above.reshape(scores.size, -1)
    return interval(draws / scores.size)


def _wins(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """[tasks, runs of x, runs of y]"""
    x, y = x.T[:, :, None], y.T[:, None, :]
    return (x > y) + 0.5 * (x == y)


def _counts(scores: np.ndarray, rng: Generator, count: int) -> np.ndarray:
    """How often a resample holds each run: [count, tasks, runs], all that a mean over runs needs to know."""
    runs, tasks = scores.shape
    drawn = rng.integers(runs, size=(count * tasks, runs)) + runs * np.arange(count * tasks)[:, None]
    return (
        np.bincount(drawn.ravel(), minlength=count * tasks * runs).reshape(count, tasks, runs).astype(float)
    )
