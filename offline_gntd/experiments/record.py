"""A run on disk: run.json, scores.csv, metrics.csv, the last checkpoint and a log; and its external trackers.

Every file is written under a temporary name and renamed. TensorBoard and Weights & Biases get the rows of the
CSV files too. A resumed run logs the rows after its checkpoint again; they replace the earlier ones.
"""

import csv
import io
import itertools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from offline_gntd.configuration import digest
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
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"cannot read {path}: it does not contain a JSON object")
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


# ---- TensorBoard and Weights & Biases ----

NOT_TRACKED = ("step", "returns")


class TensorBoard:
    """tensorboard --logdir results/EXPERIMENT: event files in the run's folder."""

    def __init__(self, record: Record, step: int):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(record.folder / "tensorboard"), purge_step=step)

    def write(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WandB:
    """Project offline_gntd, one group per experiment; with WANDB_MODE=offline, files in the run's folder."""

    def __init__(self, record: Record, step: int):
        import wandb

        run = record.description
        # a run and its resumption have the same id, a run that replaces it has another
        keys = ("experiment", "dataset", "algorithm", "seed", "config_hash", "dataset_sha256", "started")
        self.run = wandb.init(
            project="offline_gntd",
            group=run["experiment"],
            name=f"{run['dataset']} {run['algorithm']} seed-{run['seed']}",
            id=digest({key: run[key] for key in keys}),
            resume="allow",
            dir=str(record.folder),
            config=run["config"] | {"protocol": run["protocol"], "seed": run["seed"]},
            reinit="create_new",
            settings=wandb.Settings(silent=True),
        )

    def write(self, step: int, values: dict[str, float]) -> None:
        self.run.log(values, step=step)

    def close(self) -> None:
        self.run.finish()


class Trackers:
    """The trackers of a group of runs; each is opened at its first evaluation."""

    kinds: ClassVar[dict[str, type[TensorBoard | WandB]]] = {"tensorboard": TensorBoard, "wandb": WandB}

    def __init__(self, names: Sequence[str]):
        self.names = names
        self.open: dict[tuple[str, Path], TensorBoard | WandB] = {}

    def write(self, records: Sequence[Record]) -> None:
        """Log the last evaluation of every run."""
        for name, record in itertools.product(self.names, records):
            if not record.scores or record.diverged:
                continue
            row = record.scores[-1] | record.metrics[-1]
            key = (name, record.folder)
            if key not in self.open:
                self.open[key] = self.kinds[name](record, row["step"])
            values = {column: value for column, value in row.items() if column not in NOT_TRACKED}
            self.open[key].write(row["step"], values)

    def close(self) -> None:
        for tracker in self.open.values():
            tracker.close()
