"""The theorems' predictions, and the table that compares them with the measurements.

Predictions are for ε = ‖Q − Q^π‖²_μ: its rate, the exponents of its floor, the samples needed. The theorems
bound √ε, so a bound of order N^(−1/2) is the exponent −1 of ε. All are upper bounds: a measurement may be
better.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from offline_gntd.analysis.statistics import Estimate, interval
from offline_gntd.analysis.table import Cell, Table, minus
from offline_gntd.theory import runner
from offline_gntd.theory.measurements import STEP, Comparison, Trial
from offline_gntd.theory.problems import ACTIONS, PROBLEMS, STATES
from offline_gntd.theory.runner import Measurement

METHODS = {"gntd": "GNTD", "td": "TD"}
ROUNDING = 1e-18  # share of the first error below which an error is rounding
LEVELS = 8  # values of ε for which samples are counted
USUAL = Trial("linear")  # the settings that a sweep does not change
DRAWS = 1_000  # bootstrap resamples of the seeds


@dataclass(frozen=True)
class Theorem:
    name: str
    samples: float = -1.0  # exponent of the floor in N
    damping: float = 2.0  # in ω
    step: float | None = None  # in β; None: the bound does not depend on β
    width: float | None = None  # in m
    complexity: float = -1.0  # exponent of the samples needed, in ε
    td_complexity: float | None = None  # for TD: the best that the paper cites


THEOREMS = {
    "linear": Theorem("linear", td_complexity=-1.0),
    "relu": Theorem("two-layer ReLU", width=-1 / 3, td_complexity=-2.0),
    "smooth": Theorem("smooth network", step=2.0, complexity=-1.5),
}


def rate(discount: float, step: float) -> float:
    """The factor of ‖Q − Q^π‖_μ per iteration, in both theorems about networks."""
    return 1 - (1 - discount) * step


def linear_rate(discount: float, smallest_eigenvalue: float) -> float:
    """The same in the linear theorem, at its β = (1 − γ)λ₀/4."""
    return 1 - (1 - discount) ** 2 * smallest_eigenvalue / 8


# ---- statistics of measurements


def estimate(statistic: Callable[[np.ndarray], float], seeds: int) -> Estimate:
    """A statistic of seeds (given by their indices), with its bootstrap interval."""
    rng = np.random.default_rng(0)
    draws = np.array([statistic(rng.integers(seeds, size=seeds)) for _ in range(DRAWS)])
    finite = draws[np.isfinite(draws)]
    low, high = interval(finite) if len(finite) else (np.nan, np.nan)
    return Estimate(statistic(np.arange(seeds)), float(low), float(high))


def slope(x: np.ndarray, y: np.ndarray) -> float:
    """The least-squares slope of log y against log x; NaN if fewer than three points are finite."""
    fit = np.isfinite(y) & (y > 0)
    if fit.sum() < 3:
        return np.nan
    return float(np.polyfit(np.log(x[fit]), np.log(y[fit]), 1)[0])


def exponent(x: np.ndarray, y: np.ndarray) -> Estimate:
    """The slope of the mean over seeds of y [points, seeds]."""
    return estimate(lambda chosen: slope(x, y[:, chosen].mean(1)), y.shape[1])


def mean(y: np.ndarray) -> Estimate:
    """The mean of one value per seed."""
    return estimate(lambda chosen: float(y[chosen].mean()), len(y))


# ---- the table


class Line(NamedTuple):
    setting: str
    quantity: str
    predicted: float | None  # None: no theorem predicts it
    measured: Estimate | None  # None: measurements are missing


class Unmeasured(NamedTuple):
    """A missing measurement, and the setting whose rows need it."""

    cell: str
    measurement: Measurement

    def __str__(self) -> str:
        return f"{self.cell}: measurement {runner.key(self.measurement)}"


class Trials:
    """The trials of one setting and problem."""

    def __init__(self, measured: pd.DataFrame, setting: str, problem: str):
        self.frame = measured[(measured["setting"] == setting) & (measured["problem"] == problem)]
        self.setting, self.problem = setting, problem

    def where(self, quantity: str, **settings) -> pd.DataFrame:
        frame = self.frame[self.frame["quantity"] == quantity]
        for name, value in settings.items():
            frame = frame[frame[name].isna() if value is None else frame[name] == value]
        return frame

    def values(self, quantity: str, **settings) -> np.ndarray:
        """[seeds]"""
        return self.where(quantity, **settings).sort_values("seed")["value"].to_numpy()

    def sweep(self, by: str, quantity: str = "floor", **settings) -> tuple[np.ndarray, np.ndarray]:
        """The swept setting [points] and the quantity [points, seeds]."""
        table = self.where(quantity, **settings).pivot_table("value", by, "seed")
        return table.index.to_numpy(float), table.to_numpy()

    def paths(self, **settings) -> dict[tuple[int, float], pd.DataFrame]:
        """ε by iteration and seed, for every (samples, step)."""
        frame = self.where("error", **settings)
        return {
            pair: group.pivot_table("value", "iteration", "seed")
            for pair, group in frame.groupby(["samples", "step"])
        }


def long(method: str, **settings) -> dict:
    """Settings that select the long trials, with N tuples per iteration."""
    return {"method": method, "iterations": USUAL.iterations} | settings


def short(swept: str = "", **settings) -> dict:
    """Settings that select the short trials: the usual ones but for `settings` and the swept field."""
    usual = {name: getattr(USUAL, name) for name in ("method", "samples", "step", "damping", "width")}
    chosen = usual | {"realisable": True, "iterations": runner.SHORT} | settings
    return {name: value for name, value in chosen.items() if name != swept}


class Sweep(NamedTuple):
    by: str  # the setting that is varied; the theorem's exponent has the same name
    words: str  # what is measured
    axis: str  # label of the x axis
    trials: dict[str, dict]  # method: settings that select its trials
    settings: Collection[str] = tuple(THEOREMS)


def sweeps() -> dict[str, Sweep]:
    both, after = tuple(METHODS), f"error at K = {runner.SHORT}"
    return {
        "samples": Sweep(
            "samples",
            "floor, exponent of N",
            f"N, tuples per iteration (β = {STEP})",
            {method: long(method, step=STEP) for method in both},
        ),
        "steps": Sweep(
            "step",
            "floor at N = 1024, exponent of β",
            "β (N = 1024)",
            {method: long(method, samples=1024) for method in both},
        ),
        "damping, exact": Sweep(
            "damping",
            f"{after}, exact expectations, exponent of ω",
            f"ω (exact expectations, K = {runner.SHORT})",
            {"gntd": short("damping", samples=0)},
        ),
        "damping": Sweep(
            "damping",
            f"{after}, N = 1024, exponent of ω",
            f"ω (N = 1024, K = {runner.SHORT})",
            {"gntd": short("damping", samples=1024)},
        ),
        "width": Sweep(
            "width",
            f"{after}, exact expectations, exponent of m",
            f"m (exact expectations, K = {runner.SHORT})",
            {"gntd": short("width")},
            settings=("relu",),
        ),
    }


def contraction(path: pd.DataFrame) -> np.ndarray:
    """The mean factor of ‖Q − Q^π‖_μ per iteration [seeds], until only rounding is left."""
    start, path = path.iloc[0], path.iloc[1:]
    last = [np.flatnonzero(path[seed] > ROUNDING * start[seed])[-1] for seed in path]
    ends = [path[seed].iloc[k] for seed, k in zip(path, last, strict=True)]
    return (np.array(ends) / start.to_numpy()) ** (0.5 / path.index[last].to_numpy())


def samples_needed(paths: dict[tuple[int, float], np.ndarray], iterations: np.ndarray, levels: np.ndarray):
    """The fewest samples, over all N and β, after which the mean ε is at most a level: [levels]."""
    needed = np.full(len(levels), np.inf)
    for (samples, _), errors in paths.items():
        best = np.minimum.accumulate(np.nan_to_num(errors, nan=np.inf))
        first = (best[:, None] <= levels).argmax(0)
        used = np.where(best[-1] <= levels, samples * iterations[first], np.inf)
        needed = np.minimum(needed, used)
    return needed


def complexity(trials: Trials, method: str) -> tuple[np.ndarray, np.ndarray, Estimate]:
    """Levels of ε, the samples that each needs, and the exponent of ε in the samples."""
    paths = {pair: path for pair, path in trials.paths(**long(method)).items() if pair[0]}
    arrays = {pair: path.to_numpy() for pair, path in paths.items()}
    iterations = next(iter(paths.values())).index.to_numpy()
    lowest = min(np.nanmin(errors.mean(1)) for errors in arrays.values())
    start = next(iter(arrays.values()))[0].mean()
    levels = np.geomspace(0.1 * start, 2 * lowest, LEVELS)

    def needed(chosen: np.ndarray) -> np.ndarray:
        means = {pair: errors[:, chosen].mean(1) for pair, errors in arrays.items()}
        return samples_needed(means, iterations, levels)

    seeds = next(iter(arrays.values())).shape[1]
    return levels, needed(np.arange(seeds)), estimate(lambda chosen: slope(levels, needed(chosen)), seeds)


def lines(measured: pd.DataFrame, without: Collection[str] = ()) -> Iterator[Line]:
    """The rows of every setting; one row says that the settings in `without` lack measurements."""
    for setting in THEOREMS:
        for problem in PROBLEMS:
            name = setting_of(Trial(setting, problem))
            if name not in without:
                trials = Trials(measured, setting, problem)
                yield from (Line(name, *line) for line in _setting_rows(trials))
    yield from (line for line in _direction_rows(measured) if line.setting not in without)
    yield from (Line(name, "everything", None, None) for name in without)


def setting_of(measurement: Measurement) -> str:
    """The setting in whose rows a measurement is used."""
    if isinstance(measurement, Trial):
        return f"{THEOREMS[measurement.setting].name}, {measurement.problem}"
    return f"{measurement.depth} × {measurement.width} hidden units, ω = {measurement.damping:g}"


def _setting_rows(trials: Trials) -> Iterator[tuple[str, float | None, Estimate]]:
    theorem, linear = THEOREMS[trials.setting], trials.setting == "linear"
    if linear:
        chosen = {"step": None, "samples": 0}
        path = trials.where("error", **chosen).pivot_table("value", "iteration", "seed")
        smallest = trials.values("smallest_eigenvalue", **chosen).mean()
        yield "GNTD's rate at β = (1−γ)λ₀/4", linear_rate(USUAL.discount, smallest), mean(contraction(path))
    for method, words, predicted in (
        ("gntd", f"GNTD's rate at β = {STEP}", rate(USUAL.discount, STEP)),
        ("td", f"TD's rate at {STEP}/λ_max", None),
    ):
        (path,) = trials.paths(**short(method=method)).values()
        yield words, predicted, mean(contraction(path))
    for sweep in sweeps().values():
        for method, settings in sweep.trials.items() if trials.setting in sweep.settings else ():
            predicted = getattr(theorem, sweep.by) if method == "gntd" else None
            yield (
                f"{METHODS[method]}'s {sweep.words}",
                predicted,
                exponent(*trials.sweep(sweep.by, **settings)),
            )
    if linear:
        chosen = short(realisable=False)
        ratio = np.sqrt(trials.values("floor", **chosen) / trials.values("projection_error", **chosen))
        yield "‖Q − Q^π‖ / ‖ΠQ^π − Q^π‖ where Q^π is not in the class", 1 / (1 - USUAL.discount), mean(ratio)
    for method, predicted in (("gntd", theorem.complexity), ("td", theorem.td_complexity)):
        yield f"{METHODS[method]}'s samples needed, exponent of ε", predicted, complexity(trials, method)[2]


def directions(measured: pd.DataFrame, quantity: str) -> dict[tuple[float, int, int], np.ndarray]:
    """The quantity [seeds] by damping, depth and width."""
    frame = measured[(measured["kind"] == "Comparison") & (measured["quantity"] == quantity)]
    return {
        (damping, int(depth), int(width)): group.sort_values("seed")["value"].to_numpy()
        for (damping, depth, width), group in frame.groupby(["damping", "depth", "width"])
    }


def _direction_rows(measured: pd.DataFrame) -> Iterator[Line]:
    words = {
        "kfac_angle": "K-FAC's angle to the exact direction, degrees",
        "gradient_angle": "the gradient's angle to the exact direction, degrees",
        "exact_reach": "share of the residual the exact direction removes",
        "kfac_reach": "share of the residual K-FAC's direction removes",
        "gradient_reach": "share of the residual the gradient removes",
    }
    for quantity, text in words.items():
        for (damping, depth, width), values in directions(measured, quantity).items():
            yield Line(setting_of(Comparison(depth, width, damping)), text, None, mean(values))


def table() -> Table:
    measured, missing = runner.read()
    absent = tuple(Unmeasured(setting_of(measurement), measurement) for measurement in missing)
    rows, long = [], []
    for line in lines(measured, dict.fromkeys(each.cell for each in absent)):
        value, interval = None, "missing"
        if line.measured:
            value, low, high = line.measured
            interval = f"[{_number(low)}, {_number(high)}]"
        texts = (line.setting, line.quantity, _number(line.predicted), _number(value), interval)
        rows.append(tuple(map(Cell, texts)))
        long.append((line.setting, line.quantity, line.predicted, value, interval))
    return Table(
        f"{STATES * ACTIONS} state-action pairs, γ = {USUAL.discount}, {USUAL.seeds} seeds, 95 % bootstrap "
        "intervals. Rates: factors of ‖Q − Q^π‖_μ per iteration; exponents: of its square. Predictions are "
        "upper bounds, TD's the best that the paper cites.",
        ("Setting", "Quantity", "Predicted", "Measured", "Interval"),
        tuple(rows),
        pd.DataFrame(long, columns=["setting", "quantity", "predicted", "measured", "interval"]),
        name=runner.NAME,
        missing=absent,
        made_of="measurements",
    )


def _number(value: float | None) -> str:
    if value is None or not np.isfinite(value):
        return "—"
    digits = 6 if 0.99 < value < 1 else 4  # a rate may be close to 1
    return minus(f"{value:.{digits}g}")
