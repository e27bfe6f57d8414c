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

DIFFERENCE = "difference [95 %]"
ALL = "final-1000000"  # more evaluations than any run has: the area under its curve


def table(selection: Selection, measure: Measure) -> Table:
    """Every algorithm but the first against the first, at the end of training and over all of it."""
    readings = {"at the end": measure, "all of training": Measure(measure.metric, ALL)}
    lines = [
        {"dataset": dataset, "reading": reading} | line
        for dataset in selection.experiment.dataset_names()
        for reading, read in readings.items()
        for line in _lines(selection, values.read(selection, read), dataset)
    ]
    first, *_ = selection.labels.values()
    return Table(
        selection.experiment.name,
        _caption(selection, readings["at the end"]),
        (
            "task" if selection.online else "dataset",
            words(measure),
            "algorithm",
            "its own",
            first,
            DIFFERENCE,
        ),
        tuple(_row(line, selection.experiment.seeds, written(measure)) for line in lines),
        pd.DataFrame(lines),
        selection.missing,
    )


def difference(ours: np.ndarray, theirs: np.ndarray) -> Estimate:
    """Of two means over seeds, which are drawn anew on either side."""
    rng = np.random.default_rng(SEED)
    means = [x[rng.integers(len(x), size=(RESAMPLES, len(x)))].mean(1) for x in (ours, theirs)]
    low, high = statistics.interval(means[0] - means[1])
    return Estimate(float(ours.mean() - theirs.mean()), float(low), float(high))


def _lines(selection: Selection, runs: pd.DataFrame, dataset: str) -> list[dict[str, Any]]:
    runs = runs[runs["dataset"] == dataset]
    first, *others = selection.labels.items()
    theirs = _summary(runs[runs["algorithm"] == first[0]])
    lines = []
    for algorithm, label in others:
        own = runs[runs["algorithm"] == algorithm]
        ours = _summary(own)
        line: dict[str, Any] = {"algorithm": algorithm, "label": label} | ours
        line |= {f"first_{name}": value for name, value in theirs.items()}
        if ours["seeds"] and theirs["seeds"]:
            found = difference(
                own["value"].to_numpy(), runs[runs["algorithm"] == first[0]]["value"].to_numpy()
            )
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


def words(measure: Measure) -> str:
    return f"mean {measure.metric.replace('_', ' ')}"


def written(measure: Measure) -> Callable[[float], str]:
    return tenths if measure.metric in ("score", "return") else number


def _row(line: dict[str, Any], expected: int, written: Callable[[float], str]) -> Row:
    theirs = {name.removeprefix("first_"): value for name, value in line.items() if name.startswith("first_")}
    texts = [
        result(each, "value", expected, written) if each["seeds"] else "missing" for each in (line, theirs)
    ]
    told = Cell("missing")
    if "difference" in line:
        interval = f"[{written(line['low'])}, {written(line['high'])}]"
        told = Cell(f"{written(line['difference'])} {interval}", bold=line["low"] > 0 or line["high"] < 0)
    return (Cell(line["dataset"]), Cell(line["reading"]), Cell(line["label"]), *map(Cell, texts), told)


def _caption(selection: Selection, measure: Measure) -> str:
    rows = values.read(selection, measure)["evaluations"]
    parts = [
        captions.training(selection),
        captions.data(selection),
        f"At the end: a run's value is {measure.words(int(rows.max()))}; all of training: the mean of all",
        f"its evaluations; {captions.SPREAD}. Differences have 95 % percentile intervals of {RESAMPLES:,}",
        "resamples, seeds drawn anew on either side; bold where they leave out 0.",
        *statistics.caution(selection.experiment.seeds),
        *captions.marks(selection),
        *selection.notes,
    ]
    return " ".join(parts)
