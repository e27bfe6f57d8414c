"""The policy of a run's checkpoint, with the observation statistics it was trained on, scored again."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offline_gntd.algorithms import configured
from offline_gntd.errors import UserError
from offline_gntd.evaluation import Evaluator
from offline_gntd.experiments.definitions import Protocol, settings_hash
from offline_gntd.experiments.record import Record
from offline_gntd.experiments.training import restore_agent
from offline_gntd.tasks import Task


@dataclass(frozen=True)
class Outcome:
    step: int
    returns: np.ndarray  # [episodes]
    score: float
    logged: float | None  # the score the run logged at this step, with as many episodes

    @property
    def reproduced(self) -> bool | None:
        return None if self.logged is None else self.score == self.logged

    def text(self) -> str:
        words = f"score {self.score:.4f}, return {self.returns.mean():.2f} over {len(self.returns)} episodes"
        if self.logged is None:
            return words
        return f"{words}; logged {self.logged:.4f}, {'the same' if self.reproduced else 'NOT the same'}"


def agent(record: Record) -> tuple[Any, Task, int]:
    """The agent as it was at a record's last checkpoint, its task and the step. Needs no dataset."""
    step = record.last_checkpoint()
    content = record.load(step)
    about = record.description = content["description"]
    record.scores = content["scores"]
    config = configured(about["algorithm"], about["protocol"]["steps"])
    task = Task(**about["task"])
    if settings_hash(config, Protocol(**about["protocol"]), about["stack"]) != about["config_hash"]:
        raise UserError(f"the settings of {about['algorithm']} have changed since {record.folder} was run")
    # as many networks as were stacked in the run, all alike: a batched product may round otherwise
    generators = [torch.Generator() for _ in range(about["stack"])]
    made = config.agent(task, generators)
    restore_agent(made, [content["state"]["agent"]] * about["stack"])
    return made, task, step


def evaluate(folder: Path, episodes: int | None = None) -> Outcome:
    """Score a stored policy: with the run's own number of episodes, exactly as the run did."""
    record = Record(folder)
    policy, task, step = agent(record)
    own = record.description["protocol"]["evaluate_episodes"]
    if episodes is not None and episodes < 1:
        raise UserError(f"--episodes must be at least 1, not {episodes}")
    evaluator = Evaluator(task, [record.description["seed"]] * record.description["stack"], episodes or own)
    returns = evaluator.returns(policy.act, step)[0]
    evaluator.close()
    logged = [row["score"] for row in record.scores if row["step"] == step]
    comparable = logged and episodes in (None, own)
    return Outcome(step, returns, task.score(float(returns.mean())), logged[0] if comparable else None)
