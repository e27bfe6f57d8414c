"""A dataset in one file that lives outside the package: MountainCarContinuous under a noisy controller.

offline-gntd datasets show mountaincar-noisy --import my_dataset.py
"""

import gymnasium
import numpy as np

from offline_gntd.datasets import Source


def noisy_controller(steps: int = 10_000) -> dict[str, np.ndarray]:
    """Push in the direction of motion every other time, and at random otherwise; arrays under D4RL's keys."""
    environment, rng = gymnasium.make("MountainCarContinuous-v0"), np.random.default_rng(0)
    rows = {key: [] for key in ("observations", "actions", "rewards", "terminals", "timeouts")}
    obs, _ = environment.reset(seed=0)
    for _ in range(steps):
        with_motion = rng.random() if obs[1] >= 0 else -rng.random()
        push = with_motion if rng.random() < 0.5 else rng.uniform(-1, 1)
        action = np.array([push], np.float32)
        rows["observations"].append(obs)
        obs, reward, terminated, truncated, _ = environment.step(action)
        for key, value in zip(list(rows)[1:], (action, reward, terminated, truncated), strict=True):
            rows[key].append(value)
        if terminated or truncated:
            obs, _ = environment.reset()
    return {key: np.array(values) for key, values in rows.items()}


DATASETS = {
    "mountaincar-noisy": Source(
        "MountainCarContinuous-v0", noisy_controller, reference_min=-33.0, reference_max=94.0
    )
}
