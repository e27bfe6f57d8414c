"""What a run is worth: one column of its evaluations, aggregated over its evaluations."""

import re
from dataclasses import dataclass

import pandas as pd

from offline_gntd.analysis.selection import Selection
from offline_gntd.errors import UserError, unknown
from offline_gntd.experiments.definitions import Experiment
from offline_gntd.experiments.results import KEY

AGGREGATES = ("last", "best", "final-N")
DIRECTIONS = {  # 1 where more is better, −1 where less is; of anything else nothing is the best
    "score": 1,
    "return": 1,
    "bellman_error": -1,
    "loss": -1,
    "training_seconds": -1,
    "training_cpu_seconds": -1,
    "evaluation_seconds": -1,
}


@dataclass(frozen=True)
class Measure:
    metric: str = "score"  # a column of scores.csv or metrics.csv
    aggregate: str = "last"  # last: the last evaluation; final-N: the mean of the last N; best: the best one

    def __post_init__(self):
        if self.aggregate not in AGGREGATES[:2] and not re.fullmatch(r"final-[1-9]\d*", self.aggregate):
            raise unknown("aggregate", self.aggregate, AGGREGATES)
        if self.aggregate == "best" and not self.direction:
            raise UserError(f"no value of {self.metric} is the best; read it by last or final-N")

    @property
    def direction(self) -> int:
        return DIRECTIONS.get(self.metric, 0)

    @property
    def evaluations(self) -> int:
        """How many evaluations of a run are averaged."""
        return int(self.aggregate.partition("-")[2] or 1)

    def words(self, evaluations: int) -> str:
        """The aggregate in words, for runs with this number of evaluations."""
        if self.aggregate == "best":
            return "that of its best evaluation, which is chosen by this very number and flatters"
        return (
            "that of its last evaluation"
            if evaluations == 1
            else f"the mean of its last {evaluations} evaluations"
        )


LAST_SCORE = Measure()


def default_measure(experiment: Experiment) -> Measure:
    return Measure(experiment.table.metric, experiment.table.aggregate)


def read(selection: Selection, measure: Measure) -> pd.DataFrame:
    """One line per run, in order: dataset, algorithm, seed, label, diverged, config, value, evaluations."""
    numeric = selection.evaluations.select_dtypes("number").columns.difference([*KEY, "step"])
    if measure.metric not in numeric:
        raise unknown(f"metric in {selection.experiment.name}", measure.metric, numeric)
    rows = selection.evaluations.dropna(subset=measure.metric).sort_values("step")
    if measure.aggregate == "best":
        rows = rows.sort_values(measure.metric, ascending=measure.direction > 0, kind="stable")
    chosen = rows.groupby(KEY, sort=False).tail(measure.evaluations)
    means = chosen.groupby(KEY, sort=False)[measure.metric].agg(value="mean", evaluations="size")
    lines = selection.runs[[*KEY, "label", "status", "config"]].merge(means.reset_index(), on=KEY, how="left")
    return lines.assign(diverged=lines["status"] == "diverged")
