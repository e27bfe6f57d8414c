"""Layer 1: the algorithms. They know transitions; they know no files and no datasets.

An algorithm is a frozen dataclass of settings with `batch_size` and `agent(task, generators)`; an agent has
    act(obs)              greedy actions [seeds, n, …] for obs [seeds, n, obs_dim]
    update(batch)         one update from a batch per seed; metrics, one number per seed
    measure(transitions)  what is only measured now and then, over a whole dataset
    tensors()             everything an update changes, by name
"""

from offline_gntd.algorithms import q_learning
from offline_gntd.algorithms.preset import Preset
from offline_gntd.configuration import replace
from offline_gntd.errors import unknown

CATALOGUE: dict[str, Preset] = {**q_learning.PRESETS}


def preset(name: str) -> Preset:
    """The preset of a name, `gntd` or with fields set, `gntd@kfac.damping=1@learning_rate=0.001`."""
    base, *settings = name.split("@")
    if base not in CATALOGUE:
        raise unknown("algorithm", base, CATALOGUE, "See: offline-gntd algorithms")
    label, config = CATALOGUE[base].label, CATALOGUE[base].config
    for setting in settings:
        path, _, value = setting.partition("=")
        config = replace(config, path, value)
        label += f" {path}={value}"
    return Preset(label, config)


__all__ = ["CATALOGUE", "Preset", "preset"]
