"""Tables of one metric, mean ± std over seeds: any rows × columns, and aggregates over datasets."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from offline_gntd.analysis import published, statistics
from offline_gntd.analysis.selection import Measure, Selection, mixed_data_notes, run_values
from offline_gntd.analysis.table import Cell, Row, Table, mean_std, sentences, tenths, written_as
from offline_gntd.errors import UserError, unknown

AXES = ("dataset", "algorithm", "preset")  # or the path of a setting: kfac.damping
TOTAL = "total"
RISING = "↑"  # marks a cell whose curve has not flattened
RISE, SMALLEST_RISE = 5.0, 1.0  # score points


@dataclasses.dataclass(frozen=True)
class Layout:
    rows: str = "dataset"
    columns: str = "algorithm"

    def __post_init__(self):
        if self.rows == self.columns:
            raise UserError(f"--rows and --columns are both {self.rows}; choose two different ones")


DEFAULT_LAYOUT = Layout()


def table(selection: Selection, measure: Measure, layout: Layout = DEFAULT_LAYOUT) -> Table:
    """Scores of datasets × algorithms also have totals, one per origin of the data, and published numbers."""
    lines = with_missing(selection, run_values(selection, measure))
    lines = lines.assign(row=axis(lines, layout.rows), column=axis(lines, layout.columns))
    _refuse_crowded_cells(lines, layout)
    rows, columns = ordered(lines["row"], layout.rows), ordered(lines["column"], layout.columns)
    is_default_score = layout == DEFAULT_LAYOUT and measure.metric == "score"
    totals = [each for each in _totals(selection, lines, measure) if len(each)] if is_default_score else []
    rising = still_rising(selection) if measure.metric == "score" else set()
    long = summary(lines, measure)
    long["rising"] = [key in rising for key in zip(long["dataset"], long["algorithm"], strict=True)]
    long = pd.concat([long, *totals], ignore_index=True)
    seeds = selection.experiment.seeds
    cells = {(line["row"], line["column"]): _cell(line, measure, seeds) for line in long.to_dict("records")}
    headings = (
        selection.dataset_labels if "dataset" in (layout.rows, layout.columns) else {}
    ) | selection.headings

    def row_of(name: str, absent: str) -> Row:
        found = (cells.get((name, column), Cell(absent)) for column in columns)
        return (Cell(headings.get(name, name)), *found)

    title = layout.rows if layout.columns in AXES else f"{layout.rows} \\ {layout.columns}"
    return Table(
        _caption(selection, measure, bool(totals), bool(rising)),
        (title, *(headings.get(column, column) for column in columns)),
        tuple(row_of(name, "") for name in rows),
        long.drop(columns=["row", "column", "bold"]),
        foot=tuple(row_of(total["row"].iloc[0], "missing") for total in totals),
        block=published.score_block(selection) if is_default_score else (),
        block_title="published, genuine D4RL",
    )


def with_missing(selection: Selection, lines: pd.DataFrame) -> pd.DataFrame:
    """The lines of run_values and a line with value NaN per missing run, in the experiment's order."""
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
    """One line per dataset and algorithm; std over seeds with ddof 1."""
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


def still_rising(selection: Selection) -> set[tuple[str, str]]:
    """The (dataset, algorithm) cells whose score was still rising when training ended.

    A cell is rising if the mean of its last quarter of evaluations exceeds the mean of the quarter before by
    more than 5 points, or by more than 1 point and the std over seeds. It needs at least 8 evaluations.
    """
    rising = set()
    for cell, group in selection.evaluations.groupby(["dataset", "algorithm"], sort=False):
        curves = group.pivot(index="step", columns="seed", values="score").sort_index()
        quarter = len(curves) // 4
        if quarter < 2:
            continue
        last, before = curves.iloc[-quarter:], curves.iloc[-2 * quarter : -quarter]
        rise, std = (last.mean() - before.mean()).mean(), last.mean().std()
        if rise > RISE or rise > max(std, SMALLEST_RISE):
            rising.add(cell)
    return rising


def _totals(selection: Selection, lines: pd.DataFrame, measure: Measure) -> Iterator[pd.DataFrame]:
    """One total over all datasets or, where these are not comparable, one per origin of the data."""
    if selection.comparable:
        groups = [(TOTAL, lines)]
    else:
        by_origin = lines.groupby(lines["dataset"].map(selection.origins), sort=False)
        groups = [(f"{TOTAL}, {origin}", group) for origin, group in by_origin]
    for name, group in groups:
        runs = selection.runs[selection.runs["dataset"].isin(group["dataset"])]
        if group["dataset"].nunique() > 1 and not mixed_data_notes(runs):
            yield totals_of(group, measure, name)


def totals_of(lines: pd.DataFrame, measure: Measure, name: str = TOTAL) -> pd.DataFrame:
    """Mean and std over seeds of the sum over datasets; a seed without a run on each dataset has no sum."""
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
    totals = totals.reset_index().assign(dataset=name, aggregate=measure.aggregate, rising=False)
    return totals.assign(column=totals["label"], row=name, bold=totals["algorithm"].isin(best))


def _best(lines: pd.DataFrame, measure: Measure) -> set:
    """The algorithms in bold; a mean over some of the seeds is not compared with one over all."""
    if not measure.direction:
        return set()
    seeds = lines["value"].notna().groupby(lines["algorithm"]).sum()
    complete = lines[lines["algorithm"].isin(seeds[seeds == seeds.max()].index)]
    samples = {
        algorithm: group["value"].to_numpy() for algorithm, group in complete.groupby("algorithm", sort=False)
    }
    return statistics.best(samples, lower=measure.direction < 0)


def _cell(line: dict, measure: Measure, expected: int) -> Cell:
    if not line["seeds"]:
        return Cell("missing")
    text = mean_std(line, measure.metric, expected, written_as(measure.metric))
    return Cell(f"{text} {RISING}" if line["rising"] else text, bold=line["bold"])


def _refuse_crowded_cells(lines: pd.DataFrame, layout: Layout) -> None:
    for (row, column), group in lines.groupby(["row", "column"], sort=False):
        cells = list(dict.fromkeys(zip(group["dataset"], group["algorithm"], strict=True)))
        if len(cells) > 1:
            raise UserError(
                f"the cell of {layout.rows} {row} and {layout.columns} {column} would hold "
                f"{' '.join(cells[0])} and {' '.join(cells[1])}; choose with --datasets or --algorithms"
            )


def _caption(selection: Selection, measure: Measure, with_totals: bool, with_rising: bool) -> str:
    what = selection.score_name if measure.metric == "score" else measure.metric
    source = "" if selection.comparable else " of one source"
    return sentences(
        f"{what}, {measure.words(selection)}: mean ± std over seeds.",
        selection.marks,
        f"{RISING}: still rising when training ended." if with_rising else "",
        f"Total: sum over the datasets{source}." if with_totals else "",
        statistics.bold_rule(selection.most_seeds) if measure.direction else "",
    )


def axis(lines: pd.DataFrame, name: str) -> pd.Series:
    """The row or column of each run: its dataset, its algorithm's label or preset, or one of its settings."""
    if name == "dataset":
        return lines["dataset"]
    if name == "algorithm":
        return lines["label"]
    if name == "preset":
        return lines["algorithm"].str.partition("@")[0]
    settings = lines["config"].map(flatten)
    known = {path for config in settings for path in config}
    if name not in known:
        raise unknown("row or column", name, {*AXES, *known})
    return settings.map(lambda config: setting_text(config.get(name)))


def ordered(values: pd.Series, name: str) -> list[str]:
    """Distinct values: datasets and algorithms in the experiment's order, settings by size, words last."""
    distinct = list(dict.fromkeys(values))
    if name in AXES:
        return distinct
    frame = pd.DataFrame({"text": distinct, "size": pd.to_numeric(distinct, errors="coerce")})
    return frame.sort_values(["size", "text"])["text"].tolist()


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Stored settings by path: {'kfac.damping': 0.25, …}, or {'kfac': None}."""
    paths: dict[str, Any] = {}
    for name, value in config.items():
        paths |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return paths


def setting_text(value: Any) -> str:
    """A setting as --set takes it."""
    if isinstance(value, (list, tuple)):
        return "x".join(map(str, value))
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def statistics_table(selection: Selection, measure: Measure) -> Table:
    """Mean, median, interquartile mean and optimality gap of each algorithm over all datasets."""
    if measure.metric != "score":
        raise UserError(
            f"{selection.experiment.name} reports {measure.metric}, which cannot be averaged over datasets"
        )
    rng = np.random.default_rng(statistics.SEED)
    rows, lines = [], []
    for algorithm, scores in matrices(selection, run_values(selection, measure)).items():
        label = selection.labels[algorithm]
        estimates = statistics.estimates(scores, statistics.AGGREGATES, rng)
        texts = [estimate.text(tenths, several=len(scores) > 1) for estimate in estimates.values()]
        rows.append(
            (
                Cell(selection.headings[label]),
                Cell(f"{scores.shape[0]} × {scores.shape[1]}"),
                *map(Cell, texts),
            )
        )
        lines += [{"algorithm": label, "statistic": name, **e._asdict()} for name, e in estimates.items()]
    caption = sentences(
        f"Scores over all datasets, {measure.words(selection)}; 95 % stratified bootstrap intervals.",
        f"IQM: interquartile mean. Optimality gap: mean shortfall from {statistics.GOAL:g}.",
        selection.few_seeds,
    )
    columns = ("algorithm", "seeds × datasets", *statistics.AGGREGATES)
    return Table(caption, columns, tuple(rows), pd.DataFrame(lines))


def matrices(selection: Selection, values: pd.DataFrame) -> dict[str, np.ndarray]:
    """Values of runs as [seeds, datasets] by algorithm, for the seeds with a run on every dataset."""
    found = {}
    for algorithm, group in values.groupby("algorithm", sort=False):
        matrix = group.pivot(index="seed", columns="dataset", values="value")
        matrix = matrix.reindex(columns=selection.experiment.dataset_names()).dropna()
        if len(matrix):
            found[algorithm] = matrix.to_numpy()
    if not found:
        raise UserError(
            f"no algorithm of {selection.experiment.name} has a seed with runs on all datasets; "
            "leave datasets out with --without"
        )
    return found
