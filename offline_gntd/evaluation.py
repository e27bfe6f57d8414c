"""Gymnasium environments, and the evaluation that every score comes from."""

import contextlib
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from offline_gntd.errors import UserError
from offline_gntd.locomotion import of_environment
from offline_gntd.tasks import Task
from offline_gntd.vector_envs import BATCHED, BatchedEnvs, SeparateEnvs


def make(env_id: str, **options: Any) -> gymnasium.Env:
    """An environment with vector observations. Raises UserError if gymnasium cannot make it."""
    _silence_mujoco()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # out-of-date versions are chosen on purpose
        try:
            environment = gymnasium.make(env_id, **options)
        except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"cannot make the environment {env_id!r}: {reason}") from error
        space = environment.observation_space
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
            environment = gymnasium.wrappers.FlattenObservation(environment)
    return environment


def task_of(env_id: str, **options: Any) -> Task:
    """The task of any environment; its reference returns are D4RL's, if D4RL has them."""
    environment = make(env_id, **options)
    obs, action = environment.observation_space, environment.action_space
    environment.close()
    return task_of_spaces(env_id, obs, action, options)


def task_of_spaces(env_id: str, obs: Any, action: Any, options: dict[str, Any] | None = None) -> Task:
    """The task of an environment with known spaces; the environment need not be installed."""
    discrete = isinstance(action, gymnasium.spaces.Discrete)
    if not discrete and not isinstance(action, gymnasium.spaces.Box):
        raise UserError(f"{env_id} has actions that are neither discrete nor a box: {action}")
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
    )


def _silence_mujoco() -> None:
    """Drop the warning that MuJoCo 4 prints, and writes to a file, whenever it loads HalfCheetah's model."""
    with contextlib.suppress(ImportError):
        import mujoco

        mujoco.set_mju_user_warning(_other_warnings)


def _other_warnings(message: str) -> None:
    if "settotalmass" not in message:
        print(f"MuJoCo: {message}", file=sys.stderr)


class Evaluator:
    """Whole episodes of a stack of policies, stepped together.

    Every episode runs to its end, so short episodes are not favoured. Its start depends only on the seed, the
    key and the episode's number, not on earlier evaluations.
    """

    def __init__(self, task: Task, seeds: Sequence[int], episodes: int):
        self.task, self.seeds, self.episodes = task, tuple(seeds), episodes
        batched = None if task.env_options else BATCHED.get(task.env_id)
        count = 1 if batched else len(seeds) * episodes
        self.environments = [make(task.env_id, **task.env_options) for _ in range(count)]
        self.envs: BatchedEnvs | SeparateEnvs = (
            batched(self.environments[0]) if batched else SeparateEnvs(self.environments, task.obs_dim)
        )

    def returns(self, act: Callable[[Tensor], Tensor], key: int, device: str = "cpu") -> np.ndarray:
        """Undiscounted returns [seeds, episodes] of act: obs [seeds, episodes, obs_dim] -> actions."""
        shape = (len(self.seeds), self.episodes)
        starts = [np.random.SeedSequence([seed, key, i]) for seed in self.seeds for i in range(self.episodes)]
        obs = self.envs.reset([int(start.generate_state(1)[0]) for start in starts])
        returns, live = np.zeros(len(obs)), np.arange(len(obs))
        while len(live):
            # act takes ended episodes as well: its batch keeps one shape, on which the bits of matmuls depend
            actions = act(torch.from_numpy(obs).view(*shape, -1).to(device)).cpu().numpy()
            actions = self._legal(actions.reshape(len(obs), *actions.shape[2:]))
            obs[live], rewards, done = self.envs.step(actions[live], live)
            returns[live] += rewards
            live = live[~done]
        return returns.reshape(shape)

    def _legal(self, actions: np.ndarray) -> np.ndarray:
        """Actions [n, …] within the environments' bounds, since some penalise actions beyond them."""
        space = self.environments[0].action_space
        if isinstance(space, gymnasium.spaces.Discrete):
            return actions + space.start if space.start else actions
        assert isinstance(space, gymnasium.spaces.Box)  # task_of_spaces takes no other
        return np.clip(actions.reshape(len(actions), *space.shape), space.low, space.high)

    def close(self) -> None:
        for environment in self.environments:
            environment.close()
