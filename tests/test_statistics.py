"""Every statistic from numbers small enough to check by hand."""

import itertools
import math
import time

import numpy as np
import pytest

from offline_gntd.analysis import statistics
from offline_gntd.analysis.statistics import best, compare_means, permutation_p

#            task a, task b: two tasks, four runs
SCORES = np.array([[0.0, 10.0], [20.0, 30.0], [40.0, 50.0], [60.0, 190.0]])


def rng():
    return np.random.default_rng(0)


def test_mean_and_median():
    assert statistics.mean(SCORES) == 400 / 8
    assert statistics.median(SCORES) == (30 + 70) / 2  # of the tasks' means 30 and 70
    three = np.array([[0.0, 5.0, 100.0]])
    assert statistics.median(three) == 5


def test_interquartile_mean():
    assert statistics.interquartile_mean(SCORES) == (20 + 30 + 40 + 50) / 4
    # ten values: a quarter is 2.5, and two are left out
    assert statistics.interquartile_mean(np.arange(10.0)[:, None]) == (2 + 3 + 4 + 5 + 6 + 7) / 6


def test_optimality_gap():
    assert statistics.optimality_gap(SCORES) == 100 - (0 + 10 + 20 + 30 + 40 + 50 + 60 + 100) / 8
    assert statistics.optimality_gap(np.full((2, 2), 150.0)) == 0


def test_statistics_are_vectorised():
    stack = rng().normal(50, 30, (7, 5, 3))
    for statistic in statistics.AGGREGATES.values():
        np.testing.assert_allclose(statistic(stack), [statistic(scores) for scores in stack])


def test_resamples_stay_within_their_task():
    draws = statistics.resample(np.array([[1.0, 10.0], [2.0, 20.0]]), rng(), 1000)
    assert draws.shape == (1000, 2, 2)
    assert set(draws[..., 0].ravel()) == {1, 2}
    assert set(draws[..., 1].ravel()) == {10, 20}
    # tasks are drawn apart: run 0 of one task does not bring run 0 of the other
    assert {tuple(row) for row in draws[:, 0]} == {(1, 10), (1, 20), (2, 10), (2, 20)}


def test_interval_of_a_mean_of_two_runs():
    """Of 0 and 1, a resample's mean is 0, ½ or 1 with chances ¼, ½, ¼: the 95 % interval is all of it."""
    scores = np.array([[0.0], [1.0]])
    draws = statistics.mean(statistics.resample(scores, rng(), 40_000))
    shares = [np.mean(draws == value) for value in (0, 0.5, 1)]
    assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.01)
    assert statistics.interval(draws) == (0, 1)
    assert statistics.interval(draws, 0.4) == (0.5, 0.5)
    estimate = statistics.estimates(scores, {"mean": statistics.mean}, rng())["mean"]
    assert estimate == (0.5, 0, 1)
    assert estimate.covers(1)
    assert not estimate.covers(1.01)


def test_bootstrap_std_is_the_standard_error():
    scores = rng().normal(0, 1, (10, 1))
    draws = statistics.mean(statistics.resample(scores, rng(), 40_000))
    assert draws.std() == pytest.approx(scores.std() / math.sqrt(10), rel=0.02)


def test_probability_of_improvement():
    x, y = np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([[2.0, 5.0]])
    # task a: one of two wins; task b: two ties, half a win each
    assert statistics.probability_of_improvement(x, y) == (0.5 + 0.5) / 2
    assert statistics.probability_of_improvement(x + 10, y) == 1
    both = statistics.probability_of_improvement(x, y) + statistics.probability_of_improvement(y, x)
    assert both == 1
    assert statistics.Estimate(0.25, 0.125, 0.5).complement() == (0.75, 0.5, 0.875)


def test_interval_of_an_improvement():
    x, y = np.array([[0.0], [2.0]]), np.array([[1.0]])
    # a resample of x has 0, 1 or 2 wins: ¼, ½, ¼
    assert statistics.improvement(x, y, rng()) == (0.5, 0, 1)
    assert statistics.improvement(x + 5, y, rng()) == (1, 1, 1)
    many, others = rng().normal(1, 1, (6, 4)), rng().normal(0, 1, (5, 4))
    estimate = statistics.improvement(many, others, rng())
    slow = [
        statistics.probability_of_improvement(a, b)
        for a, b in zip(
            statistics.resample(many, rng(), 2000), statistics.resample(others, rng(), 2000), strict=True
        )
    ]
    assert estimate.value == statistics.probability_of_improvement(many, others)
    assert (estimate.low, estimate.high) == pytest.approx(np.quantile(slow, [0.025, 0.975]), abs=0.02)


def test_compare_means():
    x, y = np.array([3.0, 5.0]), np.array([1.0, 1.0])
    assert compare_means(x, y) == (3.0, 2.0, 4.0)
    assert compare_means(x, 2 * y, ratio=True) == (2.0, 1.5, 2.5)


def test_performance_profile():
    thresholds = np.array([-1.0, 0.0, 30.0, 190.0])
    assert statistics.performance_profile(SCORES, thresholds).tolist() == [1, 7 / 8, 4 / 8, 0]
    low, high = statistics.profile_band(SCORES, thresholds, rng())
    assert low[0] == high[0] == 1
    assert low[3] == high[3] == 0
    assert low[2] < 0.5 < high[2]


def test_intervals_are_deterministic():
    first, again = (statistics.estimates(SCORES, statistics.AGGREGATES, rng()) for _ in range(2))
    assert first == again


def test_twelve_tasks_five_algorithms_ten_runs_take_under_five_seconds():
    generator = rng()
    scores = [generator.normal(50, 20, (10, 12)) for _ in range(5)]
    began = time.process_time()
    for x in scores:
        statistics.estimates(x, statistics.AGGREGATES, generator)
        statistics.profile_band(x, np.linspace(0, 120, 121), generator)
    for x, y in itertools.combinations(scores, 2):
        statistics.improvement(x, y, generator)
    assert time.process_time() - began < 5


def test_permutation_p():
    # {3, 4} against {1, 2}: of the six pairs only {3, 4} sums to 7
    assert permutation_p(np.array([3.0, 4.0]), np.array([1.0, 2.0])) == 1 / 6
    # {2, 4} against {1, 3}: {2, 4} and {3, 4} sum to 6 or more
    assert permutation_p(np.array([2.0, 4.0]), np.array([1.0, 3.0])) == 2 / 6
    assert permutation_p(np.array([5.0, 5.0]), np.array([5.0, 5.0])) == 1
    # sums that are equal but for rounding count as equal
    assert permutation_p(np.array([0.1, 0.2]), np.array([0.3, 0.0])) == 4 / 6


def test_too_many_splits_are_sampled():
    high, low = np.arange(12.0) + 3, np.arange(12.0)
    assert permutation_p(high, low) == permutation_p(high, low)
    assert permutation_p(high, low) == pytest.approx(0.028, abs=0.01)


def test_best_and_not_significantly_worse():
    samples = {
        "best": np.array([10.0, 11.0, 12.0]),
        "like it": np.array([9.0, 11.5, 11.0]),
        "worse": np.array([1.0, 2.0, 3.0]),  # p = 1/20
        "failed": np.array([math.nan] * 3),
    }
    assert best(samples) == {"best", "like it"}
    assert best(samples, lower=True) == {"worse"}
    assert best({"failed": samples["failed"]}) == set()


def test_with_two_seeds_only_the_best_mean():
    assert best({"a": np.array([10.0, 11.0]), "b": np.array([9.9, 11.0])}) == {"a"}
    assert best({"a": np.array([10.0]), "b": np.array([10.0])}) == {"a", "b"}
