"""A run on disk: run.json, scores.csv, metrics.csv and its last checkpoint, each written whole; a log."""

import csv
import io
from pathlib import Path
from typing import Any

import torch

from offline_gntd import tensors
from offline_gntd.errors import UserError
from offline_gntd.files import read_json, remove, write_json, write_text

FINISHED = ("done", "diverged")  # a diverged run is a result
LOG = "run.log"  # what the run and what failed in it said, of every attempt


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
        """Begin anew: only the log and the lock stay."""
        self.scores, self.metrics, self.description = [], [], {}
        for path in self.folder.glob("*"):
            if path.name != LOG and not path.name.startswith("lock-"):
                remove(path)

    def sweep(self) -> None:
        """Remove what was being written when its writer was killed."""
        for path in self.folder.glob(".*.part"):
            remove(path)

    def describe(self, **changes: Any) -> None:
        self.description |= changes
        write_json(self.folder / "run.json", self.description)

    def write_rows(self) -> None:
        write_text(self.folder / "scores.csv", to_csv(self.scores))
        write_text(self.folder / "metrics.csv", to_csv(self.metrics))

    def checkpoint_steps(self) -> set[int]:
        return {int(path.stem.partition("-")[2]) for path in self.folder.glob("checkpoint-*.pt")}

    def save(self, step: int, state: dict[str, torch.Tensor], timing: dict[str, float]) -> None:
        content = {
            "state": state,
            "scores": self.scores,
            "metrics": self.metrics,
            "description": self.description,
            "timing": timing,
        }
        tensors.save(self._checkpoint(step), content)

    def resume(self, step: int) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
        """Go back to the checkpoint of a step: rows measured after it are forgotten."""
        content = tensors.load(self._checkpoint(step))
        self.scores, self.metrics = content["scores"], content["metrics"]
        self.description = content["description"]
        return content["state"], content["timing"]

    def last_checkpoint(self) -> int:
        steps = self.checkpoint_steps()
        if not steps:
            raise UserError(f"{self.folder} holds no checkpoint; a run's folder ends in seed-N")
        return max(steps)

    def forget_checkpoints(self, but: int) -> None:
        for step in self.checkpoint_steps() - {but}:
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
