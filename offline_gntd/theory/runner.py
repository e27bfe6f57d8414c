"""The experiment `theory`: many short measurements, each kept as soon as it is made, so that what was stopped
goes on where it was.

A measurement is a file results/theory/<hash of its settings>.json. Shipped, all are results/theory.csv, one
row per measurement, quantity and iteration, and results/theory.measurements.csv, one row per measurement.
"""

import concurrent.futures
import dataclasses
import itertools
import json
import multiprocessing
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
from offline_gntd.theory.approximations import SETTINGS
from offline_gntd.theory.chains import PROBLEMS
from offline_gntd.theory.directions import Comparison
from offline_gntd.theory.trials import Trial

NAME = "theory"
SAMPLES = (16, 64, 256, 1024, 4096)  # N
STEPS = (0.1, 0.3, 0.9)  # β
DAMPINGS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # ω
WIDTHS = (16, 32, 64, 128, 256, 512, 1024)  # m
SHORT = 300  # iterations of a trial with exact expectations, which has no noise to average

Measurement = Trial | Comparison


def measurements() -> dict[str, Measurement]:
    """All there are, by their hashes; a trial that serves two sweeps is one."""
    made: list[Measurement] = []
    for setting, problem in itertools.product(SETTINGS, PROBLEMS):
        trial = Trial(setting, problem)
        exact = dataclasses.replace(trial, iterations=SHORT)
        for method in ("gntd", "td"):
            made.append(dataclasses.replace(exact, method=method))
            for samples, step in itertools.product(SAMPLES, STEPS):
                made.append(dataclasses.replace(trial, method=method, samples=samples, step=step))
        for damping in DAMPINGS:
            made.append(dataclasses.replace(exact, damping=damping))
            made.append(dataclasses.replace(exact, damping=damping, samples=1024))
        if setting == "linear":
            made.append(dataclasses.replace(trial, step=None))
            made.append(dataclasses.replace(exact, realisable=False))
        if setting == "relu":
            made += [dataclasses.replace(exact, width=width) for width in WIDTHS]
    for depth, width, damping in itertools.product((1, 2, 3), (16, 64, 256), (0.25, 0.01)):
        made.append(Comparison(depth, width, damping))
    return {key(measurement): measurement for measurement in made}


def key(measurement: Measurement) -> str:
    return digest({"kind": type(measurement).__name__, **to_dict(measurement)})


def run(workers: int | None = None, rerun_stale: bool = False) -> tuple[int, int]:
    """Make what is missing; how many were made, and how many there were."""
    if workers is not None and workers < 1:
        raise UserError(f"--workers must be at least 1, not {workers}")
    wanted, done = measurements(), set() if rerun_stale else finished()
    todo = [measurement for name, measurement in wanted.items() if name not in done]
    if todo:
        require_writable(_folder())
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(workers or os.cpu_count(), context, _prepare) as pool:
            try:
                for _ in tqdm(pool.map(make, todo), NAME, len(todo), disable=None):
                    pass
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    return len(todo), len(wanted) - len(todo)


def _prepare() -> None:
    processes.prepare()
    processes.end_with_parent()


def make(measurement: Measurement) -> None:
    """Measure, and keep."""
    began = time.process_time()
    measured = [(quantity, k, values.tolist()) for quantity, k, values in measurement.measure()]
    about = {
        "kind": type(measurement).__name__,
        "settings": to_dict(measurement),
        "cpu_seconds": time.process_time() - began,
        "versions": versions.versions(),
        "commit": versions.commit(),
        "machine": versions.machine(),
    }
    write_json(_folder() / f"{key(measurement)}.json", about | {"measured": measured})


def finished() -> set[str]:
    """The hashes of what was measured here or shipped."""
    here = {path.stem for path in _folder().glob("*.json")}
    shipped = _shipped(".measurements")
    return here | (set(pd.read_csv(shipped)["measurement"]) if shipped.exists() else set())


def read() -> tuple[pd.DataFrame, list[Measurement]]:
    """Everything measured, one line per value with its measurement's settings, and what is missing."""
    wanted = measurements()
    stored = {name: about for name, about in _stored().items() if name in wanted}
    if not stored:
        raise UserError(f"nothing of {NAME} was measured yet; do so with: offline-gntd run {NAME}")
    lines = [
        {"kind": about["kind"]}
        | about["settings"]
        | {"quantity": quantity, "iteration": k, "seed": i, "value": v}
        for about in stored.values()
        for quantity, k, values in about["measured"]
        for i, v in enumerate(values)
    ]
    return pd.DataFrame(lines), [measurement for name, measurement in wanted.items() if name not in stored]


def export() -> list[Path]:
    """Write all that is measured, with what was shipped before, in the compact form."""
    wanted, abouts, values = measurements(), [], []
    for name, about in sorted(_stored().items()):
        if name in wanted:
            measured = about.pop("measured")
            nested = {column: json.dumps(v) if isinstance(v, dict) else v for column, v in about.items()}
            abouts.append({"measurement": name} | nested)
            values += [(name, q, k, " ".join(f"{v:.5g}" for v in each)) for q, k, each in measured]
    if not abouts:
        raise UserError(f"nothing of {NAME} was measured yet; do so with: offline-gntd run {NAME}")
    columns = ["measurement", "quantity", "iteration", "values"]
    paths = [_shipped(), _shipped(".measurements")]
    frames = [pd.DataFrame(values, columns=columns), pd.DataFrame(abouts)]
    for path, frame in zip(paths, frames, strict=True):
        write_text(path, frame.to_csv(index=False, float_format="%.4g", lineterminator="\n"))
    return paths


def _stored() -> dict[str, dict[str, Any]]:
    """By hash: what was shipped, and what was measured here in its place."""
    return _read_exported() | {path.stem: read_json(path) for path in _folder().glob("*.json")}


def _read_exported() -> dict[str, dict[str, Any]]:
    if not _shipped(".measurements").exists():
        return {}
    try:
        abouts = pd.read_csv(_shipped(".measurements"), index_col="measurement").to_dict("index")
        for about in abouts.values():
            for column in ("settings", "versions", "machine"):
                about[column] = json.loads(about[column])
            about["measured"] = []
        for row in pd.read_csv(_shipped()).itertuples():
            values = [float(value) for value in row.values.split()]
            abouts[row.measurement]["measured"].append((row.quantity, row.iteration, values))
        return abouts
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"cannot read the shipped results of {NAME}: {error}") from error


def _folder() -> Path:
    return home() / "results" / NAME


def _shipped(part: str = "") -> Path:
    return home() / "results" / f"{NAME}{part}.csv"
