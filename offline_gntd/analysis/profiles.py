"""Figures over whole runs: performance profiles, and scores against what they cost."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from offline_gntd.analysis import aggregates, statistics, values
from offline_gntd.analysis.bellman import clock
from offline_gntd.analysis.curves import WORDS
from offline_gntd.analysis.panels import legend, panels, styles
from offline_gntd.analysis.selection import Selection
from offline_gntd.analysis.values import Measure
from offline_gntd.experiments.results import KEY

THRESHOLDS = 201


def performance(selection: Selection, columns: int, measure: Measure) -> Figure | None:
    """The share of runs on all datasets that score more than τ, with pointwise intervals."""
    if measure.metric != "score":  # returns of two tasks are not to be put on one axis
        return None
    found, rng = aggregates.matrices(selection, measure), np.random.default_rng(statistics.SEED)
    pooled = np.concatenate([scores.ravel() for scores in found.values()])
    thresholds = np.linspace(min(pooled.min(), 0) - 1, pooled.max() + 1, THRESHOLDS)
    drawn, (axis,) = panels(1, columns)
    style = styles(list(selection.labels.values()))
    for label, scores in found.items():
        colour, dash, _ = style[label]
        share = statistics.performance_profile(scores, thresholds)
        band = statistics.profile_band(scores, thresholds, rng)
        axis.plot(thresholds, share, color=colour, linestyle=(0, dash) if dash else "-", label=label)
        axis.fill_between(thresholds, *band, color=colour, alpha=0.15, linewidth=0)
    axis.set(xlabel="score τ", ylabel="share of runs with score > τ", ylim=(-0.02, 1.02))
    legend(drawn, [axis], 1)
    return drawn


def efficiency(selection: Selection, columns: int, measure: Measure) -> Figure:
    """Each run's score against its seconds of training: steep from the origin is much for little."""
    seconds = clock(selection.runs.iloc[0])
    spent = selection.evaluations.groupby(KEY)[seconds].max().rename("seconds").reset_index()
    lines = values.read(selection, measure).merge(spent, on=KEY)
    datasets = list(dict.fromkeys(lines["dataset"]))
    style = styles(list(selection.labels.values()))
    drawn, axes = panels(len(datasets), columns)
    for axis, dataset in zip(axes, datasets, strict=True):
        for label, (colour, _, marker) in style.items():
            own = lines[(lines["dataset"] == dataset) & (lines["label"] == label)]
            look: dict[str, Any] = {"color": colour, "marker": marker}
            axis.scatter(own["seconds"], own["value"], s=9, alpha=0.5, linewidth=0, **look)
            axis.plot(
                own["seconds"].mean(),
                own["value"].mean(),
                linestyle="none",
                markersize=7,
                label=label,
                **look,
            )
        longest = lines[lines["dataset"] == dataset]["seconds"].max()
        axis.set(title=dataset, xlabel=WORDS[seconds], ylabel=measure.metric, xlim=(0, 1.05 * longest))
    legend(drawn, axes, min(columns, len(datasets)))
    return drawn
