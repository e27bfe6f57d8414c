"""CartPole and Acrobot replay and medium-replay sets, from the project's own DQN trained online.

replay         all samples of agents trained until convergence
medium-replay  all samples of agents stopped at the first evaluation 40–60 % of the way from random to expert
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from offline_gntd.collection.online import Collection, Training, Verdict, train
from offline_gntd.datasets import built
from offline_gntd.datasets.built import DISCRETE_TASKS
from offline_gntd.datasets.dataset import Dataset
from offline_gntd.errors import UserError
from offline_gntd.files import require_writable
from offline_gntd.tasks import Task
from offline_gntd.versions import installed

CONVERGED = {"cartpole": 475.0, "acrobot": -90.0}  # greedy mean return …
EVALUATIONS_RUNNING = 3  # … at this many evaluations running; so many past a level have passed it by
MEDIUM = (0.4, 0.6)  # of the way from random to expert
SIZES = {"": 100_000, "-small": 10_000}  # transitions by default


@dataclass(frozen=True)
class Recipe:
    """What a name stands for: when an agent's training ends, and how many of its rows are kept."""

    environment: str  # cartpole | acrobot
    kind: str  # replay | medium-replay
    transitions: int

    @property
    def task(self) -> Task:
        return DISCRETE_TASKS[self.environment]

    @property
    def level(self) -> str:
        """The stopping rule in words."""
        if self.kind == "replay":
            goal = CONVERGED[self.environment]
            return f"greedy mean return ≥ {goal:g} at {EVALUATIONS_RUNNING} evaluations running"
        low, high = self._medium_returns()
        share = f"{MEDIUM[0]:.0%}–{MEDIUM[1]:.0%} of the way from random to expert"
        return f"the first evaluation with a greedy mean return in [{low:.1f}, {high:.1f}], {share}"

    def judge(self, greedy_returns: list[float]) -> Verdict:
        running = greedy_returns[-EVALUATIONS_RUNNING:]
        lowest = min(running) if len(running) == EVALUATIONS_RUNNING else -math.inf
        if self.kind == "replay":
            return Verdict.REACHED if lowest >= CONVERGED[self.environment] else Verdict.GO_ON
        low, high = self._medium_returns()
        if low <= greedy_returns[-1] <= high:
            return Verdict.REACHED
        return Verdict.MISSED if lowest > high else Verdict.GO_ON

    def _medium_returns(self) -> tuple[float, float]:
        span = self.task.reference_max - self.task.reference_min
        low, high = (self.task.reference_min + share * span for share in MEDIUM)
        return low, high


RECIPES = {
    f"{environment}-{kind}{size}": Recipe(environment, kind, transitions)
    for environment in DISCRETE_TASKS
    for kind in ("replay", "medium-replay")
    for size, transitions in SIZES.items()
}


def build(
    name: str,
    transitions: int | None = None,
    seed: int = 0,
    force: bool = False,
    collection: Collection | None = None,
    quiet: bool = False,
) -> Dataset:
    """Build a named set, or return it if it is already there as asked for."""
    recipe = RECIPES[name]
    transitions = recipe.transitions if transitions is None else transitions
    if transitions < 1:
        raise UserError(f"--transitions must be at least 1, not {transitions}")
    if seed < 0:
        raise UserError(f"--seed must be at least 0, not {seed}")
    options = {"transitions": transitions, "seed": seed}
    if not force and built.is_built(name, options):
        return built.load(name)
    require_writable(built.path(name))
    collection = collection or Collection()
    with tqdm(total=transitions, desc=name, unit="row", disable=quiet) as bar:
        trainings, missed = collect(recipe, transitions, seed, collection, bar)
    rows, ends = draw(trainings, transitions, np.random.default_rng(seed))
    provenance = {
        "level": recipe.level,
        "trainings": [_account(training) for training in trainings],
        "missed": [_account(training) for training in missed],
        "collection": dataclasses.asdict(collection),
        "versions": installed(),
    }
    built.store(name, rows, ends, options, provenance)
    return built.load(name)


def collect(
    recipe: Recipe, transitions: int, seed: int, collection: Collection, bar: tqdm
) -> tuple[list[Training], list[Training]]:
    """Independent trainings until they hold enough rows; those that missed their level are set aside."""
    reached: list[Training] = []
    missed: list[Training] = []
    while sum(len(training.rows) for training in reached) < transitions:
        if len(missed) > 5 + 2 * len(reached):
            raise UserError(f"{len(missed)} trainings ended without reaching: {recipe.level}")
        number = len(reached) + len(missed)
        training = train(recipe.task, collection, seed * 10_007 + number, recipe.judge, _show(bar, number))
        (reached if training.reached else missed).append(training)
        if training.reached:
            bar.update(min(len(training.rows), bar.total - bar.n))
    return reached, missed


def draw(
    trainings: list[Training], transitions: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """`transitions` rows in whole episodes drawn uniformly from all trainings, and where the episodes end.

    Only the episode drawn last is cut, to make the number exact. The rows keep their order in time.
    """
    pool = [(training, part) for training in trainings for part in training.episodes()]
    chosen, total = [], 0
    for index in rng.permutation(len(pool)):
        training, part = pool[index]
        part = slice(part.start, min(part.stop, part.start + transitions - total))
        chosen.append((index, training.rows[part]))
        total += part.stop - part.start
        if total == transitions:
            break
    pieces = [rows for _, rows in sorted(chosen, key=lambda item: item[0])]
    return np.concatenate(pieces), np.cumsum([len(piece) for piece in pieces])


def _account(training: Training) -> dict[str, Any]:
    return {
        "seed": training.seed,
        "rows": len(training.rows),
        "greedy_return": training.greedy_returns[-1] if training.greedy_returns else None,
    }


def _show(bar: tqdm, number: int) -> Callable[[int, list[float]], None]:
    def progress(steps: int, greedy_returns: list[float]) -> None:
        bar.set_postfix_str(f"training {number + 1}, step {steps:,}, greedy return {greedy_returns[-1]:.1f}")

    return progress
