"""`datasets extend`: add rows to a D4RL file by rolling out the behaviour policy stored in it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from offline_gntd.collection.online import RolloutBuffer, roll_out
from offline_gntd.datasets import catalogue, conversion, d4rl, download, hdf5, loading
from offline_gntd.datasets.d4rl import Recording, identify
from offline_gntd.errors import UserError
from offline_gntd.files import home, require_writable
from offline_gntd.nn.mlp import MLP
from offline_gntd.nn.policies import Gaussian, normal
from offline_gntd.tasks import Task
from offline_gntd.transitions import from_rows

METADATA = "metadata/"
POLICY = f"{METADATA}policy/"
SUPPORTED = {"nonlinearity": "relu", "output_distribution": "tanh_gaussian"}  # policies to roll out


def extend(
    source: str | Path,
    transitions: int = 200_000,
    seed: int = 0,
    env: str | None = None,
    replace: bool = False,
    quiet: bool = False,
) -> Path:
    """Write a file's steps and `transitions` new ones to one file in D4RL's v2 layout; returns its path."""
    for option, value, least in (("transitions", transitions, 1), ("seed", seed, 0)):
        if value < least:
            raise UserError(f"--{option} must be at least {least}, not {value}")
    if seed >= 2**63:  # the limit of torch
        raise UserError(f"--seed must be less than 2**63, not {seed}")
    kind = loading.kind_of(source)
    if kind not in ("d4rl", "file"):
        raise UserError(f"{source} is not a file in D4RL's layout; only such files store a policy")
    path = download.locate(catalogue.entries()[str(source)]) if kind == "d4rl" else Path(source)
    target = home() / "datasets" / "extended" / f"{path.stem}-extended.hdf5"
    if target.exists() and not replace:
        raise UserError(f"{target} already exists; --force replaces it")
    file = identify(path, env)
    task = file.task
    with hdf5.reading(path) as stored:
        columns = {key: column[()] for key, column in stored.items() if not column.dtype.hasobject}
    recording = d4rl.recording(columns, task, str(path), file.episode_limit)
    act = Behaviour(policy_in(columns, task, str(path)), seed)
    require_writable(target.parent)
    with tqdm(total=transitions, desc=path.stem, unit="row", disable=quiet or None) as bar:
        steps = roll_out(task, act, transitions, (seed, 0), report=bar.update)
    returns = steps.complete_returns(task)
    score = f"scored {task.score(returns.mean()):.1f}" if len(returns) else "ended no episode"
    level = f"{transitions:,} steps more of the policy stored in {path.name}, which {score} in {task.env_id}"
    notes = {"level": level, "seed": seed, "extends": file.sha256}
    metadata = {key: value for key, value in columns.items() if key.startswith(METADATA)}
    conversion.write_d4rl(target, metadata | joined(recording, steps, transitions, task), task, notes)
    return target


def policy_in(columns: Mapping[str, Any], task: Task, where: str) -> MLP:
    """The stored network: its outputs are mean and log standard deviation of a tanh-Gaussian policy."""
    if not any(key.startswith(POLICY) for key in columns):
        raise UserError(
            f"{where} stores no policy ({POLICY}…); D4RL's v1 and v2 files of medium and expert splits do"
        )
    for key, supported in SUPPORTED.items():
        value = _text(columns, POLICY + key, where)
        if value != supported:
            raise UserError(f"{where}: the policy's {key} is {value!r}, but only {supported!r} is supported")
    layers: list[torch.Tensor] = []
    while f"{POLICY}fc{len(layers)}/weight" in columns:
        layers.append(_layer(columns, f"fc{len(layers)}", where))
    outputs = [_layer(columns, name, where) for name in ("last_fc", "last_fc_log_std")]
    if len(outputs[0]) != len(outputs[1]):
        raise UserError(f"{where}: the two output layers of its policy have different shapes")
    layers.append(torch.cat(outputs, 1))
    network = MLP([task.obs_dim, *(layer.shape[1] for layer in layers)], (1,))
    if layers[-1].shape[1] != 2 * task.action_dim or any(
        layer.shape[1:] != stored.shape for layer, stored in zip(network.layers, layers, strict=True)
    ):
        sizes = ", ".join(f"{rows - 1} × {width}" for rows, width in (layer.shape for layer in layers))
        raise UserError(f"{where}: the policy's layers, {sizes}, do not fit {task.env_id}")
    for layer, stored in zip(network.layers, layers, strict=True):
        layer[0] = stored
    return network


class Behaviour:
    """Samples actions of a tanh-Gaussian policy."""

    def __init__(self, network: MLP, seed: int):
        self.network, self.generators = network, [torch.Generator().manual_seed(seed)]

    def __call__(self, obs: Tensor) -> Tensor:
        """Actions [1, n, action_dim] for obs [1, n, obs_dim]."""
        noise = normal(self.generators, obs.shape[1], 1, self.network.dims[-1] // 2)
        return Gaussian.from_output(self.network(obs)).sample(noise)[0][..., 0, :]


def joined(recording: Recording, steps: RolloutBuffer, transitions: int, task: Task) -> dict[str, np.ndarray]:
    """The per-step arrays of a recording followed by new steps, in v2's dtypes."""
    rows, ends = steps.episodes(transitions)
    new = from_rows(torch.from_numpy(rows), task)
    last = np.zeros(len(rows), bool)
    last[ends - 1] = True
    terminated = new.terminated.bool().numpy()
    old, timeouts = recording.columns, recording.timeouts.copy()
    timeouts[-1] |= not recording.terminals[-1]  # the file may end inside an episode
    pairs = {
        "observations": (old["observations"], new.obs),
        "actions": (old["actions"], task.to_environment(new.action.numpy())),
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
        raise UserError(f"{where} lacks {key}, which is needed to roll out its policy")
    value = columns[key][()].item()
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _layer(columns: Mapping[str, Any], name: str, where: str) -> Tensor:
    """A layer [fan_in + 1, fan_out]; its last row is the bias."""
    try:
        weight, bias = (columns[f"{POLICY}{name}/{part}"][()] for part in ("weight", "bias"))
        layer = np.concatenate([weight.T, bias[None]]).astype(np.float32)
    except (KeyError, ValueError, IndexError) as error:
        raise UserError(f"{where}: the layer {name!r} of its policy is incomplete") from error
    if layer.ndim != 2 or not np.isfinite(layer).all():
        raise UserError(f"{where}: the layer {name!r} of its policy is not a finite matrix")
    return torch.from_numpy(layer)
