"""MuJoCo splits as D4RL defined them, from one online training per body that serves them all.

random         random actions, which need no training
medium         the policy of the evaluation nearest to a third of the expert's score, of those up to the first
               that reached it; rolled out
medium-replay  every sample of the training up to that moment
expert         the policy of the best evaluation, rolled out
medium-expert  half of each
full-replay    every sample of the training
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offline_gntd.collection.training import Snapshot, Training, TrainingSettings
from offline_gntd.collection.vector_collector import RolloutBuffer, roll_out
from offline_gntd.configuration import to_dict
from offline_gntd.datasets import built_datasets
from offline_gntd.errors import UserError
from offline_gntd.locomotion import LOCOMOTION
from offline_gntd.nn.noise import uniform
from offline_gntd.tasks import Task
from offline_gntd.versions import installed

ROLLED_OUT = {  # the policies a split is rolled out from
    "random": ("random",),
    "medium": ("medium",),
    "medium-expert": ("medium", "expert"),
    "expert": ("expert",),
}
REPLAYS = ("medium-replay", "full-replay")
STREAMS = {"random": 1, "medium": 2, "expert": 3}  # among all that are drawn from one seed; 0 is training's


@dataclass(frozen=True)
class Size:
    """How much of everything there is."""

    practice: TrainingSettings
    transitions: int  # rows of a split that is rolled out …
    mixed_transitions: int  # … and of medium-expert

    def of_rows(self, transitions: int) -> "Size":
        return dataclasses.replace(self, transitions=transitions, mixed_transitions=transitions)

    @property
    def rolled_out(self) -> int:
        """RolloutBuffer of a policy that serve every split."""
        return max(self.transitions, -(-self.mixed_transitions // 2))


SIZES = {
    "small": Size(TrainingSettings(), 200_000, 200_000),
    "full": Size(TrainingSettings(steps=1_000_000, updates_per_step=1.0), 1_000_000, 2_000_000),  # D4RL's
}


@dataclass(frozen=True)
class Recipe:
    """What a name stands for."""

    body: str
    split: str

    @property
    def task(self) -> Task:
        return LOCOMOTION[self.body].task()

    @property
    def transitions(self) -> int:
        """Rows by default; of medium-replay, at most."""
        size = SIZES["small"]
        return size.practice.steps if self.split in REPLAYS else self.rows(size)

    @property
    def trained(self) -> bool:
        """Whether a training is needed for it."""
        return self.split != "random"

    def rows(self, size: Size) -> int:
        """How many there are where its policies are rolled out."""
        return size.mixed_transitions if self.split == "medium-expert" else size.transitions


RECIPES = {
    f"{body}-{split}-local": Recipe(body, split) for body in LOCOMOTION for split in built_datasets.SPLITS
}


@dataclass(frozen=True)
class Order:
    """Everything that decides the data of the splits of one body."""

    body: str
    size: Size = SIZES["small"]
    seed: int = 0

    def __post_init__(self):
        if self.size.practice.environments < 1:
            raise UserError(f"environments must be at least 1, not {self.size.practice.environments}")
        if self.size.transitions < 2:
            raise UserError(f"--transitions must be at least 2, not {self.size.transitions}")
        if self.seed < 0:
            raise UserError(f"--seed must be at least 0, not {self.seed}")
        if self.seed >= 2**63:  # torch takes no larger one
            raise UserError(f"--seed must be less than 2**63, not {self.seed}")

    @property
    def task(self) -> Task:
        return LOCOMOTION[self.body].task()

    def options(self, recipe: Recipe) -> dict[str, Any]:
        """What a split was built with, as its provenance says it."""
        rows = {} if recipe.split in REPLAYS else {"transitions": recipe.rows(self.size)}
        practice = dataclasses.asdict(self.size.practice)
        if not recipe.trained:
            practice = {"environments": practice["environments"]}
        return rows | {"seed": self.seed} | practice


class Material:
    """A finished training and the policies found in it: what all splits of a body are made of.

    Without a training there are random actions only.
    """

    def __init__(self, order: Order, training: Training | None, report: Callable[[str, int], None]):
        self.order, self._training, self.report = order, training, report
        self.policies: dict[str, Snapshot] = {}
        if training:
            self.policies["medium"] = medium(training.snapshots, order.task)
            self.policies["expert"] = expert(training.snapshots)
        self._random: RolloutBuffer | None = None

    @property
    def training(self) -> Training:
        assert self._training, "only random actions need no training"
        return self._training

    def rows(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Rows of a split, and where its episodes end."""
        if split == "full-replay":
            return self.training.samples.episodes(self.training.step)
        if split == "medium-replay":
            return self.training.samples.episodes(self.policies["medium"].step)
        policies = ROLLED_OUT[split]
        count, more = divmod(Recipe(self.order.body, split).rows(self.order.size), len(policies))
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
        """As many steps of a policy as any split takes, from the training's folder if they are there."""
        if policy == "random":
            self._random = self._random or self._roll_out(policy)
            return self._random
        path = self.training.folder / f"{policy}-{self.order.size.rolled_out}.pt"
        if not path.exists():
            self._roll_out(policy).save(path)
        return RolloutBuffer.load(path)

    def _roll_out(self, policy: str) -> RolloutBuffer:
        order, key = self.order, (self.order.seed, STREAMS[policy])
        seed = int(np.random.SeedSequence(key).generate_state(1)[0])
        act = self._acting(policy, [torch.Generator().manual_seed(seed)])
        count, environments = order.size.rolled_out, order.size.practice.environments
        count_up = lambda steps: self.report(f"rolling out {policy}", steps)  # noqa: E731
        return roll_out(order.task, act, count, key, environments, count_up)

    def _acting(self, policy: str, generators: list[torch.Generator]) -> Callable[[Tensor], Tensor]:
        """Random actions, or a snapshot's with the noise of its training: D4RL's policies are sampled too."""
        task, practice = self.order.task, self.order.size.practice
        if policy == "random":
            return lambda obs: uniform(generators, obs.shape[1], task.action_dim)
        agent = practice.config.agent(task, generators)
        agent.actor.network.flat.copy_(self.policies[policy].weights)
        return lambda obs: agent.explore(obs, practice.exploration)

    def level(self, split: str) -> str:
        """The scores that the policies behind a split reached."""
        if split == "full-replay":
            last = self.training.snapshots[-1]
            return f"every sample of a training that {self._reached(last)}"
        if split == "medium-replay":
            return f"every sample until the policy {self._reached(self.policies['medium'])}"
        parts = []
        for policy in ROLLED_OUT[split]:
            returns = self.rolled_out(policy).whole_returns(self.order.task)
            score = f"score {self._score(returns.mean())}" if len(returns) else "no episode ended"
            greedy = ""
            if policy in self.policies:
                greedy = f", which {self._reached(self.policies[policy])} without noise"
            parts.append(f"{policy} policy, {score}{greedy}")
        return "; ".join(parts)

    def _reached(self, snapshot: Snapshot) -> str:
        when = f"at step {snapshot.step:,} of {self.training.step:,}"
        return f"scored {self._score(snapshot.greedy_return)} {when}"

    def _score(self, mean_return: float) -> str:
        return f"{self.order.task.score(float(mean_return)):.1f}"


def policies_of(names: Sequence[str]) -> set[str]:
    """All that the named splits are rolled out from."""
    return {policy for name in names for policy in ROLLED_OUT.get(RECIPES[name].split, ())}


def expert(snapshots: Sequence[Snapshot]) -> Snapshot:
    return max(snapshots, key=lambda snapshot: snapshot.greedy_return)


def medium(snapshots: Sequence[Snapshot], task: Task) -> Snapshot:
    scores = [task.score(snapshot.greedy_return) for snapshot in snapshots]
    goal = min(max(scores) / 3, max(scores))  # an expert worse than random has no third
    reached = next(i for i, score in enumerate(scores) if score >= goal)
    return snapshots[min(range(reached + 1), key=lambda i: abs(scores[i] - goal))]


def build_body(
    order: Order,
    names: Sequence[str],
    report: Callable[[str, int], None],
    checkpoint_seconds: float,
    announce: Callable[[Training], None] = lambda training: None,
) -> None:
    """Make and store the named splits of one body; those that need no training come first.

    announce  called before a training begins or goes on
    """
    trained = [name for name in names if RECIPES[name].trained]
    _store(Material(order, None, report), [name for name in names if name not in trained])
    if trained:
        training = Training(order.task, order.size.practice, order.seed)
        training.resume()
        if training.step < order.size.practice.steps:
            announce(training)
        _train(training, report, checkpoint_seconds)
        _store(Material(order, training, report), trained)


def _train(training: Training, report: Callable[[str, int], None], checkpoint_seconds: float) -> None:
    seen = 0

    def practised(training: Training) -> None:
        nonlocal seen
        last = training.snapshots[-1].greedy_return if training.snapshots else None
        state = "warming up" if last is None else f"score {training.task.score(last):.1f}"
        report(state, training.step - seen)
        seen = training.step

    practised(training)  # which may have been finished before
    training.run(practised, checkpoint_seconds)


def _store(material: Material, names: Sequence[str]) -> None:
    for name in names:
        recipe, order = RECIPES[name], material.order
        material.report(f"writing {recipe.split}", 0)
        rows, ends = material.rows(recipe.split)
        provenance: dict[str, Any] = {"level": material.level(recipe.split), "versions": installed()}
        if recipe.trained:
            training = material.training
            provenance["training"] = {
                "config": to_dict(order.size.practice.config),
                "updates": int(training.agent.updates),
                "greedy_returns": {str(s.step): s.greedy_return for s in training.snapshots},
                "seconds": {part: round(seconds, 1) for part, seconds in training.seconds.items()},
            }
        built_datasets.store(name, rows, ends, order.options(recipe), provenance)
