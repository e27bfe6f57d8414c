"""One run: train an agent for a group of seeds, evaluate it, and record each seed in its folder.

A run that was stopped and resumed, or that continued a shorter one, leaves the same bits as an uninterrupted
run, except for its timing.
"""

import dataclasses
import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offline_gntd import versions
from offline_gntd.algorithms import configured, preset
from offline_gntd.configuration import to_dict
from offline_gntd.datasets import Dataset, verify
from offline_gntd.errors import UserError
from offline_gntd.evaluation import Evaluator
from offline_gntd.experiments.definitions import Cell, Protocol, settings_hash
from offline_gntd.experiments.record import Record, read_description
from offline_gntd.experiments.training import DataSource, Training, is_family, restore_agent
from offline_gntd.files import Unreadable
from offline_gntd.tasks import Task

LARGEST_VALUE = 1e6  # a run whose |Q| exceeds this has diverged
STOP_CHECK = 16  # updates between checks for a stop request or a due checkpoint
CHECKPOINT_SHARE = 0.005  # default share of a run's time for checkpoints
SHORTEST_PERIOD = 10.0  # default minimum of the seconds between checkpoints

TIMING = ("training_seconds", "training_cpu_seconds", "evaluation_seconds", "checkpoint_seconds")


class Stopped(Exception):
    """The run was asked to stop; its checkpoint holds everything it has done."""


class Run:
    """The agent, the evaluator and the records of a cell."""

    def __init__(self, cell: Cell, device: str = "cpu", sources: tuple[DataSource, ...] | None = None):
        self.cell, self.device = cell, device
        self.sources = cell.sources() if sources is None else sources  # one per seed
        self.training = Training(cell.config, self.sources, cell.seeds, device)
        self.task = self.training.task
        self.evaluator = Evaluator(self.task, cell.seeds, cell.protocol.evaluate_episodes)
        self.records = [Record(cell.folder(seed)) for seed in cell.seeds]
        self.save_seconds = 0.0  # time that the last checkpoint took
        self.timing = dict.fromkeys(TIMING, 0.0)
        self._seconds_before = (0.0, 0.0)  # on curvature and on training, up to the last evaluation
        self.evaluated = False  # in this process
        self._checked = False  # whether `check_restorable` was called

    def execute(
        self,
        report: Callable[[int, float | None], None] = lambda step, score: None,
        stopping: Callable[[], bool] = lambda: False,
        checkpoint_seconds: float | None = None,
    ) -> None:
        """Train to the protocol's last step, from the last checkpoint if there is one.

        report              called with the step, and the mean score when one was measured
        stopping            called every few updates; if it returns True, the run checkpoints and ends
        checkpoint_seconds  between checkpoints; None limits them to a small share of the run's time
        """
        try:
            verify(self.sources)
            self._start()
            last_checkpoint = time.monotonic()
            while self.step < self.cell.protocol.steps and not all(
                record.diverged for record in self.records
            ):
                self._train(self._pause_at())
                report(self.step, self._evaluate() if self._evaluation_due(self.step) else None)
                if stopping():
                    self.save()
                    for record in self.records:
                        record.describe(status="stopped")
                    raise Stopped
                if checkpoint_seconds is None:
                    period = max(SHORTEST_PERIOD, self.save_seconds / CHECKPOINT_SHARE)
                else:
                    period = checkpoint_seconds
                if time.monotonic() - last_checkpoint > period:
                    self.save()
                    last_checkpoint = time.monotonic()
            verify(self.sources)  # before the results claim this sha256
            self.save()
            for record in self.records:
                status = "diverged" if record.diverged else "done"
                record.describe(status=status, finished=_now(), steps=self.step, **self.timing)
        finally:
            self.evaluator.close()
            self.training.close()

    @property
    def step(self) -> int:
        return self.training.step

    def _pause_at(self) -> int:
        """The next step at which to evaluate, or to check for a stop request or a due checkpoint."""
        every = self.cell.protocol.evaluate_every
        next_evaluation = min((self.step // every + 1) * every, self.cell.protocol.steps)
        return min(self.step + STOP_CHECK, next_evaluation)

    def _train(self, until: int) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        self.training.train(until)
        self.timing["training_seconds"] += time.perf_counter() - wall
        self.timing["training_cpu_seconds"] += time.process_time() - cpu

    def _evaluation_due(self, step: int) -> bool:
        return step % self.cell.protocol.evaluate_every == 0 or step == self.cell.protocol.steps

    def _evaluate(self) -> float:
        """Score every seed that has not diverged; returns the mean score."""
        start = time.perf_counter()
        metrics = {name: values.tolist() for name, values in self.training.metrics().items()}
        if "kfac_seconds" in metrics:
            metrics["kfac_seconds_share"] = self._curvature_share(metrics.pop("kfac_seconds"))
        returns = self.evaluator.returns(self.training.act, self.step, self.device)  # [seeds, episodes]
        self.timing["evaluation_seconds"] += time.perf_counter() - start
        scores, self.evaluated = [], True
        for i, record in enumerate(self.records):
            row = {name: values[i] for name, values in metrics.items()} | self.training.batches.metrics(i)
            if record.diverged:
                continue
            if not all(map(math.isfinite, row.values())) or row.get("largest_value", 0.0) > LARGEST_VALUE:
                record.describe(diverged_at=self.step)
                continue
            mean = float(returns[i].mean())
            score = self.task.score(mean)
            scores.append(score)
            record.metrics.append({"step": self.step} | row)
            record.scores.append(
                {
                    "step": self.step,
                    "return": mean,
                    "return_std": float(returns[i].std()),
                    "score": score,
                    "score_std": self.task.score_spread(float(returns[i].std())),
                    "returns": " ".join(f"{value:g}" for value in returns[i]),
                }
                | self.timing
            )
            record.write_rows()
        return float(np.mean(scores)) if scores else math.nan

    def _curvature_share(self, seconds: list[float]) -> list[float]:
        """The share of training time since the last evaluation (or resumption) that went into curvature.

        seconds  spent on curvature in this process; the same number for every seed
        """
        curvature, training = self._seconds_before
        self._seconds_before = (seconds[0], self.timing["training_seconds"])
        share = (seconds[0] - curvature) / (self._seconds_before[1] - training)
        return [share] * len(seconds)  # the seeds are trained together

    def save(self) -> None:
        """Checkpoint every seed; the checkpoints before are removed only when all are written."""
        start = time.perf_counter()
        if not self._checked:
            self.training.check_restorable()
            self._checked = True
        for i, record in enumerate(self.records):
            record.save(self.step, self.training.state(i), self.timing)
        for record in self.records:
            record.remove_checkpoints(keep=self.step)
        self.save_seconds = time.perf_counter() - start
        self.timing["checkpoint_seconds"] += self.save_seconds

    def _start(self) -> None:
        """Resume from the latest step of which every seed has a sound checkpoint, or start from scratch."""
        for record in self.records:
            record.remove_partial_files()
        steps = set.intersection(*(record.checkpoint_steps() for record in self.records))
        steps = {step for step in steps if step <= self.cell.protocol.steps}
        if steps and self._same_run():
            for step in sorted(steps, reverse=True):
                try:
                    return self._resume(step)
                except Unreadable as error:
                    print(f"checkpoint {step} is not used: {error}", file=sys.stderr)
        if steps:  # a failed restore may have changed the agent
            self.training.close()
            self.training = Training(self.cell.config, self.sources, self.cell.seeds, self.device)
        for record in self.records:
            record.clear()
            record.describe(**self._description(record), resumed_at=[])

    def _same_run(self) -> bool:
        """Whether the run on disk has this cell's settings, data and package versions."""
        for record in self.records:
            expected = self._description(record)
            stored = read_description(record.folder) or {}
            if any(stored.get(key) != expected[key] for key in ("config_hash", "dataset_sha256")):
                return False
            if stored.get("versions") != expected["versions"]:
                changed = versions.changes(stored.get("versions", {}), expected["versions"])
                print(f"{record.folder} starts from scratch: its checkpoint has {changed}", file=sys.stderr)
                return False
        return True

    def _resume(self, step: int) -> None:
        contents = [record.load(step) for record in self.records]
        self.training.restore([content["state"] for content in contents], step)
        for record, content in zip(self.records, contents, strict=True):
            self.timing |= content["timing"]
            resumed_at = (read_description(record.folder) or {}).get("resumed_at", [])
            record.description = content["description"]
            # a shorter run ends with an evaluation that a longer run may not have
            record.scores = [row for row in content["scores"] if self._evaluation_due(row["step"])]
            record.metrics = [row for row in content["metrics"] if self._evaluation_due(row["step"])]
            record.describe(
                status="running",
                process=os.getpid(),
                protocol=dataclasses.asdict(self.cell.protocol),
                resumed_at=[*resumed_at, step],
            )
            record.write_rows()
        self._seconds_before = (0.0, self.timing["training_seconds"])

    def _description(self, record: Record) -> dict[str, Any]:
        cell, i = self.cell, self.records.index(record)
        source = self.sources[i]
        return {
            "experiment": cell.experiment,
            "dataset": cell.dataset,
            "algorithm": cell.algorithm,
            "label": preset(cell.algorithm).label,
            "seed": cell.seeds[i],
            "status": "running",
            "config": to_dict(cell.config),
            "config_hash": cell.config_hash,
            "protocol": dataclasses.asdict(cell.protocol),
            "stack": len(cell.seeds),
            "dataset_source": source.source,
            "dataset_sha256": source.sha256,
            "dataset_per_seed": is_family(cell.source),
            "dataset_rows": len(source) if isinstance(source, Dataset) else 0,
            "dataset_origin": source.origin,
            "dataset_d4rl_id": source.d4rl_id,
            "dataset_version": source.version,
            "dataset_level": source.provenance.get("level"),
            "dataset_score": source.score,
            "dataset_built_by": source.provenance.get("command"),
            "env_id": source.task.env_id,
            "task": dataclasses.asdict(source.task),
            "device": str(self.device),
            "threads": torch.get_num_threads(),
            "versions": versions.versions(),
            "commit": versions.commit(),
            "machine": versions.machine(),
            "process": os.getpid(),
            "started": _now(),
        }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class StoredEvaluation:
    """A stored policy, evaluated again."""

    step: int
    returns: np.ndarray  # [episodes]
    score: float
    logged: float | None  # the run's score at this step; None with another number of episodes

    @property
    def reproduced(self) -> bool | None:
        return None if self.logged is None else self.score == self.logged

    def text(self) -> str:
        text = f"score {self.score:.4f}, return {self.returns.mean():.2f} over {len(self.returns)} episodes"
        if self.logged is None:
            return text
        return f"{text}; logged {self.logged:.4f}, {'the same' if self.reproduced else 'NOT the same'}"


@dataclass(frozen=True)
class StoredAgent:
    """The agent in a run's last checkpoint, and its run."""

    config: Any
    task: Task
    protocol: Protocol
    state: dict[str, Tensor]  # of its seed
    seed: int
    seeds_per_process: int
    step: int
    score: float | None  # logged at this step


def stored_agent(folder: Path) -> StoredAgent:
    """Raises UserError without a checkpoint, or if the algorithm's settings have changed since the run."""
    record = Record(folder)
    step = record.last_checkpoint()
    content = record.load(step)
    run, protocol = content["description"], Protocol(**content["description"]["protocol"])
    config = configured(run["algorithm"], protocol.steps)
    if settings_hash(config, protocol, run["stack"]) != run["config_hash"]:
        raise UserError(f"the settings of {run['algorithm']} have changed since {folder} was run")
    logged = [row["score"] for row in content["scores"] if row["step"] == step]
    return StoredAgent(
        config,
        Task(**run["task"]),
        protocol,
        content["state"]["agent"],
        run["seed"],
        run["stack"],
        step,
        logged[0] if logged else None,
    )


def evaluate_stored(folder: Path, episodes: int | None = None) -> StoredEvaluation:
    """Evaluate the policy of a run's last checkpoint; needs no dataset.

    episodes  default: the run's number; then the score equals the logged one

    Raises UserError as `stored_agent` does.
    """
    if episodes is not None and not 1 <= episodes <= 100_000:
        raise UserError(f"--episodes must be at least 1 and at most 100,000, not {episodes}")
    stored = stored_agent(folder)
    # the number of networks is the run's: the rounding of a batched product depends on it
    count, logged_episodes = stored.seeds_per_process, stored.protocol.evaluate_episodes
    agent = stored.config.agent(stored.task, [torch.Generator() for _ in range(count)])
    restore_agent(agent, [stored.state] * count)
    with closing(Evaluator(stored.task, [stored.seed] * count, episodes or logged_episodes)) as evaluator:
        returns = evaluator.returns(agent.act, stored.step)[0]
    score = stored.task.score(float(returns.mean()))
    return StoredEvaluation(
        stored.step, returns, score, stored.score if len(returns) == logged_episodes else None
    )
