"""Online training of TD3 that stores every sample, and the policy at every evaluation.

The folder of a training is named by a hash of its settings, seed and package versions. A killed training
resumes from its last checkpoint and gives the same samples, bit for bit.
"""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offline_gntd.algorithms import preset
from offline_gntd.algorithms.td3_bc import TD3BC, TD3BCAgent
from offline_gntd.collection.online import OnlineBatches, OnlineSettings, RolloutBuffer, measure_rate
from offline_gntd.configuration import digest, hashed_fields
from offline_gntd.errors import UserError
from offline_gntd.evaluation import Evaluator
from offline_gntd.files import Unreadable, home, load_tensors, save_tensors
from offline_gntd.tasks import Task
from offline_gntd.versions import installed

MOST_STEPS = 1_000_000_000  # every sample is in memory
STREAM = 0  # second part of the key of a training's environments; roll-outs use other numbers


@dataclass(frozen=True)
class TrainingSettings:
    algorithm: str = "td3_bc"  # or gntd3_bc; trained without behaviour cloning, which makes it TD3
    steps: int = 300_000  # summed over the environments
    environments: int = 10  # stepped together
    updates_per_step: float = 0.75
    exploration: float = 0.1  # standard deviation of the noise on actions
    warm_up: int = 10_000  # steps with random actions, before the first update
    evaluate_every: int = 5_000  # steps
    evaluate_episodes: int = 10

    def check(self) -> None:
        """Raise UserError for illegal values."""
        for name in ("steps", "environments", "evaluate_every", "evaluate_episodes"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.steps > MOST_STEPS:
            raise UserError(f"steps must be at most {MOST_STEPS:,}, not {self.steps}")
        for name in ("steps", "evaluate_every", "warm_up"):
            if getattr(self, name) % self.environments:
                raise UserError(
                    f"{name} must be a multiple of the {self.environments} environments stepped together, "
                    f"not {getattr(self, name)}"
                )
        if not 0 <= self.warm_up < self.steps:
            raise UserError(
                f"warm_up must be at least 0 and less than the {self.steps} steps, not {self.warm_up}"
            )
        if self.updates_per_step <= 0 or self.exploration < 0:
            raise UserError("updates_per_step must be more than 0, and exploration at least 0")
        if not isinstance(preset(self.algorithm).config, TD3BC):
            raise UserError(f"--algorithm must be td3_bc or gntd3_bc, not {self.algorithm}")

    def updates(self, since: int = 0) -> int:
        """Number of updates from step `since` to the end."""
        first, last = (
            int(max(0, step - self.warm_up) * self.updates_per_step) for step in (since, self.steps)
        )
        return last - first

    @property
    def config(self) -> TD3BC:
        """TD3: no behaviour cloning, no normalised observations."""
        return dataclasses.replace(preset(self.algorithm).config, alpha=None, normalise_obs=False)


@dataclass(frozen=True)
class Snapshot:
    """A policy at an evaluation."""

    step: int
    greedy_return: float  # mean of its episodes, without exploration
    weights: Tensor  # the actor's network, [1, parameters]


@dataclass(frozen=True)
class Rates:
    """Measured speed of a training on this machine."""

    steps: float  # per second, of all environments together
    updates: float  # per second
    episode_limit: int | None  # steps, of the environment

    def seconds(self, settings: TrainingSettings, since: int = 0) -> float:
        """Time to train from step `since` to the end, if every evaluation episode reaches the limit."""
        evaluations = -(-settings.steps // settings.evaluate_every) - since // settings.evaluate_every
        evaluated = evaluations * settings.evaluate_episodes * (self.episode_limit or 0)
        return (settings.steps - since + evaluated) / self.steps + settings.updates(since) / self.updates


class OnlineTraining:
    def __init__(self, task: Task, settings: TrainingSettings, seed: int):
        self.task, self.settings, self.seed = task, settings, seed
        self.generators = [torch.Generator().manual_seed(seed)]
        self.agent: TD3BCAgent = settings.config.agent(task, self.generators)
        online = OnlineSettings(
            batch_size=settings.config.batch_size,
            random_steps=settings.warm_up,
            buffer_size=settings.steps,
            environments=settings.environments,
            updates_per_step=settings.updates_per_step,
        )
        self.batches = OnlineBatches(task, online, [seed], self.generators, STREAM)
        self.snapshots: list[Snapshot] = []
        self.seconds = {"environments": 0.0, "updates": 0.0, "evaluations": 0.0}
        self._stored = 0  # transitions on disk

    @property
    def folder(self) -> Path:
        parts = [dataclasses.asdict(self.settings), hashed_fields(self.settings.config), self.seed]
        name = f"{self.task.env_id}-{digest([*parts, installed()])}"
        return home() / "datasets" / "trainings" / name

    @property
    def step(self) -> int:
        return self.batches.steps

    @property
    def samples(self) -> RolloutBuffer:
        """Every sample so far."""
        shape = (-1, self.settings.environments)
        rows, truncated = self.batches.buffer.rows[0], self.batches.buffer.truncated[0]
        return RolloutBuffer(
            rows[: self.step].unflatten(0, shape), truncated[: self.step].unflatten(0, shape)
        )

    def run(
        self,
        report: Callable[["OnlineTraining"], None] = lambda training: None,
        checkpoint_seconds: float = 60.0,
    ) -> None:
        """Train to the last step, from the last checkpoint if there is one. `report` is called every step."""
        if self.step == 0:
            self.resume()
        evaluator = Evaluator(self.task, [self.seed], self.settings.evaluate_episodes)
        saved = time.monotonic()
        while self.step < self.settings.steps:
            self.train_step()
            if self.step % self.settings.evaluate_every == 0 or self.step == self.settings.steps:
                self._evaluate(evaluator)
            report(self)
            if time.monotonic() - saved >= checkpoint_seconds or self.step == self.settings.steps:
                self.save()
                saved = time.monotonic()
        evaluator.close()
        self.batches.close()

    def train_step(self) -> None:
        """One step in every environment, and the updates that are due."""
        start = time.perf_counter()
        due = self.batches.step(partial(self.agent.explore, noise=self.settings.exploration))
        stepped = time.perf_counter()
        for _ in range(due):
            self.agent.update(self.batches.sample())
        self.seconds["environments"] += stepped - start
        self.seconds["updates"] += time.perf_counter() - stepped

    def _evaluate(self, evaluator: Evaluator) -> None:
        start = time.perf_counter()
        mean = float(evaluator.returns(self.agent.act, key=self.step).mean())
        self.snapshots.append(Snapshot(self.step, mean, self.agent.actor.network.flat.clone()))
        self.seconds["evaluations"] += time.perf_counter() - start

    def save(self) -> None:
        """Write the samples since the last checkpoint to a new file, then a checkpoint."""
        state = self.batches.state(0)
        new = {name: state.pop(f"online.{name}")[self._stored :].clone() for name in ("rows", "truncated")}
        save_tensors(self._part(self._stored), new)
        content = {
            "steps": self.step,
            "batches": state,
            "agent": self.agent.state_dict(),
            "generator": self.generators[0].get_state(),
            "snapshots": [vars(snapshot) for snapshot in self.snapshots],
            "seconds": self.seconds,
        }
        save_tensors(self.folder / "checkpoint.pt", content)
        self._stored = self.step

    def resume(self) -> None:
        """Restore the last checkpoint, if there is one."""
        if not (self.folder / "checkpoint.pt").exists():
            return
        try:
            self._restore(load_tensors(self.folder / "checkpoint.pt"))
        except Unreadable as error:
            raise UserError(f"{error}; delete {self.folder} and start again") from error

    def _restore(self, content: dict[str, Any]) -> None:
        for name, tensor in self.agent.state_dict().items():
            tensor.copy_(content["agent"][name])
        self.generators[0].set_state(content["generator"])
        self.snapshots = [Snapshot(**snapshot) for snapshot in content["snapshots"]]
        self.seconds = content["seconds"]
        parts, self._stored = [], 0
        while self._stored < content["steps"]:
            parts.append(load_tensors(self._part(self._stored)))
            self._stored += len(parts[-1]["rows"])
        samples = {f"online.{name}": torch.cat([p[name] for p in parts]) for name in ("rows", "truncated")}
        self.batches.restore([content["batches"] | samples])

    def _part(self, stored: int) -> Path:
        """The file of the samples from number `stored` on."""
        return self.folder / f"samples-{stored:07d}.pt"


def measure(task: Task, settings: TrainingSettings) -> Rates:
    """Time a few steps and updates of a temporary training."""
    short = dataclasses.replace(settings, steps=settings.environments, warm_up=0)
    trial = OnlineTraining(task, short, seed=0)
    explore = partial(trial.agent.explore, noise=settings.exploration)
    rounds = measure_rate(lambda: trial.batches.step(explore), settings.steps // settings.environments)
    updates = measure_rate(lambda: trial.agent.update(trial.batches.sample()), settings.updates())
    spec = trial.batches.collectors[0].environments[0].spec
    trial.batches.close()
    return Rates(rounds * settings.environments, updates, spec.max_episode_steps if spec else None)
