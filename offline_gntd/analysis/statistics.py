"""Statistics of scores over seeds and tasks, after Agarwal et al. 2021, and the test behind bold cells.

Scores are [..., runs, tasks]. A statistic reduces the last two axes, so that one call takes all resamples of
a bootstrap. Resampling is stratified: each task is resampled from its runs. Intervals are percentiles.
"""

import functools
import itertools
import math
from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

RESAMPLES = 10_000
CONFIDENCE = 0.95
GOAL = 100.0  # the optimality gap is measured from this score
FEW_RUNS = 10  # with fewer, percentile intervals are too narrow
FEWEST_RUNS = (
    3  # with fewer, no verdict: an interval of 2 against 2 equal runs excludes 0 in a third of cases
)
SEED = 0  # for all resampling in tables and figures
LEVEL = 0.05  # significance level of the permutation test
MOST_SPLITS = 200_000  # enumerated; if there are more, this number is sampled

Statistic = Callable[[np.ndarray], np.ndarray]


class Estimate(NamedTuple):
    value: float
    low: float
    high: float

    def covers(self, value: float) -> bool:
        return self.low <= value <= self.high

    def complement(self) -> "Estimate":
        """The estimate of 1 − p, for a probability p."""
        return Estimate(1 - self.value, 1 - self.high, 1 - self.low)

    def text(self, written: Callable[[float], str], several: bool = True) -> str:
        """value [low, high]; without the interval if there is only one seed."""
        interval = f" [{written(self.low)}, {written(self.high)}]" if several else ""
        return written(self.value) + interval


def mean(scores: np.ndarray) -> np.ndarray:
    return scores.mean((-2, -1))


def median(scores: np.ndarray) -> np.ndarray:
    """The median over tasks of the mean over runs."""
    return np.median(scores.mean(-2), axis=-1)


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """The mean over all runs and tasks without the lowest and highest quarter."""
    pooled = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    quarter = pooled.shape[-1] // 4
    return pooled[..., quarter : pooled.shape[-1] - quarter].mean(-1)


def optimality_gap(scores: np.ndarray, goal: float = GOAL) -> np.ndarray:
    """The mean shortfall from the goal; scores above the goal count as the goal."""
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
    """The central `confidence` interval of draws [count, ...]."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail], axis=0)
    return low, high


def estimates(scores: np.ndarray, statistics: Mapping[str, Statistic], rng: Generator) -> dict[str, Estimate]:
    """Each statistic of scores [runs, tasks] with its interval, from the same resamples."""
    draws = resample(scores, rng)
    return {
        name: Estimate(float(statistic(scores)), *map(float, interval(statistic(draws))))
        for name, statistic in statistics.items()
    }


def compare_means(x: np.ndarray, y: np.ndarray, ratio: bool = False) -> Estimate:
    """mean(x) − mean(y), or mean(x) / mean(y), of values [seeds]; both sides are resampled independently."""
    rng = np.random.default_rng(SEED)
    means = [values[rng.integers(len(values), size=(RESAMPLES, len(values)))].mean(1) for values in (x, y)]
    compare = np.divide if ratio else np.subtract
    low, high = interval(compare(*means))
    return Estimate(float(compare(x.mean(), y.mean())), float(low), float(high))


def probability_of_improvement(x: np.ndarray, y: np.ndarray) -> float:
    """P(a run of x exceeds a run of y on a random task), both [runs, tasks]; a tie counts half."""
    return float(_wins(x, y).mean())


def improvement(x: np.ndarray, y: np.ndarray, rng: Generator) -> Estimate:
    """The probability of improvement with its interval; x and y are resampled independently."""
    wins = _wins(x, y)
    draws = np.einsum("cti,tij,ctj->c", _counts(x, rng), wins, _counts(y, rng), optimize=True)
    return Estimate(float(wins.mean()), *map(float, interval(draws / wins.size)))


def performance_profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """The share of runs [runs, tasks] with a score above each threshold."""
    return (scores[..., None] > thresholds).mean((0, 1))


def profile_band(scores: np.ndarray, thresholds: np.ndarray, rng: Generator) -> tuple[np.ndarray, np.ndarray]:
    """The pointwise interval of a performance profile."""
    above = (scores.T[..., None] > thresholds).astype(float)  # [tasks, runs, thresholds]
    draws = _counts(scores, rng).reshape(RESAMPLES, -1) @ above.reshape(scores.size, -1)
    return interval(draws / scores.size)


def _wins(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """[tasks, runs of x, runs of y]"""
    x, y = x.T[:, :, None], y.T[:, None, :]
    return (x > y) + 0.5 * (x == y)


def _counts(scores: np.ndarray, rng: Generator) -> np.ndarray:
    """How often each resample contains each run: [resamples, tasks, runs]."""
    runs, tasks = scores.shape
    groups = RESAMPLES * tasks
    drawn = rng.integers(runs, size=(groups, runs)) + runs * np.arange(groups)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=groups * runs)
    return counts.reshape(RESAMPLES, tasks, runs).astype(float)


def best(samples: Mapping[Hashable, np.ndarray], lower: bool = False) -> set[Hashable]:
    """The keys of the best mean and of those not significantly worse; NaNs are ignored."""
    signed = {key: (-1 if lower else 1) * _finite(values) for key, values in samples.items()}
    signed = {key: values for key, values in signed.items() if len(values)}
    if not signed:
        return set()
    leader = max(signed, key=lambda key: signed[key].mean())
    return {
        key
        for key, values in signed.items()
        if values.mean() == signed[leader].mean() or not _distinguishable(signed[leader], values)
    }


def bold_rule(runs: int) -> str:
    """What bold means in a table of `best` with so many runs per cell."""
    if runs < FEWEST_RUNS:  # no outcome is significant
        return "Bold: best mean; there are too few seeds for a test."
    return "Bold: best, or not significantly worse (permutation test, 5 %)."


def permutation_p(high: np.ndarray, low: np.ndarray) -> float:
    """One-sided p-value: the share of splits of the pooled values with means at least as far apart."""
    pooled = np.concatenate([high, low])
    chosen = pooled[_splits(len(pooled), len(high))].sum(1)
    # sums that differ only by rounding count as equal
    return float((chosen >= high.sum() - 1e-9 * np.abs(pooled).sum()).mean())


def _distinguishable(high: np.ndarray, low: np.ndarray) -> bool:
    """True also if there are too few seeds for any outcome to be significant."""
    smallest = 1 / math.comb(len(high) + len(low), len(high))
    return smallest > LEVEL or permutation_p(high, low) <= LEVEL


@functools.cache
def _splits(total: int, chosen: int) -> np.ndarray:
    """Indices of the first group in each split: [splits, chosen]."""
    count = math.comb(total, chosen)
    if count <= MOST_SPLITS:
        flat = itertools.chain.from_iterable(itertools.combinations(range(total), chosen))
        return np.fromiter(flat, np.int32, count * chosen).reshape(count, chosen)
    rng = np.random.default_rng(0)
    return rng.permuted(np.tile(np.arange(total, dtype=np.int32), (MOST_SPLITS, 1)), axis=1)[:, :chosen]


def _finite(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, float)
    return values[np.isfinite(values)]
