"""Normalised scores of a grid: datasets × algorithms, mean ± std over seeds; published ones beside them."""

import pandas as pd

from offline_gntd.analysis import published
from offline_gntd.analysis.selection import Selection
from offline_gntd.analysis.table import Cell, Table
from offline_gntd.runs.results import KEY


def table(selection: Selection, final: int = 1) -> Table:
    """A run's score is the mean of its `final` last evaluations, or of as many as there are."""
    experiment = selection.experiment
    long = summary(selection, final)
    labels = long.drop_duplicates("algorithm").set_index("algorithm")["label"].to_dict()
    others = beside(selection)
    rows = [
        tuple(
            [Cell(dataset), *_ours(long, dataset, experiment.algorithms)]
            + [_published(others, dataset, column) for column in others.columns]
        )
        for dataset in experiment.dataset_names()
    ]
    totals = total_row(selection, final)
    if totals is not None:
        long = pd.concat([long, totals], ignore_index=True)
        rows.append(
            (Cell("total"), *_ours(long, "total", experiment.algorithms), *[Cell("")] * len(others.columns))
        )
    columns = ("dataset", *(labels.get(name, name) for name in experiment.algorithms), *others.columns)
    return Table(
        experiment.name, caption(selection, final, others), columns, tuple(rows), long, selection.missing
    )


def per_seed(selection: Selection, final: int) -> pd.DataFrame:
    """One line per run: its score and return over its last evaluations."""
    last = selection.evaluations.sort_values("step").groupby(KEY, sort=False).tail(final)
    means = last.groupby(KEY, sort=False).agg(
        score=("score", "mean"),
        final_return=("return", "mean"),
        evaluations=("step", "size"),
        training_seconds=("training_seconds", "max"),
    )
    lines = selection.runs[[*KEY, "label", "status", "dataset_origin", "dataset_version"]]
    lines = lines.merge(means.reset_index(), on=KEY, how="left")
    return lines.assign(diverged=lines["status"] == "diverged")


def summary(selection: Selection, final: int) -> pd.DataFrame:
    keys = ["dataset", "algorithm", "label", "dataset_origin", "dataset_version"]
    lines = per_seed(selection, final).groupby(keys, sort=False, dropna=False)
    return lines.agg(
        seeds=("seed", "size"),
        diverged=("diverged", "sum"),
        evaluations=("evaluations", "min"),
        score=("score", "mean"),
        score_std=("score", "std"),
        final_return=("final_return", "mean"),
        final_return_std=("final_return", "std"),
        training_seconds=("training_seconds", "mean"),
    ).reset_index()


def total_row(selection: Selection, final: int) -> pd.DataFrame | None:
    """Mean over seeds of per-seed totals, and their std; only of datasets of one origin and version."""
    runs = per_seed(selection, final)
    datasets = len(selection.experiment.datasets)
    if datasets < 2 or len(runs[["dataset_origin", "dataset_version"]].drop_duplicates()) > 1:
        return None
    totals = runs.groupby(["algorithm", "label", "seed"], sort=False).agg(
        score=("score", "sum"), count=("dataset", "size"), diverged=("diverged", "sum")
    )
    totals = totals[totals["count"] == datasets].reset_index()  # a seed that lacks a dataset has no total
    lines = totals.groupby(["algorithm", "label"], sort=False).agg(
        seeds=("seed", "size"),
        diverged=("diverged", "sum"),
        score=("score", "mean"),
        score_std=("score", "std"),
    )
    return lines.reset_index().assign(dataset="total") if len(lines) else None


def beside(selection: Selection) -> pd.DataFrame:
    """Published scores for the experiment's datasets: index dataset, a column per source and algorithm."""
    runs = selection.runs.drop_duplicates("dataset")
    runs = runs[runs["dataset_stands_for"].notna()]
    if runs.empty:
        return pd.DataFrame()
    split, version = zip(*(name.rsplit("-", 1) for name in runs["dataset_stands_for"]), strict=True)
    wanted = pd.DataFrame({"dataset": runs["dataset"], "split": split, "own_version": version})
    found = published.locomotion().merge(wanted, on="split")
    found = found[found["version"].isna() | (found["version"] == found["own_version"])]
    found = found[found["label"].isin({*selection.runs["label"], "BC", "TD3+BC", "GNTD3+BC"})]
    if found.empty:
        return pd.DataFrame()
    texts = [
        f"{mean:.1f}" if pd.isna(std) else f"{mean:.1f} ± {std:.1f}"
        for mean, std in zip(found["mean"], found["std"], strict=True)
    ]
    found = found.assign(column=found["source"] + " " + found["label"], text=texts)
    order = list(dict.fromkeys(found["column"]))
    return found.pivot(index="dataset", columns="column", values="text")[order]


def caption(selection: Selection, final: int, others: pd.DataFrame) -> str:
    protocol, runs = selection.experiment.protocol, selection.runs
    counts = per_seed(selection, final)["evaluations"]
    averaged = "the last evaluation" if counts.max() == 1 else f"the last {int(counts.max())} evaluations"
    origins = runs.drop_duplicates("dataset").groupby("dataset_origin")["dataset"].size()
    rows = ", ".join(f"{count:,}" for count in sorted(runs["dataset_rows"].unique()))
    parts = [
        f"Normalised score (0 random, 100 expert) in {', '.join(sorted(runs['env_id'].unique()))}:",
        f"{protocol.steps:,} updates, evaluated every {protocol.evaluate_every:,} with",
        f"{protocol.evaluate_episodes} episodes; a run's score is the mean of {averaged};",
        f"mean ± std over {selection.experiment.seeds} seeds (ddof 1).",
        f"Data: {', '.join(f'{count} {origin}' for origin, count in origins.items())}; {rows} transitions.",
    ]
    if runs["status"].eq("diverged").any():
        parts.append("†: that many seeds diverged and count with their last finite values.")
    for label, group in runs.groupby("label", sort=False):
        warm_up = group["config"].iloc[0].get("warm_up")
        if warm_up is not None:
            parts.append(f"{label}'s policy clones the data for its first {warm_up:,} updates.")
    parts.append("Bold: best mean of the dataset among ours.")
    if len(others.columns):
        parts.append(
            "The other columns are published numbers for D4RL's own files: the paper's (which does not give "
            "its version of the data, and quotes CQL), CORL's (v2, last) and d3rlpy's (v0, final)."
        )
    return " ".join([*parts, *selection.notes])


def _ours(long: pd.DataFrame, dataset: str, algorithms: tuple[str, ...]) -> list[Cell]:
    lines = long[long["dataset"] == dataset].set_index("algorithm")
    return [_score(lines, name) if name in lines.index else Cell("missing") for name in algorithms]


def _score(lines: pd.DataFrame, algorithm: str) -> Cell:
    line = lines.loc[algorithm]
    mark = f" †{line['diverged']}" if line["diverged"] else ""
    spread = "" if pd.isna(line["score_std"]) else f" ± {line['score_std']:.1f}"
    text = f"{line['score']:.1f}{spread}{mark}".replace("-", "−")
    return Cell(text, bold=line["score"] == lines["score"].max())


def _published(others: pd.DataFrame, dataset: str, column: str) -> Cell:
    value = others[column].get(dataset)
    return Cell(value if isinstance(value, str) else "—")
