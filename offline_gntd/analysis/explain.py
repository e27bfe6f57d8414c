"""From a table's cell to its runs: scores, settings, data, versions, and the command that repeats them."""

import dataclasses
import shlex
from dataclasses import dataclass
from typing import Any

import pandas as pd

from offline_gntd.algorithms import preset
from offline_gntd.analysis import values, warnings
from offline_gntd.analysis.axes import flat, text
from offline_gntd.analysis.selection import Selection, select
from offline_gntd.analysis.table import tenths
from offline_gntd.configuration import to_dict
from offline_gntd.errors import UserError
from offline_gntd.experiments.results import KEY, exported_path

SHOWN = (
    "value",
    "step",
    "score",
    "return",
    "bellman_error",
    "training_cpu_seconds",
)  # all but the first: last


@dataclass(frozen=True)
class Explanation:
    experiment: str
    dataset: str
    algorithm: str
    label: str
    value: str  # as the experiment is read by default
    seeds: list[dict[str, Any]]
    settings: dict[str, str]  # by path
    changed: (
        dict[str, tuple[str, str]] | None
    )  # path: the preset's, the run's; None for a preset not known here
    data: dict[str, Any]
    made: dict[str, Any]  # versions, commit, machine
    commands: list[str]
    warnings: list[str]

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def text(self) -> str:
        parts = [
            [f"{self.experiment}: {self.label} on {self.dataset}", f"  {self.value}"],
            ["runs", *_columns(self.seeds)],
            [f"settings of {self.algorithm}, as run", *_pairs(self.settings)],
            ["other than the preset's", *self._differences()],
            ["data", *_pairs(self.data)],
            ["made with", *_pairs(self.made)],
            ["to repeat it", *(f"  {command}" for command in self.commands)],
        ]
        if self.warnings:
            parts.append(["warnings", *(f"  {warning}" for warning in self.warnings)])
        return "\n\n".join("\n".join(part) for part in parts)

    def _differences(self) -> list[str]:
        if self.changed is None:
            return ["  not known here: the preset is in a file to --import"]
        return _pairs({path: f"{run}, not {own}" for path, (own, run) in self.changed.items()}) or [
            "  nothing"
        ]


def explain(experiment: str, dataset: str, algorithm: str) -> Explanation:
    selection = select(experiment, [dataset], [algorithm])
    if selection.runs.empty:
        raise UserError(f"no finished runs of {algorithm} on {dataset} in {experiment}; run them first")
    runs = selection.runs
    first = runs.iloc[0]
    settings = {path: text(value) for path, value in flat(first["config"]).items()}
    return Explanation(
        experiment,
        dataset,
        first["algorithm"],
        first["label"],
        _value(selection),
        _seeds(selection),
        settings,
        _changed(first["algorithm"], settings),
        {
            "name": first["dataset"],
            "source": first["dataset_source"],
            "sha256 of its rows": _each(runs, "dataset_sha256"),
            "transitions": int(first["dataset_rows"]),
            "origin": first["dataset_origin"],
            "version": _or_dash(first["dataset_version"]),
            "stands for": _or_dash(first["dataset_d4rl_id"]),
            "environment": _each(runs, "env_id"),
            "score 0, score 100": f"{first['task']['reference_min']:g}, {first['task']['reference_max']:g}",
            "references from": first["task"]["reference_source"],
        },
        {
            "commit": _each(runs, "commit"),
            "versions": ", ".join(f"{name} {version}" for name, version in first["versions"].items()),
            "machine": ", ".join(f"{name} {value}" for name, value in first["machine"].items()),
            "device, threads, stack": f"{first['device']}, {first['threads']}, {first['stack']}",
            "config hash": _each(runs, "config_hash"),
        },
        _commands(selection),
        warnings.of(selection),
    )


def _value(selection: Selection) -> str:
    """Over the seeds, by the metric and protocol that are the experiment's default."""
    measure = values.default_measure(selection.experiment)
    lines = values.read(selection, measure)
    spread = f" ± {tenths(lines['value'].std())}" if len(lines) > 1 else ""
    read = measure.words(int(lines["evaluations"].max()))
    seeds = f"{len(lines)} of {selection.experiment.seeds} seeds"
    mean = f"{measure.metric} {tenths(lines['value'].mean())}{spread}"
    return f"{mean} (std with ddof 1), {seeds}; a run's value is {read}"


def _seeds(selection: Selection) -> list[dict[str, Any]]:
    last = selection.evaluations.sort_values("step").groupby(KEY, sort=False).tail(1).set_index("seed")
    last["value"] = values.read(selection, values.default_measure(selection.experiment)).set_index("seed")[
        "value"
    ]
    shown = [name for name in SHOWN if name in last and last[name].notna().any()]
    lines = []
    for run in selection.runs.to_dict("records"):
        seed = run["seed"]
        numbers = {name: float(last[name][seed]) if seed in last.index else None for name in shown}
        lines.append(
            {"seed": seed, "status": run["status"], **numbers}
            | {"finished": run["finished"], "kept in": _place(selection, seed)}
        )
    return lines


def _place(selection: Selection, seed: int) -> str:
    cell = next(cell for cell in selection.experiment.cells() if seed in cell.seeds)
    folder = cell.folder(seed)
    return str(folder if folder.exists() else exported_path(selection.experiment.name))


def _changed(algorithm: str, settings: dict[str, str]) -> dict[str, tuple[str, str]] | None:
    try:
        own = {
            path: text(value)
            for path, value in flat(to_dict(preset(algorithm.partition("@")[0]).config)).items()
        }
    except UserError:
        return None
    return {
        path: (own.get(path, "none"), settings.get(path, "none"))
        for path in dict.fromkeys([*own, *settings])
        if own.get(path, "none") != settings.get(path, "none")
    }


def _commands(selection: Selection) -> list[str]:
    """What runs the very same again, beside the results that are there."""
    run = selection.runs.iloc[0]
    protocol = selection.experiment.protocol_of(run["algorithm"])
    commands = []
    if isinstance(run["commit"], str):
        commands.append(f"git checkout {run['commit'].removesuffix(warnings.CHANGED)}")
    per_seed = run["dataset_origin"] == "built" and run.get("dataset_per_seed") in (True,)  # NaN in 0.1
    source = run["dataset"] if per_seed else run["dataset_source"]
    if run["dataset_origin"] == "built":
        old = f"offline-gntd datasets build {source} --transitions {run['dataset_rows']}"
        for built_by in selection.runs.get("dataset_built_by", pd.Series([None])).unique():
            commands.append(built_by if isinstance(built_by, str) else old)  # old runs do not record it
    elif run["dataset_origin"] in ("d4rl", "minari"):
        commands.append(f"offline-gntd datasets fetch {source}")
    words = ["offline-gntd", "run", f"again-{selection.experiment.name}", "--algorithms", run["algorithm"]]
    words += ["--datasets", source, "--seeds", selection.experiment.seeds]
    for field in dataclasses.fields(protocol):
        words += [f"--{field.name.replace('_', '-')}", getattr(protocol, field.name)]
    for path in run["versions"]:
        if path.endswith(".py"):  # a file of the user's own
            words += ["--import", path]
    if run["device"] != "cpu":
        words += ["--device", run["device"]]
    return [*commands, shlex.join(map(str, words))]


def _each(runs: pd.DataFrame, column: str) -> str:
    """A fact all runs share, or every value with its seeds."""
    groups = runs.groupby(column, sort=False, dropna=False)["seed"].agg(list)
    if len(groups) == 1:
        return _or_dash(groups.index[0])
    return "; ".join(
        f"{_or_dash(value)} (seeds {', '.join(map(str, seeds))})" for value, seeds in groups.items()
    )


def _or_dash(value: Any) -> str:
    return "—" if value is None or (isinstance(value, float) and pd.isna(value)) else str(value)


def _pairs(facts: dict[str, Any]) -> list[str]:
    width = max(map(len, facts), default=0)
    return [f"  {name:<{width}}  {value}" for name, value in facts.items()]


def _columns(lines: list[dict[str, Any]]) -> list[str]:
    names = list(lines[0])
    rows = [names, *([_written(line[name]) for name in names] for line in lines)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(names))]
    return [
        "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _written(value: Any) -> str:
    return f"{value:.7g}" if isinstance(value, float) else str(value)
