"""One algorithm against another: differences by dataset, probability of improvement, best within a budget."""

import itertools
from typing import Any

import numpy as np
import pandas as pd

from offline_gntd.analysis import captions, statistics
from offline_gntd.analysis.scores import matrices_of, score_matrices
from offline_gntd.analysis.selection import Measure, Selection, run_values
from offline_gntd.analysis.statistics import Estimate, compare_means
from offline_gntd.analysis.table import Cell, Row, Table, mean_std, written_as
from offline_gntd.errors import UserError
from offline_gntd.experiments.results import KEY

ALL = "final-1000000"  # more evaluations than any run has
READINGS = {  # how the values of two algorithms are read before they are compared
    "end": "at the end",
    "end_seconds": "at equal {clock}",
    "training": "over all {unit}",
    "training_seconds": "over equal {clock}",
}
BUDGETS = (1, 5, 15)  # minutes of one core
GRID = 1_000  # points at which a curve over seconds is averaged


def table(selection: Selection, measure: Measure) -> Table:
    """Each algorithm against the first, at the end and over all of training, by updates and by seconds."""
    if not measure.is_part_of_training(selection):  # the end is then the last evaluation
        measure = Measure(measure.metric)
    (first, first_label), *others = selection.labels.items()
    if not others:
        raise UserError(f"a pairwise table needs two algorithms; this is {first_label} alone")
    readings = {
        "end": run_values(selection, measure),
        "training": run_values(selection, Measure(measure.metric, ALL)),
    }
    lines = []
    for algorithm, label in others:
        pair = readings | dict(
            zip(
                ("end_seconds", "training_seconds"),
                _by_seconds(selection, measure.metric, (first, algorithm)),
                strict=True,
            )
        )
        for dataset in selection.experiment.dataset_names():
            lines.append(
                {"dataset": dataset, "algorithm": algorithm, "label": label}
                | _line(
                    {name: values[values["dataset"] == dataset] for name, values in pair.items()},
                    algorithm,
                    first,
                )
            )
        if selection.experiment.datasets[1:]:
            lines.append(
                {"dataset": IMPROVEMENT, "algorithm": algorithm, "label": label}
                | _improvement_line(selection, measure, pair, label, first_label)
            )
    readings_in_words = [
        words.format(clock=selection.clock, unit=selection.unit) for words in READINGS.values()
    ]
    written, labels = written_as(measure.metric), selection.dataset_labels | selection.headings
    rows = [(line, _row(line, selection.experiment.seeds, written, labels)) for line in lines]
    return Table(
        selection.experiment.name,
        _caption(selection, measure),
        (
            "task" if selection.online else "dataset",
            "algorithm",
            f"{measure.metric} at the end".replace("_", " "),
            selection.headings[first_label],
            *(f"Δ {words}" for words in readings_in_words),
        ),
        tuple(row for line, row in rows if line["dataset"] != IMPROVEMENT),
        pd.DataFrame(lines),
        selection.missing,
        tuple(row for line, row in rows if line["dataset"] == IMPROVEMENT),
        protocol=captions.protocol(selection),
    )


IMPROVEMENT = "P(improvement)"


def _by_seconds(
    selection: Selection, metric: str, pair: tuple[str, str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The metric at, and its mean up to, the seconds that the shorter of a pair's runs on a dataset took."""
    chosen = selection.evaluations[selection.evaluations["algorithm"].isin(pair)].dropna(subset=metric)
    totals = chosen.groupby(KEY)["seconds"].max().groupby("dataset").min()
    at, mean = [], []
    for key, run in chosen.sort_values("step").groupby(KEY, sort=False):
        times = np.linspace(0, totals[key[0]], GRID)
        curve = np.interp(times, run["seconds"], run[metric])
        at.append((*key, curve[-1]))
        mean.append((*key, curve.mean()))
    runs = selection.runs.assign(diverged=selection.runs["status"] == "diverged")[[*KEY, "label", "diverged"]]
    found = [pd.DataFrame(rows, columns=[*KEY, "value"]).merge(runs, on=KEY) for rows in (at, mean)]
    return found[0], found[1]


def _line(readings: dict[str, pd.DataFrame], algorithm: str, first: str) -> dict[str, Any]:
    """The comparison on one dataset."""
    line: dict[str, Any] = {}
    for prefix, name in (("", algorithm), ("first_", first)):
        runs = readings["end"][readings["end"]["algorithm"] == name]
        line |= {
            f"{prefix}seeds": len(runs),
            f"{prefix}diverged": int(runs["diverged"].sum()),
            f"{prefix}value": runs["value"].mean(),
            f"{prefix}value_std": runs["value"].std(),
        }
    for reading in READINGS:
        values = readings[reading].dropna(subset="value")
        x, y = (values[values["algorithm"] == name]["value"].to_numpy() for name in (algorithm, first))
        if len(x) and len(y):
            line |= _columns(reading, compare_means(x, y), min(len(x), len(y)))
    return line


def _improvement_line(
    selection: Selection, measure: Measure, readings: dict[str, pd.DataFrame], label: str, first: str
) -> dict[str, Any]:
    """P(a run of the algorithm beats one of the first on a random dataset), for each reading."""
    line: dict[str, Any] = {}
    for reading in READINGS:
        values = readings[reading]
        try:
            matrices = matrices_of(selection, values[values["label"].isin([label, first])])
        except UserError:
            continue
        if label in matrices and first in matrices:
            sign = measure.direction or 1
            x, y = sign * matrices[label], sign * matrices[first]
            estimate = statistics.improvement(x, y, np.random.default_rng(statistics.SEED))
            line |= _columns(reading, estimate, min(len(x), len(y)))
    return line


def _columns(reading: str, estimate: Estimate, seeds: int) -> dict[str, Any]:
    return {
        f"{reading}_difference": estimate.value,
        f"{reading}_low": estimate.low,
        f"{reading}_high": estimate.high,
        f"{reading}_seeds": seeds,
    }


def _row(line: dict[str, Any], expected: int, written, labels: dict[str, str]) -> Row:
    probability = line["dataset"] == IMPROVEMENT
    neutral = 0.5 if probability else 0.0
    cells = []
    for prefix in ("", "first_"):
        part = {name: line.get(f"{prefix}{name}", 0) for name in ("seeds", "diverged", "value", "value_std")}
        shown = mean_std(part, "value", expected, written) if part["seeds"] else "missing"
        cells.append(Cell("" if probability else shown))
    for reading in READINGS:
        if f"{reading}_difference" not in line:
            cells.append(Cell("missing"))
            continue
        estimate = Estimate(*(line[f"{reading}_{part}"] for part in ("difference", "low", "high")))
        several = line[f"{reading}_seeds"] > 1  # one seed has no interval
        bold = several and not estimate.covers(neutral)
        cells.append(Cell(estimate.text("{:.2f}".format if probability else written, several), bold=bold))
    return (Cell(labels.get(line["dataset"], line["dataset"])), Cell(labels[line["label"]]), *cells)


def _caption(selection: Selection, measure: Measure) -> str:
    parts = [
        f"Δ: difference from {next(iter(selection.labels.values()))}, 95 % bootstrap interval over seeds;",
        f"bold: excludes 0 (probabilities: 0.5). End: {measure.words(selection)}.",
        f"Over all {selection.unit}: mean of all evaluations.",
        f"Equal {selection.clock}: up to the shorter run's training time.",
        *captions.few_seeds(selection.experiment.seeds),
        *captions.marks(selection),
        *selection.notes,
    ]
    return " ".join(parts)


def improvement_table(selection: Selection, measure: Measure) -> Table:
    """The probability that a run of the row's algorithm beats one of the column's, over all datasets."""
    matrices, rng = score_matrices(selection, measure), np.random.default_rng(statistics.SEED)
    estimates = {}
    for x, y in itertools.combinations(matrices, 2):
        estimates[x, y] = statistics.improvement(matrices[x], matrices[y], rng)
        estimates[y, x] = estimates[x, y].complement()
    cells = {}
    for (x, y), estimate in estimates.items():
        several = min(len(matrices[x]), len(matrices[y])) > 1
        cells[x, y] = Cell(estimate.text("{:.2f}".format, several), bold=several and estimate.low > 0.5)
    parts = [
        "Probability that a run of the row's algorithm beats one of the column's on a random dataset",
        f"({measure.words(selection)}), 95 % stratified bootstrap interval; bold: above 0.5.",
        *captions.few_seeds(min(map(len, matrices.values()))),
        *selection.notes,
    ]
    return Table(
        f"{selection.experiment.name}-improvement",
        " ".join(parts),
        ("algorithm", *matrices),
        tuple((Cell(x), *(cells.get((x, y), Cell("—")) for y in matrices)) for x in matrices),
        pd.DataFrame([{"algorithm": x, "against": y, **e._asdict()} for (x, y), e in estimates.items()]),
        selection.missing,
        protocol=captions.protocol(selection),
    )


def budget_table(selection: Selection, measure: Measure) -> Table:
    """The score of each algorithm after some minutes of training on one core, and the best one."""
    lines = []
    longest = selection.evaluations["seconds"].max() / 60
    budgets = [now for now, before in zip(BUDGETS, (0, *BUDGETS), strict=False) if before < longest]
    for dataset in selection.experiment.dataset_names():
        for minutes in budgets:
            lines += [
                {"dataset": dataset, "minutes": minutes, "algorithm": algorithm, "label": label}
                | _within(selection, measure.metric, dataset, algorithm, 60 * minutes)
                for algorithm, label in selection.labels.items()
            ]
    long, rows = pd.DataFrame(lines), []
    sign, names = measure.direction or 1, selection.dataset_labels
    for (dataset, minutes), group in long.groupby(["dataset", "minutes"], sort=False):
        best = group.loc[(sign * group["value"]).idxmax()] if group["value"].notna().any() else None
        shown = "—" if best is None else best["label"]
        cells = [
            Cell(_budget_text(line, measure.metric, selection.experiment.seeds), bold=line["label"] == shown)
            for line in group.to_dict("records")
        ]
        rows.append((Cell(names[dataset]), Cell(str(minutes)), Cell(shown), *cells))
    parts = [
        f"Last {measure.metric} within that many minutes of training on one core ({selection.clock}, without",
        f"evaluations); {captions.SPREAD}. Bold: highest mean. ‡: training had ended. —: no evaluation yet.",
        *captions.marks(selection),
        *selection.notes,
    ]
    return Table(
        f"{selection.experiment.name}-budget",
        " ".join(parts),
        ("dataset", "minutes", "best", *selection.headings.values()),
        tuple(rows),
        long,
        selection.missing,
        protocol=captions.protocol(selection),
    )


def _within(
    selection: Selection, metric: str, dataset: str, algorithm: str, seconds: float
) -> dict[str, Any]:
    runs, rows = selection.runs, selection.evaluations
    runs = runs[(runs["dataset"] == dataset) & (runs["algorithm"] == algorithm)]
    rows = rows[(rows["dataset"] == dataset) & (rows["algorithm"] == algorithm)].sort_values("step")
    last = rows[rows["seconds"] <= seconds].groupby("seed").tail(1)
    ended = rows.groupby("seed")["seconds"].max().le(seconds)
    complete = len(last) == len(runs)  # a seed without an evaluation would bias the mean
    return {
        "seeds": len(runs),
        "diverged": int(runs["status"].eq("diverged").sum()),
        "value": last[metric].mean() if complete else np.nan,
        "value_std": last[metric].std() if complete else np.nan,
        "updates": last["step"].mean() if complete else np.nan,
        "ended": bool(len(ended)) and bool(ended.all()),
    }


def _budget_text(line: dict[str, Any], metric: str, expected: int) -> str:
    if not line["seeds"]:
        return "missing"
    if np.isnan(line["value"]):
        return "—"
    return mean_std(line, "value", expected, written_as(metric)) + (" ‡" if line["ended"] else "")
