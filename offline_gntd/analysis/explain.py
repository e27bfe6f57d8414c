"""From a cell of a table to its runs: scores, settings, data, versions, and the commands to repeat them."""

import dataclasses
import shlex
from dataclasses import dataclass
from typing import Any

import pandas as pd

from offline_gntd.algorithms import preset
from offline_gntd.analysis.scores import flatten, setting_text
from offline_gntd.analysis.selection import Selection, origin_of, run_values, select
from offline_gntd.analysis.table import tenths
from offline_gntd.configuration import to_dict
from offline_gntd.errors import UserError
from offline_gntd.experiments.results import csv_path

CHANGED = "-changed"  # ends the commit of a run whose source had uncommitted changes
SHOWN = (  # columns; all but the first are from the last evaluation
    "value",
    "step",
    "score",
    "return",
    "td_error_abs_target",
    "bellman_error",
    "training_cpu_seconds",
)


@dataclass(frozen=True)
class Explanation:
    experiment: str
    dataset: str
    algorithm: str
    label: str
    value: str  # by the experiment's own metric and aggregate
    seeds: list[dict[str, Any]]
    settings: dict[str, str]  # by path
    changed: dict[str, tuple[str, str]] | None  # path: preset's, run's; None if the preset is unknown
    data: dict[str, Any]
    provenance: dict[str, Any]  # versions, commit, machine
    commands: list[str]
    warnings: list[str]

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def text(self) -> str:
        parts = [
            [f"{self.experiment}: {self.label} on {self.dataset}", f"  {self.value}"],
            ["runs", *_columns(self.seeds)],
            [f"settings of {self.algorithm}", *_pairs(self.settings)],
            ["settings that differ from the preset", *self._differences()],
            ["data", *_pairs(self.data)],
            ["provenance", *_pairs(self.provenance)],
            ["commands to repeat it", *(f"  {command}" for command in self.commands)],
        ]
        if self.warnings:
            parts.append(["warnings", *(f"  {warning}" for warning in self.warnings)])
        return "\n\n".join("\n".join(part) for part in parts)

    def _differences(self) -> list[str]:
        if self.changed is None:
            return ["  unknown: the preset is not defined here; name its file with --import"]
        pairs = {path: f"{run}, not {usual}" for path, (usual, run) in self.changed.items()}
        return _pairs(pairs) or ["  none"]


def explain(experiment: str, dataset: str, algorithm: str) -> Explanation:
    """Explain one cell; the algorithm is given by name or label. Raises UserError if it has no runs."""
    selection = select(experiment, [dataset], [algorithm])
    if selection.runs.empty:
        raise UserError(f"no finished runs of {algorithm} on {dataset} in {experiment}; run them first")
    runs, values = selection.runs, run_values(selection, selection.measure).set_index("seed")["value"]
    first = runs.iloc[0]
    task = first["task"]
    settings = {path: setting_text(value) for path, value in flatten(first["config"]).items()}
    return Explanation(
        experiment,
        dataset,
        first["algorithm"],
        first["label"],
        _value(selection, values),
        _seeds(selection, values),
        settings,
        _changed(first["algorithm"], settings),
        {
            "name": first["dataset"],
            "source": first["dataset_source"],
            "sha256 of its rows": _each(runs, "dataset_sha256"),
            "transitions": int(first["dataset_rows"])
            if runs["dataset_rows"].nunique() == 1
            else _each(runs, "dataset_rows"),
            "origin": origin_of(first),
            "made by": _each(runs, "dataset_level"),
            "version": _or_dash(first["dataset_version"]),
            "name in D4RL": _or_dash(first["dataset_d4rl_id"]),
            "environment": _each(runs, "env_id"),
            "returns at score 0 and 100": f"{task['reference_min']:g}, {task['reference_max']:g}",
            "source of these returns": task["reference_source"],
        },
        {
            "commit": _each(runs, "commit"),
            "versions": ", ".join(f"{name} {version}" for name, version in first["versions"].items()),
            "machine": ", ".join(f"{name} {value}" for name, value in first["machine"].items()),
            "device, threads, seeds per process": f"{first['device']}, {first['threads']}, {first['stack']}",
            "config hash": _each(runs, "config_hash"),
        },
        _commands(selection),
        warnings(selection),
    )


def _value(selection: Selection, values: pd.Series) -> str:
    """Mean ± std over seeds, by the experiment's own metric and aggregate."""
    measure = selection.measure
    spread = f" ± {tenths(values.std())}" if len(values) > 1 else ""
    seeds = f"{len(values)} of {selection.experiment.seeds} seeds"
    mean = f"{measure.metric} {tenths(values.mean())}{spread}"
    return f"{mean} (std with ddof 1), {seeds}; each: {measure.words(selection)}"


def _seeds(selection: Selection, values: pd.Series) -> list[dict[str, Any]]:
    last = selection.evaluations.sort_values("step").groupby("seed").tail(1).set_index("seed")
    last = last.assign(value=values)
    shown = [name for name in SHOWN if name in last and last[name].notna().any()]
    return [
        {"seed": run["seed"], "status": run["status"]}
        | {name: float(last[name][run["seed"]]) if run["seed"] in last.index else None for name in shown}
        | {"finished": run["finished"], "folder": _place(selection, run["seed"])}
        for run in selection.runs.to_dict("records")
    ]


def _place(selection: Selection, seed: int) -> str:
    cell = next(cell for cell in selection.experiment.cells() if seed in cell.seeds)
    folder = cell.folder(seed)
    return str(folder if folder.exists() else csv_path(selection.experiment.name))


def _changed(algorithm: str, settings: dict[str, str]) -> dict[str, tuple[str, str]] | None:
    """The settings that differ from the preset's; None if the preset is not defined here."""
    try:
        config = to_dict(preset(algorithm.partition("@")[0]).config)
    except UserError:
        return None
    usual = {path: setting_text(value) for path, value in flatten(config).items()}
    pairs = {path: (usual.get(path, "none"), settings.get(path, "none")) for path in usual | settings}
    return {path: pair for path, pair in pairs.items() if pair[0] != pair[1]}


def _commands(selection: Selection) -> list[str]:
    """Commands that repeat the runs under another experiment's name."""
    run = selection.runs.iloc[0]
    protocol = selection.experiment.protocol_of(run["algorithm"])
    commands = []
    if isinstance(run["commit"], str):
        commands.append(f"git checkout {run['commit'].removesuffix(CHANGED)}")
    per_seed = run["dataset_origin"] == "built" and run["dataset_per_seed"]
    source = run["dataset"] if per_seed else run["dataset_source"]
    if run["dataset_origin"] == "built":
        old = f"offline-gntd datasets build {source} --transitions {run['dataset_rows']}"
        for built_by in selection.runs["dataset_built_by"].unique():
            commands.append(built_by if isinstance(built_by, str) else old)  # not recorded in version 0.1
    elif run["dataset_origin"] in ("d4rl", "minari"):
        commands.append(f"offline-gntd datasets fetch {source}")
    words = ["offline-gntd", "run", f"again-{selection.experiment.name}", "--algorithms", run["algorithm"]]
    words += ["--datasets", source, "--seeds", selection.experiment.seeds]
    for field in dataclasses.fields(protocol):
        words += [f"--{field.name.replace('_', '-')}", getattr(protocol, field.name)]
    for path in run["versions"]:
        if path.endswith(".py"):  # a file given with --import
            words += ["--import", path]
    if run["device"] != "cpu":
        words += ["--device", run["device"]]
    return [*commands, shlex.join(map(str, words))]


def _each(runs: pd.DataFrame, column: str) -> str:
    """The value that all runs share, or each value with its seeds."""
    groups = runs.groupby(column, sort=False, dropna=False)["seed"].agg(list)
    if len(groups) == 1:
        return _or_dash(groups.index[0])
    return "; ".join(
        f"{_or_dash(value)} ({'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))})"
        for value, seeds in groups.items()
    )


def _or_dash(value: Any) -> str:
    return "—" if value is None or (isinstance(value, float) and pd.isna(value)) else str(value)


def _pairs(facts: dict[str, Any]) -> list[str]:
    width = max(map(len, facts), default=0)
    return [f"  {name:<{width}}  {value}" for name, value in facts.items()]


def _columns(lines: list[dict[str, Any]]) -> list[str]:
    names = list(lines[0])
    rows = [names, *([_shown(line[name]) for name in names] for line in lines)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(names))]
    return [
        "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _shown(value: Any) -> str:
    return f"{value:.7g}" if isinstance(value, float) else str(value)


# ---- warnings about runs


def warnings(selection: Selection) -> list[str]:
    """What the records of the runs say and a table does not show."""
    runs, sentences = selection.runs, list(selection.notes)
    if selection.missing:
        sentences.append(
            f"INCOMPLETE: {len(selection.missing)} runs are missing, first {selection.missing[0]}."
        )
    diverged = runs[runs["status"] == "diverged"]
    if len(diverged):
        names = [f"{run.dataset} {run.label} seed {run.seed}" for run in diverged.itertuples()]
        shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
        sentences.append(f"{len(names)} runs diverged and count with their last finite values: {shown}.")
    resumed = int((runs["resumed_at"].map(len) > 0).sum())
    if resumed:
        sentences.append(f"{resumed} runs were stopped and resumed; their seconds are sums over the parts.")
    commits = list(runs["commit"].dropna().unique())
    if any(commit.endswith(CHANGED) for commit in commits):
        sentences.append("Some runs were made from a source tree with uncommitted changes.")
    if runs["commit"].isna().any():
        sentences.append("Some runs were made outside a git checkout and record only the package version.")
    if len(commits) > 1:
        shown = ", ".join(commit[:12] for commit in commits)
        sentences.append(f"The runs were made at {len(commits)} commits: {shown}.")
    for column, what in (("versions", "sets of package versions"), ("machine", "machines")):
        count = runs[column].map(str).nunique()
        if count > 1:
            sentences.append(f"The runs were made with {count} {what}.")
    return sentences
