"""The runs that a table or figure shows, and the value of each run.

`select` reads one experiment's finished runs, reports the missing ones, and refuses runs that cannot be
compared. `run_values` reduces the evaluations of each run to one number.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from offline_gntd.analysis.statistics import FEW_RUNS
from offline_gntd.errors import UserError, unknown
from offline_gntd.experiments import definitions, results
from offline_gntd.experiments.definitions import Experiment
from offline_gntd.experiments.results import KEY

MOST_NAMED = 5  # runs listed in one message
ORIGINS = {  # dataset_origin in words
    "built": "built here",
    "d4rl": "D4RL",
    "minari": "Minari",
    "ogbench": "OGBench",
    "authors": "authors' buffers",
    "imported": "user's",
}
REBUILT = "rebuilt"  # a file with the name of a D4RL file and other contents
OPTIONAL = {"dataset_per_seed": False, "dataset_level": None, "dataset_built_by": None}  # not in version 0.1
SHARED_BY_DATASET = {  # run columns in which all runs on one dataset must agree
    "dataset_sha256": "data",
    "dataset_origin": "origin of the data",
    "dataset_version": "version of the data",
    "env_id": "environment",
    "stack": "seeds per process",
}


class MissingRun(NamedTuple):
    """A run that the experiment asks for and that is not finished."""

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
    """The runs of a table or figure, with the words that describe them in labels and captions."""

    experiment: Experiment
    evaluations: pd.DataFrame  # `seconds`: CPU seconds of training; wall-clock for runs on another device
    runs: pd.DataFrame  # in the experiment's order
    missing: tuple[MissingRun, ...]
    notes: tuple[str, ...]  # sentences for the caption
    shared: tuple[str, ...] = ()  # see shared_settings

    @property
    def measure(self) -> "Measure":
        """The metric and aggregate that the experiment names."""
        return Measure(self.experiment.table.metric, self.experiment.table.aggregate)

    @property
    def online(self) -> bool:
        """Whether the algorithms learned online."""
        return bool(len(self.runs)) and self.runs["dataset_origin"].eq("online").all()

    @property
    def unit(self) -> str:
        if not self.online:
            return "updates"
        old = self.runs["versions"].iloc[0].get("offline_gntd", "").startswith("0.1.")
        return "batches" if old else "environment steps"

    @property
    def score_name(self) -> str:
        """What a score is, by the reference returns of the tasks."""
        sources = {task["reference_source"] for task in self.runs["task"]}
        if sources and all(source.startswith("success rate") for source in sources):
            return "Success rate (%)"
        unknown = any(source.startswith("none known") for source in sources)
        returns = "; the return itself where no reference returns are known" if unknown else ""
        return f"Normalised score (0 random, 100 expert{returns})"

    @property
    def clock(self) -> str:
        return "CPU seconds" if self.runs["device"].eq("cpu").all() else "seconds"

    @property
    def comparable(self) -> bool:
        """Whether scores may be summed over the datasets."""
        return not mixed_data_notes(self.runs)

    @property
    def datasets(self) -> pd.DataFrame:
        """The first run on each dataset."""
        return self.runs.drop_duplicates("dataset").set_index("dataset", drop=False)

    @property
    def origins(self) -> dict[str, str]:
        """Origin and version of each dataset: 'D4RL v2', 'rebuilt v2', 'built here'."""
        return {
            run["dataset"]: " ".join(filter(None, (origin_of(run), _text(run["dataset_version"]))))
            for run in self.datasets.to_dict("records")
        }

    @property
    def dataset_labels(self) -> dict[str, str]:
        """Row labels: a rebuilt D4RL dataset is always marked, other origins only if several are mixed."""
        runs, origins, comparable = self.datasets, self.origins, self.comparable
        one_version = runs["dataset_version"].nunique() <= 1
        labels = {name: name for name in self.experiment.dataset_names()}
        for run in runs.to_dict("records"):
            name, d4rl_id = run["dataset"], run["dataset_d4rl_id"]
            if origin_of(run) == REBUILT:
                labels[name] = f"{d4rl_id.rpartition('-')[0] if one_version else d4rl_id} ({REBUILT})"
            elif not comparable:
                labels[name] = f"{name} ({origins[name]})"
        return labels

    @property
    def labels(self) -> dict[str, str]:
        """Label of each algorithm: as recorded in its runs; without runs, the label of its preset."""
        known = self.runs.drop_duplicates("algorithm").set_index("algorithm")["label"].to_dict()
        return {
            name: known.get(name) or short_label(_preset_label(name), self.shared)
            for name in self.experiment.algorithms
        }

    @property
    def headings(self) -> dict[str, str]:
        """Column heading by label, with the number of steps if it differs from the protocol's."""
        steps = self.experiment.algorithm_steps
        return {
            label: f"{label} ({steps[name]:,} {self.unit})" if name in steps else label
            for name, label in self.labels.items()
        }

    # ---- sentences for captions

    @property
    def protocol_text(self) -> str:
        """How the runs were trained and evaluated, and on what data."""
        protocol, seeds, labels = self.experiment.protocol, self.experiment.seeds, self.labels
        finished = set(self.runs["algorithm"])
        other = ", ".join(
            f"{labels[name]} {steps:,}"
            for name, steps in self.experiment.algorithm_steps.items()
            if name in finished
        )
        return (
            f"{seeds} {'seed' if seeds == 1 else 'seeds'}, {protocol.steps:,} {self.unit}"
            f"{f' ({other})' if other else ''}, evaluated every {protocol.evaluate_every:,} with "
            f"{protocol.evaluate_episodes} episodes"
            f"{'; all with ' if self.shared else ''}{', '.join(self.shared)}. {self._data()}"
        )

    def _data(self) -> str:
        runs = self.datasets
        environments = ", ".join(sorted(runs["env_id"].unique()))
        if self.online:
            return f"Trained online in {environments}."
        origins = ", ".join(f"{count} {origin}" for origin, count in Counter(self.origins.values()).items())
        per_seed = ", one dataset per seed" if runs["dataset_per_seed"].eq(True).all() else ""
        fewest, most = self.runs["dataset_rows"].min(), self.runs["dataset_rows"].max()
        rows = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
        terminal = {config.get("timeouts_terminal") for config in self.runs["config"]}
        timeouts = " Time limits count as terminal." if terminal == {True} else ""
        return f"Data: {origins}{per_seed}; {rows} transitions; {environments}.{timeouts}"

    @property
    def marks(self) -> str:
        """The meaning of † in a table, warm-up phases, and failures of K-FAC."""
        sentences = []
        if self.runs["status"].eq("diverged").any():
            sentences.append("†: diverged seeds, with their last finite values.")
        for label, group in self.runs.groupby("label", sort=False):
            warm_up = group["config"].iloc[0].get("warm_up")
            if warm_up is not None:
                sentences.append(f"{label} clones the data for its first {warm_up:,} updates.")
        if "kfac_failures" in self.evaluations:
            worst = self.evaluations.groupby(KEY)[["kfac_failures", "kfac_damping"]].max()
            failed = worst[worst["kfac_failures"] > 0]
            if len(failed):
                runs = f"{len(failed)} run{'s' * (len(failed) > 1)}"
                damping = f"{failed['kfac_damping'].max():.3g}"
                sentences.append(
                    f"K-FAC FAILED to invert a factor in {runs}; a layer's damping rose to {damping}."
                )
        return " ".join(sentences)

    @property
    def few_seeds(self) -> str:
        """A warning for tables with bootstrap intervals; empty if every cell has enough seeds."""
        seeds = int(self.runs.groupby(KEY[:2]).size().min()) if len(self.runs) else 0
        return "" if seeds >= FEW_RUNS else f"FEW SEEDS ({seeds}): intervals too narrow."

    @property
    def most_seeds(self) -> int:
        """The largest number of finished seeds of a cell."""
        return int(self.runs.groupby(KEY[:2]).size().max()) if len(self.runs) else 0


def origin_of(run: dict) -> str:
    """Where a run's dataset comes from, in words."""
    if run["dataset_origin"] == "file" and _text(run["dataset_d4rl_id"]):
        return REBUILT
    return ORIGINS.get(run["dataset_origin"], run["dataset_origin"])


def _text(value) -> str:
    return value if isinstance(value, str) else ""


def shared_settings(algorithms: Sequence[str]) -> tuple[str, ...]:
    """The settings that all algorithms have in their names: precision=bfloat16.

    Labels leave them out; captions name them once.
    """
    settings = [name.split("@")[1:] for name in algorithms]
    if len(settings) < 2:
        return ()
    return tuple(setting for setting in settings[0] if all(setting in other for other in settings))


def short_label(label: str, shared: Iterable[str]) -> str:
    """TD3+BC for TD3+BC precision=bfloat16, if all algorithms share precision=bfloat16."""
    return " ".join(word for word in label.split(" ") if word not in shared)


def select(
    name: str,
    datasets: Sequence[str] = (),
    algorithms: Sequence[str] = (),
    without: Sequence[str] = (),
    allow_mixed_data: bool = False,
) -> Selection:
    """The finished runs of an experiment, restricted to the given datasets and algorithms.

    Raises UserError without finished runs, or if they must not be compared (see refuse_incomparable).
    """
    found, whole = results.read(name), definitions.find(name)
    ran = set(found.runs["algorithm"]) if len(found.runs) else set()
    shared = shared_settings([algorithm for algorithm in whole.algorithms if algorithm in ran])
    short = {"@".join(part for part in name.split("@") if part not in shared) for name in whole.algorithms}
    if len(short) < len(whole.algorithms):  # two algorithms would have the same label
        shared = ()
    if len(found.runs):
        found.runs["label"] = [short_label(label, shared) for label in found.runs["label"]]
    labels = dict(zip(found.runs["algorithm"], found.runs["label"], strict=True)) if ran else {}
    if (
        set(algorithms) - set(whole.algorithms) - set(labels.values())
    ):  # perhaps labels of algorithms without runs
        labels |= {x: short_label(_preset_label(x), shared) for x in whole.algorithms if x not in ran}
    experiment = _restricted(whole, labels, datasets, algorithms, without)
    finished = found.finished()
    if finished.empty:
        raise UserError(f"no finished runs of {name}; run them with: offline-gntd run {name}")
    expected = pd.DataFrame(
        [(c.dataset, c.algorithm, seed) for c in experiment.cells() for seed in c.seeds], columns=KEY
    )
    protocols = {name: dataclasses.asdict(experiment.protocol_of(name)) for name in experiment.algorithms}
    same_protocol = pd.Series(
        [run.protocol == protocols.get(run.algorithm) for run in finished.itertuples()], finished.index, bool
    )
    runs = expected.merge(finished[same_protocol], on=KEY)
    for column, default in OPTIONAL.items():
        runs[column] = runs.get(column, default)
    refuse_incomparable(runs, allow_mixed_data)
    evaluations = found.evaluations.merge(runs[KEY], on=KEY)
    evaluated = runs.set_index(KEY).index.isin(evaluations.set_index(KEY).index)
    without_scores = runs[~evaluated & runs["status"].eq("done").to_numpy()]
    runs = runs.drop(without_scores.index)
    if evaluations.empty and len(without_scores):
        raise UserError(f"the runs of {name} have no scores.csv; delete their folders to run them again")
    if len(runs) and evaluations.empty:
        raise UserError(f"all runs of {name} diverged before their first evaluation")
    absent = expected[~expected.set_index(KEY).index.isin(runs.set_index(KEY).index)]
    return Selection(
        experiment,
        _with_seconds(evaluations, runs),
        runs,
        tuple(MissingRun(*run) for run in absent.itertuples(index=False)),
        (
            *_left_out(
                expected.merge(finished[~same_protocol], on=KEY), "have another protocol (steps, evaluations)"
            ),
            *_left_out(without_scores, "have no evaluations (delete their folders to run them again)"),
            *mixed_data_notes(runs),
        ),
        shared,
    )


def _with_seconds(evaluations: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    on_cpu = evaluations.merge(runs[[*KEY, "device"]], on=KEY, how="left")["device"].eq("cpu").to_numpy()
    seconds = np.where(on_cpu, evaluations["training_cpu_seconds"], evaluations["training_seconds"])
    return evaluations.assign(seconds=seconds)


def _preset_label(algorithm: str) -> str:
    from offline_gntd.algorithms import preset  # imports torch, and is needed only where runs are missing

    try:
        return preset(algorithm).label
    except UserError:
        return algorithm


def _restricted(
    experiment: Experiment,
    labels: dict[str, str],
    datasets: Sequence[str],
    algorithms: Sequence[str],
    without: Sequence[str],
) -> Experiment:
    """The experiment with some of its datasets, by name, and of its algorithms, by name or label."""
    names = experiment.dataset_names()
    for dataset in {*datasets, *without} - set(names):
        raise unknown(f"dataset in {experiment.name}", dataset, names)
    for algorithm in set(algorithms) - set(experiment.algorithms) - set(labels.values()):
        raise unknown(f"algorithm in {experiment.name}", algorithm, experiment.algorithms)
    kept = {name for name in datasets or names if name not in without}
    if not kept:
        raise UserError(f"--without leaves no dataset of {experiment.name}")
    chosen = dict.fromkeys(  # in the order asked for: a pairwise table compares with the first
        name
        for wanted in algorithms or experiment.algorithms
        for name in experiment.algorithms
        if wanted in (name, labels.get(name))
    )
    sources = zip(experiment.datasets, names, strict=True)
    return dataclasses.replace(
        experiment,
        datasets=tuple(source for source, name in sources if name in kept),
        algorithms=tuple(chosen),
        algorithm_steps={name: n for name, n in experiment.algorithm_steps.items() if name in chosen},
    )


def _left_out(runs: pd.DataFrame, why: str) -> list[str]:
    if runs.empty:
        return []
    return [f"{len(runs)} runs {why} and are left out: {_named(runs)}."]


def _named(runs: pd.DataFrame) -> str:
    names = [str(MissingRun(*run)) for run in runs[KEY].head(MOST_NAMED).itertuples(index=False)]
    more = f" and {len(runs) - MOST_NAMED} more" if len(runs) > MOST_NAMED else ""
    return ", ".join(names) + more


def refuse_incomparable(runs: pd.DataFrame, allow_mixed_data: bool = False) -> None:
    """Raise UserError if runs on one dataset differ in data, environment or seeds per process, or if, without
    `allow_mixed_data`, the datasets differ in origin, version or version of the environment."""
    for dataset, group in runs.groupby("dataset", sort=False):
        for column, what in SHARED_BY_DATASET.items():
            per_seed = column == "dataset_sha256" and group["dataset_per_seed"].eq(True).all()
            for part in [part for _, part in group.groupby("seed")] if per_seed else [group]:
                if part[column].nunique() + part[column].isna().any() > 1:
                    difference = _disagreement(part, column, f"on {dataset}", what)
                    raise UserError(f"{difference}; run them again with --rerun-stale")
    if allow_mixed_data:
        return
    for group, column, what in _differing_data(runs):
        raise UserError(
            f"{_disagreement(group, column, 'of this table', what)}; "
            "choose with --datasets, or show them together with --allow-mixed-data"
        )


def mixed_data_notes(runs: pd.DataFrame) -> list[str]:
    """Sentences for the caption that say how the datasets differ."""
    return [
        f"MIXED DATA: {what} ({', '.join(map(str, group[column].unique()))})."
        for group, column, what in _differing_data(runs)
    ]


def _differing_data(runs: pd.DataFrame) -> Iterable[tuple[pd.DataFrame, str, str]]:
    for column in ("dataset_origin", "dataset_version"):
        group = runs[runs[column].notna()]
        if group[column].nunique() > 1:
            yield group, column, SHARED_BY_DATASET[column]
    families = runs["env_id"].str.replace(r"-v\d+$", "", regex=True)
    for _, group in runs.groupby(families, sort=False):
        if group["env_id"].nunique() > 1:
            yield group, "env_id", "version of the environment"


def _disagreement(group: pd.DataFrame, column: str, where: str, what: str) -> str:
    usual = group[column].mode(dropna=False)[0]
    odd = group[group[column].ne(usual) & ~(group[column].isna() & pd.isna(usual))]
    return (
        f"the runs {where} differ in {what}: {usual} for {len(group) - len(odd)} of them, but "
        f"{', '.join(map(str, odd[column].unique()))} for {_named(odd)}"
    )


AGGREGATES = ("last", "best", "final-N")
DIRECTIONS = {  # 1: more is better; −1: less is better; for other metrics no value is the best
    "score": 1,
    "return": 1,
    "bellman_error": -1,
    "td_error_abs": -1,
    "td_error_abs_target": -1,
    "loss": -1,
    "seconds": -1,
    "training_seconds": -1,
    "training_cpu_seconds": -1,
    "evaluation_seconds": -1,
}


@dataclass(frozen=True)
class Measure:
    """How a run's evaluations become one number."""

    metric: str = "score"  # a column of scores.csv or metrics.csv
    aggregate: str = "last"  # last: the last evaluation; final-N: the mean of the last N; best: the best one

    def __post_init__(self):
        if self.aggregate not in AGGREGATES[:2] and not re.fullmatch(r"final-[1-9]\d*", self.aggregate):
            raise unknown("aggregate", self.aggregate, AGGREGATES)
        if self.aggregate == "best" and not self.direction:
            raise UserError(f"{self.metric} has no best value; use --aggregate last or final-N")

    @property
    def direction(self) -> int:
        return DIRECTIONS.get(self.metric, 0)

    @property
    def evaluations(self) -> int:
        """The number of evaluations that are averaged, if a run has that many."""
        return int(self.aggregate.partition("-")[2] or 1)

    def words(self, selection: Selection) -> str:
        """The aggregate in words; it names a number of evaluations only if every run has more."""
        if self.aggregate == "best":
            return "best evaluation (selected by this number, so biased upwards)"
        if self.evaluations == 1:
            return "last evaluation"
        counts = selection.evaluations.groupby(KEY).size()
        fewest, most = int(counts.min()), int(counts.max())
        if fewest > self.evaluations:
            return f"mean of the last {self.evaluations} evaluations"
        if most <= self.evaluations:
            return f"mean of all {most} evaluations"
        return f"mean of the last {self.evaluations} evaluations, or of all where there are fewer ({fewest})"


def run_values(selection: Selection, measure: Measure) -> pd.DataFrame:
    """One line per finished run, in the experiment's order.

    Columns: dataset, algorithm, seed, label, status, config, value, evaluations, diverged.
    """
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
