"""Which runs a table or a figure is about: one experiment's, under one protocol, none left out unsaid."""

import dataclasses
from dataclasses import dataclass

import pandas as pd

from offline_gntd.errors import UserError
from offline_gntd.runs import experiments, results
from offline_gntd.runs.experiments import Experiment
from offline_gntd.runs.results import KEY


@dataclass(frozen=True)
class Selection:
    experiment: Experiment
    evaluations: pd.DataFrame
    runs: pd.DataFrame
    missing: tuple[str, ...]
    notes: tuple[str, ...]


def select(name: str) -> Selection:
    """The finished runs an experiment asks for; refuses to mix what must not be compared."""
    experiment = experiments.find(name)
    found = results.read(name)
    runs = found.finished()
    if runs.empty:
        raise UserError(f"no finished runs of {name}; run them with: offline-gntd run {name}")
    expected = pd.DataFrame(
        [(c.dataset, c.algorithm, seed) for c in experiment.cells() for seed in c.seeds], columns=KEY
    )
    protocol = dataclasses.asdict(experiment.protocol)
    runs = runs[runs["protocol"].map(lambda p: p == protocol)].merge(expected, on=KEY)
    _refuse_mixtures(runs)
    absent = expected.merge(runs[KEY], on=KEY, how="left", indicator=True)
    absent = absent[absent["_merge"] == "left_only"]
    return Selection(
        experiment,
        found.evaluations.merge(runs[KEY], on=KEY),
        runs,
        tuple(f"{row.dataset} {row.algorithm} seed {row.seed}" for row in absent.itertuples()),
        found.notes,
    )


def _refuse_mixtures(runs: pd.DataFrame) -> None:
    for dataset, group in runs.groupby("dataset"):
        for column, what in (
            ("dataset_sha256", "data"),
            ("env_id", "environments"),
            ("stack", "stack sizes"),
        ):
            if group[column].nunique() > 1:
                odd = group[group[column] != group[column].mode()[0]].iloc[0]
                raise UserError(
                    f"the runs on {dataset} do not share their {what}: {odd.algorithm} seed {odd.seed} has "
                    f"{column} {odd[column]}; run it again with --redo"
                )
