"""Learning curves: a panel per dataset, the mean over seeds, its standard deviation or its range shaded."""

import pandas as pd
import seaborn
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from offline_gntd.analysis.bellman import THRESHOLDS, clock
from offline_gntd.analysis.panels import legend, logarithmic, panels, styles
from offline_gntd.analysis.selection import Selection

LOGARITHMIC = ("bellman_error", "kfac_condition", "kfac_damping")
WORDS = {
    "training_cpu_seconds": "CPU seconds of training",
    "training_seconds": "seconds of training",
    "bellman_error": "Bellman error",
    "kfac_condition": "worst condition number",
    "kfac_step_ratio": "‖d‖ / ‖g‖",
    "kfac_damping": "damping in force",
    "kfac_failures": "failed factorisations",
    "kfac_seconds_share": "share of training time",
}
DIAGNOSTICS = ("kfac_condition", "kfac_step_ratio", "kfac_seconds_share", "kfac_damping", "kfac_failures")


def by_updates(selection: Selection, columns: int) -> Figure | None:
    """The paper's Figures 1 and 2: each evaluation's return, or score, against batches or updates."""
    return _curves(selection, columns, "step", _performance(selection))


def by_seconds(selection: Selection, columns: int) -> Figure | None:
    return _curves(selection, columns, clock(selection.runs.iloc[0]), _performance(selection))


def bellman_error(selection: Selection, columns: int) -> Figure | None:
    return _curves(selection, columns, "step", "bellman_error")


def diagnostics(selection: Selection, columns: int) -> Figure | None:
    """K-FAC's condition, step ratio and share of time; its damping and failures where they ever move."""
    data = selection.evaluations
    there = [name for name in DIAGNOSTICS if name in data and data[name].notna().any()]
    moving = [name for name in there if data[name].nunique() > 1]
    if not moving:
        return None
    datasets = list(dict.fromkeys(selection.runs["dataset"]))
    wanted = [(dataset, name) for name in moving for dataset in datasets]
    drawn, axes = panels(len(wanted), columns)
    data = _labelled(selection)
    for axis, (dataset, name) in zip(axes, wanted, strict=True):
        _lines(axis, data[data["dataset"] == dataset].dropna(subset=name), "step", name, selection)
        axis.set(title=dataset)
    legend(drawn, axes, min(columns, len(wanted)))
    still = [f"{WORDS[name]} {data[name].max():g}" for name in there if name not in moving]
    if still:
        drawn.supxlabel(f"throughout: {', '.join(still)}", fontsize=8)
    return drawn


def _performance(selection: Selection) -> str:
    """Returns where actions are discrete or batches collected, as in the paper; elsewhere scores."""
    discrete = all(task.get("discrete") for task in selection.runs["task"])
    return "return" if discrete or selection.online else "score"


def _curves(selection: Selection, columns: int, x: str, y: str) -> Figure | None:
    if y not in selection.evaluations or selection.evaluations[y].isna().all():
        return None
    data = _labelled(selection)
    environments = selection.runs.drop_duplicates("dataset").set_index("dataset")["env_id"]
    drawn, axes = panels(len(environments), columns)
    for axis, dataset in zip(axes, environments.index, strict=True):
        _lines(axis, data[data["dataset"] == dataset].dropna(subset=y), x, y, selection)
        threshold = THRESHOLDS.get(environments[dataset])
        if y == "return" and threshold is not None:
            axis.axhline(threshold, color="0.4", linewidth=0.8, linestyle=":")
        axis.set(title=dataset)
    legend(drawn, axes, min(columns, len(environments)))
    return drawn


def _labelled(selection: Selection) -> pd.DataFrame:
    """Evaluations under the algorithms' labels; seconds are those of the mean seed, so that seeds align."""
    data = selection.evaluations.assign(label=selection.evaluations["algorithm"].map(selection.labels))
    for seconds in ("training_seconds", "training_cpu_seconds"):
        data[seconds] = data.groupby(["dataset", "algorithm", "step"])[seconds].transform("mean")
    return data


def _lines(axis: Axes, data: pd.DataFrame, x: str, y: str, selection: Selection) -> None:
    style = styles(list(selection.labels.values()))
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
        # a standard deviation would reach below zero where only powers of ten are shown
        errorbar=("pi", 100) if y in LOGARITHMIC else "sd",
        err_kws={"linewidth": 0},
        ax=axis,
    )
    axis.set(xlabel=(WORDS | {"step": selection.unit}).get(x, x), ylabel=WORDS.get(y, y))
    if y in LOGARITHMIC:
        logarithmic(axis)
