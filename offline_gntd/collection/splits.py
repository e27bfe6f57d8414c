"""MuJoCo splits as D4RL defined them, from one online training per body.

random         roll-outs with uniformly random actions; needs no training
medium         roll-outs of the policy with the score nearest to a third of the expert's, among the
               evaluations up to the first that reached a third
medium-replay  every sample of the training up to that evaluation
expert         roll-outs of the policy with the best evaluation
medium-expert  half medium, half expert
full-replay    every sample of the training
"""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offline_gntd.collection.online import RolloutBuffer, roll_out
from offline_gntd.collection.training import OnlineTraining, Snapshot, TrainingSettings
from offline_gntd.configuration import to_dict
from offline_gntd.datasets import built_datasets, catalogue
from offline_gntd.errors import UserError
from offline_gntd.files import Unreadable
from offline_gntd.nn.policies import uniform
from offline_gntd.tasks import LOCOMOTION, Task
from offline_gntd.versions import installed

POLICIES = {  # the policies that a split is rolled out from; the other splits are samples of the training
    "random": ("random",),
    "medium": ("medium",),
    "medium-expert": ("medium", "expert"),
    "expert": ("expert",),
}
STREAMS = {"random": 1, "medium": 2, "expert": 3}  # second part of the key of roll-outs; training uses 0

MOST_ROWS = 1_000_000_000  # they are in memory while a split is built

Report = Callable[[str, int], None]  # called with what is being done, and the number of new steps


@dataclass(frozen=True)
class Size:
    """The amount of training, and of rows."""

    training: TrainingSettings
    transitions: int  # rows of a split that is rolled out …
    mixed_transitions: int  # … and of medium-expert

    def of_rows(self, transitions: int) -> "Size":
        return dataclasses.replace(self, transitions=transitions, mixed_transitions=transitions)

    @property
    def rolled_out(self) -> int:
        """Steps to roll out each policy, enough for every split."""
        return max(self.transitions, -(-self.mixed_transitions // 2))


SIZES = {
    "small": Size(TrainingSettings(), 200_000, 200_000),
    "full": Size(TrainingSettings(steps=1_000_000, updates_per_step=1.0), 1_000_000, 2_000_000),  # D4RL's
}


@dataclass(frozen=True)
class Split:
    body: str
    name: str  # random, medium …

    @property
    def trained(self) -> bool:
        """Whether it needs a training."""
        return self.name != "random"

    def rows(self, size: Size) -> int:
        """Number of rows, if it is rolled out."""
        return size.mixed_transitions if self.name == "medium-expert" else size.transitions


LOCAL_SPLITS = {
    f"{body}-{split}-local": Split(body, split) for body in LOCOMOTION for split in catalogue.SPLITS
}


@dataclass(frozen=True)
class BuildSpec:
    """The settings on which the data of a body's splits depends."""

    body: str
    size: Size = SIZES["small"]
    seed: int = 0

    def __post_init__(self):
        if self.size.training.environments < 1:
            raise UserError(f"environments must be at least 1, not {self.size.training.environments}")
        if not 2 <= self.size.transitions <= MOST_ROWS:
            raise UserError(
                f"--transitions must be at least 2 and at most {MOST_ROWS:,}, not {self.size.transitions}"
            )
        if self.seed < 0:
            raise UserError(f"--seed must be at least 0, not {self.seed}")
        if self.seed >= 2**63:  # the limit of torch
            raise UserError(f"--seed must be less than 2**63, not {self.seed}")

    @property
    def task(self) -> Task:
        return LOCOMOTION[self.body].task()

    def options(self, split: Split) -> dict[str, Any]:
        """The options on which a split depends, for its provenance."""
        rows = {"transitions": split.rows(self.size)} if split.name in POLICIES else {}
        training = dataclasses.asdict(self.size.training)
        if not split.trained:
            training = {"environments": training["environments"]}
        return rows | {"seed": self.seed} | training


class TrainedPolicies:
    """The policies of a finished training, and the rows of the splits made with them.

    Without a training, there is only the random policy.
    """

    def __init__(self, spec: BuildSpec, training: OnlineTraining | None, report: Report):
        self.spec, self._training, self.report = spec, training, report
        self.snapshots: dict[str, Snapshot] = {}
        if training:
            self.snapshots["medium"] = medium(training.snapshots, spec.task)
            self.snapshots["expert"] = expert(training.snapshots)
        self._random: RolloutBuffer | None = None

    @property
    def training(self) -> OnlineTraining:
        assert self._training, "all splits but random need a training"
        return self._training

    def rows(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Rows [n, row_width] of a split, and the row after each episode's last."""
        if split == "full-replay":
            return self.training.samples.episodes(self.training.step)
        if split == "medium-replay":
            return self.training.samples.episodes(self.snapshots["medium"].step)
        policies = POLICIES[split]
        count, more = divmod(Split(self.spec.body, split).rows(self.spec.size), len(policies))
        parts = [
            self.rolled_out(policy).episodes(count + (number < more))
            for number, policy in enumerate(policies)
        ]
        offsets = np.cumsum([0] + [len(rows) for rows, _ in parts[:-1]])
        return (
            np.concatenate([rows for rows, _ in parts]),
            np.concatenate([ends + offset for (_, ends), offset in zip(parts, offsets, strict=True)]),
        )

    def rolled_out(self, policy: str) -> RolloutBuffer:
        """Roll-outs of a policy, enough for every split; stored for trained policies."""
        if policy == "random":
            self._random = self._random or self._roll_out(policy)
            return self._random
        path = rollout_file(policy, self.spec, self.training)
        with contextlib.suppress(Unreadable):  # absent or damaged
            return RolloutBuffer.load(path)
        self._roll_out(policy).save(path)
        return RolloutBuffer.load(path)

    def _roll_out(self, policy: str) -> RolloutBuffer:
        spec, key = self.spec, (self.spec.seed, STREAMS[policy])
        seed = int(np.random.SeedSequence(key).generate_state(1)[0])
        act = self._actions_of(policy, [torch.Generator().manual_seed(seed)])
        count, environments = spec.size.rolled_out, spec.size.training.environments
        progress = lambda steps: self.report(f"rolling out {policy}", steps)  # noqa: E731
        return roll_out(spec.task, act, count, key, environments, progress)

    def _actions_of(self, policy: str, generators: list[torch.Generator]) -> Callable[[Tensor], Tensor]:
        """Random actions, or a snapshot's with exploration noise: D4RL's policies are stochastic too."""
        task, settings = self.spec.task, self.spec.size.training
        if policy == "random":
            return lambda obs: uniform(generators, obs.shape[1], task.action_dim)
        agent = settings.config.agent(task, generators)
        agent.actor.network.flat.copy_(self.snapshots[policy].weights)
        return lambda obs: agent.explore(obs, settings.exploration)

    def describe(self, split: str) -> str:
        """The scores of the policies that a split comes from, in words."""
        if split == "full-replay":
            last = self.training.snapshots[-1]
            return f"every sample of a training that {self._reached(last)}"
        if split == "medium-replay":
            return f"every sample until the policy {self._reached(self.snapshots['medium'])}"
        parts = []
        for policy in POLICIES[split]:
            returns = self.rolled_out(policy).complete_returns(self.spec.task)
            score = f"score {self._score(returns.mean())}" if len(returns) else "no episode ended"
            greedy = ""
            if policy in self.snapshots:
                greedy = f", which {self._reached(self.snapshots[policy])} without noise"
            parts.append(f"{policy} policy, {score}{greedy}")
        return "; ".join(parts)

    def _reached(self, snapshot: Snapshot) -> str:
        when = f"at step {snapshot.step:,} of {self.training.step:,}"
        return f"scored {self._score(snapshot.greedy_return)} {when}"

    def _score(self, mean_return: float) -> str:
        return f"{self.spec.task.score(float(mean_return)):.1f}"


def rollout_file(policy: str, spec: BuildSpec, training: OnlineTraining) -> Path:
    return training.folder / f"{policy}-{spec.size.rolled_out}.pt"


def policies_of(names: Sequence[str]) -> set[str]:
    """The policies that the named splits are rolled out from."""
    return {policy for name in names for policy in POLICIES.get(LOCAL_SPLITS[name].name, ())}


def expert(snapshots: Sequence[Snapshot]) -> Snapshot:
    return max(snapshots, key=lambda snapshot: snapshot.greedy_return)


def medium(snapshots: Sequence[Snapshot], task: Task) -> Snapshot:
    scores = [task.score(snapshot.greedy_return) for snapshot in snapshots]
    goal = min(max(scores) / 3, max(scores))  # a third of a negative score would be above it
    reached = next(i for i, score in enumerate(scores) if score >= goal)
    return snapshots[min(range(reached + 1), key=lambda i: abs(scores[i] - goal))]


def build_body(
    spec: BuildSpec,
    names: Sequence[str],
    training: OnlineTraining | None,
    report: Report,
    checkpoint_seconds: float,
) -> None:
    """Build and store the named splits of one body; those that need no training come first.

    training  resumed from its last checkpoint; None if no split needs it
    """
    trained = [name for name in names if LOCAL_SPLITS[name].trained]
    _store(TrainedPolicies(spec, None, report), [name for name in names if name not in trained])
    if training:
        _train(training, report, checkpoint_seconds)
        _store(TrainedPolicies(spec, training, report), trained)


def _train(training: OnlineTraining, report: Report, checkpoint_seconds: float) -> None:
    reported = 0

    def report_step(training: OnlineTraining) -> None:
        nonlocal reported
        last = training.snapshots[-1].greedy_return if training.snapshots else None
        state = "warming up" if last is None else f"score {training.task.score(last):.1f}"
        report(state, training.step - reported)
        reported = training.step

    report_step(training)  # steps before the last checkpoint
    training.run(report_step, checkpoint_seconds)


def _store(policies: TrainedPolicies, names: Sequence[str]) -> None:
    for name in names:
        split, spec = LOCAL_SPLITS[name], policies.spec
        policies.report(f"writing {split.name}", 0)
        rows, ends = policies.rows(split.name)
        provenance: dict[str, Any] = {"level": policies.describe(split.name), "versions": installed()}
        if split.trained:
            training = policies.training
            provenance["training"] = {
                "config": to_dict(spec.size.training.config),
                "updates": int(training.agent.updates),
                "greedy_returns": {str(s.step): s.greedy_return for s in training.snapshots},
                "seconds": {part: round(seconds, 1) for part, seconds in training.seconds.items()},
            }
        built_datasets.store(name, rows, ends, spec.options(split), provenance)
