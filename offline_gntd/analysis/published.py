"""Published numbers (reference/sources.csv): the paper's and those of other libraries."""

from importlib import resources

import pandas as pd

from offline_gntd.analysis.selection import REBUILT, Selection, source_of
from offline_gntd.analysis.table import Cell, Row, tenths

CORL = ("BC", "TD3+BC", "CQL")
D3RLPY = ("BCQ", "TD3+BC", "CQL")
COLUMNS = ["source", "dataset", "version", "label", "metric", "mean", "std"]
SCRIPT = " (script)"  # ends the label of a preset with the values of the authors' run script


def read(name: str) -> pd.DataFrame:
    with (resources.files("offline_gntd.analysis") / "reference" / name).open(encoding="utf-8") as file:
        return pd.read_csv(file)


def discrete() -> pd.DataFrame:
    """The paper's Table 1, one number per line. Its Bellman error is a mean absolute TD error."""
    names = {"seconds_to_threshold": "seconds", "bellman_error": "td_error_abs_target", "algorithm": "label"}
    table = read("paper_table1.csv").rename(columns=names)
    table = table.melt(["dataset", "label"], ["td_error_abs_target", "seconds"], "metric", "mean").dropna()
    return table.assign(source="paper", version=None, std=float("nan"))[COLUMNS]


def locomotion() -> pd.DataFrame:
    """Scores on D4RL's splits (halfcheetah-medium …) by version of the data.

    The paper does not name its version: its CQL, hopper and walker2d rows fit v0, its halfcheetah-medium row
    fits v2. Its numbers have version None and are shown with any version.
    """
    paper = read("paper_table2.csv").rename(columns={"algorithm": "label"})
    frames = [
        paper.assign(source="paper", version=None),
        _wide("corl_v2_last.csv", "CORL", {label: (label, f"{label}_sd") for label in CORL}),
        _wide("d3rlpy_v0.csv", "d3rlpy", {label: (f"{label}_final", f"{label}_sd") for label in D3RLPY}),
    ]
    return pd.concat([frame.assign(metric="score")[COLUMNS] for frame in frames], ignore_index=True)


def _wide(name: str, source: str, columns: dict[str, tuple[str, str]]) -> pd.DataFrame:
    """A file with one column per algorithm as one line per dataset and algorithm."""
    table = read(name)
    split = table["dataset"].str.rpartition("-")
    return pd.concat(
        pd.DataFrame({"source": source, "dataset": split[0], "version": split[2], "label": label}).assign(
            mean=table[mean], std=table[std]
        )
        for label, (mean, std) in columns.items()
    )


def for_datasets(selection: Selection) -> pd.DataFrame:
    """The published numbers for a selection's datasets and algorithms, with our names of the datasets.

    A rebuilt medium-replay set has none: D4RL's is one training run's buffer and cannot be rebuilt.
    """
    runs = selection.datasets.reset_index(drop=True)
    ours = [(label.removesuffix(SCRIPT), label) for label in selection.labels.values()]
    labels = pd.DataFrame(ours, columns=["label", "our_label"])
    found = discrete().merge(runs[["dataset"]], on="dataset")
    d4rl = runs[[_has_published_scores(run) for run in runs.to_dict("records")]]
    if len(d4rl):
        split = d4rl["dataset_d4rl_id"].str.rpartition("-")
        names = pd.DataFrame({"ours": d4rl["dataset"], "dataset": split[0], "our_version": split[2]})
        scores = locomotion().merge(names, on="dataset")
        scores = scores[scores["version"].isna() | (scores["version"] == scores["our_version"])]
        found = pd.concat([found, scores.assign(dataset=scores["ours"])[COLUMNS]], ignore_index=True)
    found = found.merge(labels, on="label")
    return found.assign(label=found["our_label"])[COLUMNS]


def _has_published_scores(run: dict) -> bool:
    name = run["dataset_d4rl_id"]
    return isinstance(name, str) and not ("medium-replay" in name and source_of(run) == REBUILT)


def score_block(selection: Selection) -> tuple[Row, ...]:
    """Published scores as rows below ours: one per dataset and source, a column per algorithm."""
    found = for_datasets(selection).query("metric == 'score'")
    rows, names = [], selection.datasets["dataset_d4rl_id"]
    order = {name: i for i, name in enumerate(names.index)}
    groups = {key: group for key, group in found.groupby(["source", "dataset"], sort=False)}
    sources = list(dict.fromkeys(found["source"]))
    for source, dataset in sorted(groups, key=lambda key: (sources.index(key[0]), order[key[1]])):
        group = groups[source, dataset]
        version = group["version"].iloc[0]
        texts = {
            line.label: tenths(line.mean) + ("" if pd.isna(line.std) else f" ± {tenths(line.std)}")
            for line in group.itertuples()
        }
        name = names[dataset].rpartition("-")[0] + (f"-{version}" if version else "")
        cells = [Cell(texts.get(label, "—")) for label in selection.labels.values()]
        rows.append((Cell(f"{source}: {name}"), *cells))
    return tuple(rows)


def inconsistencies() -> str:
    """A sentence about the entries of the paper's Table 2 that contradict each other."""
    rows = read("paper_table2.csv").groupby("algorithm")[["mean", "std"]].sum(min_count=12).round(1)
    notes = ["the ± of its totals is the sum of the rows' standard deviations"]
    for line in read("paper_table2_totals.csv").itertuples():
        sums = rows.loc[line.algorithm]
        if line.mean != sums["mean"]:
            notes.append(
                f"{line.algorithm}'s total is printed as {line.mean}, its rows sum to {sums['mean']}"
            )
        if pd.notna(line.std) and line.std != sums["std"]:
            notes.append(f"{line.algorithm}'s ± is printed as {line.std}, its rows' sum is {sums['std']}")
    notes.append(
        "its halfcheetah-medium row fits v2 data (BC 42.4 ± 0.2 is CORL's), hopper and walker2d fit v0"
    )
    return f"The paper's Table 2: {'; '.join(notes)}."
