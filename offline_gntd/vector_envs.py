"""Episodes that start together and are stepped together.

reset(seeds)         starts one episode per seed; returns obs [n, obs_dim], float32
step(actions, live)  steps the episodes live [k] with actions [k, …]; returns obs [k, obs_dim], rewards [k]
                     and done [k]: terminated, or at the time limit
"""

from collections.abc import Sequence

import gymnasium
import numpy as np

Step = tuple[np.ndarray, np.ndarray, np.ndarray]


class SeparateEnvs:
    """Any environment: one gymnasium environment per episode, stepped one by one."""

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
    """Episodes as columns of one state array. The environment given only draws the initial states.

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
