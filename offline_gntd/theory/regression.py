"""Slopes on logarithmic axes, and intervals from drawing the seeds again."""

from collections.abc import Callable

import numpy as np

from offline_gntd.analysis.statistics import Estimate, interval

DRAWS = 1_000


def estimate(statistic: Callable[[np.ndarray], float], seeds: int) -> Estimate:
    """A statistic of the seeds chosen (their indices), for all of them and for draws with replacement."""
    rng = np.random.default_rng(0)
    draws = np.array([statistic(rng.integers(seeds, size=seeds)) for _ in range(DRAWS)])
    finite = draws[np.isfinite(draws)]
    low, high = interval(finite) if len(finite) else (np.nan, np.nan)
    return Estimate(statistic(np.arange(seeds)), float(low), float(high))


def slope(x: np.ndarray, y: np.ndarray) -> float:
    """Of log y against log x by least squares; none where fewer than three points are finite."""
    fit = np.isfinite(y) & (y > 0)
    if fit.sum() < 3:
        return np.nan
    return float(np.polyfit(np.log(x[fit]), np.log(y[fit]), 1)[0])


def exponent(x: np.ndarray, y: np.ndarray) -> Estimate:
    """The slope of the mean over seeds of y [points, seeds]."""
    return estimate(lambda chosen: slope(x, y[:, chosen].mean(1)), y.shape[1])


def mean(y: np.ndarray) -> Estimate:
    """Of one value per seed."""
    return estimate(lambda chosen: float(y[chosen].mean()), len(y))
