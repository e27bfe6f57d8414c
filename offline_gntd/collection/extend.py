"""The behaviour policy that a D4RL file stores, rolled out anew: more rows of the file's own distribution."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from offline_gntd.collection.vector_collector import RolloutBuffer, roll_out
from offline_gntd.datasets import catalogue, conversion, d4rl, download, hdf5, loading
from offline_gntd.datasets.d4rl import Recording
from offline_gntd.datasets.file_hash import sha256_of
from offline_gntd.errors import UserError
from offline_gntd.files import home, require_writable
from offline_gntd.nn.mlp import MLP
from offline_gntd.nn.noise import normal
from offline_gntd.nn.policies import Gaussian
from offline_gntd.tasks import Task
from offline_gntd.transitions import from_rows

METADATA = "metadata/"
POLICY = f"{METADATA}policy/"
KINDS = {"nonlinearity": "relu", "output_distribution": "tanh_gaussian"}  # of policy that can be rolled out
ENVIRONMENTS = 10  # stepped together


def extend(
    source: str | Path,
    transitions: int = 200_000,
    seed: int = 0,
    env: str | None = None,
    replace: bool = False,
    quiet: bool = False,
) -> Path:
    """Write the file's own steps and `transitions` new ones as one file in D4RL's v2 layout; where it is."""
    for option, value, least in (("transitions", transitions, 1), ("seed", seed, 0)):
        if value < least:
            raise UserError(f"--{option} must be at least {least}, not {value}")
    kind = loading.kind_of(source)
    if kind not in ("d4rl", "file"):
        raise UserError(f"{source} is not a file in D4RL's layout, which alone may store a policy")
    path = download.locate(catalogue.entries()[str(source)]) if kind == "d4rl" else Path(source)
    target = home() / "datasets" / "extended" / f"{path.stem}-extended.hdf5"
    if target.exists() and not replace:
        raise UserError(f"{target} is there already; --force replaces it")
    identity = loading.identify(path, env)
    task = identity.task
    with hdf5.reading(path) as stored:
        columns = {key: column[()] for key, column in stored.items() if not column.dtype.hasobject}
    recording = d4rl.recording(columns, task, str(path), identity.episode_limit)
    act = Behaviour(policy_in(columns, task, str(path)), seed)
    require_writable(target.parent)
    with tqdm(total=transitions, desc=path.stem, unit="row", disable=quiet) as bar:
        steps = roll_out(task, act, transitions, (seed, 0), ENVIRONMENTS, bar.update)
    returns = steps.whole_returns(task)
    score = f"scored {task.score(returns.mean()):.1f}" if len(returns) else "ended no episode"
    level = f"{transitions:,} steps more of the policy stored in {path.name}, which {score} in {task.env_id}"
    notes = {"level": level, "seed": seed, "extends": sha256_of(path)}
    kept = {key: value for key, value in columns.items() if key.startswith(METADATA)}
    conversion.write_d4rl(target, kept | joined(recording, steps, transitions, task), task, notes)
    return target


def policy_in(columns: Mapping[str, Any], task: Task, where: str) -> MLP:
    """The stored network, whose outputs are the means and log deviations of a tanh-Gaussian policy."""
    if not any(key.startswith(POLICY) for key in columns):
        raise UserError(
            f"{where} stores no policy ({POLICY}…); D4RL's v1 and v2 files of medium and expert sets do"
        )
    for key, known in KINDS.items():
        found = _text(columns, POLICY + key, where)
        if found != known:
            raise UserError(
                f"{where}: a policy whose {key} is {found!r} cannot be rolled out, only {known!r}"
            )
    layers: list[torch.Tensor] = []
    while f"{POLICY}fc{len(layers)}/weight" in columns:
        layers.append(_layer(columns, f"fc{len(layers)}", where))
    outputs = [_layer(columns, name, where) for name in ("last_fc", "last_fc_log_std")]
    if len(outputs[0]) != len(outputs[1]):
        raise UserError(f"{where}: the two output layers of its policy do not fit each other")
    layers.append(torch.cat(outputs, 1))
    network = MLP([task.obs_dim, *(layer.shape[1] for layer in layers)], (1,))
    if layers[-1].shape[1] != 2 * task.action_dim or any(
        layer.shape[1:] != stored.shape for layer, stored in zip(network.layers, layers, strict=True)
    ):
        sizes = ", ".join(f"{rows - 1} × {width}" for rows, width in (layer.shape for layer in layers))
        raise UserError(f"{where}: layers of {sizes} make no policy for {task.env_id}")
    for layer, stored in zip(network.layers, layers, strict=True):
        layer[0] = stored
    return network


class Behaviour:
    """A tanh-Gaussian policy, sampled."""

    def __init__(self, network: MLP, seed: int):
        self.network, self.generators = network, [torch.Generator().manual_seed(seed)]

    def __call__(self, obs: Tensor) -> Tensor:
        """Actions [1, n, action_dim] for obs [1, n, obs_dim]."""
        noise = normal(self.generators, obs.shape[1], 1, self.network.dims[-1] // 2)
        return Gaussian.of(self.network(obs)).sample(noise)[0][..., 0, :]


def joined(recording: Recording, steps: RolloutBuffer, transitions: int, task: Task) -> dict[str, np.ndarray]:
    """The per-step arrays of a recording with new steps after them, in v2's dtypes."""
    rows, ends = steps.episodes(transitions)
    new = from_rows(torch.from_numpy(rows), task)
    last = np.zeros(len(rows), bool)
    last[ends - 1] = True
    terminated = new.terminated.bool().numpy()
    old, timeouts = recording.columns, recording.timeouts.copy()
    timeouts[-1] |= not recording.terminals[-1]  # nothing follows the file's last step but another episode
    pairs = {
        "observations": (old["observations"], new.obs),
        "actions": (old["actions"], new.action),
        "rewards": (recording.rewards, new.reward),
        "terminals": (recording.terminals, terminated),
        "timeouts": (timeouts, last & ~terminated),
    }
    if "next_observations" in old:
        pairs["next_observations"] = (old["next_observations"], new.next_obs)
    kinds = {"terminals": bool, "timeouts": bool}
    return {key: np.concatenate(pair).astype(kinds.get(key, np.float32)) for key, pair in pairs.items()}


def _text(columns: Mapping[str, Any], key: str, where: str) -> str:
    if key not in columns or columns[key].shape:
        raise UserError(f"{where} does not say {key}, so its policy cannot be rolled out")
    value = columns[key][()].item()
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _layer(columns: Mapping[str, Any], name: str, where: str) -> Tensor:
    """A layer [fan_in + 1, fan_out], the bias as its last row."""
    try:
        weight, bias = (columns[f"{POLICY}{name}/{part}"][()] for part in ("weight", "bias"))
        layer = np.concatenate([weight.T, bias[None]]).astype(np.float32)
    except (KeyError, ValueError, IndexError) as error:
        raise UserError(f"{where}: the layer {name!r} of its policy is not whole") from error
    if layer.ndim != 2 or not np.isfinite(layer).all():
        raise UserError(f"{where}: the layer {name!r} of its policy is not a finite matrix")
    return torch.from_numpy(layer)
