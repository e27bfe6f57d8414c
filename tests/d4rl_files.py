"""Small files in D4RL's layouts, with every kind of episode ending."""

from pathlib import Path

import h5py
import numpy as np

WIDTHS = {"halfcheetah": (17, 6), "hopper": (11, 3), "walker2d": (17, 6)}


def arrays(
    layout: str = "v2",
    environment: str = "hopper",
    ends: tuple[tuple[int, str], ...] = ((30, "terminal"), (70, "timeout"), (100, "timeout")),
    steps: int = 100,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Episodes that end before the given rows; `ends` may leave the last one open."""
    rng = np.random.default_rng(seed)
    obs_dim, action_dim = WIDTHS[environment]
    wide = np.float64 if layout == "v1-replay" else np.float32
    flag = np.float64 if layout == "v1-replay" else bool
    terminals, timeouts = np.zeros(steps, flag), np.zeros(steps, flag)
    for end, kind in ends:
        terminals[end - 1] = kind in ("terminal", "both")
        timeouts[end - 1] = kind in ("timeout", "both")
    obs = rng.standard_normal((steps, obs_dim)).astype(wide)
    rewards = (3 + rng.standard_normal(steps)).astype(wide)
    data = {
        "observations": obs,
        "actions": np.tanh(rng.standard_normal((steps, action_dim))).astype(wide),
        "rewards": rewards[:, None] if layout == "v1-replay" else rewards,
        "terminals": terminals,
    }
    if layout != "v0-old":
        data["timeouts"] = timeouts
    if layout in ("v1-replay", "v2"):
        following = np.concatenate([obs[1:], rng.standard_normal((1, obs_dim)).astype(wide)])
        over = (terminals != 0) | (timeouts != 0)
        following[over] = rng.standard_normal((int(over.sum()), obs_dim)).astype(wide)
        data["next_observations"] = following
        data["infos/qpos"] = rng.standard_normal((steps, 6))
        data["infos/action_log_probs"] = rng.standard_normal(steps).astype(wide)
        data["metadata/algorithm"] = np.bytes_(b"SAC")
        data["metadata/iteration"] = np.int32(7)
    if layout == "v2":
        data["metadata/policy/fc0/weight"] = rng.standard_normal((4, obs_dim)).astype(np.float32)
    return data


def write(path: Path, data: dict[str, np.ndarray]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for key, value in data.items():
            file.create_dataset(key, data=value, compression="gzip" if np.ndim(value) else None)
    return path


def read(path: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None
        )
    return found


AWKWARD = {
    "as usual": ((30, "terminal"), (70, "timeout"), (100, "timeout")),
    "open at the end": ((30, "terminal"), (70, "timeout")),
    "terminal at the end": ((30, "terminal"), (100, "terminal")),
    "both at once": ((30, "both"), (70, "terminal"), (71, "timeout"), (100, "both")),
    "single steps": ((1, "timeout"), (2, "terminal"), (3, "timeout"), (99, "timeout"), (100, "timeout")),
    "no ends": (),
}
