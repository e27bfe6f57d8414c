"""The evaluation every score comes from."""

import gymnasium
import numpy as np
import torch

from offline_gntd.evaluation import Evaluator


def uniform_policy(seed):
    rng = np.random.default_rng(seed)
    return lambda obs: torch.from_numpy(rng.integers(2, size=obs.shape[:-1]))


def test_every_episode_counts_so_short_ones_are_not_favoured(cartpole):
    """Against 2,000 whole episodes run one after another: the quota leaves no bias."""
    environment, rng, truth = gymnasium.make("CartPole-v1"), np.random.default_rng(0), []
    for episode in range(2_000):
        environment.reset(seed=episode)
        length, over = 0, False
        while not over:
            _, _, terminated, truncated, _ = environment.step(int(rng.integers(2)))
            length, over = length + 1, terminated or truncated
        truth.append(length)
    returns = Evaluator(cartpole, [0], 100)
    measured = np.concatenate([returns.returns(uniform_policy(key), key) for key in range(20)], axis=None)
    error = np.hypot(np.std(truth), measured.std()) / np.sqrt(2_000)
    assert abs(measured.mean() - np.mean(truth)) < 3.5 * error


def test_an_evaluation_depends_on_seed_and_key_alone(cartpole):
    def constant(obs):
        return torch.zeros(obs.shape[:-1], dtype=torch.int64)

    evaluator = Evaluator(cartpole, [3, 4], 5)
    first = evaluator.returns(constant, key=10)
    evaluator.returns(constant, key=11)
    np.testing.assert_array_equal(evaluator.returns(constant, key=10), first)
    np.testing.assert_array_equal(Evaluator(cartpole, [4], 5).returns(constant, key=10)[0], first[1])
    assert not np.array_equal(first[0], first[1])


def test_returns_are_of_whole_episodes_in_their_own_environment(cartpole):
    """A policy that always pushes left falls within a dozen steps, whatever its neighbours do."""

    def left_or_balance(obs):
        balance = (obs[..., 2] + 0.3 * obs[..., 3] > 0).long()  # leans against the fall: 500 steps
        balance[:, 0] = 0
        return balance

    returns = Evaluator(cartpole, [0], 4).returns(left_or_balance, key=0)[0]
    assert returns[0] < 15
    assert returns[1:].min() > 100
