"""Our statistics are rliable's: the same numbers, and from the same resamples the same intervals."""

import numpy as np
import pytest

from offline_gntd.analysis import statistics

pytestmark = pytest.mark.conformance

TO_OURS = 100  # rliable's scores are 1 for an expert


@pytest.fixture(params=[(10, 12), (5, 12), (3, 1), (7, 5)], ids=str)
def scores(request):
    """Two algorithms, as [runs, tasks] of rliable's scores, with ties."""
    rng = np.random.default_rng(1)
    return {name: rng.normal(mean, 0.4, request.param).round(1) for name, mean in (("x", 0.7), ("y", 0.6))}


def test_aggregates(scores):
    from rliable import metrics

    theirs = {
        "mean": metrics.aggregate_mean,
        "median": metrics.aggregate_median,
        "IQM": metrics.aggregate_iqm,
        "optimality gap": metrics.aggregate_optimality_gap,
    }
    assert theirs.keys() == statistics.AGGREGATES.keys()
    for name, ours in statistics.AGGREGATES.items():
        for value in scores.values():
            assert ours(TO_OURS * value) == pytest.approx(TO_OURS * theirs[name](value), abs=1e-10)


def test_probability_of_improvement(scores):
    from rliable import metrics

    ours = statistics.probability_of_improvement(scores["x"], scores["y"])
    assert ours == pytest.approx(metrics.probability_of_improvement(scores["x"], scores["y"]), abs=1e-12)


def test_performance_profile(scores):
    from rliable import library

    thresholds = np.linspace(-0.5, 2, 26)
    theirs, bands = library.create_performance_profile(scores, thresholds, reps=2000)
    rng = np.random.default_rng(0)
    for name, value in scores.items():
        np.testing.assert_allclose(statistics.performance_profile(value, thresholds), theirs[name])
        np.testing.assert_allclose(statistics.profile_band(value, thresholds, rng), bands[name], atol=0.06)


def test_intervals_from_the_same_resamples_are_equal(scores):
    from rliable import library, metrics

    seen = []

    def iqm(resampled):
        seen.append(resampled.copy())
        return metrics.aggregate_iqm(resampled)

    bootstrap = library.StratifiedBootstrap(scores["x"], random_state=np.random.RandomState(0))
    theirs = bootstrap.conf_int(iqm, reps=500, size=0.95, method="percentile")
    draws = np.stack(seen[-500:])  # the first is of the scores themselves
    ours = statistics.interval(statistics.interquartile_mean(draws))
    np.testing.assert_allclose(np.array(ours), theirs[:, 0], atol=1e-12)


def test_intervals_from_resamples_of_our_own_are_close(scores):
    from rliable import library, metrics

    rng = np.random.default_rng(0)
    _, theirs = library.get_interval_estimates(
        scores,
        lambda x: np.array([metrics.aggregate_iqm(x)]),
        reps=2000,
        random_state=np.random.RandomState(0),
    )
    for name, value in scores.items():
        ours = statistics.estimates(value, {"IQM": statistics.interquartile_mean}, rng)["IQM"]
        np.testing.assert_allclose(ours[1:], theirs[name][:, 0], atol=0.03)
    _, theirs = library.get_interval_estimates(
        {"x,y": (scores["x"], scores["y"])},
        lambda x, y: np.array([metrics.probability_of_improvement(x, y)]),
        reps=2000,
        random_state=np.random.RandomState(0),
    )
    ours = statistics.improvement(scores["x"], scores["y"], rng)
    np.testing.assert_allclose(ours[1:], theirs["x,y"][:, 0], atol=0.03)
