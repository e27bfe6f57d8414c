"""The figures of the experiment `theory`: the data behind the exponents of its table."""

from collections.abc import Callable, Iterable
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
    Sweep,
    Trials,
    complexity,
    directions,
    rate,
    short,
    sweeps,
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
    swept = sweeps()
    return {
        "iterations": _panels(
            measured, columns, _iterations, xlabel="iterations, exact expectations", yscale="log"
        ),
        **{kind: _sweep(measured, columns, swept[kind]) for kind in ("samples", "steps", "damping", "width")},
        "complexity": _panels(
            measured,
            columns,
            _complexity,
            xlabel=f"ε = {ERROR}",
            ylabel="samples needed",
            xscale="log",
            yscale="log",
        ),
        "kfac": _directions(measured, columns),
    }


def _panels(
    measured: pd.DataFrame,
    columns: int,
    plot: Callable[[Axes, Trials], None],
    settings: Iterable[str] = tuple(THEOREMS),
    **labels,
) -> Figure:
    """A panel for each setting and problem; `plot` draws their trials into it."""
    chosen = [(setting, problem) for setting in settings for problem in PROBLEMS]
    figure, axes = panels(len(chosen), columns)
    for axis, (setting, problem) in zip(axes, chosen, strict=True):
        axis.set(title=f"{THEOREMS[setting].name}, {problem}", ylabel=ERROR)
        plot(axis, Trials(measured, setting, problem))
        axis.set(**labels)
    legend(figure, axes, min(columns, len(axes)))
    return figure


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


def _iterations(axis: Axes, trials: Trials) -> None:
    for method, label in METHODS.items():
        (path,) = trials.paths(**short(method=method)).values()
        _line(axis, path.index.to_numpy(), path.to_numpy(), label)
        if method == "gntd":
            k, start = path.index.to_numpy(), path.iloc[0].mean()
            _theorem(axis, k, start * rate(USUAL.discount, STEP) ** (2 * k))
    axis.set_ylim(bottom=max(SMALLEST, trials.where("error", **short())["value"].min() / 3))


def _sweep(measured: pd.DataFrame, columns: int, sweep: Sweep) -> Figure:
    def plot(axis: Axes, trials: Trials) -> None:
        lowest = np.inf
        for method, settings in sweep.trials.items():
            x, y = trials.sweep(sweep.by, **settings)
            _line(axis, x, y, METHODS[method])
            lowest = min(lowest, y.min())
            if method == "gntd":
                _predicted(axis, x, getattr(THEOREMS[trials.setting], sweep.by), y[-1].mean())
        axis.set_ylim(bottom=lowest / 3)  # a bound may be far below the measurements

    return _panels(measured, columns, plot, sweep.settings, xlabel=sweep.axis, xscale="log", yscale="log")


def _complexity(axis: Axes, trials: Trials) -> None:
    for method, label in METHODS.items():
        levels, needed, _ = complexity(trials, method)
        _line(axis, levels, needed[:, None], label)
        if method == "gntd":
            _predicted(axis, levels, THEOREMS[trials.setting].complexity, needed[-1])
    axis.invert_xaxis()


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
        axis.set(xlabel="width", xscale="log")
        axis.set_xticks(list(at), labels=map(str, at))
        axis.minorticks_off()
    legend(figure, axes, min(columns, len(axes)))
    return figure
