"""Train the project's own TD3 online, keeping every sample and its policy at every evaluation.

A training lives in a folder of its own, named after all that decides its outcome: what was asked, the seed
and the versions. Killed at any moment, it goes on from its last checkpoint to the same samples, bit for bit.
"""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from offline_gntd import tensors
from offline_gntd.algorithms import preset
from offline_gntd.algorithms.td3_bc import TD3BC, TD3BCAgent
from offline_gntd.collection.vector_collector import RolloutBuffer, VectorCollector
from offline_gntd.configuration import decisive, digest
from offline_gntd.errors import UserError
from offline_gntd.evaluation import Evaluator
from offline_gntd.files import home
from offline_gntd.nn.noise import uniform
from offline_gntd.tasks import Task
from offline_gntd.transitions import Sampler
from offline_gntd.versions import installed

STREAM = 0  # the streams of a training, among all that are drawn from one seed


@dataclass(frozen=True)
class Practice:
    """How an agent is trained online."""

    algorithm: str = "td3_bc"  # a preset of it, gntd3_bc say; there is nothing to clone, so it is TD3
    steps: int = 300_000  # of all environments together
    environments: int = 10  # stepped together
    updates_per_step: float = 0.75
    exploration: float = 0.1  # standard deviation of the noise on actions
    warm_up: int = 10_000  # steps with random actions, before the first update
    evaluate_every: int = 5_000  # steps
    evaluate_episodes: int = 10

    def check(self) -> None:
        """Refuse what cannot be trained with, when all fields are set."""
        for name in ("steps", "environments", "evaluate_every", "evaluate_episodes"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("steps", "evaluate_every", "warm_up"):
            if getattr(self, name) % self.environments:
                raise UserError(
                    f"{name} must be a multiple of the {self.environments} environments stepped together, "
                    f"not {getattr(self, name)}"
                )
        if not 0 <= self.warm_up < self.steps:
            raise UserError(f"a warm_up of {self.warm_up} steps leaves none of {self.steps} to learn in")
        if self.updates_per_step <= 0 or self.exploration < 0:
            raise UserError("updates_per_step must be more than 0, and exploration not less")
        if not isinstance(preset(self.algorithm).config, TD3BC):
            raise UserError(f"sets are built by td3_bc or gntd3_bc, not by {self.algorithm}")

    @property
    def config(self) -> TD3BC:
        """TD3: nothing to clone, and no statistics of observations yet to be made."""
        return dataclasses.replace(preset(self.algorithm).config, alpha=None, normalise_obs=False)


@dataclass(frozen=True)
class Snapshot:
    """A policy at an evaluation."""

    step: int
    greedy_return: float  # mean of its episodes, without exploration
    weights: Tensor  # of the actor's network, [1, parameters]


class Training:
    def __init__(self, task: Task, practice: Practice, seed: int):
        self.task, self.practice, self.seed = task, practice, seed
        self.generators = [torch.Generator().manual_seed(seed)]
        self.agent: TD3BCAgent = practice.config.agent(task, self.generators)
        self.sample = Sampler(task, self.agent.config.batch_size, self.generators)
        self.streams = VectorCollector(
            task, (seed, STREAM), practice.steps // practice.environments, practice.environments
        )
        self.snapshots: list[Snapshot] = []
        self.seconds = {"environments": 0.0, "updates": 0.0, "evaluations": 0.0}
        self._stored = 0  # rounds on disk

    @property
    def folder(self) -> Path:
        made_from = [dataclasses.asdict(self.practice), decisive(self.practice.config), self.seed]
        name = f"{self.task.env_id}-{digest([*made_from, installed()])}"
        return home() / "datasets" / "trainings" / name

    @property
    def step(self) -> int:
        return self.streams.rounds * self.practice.environments

    @property
    def steps(self) -> RolloutBuffer:
        """Every sample so far."""
        return self.streams.kept[: self.streams.rounds]

    def run(
        self, report: Callable[["Training"], None] = lambda training: None, checkpoint_seconds: float = 60.0
    ) -> None:
        """Train to the last step, from the last checkpoint if there is one."""
        self._resume()
        evaluator = Evaluator(self.task, [self.seed], self.practice.evaluate_episodes)
        saved = time.monotonic()
        while self.step < self.practice.steps:
            self.live()
            self.learn()
            if self.step % self.practice.evaluate_every == 0 or self.step == self.practice.steps:
                self._evaluate(evaluator)
            report(self)
            if time.monotonic() - saved >= checkpoint_seconds or self.step == self.practice.steps:
                self.save()
                saved = time.monotonic()
        evaluator.close()
        self.streams.close()

    def live(self) -> None:
        """One step of every environment."""
        began = time.perf_counter()
        if self.step < self.practice.warm_up:
            actions = uniform(self.generators, self.practice.environments, self.task.action_dim)
        else:
            actions = self.agent.explore(self.streams.obs[None], self.practice.exploration)
        self.streams.step(actions[0])
        self.seconds["environments"] += time.perf_counter() - began

    def learn(self) -> None:
        """The updates that are due by now."""
        began = time.perf_counter()
        due = int((self.step - self.practice.warm_up) * self.practice.updates_per_step)
        rows = self.steps.rows.flatten(0, 1)
        while int(self.agent.updates) < due:
            self.agent.update(self.sample(rows))
        self.seconds["updates"] += time.perf_counter() - began

    def _evaluate(self, evaluator: Evaluator) -> None:
        began = time.perf_counter()
        mean = float(evaluator.returns(self.agent.act, key=self.step).mean())
        self.snapshots.append(Snapshot(self.step, mean, self.agent.actor.network.flat.clone()))
        self.seconds["evaluations"] += time.perf_counter() - began

    def save(self) -> None:
        """The samples since the last checkpoint, then all else: only the second makes the first count."""
        self.steps[self._stored :].save(self._part(self._stored))
        content = {
            "rounds": self.streams.rounds,
            "agent": self.agent.state_dict(),
            "generator": self.generators[0].get_state(),
            "snapshots": [vars(snapshot) for snapshot in self.snapshots],
            "seconds": self.seconds,
        }
        tensors.save(self.folder / "checkpoint.pt", content)
        self._stored = self.streams.rounds

    def _resume(self) -> None:
        if not (self.folder / "checkpoint.pt").exists():
            return
        content = tensors.load(self.folder / "checkpoint.pt")
        for name, tensor in self.agent.state_dict().items():
            tensor.copy_(content["agent"][name])
        self.generators[0].set_state(content["generator"])
        self.snapshots = [Snapshot(**snapshot) for snapshot in content["snapshots"]]
        self.seconds = content["seconds"]
        parts, self._stored = [], 0
        while self._stored < content["rounds"]:
            parts.append(RolloutBuffer.load(self._part(self._stored)))
            self._stored += len(parts[-1].rows)
        lived = RolloutBuffer(torch.cat([p.rows for p in parts]), torch.cat([p.truncated for p in parts]))
        self.streams.resume(lived)

    def _part(self, rounds: int) -> Path:
        """The file of the samples from this round on."""
        return self.folder / f"steps-{rounds:07d}.pt"
