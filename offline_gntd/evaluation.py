"""Gymnasium environments and their tasks, and the evaluation that every score comes from."""

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from offline_gntd.errors import UserError, first_line
from offline_gntd.tasks import EPISODE_LIMIT, LOCOMOTION, Task, of_environment

OGBENCH = "ogbench:"  # prefix of the ids of OGBench's environments: gymnasium imports the package


def make(env_id: str, **options: Any) -> gymnasium.Env:
    """An environment whose observations are vectors and whose actions, if continuous, are in [−1, 1].

    Prints errors only.
    """
    environment = _make_unscaled(env_id, options)
    space = environment.action_space
    if isinstance(space, gymnasium.spaces.Box) and range_of(space):
        return gymnasium.wrappers.RescaleAction(environment, np.float32(-1), np.float32(1))
    return environment


def range_of(space: gymnasium.spaces.Box) -> list[list[float]] | None:
    """The lowest and highest actions, or None if they are −1 and 1."""
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    return None if (low == -1).all() and (high == 1).all() else [low.tolist(), high.tolist()]


def _make_unscaled(env_id: str, options: dict[str, Any]) -> gymnasium.Env:
    """The registered environment with flat observations."""
    _silence_mujoco()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # out-of-date versions are chosen on purpose
        try:
            environment = gymnasium.make(env_id, **options)
        except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
            raise UserError(f"cannot make the environment {env_id!r}: {first_line(error)}") from error
        space = environment.observation_space
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
            environment = gymnasium.wrappers.FlattenObservation(environment)
    return SuccessAsReward(environment) if env_id.startswith(OGBENCH) else environment


class SuccessAsReward(gymnasium.Wrapper):
    """An episode of OGBench: its return is 1 if it reaches the goal, which ends it, and 0 if not.

    OGBench's mazes draw from numpy's global generator. Here a seed decides these draws too, and the caller's
    state of that generator is restored after each call.
    """

    random_state: Any = None  # of the episode; None before the first seed

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.random_state = np.random.RandomState(seed).get_state()
        with self._random_numbers():
            return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        with self._random_numbers():
            obs, _, terminated, truncated, info = self.env.step(action)
        return obs, float(info["success"]), terminated, truncated, info

    @contextlib.contextmanager
    def _random_numbers(self) -> Iterator[None]:
        before = np.random.get_state()
        if self.random_state is not None:
            np.random.set_state(self.random_state)
        try:
            yield
        finally:
            self.random_state = np.random.get_state()
            np.random.set_state(before)


def task_of(env_id: str, **options: Any) -> Task:
    """The task of an environment, with D4RL's reference returns if it has any."""
    environment = _make_unscaled(env_id, options)
    obs, action = environment.observation_space, environment.action_space
    environment.close()
    return task_of_spaces(env_id, obs, action, options)


def task_of_spaces(env_id: str, obs: Any, action: Any, options: dict[str, Any] | None = None) -> Task:
    """The task of an environment with known spaces; the environment does not have to be installed."""
    discrete = isinstance(action, gymnasium.spaces.Discrete)
    if not discrete and not isinstance(action, gymnasium.spaces.Box):
        raise UserError(f"{env_id} has an action space that no algorithm supports: {action}")
    if isinstance(action, gymnasium.spaces.Box):
        with np.errstate(over="ignore"):
            width = action.high - action.low
        floats = np.issubdtype(action.dtype, np.floating)
        if not (floats and action.is_bounded() and np.isfinite(width).all() and (width > 0).all()):
            raise UserError(f"the actions of {env_id} are not numbers between two bounds: {action}")
    known = of_environment(env_id)
    low, high, source = 0.0, 100.0, "none known: a score is the return itself"
    if known:
        low, high, source = known.reference_min, known.reference_max, "D4RL's constants"
    return Task(
        env_id,
        int(gymnasium.spaces.flatdim(obs)),
        int(action.n) if discrete else int(np.prod(action.shape)),
        discrete,
        low,
        high,
        source,
        options or {},
        None if discrete else range_of(action),
    )


def task_named(env: str) -> tuple[Task, int | None]:
    """The task and the episode limit of a MuJoCo body (hopper) or a gymnasium id (Hopper-v4)."""
    if env in LOCOMOTION:
        return LOCOMOTION[env].task(), EPISODE_LIMIT
    try:
        return task_of(env), limit_of(env)  # task_of imports the module of module:Env-v0
    except (UserError, gymnasium.error.Error) as error:  # an id without a version has no spec
        raise UserError(f"{error}; --env takes {', '.join(LOCOMOTION)} or a gymnasium id") from error


def limit_of(env_id: str) -> int | None:
    """The longest episode of a registered environment, in steps."""
    return gymnasium.spec(env_id.rpartition(":")[2]).max_episode_steps


def without_import(env_id: str, where: str) -> str:
    """The environment id that a file names; raises UserError if making it would import a module.

    gymnasium imports the module of an id such as `module:Env-v0`. A file must not decide what is imported:
    the user names such an id with --env, or imports the module in a file given with --import.
    """
    module, separator, name = env_id.rpartition(":")
    if not separator:
        return env_id
    if name in gymnasium.registry:
        return name
    raise UserError(
        f"{where} names the environment {env_id!r}, which would import the Python module {module!r}. If you "
        f"trust it, give --env {env_id}, or --import a file that imports it"
    )


def _silence_mujoco() -> None:
    """Drop MuJoCo's warning about an attribute of HalfCheetah's model, which it also writes to a file."""
    with contextlib.suppress(ImportError):
        import mujoco

        mujoco.set_mju_user_warning(_other_warnings)


def _other_warnings(message: str) -> None:
    if "settotalmass" not in message:
        print(f"MuJoCo: {message}", file=sys.stderr)


# ---- episodes that start and are stepped together ----
#
# reset(seeds)         starts one episode per seed; returns obs [n, obs_dim], float32
# step(actions, live)  steps the episodes live [k] with actions [k, …]; returns obs [k, obs_dim], rewards [k]
#                      and done [k]: terminated, or at the time limit

Step = tuple[np.ndarray, np.ndarray, np.ndarray]


class SeparateEnvs:
    """One gymnasium environment per episode, stepped one by one."""

    def __init__(self, environments: Sequence[gymnasium.Env], obs_dim: int):
        self.environments, self.obs_dim = environments, obs_dim

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        obs = np.zeros((len(seeds), self.obs_dim), np.float32)
        for i, seed in enumerate(seeds):
            obs[i], _ = self.environments[i].reset(seed=seed)
        return obs

    def step(self, actions: np.ndarray, live: np.ndarray) -> Step:
        obs = np.zeros((len(live), self.obs_dim), np.float32)
        rewards, done = np.zeros(len(live)), np.zeros(len(live), bool)
        for k, i in enumerate(live):
            obs[k], rewards[k], terminated, truncated, _ = self.environments[i].step(actions[k])
            done[k] = terminated or truncated
        return obs, rewards, done


class BatchedEnvs:
    """Episodes as columns of one state array. `environment` only draws the initial states.

    States, observations and rewards equal gymnasium's bit for bit: the formulas keep its order of operations.
    """

    def __init__(self, environment: gymnasium.Env):
        self.environment = environment

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        obs, states = [], []
        for seed in seeds:
            obs.append(self.environment.reset(seed=seed)[0])
            states.append(self.environment.unwrapped.state)  # type: ignore[attr-defined]
        self.state = np.array(states, np.float64).T.copy()  # [4, n]
        self.steps = 0
        return np.array(obs)

    def step(self, actions: np.ndarray, live: np.ndarray) -> Step:
        self.state[:, live] = state = self.next_state(self.state[:, live], actions)
        self.steps += 1
        obs, rewards, terminated = self.outcome(state)
        return obs.T.astype(np.float32), rewards, terminated | (self.steps == 500)

    def next_state(self, state: np.ndarray, actions: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def outcome(self, state: np.ndarray) -> Step:
        """obs [obs_dim, k], rewards [k] and terminated [k] of the state reached."""
        raise NotImplementedError


class Acrobot(BatchedEnvs):
    """Acrobot-v1: Sutton and Barto's equations with masses, lengths and inertias of 1; Runge-Kutta, 0.2 s."""

    TORQUES = np.array([-1.0, 0.0, 1.0])
    MAX_VELOCITIES = np.array([[4 * np.pi], [9 * np.pi]])

    def next_state(self, state: np.ndarray, actions: np.ndarray) -> np.ndarray:
        torque, dt = self.TORQUES[actions], 0.2
        k1 = self._derivative(state, torque)
        k2 = self._derivative(state + dt / 2 * k1, torque)
        k3 = self._derivative(state + dt / 2 * k2, torque)
        k4 = self._derivative(state + dt * k3, torque)
        state = state + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        angles, velocities = state[:2], state[2:]
        while (above := angles > np.pi).any():
            angles[above] -= 2 * np.pi
        while (below := angles < -np.pi).any():
            angles[below] += 2 * np.pi
        np.clip(velocities, -self.MAX_VELOCITIES, self.MAX_VELOCITIES, out=velocities)
        return state

    def _derivative(self, state: np.ndarray, torque: np.ndarray) -> np.ndarray:
        theta1, theta2, dtheta1, dtheta2 = state
        cos2, sin2 = np.cos(theta2), np.sin(theta2)
        d1 = 0.25 + (1.25 + cos2) + 1 + 1
        d2 = 0.25 + 0.5 * cos2 + 1
        # float_power is C's pow, as ** of two scalars; x**2 of an array is x * x and differs in the last bit
        dtheta1_sq, dtheta2_sq, d2_sq = np.float_power([dtheta1, dtheta2, d2], 2)
        phi2 = 0.5 * 9.8 * np.cos(theta1 + theta2 - np.pi / 2)
        gravity = 1.5 * 9.8 * np.cos(theta1 - np.pi / 2)
        phi1 = -0.5 * dtheta2_sq * sin2 - dtheta2 * dtheta1 * sin2 + gravity + phi2
        ddtheta2 = (torque + d2 / d1 * phi1 - 0.5 * dtheta1_sq * sin2 - phi2) / (1.25 - d2_sq / d1)
        return np.array([dtheta1, dtheta2, -(d2 * ddtheta2 + phi1) / d1, ddtheta2])

    def outcome(self, state: np.ndarray) -> Step:
        (cos1, cos2), (sin1, sin2) = np.cos(state[:2]), np.sin(state[:2])
        terminated = -cos1 - np.cos(state[1] + state[0]) > 1
        return np.array([cos1, sin1, cos2, sin2, *state[2:]]), np.where(terminated, 0.0, -1.0), terminated


class CartPole(BatchedEnvs):
    """CartPole-v1: cart of 1 kg, pole of 0.1 kg and 1 m; Euler, 0.02 s; a reward of 1 per step."""

    FORCES = np.array([-10.0, 10.0])

    def next_state(self, state: np.ndarray, actions: np.ndarray) -> np.ndarray:
        _, x_dot, theta, theta_dot = state
        cos, sin = np.cos(theta), np.sin(theta)
        temp = (self.FORCES[actions] + 0.05 * (theta_dot * theta_dot) * sin) / 1.1
        theta_acc = (9.8 * sin - cos * temp) / (0.5 * (4 / 3 - 0.1 * (cos * cos) / 1.1))
        x_acc = temp - 0.05 * theta_acc * cos / 1.1
        return state + 0.02 * np.array([x_dot, x_acc, theta_dot, theta_acc])

    def outcome(self, state: np.ndarray) -> Step:
        terminated = (abs(state[0]) > 2.4) | (abs(state[2]) > 12 * 2 * np.pi / 360)
        return state, np.ones(len(terminated)), terminated


BATCHED: dict[str, type[BatchedEnvs]] = {"Acrobot-v1": Acrobot, "CartPole-v1": CartPole}


class Evaluator:
    """Complete episodes of a stack of policies, stepped together; OGBench's, at most 10 of a seed at a time,
    because its environments take up to 175 MB each.

    Every episode runs to its end, so short episodes are not favoured. Its start depends only on the seed, the
    key (a run gives its step) and the episode's number: results do not depend on earlier evaluations.
    """

    def __init__(self, task: Task, seeds: Sequence[int], episodes: int):
        self.task, self.seeds, self.episodes = task, tuple(seeds), episodes
        self.together = min(episodes, 10) if task.env_id.startswith(OGBENCH) else episodes
        batched = None if task.env_options else BATCHED.get(task.env_id)
        count = 1 if batched else len(seeds) * self.together
        self.environments = [make(task.env_id, **task.env_options) for _ in range(count)]
        self.envs: BatchedEnvs | SeparateEnvs = (
            batched(self.environments[0]) if batched else SeparateEnvs(self.environments, task.obs_dim)
        )

    def returns(self, act: Callable[[Tensor], Tensor], key: int, device: str = "cpu") -> np.ndarray:
        """Undiscounted returns [seeds, episodes] of act: obs [seeds, n, obs_dim] -> actions."""
        rounds = [
            self._play(act, key, device, range(first, min(first + self.together, self.episodes)))
            for first in range(0, self.episodes, self.together)
        ]
        return np.concatenate(rounds, axis=1)

    def _play(self, act: Callable[[Tensor], Tensor], key: int, device: str, episodes: range) -> np.ndarray:
        """The returns [seeds, len(episodes)] of the episodes with these numbers."""
        shape = (len(self.seeds), len(episodes))
        starts = [np.random.SeedSequence([seed, key, i]) for seed in self.seeds for i in episodes]
        obs = self.envs.reset([int(start.generate_state(1)[0]) for start in starts])
        returns, live = np.zeros(len(obs)), np.arange(len(obs))
        while len(live):
            # act gets ended episodes too: the bits of a matrix product depend on the shape of the batch
            actions = act(torch.from_numpy(obs).view(*shape, -1).to(device)).cpu().numpy()
            actions = self._legal(actions.reshape(len(obs), *actions.shape[2:]))
            obs[live], rewards, done = self.envs.step(actions[live], live)
            returns[live] += rewards
            live = live[~done]
        return returns.reshape(shape)

    def _legal(self, actions: np.ndarray) -> np.ndarray:
        """Actions [n, …] in the environments' range: larger actions would change the reward."""
        space = self.environments[0].action_space
        if isinstance(space, gymnasium.spaces.Discrete):
            return actions + space.start if space.start else actions
        assert isinstance(space, gymnasium.spaces.Box)  # the only other space that task_of_spaces accepts
        return np.clip(actions.reshape(len(actions), *space.shape), space.low, space.high)

    def close(self) -> None:
        for environment in self.environments:
            environment.close()
