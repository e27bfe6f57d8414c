"""One algorithm against another, dataset by dataset, with intervals; the paper's Figure 1 in numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from offline_gntd.analysis import captions, statistics, values
from offline_gntd.analysis.selection import Selection
from offline_gntd.analysis.statistics import RESAMPLES, SEED, Estimate
from offline_gntd.analysis.table import Cell, Row, Table, number, result, tenths
from offline_gntd.analysis.values import Measure
from offline_gntd.errors import UserError

ALL = "final-1000000"  # more evaluations than any run has: the area under its curve


def table(selection: Selection, measure: Measure) -> Table:
    """Every algorithm but the first against the first, at the end of training and over all of it."""
    if len(selection.labels) < 2:
        raise UserError(f"a duel takes two algorithms, and this is of {', '.join(selection.labels)} alone")
    whole = Measure(measure.metric, ALL)
    readings = {
        "at the end": values.read(selection, measure),
        "all of training": values.read(selection, whole),
    }
    lines = [
        {"dataset": dataset, "reading": reading} | line
        for dataset in selection.experiment.dataset_names()
        for reading, runs in readings.items()
        for line in _lines(selection, runs[runs["dataset"] == dataset])
    ]
    first, *_ = selection.labels.values()
    words = f"mean {measure.metric.replace('_', ' ')}"
    written = tenths if measure.metric in ("score", "return") else number
    return Table(
        selection.experiment.name,
        _caption(selection, measure, int(readings["at the end"]["evaluations"].max())),
        (
            "task" if selection.online else "dataset",
            words,
            "algorithm",
            "its own",
            first,
            "difference [95 %]",
        ),
        tuple(_row(line, selection.experiment.seeds, written) for line in lines),
        pd.DataFrame(lines),
        selection.missing,
    )


def difference(ours: np.ndarray, theirs: np.ndarray) -> Estimate:
    """Of two means over seeds, which are drawn anew on either side."""
    rng = np.random.default_rng(SEED)
    means = [x[rng.integers(len(x), size=(RESAMPLES, len(x)))].mean(1) for x in (ours, theirs)]
    low, high = statistics.interval(means[0] - means[1])
    return Estimate(float(ours.mean() - theirs.mean()), float(low), float(high))


def _lines(selection: Selection, runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Of one dataset."""
    (first, _), *others = selection.labels.items()
    theirs, lines = runs[runs["algorithm"] == first], []
    for algorithm, label in others:
        ours = runs[runs["algorithm"] == algorithm]
        line: dict[str, Any] = {"algorithm": algorithm, "label": label} | _summary(ours)
        line |= {f"first_{name}": value for name, value in _summary(theirs).items()}
        if len(ours) and len(theirs):
            found = difference(ours["value"].to_numpy(), theirs["value"].to_numpy())
            line |= {"difference": found.value, "low": found.low, "high": found.high}
        lines.append(line)
    return lines


def _summary(runs: pd.DataFrame) -> dict[str, Any]:
    return {
        "seeds": len(runs),
        "diverged": int(runs["diverged"].sum()),
        "value": runs["value"].mean(),
        "value_std": runs["value"].std(),
    }


def _row(line: dict[str, Any], expected: int, written: Callable[[float], str]) -> Row:
    theirs = {name.removeprefix("first_"): value for name, value in line.items() if name.startswith("first_")}
    texts = [
        result(each, "value", expected, written) if each["seeds"] else "missing" for each in (line, theirs)
    ]
    told = Cell("missing")
    if "difference" in line:
        several = min(line["seeds"], theirs["seeds"]) > 1  # one seed has no interval
        interval = f" [{written(line['low'])}, {written(line['high'])}]" if several else ""
        bold = several and (line["low"] > 0 or line["high"] < 0)
        told = Cell(f"{written(line['difference'])}{interval}", bold=bold)
    return (Cell(line["dataset"]), Cell(line["reading"]), Cell(line["label"]), *map(Cell, texts), told)


def _caption(selection: Selection, measure: Measure, evaluations: int) -> str:
    parts = [
        captions.training(selection),
        captions.data(selection),
        f"At the end: a run's value is {measure.words(evaluations)}; all of training: the mean of all",
        f"its evaluations; {captions.SPREAD}. Differences have 95 % percentile intervals of {RESAMPLES:,}",
        "resamples, seeds drawn anew on either side; bold where they leave out 0.",
        *statistics.caution(selection.experiment.seeds),
        *captions.marks(selection),
        *selection.notes,
    ]
    return " ".join(parts)
