"""Normalised scores of a grid: datasets × algorithms, mean ± std over seeds of the last evaluation."""

import pandas as pd

from offline_gntd.analysis.selection import Selection
from offline_gntd.analysis.table import Cell, Table
from offline_gntd.runs.results import KEY


def table(selection: Selection) -> Table:
    long = summary(selection)
    experiment = selection.experiment
    cells = long.set_index(["dataset", "algorithm"])
    rows = []
    for dataset in experiment.dataset_names():
        best = long[long["dataset"] == dataset]["score"].max()
        row = [Cell(dataset)]
        for algorithm in experiment.algorithms:
            if (dataset, algorithm) in cells.index:
                line = cells.loc[(dataset, algorithm)]
                mark = f" †{line['diverged']}" if line["diverged"] else ""
                text = f"{line['score']:.1f} ± {line['score_std']:.1f}{mark}".replace("-", "−")
                row.append(Cell(text, bold=line["score"] == best))
            else:
                row.append(Cell("missing"))
        rows.append(tuple(row))
    labels = long.drop_duplicates("algorithm").set_index("algorithm")["label"]
    columns = ("dataset", *(labels.get(name, name) for name in experiment.algorithms))
    return Table(experiment.name, caption(selection), columns, tuple(rows), long, selection.missing)


def summary(selection: Selection) -> pd.DataFrame:
    last = selection.evaluations.sort_values("step").groupby(KEY, sort=False).tail(1)
    last = selection.runs[[*KEY, "label", "status"]].merge(last, on=KEY, how="left")
    last["diverged"] = last["status"] == "diverged"
    lines = last.groupby(["dataset", "algorithm", "label"], sort=False).agg(
        seeds=("seed", "size"),
        diverged=("diverged", "sum"),
        score=("score", "mean"),
        score_std=("score", "std"),
        final_return=("return", "mean"),
        final_return_std=("return", "std"),
        training_seconds=("training_seconds", "mean"),
    )
    return lines.reset_index()


def caption(selection: Selection) -> str:
    protocol, runs = selection.experiment.protocol, selection.runs
    environments = ", ".join(sorted(runs["env_id"].unique()))
    return (
        f"Normalised score (0 random, 100 expert) of the last evaluation in {environments}: "
        f"{protocol.steps:,} updates, {protocol.evaluate_episodes} episodes, mean ± std over "
        f"{selection.experiment.seeds} seeds (ddof 1). "
        "†: that many seeds diverged and count with their last finite value. "
        "Bold: best mean of the dataset." + "".join(f" {note}" for note in selection.notes)
    )
