"""The figures of the experiment `theory`: the data behind the exponents of its table."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from offline_gntd.analysis.figures import legend, panels, styles
from offline_gntd.errors import UserError
from offline_gntd.theory import runner
from offline_gntd.theory.measurements import STEP
from offline_gntd.theory.problems import PROBLEMS
from offline_gntd.theory.tables import (
    METHODS,
    THEOREMS,
    USUAL,
    Trials,
    complexity,
    directions,
    long,
    rate,
    short,
)

ERROR = r"$\|Q - Q^\pi\|^2_\mu$"
SMALLEST = 1e-20  # error that is shown; below it is rounding
STYLES = styles([*METHODS.values(), "theorem", "exact", "K-FAC", "gradient"])


def draw(columns: int) -> dict[str, Figure]:
    measured, missing = runner.read()
    if missing:
        raise UserError(
            f"{len(missing)} measurements of {runner.NAME} are missing; make them with: "
            f"offline-gntd run {runner.NAME}"
        )
    kinds = {
        "iterations": _iterations,
        "samples": _floors_by_samples,
        "steps": _floors_by_step,
        "damping": _errors_by_damping,
        "width": _errors_by_width,
        "complexity": _complexity,
        "kfac": _directions,
    }
    return {kind: make(measured, columns) for kind, make in kinds.items()}


def _each(measured: pd.DataFrame, columns: int, settings=tuple(THEOREMS)) -> tuple[Figure, list]:
    """A panel for each setting and problem, with its trials."""
    chosen = [(setting, problem) for setting in settings for problem in PROBLEMS]
    figure, axes = panels(len(chosen), columns)
    every = []
    for axis, (setting, problem) in zip(axes, chosen, strict=True):
        axis.set(title=f"{THEOREMS[setting].name}, {problem}", ylabel=ERROR)
        every.append((axis, Trials(measured, setting, problem)))
    return figure, every


def _line(axis: Axes, x: np.ndarray, y: np.ndarray, label: str) -> None:
    """The mean over seeds of y [points, seeds], with their range shaded."""
    style = STYLES[label]
    dashes: dict[str, Any] = {"dashes": style.dash} if style.dash else {}
    axis.plot(x, y.mean(1), color=style.colour, marker=style.marker, markersize=3, label=label, **dashes)
    axis.fill_between(x, y.min(1), y.max(1), color=style.colour, alpha=0.2, linewidth=0)


def _predicted(axis: Axes, x: np.ndarray, power: float | None, through: float) -> None:
    """The predicted power of x, drawn through the last point."""
    if power is not None:
        _theorem(axis, x, through * (x / x[-1]) ** power)


def _theorem(axis: Axes, x: np.ndarray, y: np.ndarray) -> None:
    axis.plot(x, y, color="0.3", linestyle=":", label="theorem")


def _finish(figure: Figure, axes: list[Axes], columns: int, **labels) -> Figure:
    for axis in axes:
        axis.set(**labels)
    legend(figure, axes, min(columns, len(axes)))
    return figure


def _iterations(measured: pd.DataFrame, columns: int) -> Figure:
    figure, every = _each(measured, columns)
    for axis, trials in every:
        for method, label in METHODS.items():
            (path,) = trials.paths(**short(method=method)).values()
            _line(axis, path.index.to_numpy(), path.to_numpy(), label)
            if method == "gntd":
                k, start = path.index.to_numpy(), path.iloc[0].mean()
                _theorem(axis, k, start * rate(USUAL.discount, STEP) ** (2 * k))
        axis.set_ylim(bottom=max(SMALLEST, trials.where("error", **short())["value"].min() / 3))
    axes = [axis for axis, _ in every]
    return _finish(figure, axes, columns, xlabel="iterations, exact expectations", yscale="log")


def _sweeps(
    measured: pd.DataFrame, columns: int, swept: str, xlabel: str, select, settings=tuple(THEOREMS)
) -> Figure:
    """The sweep of a setting, for each method for which `select` gives trials."""
    figure, every = _each(measured, columns, settings)
    for axis, trials in every:
        lowest = np.inf
        for method, label in METHODS.items():
            if (chosen := select(method)) is None:
                continue
            x, y = trials.sweep(swept, **chosen)
            _line(axis, x, y, label)
            lowest = min(lowest, y.min())
            if method == "gntd":
                _predicted(axis, x, getattr(THEOREMS[trials.setting], swept), y[-1].mean())
        axis.set_ylim(bottom=lowest / 3)  # a bound may be far below the measurements
    axes = [axis for axis, _ in every]
    return _finish(figure, axes, columns, xlabel=xlabel, xscale="log", yscale="log")


def _floors_by_samples(measured: pd.DataFrame, columns: int) -> Figure:
    label = f"N, tuples per iteration (β = {USUAL.step})"
    return _sweeps(measured, columns, "samples", label, lambda method: long(method, step=USUAL.step))


def _floors_by_step(measured: pd.DataFrame, columns: int) -> Figure:
    return _sweeps(measured, columns, "step", "β (N = 1024)", lambda method: long(method, samples=1024))


def _errors_by_damping(measured: pd.DataFrame, columns: int) -> Figure:
    def select(method: str) -> dict | None:
        return short("damping", samples=1024) if method == "gntd" else None

    return _sweeps(measured, columns, "damping", f"ω (N = 1024, K = {runner.SHORT})", select)


def _errors_by_width(measured: pd.DataFrame, columns: int) -> Figure:
    def select(method: str) -> dict | None:
        return short("width") if method == "gntd" else None

    label = f"m (exact expectations, K = {runner.SHORT})"
    return _sweeps(measured, columns, "width", label, select, ("relu",))


def _complexity(measured: pd.DataFrame, columns: int) -> Figure:
    figure, every = _each(measured, columns)
    for axis, trials in every:
        for method, label in METHODS.items():
            levels, needed, _ = complexity(trials, method)
            _line(axis, levels, needed[:, None], label)
            if method == "gntd":
                _predicted(axis, levels, THEOREMS[trials.setting].complexity, needed[-1])
        axis.set(ylabel="samples needed")
        axis.invert_xaxis()
    axes = [axis for axis, _ in every]
    return _finish(figure, axes, columns, xlabel=f"ε = {ERROR}", xscale="log", yscale="log")


def _directions(measured: pd.DataFrame, columns: int) -> Figure:
    """Angle and reach at the paper's damping by width; two panels per depth."""
    depths = sorted({depth for _, depth, _ in directions(measured, "kfac_angle")})
    figure, axes = panels(2 * len(depths), columns)
    names = {"exact": "exact", "kfac": "K-FAC", "gradient": "gradient"}
    kinds = [("angle", "angle to exact, degrees"), ("reach", "share of residual removed")]
    chosen = [(depth, *kind) for depth in depths for kind in kinds]
    for axis, (depth, kind, words) in zip(axes, chosen, strict=True):
        for name, label in names.items():
            if (name, kind) == ("exact", "angle"):
                continue
            found = directions(measured, f"{name}_{kind}")
            at = {width: y for (damping, d, width), y in found.items() if (damping, d) == (0.25, depth)}
            _line(axis, np.array(list(at)), np.stack(list(at.values())), label)
        axis.set(title=f"{depth} hidden layer{'s' * (depth > 1)}, ω = 0.25", ylabel=words)
    figure = _finish(figure, axes, columns, xlabel="width", xscale="log")
    for axis in axes:
        axis.set_xticks(list(at), labels=map(str, at))
        axis.minorticks_off()
    return figure
