"""Our results beside published numbers: the difference, and whether our interval contains them."""

import math

import numpy as np
import pandas as pd

from offline_gntd.analysis import captions, published, statistics, td_error
from offline_gntd.analysis.selection import Measure, Selection, run_values
from offline_gntd.analysis.table import Cell, Row, Table, number, tenths
from offline_gntd.errors import UserError

METRICS = {
    "score": "score",
    "td_error_abs_target": "TD error (abs, target net)",
    "seconds": "seconds to threshold",
}


def table(selection: Selection, measure: Measure) -> Table:
    """One line per published number with finished runs of ours: the difference, and whether our interval
    contains it."""
    found = published.for_datasets(selection)
    if found.empty:
        raise UserError(
            f"nothing is published for the datasets and algorithms of {selection.experiment.name}"
        )
    samples = _per_seed(selection, measure)
    lines = [_line(fact, samples) for fact in found.to_dict("records")]
    long = pd.DataFrame([line for line in lines if line["seeds"]])
    if long.empty:
        raise UserError(f"no finished runs of {selection.experiment.name} have published numbers")
    labels = selection.dataset_labels
    columns = ("dataset", "algorithm", "metric", "ours", "95 % interval", "source", "published", "difference")
    return Table(
        f"{selection.experiment.name}-published",
        _caption(selection, measure, found, long),
        (*columns, "in interval"),
        tuple(_row(line, labels) for line in long.to_dict("records")),
        long,
        selection.missing,
        protocol=captions.protocol(selection),
    )


def _per_seed(selection: Selection, measure: Measure) -> pd.DataFrame:
    """dataset, label, metric, value: our numbers that may have a published counterpart."""
    keys = ["dataset", "label"]
    parts = [run_values(selection, measure)[[*keys, "value"]].assign(metric="score")]
    parts.append(td_error.per_seed(selection).melt(keys, ["td_error_abs_target", "seconds"], "metric"))
    return pd.concat(parts, ignore_index=True)


def _line(fact: dict, samples: pd.DataFrame) -> dict:
    key = ["dataset", "label", "metric"]
    ours = samples[(samples[key] == [fact[name] for name in key]).all(axis=1)]["value"]
    values = ours.dropna().to_numpy()
    line = fact | {"seeds": len(values), "of": len(ours), "ours": values.mean() if len(values) else math.nan}
    if len(values) < 2:
        return line | {"low": math.nan, "high": math.nan, "covered": None}
    rng = np.random.default_rng(statistics.SEED)
    mean = statistics.estimates(values[:, None], {"mean": statistics.mean}, rng)["mean"]
    return line | {"low": mean.low, "high": mean.high, "covered": mean.covers(fact["mean"])}


def _row(line: dict, labels: dict[str, str]) -> Row:
    written = tenths if line["metric"] == "score" else number
    interval = "—" if math.isnan(line["low"]) else f"[{written(line['low'])}, {written(line['high'])}]"
    reached = "" if line["seeds"] == line["of"] else f" ({line['seeds']}/{line['of']})"
    theirs = written(line["mean"]) + ("" if pd.isna(line["std"]) else f" ± {written(line['std'])}")
    difference = line["ours"] - line["mean"]
    texts = (
        labels[line["dataset"]],
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
        f"95 % bootstrap intervals over seeds contain {', '.join(counts)} published numbers.",
        *captions.few_seeds(int(long["seeds"].max())),
        *([f"Our score: {measure.words(selection)}."] if scored else []),
        published.caption(found),
        *(published.inconsistencies() if scored else []),
        *selection.notes,
    ]
    return " ".join(filter(None, parts))
