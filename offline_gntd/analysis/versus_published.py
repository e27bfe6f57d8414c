"""The paper and published peers beside ours: the difference, and whether our interval covers it."""

import math

import numpy as np
import pandas as pd

from offline_gntd.analysis import bellman, captions, published, statistics, values
from offline_gntd.analysis.selection import Selection
from offline_gntd.analysis.table import Cell, Row, Table, number, tenths
from offline_gntd.analysis.values import Measure
from offline_gntd.errors import UserError

METRICS = {"score": "score", "bellman_error": "Bellman error", "seconds": "seconds to return"}


def table(selection: Selection, measure: Measure) -> Table:
    """One line per published number that has runs of ours to stand beside it."""
    found = published.for_datasets(selection)
    if found.empty:
        raise UserError(
            f"nothing is published for the datasets and algorithms of {selection.experiment.name}"
        )
    samples = per_seed(selection, measure)
    lines = [_line(fact, samples) for fact in found.to_dict("records")]
    long = pd.DataFrame([line for line in lines if line["seeds"]])
    if long.empty:
        raise UserError(f"no finished runs of {selection.experiment.name} have published numbers beside them")
    return Table(
        f"{selection.experiment.name}-published",
        _caption(selection, measure, found, long),
        (
            "dataset",
            "algorithm",
            "metric",
            "ours",
            "95 % interval",
            "source",
            "published",
            "difference",
            "covered",
        ),
        tuple(map(_row, long.to_dict("records"))),
        long,
        selection.missing,
    )


def per_seed(selection: Selection, measure: Measure) -> pd.DataFrame:
    """dataset, label, metric, value: every number of ours that something published could stand beside."""
    keys = ["dataset", "label"]
    parts = [values.read(selection, measure)[[*keys, "value"]].assign(metric="score")]
    if "bellman_error" in selection.evaluations:
        timed = bellman.seeds(selection)
        parts.append(timed.melt(keys, ["bellman_error", "seconds"], "metric"))
    return pd.concat(parts, ignore_index=True)


def _line(fact: dict, samples: pd.DataFrame) -> dict:
    key = ["dataset", "label", "metric"]
    own = samples[(samples[key] == [fact[name] for name in key]).all(axis=1)]["value"]
    sample = own.dropna().to_numpy()
    line = fact | {"seeds": len(sample), "of": len(own), "ours": sample.mean() if len(sample) else math.nan}
    if len(sample) < 2:
        return line | {"low": math.nan, "high": math.nan, "covered": None}
    rng = np.random.default_rng(statistics.SEED)
    made = statistics.estimates(sample[:, None], {"mean": statistics.mean}, rng)["mean"]
    return line | {"low": made.low, "high": made.high, "covered": made.covers(fact["mean"])}


def _row(line: dict) -> Row:
    written = tenths if line["metric"] == "score" else number
    interval = "—" if math.isnan(line["low"]) else f"[{written(line['low'])}, {written(line['high'])}]"
    reached = "" if line["seeds"] == line["of"] else f" ({line['seeds']}/{line['of']})"
    theirs = written(line["mean"]) + ("" if pd.isna(line["std"]) else f" ± {written(line['std'])}")
    difference = line["ours"] - line["mean"]
    texts = (
        line["dataset"],
        line["label"],
        METRICS[line["metric"]],
        written(line["ours"]) + reached,
        interval,
        line["source"],
        theirs,
        ("+" if difference > 0 else "") + written(difference),
        {True: "yes", False: "no", None: "—"}[line["covered"]],
    )
    return tuple(map(Cell, texts))


def _caption(selection: Selection, measure: Measure, found: pd.DataFrame, long: pd.DataFrame) -> str:
    counts = [
        f"{group['covered'].eq(True).sum()} of {group['covered'].notna().sum()} ({source}, {METRICS[metric]})"
        for (source, metric), group in long.groupby(["source", "metric"], sort=False)
    ]
    scored = found["metric"].eq("score").any()
    parts = [
        f"Ours: mean over seeds, 95 % bootstrap interval ({statistics.RESAMPLES:,} resamples, percentiles,",
        "seeded). Difference: ours less theirs. Covered: whether our interval holds the published mean;",
        f"it does for {', '.join(counts)}.",
        *statistics.caution(int(long["seeds"].max())),
        captions.training(selection),
        *([f"A run's score is read by the protocol {measure.aggregate}."] if scored else []),
        captions.data(selection),
        published.caption(selection, found),
        *(published.inconsistencies() if scored else []),
        *selection.notes,
    ]
    return " ".join(parts)
