"""TensorBoard and Weights & Biases, for those who ask for them; the CSV files are always written.

Each run has a log of its own there. What is logged again after a resumption replaces what was or is the same.
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
    """Project offline_gntd, a group per experiment; $WANDB_MODE=offline keeps it in the run's folder."""

    package = "wandb"

    def __init__(self, record: Record, step: int):
        import wandb

        about = record.description
        names = [about["dataset"], about["algorithm"], f"seed-{about['seed']}"]
        self.run = wandb.init(
            project="offline_gntd",
            group=about["experiment"],
            name=" ".join(names),
            id=_wandb_id(about),
            resume="allow",
            dir=str(record.folder),
            config=about["config"] | {"protocol": about["protocol"], "seed": about["seed"]},
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
    """The trackers of a stack of runs, each opened at its first evaluation."""

    def __init__(self, names: Sequence[str]):
        self.names = names
        self.trackers: dict[tuple[str, Any], Any] = {}

    def write(self, records: Sequence[Record]) -> None:
        """The last evaluation of every run."""
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
def opened(names: Sequence[str]) -> Iterator[Tracking]:
    tracking = Tracking(names)
    try:
        yield tracking
    finally:
        for tracker in tracking.trackers.values():
            tracker.close()


def _wandb_id(about: dict[str, Any]) -> str:
    """The same for a run and its resumption, another for the run that takes its place."""
    keys = ("experiment", "dataset", "algorithm", "seed", "config_hash", "dataset_sha256", "started")
    return digest({key: about[key] for key in keys})
