"""Learning curves: one panel per dataset, mean over seeds with the standard deviation shaded."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import seaborn
from matplotlib.figure import Figure

from offline_gntd.analysis.bellman import THRESHOLDS
from offline_gntd.analysis.selection import Selection

PANEL = (3.4, 2.5)  # inches: two panels fill a text column


def figure(selection: Selection) -> Figure:
    """The paper's Figure 2 for discrete sets: mean return of each evaluation against updates."""
    experiment = selection.experiment
    datasets = experiment.dataset_names()
    labels = selection.runs.drop_duplicates("algorithm").set_index("algorithm")["label"]
    data = selection.evaluations.assign(algorithm=selection.evaluations["algorithm"].map(labels))
    order = [labels[name] for name in experiment.algorithms if name in labels]
    environments = selection.runs.drop_duplicates("dataset").set_index("dataset")["env_id"]
    columns = min(2, len(datasets))
    rows = -(-len(datasets) // columns)
    seaborn.set_theme(style="whitegrid", context="paper", palette="colorblind")
    size = (PANEL[0] * columns, PANEL[1] * rows)
    drawn, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis, dataset in zip(axes.flat, datasets, strict=False):
        panel = data[data["dataset"] == dataset]
        seaborn.lineplot(
            panel,
            x="step",
            y="return",
            hue="algorithm",
            style="algorithm",
            hue_order=order,
            style_order=order,
            errorbar="sd",
            err_kws={"linewidth": 0},
            ax=axis,
            legend=axis is axes.flat[0],
        )
        threshold = THRESHOLDS.get(environments.get(dataset))
        if threshold is not None:
            axis.axhline(threshold, color="0.4", linewidth=0.8, linestyle=":")
        axis.set(title=dataset, xlabel="updates", ylabel="return")
    for axis in list(axes.flat)[len(datasets) :]:
        axis.set_axis_off()
    handles, names = axes.flat[0].get_legend_handles_labels()
    axes.flat[0].get_legend().remove()
    drawn.legend(
        handles, names, loc="outside upper center", ncols=min(len(names), 2 * columns), frameon=False
    )
    return drawn
