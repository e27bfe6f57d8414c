"""Which runs a table or a figure is about: one experiment's, under one protocol, none left out unsaid."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from offline_gntd.algorithms import preset
from offline_gntd.analysis import compatibility
from offline_gntd.errors import UserError, unknown
from offline_gntd.experiments import definitions, results
from offline_gntd.experiments.definitions import Experiment
from offline_gntd.experiments.results import KEY


class Absent(NamedTuple):
    """A run the experiment asks for that is not finished."""

    dataset: str
    algorithm: str
    seed: int

    @property
    def cell(self) -> tuple[str, str]:
        return self.dataset, self.algorithm

    def __str__(self) -> str:
        return f"{self.dataset} {self.algorithm} seed {self.seed}"


@dataclass(frozen=True)
class Selection:
    experiment: Experiment
    evaluations: pd.DataFrame
    runs: pd.DataFrame  # in the experiment's order
    missing: tuple[Absent, ...]
    notes: tuple[str, ...]  # what a reader should be told

    @property
    def online(self) -> bool:
        """Whether the runs collected their own batches."""
        return bool(len(self.runs)) and self.runs["dataset_origin"].eq("online").all()

    @property
    def unit(self) -> str:
        """What steps are counted in."""
        return "batches" if self.online else "updates"

    @property
    def origins(self) -> dict[str, str]:
        """Where each dataset comes from, with the version of those that have one."""
        runs = self.runs.drop_duplicates("dataset").set_index("dataset")
        versions = runs["dataset_version"].map(lambda v: f" {v}" if isinstance(v, str) else "")
        return (runs["dataset_origin"] + versions).to_dict()

    @property
    def comparable(self) -> bool:
        """Whether the datasets' scores may be added up."""
        return not compatibility.notes(self.runs)

    @property
    def labels(self) -> dict[str, str]:
        """What a table calls each algorithm: as its runs say, else as its preset, if that is known here."""
        known = self.runs.drop_duplicates("algorithm").set_index("algorithm")["label"].to_dict()
        return {name: known.get(name) or _label(name) for name in self.experiment.algorithms}


def select(
    name: str, datasets: Sequence[str] = (), algorithms: Sequence[str] = (), mixed: bool = False
) -> Selection:
    """The finished runs an experiment asks for, or some of them; refuses what must not be compared."""
    found = results.read(name)
    experiment = _part(definitions.find(name), found.runs, datasets, algorithms)
    finished = found.finished()
    if finished.empty:
        raise UserError(f"no finished runs of {name}; run them with: offline-gntd run {name}")
    expected = pd.DataFrame(
        [(c.dataset, c.algorithm, seed) for c in experiment.cells() for seed in c.seeds], columns=KEY
    )
    protocols = {name: dataclasses.asdict(experiment.protocol_of(name)) for name in experiment.algorithms}
    ours = pd.Series(
        [run.protocol == protocols.get(run.algorithm) for run in finished.itertuples()], finished.index, bool
    )
    runs = expected.merge(finished[ours], on=KEY)
    compatibility.refuse(runs, mixed)
    evaluations = found.evaluations.merge(runs[KEY], on=KEY)
    evaluated = runs.set_index(KEY).index.isin(evaluations.set_index(KEY).index)
    spoiled = runs[~evaluated & runs["status"].eq("done").to_numpy()]
    runs = runs.drop(spoiled.index)
    if evaluations.empty and len(spoiled):
        raise UserError(f"the runs of {name} lost their scores.csv; remove their folders to run them again")
    if len(runs) and evaluations.empty:
        raise UserError(f"all runs of {name} diverged before their first evaluation")
    absent = expected[~expected.set_index(KEY).index.isin(runs.set_index(KEY).index)]
    return Selection(
        experiment,
        evaluations,
        runs,
        tuple(Absent(*run) for run in absent.itertuples(index=False)),
        (
            *_left_out(expected.merge(finished[~ours], on=KEY), "have another protocol (steps, evaluations)"),
            *_left_out(spoiled, "are done and have no evaluations (remove their folders to run them again)"),
            *compatibility.notes(runs),
        ),
    )


def _label(algorithm: str) -> str:
    try:
        return preset(algorithm).label
    except UserError:
        return algorithm


def _part(
    experiment: Experiment, runs: pd.DataFrame, datasets: Sequence[str], algorithms: Sequence[str]
) -> Experiment:
    """The experiment, restricted to datasets by their name in tables and algorithms by name or label."""
    labels = dict(zip(runs["algorithm"], runs["label"], strict=True)) if len(runs) else {}
    for dataset in set(datasets) - set(experiment.dataset_names()):
        raise unknown(f"dataset in {experiment.name}", dataset, experiment.dataset_names())
    for algorithm in set(algorithms) - set(experiment.algorithms) - set(labels.values()):
        raise unknown(f"algorithm in {experiment.name}", algorithm, experiment.algorithms)
    sources = zip(experiment.datasets, experiment.dataset_names(), strict=True)
    chosen = tuple(
        name
        for name in experiment.algorithms
        if not algorithms or name in algorithms or labels.get(name) in algorithms
    )
    return dataclasses.replace(
        experiment,
        datasets=tuple(source for source, name in sources if not datasets or name in datasets),
        algorithms=chosen,
        algorithm_steps={name: n for name, n in experiment.algorithm_steps.items() if name in chosen},
    )


def _left_out(runs: pd.DataFrame, why: str) -> list[str]:
    if runs.empty:
        return []
    named = ", ".join(
        str(Absent(*run)) for run in runs[KEY].head(compatibility.MOST_NAMED).itertuples(index=False)
    )
    more = " …" if len(runs) > compatibility.MOST_NAMED else ""
    return [f"{len(runs)} runs here {why} and are left out: {named}{more}."]
