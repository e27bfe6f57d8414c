"""The results of an experiment as two tables, from its run folders and from exported files.

evaluations  one row per evaluation: dataset, algorithm, seed, step, return, score, seconds, metrics …
runs         one row per run: config hash, dataset sha256, env id, versions, commit, status, stack size …

The exported files are results/<experiment>.csv (evaluations), results/<experiment>.runs.csv (runs) and
results/<experiment>.json (the experiment).
"""

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from offline_gntd.errors import UserError
from offline_gntd.experiments import definitions
from offline_gntd.experiments.definitions import Experiment
from offline_gntd.experiments.record import FINISHED, DamagedRun, Record, read_description, to_csv
from offline_gntd.files import Unreadable, home, write_json, write_text

KEY = ["dataset", "algorithm", "seed"]
NESTED = ["config", "protocol", "task", "versions", "machine", "resumed_at"]  # JSON in a CSV cell


@dataclass(frozen=True)
class Results:
    evaluations: pd.DataFrame
    runs: pd.DataFrame

    def finished(self) -> pd.DataFrame:
        return self.runs[self.runs["status"].isin(FINISHED)] if len(self.runs) else self.runs


def read(experiment: str) -> Results:
    """Run folders and exported results together; a finished run in a folder replaces the exported one."""
    local, exported = read_folders(experiment), read_exported(experiment)
    if exported is None:
        return local
    if local.runs.empty:
        return exported
    keys = _keys(exported.runs).difference(_keys(local.finished()))  # exported runs that are not replaced
    parts = [
        (frame[~_keys(frame).isin(keys)], other[_keys(other).isin(keys)])
        for frame, other in ((local.evaluations, exported.evaluations), (local.runs, exported.runs))
    ]
    return Results(*(pd.concat(pair, ignore_index=True) for pair in parts))


def _keys(frame: pd.DataFrame) -> pd.Index:
    return frame.set_index(KEY).index


def read_folders(experiment: str) -> Results:
    folder = home() / "results" / experiment
    runs, evaluations = [], []
    for path in sorted(folder.glob("*/*/seed-*/run.json")):
        run = read_description(path.parent) or {}
        if "config_hash" not in run:  # it failed before its first update
            continue
        runs.append(run)
        evaluations.append(_read_rows(path.parent, run))
    frames = [frame for frame in evaluations if not frame.empty]
    return Results(
        pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=[*KEY, "step"]),
        pd.DataFrame(runs, columns=None if runs else [*KEY, "status"]),
    )


def _read_rows(folder: Path, run: dict[str, Any]) -> pd.DataFrame:
    try:
        scores = pd.read_csv(folder / "scores.csv")
        rows = scores.merge(pd.read_csv(folder / "metrics.csv"), on="step", how="left", validate="1:1")
    except (FileNotFoundError, pd.errors.EmptyDataError):  # no evaluation yet
        return pd.DataFrame()
    except (ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise DamagedRun(folder, f"cannot read scores.csv and metrics.csv: {reason}") from error
    for column in ("return", "score", "training_seconds"):
        if column not in rows:
            raise DamagedRun(folder, f"scores.csv has no column {column!r}")
    if not all(pd.api.types.is_numeric_dtype(rows[column]) for column in rows.columns if column != "returns"):
        raise DamagedRun(folder, "scores.csv or metrics.csv has a cell that is not a number")
    for place, key in enumerate(KEY):
        rows.insert(place, key, run[key])
    return rows


def verify(folder: Path) -> None:
    """Compare the files of a finished run with its last checkpoint, which has a checksum.

    Raises DamagedRun if they differ. Runs without a checkpoint and unfinished runs are not compared."""
    run, record = read_description(folder) or {}, Record(folder)
    if run.get("status") not in FINISHED or not record.checkpoint_steps():
        return
    try:
        content = record.load(record.last_checkpoint())
    except Unreadable as error:
        raise DamagedRun(folder, str(error)) from error
    for name in ("scores", "metrics"):
        path = folder / f"{name}.csv"
        if (path.read_bytes() if path.exists() else b"") != to_csv(content[name]).encode():
            raise DamagedRun(folder, f"{path.name} is not what the checkpoint holds")
    description = json.loads(json.dumps(content["description"]))
    for key in description.keys() - CHANGED_AFTER_CHECKPOINT:
        if key not in run or run[key] != description[key]:
            raise DamagedRun(folder, f"{key!r} in run.json is not what the checkpoint holds")


CHANGED_AFTER_CHECKPOINT = {"status", "process", "resumed_at", "error", "log"}


def exported_path(experiment: str, part: str = "") -> Path:
    return home() / "results" / f"{experiment}{part}.csv"


def read_exported(experiment: str) -> Results | None:
    if not exported_path(experiment, ".runs").exists():
        return None
    try:
        runs = pd.read_csv(exported_path(experiment, ".runs"))
        for column in NESTED:
            runs[column] = runs[column].map(json.loads)
        runs = runs.rename(columns={"dataset_stands_for": "dataset_d4rl_id"})  # version 0.1
        for protocol in runs["protocol"]:
            if "stack" in protocol:  # version 0.1
                protocol["seeds_per_process"] = protocol.pop("stack")
        return Results(pd.read_csv(exported_path(experiment)), runs)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"cannot read the exported results of {experiment}: {error}; restore "
            f"{exported_path(experiment)} and {exported_path(experiment, '.runs')}"
        ) from error


def exported_runs(experiment: str) -> dict[tuple[str, str, int], dict[str, Any]]:
    """The exported runs of an experiment by dataset, algorithm and seed; empty if nothing was exported."""
    exported = read_exported(experiment)
    rows = exported.runs.to_dict("records") if exported else []
    return {(run["dataset"], run["algorithm"], run["seed"]): run for run in rows}


def export(experiment: Experiment) -> list[Path]:
    """Write the finished runs of an experiment, and those exported before; returns the files.

    Raises DamagedRun if a run's files differ from its checkpoint."""
    for path in sorted((home() / "results" / experiment.name).glob("*/*/seed-*/run.json")):
        verify(path.parent)
    results = read(experiment.name)
    runs = results.finished().sort_values(KEY)
    if runs.empty:
        raise UserError(
            f"no finished runs of {experiment.name}; run them with: offline-gntd run {experiment.name}"
        )
    evaluations = results.evaluations.drop(columns="returns", errors="ignore")
    evaluations = evaluations[evaluations.set_index(KEY).index.isin(runs.set_index(KEY).index)]
    for column in NESTED:
        runs[column] = runs[column].map(json.dumps)
    write_csv(exported_path(experiment.name), evaluations.sort_values([*KEY, "step"]))
    write_csv(exported_path(experiment.name, ".runs"), runs.drop(columns="experiment", errors="ignore"))
    write_json(definitions.exported_path(experiment.name), experiment.to_dict())
    files = [exported_path(experiment.name, part) for part in ("", ".runs")]
    return [*files, definitions.exported_path(experiment.name)]


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    text = io.StringIO()
    frame.to_csv(text, index=False, float_format="%.7g", lineterminator="\n")
    write_text(path, text.getvalue())
