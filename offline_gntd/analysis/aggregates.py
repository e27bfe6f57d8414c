"""Algorithms over all datasets of an experiment: aggregate scores and who beats whom, with intervals."""

import itertools
from collections.abc import Callable

import numpy as np
import pandas as pd

from offline_gntd.analysis import captions, statistics, values
from offline_gntd.analysis.selection import Selection
from offline_gntd.analysis.statistics import RESAMPLES, SEED, Estimate
from offline_gntd.analysis.table import Cell, Table, tenths
from offline_gntd.analysis.values import Measure
from offline_gntd.errors import UserError
from offline_gntd.experiments.results import KEY


def table(selection: Selection, measure: Measure) -> Table:
    """Mean, median, interquartile mean and optimality gap of every algorithm."""
    if measure.metric != "score":
        raise UserError(
            f"the {measure.metric}s of {selection.experiment.name} are of tasks that do not add up"
        )
    found, rng = matrices(selection, measure), np.random.default_rng(SEED)
    rows, lines = [], []
    for label, scores in found.items():
        made = statistics.estimates(scores, statistics.AGGREGATES, rng)
        shape = f"{scores.shape[0]} × {scores.shape[1]}"
        texts = [_text(each, tenths, several=len(scores) > 1) for each in made.values()]
        rows.append((Cell(label), Cell(shape), *map(Cell, texts)))
        lines += [{"algorithm": label, "statistic": name, **each._asdict()} for name, each in made.items()]
    what = (
        "Over all datasets, [95 % intervals]. Median: over datasets, of the mean over seeds. "
        "IQM: mean of the middle half of all runs. "
        f"Optimality gap: mean shortfall from {statistics.GOAL:g}, less is better."
    )
    return Table(
        f"{selection.experiment.name}-statistics",
        _caption(what, selection, measure, found),
        ("algorithm", "seeds × datasets", *statistics.AGGREGATES),
        tuple(rows),
        pd.DataFrame(lines),
        selection.missing,
    )


def improvement_table(selection: Selection, measure: Measure) -> Table:
    """The probability that the row's algorithm beats the column's."""
    found, rng = matrices(selection, measure), np.random.default_rng(SEED)
    estimates = {}
    for x, y in itertools.combinations(found, 2):
        estimates[x, y] = statistics.improvement(found[x], found[y], rng)
        estimates[y, x] = estimates[x, y].complement()
    cells = {}
    for (x, y), each in estimates.items():
        several = min(len(found[x]), len(found[y])) > 1
        cells[x, y] = Cell(_text(each, "{:.2f}".format, several), bold=several and each.low > 0.5)
    lines = [{"algorithm": x, "against": y, **each._asdict()} for (x, y), each in estimates.items()]
    what = (
        "Probability that a run of the row's algorithm reaches more than one of the column's on a random "
        "dataset, a tie counting half; [95 % intervals]. Bold: the interval lies above 0.5."
    )
    return Table(
        f"{selection.experiment.name}-improvement",
        _caption(what, selection, measure, found),
        ("algorithm", *found),
        tuple((Cell(x), *(cells.get((x, y), Cell("—")) for y in found)) for x in found),
        pd.DataFrame(lines),
        selection.missing,
    )


def matrices(selection: Selection, measure: Measure) -> dict[str, np.ndarray]:
    """Scores [seeds, datasets] of every algorithm, by label: of the seeds that have all datasets."""
    lines = values.read(selection, measure)
    found = {}
    for label, group in lines.groupby("label", sort=False):
        scores = group.pivot(index="seed", columns="dataset", values="value")
        scores = scores.reindex(columns=selection.experiment.dataset_names()).dropna()
        if len(scores):
            found[label] = scores.to_numpy()
    if not found:
        raise UserError(f"no algorithm of {selection.experiment.name} has a seed with all of its datasets")
    return found


def _caption(what: str, selection: Selection, measure: Measure, found: dict[str, np.ndarray]) -> str:
    longest = int(selection.evaluations.groupby(KEY).size().max())
    parts = [
        what,
        f"Stratified bootstrap: {RESAMPLES:,} resamples of the seeds of each dataset, percentiles, seeded.",
        *statistics.caution(min(map(len, found.values()))),
        f"{'Normalised scores' if measure.metric == 'score' else measure.metric}; "
        f"{captions.training(selection)}",
        f"A run's value is {measure.words(min(measure.evaluations, longest))}.",
        captions.data(selection),
        *selection.notes,
    ]
    return " ".join(parts)


def _text(estimate: Estimate, written: Callable[[float], str], several: bool) -> str:
    """One seed has no interval."""
    interval = f" [{written(estimate.low)}, {written(estimate.high)}]" if several else ""
    return written(estimate.value) + interval
