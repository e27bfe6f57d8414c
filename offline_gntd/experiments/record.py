"""A run on disk: run.json, scores.csv, metrics.csv and its last checkpoint, each written whole; a log."""

import csv
import io
import re
from pathlib import Path
from typing import Any

from offline_gntd import tensors
from offline_gntd.errors import UserError
from offline_gntd.files import read_json, remove, write_json, write_text

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
        tensors.save(self._checkpoint(step), content)

    def load(self, step: int) -> dict[str, Any]:
        """The checkpoint of a step, with the keys that `save` writes."""
        content = tensors.load(self._checkpoint(step))
        if not isinstance(content, dict) or content.get("step") != step:
            raise tensors.Unreadable(f"{self._checkpoint(step)} is not the checkpoint of step {step}")
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


def read_description(folder: Path) -> dict[str, Any] | None:
    path = folder / "run.json"
    return read_json(path) if path.exists() else None


def last_evaluation(folder: Path) -> dict[str, str] | None:
    try:
        with (folder / "scores.csv").open(encoding="utf-8", newline="") as file:
            return max(csv.DictReader(file), key=lambda row: int(row["step"]), default=None)
    except FileNotFoundError:
        return None


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
