"""Figures: learning curves, performance profiles, results against time, K-FAC diagnostics.

A figure has one panel per dataset; lines are means over seeds; colours suit colour-blind readers.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from offline_gntd.analysis import statistics
from offline_gntd.analysis.scores import matrices
from offline_gntd.analysis.selection import Measure, Selection, run_values
from offline_gntd.analysis.td_error import ERRORS, THRESHOLDS
from offline_gntd.experiments.results import KEY

WIDTH, HEIGHT = 3.4, 2.4  # inches of a panel; two fill the width of a page
LEGEND_LINE = 0.18  # inches
ROUNDED = 20  # below this ratio of limits, a logarithmic axis has ticks at 1, 2, 5
LOGARITHMIC = (*ERRORS, "kfac_condition", "kfac_damping")
AXIS_LABELS = {
    **ERRORS,
    "kfac_condition": "largest condition number",
    "kfac_step_ratio": "‖d‖ / ‖g‖",
    "kfac_damping": "damping",
    "kfac_failures": "failed factorisations",
    "kfac_seconds_share": "share of training time",
}
DIAGNOSTICS = ("kfac_condition", "kfac_step_ratio", "kfac_seconds_share", "kfac_damping", "kfac_failures")
PROFILE_POINTS = 201


def by_updates(selection: Selection, measure: Measure, columns: int) -> Figure | None:
    """The paper's Figures 1 and 2: return or score of each evaluation against updates."""
    return _curves(selection, columns, "step", _performance(selection))


def by_seconds(selection: Selection, measure: Measure, columns: int) -> Figure | None:
    return _curves(selection, columns, "seconds", _performance(selection))


def td_error(selection: Selection, measure: Measure, columns: int) -> Figure | None:
    """As the authors logged it, or the squared TD error if the runs do not have it."""
    metrics = ("td_error_abs_target", "bellman_error")
    data = selection.evaluations
    found = [name for name in metrics if name in data and data[name].notna().any()]
    return _curves(selection, columns, "step", found[0]) if found else None


def kfac_diagnostics(selection: Selection, measure: Measure, columns: int) -> Figure | None:
    """Condition, step ratio and share of time; damping and failures only if they change."""
    data = selection.evaluations
    present = [name for name in DIAGNOSTICS if name in data and data[name].notna().any()]
    changing = [name for name in present if data[name].nunique() > 1]
    if not changing:
        return None
    datasets = list(dict.fromkeys(selection.runs["dataset"]))
    wanted = [(dataset, name) for name in changing for dataset in datasets]
    figure, axes = panels(len(wanted), columns)
    data, names = _labelled(selection), selection.dataset_labels
    for axis, (dataset, name) in zip(axes, wanted, strict=True):
        _lines(axis, data[data["dataset"] == dataset].dropna(subset=name), "step", name, selection)
        axis.set(title=names[dataset])
    legend(figure, axes, min(columns, len(wanted)))
    constant = [f"{AXIS_LABELS[name]} {data[name].max():g}" for name in present if name not in changing]
    if constant:
        figure.supxlabel(f"constant: {', '.join(constant)}", fontsize=8)
    return figure


def profiles(selection: Selection, measure: Measure, columns: int) -> Figure | None:
    """The share of runs on all datasets with a score above τ, with pointwise intervals."""
    if measure.metric != "score":  # returns of different tasks have no common axis
        return None
    found = matrices(selection, run_values(selection, measure))
    rng = np.random.default_rng(statistics.SEED)
    pooled = np.concatenate([scores.ravel() for scores in found.values()])
    thresholds = np.linspace(min(pooled.min(), 0) - 1, pooled.max() + 1, PROFILE_POINTS)
    figure, (axis,) = panels(1, columns)
    style = _styles(selection)
    for algorithm, scores in found.items():
        label = selection.labels[algorithm]
        colour, dash, _ = style[label]
        share = statistics.performance_profile(scores, thresholds)
        band = statistics.profile_band(scores, thresholds, rng)
        axis.plot(thresholds, share, color=colour, linestyle=(0, dash) if dash else "-", label=label)
        axis.fill_between(thresholds, *band, color=colour, alpha=0.15, linewidth=0)
    axis.set(xlabel="score τ", ylabel="share of runs with score > τ", ylim=(-0.02, 1.02))
    legend(figure, [axis], 1)
    return figure


def efficiency(selection: Selection, measure: Measure, columns: int) -> Figure:
    """The result of each run against its seconds of training."""
    spent = selection.evaluations.groupby(KEY)["seconds"].max().reset_index()
    lines = run_values(selection, measure).merge(spent, on=KEY)
    datasets, names = list(dict.fromkeys(lines["dataset"])), selection.dataset_labels
    style = _styles(selection)
    figure, axes = panels(len(datasets), columns)
    for axis, dataset in zip(axes, datasets, strict=True):
        for label, (colour, _, marker) in style.items():
            runs = lines[(lines["dataset"] == dataset) & (lines["label"] == label)]
            look: dict[str, Any] = {"color": colour, "marker": marker}
            axis.scatter(runs["seconds"], runs["value"], s=9, alpha=0.5, linewidth=0, **look)
            means = runs["seconds"].mean(), runs["value"].mean()
            axis.plot(*means, linestyle="none", markersize=7, label=label, **look)
        longest = lines[lines["dataset"] == dataset]["seconds"].max()
        axis.set(title=names[dataset], ylabel=measure.metric, xlim=(0, 1.05 * longest))
        axis.set_xlabel(f"{selection.clock} of training")
    legend(figure, axes, min(columns, len(datasets)))
    return figure


def _performance(selection: Selection) -> str:
    """Returns for discrete actions and online training, as in the paper; otherwise scores."""
    discrete = all(task.get("discrete") for task in selection.runs["task"])
    return "return" if discrete or selection.online else "score"


def _curves(selection: Selection, columns: int, x: str, y: str) -> Figure | None:
    if y not in selection.evaluations or selection.evaluations[y].isna().all():
        return None
    data, names = _labelled(selection), selection.dataset_labels
    environments = selection.datasets["env_id"]
    figure, axes = panels(len(environments), columns)
    for axis, dataset in zip(axes, environments.index, strict=True):
        _lines(axis, data[data["dataset"] == dataset].dropna(subset=y), x, y, selection)
        threshold = THRESHOLDS.get(environments[dataset])
        if y == "return" and threshold is not None:
            axis.axhline(threshold, color="0.4", linewidth=0.8, linestyle=":")
        axis.set(title=names[dataset])
    legend(figure, axes, min(columns, len(environments)))
    return figure


def _labelled(selection: Selection) -> pd.DataFrame:
    """Evaluations with labels; seconds are averaged over seeds, so that the curves of seeds align."""
    data = selection.evaluations.assign(label=selection.evaluations["algorithm"].map(selection.labels))
    data["seconds"] = data.groupby(["dataset", "algorithm", "step"])["seconds"].transform("mean")
    return data


def _lines(axis: Axes, data: pd.DataFrame, x: str, y: str, selection: Selection) -> None:
    style = _styles(selection)
    order = [label for label in style if label in set(data["label"])]
    seaborn.lineplot(
        data,
        x=x,
        y=y,
        hue="label",
        style="label",
        hue_order=order,
        style_order=order,
        palette={label: style[label].colour for label in order},
        dashes={label: style[label].dash for label in order},
        # mean − std may be negative, which a logarithmic axis cannot show
        errorbar=("pi", 100) if y in LOGARITHMIC else "sd",
        err_kws={"linewidth": 0},
        ax=axis,
    )
    xlabel = {"step": selection.unit, "seconds": f"{selection.clock} of training"}[x]
    axis.set(xlabel=xlabel, ylabel=AXIS_LABELS.get(y, y))
    if y in LOGARITHMIC:
        logarithmic(axis)


class Style(NamedTuple):
    """Algorithms differ in dash and marker, not only in colour."""

    colour: tuple[float, float, float]
    dash: tuple[float, ...]
    marker: str


def _styles(selection: Selection) -> dict[str, Style]:
    """The style of each algorithm with runs, by label."""
    ran = set(selection.runs["algorithm"])
    return styles([label for name, label in selection.labels.items() if name in ran])


def styles(labels: Sequence[str]) -> dict[str, Style]:
    colours = seaborn.color_palette("colorblind", len(labels))
    dashes = ((), (4, 1.5), (1, 1), (3, 1.25, 1.5, 1.25), (5, 1, 1, 1, 1, 1), (6, 3))
    markers = "osD^vPX*<>"
    return {
        label: Style(colours[i], dashes[i % len(dashes)], markers[i % len(markers)])
        for i, label in enumerate(labels)
    }


def theme() -> None:
    seaborn.set_theme(
        style="whitegrid",
        context="paper",
        palette="colorblind",
        rc={
            "font.size": 8,
            "axes.titlesize": 8,
            "axes.labelsize": 8,
            "xtick.labelsize": 7,
            "ytick.labelsize": 7,
            "legend.fontsize": 8,
            "lines.linewidth": 1.4,
            "grid.linewidth": 0.5,
            "axes.edgecolor": "0.4",
            "axes.linewidth": 0.8,
            "pdf.fonttype": 42,  # text stays text
        },
    )


def panels(count: int, columns: int) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels in at most `columns` columns."""
    theme()
    columns = min(columns, count)
    rows = -(-count // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(WIDTH * columns, HEIGHT * rows + 0.4), squeeze=False, layout="constrained"
    )
    for axis in axes.flat:
        axis.xaxis.set_major_locator(MaxNLocator(5))
    for axis in axes.flat[count:]:
        axis.set_axis_off()
    return figure, list(axes.flat[:count])


def legend(figure: Figure, axes: Sequence[Axes], columns: int) -> None:
    """One legend for all panels, above them."""
    handles: dict[str, Artist] = {}
    for axis in axes:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
        if panel_legend := axis.get_legend():
            panel_legend.remove()
    inches = 0.065 * max(map(len, handles), default=1) + 0.45  # width of an entry
    across = max(1, min(len(handles), int(columns * WIDTH / inches)))
    lines = -(-len(handles) // across)
    figure.set_figheight(figure.get_figheight() + LEGEND_LINE * (lines - 1))  # panels keep their height
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=across, frameon=False)


def logarithmic(axis: Axes) -> None:
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    if high / low < ROUNDED:
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(lambda value, position: f"{value:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())
