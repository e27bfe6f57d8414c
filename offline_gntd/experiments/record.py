"""A run on disk: run.json, scores.csv, metrics.csv and its last checkpoint, each written whole; a log."""

import csv
import io
import math
import re
from pathlib import Path
from typing import Any

from offline_gntd.errors import UserError
from offline_gntd.files import (
    Unreadable,
    load_tensors,
    read_json,
    remove,
    save_tensors,
    write_json,
    write_text,
)

REMEDY = "delete its folder to run it again"
FINISHED = ("done", "diverged")  # a diverged run is a result
CHECKPOINT = re.compile(r"checkpoint-(\d{1,18})\.pt")
LOG = "run.log"  # the output of every attempt at the run


class Record:
    """The folder of one run and the rows measured so far."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.scores: list[dict[str, Any]] = []  # one row per evaluation
        self.metrics: list[dict[str, Any]] = []
        self.description: dict[str, Any] = {}

    @property
    def diverged(self) -> bool:
        return "diverged_at" in self.description

    def clear(self) -> None:
        """Remove everything except the log and the lock."""
        self.scores, self.metrics, self.description = [], [], {}
        for path in self.folder.glob("*"):
            if path.name != LOG and not path.name.startswith("lock-"):
                remove(path)

    def remove_partial_files(self) -> None:
        """Remove files that were being written when their writer was killed."""
        for path in self.folder.glob(".*.part"):
            remove(path)

    def describe(self, **changes: Any) -> None:
        self.description |= changes
        write_json(self.folder / "run.json", self.description)

    def write_rows(self) -> None:
        write_text(self.folder / "scores.csv", to_csv(self.scores))
        write_text(self.folder / "metrics.csv", to_csv(self.metrics))

    def checkpoint_steps(self) -> set[int]:
        names = (CHECKPOINT.fullmatch(path.name) for path in self.folder.glob("checkpoint-*.pt"))
        return {int(name[1]) for name in names if name}

    def save(self, step: int, state: dict[str, Any], timing: dict[str, float]) -> None:
        content = {
            "step": step,
            "state": state,
            "scores": self.scores,
            "metrics": self.metrics,
            "description": self.description,
            "timing": timing,
        }
        save_tensors(self._checkpoint(step), content)

    def load(self, step: int) -> dict[str, Any]:
        """The checkpoint of a step, with the keys that `save` writes."""
        content = load_tensors(self._checkpoint(step))
        if not isinstance(content, dict) or content.get("step") != step:
            raise Unreadable(f"{self._checkpoint(step)} is not the checkpoint of step {step}")
        return content

    def last_checkpoint(self) -> int:
        steps = self.checkpoint_steps()
        if not steps:
            raise UserError(f"there is no checkpoint in {self.folder}; name a run's folder, …/seed-N")
        return max(steps)

    def remove_checkpoints(self, keep: int) -> None:
        for step in self.checkpoint_steps() - {keep}:
            self._checkpoint(step).unlink(missing_ok=True)

    def _checkpoint(self, step: int) -> Path:
        return self.folder / f"checkpoint-{step}.pt"


class DamagedRun(UserError):
    """A file in a run's folder does not contain what was written to it."""

    def __init__(self, folder: Path, reason: str):
        super().__init__(f"the run {folder} is damaged: {reason}; {REMEDY}")


def read_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object; raises UserError for anything else."""
    try:
        value = read_json(path)
    except RecursionError as error:
        raise UserError(f"cannot read {path}: it is nested too deeply") from error
    if not isinstance(value, dict):
        raise UserError(f"cannot read {path}: it holds no JSON object")
    return value


def read_description(folder: Path) -> dict[str, Any] | None:
    """What run.json says, or None if there is no such file.

    Raises DamagedRun if it cannot be read or if it belongs to another folder. A finished run must have every
    key that decides whether it counts and which table it belongs to.
    """
    path = folder / "run.json"
    if not path.exists():
        return None
    try:
        run = read_object(path)
    except UserError as error:
        raise DamagedRun(folder, str(error)) from error
    if run.get("status") in FINISHED:
        for key, kind in FINISHED_KEYS.items():
            if key not in run or not isinstance(run[key], kind) or isinstance(run[key], bool):
                raise DamagedRun(folder, f"run.json has no valid {key!r}")
        if not isinstance(run["protocol"].get("steps"), int):
            raise DamagedRun(folder, "run.json has no valid 'protocol'")
        if run["status"] == "done" and run["steps"] != run["protocol"]["steps"]:
            raise DamagedRun(folder, "run.json says 'done', but its 'steps' are not those of its 'protocol'")
        names = (run["dataset"], run["algorithm"], f"seed-{run['seed']}")
        if names != folder.absolute().parts[-3:]:
            raise DamagedRun(folder, f"run.json is that of {' '.join(names)}")
    return run


FINISHED_KEYS: dict[str, Any] = {
    "dataset": str,
    "algorithm": str,
    "label": str,
    "seed": int,
    "config": dict,
    "config_hash": str,
    "protocol": dict,
    "steps": int,
    "stack": int,
    "dataset_sha256": str | None,
    "dataset_rows": int,
    "dataset_origin": str,
    "env_id": str,
    "task": dict,
    "device": str,
    "versions": dict,
    "machine": dict,
}


def last_evaluation(folder: Path) -> dict[str, float] | None:
    """The numbers of the last row of scores.csv, or None before the first evaluation.

    Raises DamagedRun if the file cannot be read or lacks a column."""
    try:
        with (folder / "scores.csv").open(encoding="utf-8", newline="") as file:
            rows = [{name: float(row[name]) for name in PROGRESS_COLUMNS} for row in csv.DictReader(file)]
        if not all(math.isfinite(value) for row in rows for value in row.values()):
            raise ValueError("it has a value that is not finite")
    except FileNotFoundError:
        return None
    except KeyError as error:
        raise DamagedRun(folder, f"scores.csv has no column {error}") from error
    except (ValueError, TypeError, csv.Error) as error:
        raise DamagedRun(folder, f"cannot read scores.csv: {error}") from error
    return max(rows, key=lambda row: row["step"], default=None)


PROGRESS_COLUMNS = ("step", "score", "training_seconds", "evaluation_seconds")


def to_csv(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(
        text, fieldnames=list(dict.fromkeys(key for row in rows for key in row)), restval=""
    )
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
