"""Comparisons of algorithms with each other, within a time budget, and with published numbers."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pandas as pd

from offline_gntd.analysis import published, statistics, td_error
from offline_gntd.analysis.scores import matrices
from offline_gntd.analysis.selection import Measure, Selection, run_values
from offline_gntd.analysis.statistics import Estimate, compare_means
from offline_gntd.analysis.table import Cell, Row, Table, mean_std, number, sentences, tenths, written_as
from offline_gntd.errors import UserError
from offline_gntd.experiments.results import KEY

ALL = "final-1000000"  # more evaluations than any run has
READINGS = {  # the values of two algorithms that are compared
    "end": "at the end",
    "end_seconds": "at equal {clock}",
    "training": "over all {unit}",
    "training_seconds": "over equal {clock}",
}
IMPROVEMENT = "P(improvement)"  # the row over all datasets
BUDGETS = (1, 5, 15)  # minutes of one core
GRID = 1_000  # points at which a curve over seconds is averaged
PUBLISHED_METRICS = {
    "score": "score",
    "td_error_abs_target": td_error.ERRORS["td_error_abs_target"],
    "seconds": "seconds to threshold",
}


def pairwise_table(selection: Selection, measure: Measure) -> Table:
    """Each algorithm against the first, at the end and over all of training, by updates and by seconds."""
    if selection.evaluations.groupby(KEY).size().max() <= measure.evaluations:
        measure = Measure(measure.metric)  # it averages all of training: the end is the last evaluation
    first, *others = selection.labels
    if not others:
        raise UserError(f"a pairwise table needs two algorithms; this is {selection.labels[first]} alone")
    end = run_values(selection, measure)
    everything, lines = Measure(measure.metric, ALL), []
    for algorithm in others:
        shorter = min(selection.experiment.protocol_of(name).steps for name in (first, algorithm))
        common = selection.evaluations[selection.evaluations["step"] <= shorter]
        training = run_values(dataclasses.replace(selection, evaluations=common), everything)
        by_seconds = _by_seconds(selection, measure.metric, first, algorithm)
        values = {"end": end, "training": training, **by_seconds}
        key = {"algorithm": algorithm, "label": selection.labels[algorithm]}
        for dataset in selection.experiment.dataset_names():
            on_dataset = {name: each[each["dataset"] == dataset] for name, each in values.items()}
            lines.append({"dataset": dataset, **key, **_differences(on_dataset, first, algorithm)})
        if len(selection.experiment.datasets) > 1:
            improvements = _improvements(selection, measure, values, first, algorithm)
            lines.append({"dataset": IMPROVEMENT, **key, **improvements})
    seeds, written = selection.experiment.seeds, written_as(measure.metric)
    names = selection.dataset_labels | selection.headings
    rows = [(line["dataset"] == IMPROVEMENT, _row(line, seeds, written, names)) for line in lines]
    headings = [words.format(clock=selection.clock, unit=selection.unit) for words in READINGS.values()]
    return Table(
        _caption(selection, measure),
        (
            "task" if selection.online else "dataset",
            "algorithm",
            f"{measure.metric} at the end".replace("_", " "),
            selection.headings[selection.labels[first]],
            *(f"Δ {words}" for words in headings),
        ),
        tuple(row for is_foot, row in rows if not is_foot),
        pd.DataFrame(lines),
        foot=tuple(row for is_foot, row in rows if is_foot),
    )


def _by_seconds(selection: Selection, metric: str, first: str, algorithm: str) -> dict[str, pd.DataFrame]:
    """The metric at, and its mean up to, the seconds that the shortest of a pair's runs on a dataset took.

    The mean begins at the last of the runs' first evaluations: nothing is known before it.
    """
    chosen = selection.evaluations[selection.evaluations["algorithm"].isin([first, algorithm])]
    chosen = chosen.dropna(subset=metric)
    seconds = chosen.groupby(KEY)["seconds"]
    starts, ends = seconds.min().groupby("dataset").max(), seconds.max()
    diverged = selection.runs.set_index(KEY)["status"].eq("diverged").reindex(ends.index)
    ends = ends.where(~diverged).groupby("dataset").min().fillna(ends.groupby("dataset").min())
    lines = []
    for key, run in chosen.sort_values("step").groupby(KEY, sort=False):
        start, end = starts[key[0]], ends[key[0]]
        if start <= end:  # else a run ended before another was evaluated
            curve = np.interp(np.linspace(start, end, GRID), run["seconds"], run[metric])
            lines.append((*key, curve[-1], curve.mean()))
    values = pd.DataFrame(lines, columns=[*KEY, "end_seconds", "training_seconds"])
    return {
        reading: values[[*KEY, reading]].rename(columns={reading: "value"})
        for reading in ("end_seconds", "training_seconds")
    }


def _differences(values: dict[str, pd.DataFrame], first: str, algorithm: str) -> dict[str, Any]:
    """The comparison on one dataset."""
    line: dict[str, Any] = {}
    for prefix, name in (("", algorithm), ("first_", first)):
        runs = values["end"][values["end"]["algorithm"] == name]
        line |= {
            f"{prefix}seeds": len(runs),
            f"{prefix}diverged": int(runs["diverged"].sum()),
            f"{prefix}value": runs["value"].mean(),
            f"{prefix}value_std": runs["value"].std(),
        }
    for reading in READINGS:
        known = values[reading].dropna(subset="value")
        x, y = (known[known["algorithm"] == name]["value"].to_numpy() for name in (algorithm, first))
        if len(x) and len(y):
            line |= _columns(reading, compare_means(x, y), min(len(x), len(y)))
    return line


def _improvements(
    selection: Selection, measure: Measure, values: dict[str, pd.DataFrame], first: str, algorithm: str
) -> dict[str, Any]:
    """P(a run of the algorithm beats one of the first on a random dataset), for each reading."""
    line: dict[str, Any] = {}
    sign = measure.direction or 1
    for reading in READINGS:
        try:
            scores = matrices(selection, values[reading])
        except UserError:  # no seed has runs on all datasets
            continue
        if algorithm in scores and first in scores:
            x, y = sign * scores[algorithm], sign * scores[first]
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
            measured = line.get("seeds") and line.get("first_seeds")  # but never at the same seconds
            cells.append(Cell("—" if measured else "missing"))
            continue
        estimate = Estimate(*(line[f"{reading}_{part}"] for part in ("difference", "low", "high")))
        seeds = line[f"{reading}_seeds"]
        bold = seeds >= statistics.FEWEST_RUNS and not estimate.covers(neutral)
        cells.append(Cell(estimate.text("{:.2f}".format if probability else written, seeds > 1), bold=bold))
    return (Cell(labels.get(line["dataset"], line["dataset"])), Cell(labels[line["label"]]), *cells)


def _caption(selection: Selection, measure: Measure) -> str:
    first = next(iter(selection.labels.values()))
    return sentences(
        f"Δ: difference from {first}, 95 % bootstrap interval; bold: excludes 0 (P: 0.5), of at least "
        f"{statistics.FEWEST_RUNS} seeds.",
        f"End: {measure.words(selection)}; over all {selection.unit}: mean of the evaluations up to the",
        f"shorter run's last; equal {selection.clock}: from the first evaluation of both to the end of the "
        "shorter run.",
        selection.few_seeds,
        selection.marks,
    )


def improvement_table(selection: Selection, measure: Measure) -> Table:
    """The probability that a run of the row's algorithm beats one of the column's, over all datasets."""
    sign = measure.direction or 1
    scores = {
        name: sign * values for name, values in matrices(selection, run_values(selection, measure)).items()
    }
    rng = np.random.default_rng(statistics.SEED)
    estimates: dict[tuple[str, str], Estimate] = {}
    for x, y in itertools.combinations(scores, 2):
        estimates[x, y] = statistics.improvement(scores[x], scores[y], rng)
        estimates[y, x] = estimates[x, y].complement()

    def cell(x: str, y: str) -> Cell:
        if x == y:
            return Cell("—")
        seeds = min(len(scores[x]), len(scores[y]))
        bold = seeds >= statistics.FEWEST_RUNS and estimates[x, y].low > 0.5
        return Cell(estimates[x, y].text("{:.2f}".format, seeds > 1), bold)

    labels, headings = selection.labels, selection.headings
    caption = sentences(
        "P(a run of the row's algorithm beats one of the column's on a random dataset),",
        f"{measure.words(selection)}; 95 % stratified bootstrap interval; bold: above 0.5, of at "
        f"least {statistics.FEWEST_RUNS} seeds.",
        selection.few_seeds,
    )
    return Table(
        caption,
        ("algorithm", *(headings[labels[name]] for name in scores)),
        tuple((Cell(headings[labels[x]]), *(cell(x, y) for y in scores)) for x in scores),
        pd.DataFrame(
            {"algorithm": labels[x], "against": labels[y], **estimate._asdict()}
            for (x, y), estimate in estimates.items()
        ),
    )


def budget_table(selection: Selection, measure: Measure) -> Table:
    """The score of each algorithm after some minutes of training on one core, and the best one."""
    longest = selection.evaluations["seconds"].max() / 60
    budgets = [now for now, before in zip(BUDGETS, (0, *BUDGETS), strict=False) if before < longest]
    lines = [
        {"dataset": dataset, "minutes": minutes, "algorithm": algorithm, "label": label}
        | _within(selection, measure.metric, dataset, algorithm, 60 * minutes)
        for dataset in selection.experiment.dataset_names()
        for minutes in budgets
        for algorithm, label in selection.labels.items()
    ]
    long, rows = pd.DataFrame(lines), []
    sign, names = measure.direction or 1, selection.dataset_labels
    for (dataset, minutes), group in long.groupby(["dataset", "minutes"], sort=False):
        best = group["label"][(sign * group["value"]).idxmax()] if group["value"].notna().any() else "—"
        cells = [
            Cell(_budget_text(line, measure.metric, selection.experiment.seeds), bold=line["label"] == best)
            for line in group.to_dict("records")
        ]
        rows.append((Cell(names[dataset]), Cell(str(minutes)), Cell(best), *cells))
    caption = sentences(
        f"Last {measure.metric} within the minutes of training ({selection.clock}): mean ± std over seeds.",
        "Bold: highest; ‡: training had ended; —: no evaluation yet.",
        selection.marks,
    )
    return Table(caption, ("dataset", "minutes", "best", *selection.headings.values()), tuple(rows), long)


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


def published_table(selection: Selection, measure: Measure) -> Table:
    """One line per published number with finished runs of ours: the difference, and whether our interval
    contains it."""
    found = published.for_datasets(selection)
    if found.empty:
        raise UserError(
            f"nothing is published for the datasets and algorithms of {selection.experiment.name}"
        )
    samples = _values_per_seed(selection, measure)
    lines = [_published_line(fact, samples) for fact in found.to_dict("records")]
    long = pd.DataFrame([line for line in lines if line["seeds"]])
    if long.empty:
        raise UserError(f"no finished runs of {selection.experiment.name} have published numbers")
    labels = selection.dataset_labels
    columns = ("dataset", "algorithm", "metric", "ours", "95 % interval", "source", "published", "difference")
    return Table(
        _published_caption(selection, measure, long),
        (*columns, "in interval"),
        tuple(_published_row(line, labels) for line in long.to_dict("records")),
        long,
    )


def _values_per_seed(selection: Selection, measure: Measure) -> pd.DataFrame:
    """dataset, label, metric, value: our numbers that may have a published counterpart."""
    keys = ["dataset", "label"]
    parts = [run_values(selection, measure)[[*keys, "value"]].assign(metric="score")]
    parts.append(td_error.per_seed(selection).melt(keys, ["td_error_abs_target", "seconds"], "metric"))
    return pd.concat(parts, ignore_index=True)


def _published_line(fact: dict, samples: pd.DataFrame) -> dict:
    key = ["dataset", "label", "metric"]
    ours = samples[(samples[key] == [fact[name] for name in key]).all(axis=1)]["value"]
    values = ours.dropna().to_numpy()
    line = fact | {"seeds": len(values), "of": len(ours), "ours": values.mean() if len(values) else math.nan}
    if len(values) < 2:
        return line | {"low": math.nan, "high": math.nan, "covered": None}
    rng = np.random.default_rng(statistics.SEED)
    mean = statistics.estimates(values[:, None], {"mean": statistics.mean}, rng)["mean"]
    return line | {"low": mean.low, "high": mean.high, "covered": mean.covers(fact["mean"])}


def _published_row(line: dict, labels: dict[str, str]) -> Row:
    written = tenths if line["metric"] == "score" else number
    interval = "—" if math.isnan(line["low"]) else f"[{written(line['low'])}, {written(line['high'])}]"
    reached = "" if line["seeds"] == line["of"] else f" ({line['seeds']}/{line['of']})"
    theirs = written(line["mean"]) + ("" if pd.isna(line["std"]) else f" ± {written(line['std'])}")
    difference = line["ours"] - line["mean"]
    texts = (
        labels[line["dataset"]],
        line["label"],
        PUBLISHED_METRICS[line["metric"]],
        written(line["ours"]) + reached,
        interval,
        line["source"],
        theirs,
        ("+" if difference > 0 else "") + written(difference),
        {True: "yes", False: "no", None: "—"}[line["covered"]],
    )
    return tuple(map(Cell, texts))


def _published_caption(selection: Selection, measure: Measure, long: pd.DataFrame) -> str:
    counts = long.groupby(["source", "metric"], sort=False)["covered"].agg(["sum", "count"])
    covered = ", ".join(
        f"{group['sum']} of {group['count']} ({source}, {PUBLISHED_METRICS[metric]})"
        for (source, metric), group in counts.iterrows()
    )
    kinds = long["metric"].eq("score")
    shown = set(zip(long["source"], kinds, strict=True))
    protocols = "; ".join(
        f"{line.source}: {line.protocol}"
        for line in published.read("sources.csv").itertuples()
        if (line.source, line.table == "locomotion") in shown
    )
    return sentences(
        f"95 % bootstrap intervals contain {covered} published numbers.",
        f"Our score: {measure.words(selection)}." if kinds.any() else "",
        f"{protocols}." if protocols else "",
        selection.few_seeds,
    )
