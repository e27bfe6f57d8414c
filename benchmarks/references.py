"""Measure the reference returns of the discrete tasks: python benchmarks/references.py

random  uniform actions, 2,000 episodes
expert  the greedy policies of five agents trained to convergence as for the replay sets, 60 episodes each
"""

import numpy as np
import torch

from offline_gntd.collection.discrete import RECIPES
from offline_gntd.collection.online import Collection, train
from offline_gntd.datasets.built import DISCRETE_TASKS
from offline_gntd.evaluation import Evaluator

EPISODES, AGENTS = 2_000, 5


def random_return(environment: str) -> np.ndarray:
    task, rng = DISCRETE_TASKS[environment], np.random.default_rng(0)
    evaluator = Evaluator(task, [0], 100)
    draw = lambda obs: torch.from_numpy(rng.integers(task.action_dim, size=obs.shape[:-1]))  # noqa: E731
    return np.concatenate([evaluator.returns(draw, key) for key in range(EPISODES // 100)], axis=None)


def expert_return(environment: str) -> np.ndarray:
    recipe = RECIPES[f"{environment}-replay"]
    trainings = (train(recipe.task, Collection(), seed, recipe.judge) for seed in range(AGENTS))
    return np.array([training.greedy_returns[-3:] for training in trainings if training.reached])


def main() -> None:
    torch.set_num_threads(1)
    for environment in DISCRETE_TASKS:
        for name, returns in (("random", random_return(environment)), ("expert", expert_return(environment))):
            error = returns.std() / np.sqrt(returns.size)
            print(
                f"{environment} {name}: {returns.mean():.2f} ± {error:.2f} ({returns.size} values)",
                flush=True,
            )


if __name__ == "__main__":
    main()
