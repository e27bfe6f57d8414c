"""The experiment `theory`: the list of its measurements, their execution and their files.

A measurement is stored when it is done, in results/theory/<hash of its settings>.json; a run computes what is
missing. Exported, they are results/theory.csv (one row per measurement, quantity and iteration) and
results/theory.measurements.csv (one row per measurement).
"""

import dataclasses
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from offline_gntd import processes, versions
from offline_gntd.configuration import digest, to_dict
from offline_gntd.errors import UserError
from offline_gntd.files import home, read_json, require_writable, write_json, write_text
from offline_gntd.theory.measurements import Comparison, Trial
from offline_gntd.theory.problems import PROBLEMS, SETTINGS

NAME = "theory"
SAMPLES = (16, 64, 256, 1024, 4096)  # N
STEPS = (0.1, 0.3, 0.9)  # β
DAMPINGS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # ω
WIDTHS = (16, 32, 64, 128, 256, 512, 1024)  # m
SHORT = 300  # iterations of a trial with exact expectations: there is no noise to average

Measurement = Trial | Comparison


def measurements() -> dict[str, Measurement]:
    """All measurements by hash. A trial that belongs to two sweeps is made once."""
    every: list[Measurement] = []
    for setting, problem in itertools.product(SETTINGS, PROBLEMS):
        trial = Trial(setting, problem)
        exact = dataclasses.replace(trial, iterations=SHORT)
        for method in ("gntd", "td"):
            every.append(dataclasses.replace(exact, method=method))
            for samples, step in itertools.product(SAMPLES, STEPS):
                every.append(dataclasses.replace(trial, method=method, samples=samples, step=step))
        for damping in DAMPINGS:
            every.append(dataclasses.replace(exact, damping=damping))
            every.append(dataclasses.replace(exact, damping=damping, samples=1024))
        if setting == "linear":
            every.append(dataclasses.replace(trial, step=None))
            every.append(dataclasses.replace(exact, realisable=False))
        if setting == "relu":
            every += [dataclasses.replace(exact, width=width) for width in WIDTHS]
    for depth, width, damping in itertools.product((1, 2, 3), (16, 64, 256), (0.25, 0.01)):
        every.append(Comparison(depth, width, damping))
    return {key(measurement): measurement for measurement in every}


def key(measurement: Measurement) -> str:
    return digest({"kind": type(measurement).__name__, **to_dict(measurement)})


def run(workers: int | None = None, rerun_stale: bool = False) -> tuple[int, int]:
    """Compute the missing measurements; returns how many were computed and how many were there before."""
    if workers is not None and workers < 1:
        raise UserError(f"--workers must be at least 1, not {workers}")
    wanted, done = measurements(), set() if rerun_stale else finished()
    todo = [measurement for name, measurement in wanted.items() if name not in done]
    if todo:
        require_writable(_folder())
        made = processes.run_parallel(make, [(each,) for each in todo], workers or os.cpu_count() or 1)
        for _ in tqdm(made, NAME, len(todo), disable=None):
            pass
    return len(todo), len(wanted) - len(todo)


def make(measurement: Measurement) -> None:
    """Compute a measurement and write its file."""
    start = time.process_time()
    measured = [(quantity, k, values.tolist()) for quantity, k, values in measurement.measure()]
    metadata = {
        "kind": type(measurement).__name__,
        "settings": to_dict(measurement),
        "cpu_seconds": time.process_time() - start,
        "versions": versions.versions(),
        "commit": versions.commit(),
        "machine": versions.machine(),
    }
    write_json(_folder() / f"{key(measurement)}.json", metadata | {"measured": measured})


def finished() -> set[str]:
    """The hashes of the measurements here, exported ones included."""
    here = {path.stem for path in _folder().glob("*.json")}
    shipped = _exported(".measurements")
    return here | (set(pd.read_csv(shipped)["measurement"]) if shipped.exists() else set())


def read() -> tuple[pd.DataFrame, list[Measurement]]:
    """All measurements, one row per value with its settings, and the list of those that are missing."""
    wanted = measurements()
    stored = {name: entry for name, entry in _stored().items() if name in wanted}
    if not stored:
        raise UserError(f"{NAME} has no measurements yet; make them with: offline-gntd run {NAME}")
    lines = [
        {"kind": entry["kind"]}
        | entry["settings"]
        | {"quantity": quantity, "iteration": k, "seed": i, "value": v}
        for entry in stored.values()
        for quantity, k, values in entry["measured"]
        for i, v in enumerate(values)
    ]
    return pd.DataFrame(lines), [measurement for name, measurement in wanted.items() if name not in stored]


def export() -> list[Path]:
    """Write all measurements, those exported before included, in the compact form; returns the paths."""
    wanted, entries, values = measurements(), [], []
    for name, entry in sorted(_stored().items()):
        if name in wanted:
            measured = entry.pop("measured")
            nested = {column: json.dumps(v) if isinstance(v, dict) else v for column, v in entry.items()}
            entries.append({"measurement": name} | nested)
            values += [(name, q, k, " ".join(f"{v:.5g}" for v in each)) for q, k, each in measured]
    if not entries:
        raise UserError(f"{NAME} has no measurements yet; make them with: offline-gntd run {NAME}")
    columns = ["measurement", "quantity", "iteration", "values"]
    paths = [_exported(), _exported(".measurements")]
    frames = [pd.DataFrame(values, columns=columns), pd.DataFrame(entries)]
    for path, frame in zip(paths, frames, strict=True):
        write_text(path, frame.to_csv(index=False, float_format="%.4g", lineterminator="\n"))
    return paths


def _stored() -> dict[str, dict[str, Any]]:
    """Every measurement by hash; one made here replaces the exported one."""
    return _read_exported() | {path.stem: read_json(path) for path in _folder().glob("*.json")}


def _read_exported() -> dict[str, dict[str, Any]]:
    if not _exported(".measurements").exists():
        return {}
    try:
        entries = pd.read_csv(_exported(".measurements"), index_col="measurement").to_dict("index")
        for entry in entries.values():
            for column in ("settings", "versions", "machine"):
                entry[column] = json.loads(entry[column])
            entry["measured"] = []
        for row in pd.read_csv(_exported()).itertuples():
            values = [float(value) for value in row.values.split()]
            entries[row.measurement]["measured"].append((row.quantity, row.iteration, values))
        return entries
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"cannot read the exported results of {NAME}: {error}") from error


def _folder() -> Path:
    return home() / "results" / NAME


def _exported(part: str = "") -> Path:
    return home() / "results" / f"{NAME}{part}.csv"
