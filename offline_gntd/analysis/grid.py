"""Any grid of runs as a table: rows, columns, metric and protocol of one's choice; mean ± std over seeds."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import pandas as pd

from offline_gntd.analysis import captions, compatibility, published, significance, values
from offline_gntd.analysis.axes import AXES, axis, ordered
from offline_gntd.analysis.selection import Selection
from offline_gntd.analysis.table import Cell, Row, Table, number, result, tenths
from offline_gntd.analysis.values import LAST_SCORE, Measure
from offline_gntd.errors import UserError


@dataclasses.dataclass(frozen=True)
class Layout:
    rows: str = "dataset"
    columns: str = "algorithm"

    def __post_init__(self):
        if self.rows == self.columns:
            raise UserError(f"rows and columns cannot both be {self.rows}")


USUAL = Layout()
TOTAL = "total"


def table(selection: Selection, measure: Measure = LAST_SCORE, layout: Layout = USUAL) -> Table:
    """Scores of datasets × algorithms have totals below and published numbers beside them; where the data is
    mixed, each row says where its own comes from, and only what comes from one place is summed."""
    lines = with_missing(selection, values.read(selection, measure))
    lines = lines.assign(row=axis(lines, layout.rows), column=axis(lines, layout.columns))
    _refuse_crowded_cells(lines, layout)
    rows, columns = ordered(lines["row"], layout.rows), ordered(lines["column"], layout.columns)
    scored = layout == USUAL and measure.metric == "score"
    others = published.beside(selection) if scored else pd.DataFrame()
    totals = [*_totals(selection, lines, measure)] if scored else []
    long = pd.concat([summary(lines, measure), *totals], ignore_index=True)
    cells = {
        (line["row"], line["column"]): _cell(line, measure, selection.experiment.seeds)
        for line in long.to_dict("records")
    }

    origins = selection.origins if layout.rows == "dataset" and not selection.comparable else {}

    def row_of(name: str, without_ours: str, without_others: str) -> Row:
        head = f"{name} ({origins[name]})" if name in origins else name
        ours = [cells.get((name, column), Cell(without_ours)) for column in columns]
        return (Cell(head), *ours, *(Cell(others[column].get(name, without_others)) for column in others))

    return Table(
        selection.experiment.name,
        _caption(selection, measure, lines, bool(totals), others),
        (_title(layout), *columns, *others.columns),
        tuple(row_of(name, "", "—") for name in rows),
        long.drop(columns=["row", "column", "bold"]),
        selection.missing,
        tuple(row_of(total["row"].iloc[0], "missing", "") for total in totals),
    )


def with_missing(selection: Selection, lines: pd.DataFrame) -> pd.DataFrame:
    """The lines of values.read with one for every missing run, its value NaN, in the experiment's order."""
    labels = selection.labels
    configs = lines.drop_duplicates("algorithm").set_index("algorithm")["config"]
    absent = [
        {**run._asdict(), "label": labels[run.algorithm], "config": configs.get(run.algorithm, {})}
        for run in selection.missing
    ]
    lines = pd.concat([lines.assign(present=True), pd.DataFrame(absent)], ignore_index=True)
    lines = lines.assign(
        present=lines["present"].eq(True),
        diverged=lines["diverged"].eq(True),
        value=lines["value"].astype(float),
    )
    orders = {"dataset": selection.experiment.dataset_names(), "algorithm": selection.experiment.algorithms}
    places = [lines[key].map({name: i for i, name in enumerate(order)}) for key, order in orders.items()]
    return lines.iloc[np.lexsort((lines["seed"], places[1], places[0]))].reset_index(drop=True)


def summary(lines: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """One line per dataset × algorithm; spreads are over seeds, with ddof 1."""
    metric = measure.metric
    groups = lines.groupby(["row", "column", "dataset", "algorithm", "label"], sort=False)
    long = groups.agg(
        seeds=("present", "sum"),
        diverged=("diverged", "sum"),
        evaluations=("evaluations", "min"),
        **{metric: ("value", "mean"), f"{metric}_std": ("value", "std")},
    ).reset_index()
    best = {
        (dataset, algorithm)
        for dataset, group in lines.groupby("dataset")
        for algorithm in _best(group, measure)
    }
    bold = [key in best for key in zip(long["dataset"], long["algorithm"], strict=True)]
    return long.assign(aggregate=measure.aggregate, bold=bold)


def _totals(selection: Selection, lines: pd.DataFrame, measure: Measure) -> Iterator[pd.DataFrame]:
    """One total of all datasets or, where they are not comparable, one of each origin whose datasets are."""
    if selection.comparable:
        groups = [(TOTAL, lines)]
    else:
        by_origin = lines.groupby(lines["dataset"].map(selection.origins), sort=False)
        groups = [(f"{TOTAL}, {origin}", group) for origin, group in by_origin]
    for name, group in groups:
        runs = selection.runs[selection.runs["dataset"].isin(group["dataset"])]
        if group["dataset"].nunique() > 1 and not compatibility.notes(runs):
            yield totals_of(group, measure, name)


def totals_of(lines: pd.DataFrame, measure: Measure, name: str = TOTAL) -> pd.DataFrame:
    """Mean over seeds of per-seed totals, and their std; a seed that lacks a dataset has no total."""
    datasets = lines["dataset"].nunique()
    per_seed = lines[lines["value"].notna()].groupby(["algorithm", "label", "seed"], sort=False)
    per_seed = per_seed.agg(
        value=("value", "sum"), datasets=("dataset", "size"), diverged=("diverged", "sum")
    )
    per_seed = per_seed[per_seed["datasets"] == datasets].reset_index()
    totals = per_seed.groupby(["algorithm", "label"], sort=False).agg(
        seeds=("seed", "size"),
        diverged=("diverged", "sum"),
        **{measure.metric: ("value", "mean"), f"{measure.metric}_std": ("value", "std")},
    )
    best = _best(per_seed, measure)
    totals = totals.reset_index().assign(dataset=name, aggregate=measure.aggregate)
    return totals.assign(column=totals["label"], row=name, bold=totals["algorithm"].isin(best))


def _best(lines: pd.DataFrame, measure: Measure) -> set:
    if not measure.direction:
        return set()
    samples = {
        algorithm: group["value"].to_numpy() for algorithm, group in lines.groupby("algorithm", sort=False)
    }
    return significance.best(samples, lower=measure.direction < 0)


def _cell(line: dict, measure: Measure, expected: int) -> Cell:
    if not line["seeds"]:
        return Cell("missing")
    written = tenths if measure.metric in ("score", "return") else number
    return Cell(result(line, measure.metric, expected, written), bold=line["bold"])


def _refuse_crowded_cells(lines: pd.DataFrame, layout: Layout) -> None:
    for (row, column), group in lines.groupby(["row", "column"], sort=False):
        cells = list(dict.fromkeys(zip(group["dataset"], group["algorithm"], strict=True)))
        if len(cells) > 1:
            raise UserError(
                f"the cell of {layout.rows} {row} and {layout.columns} {column} would hold "
                f"{' '.join(cells[0])} and {' '.join(cells[1])}; choose with --datasets or --algorithms"
            )


def _title(layout: Layout) -> str:
    return layout.rows if layout.columns in AXES else f"{layout.rows} \\ {layout.columns}"


def _caption(
    selection: Selection, measure: Measure, lines: pd.DataFrame, summed: bool, others: pd.DataFrame
) -> str:
    averaged = int(lines["evaluations"].max()) if lines["evaluations"].notna().any() else 1
    what = "Normalised score (0 random, 100 expert)" if measure.metric == "score" else measure.metric
    parts = [
        f"{what}: {captions.training(selection)}",
        f"A run's value is {measure.words(averaged)}; {captions.SPREAD}.",
        captions.data(selection),
        *captions.marks(selection),
    ]
    if summed:
        of = "" if selection.comparable else " of one origin"
        parts.append(f"Total: mean over seeds of a seed's sum over datasets{of}, and the std of these sums.")
    if measure.direction:
        parts.append(f"{significance.RULE} Compared are the algorithms on one dataset.")
    if len(others.columns):
        parts.append(published.caption(selection, published.scores(selection)))
    return " ".join([*parts, *selection.notes])
