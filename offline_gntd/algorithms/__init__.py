"""The algorithms. They read batches of transitions, and neither files nor datasets.

An algorithm is a frozen dataclass of settings with `batch_size`, `discrete` (the kind of its actions) and
`agent(task, generators, obs_statistics=None)`. An agent trains one or more seeds and has
    act(obs)              greedy actions [seeds, n, …] for the environment's obs [seeds, n, obs_dim]
    update(batch)         one update from a batch per seed; its metrics by name, [seeds, …], valid until the
                          next update; what is recorded is the mean of each seed
    measure(transitions)  metrics that are computed at evaluations only, over one dataset per seed
    state_dict()          all that a policy and its next update depend on, by name: [seeds, …], or a scalar
                          for all seeds. These are the agent's tensors, not copies: copying a stored state
                          into them restores the agent
An agent draws its noise from its generators, one per seed. Settings may have `within(steps)`, which
returns them fitted to a run of that many updates. If `online` is true, the algorithm needs no
dataset: it acts with the agent's explore(obs) in `environments` copies of an environment.

`AutogradAgent` (autograd.py) implements this for algorithms that are written as losses.
"""

import functools
from typing import Any

from offline_gntd import extensions
from offline_gntd.algorithms import bc, bcq, cql, iql, policy_gradient, q_learning, rebrac, td3_bc
from offline_gntd.algorithms.agent import Preset
from offline_gntd.configuration import replace, to_text
from offline_gntd.errors import UserError, unknown

CATALOGUE: dict[str, Preset] = {
    **q_learning.PRESETS,
    **bc.PRESETS,
    **td3_bc.PRESETS,
    **bcq.PRESETS,
    **cql.PRESETS,
    **iql.PRESETS,
    **rebrac.PRESETS,
    **policy_gradient.PRESETS,
}


def catalogue() -> dict[str, Preset]:
    """All presets: the built-in ones and those of imported files."""
    imported = extensions.user_entries("PRESETS", CATALOGUE)
    for name, entry in imported.items():
        if not isinstance(entry, Preset):
            raise UserError(f"PRESETS[{name!r}] must be a Preset, not {type(entry).__name__}")
        for attribute in ("agent", "batch_size", "discrete"):
            if not hasattr(entry.config, attribute):
                raise UserError(
                    f"PRESETS[{name!r}]: {type(entry.config).__name__} has no {attribute!r}; a config needs "
                    "batch_size, discrete (True or False) and agent(self, *args)"
                )
    return CATALOGUE | imported


def configured(name: str, steps: int) -> Any:
    """The settings of a preset for a run of this many updates."""
    return fitted(preset(name).config, steps)


def fitted(config: Any, steps: int) -> Any:
    """Settings for a run of this many updates; a config's `within` sets the fields that depend on it."""
    return config.within(steps) if hasattr(config, "within") else config


def preset(name: str) -> Preset:
    """The preset of a name: `gntd`, or with fields set, `gntd@kfac.damping=1@learning_rate=0.001`."""
    return _parse(name)[1]


def canonical_name(name: str) -> str:
    """The name with every value written in one way: gntd@kfac.damping=1.0 is gntd@kfac.damping=1."""
    return _parse(name)[0]


def _parse(name: str) -> tuple[str, Preset]:
    base, *settings = name.split("@")
    known = catalogue()
    if base not in known:
        raise unknown("algorithm", base, known, "See: offline-gntd algorithms")
    label, config = known[base].label, known[base].config
    values: dict[str, str] = {}  # by path, as they were given
    for setting in settings:
        path, _, value = setting.partition("=")
        if path in values:
            raise UserError(f"{path} is set twice: {values[path]} and {value}")
        values[path] = value
    for path, value in values.items():
        part = path.rpartition(".")[0]
        if values.get(part, "").lower() == "none":
            raise UserError(f"{path} has no effect with {part}=none")
        config = replace(config, path, value)
        text = to_text(functools.reduce(getattr, path.split("."), config))
        base, label = f"{base}@{path}={text}", f"{label} {path}={text}"
    return base, Preset(label, config)


__all__ = ["CATALOGUE", "Preset", "canonical_name", "catalogue", "configured", "fitted", "preset"]
