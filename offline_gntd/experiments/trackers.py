"""TensorBoard and Weights & Biases logs, one per run, in addition to the CSV files.

A resumed run logs the rows after its checkpoint again; they replace the earlier ones or equal them.
"""

import contextlib
import importlib.util
from collections.abc import Iterator, Sequence
from typing import Any

from offline_gntd.configuration import digest
from offline_gntd.errors import UserError
from offline_gntd.experiments.record import Record

NOT_VALUES = ("step", "returns")


class TensorBoard:
    """tensorboard --logdir results/EXPERIMENT: event files in the run's folder."""

    package = "tensorboard"

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

    package = "wandb"

    def __init__(self, record: Record, step: int):
        import wandb

        description = record.description
        names = [description["dataset"], description["algorithm"], f"seed-{description['seed']}"]
        self.run = wandb.init(
            project="offline_gntd",
            group=description["experiment"],
            name=" ".join(names),
            id=_wandb_id(description),
            resume="allow",
            dir=str(record.folder),
            config=description["config"] | {"protocol": description["protocol"], "seed": description["seed"]},
            reinit="create_new",
            settings=wandb.Settings(silent=True),
        )

    def write(self, step: int, values: dict[str, float]) -> None:
        self.run.log(values, step=step)

    def close(self) -> None:
        self.run.finish()


TRACKERS: dict[str, type[TensorBoard | WandB]] = {"tensorboard": TensorBoard, "wandb": WandB}


def require(names: Sequence[str]) -> None:
    for name in names:
        if importlib.util.find_spec(TRACKERS[name].package) is None:
            raise UserError(f"--{name} needs an extra: pip install 'offline_gntd[{name}]'")


class Tracking:
    """The trackers of a group of runs; each is opened at its first evaluation."""

    def __init__(self, names: Sequence[str]):
        self.names = names
        self.trackers: dict[tuple[str, Any], Any] = {}

    def write(self, records: Sequence[Record]) -> None:
        """Log the last evaluation of every run."""
        for name in self.names:
            for record in records:
                if not record.scores or record.diverged:
                    continue
                row = record.scores[-1] | record.metrics[-1]
                key = (name, record.folder)
                if key not in self.trackers:
                    self.trackers[key] = TRACKERS[name](record, row["step"])
                values = {column: value for column, value in row.items() if column not in NOT_VALUES}
                self.trackers[key].write(row["step"], values)


@contextlib.contextmanager
def open_trackers(names: Sequence[str]) -> Iterator[Tracking]:
    tracking = Tracking(names)
    try:
        yield tracking
    finally:
        for tracker in tracking.trackers.values():
            tracker.close()


def _wandb_id(description: dict[str, Any]) -> str:
    """The same id for a run and its resumption, another one for a run that replaces it."""
    keys = ("experiment", "dataset", "algorithm", "seed", "config_hash", "dataset_sha256", "started")
    return digest({key: description[key] for key in keys})
