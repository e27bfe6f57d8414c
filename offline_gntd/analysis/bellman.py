"""The paper's Table 1: Bellman error after training and seconds to a return, ours beside the paper's."""

import math

import pandas as pd

from offline_gntd.analysis import published
from offline_gntd.analysis.selection import Selection
from offline_gntd.analysis.table import Cell, Table

THRESHOLDS = {"CartPole-v1": 400.0, "Acrobot-v1": -100.0}  # returns; the paper's −400 is a slip of the pen


def table(selection: Selection) -> Table:
    long = summary(selection)
    rows = []
    for _, group in long.groupby("dataset", sort=False):
        lowest = ("bellman_error", "paper_bellman_error", "paper_seconds")
        best = {column: group[column].min() for column in lowest}
        best["final_return"] = group["final_return"].max()
        # a mean over few seeds is no rival to one over all
        best["reached"] = group["reached"].max()
        best["seconds"] = group[group["reached"] == best["reached"]]["seconds"].min()
        rows += [_row(line, best) for line in group.to_dict("records")]
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


def summary(selection: Selection) -> pd.DataFrame:
    """One line per dataset × algorithm; spreads are over seeds, with ddof 1."""
    per_seed = seeds(selection)
    keys = ["dataset", "algorithm", "label"]
    lines = per_seed.groupby(keys, sort=False).agg(
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
    order = {name: place for place, name in enumerate(selection.experiment.dataset_names())}
    rank = {name: place for place, name in enumerate(selection.experiment.algorithms)}
    lines = lines.reset_index().sort_values(
        ["dataset", "algorithm"], key=lambda column: column.map(order if column.name == "dataset" else rank)
    )
    return lines.merge(published.paper_table1(), on=["dataset", "label"], how="left")


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
        f"{THRESHOLDS[env]:g} on {env}" for env in runs["env_id"].unique() if env in THRESHOLDS
    )
    rows = ", ".join(f"{count:,}" for count in sorted(runs["dataset_rows"].unique()))
    clocks = (
        "CPU" if {clock(run) for run in runs.to_dict("records")} == {"training_cpu_seconds"} else "wall-clock"
    )
    stack = "one seed" if protocol.stack == 1 else f"{protocol.stack} seeds stacked"
    machines = ", ".join(sorted({machine["cpu"] for machine in runs["machine"]}))
    parts = [
        f"{protocol.steps:,} updates on {rows} transitions, {selection.experiment.seeds} seeds,",
        f"evaluated every {protocol.evaluate_every:,} with {protocol.evaluate_episodes} greedy episodes.",
        "Bellman error: mean over all rows of (Q(s,a) − r − γ(1−terminated) max Q(s′,·))², the online",
        "network on both sides, after training; mean ± std over seeds (ddof 1).",
        "†: that many seeds diverged and count with their last finite value.",
        f"Seconds to return: {clocks} seconds of training, evaluation excluded, until an evaluation's mean",
        f"return reaches {thresholds}; mean over the seeds that did, whose number stands beside;",
        f"{stack} and one thread per process on {machines}.",
        "Final return: mean ± std over seeds of the last evaluation.",
        "Bold: best mean of its dataset and column; for seconds, among those that most seeds reached.",
        "The paper's numbers come from its own datasets and machine.",
        *selection.notes,
    ]
    return " ".join(parts)


def _row(line: dict, best: dict[str, float]) -> tuple[Cell, ...]:
    mark = f" †{line['diverged']}" if line["diverged"] else ""

    def cell(column: str, text: str) -> Cell:
        return Cell(text, bold=line[column] == best[column])

    return (
        Cell(line["dataset"]),
        Cell(line["label"]),
        cell("bellman_error", f"{number(line['bellman_error'])} ± {number(line['bellman_error_std'])}{mark}"),
        cell("paper_bellman_error", number(line["paper_bellman_error"])),
        Cell(
            number(line["seconds"]),
            bold=line["seconds"] == best["seconds"] and line["reached"] == best["reached"],
        ),
        Cell(f"{line['reached']}/{line['seeds']}"),
        cell("paper_seconds", number(line["paper_seconds"])),
        cell(
            "final_return", f"{line['final_return']:.1f} ± {line['final_return_std']:.1f}".replace("-", "−")
        ),
    )


def number(value: float) -> str:
    """Three digits that matter; — where there is none."""
    if math.isnan(value):
        return "—"
    return f"{value:.2e}" if abs(value) >= 1e5 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
