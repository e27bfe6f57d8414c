"""Published numbers, as facts with their source (reference/sources.csv): the paper's own and its peers'."""

from importlib import resources

import pandas as pd

from offline_gntd.analysis.selection import Selection
from offline_gntd.analysis.table import tenths

CORL = ("BC", "TD3+BC", "CQL")
D3RLPY = ("BCQ", "TD3+BC", "CQL")
COLUMNS = ["source", "dataset", "version", "label", "metric", "mean", "std"]


def read(name: str) -> pd.DataFrame:
    with (resources.files("offline_gntd.analysis") / "reference" / name).open(encoding="utf-8") as file:
        return pd.read_csv(file)


def discrete() -> pd.DataFrame:
    """The paper's Table 1, one number a line."""
    table = read("paper_table1.csv").rename(columns={"seconds_to_threshold": "seconds"})
    table = table.melt(["dataset", "algorithm"], ["bellman_error", "seconds"], "metric", "mean").dropna()
    table = table.rename(columns={"algorithm": "label"})
    return table.assign(source="paper", version=None, std=float("nan"))[COLUMNS]


def locomotion() -> pd.DataFrame:
    """Scores on D4RL's splits (halfcheetah-medium …) by the version of the data.

    The paper does not name its version: its CQL, hopper and walker2d rows are v0's, its halfcheetah-medium
    row looks like v2's. So its numbers stand beside either.
    """
    paper = (
        read("paper_table2.csv").rename(columns={"algorithm": "label"}).assign(source="paper", version=None)
    )
    frames = [
        paper,
        _wide("corl_v2_last.csv", "CORL", {label: (label, f"{label}_sd") for label in CORL}),
        _wide("d3rlpy_v0.csv", "d3rlpy", {label: (f"{label}_final", f"{label}_sd") for label in D3RLPY}),
    ]
    return pd.concat([frame.assign(metric="score")[COLUMNS] for frame in frames], ignore_index=True)


def for_datasets(selection: Selection) -> pd.DataFrame:
    """All that is published for a selection's algorithms on its datasets, under the names these have here."""
    runs = selection.runs.drop_duplicates("dataset")
    here = discrete().merge(runs[["dataset"]], on="dataset")
    d4rl = runs[runs["dataset_d4rl_id"].notna()]
    if len(d4rl):
        split = d4rl["dataset_d4rl_id"].str.rpartition("-")
        own = pd.DataFrame({"own": d4rl["dataset"], "dataset": split[0], "own_version": split[2]})
        found = locomotion().merge(own, on="dataset")
        found = found[found["version"].isna() | (found["version"] == found["own_version"])]
        here = pd.concat([here, found.assign(dataset=found["own"])[COLUMNS]], ignore_index=True)
    return here[here["label"].isin(selection.labels.values())]


def scores(selection: Selection) -> pd.DataFrame:
    return for_datasets(selection).query("metric == 'score'")


def beside(selection: Selection) -> pd.DataFrame:
    """Published scores to stand beside ours: index dataset, a column per source and algorithm."""
    found = scores(selection)
    if found.empty:
        return pd.DataFrame()
    texts = [
        tenths(mean) if pd.isna(std) else f"{tenths(mean)} ± {tenths(std)}"
        for mean, std in zip(found["mean"], found["std"], strict=True)
    ]
    found = found.assign(column=found["source"] + " " + found["label"], text=texts)
    order = list(dict.fromkeys(found["column"]))
    return found.pivot(index="dataset", columns="column", values="text")[order].fillna("—")


def caption(selection: Selection, found: pd.DataFrame) -> str:
    """What a reader of published numbers beside ours should know."""
    shown = set(zip(found["source"], found["metric"].eq("score"), strict=True))
    words = [
        f"{line.source} ({line.protocol})"
        for line in read("sources.csv").itertuples()
        if (line.source, line.table == "locomotion") in shown
    ]
    runs = selection.runs.drop_duplicates("dataset")
    others = int((runs["dataset_d4rl_id"].notna() & (runs["dataset_origin"] != "d4rl")).sum())
    sentence = f"Published numbers: {'; '.join(words)}."
    if others:
        sentence += (
            f" They are for D4RL's own files; {others} of our datasets have such names but are not these."
        )
    return sentence


def inconsistencies() -> list[str]:
    """What does not fit in the paper's Table 2, by its own numbers and by CORL's."""
    rows = read("paper_table2.csv").groupby("algorithm")[["mean", "std"]].sum(min_count=12).round(1)
    notes = ["the ± of its totals is the sum of the rows' standard deviations, not a deviation of totals"]
    for line in read("paper_table2_totals.csv").itertuples():
        sums = rows.loc[line.algorithm]
        if line.mean != sums["mean"]:
            notes.append(
                f"{line.algorithm}'s total is printed as {line.mean}, its rows sum to {sums['mean']}"
            )
        if pd.notna(line.std) and line.std != sums["std"]:
            notes.append(f"{line.algorithm}'s ± is printed as {line.std}, its rows' sum to {sums['std']}")
    notes.append(
        "its halfcheetah-medium row looks like v2 data (BC 42.4 ± 0.2 is CORL's on v2), its hopper and "
        "walker2d rows like v0"
    )
    return [f"The paper's Table 2: {note}." for note in notes]


def _wide(name: str, source: str, columns: dict[str, tuple[str, str]]) -> pd.DataFrame:
    """One column per algorithm, turned into one line per dataset × algorithm."""
    table = read(name)
    split = table["dataset"].str.rpartition("-")
    return pd.concat(
        pd.DataFrame({"source": source, "dataset": split[0], "version": split[2], "label": label}).assign(
            mean=table[mean], std=table[std]
        )
        for label, (mean, std) in columns.items()
    )
