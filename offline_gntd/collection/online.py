"""Train the project's own DQN online and keep every sample: where the discrete datasets come from."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import torch

from offline_gntd.algorithms.q_learning import QLearning
from offline_gntd.evaluation import Evaluator, make
from offline_gntd.tasks import Task
from offline_gntd.transitions import Sampler, row_width


@dataclass(frozen=True)
class Collection:
    """How an agent is trained while its samples are kept."""

    algorithm: QLearning = QLearning(hidden_dims=(64, 64), batch_size=128, learning_rate=1e-3, tau=0.01)
    explore_from: float = 1.0  # share of random actions, falling linearly …
    explore_to: float = 0.2
    explore_steps: int = 2_000  # … over this many steps
    warm_up: int = 1_000  # steps before the first update
    evaluate_every: int = 500  # steps
    evaluate_episodes: int = 20
    step_limit: int = 150_000  # a training that has not ended by then is given up


class Verdict(Enum):
    """On a training, given its greedy returns so far."""

    GO_ON = "go on"
    REACHED = "reached its level"
    MISSED = "passed its level by"


@dataclass
class Training:
    """The samples of one training, in order, and how good its greedy policy was."""

    rows: np.ndarray  # [steps, row_width] float32
    truncated: np.ndarray  # [steps] bool: cut by the time limit, or where the training stopped
    seed: int
    greedy_returns: list[float] = field(default_factory=list)  # mean greedy return at each evaluation
    reached: bool = False  # it ended at the level aimed at

    def episodes(self) -> list[slice]:
        ends = np.flatnonzero(self.rows[:, -1].astype(bool) | self.truncated) + 1
        return [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def train(
    task: Task,
    collection: Collection,
    seed: int,
    judge: Callable[[list[float]], Verdict],
    progress: Callable[[int, list[float]], None] = lambda steps, greedy_returns: None,
) -> Training:
    """Act ε-greedily and update once a step, until `judge` ends it by the greedy returns so far."""
    generators = [torch.Generator().manual_seed(seed)]
    algorithm = collection.algorithm
    agent, sample = algorithm.agent(task, generators), Sampler(task, algorithm.batch_size, generators)
    environment = make(task.env_id)
    evaluator = Evaluator(task, [seed], collection.evaluate_episodes)
    rows = torch.zeros(collection.step_limit, row_width(task))
    truncations = np.zeros(collection.step_limit, bool)
    training = Training(rows.numpy(), truncations, seed)
    obs, _ = environment.reset(seed=seed)
    obs = torch.as_tensor(obs, dtype=torch.float32)
    for step in range(collection.step_limit):
        share = min(1.0, step / collection.explore_steps)
        epsilon = collection.explore_from + share * (collection.explore_to - collection.explore_from)
        action = int(agent.explore(obs[None, None], epsilon, generators))
        next_obs, reward, terminated, truncated, _ = environment.step(action)
        next_obs = torch.as_tensor(next_obs, dtype=torch.float32)
        rows[step] = torch.cat([obs, torch.tensor([action, reward]), next_obs, torch.tensor([terminated])])
        truncations[step] = truncated
        obs = next_obs
        if terminated or truncated:
            obs = torch.as_tensor(environment.reset()[0], dtype=torch.float32)
        if step >= collection.warm_up:
            agent.update(sample(rows[: step + 1]))
        if (step + 1) % collection.evaluate_every == 0:
            training.greedy_returns.append(float(evaluator.returns(agent.act, key=step).mean()))
            progress(step + 1, training.greedy_returns)
            verdict = judge(training.greedy_returns)
            training.reached = verdict is Verdict.REACHED
            if verdict is not Verdict.GO_ON:
                break
    environment.close()
    evaluator.close()
    training.rows, training.truncated = training.rows[: step + 1], truncations[: step + 1]
    if not terminated:
        training.truncated[-1] = True  # the episode under way when the training stopped
    return training
