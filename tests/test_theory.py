"""The theorems' problems against closed forms, and the experiment `theory` as a command."""

import dataclasses
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch

from offline_gntd.analysis import render
from offline_gntd.cli import main
from offline_gntd.nn.exact import direction
from offline_gntd.theory import runner, tables
from offline_gntd.theory.measurements import (
    Comparison,
    Trial,
    angle,
    curvature,
    frequencies,
    gauss_newton,
    iterates,
    mean_residual,
    projection_error,
    recorded,
)
from offline_gntd.theory.problems import PROBLEMS, SETTINGS, Linear, approximation, chains
from offline_gntd.theory.tables import contraction, samples_needed

DISCOUNT = 0.9
SEEDS = 3
COLUMNS = ["setting", "quantity", "predicted", "measured", "interval"]


def generators(purpose=0):
    return [np.random.default_rng([seed, purpose]) for seed in range(SEEDS)]


@pytest.fixture(params=PROBLEMS)
def problem(request):
    return chains(request.param, generators(), DISCOUNT)


def start(made):
    return made.draw(generators(7))


def steps(value):
    return torch.full((SEEDS,), value, dtype=torch.float64)


def test_closed_forms_solve_their_equations(problem):
    torch.testing.assert_close(problem.backup(problem.values), problem.values)
    ones = torch.ones(SEEDS, dtype=torch.float64)
    torch.testing.assert_close(problem.transition.sum(-1), torch.ones_like(problem.reward))
    torch.testing.assert_close(problem.stationary.sum(-1), ones)
    assert (problem.stationary > 0).all()
    torch.testing.assert_close(
        torch.einsum("si,sij->sj", problem.stationary, problem.transition), problem.stationary
    )


def test_the_backup_contracts_in_the_stationary_norm(problem):
    one, other = torch.randn(2, *problem.reward.shape, dtype=torch.float64)
    apart = problem.norm(problem.backup(one) - problem.backup(other))
    assert (apart <= DISCOUNT * problem.norm(one - other)).all()


def test_rewarded_for_makes_any_function_the_value_function(problem):
    wanted = torch.randn_like(problem.reward)
    torch.testing.assert_close(problem.rewarded_for(wanted).values, wanted)


def test_one_full_step_with_full_features_is_the_bellman_backup(problem):
    """β = 1, exact expectations, ω = 0: Q(θ¹) = T^π Q(θ⁰)."""
    pairs = problem.reward.shape[-1]
    made = Linear(torch.eye(pairs, dtype=torch.float64).expand(SEEDS, -1, -1))
    path = iterates(problem, made, start(made), steps(1.0), 0.0, 0, ())
    before, after = next(path), next(path)
    torch.testing.assert_close(after, problem.backup(before))


@pytest.mark.parametrize("beta", [0.1, 0.5, 1.0])
def test_the_population_step_contracts_at_the_stated_rate(problem, beta):
    """Where the class holds Q^π, a linear step is β Π T + (1 − β): a contraction by 1 − (1 − γ)β."""
    made = approximation("linear", problem.reward.shape[-1], 1, generators(1))
    problem = problem.rewarded_for(made.linearised(start(made))[0])
    path = iterates(problem, made, made.draw(generators(8)), steps(beta), 0.0, 0, ())
    errors = [problem.norm(next(path) - problem.values) for _ in range(20)]
    for before, after in pairwise(errors):
        assert (after <= tables.rate(DISCOUNT, beta) * before + 1e-12).all()


def test_the_linear_theorem_holds_at_its_step(problem):
    made = approximation("linear", problem.reward.shape[-1], 1, generators(1))
    problem = problem.rewarded_for(made.linearised(start(made))[0])
    smallest = torch.linalg.eigvalsh(curvature(problem, made.features))[:, 0]
    theta = made.draw(generators(8))
    path = iterates(problem, made, theta, (1 - DISCOUNT) * smallest / 4, 1e-8, 0, ())
    errors = [problem.norm(next(path) - problem.values) for _ in range(200)]
    bound = torch.stack([torch.tensor(tables.linear_rate(DISCOUNT, x)) for x in smallest.tolist()])
    assert (errors[-1] <= bound**199 * errors[0]).all()
    assert (errors[-1] < errors[0]).all()


@pytest.mark.parametrize("setting", SETTINGS)
def test_jacobians_are_derivatives(setting):
    made = approximation(setting, 16, 5, generators(1))
    theta = start(made)
    _, J = made.linearised(theta)
    along = torch.randn_like(theta)
    change = made.linearised(theta + 1e-6 * along)[0] - made.linearised(theta - 1e-6 * along)[0]
    torch.testing.assert_close(change / 2e-6, torch.einsum("snp,sp->sn", J, along), rtol=1e-5, atol=1e-7)
    assert made.features.norm(dim=-1).max() <= 1 + 1e-12


@pytest.mark.parametrize(("samples", "parameters"), [(7, 11), (11, 7)])
def test_the_exact_direction_is_algorithm_1(samples, parameters):
    J = torch.randn(SEEDS, samples, parameters, dtype=torch.float64)
    residual = torch.randn(SEEDS, samples, dtype=torch.float64)
    H, g = J.mT @ J / samples, (J.mT @ residual[..., None]) / samples
    expected = torch.linalg.solve(H + 0.1 * torch.eye(parameters, dtype=torch.float64), g)[..., 0]
    torch.testing.assert_close(direction(J, residual, 0.1), expected)


def test_counting_tuples_gives_the_step_of_the_tuples(problem):
    """Algorithm 1 written out tuple by tuple gives the step that counting them gives."""
    made = approximation("relu", problem.reward.shape[-1], 5, generators(1))
    Q, J = made.linearised(start(made))
    frequency = frequencies(problem, 50, generators(2))
    drawn, residual = mean_residual(problem, Q, frequency)
    d = gauss_newton(J, drawn, residual, 0.1)
    for seed in range(SEEDS):
        pairs = (frequency[seed] * 50).round().long().nonzero()
        times = (frequency[seed] * 50).round().long()[tuple(pairs.T)]
        pair, following = pairs.repeat_interleave(times, 0).T
        delta = Q[seed, pair] - problem.reward[seed, pair] - DISCOUNT * Q[seed, following]
        assert len(delta) == 50
        torch.testing.assert_close(d[seed], direction(J[seed, pair], delta, 0.1))


def test_frequencies_converge_to_the_joint_distribution(problem):
    few, many = (frequencies(problem, n, generators(2)) for n in (100, 1_000_000))
    torch.testing.assert_close(many, problem.joint, atol=2e-3, rtol=0)
    assert (few - problem.joint).abs().max() > (many - problem.joint).abs().max()


def test_projection_error_equals_least_squares():
    problem = chains("random", generators(), DISCOUNT)
    made = approximation("linear", problem.reward.shape[-1], 1, generators(1))
    weight = problem.stationary[0].sqrt()
    rows, target = weight[:, None] * made.features[0], weight * problem.values[0]
    rest = target - rows @ torch.linalg.lstsq(rows, target[:, None]).solution[:, 0]
    torch.testing.assert_close(projection_error(problem, made.features)[0], rest.square().sum())


def values_of(trial, quantity, iteration):
    found = [values for name, k, values in trial.measure() if (name, k) == (quantity, iteration)]
    assert len(found) == 1
    return found[0]


def test_more_samples_lower_the_floor():
    few, many = (
        values_of(Trial("linear", samples=n, iterations=150, seeds=4), "floor", 150) for n in (16, 1024)
    )
    assert (many < few / 8).all()


def test_a_trial_is_deterministic():
    trial = Trial("smooth", samples=32, iterations=10, seeds=2)
    for (name, k, one), (_, _, again) in zip(trial.measure(), trial.measure(), strict=True):
        assert torch.equal(one, again), (name, k)


def test_recorded_iterations_include_first_and_last():
    assert recorded(3) == [0, 1, 2, 3]
    assert recorded(1000)[-1] == 1000
    assert len(recorded(1000)) < 60


def test_kfac_is_exact_for_one_linear_layer():
    """Of one linear layer with one output G is 1 and H = P: K-FAC with ω is along the exact step with √ω."""
    kfac, exact = (
        {name: values for name, _, values in Comparison(depth=0, damping=damping, seeds=2).measure()}
        for damping in (1e-4, 1e-2)
    )
    torch.testing.assert_close(kfac["kfac_reach"], exact["exact_reach"], rtol=1e-4, atol=1e-4)
    assert (kfac["kfac_angle"] < kfac["gradient_angle"]).all()


def test_the_undamped_exact_direction_has_the_largest_reach():
    measured = {name: values for name, _, values in Comparison(damping=1e-4, seeds=3).measure()}
    assert (measured["exact_reach"] >= measured["kfac_reach"] - 1e-3).all()
    assert (measured["exact_reach"] >= measured["gradient_reach"] - 1e-3).all()


def test_angles():
    torch.testing.assert_close(
        angle(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]])), torch.tensor([45.0])
    )


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A home of its own, and few measurements of few iterations."""
    monkeypatch.setenv("OFFLINE_GNTD_HOME", str(tmp_path))
    every = runner.measurements()
    shorter = {runner.SHORT: 3, Trial("linear").iterations: 4}
    short = [
        dataclasses.replace(m, iterations=shorter[m.iterations], seeds=2)
        if isinstance(m, Trial)
        else dataclasses.replace(m, seeds=2)
        for m in every.values()
        if isinstance(m, Trial) or m.width == 16
    ]
    monkeypatch.setattr(runner, "SHORT", 3)
    monkeypatch.setattr(tables, "DRAWS", 20)
    monkeypatch.setattr(tables, "USUAL", Trial("linear", iterations=4))
    monkeypatch.setattr(runner, "measurements", lambda: {runner.key(m): m for m in short})
    return tmp_path


def test_measurements_are_made_tabulated_and_exported(small):
    for measurement in runner.measurements().values():
        runner.make(measurement)
    measured, missing = runner.read()
    assert missing == []
    assert runner.run() == (0, len(runner.measurements()))  # all are finished
    runner.export()
    for path in (small / "results" / "theory").glob("*.json"):
        path.unlink()
    shipped, missing = runner.read()
    assert missing == []
    order = [
        "kind",
        "setting",
        "problem",
        "method",
        "samples",
        "step",
        "damping",
        "width",
        "depth",
        "realisable",
    ]
    order += ["quantity", "iteration", "seed"]
    one, other = (frame.sort_values(order)["value"].to_numpy() for frame in (measured, shipped))
    np.testing.assert_allclose(one, other, rtol=1e-4)
    table = render.table("theory")
    written = render.write(table)
    assert "INCOMPLETE" not in table.legend
    assert list(pd.read_csv(small / "analysis" / "theory.csv")) == COLUMNS
    assert len(written) == 4
    assert runner.run() == (0, len(runner.measurements()))  # so are those that were shipped


def test_missing_measurements_are_reported_and_nothing_is_fitted_to_the_rest(small, capsys, monkeypatch):
    monkeypatch.setattr("offline_gntd.cli.analysis.MOST_MISSING", 1000)
    *there, missing = [m for m in runner.measurements().values() if isinstance(m, Comparison)]
    for measurement in there:
        runner.make(measurement)
    assert main(["table", "theory"]) == 1
    table = capsys.readouterr()
    wanted = runner.measurements()
    count = len(wanted) - len(there)
    assert f"INCOMPLETE: {count} measurements are missing, in 7 cells" in table.out
    assert "| linear, random | everything | — | — | missing |" in table.out
    assert f"| {tables.setting_of(missing)} | everything | — | — | missing |" in table.out
    assert f"missing: {tables.setting_of(missing)}: measurement {runner.key(missing)}" in table.err
    assert main(["figure", "theory"]) == 2
    assert main(["report"]) == 0
    report = (runner.home() / "analysis" / "report.html").read_text()
    assert f"theory is not shown: {count} measurements of theory are missing" in report
    assert f"{count} measurements of theory are missing" in capsys.readouterr().err


def test_a_stopped_run_computes_only_what_is_missing(small):
    first, *_ = runner.measurements().values()
    runner.make(first)
    written = small / "results" / "theory" / f"{runner.key(first)}.json"
    before = written.read_bytes()
    wanted = runner.measurements
    runner.measurements = lambda: dict(list(wanted().items())[:2])
    try:
        assert runner.run(workers=1) == (1, 1)
    finally:
        runner.measurements = wanted
    assert written.read_bytes() == before


@pytest.mark.slow
def test_figures(small):
    for measurement in runner.measurements().values():
        runner.make(measurement)
    written = render.figure("theory")
    assert {path.stem for path in written} >= {"theory-iterations", "theory-complexity", "theory-kfac"}
    assert all(path.stat().st_size for path in written)


def test_commands(small, capsys):
    assert main(["run", "theory", "--dry-run"]) == 0
    count = len(runner.measurements())
    assert f"{count} to measure, 0 finished" in capsys.readouterr().out
    assert main(["status", "theory"]) == 0
    assert f"0 of {count} measured" in capsys.readouterr().out
    for arguments in (
        ["run", "theory", "--seeds", "3"],
        ["run", "theory", "--workers", "0"],
        ["table", "theory"],
        ["figure", "theory"],
        ["export", "theory"],
    ):
        assert main(arguments) == 2, arguments
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert not list(small.iterdir())


def test_exponent_of_a_power_law_and_its_interval():
    x = np.array([1.0, 2, 4, 8])
    exact = tables.exponent(x, np.outer(3 * x**-1.5, np.ones(4)))
    assert exact == pytest.approx((-1.5, -1.5, -1.5))
    steep, flat = x**-2.0, x**-1.0
    varied = tables.exponent(x, np.stack([steep, flat], 1))
    assert varied.low < varied.value < varied.high
    assert np.isnan(tables.slope(x, np.array([1.0, np.nan, np.inf, 2])))


def test_contraction_rate_of_a_geometric_path():
    path = pd.DataFrame({0: [1.0, 0.25, 0.0625], 1: [1.0, 0.01, 0.0]}, index=[0, 1, 2])
    assert contraction(path) == pytest.approx([0.5, 0.1])


def test_samples_needed_counts_to_the_first_error_below_a_level():
    paths = {(10, 0.1): np.array([1.0, 0.5, 0.1]), (100, 0.1): np.array([1.0, 0.05, 0.01])}
    needed = samples_needed(paths, np.array([0, 1, 2]), np.array([0.5, 0.05, 0.001]))
    assert needed.tolist() == [10, 100, np.inf]
