"""The paper's Table 1: TD error after training, updates and seconds to a return, and the paper's numbers.

`claims` compares GNTD with TD and GNDQN with DQN in each of these, with a verdict.
"""

import math
import re
from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from offline_gntd.analysis import published, statistics
from offline_gntd.analysis.selection import Measure, Selection
from offline_gntd.analysis.table import (
    Cell,
    Row,
    Table,
    mean_std,
    minus,
    number,
    ratio_text,
    sentences,
    tenths,
    whole,
)
from offline_gntd.errors import UserError
from offline_gntd.experiments.results import KEY

THRESHOLDS = {"CartPole-v1": 400.0, "Acrobot-v1": -100.0}  # returns; the paper's −400 is a misprint
ERRORS = {  # metrics after training, and their headings
    "td_error_abs_target": "TD error (abs, target net)",
    "td_error_abs": "TD error (abs)",
    "bellman_error": "TD error (squared)",
}
ROUNDING = 1e-9  # tolerance for an interval's limits
VERDICTS = ("better", "worse", "unclear", "missing")


class Compared(NamedTuple):
    heading: str
    ratio: bool  # compared by ratio, not by difference
    less: bool  # less is better


MEASURES = {  # by column of per_seed
    "final_return": Compared("final return", ratio=False, less=False),
    "td_error_abs_target": Compared(ERRORS["td_error_abs_target"], ratio=True, less=True),
    "updates_counted": Compared("updates to threshold", ratio=True, less=True),
    "seconds_counted": Compared("seconds to threshold", ratio=True, less=True),
}


def table(selection: Selection, measure: Measure) -> Table:
    """One row per dataset and algorithm; errors and returns are from the last evaluation."""
    _require_threshold(selection)
    seeds = per_seed(selection)
    long = summary(selection, seeds)
    rows = []
    for dataset, group in long.groupby("dataset", sort=False):
        best = _best(group, seeds[seeds["dataset"] == dataset])
        rows += [_row(line, best, selection.experiment.seeds) for line in group.to_dict("records")]
    columns = (
        *(
            "dataset",
            "algorithm",
            "TD error (abs, target net)",
            "paper",
            "TD error (abs)",
            "TD error (squared)",
        ),
        *("at threshold", "updates to threshold", "seconds to threshold", "paper seconds", "final return"),
    )
    caption = sentences(
        "TD error on up to 16,384 rows and return after training: mean ± std over seeds.",
        f"Threshold: first evaluation {_thresholds(selection)}; updates, {selection.clock}: mean of the",
        "seeds that reach it.",
        selection.marks,
        statistics.bold_rule(selection.most_seeds),
    )
    return Table(caption, columns, tuple(rows), long)


def _require_threshold(selection: Selection) -> None:
    if not selection.runs["env_id"].isin(THRESHOLDS).any():
        raise UserError(f"this kind of table needs runs on {' or '.join(THRESHOLDS)}")


def per_seed(selection: Selection) -> pd.DataFrame:
    """One line per run: errors and return of the last evaluation, first evaluation at the threshold.

    updates, seconds                  NaN if the run does not reach the threshold
    updates_counted, seconds_counted  the same with the length of the run in place of NaN
    """
    runs = selection.runs
    lines = runs[[*KEY, "label"]].assign(
        diverged=runs["status"] == "diverged", threshold=runs["env_id"].map(THRESHOLDS).astype(float)
    )
    rows = selection.evaluations.reindex(columns=dict.fromkeys([*selection.evaluations, *ERRORS]))
    rows = rows.merge(lines[[*KEY, "threshold"]], on=KEY).sort_values("step")
    last = rows.groupby(KEY, sort=False).tail(1)[[*KEY, *ERRORS, "return", "step", "seconds"]]
    last.columns = [*KEY, *ERRORS, "final_return", "last_step", "last_seconds"]
    first = rows[rows["return"] >= rows["threshold"]].groupby(KEY, sort=False).head(1)
    first = first[[*KEY, "step", "seconds"]].rename(columns={"step": "updates"})
    lines = lines.merge(last, on=KEY, how="left").merge(first, on=KEY, how="left")
    length = lines["algorithm"].map(lambda name: selection.experiment.protocol_of(name).steps)
    seconds = lines["last_seconds"] * length / lines["last_step"]  # a diverged run is shorter
    limited = lines["threshold"].notna()
    return lines.assign(
        updates_counted=lines["updates"].fillna(length.where(limited)),
        seconds_counted=lines["seconds"].fillna(seconds.where(limited)),
    ).drop(columns=["last_step", "last_seconds"])


def summary(selection: Selection, seeds: pd.DataFrame) -> pd.DataFrame:
    """One line per dataset and algorithm of the experiment; std over seeds with ddof 1."""
    averaged = [*ERRORS, "updates", "seconds", "final_return"]
    averages = {
        f"{column}{suffix}": (column, how)
        for column in averaged
        for suffix, how in (("", "mean"), ("_std", "std"))
    }
    lines = seeds.groupby(["dataset", "algorithm"], sort=False).agg(
        seeds=("seed", "size"),
        diverged=("diverged", "sum"),
        threshold=("threshold", "first"),
        reached=("updates", "count"),
        **averages,
    )
    experiment = selection.experiment
    grid = pd.MultiIndex.from_product(
        [experiment.dataset_names(), experiment.algorithms], names=lines.index.names
    )
    counts = {"seeds": 0, "diverged": 0, "reached": 0}
    lines = lines.reindex(grid).fillna(counts).astype(dict.fromkeys(counts, int)).reset_index()
    lines.insert(2, "label", lines["algorithm"].map(selection.labels))
    paper = published.discrete().pivot(index=["dataset", "label"], columns="metric", values="mean")
    paper = paper.add_prefix("paper_").reset_index().rename(columns={"label": "paper_label"})
    lines["paper_label"] = lines["label"].str.removesuffix(published.SCRIPT)
    return lines.merge(paper, on=["dataset", "paper_label"], how="left").drop(columns="paper_label")


def claims(selection: Selection, measure: Measure) -> Table:
    """Each Gauss-Newton algorithm against its baseline, by dataset and measure, with the paper's claim."""
    labels = list(selection.labels.values())
    pairs = [(label, baseline_of(label)) for label in labels if baseline_of(label) in {*labels} - {label}]
    _require_threshold(selection)
    if not pairs:
        raise UserError(f"{selection.experiment.name} has neither GNTD and TD nor GNDQN and DQN")
    seeds, lines = per_seed(selection), []
    paper = summary(selection, seeds).set_index(["dataset", "label"])
    for dataset in selection.experiment.dataset_names():
        for pair in pairs:
            ours, theirs = (
                seeds[(seeds["dataset"] == dataset) & (seeds["label"] == label)] for label in pair
            )
            paper_ours, paper_theirs = (paper.loc[(dataset, label)] for label in pair)
            lines += [
                {"dataset": dataset, "algorithm": pair[0], "baseline": pair[1], "measure": name}
                | _comparison(ours, theirs, name)
                | _published(paper_ours, paper_theirs, name)
                for name in MEASURES
            ]
    long = pd.DataFrame(lines)
    columns = (
        "dataset",
        "algorithms",
        "measure",
        "Gauss-Newton",
        "baseline",
        "difference or ratio",
        "verdict",
    )
    caption = sentences(
        f"{'; '.join(verdict_counts(long))}.",
        "Difference of returns or ratio of means, 95 % bootstrap interval; unclear: contains 0 or 1.",
        f"Threshold: {_thresholds(selection)}; k/n: seeds that reach it. Times of both algorithms are cut",
        "at the end of the shortest run that does not reach it (≥); × 1.00 [1.00, 1.00]: nothing to compare.",
        selection.few_seeds,
    )
    return Table(caption, (*columns, "paper"), tuple(map(_claim_row, lines)), long)


def verdict_counts(long: pd.DataFrame) -> list[str]:
    """The number of each verdict by pair of algorithms, from the numbers of a table of claims."""
    texts = []
    for (algorithm, baseline), group in long.groupby(["algorithm", "baseline"], sort=False):
        counts = group["verdict"].value_counts()
        shown = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if verdict in counts)
        texts.append(f"{algorithm} against {baseline}: {shown}")
    return texts


def baseline_of(label: str) -> str:
    """TD for GNTD, DQN (script) for GNDQN (script), BCQ for GN-BCQ; other labels are returned unchanged."""
    return re.sub(r"\bGN-?", "", label, count=1)


def _comparison(ours: pd.DataFrame, theirs: pd.DataFrame, name: str) -> dict[str, Any]:
    """Difference or ratio of the means of two algorithms on one dataset, and the verdict.

    Times to the threshold are restricted means: both sides are cut off at the end of the shortest run that
    does not reach it, so that a baseline that fails quickly does not look fast.
    """
    _, ratio, less = MEASURES[name]
    neutral = 1.0 if ratio else 0.0
    x, y = (frame[name].dropna().to_numpy(float) for frame in (ours, theirs))
    limit = math.inf
    if name.endswith("_counted"):
        unreached = [*ours[name][ours["updates"].isna()], *theirs[name][theirs["updates"].isna()]]
        limit = min(unreached, default=math.inf)
    x, y = np.minimum(x, limit), np.minimum(y, limit)
    line: dict[str, Any] = {"kind": "ratio" if ratio else "difference"}
    for prefix, frame, values in (("", ours, x), ("baseline_", theirs, y)):
        line |= {f"{prefix}value": values.mean() if len(values) else math.nan, f"{prefix}seeds": len(frame)}
        line |= {f"{prefix}reached": int(frame["updates"].count())}
        line |= {f"{prefix}limited": bool((values >= limit).any())}
    estimate = statistics.Estimate(math.nan, math.nan, math.nan)
    if len(x) and len(y) and not (ratio and not y.mean()):
        estimate = statistics.compare_means(x, y, ratio)
    line |= {"estimate": estimate.value, "low": estimate.low, "high": estimate.high}
    return line | {"verdict": _verdict(estimate, neutral, less, min(len(x), len(y)))}


def _verdict(estimate: statistics.Estimate, neutral: float, less: bool, seeds: int) -> str:
    if math.isnan(estimate.value):
        return "missing"
    if seeds < statistics.FEWEST_RUNS or estimate.low - ROUNDING <= neutral <= estimate.high + ROUNDING:
        return "unclear"
    return "better" if (estimate.value < neutral) == less else "worse"


def _published(ours: pd.Series, theirs: pd.Series, name: str) -> dict[str, Any]:
    """The paper's claim: better in convergence speed, final return and TD error, with its ratio if given."""
    columns = {"td_error_abs_target": "paper_td_error_abs_target", "seconds_counted": "paper_seconds"}
    column = columns.get(name)
    if column is None:
        return {"paper": "better", "paper_ratio": math.nan}
    ratio = ours[column] / theirs[column]
    if math.isnan(ours[column]):
        return {"paper": "—", "paper_ratio": math.nan}
    return {"paper": "better" if math.isnan(ratio) or ratio < 1 else "worse", "paper_ratio": ratio}


def _claim_row(line: dict[str, Any]) -> Row:
    heading, ratio, _ = MEASURES[line["measure"]]
    to_threshold = line["measure"].endswith("_counted")
    written = {"final_return": tenths, "updates_counted": whole}.get(line["measure"], number)

    def value(prefix: str) -> str:
        text = written(line[f"{prefix}value"])
        if not to_threshold or text == "—":
            return text
        reached, seeds = line[f"{prefix}reached"], line[f"{prefix}seeds"]
        return f"{'≥ ' if line[f'{prefix}limited'] else ''}{text} ({reached}/{seeds})"

    shown = "—"
    if not math.isnan(line["estimate"]):
        several = min(line["seeds"], line["baseline_seeds"]) > 1
        estimate = statistics.Estimate(line["estimate"], line["low"], line["high"])
        shown = ("× " if ratio else "") + estimate.text(ratio_text if ratio else tenths, several)
    paper = line["paper"]
    if not math.isnan(line["paper_ratio"]):
        paper += f" (× {ratio_text(line['paper_ratio'])})"
    elif line["measure"] == "seconds_counted" and paper == "better":
        paper += " (baseline never reaches it)"
    return (
        Cell(line["dataset"]),
        Cell(f"{line['algorithm']} : {line['baseline']}"),
        Cell(heading),
        Cell(value("")),
        Cell(value("baseline_")),
        Cell(shown),
        Cell(line["verdict"], bold=line["verdict"] in ("better", "worse")),
        Cell(paper),
    )


def _thresholds(selection: Selection) -> str:
    environments = [env for env in selection.runs["env_id"].unique() if env in THRESHOLDS]
    return ", ".join(f"≥ {minus(f'{THRESHOLDS[env]:g}')} on {env}" for env in environments)


def _best(lines: pd.DataFrame, seeds: pd.DataFrame) -> dict[str, set[Hashable]]:
    """Algorithms in bold on one dataset, by column."""
    samples = {name: group for name, group in seeds.groupby("algorithm", sort=False)}
    # a mean over few seeds is not compared with one over all
    most = set(lines[lines["reached"] == lines["reached"].max()]["algorithm"])
    best = {
        column: statistics.best({name: group[column] for name, group in samples.items()}, lower)
        for column, lower in (*dict.fromkeys(ERRORS, True).items(), ("final_return", False))
    }
    for column in ("updates", "seconds"):
        rivals = {name: group[column] for name, group in samples.items() if name in most}
        best[column] = statistics.best(rivals, lower=True)
    for column in ("paper_td_error_abs_target", "paper_seconds"):
        best[column] = set(lines[lines[column] == lines[column].min()]["algorithm"])
    return best


def _row(line: dict[str, Any], best: dict[str, set[Hashable]], expected: int) -> Row:
    def cell(column: str, text: str) -> Cell:
        return Cell(text if line["seeds"] else "missing", bold=line["algorithm"] in best[column])

    def paper(column: str) -> Cell:
        return Cell(number(line[column]), bold=line["algorithm"] in best[column])

    # marks of missing and diverged seeds once, at the first error that was measured
    marked = next((name for name in ERRORS if not math.isnan(line[name])), "bellman_error")
    plain = line | {"diverged": 0, "seeds": expected}
    target, online, squared = (
        cell(name, mean_std(line if name == marked else plain, name, expected, number)) for name in ERRORS
    )
    reached = f"{line['reached']}/{line['seeds'] or expected}"
    return (
        Cell(line["dataset"]),
        Cell(line["label"]),
        target,
        paper("paper_td_error_abs_target"),
        online,
        squared,
        Cell(reached),
        cell("updates", whole(line["updates"])),
        cell("seconds", number(line["seconds"])),
        paper("paper_seconds"),
        cell("final_return", mean_std(plain, "final_return", expected)),
    )
