"""The evaluation that every score comes from."""

import gymnasium
import numpy as np
import pytest
import torch

from offline_gntd.errors import UserError
from offline_gntd.evaluation import (
    BATCHED,
    Acrobot,
    CartPole,
    Evaluator,
    SeparateEnvs,
    task_named,
    task_of_spaces,
)
from offline_gntd.tasks import Task


def uniform_policy(seed):
    rng = np.random.default_rng(seed)
    return lambda obs: torch.from_numpy(rng.integers(2, size=obs.shape[:-1]))


def test_every_episode_counts_so_short_ones_are_not_favoured(cartpole):
    """The mean return equals that of 2,000 episodes run one after another."""
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


def test_an_evaluation_depends_only_on_seed_and_key(cartpole):
    def constant(obs):
        return torch.zeros(obs.shape[:-1], dtype=torch.int64)

    evaluator = Evaluator(cartpole, [3, 4], 5)
    first = evaluator.returns(constant, key=10)
    evaluator.returns(constant, key=11)
    np.testing.assert_array_equal(evaluator.returns(constant, key=10), first)
    np.testing.assert_array_equal(Evaluator(cartpole, [4], 5).returns(constant, key=10)[0], first[1])
    assert not np.array_equal(first[0], first[1])


def test_episodes_do_not_affect_each_other(cartpole):
    """A policy that always pushes left falls within a dozen steps; the others balance."""

    def left_or_balance(obs):
        balance = (obs[..., 2] + 0.3 * obs[..., 3] > 0).long()  # leans against the fall: 500 steps
        balance[:, 0] = 0
        return balance

    returns = Evaluator(cartpole, [0], 4).returns(left_or_balance, key=0)[0]
    assert returns[0] < 15
    assert returns[1:].min() > 100


def swing_up(obs):
    return np.where(obs[:, 5] > 0, 2, 0)  # torque along the second link's velocity


def balance(obs):
    return (obs[:, 2] + 0.3 * obs[:, 3] > 0).astype(int)


@pytest.mark.parametrize("policy", ["random", "feedback"])
@pytest.mark.parametrize(("env_id", "feedback"), [("Acrobot-v1", swing_up), ("CartPole-v1", balance)])
def test_batched_episodes_equal_those_of_gymnasium_bit_for_bit(env_id, feedback, policy):
    count = 16
    environments = [gymnasium.make(env_id) for _ in range(count)]
    separate = SeparateEnvs(environments, environments[0].observation_space.shape[0])
    batched = BATCHED[env_id](gymnasium.make(env_id))
    rng, live = np.random.default_rng(0), np.arange(count)
    obs = separate.reset(range(count))
    np.testing.assert_array_equal(batched.reset(range(count)), obs)
    while len(live):
        random = rng.integers(environments[0].action_space.n, size=len(live))
        actions = random if policy == "random" else feedback(obs)
        expected, actual = separate.step(actions, live), batched.step(actions, live)
        for x, y in zip(expected, actual, strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)
        states = [environments[i].unwrapped.state for i in live]
        np.testing.assert_array_equal(batched.state[:, live].T, states)
        obs, live = expected[0][~expected[2]], live[~expected[2]]


@pytest.mark.parametrize(
    ("task", "action"),
    [
        (Task("Acrobot-v1", 6, 3, True, -500.0, -80.0, "test"), 1),  # no torque: never swings up
        (Task("CartPole-v1", 4, 2, True, 22.3, 500.0, "test"), None),  # balances
    ],
)
def test_batched_episodes_end_at_the_time_limit(task, action):
    calls = []

    def act(obs):
        calls.append(obs.shape)
        if action is None:
            return torch.from_numpy(balance(obs[0].numpy()))[None]
        return torch.full(obs.shape[:-1], action)

    returns = Evaluator(task, [0], 4).returns(act, key=0)
    assert abs(returns).max() == 500
    assert calls == [(1, 4, task.obs_dim)] * 500  # the batch keeps its shape when episodes end


def test_only_acrobot_and_cartpole_without_options_are_batched(cartpole):
    assert isinstance(Evaluator(cartpole, [0], 2).envs, CartPole)
    acrobot = Task("Acrobot-v1", 6, 3, True, -500.0, -80.0, "test")
    assert isinstance(Evaluator(acrobot, [0], 2).envs, Acrobot)
    for env_id, options in [
        ("CartPole-v1", {"sutton_barto_reward": True}),
        ("CartPole-v1", {"max_episode_steps": 7}),
        ("CartPole-v0", {}),
    ]:
        task = Task(env_id, 4, 2, True, 0.0, 100.0, "test", options)
        evaluator = Evaluator(task, [0], 2)
        assert isinstance(evaluator.envs, SeparateEnvs)
        assert len(evaluator.environments) == 2
    short = Evaluator(Task("CartPole-v1", 4, 2, True, 0.0, 100.0, "test", {"max_episode_steps": 7}), [0], 2)
    np.testing.assert_array_equal(
        short.returns(lambda obs: torch.zeros(1, 2, dtype=torch.int64), key=0), [[7, 7]]
    )


@pytest.mark.parametrize(
    "action",
    [
        gymnasium.spaces.Box(0, 255, (1,), np.uint8),
        gymnasium.spaces.Box(-1, np.inf, (1,)),
        gymnasium.spaces.Box(-3.4e38, 3.4e38, (1,)),
        gymnasium.spaces.Box(np.float32([-1, 2]), np.float32([1, 2])),
    ],
)
def test_actions_that_cannot_be_scaled_are_refused(action):
    with pytest.raises(UserError, match="not numbers between two bounds"):
        task_of_spaces("Any-v0", gymnasium.spaces.Box(-1, 1, (3,)), action)


def test_the_module_of_an_environment_that_the_user_names_is_imported(tmp_path, monkeypatch):
    (tmp_path / "my_cart.py").write_text(
        "import gymnasium\ngymnasium.register('MyCart-v0', 'gymnasium.envs.classic_control:CartPoleEnv',"
        " max_episode_steps=50)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    task, limit = task_named("my_cart:MyCart-v0")
    assert (task.obs_dim, limit) == (4, 50)
    gymnasium.registry.pop("MyCart-v0")
