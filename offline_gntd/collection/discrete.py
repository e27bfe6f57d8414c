"""CartPole and Acrobot replay and medium-replay sets by the recipe of the paper's authors, one for each seed.

A dataset is the replay buffer of an agent that learned online: uniformly random steps, then a number of
ε-greedy episodes with one update per step. The agent is DQN for replay, and TD without a target network for
medium-replay, which never gets good.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from offline_gntd.algorithms.q_learning import QLearning
from offline_gntd.collection.online import OnlineBatches, OnlineSettings
from offline_gntd.configuration import to_dict
from offline_gntd.datasets import built_datasets
from offline_gntd.errors import UserError
from offline_gntd.nn.optimisers import Optimiser
from offline_gntd.versions import installed

DQN = QLearning(
    hidden_dims=(256, 256),
    batch_size=100,
    learning_rate=1e-3,
    tau=0.02,
    optimiser=Optimiser(max_grad_norm=1.0),
    timeouts_terminal=True,
)
AGENTS = {"replay": DQN, "medium-replay": dataclasses.replace(DQN, tau=None)}
EPSILON = (1.0, 0.01)  # share of random actions, at first and at the end of its linear decay
LAST_EPISODES = 50  # whose mean return is reported


@dataclass(frozen=True)
class Recipe:
    """How much of everything; the defaults are the authors'."""

    random_steps: int = 10_000  # uniformly random steps before the first update
    episodes: int = 300  # of training
    epsilon_steps: int = 1_000  # of training, over which the share of random actions decays
    transitions: int = 100_000  # that the replay buffer and so the dataset holds at most: the last ones

    def __post_init__(self):
        for name, least in (("random_steps", 0), ("episodes", 1), ("epsilon_steps", 1), ("transitions", 1)):
            if getattr(self, name) < least:
                raise UserError(f"{name} must be at least {least}, not {getattr(self, name)}")


RECIPES = {"": Recipe(), "-small": Recipe(random_steps=1_000, episodes=60, transitions=10_000)}  # by suffix


def recipe_of(name: str) -> Recipe:
    """The default recipe of a family or of its member."""
    return RECIPES["-small" if (built_datasets.family_of(name) or name).endswith("-small") else ""]


def kind_of(name: str) -> str:
    """replay | medium-replay"""
    return "medium-replay" if "-medium-replay" in name else "replay"


@dataclass(frozen=True)
class Collected:
    """An agent's replay buffer, oldest row first, and the returns of all its episodes."""

    rows: np.ndarray  # [n, row_width] float32
    truncated: np.ndarray  # [n] bool: cut by the time limit
    ends: np.ndarray  # where episodes end (exclusive)
    returns: list[float]  # of every episode of the training, the random steps aside


def collect(
    name: str, recipe: Recipe, report: Callable[[list[float]], None] = lambda returns: None
) -> Collected:
    """Train the agent of a member online. `report` gets the returns so far after every episode."""
    task, config, seed = built_datasets.task_of(name), AGENTS[kind_of(name)], seed_of(name)
    generators = [torch.Generator().manual_seed(seed)]
    agent = config.agent(task, generators)
    settings = OnlineSettings(
        batch_size=config.batch_size,
        random_steps=recipe.random_steps,
        buffer_size=recipe.transitions,
        timeouts_terminal=config.timeouts_terminal,
    )
    batches = OnlineBatches(task, settings, [seed], generators)
    while batches.steps < recipe.random_steps:
        batches.step(agent.act)  # which is not called yet: these steps are random
    batches.reset()  # training begins with a new episode
    returns = batches.finished_returns[0]
    returns.clear()  # of the random steps
    while len(returns) < recipe.episodes:
        share = min(1.0, (batches.steps - recipe.random_steps) / recipe.epsilon_steps)
        epsilon = EPSILON[0] + share * (EPSILON[1] - EPSILON[0])
        finished = len(returns)
        for _ in range(batches.step(partial(agent.explore, epsilon=epsilon, generators=generators))):
            agent.update(batches.sample())
        if len(returns) > finished:
            report(returns)
    batches.close()
    rows, truncated = (tensor.numpy() for tensor in batches.buffer.in_order(0))
    over = rows[:, -1].astype(bool)  # at a time limit too, for the agent
    random_rows = recipe.random_steps - (batches.steps - len(rows))  # that are still in the buffer
    if random_rows > 0:
        over[random_rows - 1] = True  # the episode abandoned when training began
    ends = np.flatnonzero(over) + 1
    rows[truncated, -1] = 0.0
    return Collected(rows, truncated, ends, returns)


def seed_of(member: str) -> int:
    seed = int(member.rpartition("-s")[2])
    if seed >= 2**63:  # torch takes no larger one
        raise UserError(f"the seed of {member} must be less than 2**63")
    return seed


def build(name: str, recipe: Recipe, place: int = 0, quiet: bool = False) -> None:
    """Build one member of a family and store it, with a progress bar."""
    looks = {"desc": name, "unit": "episode", "position": place, "leave": None, "disable": quiet}
    with tqdm(total=recipe.episodes, **looks) as bar:

        def show(returns: list[float]) -> None:
            bar.set_postfix_str(f"mean return {np.mean(returns[-LAST_EPISODES:]):.1f}", refresh=False)
            bar.update()

        collected = collect(name, recipe, show)
    built_datasets.store(
        name,
        collected.rows,
        collected.ends,
        dataclasses.asdict(recipe),
        provenance(name, recipe, collected),
        collected.truncated,
    )


def provenance(name: str, recipe: Recipe, collected: Collected) -> dict[str, Any]:
    agent = {"replay": "DQN", "medium-replay": "TD without a target network"}[kind_of(name)]
    last = float(np.mean(collected.returns[-LAST_EPISODES:]))
    return {
        "level": f"the replay buffer of {agent} trained online for {recipe.episodes} episodes after "
        f"{recipe.random_steps:,} random steps; mean return of its last {LAST_EPISODES} episodes {last:.1f}",
        "seed": seed_of(name),
        "mean_return": float(np.mean(collected.returns)),
        "last_return": last,
        "agent": to_dict(AGENTS[kind_of(name)]),
        "versions": installed(),
    }
