"""CartPole and Acrobot replay and medium-replay datasets, built as the paper's authors did, one per seed.

A dataset is the replay buffer of an agent that learned online: uniformly random steps, then ε-greedy episodes
with one update per step. The agent is DQN for replay. For medium-replay it is TD without a target network,
which learns less.
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
from offline_gntd.collection.online import OnlineBatches, OnlineSettings, measure_rate
from offline_gntd.configuration import to_dict
from offline_gntd.datasets import built_datasets
from offline_gntd.errors import UserError
from offline_gntd.evaluation import limit_of
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
EPSILON = (1.0, 0.01)  # probability of a random action, before and after its linear decay
LAST_EPISODES = 50  # the mean return of these is reported


@dataclass(frozen=True)
class ReplaySettings:
    """The amount of online training; the defaults are the authors'."""

    random_steps: int = 10_000  # uniformly random steps before the first update
    episodes: int = 300  # training episodes
    epsilon_steps: int = 1_000  # steps of training over which ε decays
    transitions: int = 100_000  # capacity of the replay buffer, and so the most rows of the dataset

    def __post_init__(self):
        for name, least in (("random_steps", 0), ("episodes", 1), ("epsilon_steps", 1), ("transitions", 1)):
            if getattr(self, name) < least:
                raise UserError(f"{name} must be at least {least}, not {getattr(self, name)}")


DEFAULTS = {  # by the suffix of the family's name
    "": ReplaySettings(),
    "-small": ReplaySettings(random_steps=1_000, episodes=60, transitions=10_000),
}


def default_settings(name: str) -> ReplaySettings:
    """The default settings of a family or of its member."""
    return DEFAULTS["-small" if (built_datasets.family_of(name) or name).endswith("-small") else ""]


def kind_of(name: str) -> str:
    """replay | medium-replay"""
    return "medium-replay" if "-medium-replay" in name else "replay"


@dataclass(frozen=True)
class ReplayData:
    """An agent's replay buffer, oldest row first, and the returns of its episodes."""

    rows: np.ndarray  # [n, row_width] float32
    truncated: np.ndarray  # [n] bool: the time limit ended the episode
    ends: np.ndarray  # row after each episode's last row
    returns: list[float]  # one per training episode, without the random steps


def collect(
    name: str, settings: ReplaySettings, report: Callable[[list[float]], None] = lambda returns: None
) -> ReplayData:
    """Train the agent of a member online. `report` is called after every episode with all returns so far."""
    task, config, seed = built_datasets.task_of(name), AGENTS[kind_of(name)], seed_of(name)
    generators = [torch.Generator().manual_seed(seed)]
    agent = config.agent(task, generators)
    online = OnlineSettings(
        batch_size=config.batch_size,
        random_steps=settings.random_steps,
        buffer_size=settings.transitions,
        timeouts_terminal=config.timeouts_terminal,
    )
    batches = OnlineBatches(task, online, [seed], generators)
    while batches.steps < settings.random_steps:
        batches.step(agent.act)  # takes random actions; `act` is not called yet
    batches.reset()  # training starts with a new episode
    returns = batches.finished_returns[0]
    returns.clear()  # the random steps do not count
    while len(returns) < settings.episodes:
        share = min(1.0, (batches.steps - settings.random_steps) / settings.epsilon_steps)
        epsilon = EPSILON[0] + share * (EPSILON[1] - EPSILON[0])
        finished = len(returns)
        for _ in range(batches.step(partial(agent.explore, epsilon=epsilon, generators=generators))):
            agent.update(batches.sample())
        if len(returns) > finished:
            report(returns)
    batches.close()
    rows, truncated = (tensor.numpy() for tensor in batches.buffer.in_order(0))
    done = rows[:, -1].astype(bool)  # in the agent's batches, time limits are terminal too
    random_rows = settings.random_steps - (batches.steps - len(rows))  # still in the buffer
    if random_rows > 0:
        done[random_rows - 1] = True  # training started a new episode after this row
    ends = np.flatnonzero(done) + 1
    rows[truncated, -1] = 0.0
    return ReplayData(rows, truncated, ends, returns)


def longest_build(name: str, settings: ReplaySettings) -> tuple[float, float]:
    """Seconds to build a member if every episode reaches the time limit, and updates per second.

    The rate is measured with a temporary agent.
    """
    task, config = built_datasets.task_of(name), AGENTS[kind_of(name)]
    generators = [torch.Generator().manual_seed(0)]
    agent = config.agent(task, generators)
    online = OnlineSettings(batch_size=config.batch_size, random_steps=0, buffer_size=config.batch_size)
    batches = OnlineBatches(task, online, [0], generators)

    def step_and_update() -> None:
        batches.step(partial(agent.explore, epsilon=1.0, generators=generators))
        agent.update(batches.sample())

    steps = settings.episodes * (limit_of(task.env_id) or 0)
    rate = measure_rate(step_and_update, steps // 100)
    batches.close()
    return steps / rate, rate


def seed_of(member: str) -> int:
    seed = int(member.rpartition("-s")[2])
    if seed >= 2**63:  # the limit of torch
        raise UserError(f"the seed of {member} must be less than 2**63")
    return seed


def build(name: str, settings: ReplaySettings, position: int = 0, quiet: bool = False) -> None:
    """Build one member of a family and store it.

    position  line of the progress bar, where several processes show one
    """
    style = {"desc": name, "unit": "episode", "position": position, "leave": None, "disable": quiet or None}
    with tqdm(total=settings.episodes, **style) as bar:

        def show(returns: list[float]) -> None:
            bar.set_postfix_str(f"mean return {np.mean(returns[-LAST_EPISODES:]):.1f}", refresh=False)
            bar.update()

        data = collect(name, settings, show)
    built_datasets.store(
        name,
        data.rows,
        data.ends,
        dataclasses.asdict(settings),
        provenance(name, settings, data),
        data.truncated,
    )


def provenance(name: str, settings: ReplaySettings, data: ReplayData) -> dict[str, Any]:
    agent = {"replay": "DQN", "medium-replay": "TD without a target network"}[kind_of(name)]
    last = float(np.mean(data.returns[-LAST_EPISODES:]))
    return {
        "level": f"the replay buffer of {agent} trained online for {settings.episodes} episodes after "
        f"{settings.random_steps:,} random steps; mean return of its last {LAST_EPISODES} episodes "
        f"{last:.1f}",
        "seed": seed_of(name),
        "mean_return": float(np.mean(data.returns)),
        "last_return": last,
        "agent": to_dict(AGENTS[kind_of(name)]),
        "versions": installed(),
    }
