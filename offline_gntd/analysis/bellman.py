"""The paper's Table 1: Bellman error after training and seconds to a return, ours beside the paper's."""

import math
from collections.abc import Hashable

import pandas as pd

from offline_gntd.analysis import captions, published, significance
from offline_gntd.analysis.selection import Selection
from offline_gntd.analysis.table import Cell, Row, Table, minus, number, result

THRESHOLDS = {"CartPole-v1": 400.0, "Acrobot-v1": -100.0}  # returns; the paper's −400 is a slip of the pen


def table(selection: Selection) -> Table:
    per_seed = seeds(selection)
    long = summary(selection, per_seed)
    rows = []
    for dataset, group in long.groupby("dataset", sort=False):
        best = _best(group, per_seed[per_seed["dataset"] == dataset])
        rows += [_row(line, best, selection.experiment.seeds) for line in group.to_dict("records")]
    return Table(
        selection.experiment.name,
        caption(selection),
        (
            "dataset",
            "algorithm",
            "Bellman error",
            "paper",
            "seconds to return",
            "seeds",
            "paper",
            "final return",
        ),
        tuple(rows),
        long,
        selection.missing,
    )


def summary(selection: Selection, per_seed: pd.DataFrame) -> pd.DataFrame:
    """One line per dataset × algorithm of the experiment; spreads are over seeds, with ddof 1."""
    lines = per_seed.groupby(["dataset", "algorithm"], sort=False).agg(
        seeds=("seed", "size"),
        diverged=("diverged", "sum"),
        bellman_error=("bellman_error", "mean"),
        bellman_error_std=("bellman_error", "std"),
        threshold=("threshold", "first"),
        reached=("seconds", "count"),
        seconds=("seconds", "mean"),
        seconds_std=("seconds", "std"),
        updates=("updates", "mean"),
        final_return=("final_return", "mean"),
        final_return_std=("final_return", "std"),
    )
    experiment = selection.experiment
    grid = pd.MultiIndex.from_product(
        [experiment.dataset_names(), experiment.algorithms], names=lines.index.names
    )
    counts = {"seeds": 0, "diverged": 0, "reached": 0}
    lines = lines.reindex(grid).fillna(counts).astype(dict.fromkeys(counts, int)).reset_index()
    lines.insert(2, "label", lines["algorithm"].map(selection.labels))
    paper = published.discrete().pivot(index=["dataset", "label"], columns="metric", values="mean")
    return lines.merge(paper.add_prefix("paper_").reset_index(), on=["dataset", "label"], how="left")


def seeds(selection: Selection) -> pd.DataFrame:
    """One line per run: its last finite Bellman error and return, and when it first reached the threshold."""
    evaluations = selection.evaluations.sort_values("step")
    lines = []
    for run in selection.runs.to_dict("records"):
        own = evaluations[
            (evaluations["dataset"] == run["dataset"])
            & (evaluations["algorithm"] == run["algorithm"])
            & (evaluations["seed"] == run["seed"])
        ]
        threshold = THRESHOLDS.get(run["env_id"], math.nan)
        reached = own[own["return"] >= threshold]
        lines.append(
            {key: run[key] for key in ("dataset", "algorithm", "label", "seed")}
            | {
                "diverged": run["status"] == "diverged",
                "bellman_error": own["bellman_error"].iloc[-1] if len(own) else math.nan,
                "final_return": own["return"].iloc[-1] if len(own) else math.nan,
                "threshold": threshold,
                "seconds": reached[clock(run)].iloc[0] if len(reached) else math.nan,
                "updates": reached["step"].iloc[0] if len(reached) else math.nan,
            }
        )
    return pd.DataFrame(lines)


def clock(run: dict) -> str:
    """Which clock a run is timed by: a process's own on a CPU, where others do not hold it up."""
    return "training_cpu_seconds" if run["device"] == "cpu" else "training_seconds"


def caption(selection: Selection) -> str:
    protocol, runs = selection.experiment.protocol, selection.runs
    thresholds = ", ".join(
        f"{minus(f'{THRESHOLDS[env]:g}')} on {env}" for env in runs["env_id"].unique() if env in THRESHOLDS
    )
    clocks = (
        "CPU" if {clock(run) for run in runs.to_dict("records")} == {"training_cpu_seconds"} else "wall-clock"
    )
    stack = "one seed" if protocol.seeds_per_process == 1 else f"{protocol.seeds_per_process} seeds stacked"
    machines = ", ".join(sorted({machine["cpu"] for machine in runs["machine"]}))
    parts = [
        captions.training(selection),
        captions.data(selection),
        "Bellman error: mean over all rows of (Q(s,a) − r − γ(1−terminated) max Q(s′,·))², the online",
        f"network on both sides, after training; {captions.SPREAD}.",
        f"Seconds to return: {clocks} seconds of training, evaluation excluded, until an evaluation's mean",
        f"return reaches {thresholds}; mean over the seeds that did, whose number stands beside;",
        f"{stack} and one thread per process on {machines}.",
        "Final return: of the last evaluation.",
        *captions.marks(selection),
        significance.RULE,
        "Compared are the algorithms on one dataset; for seconds, those that most seeds reached.",
        "The paper's numbers come from its own datasets and machine; its best are bold.",
        *selection.notes,
    ]
    return " ".join(parts)


def _best(lines: pd.DataFrame, per_seed: pd.DataFrame) -> dict[str, set[Hashable]]:
    """By column, the algorithms that are bold on one dataset."""
    samples = {name: group for name, group in per_seed.groupby("algorithm", sort=False)}
    # a mean over few seeds is no rival to one over all
    often = set(lines[lines["reached"] == lines["reached"].max()]["algorithm"])
    best = {
        column: significance.best({name: group[column] for name, group in samples.items()}, lower)
        for column, lower in (("bellman_error", True), ("final_return", False))
    }
    rivals = {name: group["seconds"] for name, group in samples.items() if name in often}
    best["seconds"] = significance.best(rivals, lower=True)
    for column in ("paper_bellman_error", "paper_seconds"):
        best[column] = set(lines[lines[column] == lines[column].min()]["algorithm"])
    return best


def _row(line: dict, best: dict[str, set[Hashable]], expected: int) -> Row:
    def cell(column: str, text: str) -> Cell:
        return Cell(text, bold=line["algorithm"] in best[column])

    if not line["seeds"]:
        ours = [Cell("missing")] * 3 + [Cell(f"0/{expected}")]
    else:
        ours = [
            cell("bellman_error", result(line, "bellman_error", expected, number)),
            cell("seconds", number(line["seconds"])),
            cell("final_return", result(line | {"diverged": 0}, "final_return", line["seeds"])),
            Cell(f"{line['reached']}/{line['seeds']}"),
        ]
    error, seconds, final_return, reached = ours
    papers = [cell(column, number(line[column])) for column in ("paper_bellman_error", "paper_seconds")]
    label = (Cell(line["dataset"]), Cell(line["label"]))
    return (*label, error, papers[0], seconds, reached, papers[1], final_return)
