"""The results of an experiment as two tables, whether they lie in run folders or were shipped.

evaluations  one row per evaluation: dataset, algorithm, seed, step, return, score, seconds, metrics …
runs         one row per run: config hash, dataset sha256, env id, versions, commit, status, stack size …

Shipped results are these two as results/<experiment>.csv and results/<experiment>.runs.csv.
"""

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from offline_gntd.errors import UserError
from offline_gntd.experiments.record import FINISHED, read_description
from offline_gntd.files import home, write_text

KEY = ["dataset", "algorithm", "seed"]
NESTED = ["config", "protocol", "task", "versions", "machine", "resumed_at"]  # JSON in a CSV cell


@dataclass(frozen=True)
class Results:
    evaluations: pd.DataFrame
    runs: pd.DataFrame
    notes: tuple[str, ...] = ()  # what a reader of a table should be told

    def finished(self) -> pd.DataFrame:
        return self.runs[self.runs["status"].isin(FINISHED)] if len(self.runs) else self.runs


def read(experiment: str) -> Results:
    """Run folders and shipped results together; runs of two protocols are never merged."""
    local, shipped = read_folders(experiment), read_shipped(experiment)
    if shipped is None:
        return local
    if local.runs.empty:
        return shipped
    if protocols(local.runs) != protocols(shipped.runs):
        note = f"The shipped results of {experiment} follow another protocol than the runs here; left out."
        return Results(local.evaluations, local.runs, (note,))
    finished, shipped_keys = _keys(local.finished()), _keys(shipped.runs)
    shipped_stay = shipped_keys.difference(finished)  # until a run here has replaced them
    parts = [
        (frame[~_keys(frame).isin(shipped_stay)], other[_keys(other).isin(shipped_stay)])
        for frame, other in ((local.evaluations, shipped.evaluations), (local.runs, shipped.runs))
    ]
    return Results(*(pd.concat(pair, ignore_index=True) for pair in parts))


def _keys(frame: pd.DataFrame) -> pd.Index:
    return frame.set_index(KEY).index


def read_folders(experiment: str) -> Results:
    folder = home() / "results" / experiment
    runs, evaluations = [], []
    for path in sorted(folder.glob("*/*/seed-*/run.json")):
        run = read_description(path.parent) or {}
        if "config_hash" not in run:  # failed before it began
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
        raise UserError(f"cannot read the run {folder}: {error}") from error
    for place, key in enumerate(KEY):
        rows.insert(place, key, run[key])
    return rows


def shipped_path(experiment: str, part: str = "") -> Path:
    return home() / "results" / f"{experiment}{part}.csv"


def read_shipped(experiment: str) -> Results | None:
    if not shipped_path(experiment, ".runs").exists():
        return None
    try:
        runs = pd.read_csv(shipped_path(experiment, ".runs"))
        for column in NESTED:
            runs[column] = runs[column].map(json.loads)
        for protocol in runs["protocol"]:
            if "stack" in protocol:  # its name in version 0.1
                protocol["seeds_per_process"] = protocol.pop("stack")
        return Results(pd.read_csv(shipped_path(experiment)), runs)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"cannot read the shipped results of {experiment}: {error}") from error


def ship(experiment: str) -> list[Path]:
    """Write the finished runs of an experiment, with those shipped before, in the compact form."""
    results = read(experiment)
    runs = results.finished().sort_values(KEY)
    if runs.empty:
        raise UserError(f"no finished runs of {experiment}; run them with: offline-gntd run {experiment}")
    evaluations = results.evaluations.drop(columns="returns", errors="ignore")
    evaluations = evaluations[evaluations.set_index(KEY).index.isin(runs.set_index(KEY).index)]
    for column in NESTED:
        runs[column] = runs[column].map(json.dumps)
    _write_csv(shipped_path(experiment), evaluations.sort_values([*KEY, "step"]))
    _write_csv(shipped_path(experiment, ".runs"), runs.drop(columns="experiment", errors="ignore"))
    return [shipped_path(experiment), shipped_path(experiment, ".runs")]


def _write_csv(path: Path, frame: pd.DataFrame) -> None:
    text = io.StringIO()
    frame.to_csv(text, index=False, float_format="%.7g", lineterminator="\n")
    write_text(path, text.getvalue())


def protocols(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Every protocol among runs, once."""
    texts = {json.dumps(protocol, sort_keys=True) for protocol in runs["protocol"]}
    return [json.loads(text) for text in sorted(texts)]
