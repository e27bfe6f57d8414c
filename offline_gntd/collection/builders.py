"""Build datasets by name, in parallel: one process per member of a discrete family or per MuJoCo body."""

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence

import torch
from tqdm import tqdm

from offline_gntd import processes
from offline_gntd.collection import discrete, splits
from offline_gntd.collection.discrete import ReplaySettings
from offline_gntd.collection.online import VectorCollector, measure_rate
from offline_gntd.collection.splits import LOCAL_SPLITS, SIZES, BuildSpec, Size
from offline_gntd.collection.training import OnlineTraining, measure
from offline_gntd.datasets import built_datasets
from offline_gntd.datasets.dataset import Dataset
from offline_gntd.errors import UserError
from offline_gntd.files import duration, require_writable
from offline_gntd.lock import Lock, Watch


def members_of(names: Sequence[str], seeds: int = built_datasets.DEFAULT_SEEDS) -> list[str]:
    """The datasets to build: the first `seeds` members of each family, and all other names."""
    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {seeds}")
    members = [
        built_datasets.member(name, seed)
        for name in names
        for seed in range(seeds if name in built_datasets.FAMILIES else 1)
    ]
    return list(dict.fromkeys(members))


def build_discrete(
    names: Sequence[str],
    settings_of: Callable[[str], ReplaySettings] = discrete.default_settings,
    seeds: int = built_datasets.DEFAULT_SEEDS,
    force: bool = False,
    workers: int | None = None,
    quiet: bool = False,
) -> list[Dataset]:
    """Build the discrete datasets that are not built yet, and open all of them.

    names        families (cartpole-replay) and members (cartpole-replay-s3)
    settings_of  the settings for a member's name
    seeds        members of a family to build
    force        replace datasets that were built with other settings
    workers      number of processes; by default one per core
    """
    _check_workers(workers)
    members = members_of(names, seeds)
    settings = {name: settings_of(name) for name in members}
    missing = [
        name
        for name in members
        if force or not built_datasets.is_built(name, dataclasses.asdict(settings[name]))
    ]
    for name in missing:
        require_writable(built_datasets.path(name))
    workers = workers or os.cpu_count() or 1
    if missing and not quiet:
        _announce_discrete(missing, settings, workers)
    _run(_build_member, [(name, settings[name], quiet) for name in missing], workers)
    return [built_datasets.load(name) for name in members]


def _announce_discrete(names: list[str], settings: dict[str, ReplaySettings], workers: int) -> None:
    """Print how long building takes at most, from rates measured now, one per family."""
    measured: dict[str, tuple[float, float]] = {}
    for name in names:
        family = built_datasets.family_of(name) or name
        if family not in measured:
            measured[family] = discrete.longest_build(name, settings[name])
    for family, (seconds, rate) in measured.items():
        count = sum(built_datasets.family_of(name) == family for name in names)
        rounds = -(-count // workers)
        _say(
            f"{family}: {count} datasets take at most {duration(seconds * rounds)}, {workers} at a time "
            f"(measured: {rate:,.0f} updates/s)"
        )


def _build_member(position: int, name: str, settings: ReplaySettings, quiet: bool) -> None:
    processes.prepare()
    discrete.build(name, settings, position, quiet)


def build_splits(
    names: Sequence[str],
    size: Size = SIZES["small"],
    seed: int = 0,
    force: bool = False,
    workers: int | None = None,
    checkpoint_seconds: float = 60.0,
    quiet: bool = False,
) -> list[Dataset]:
    """Build the MuJoCo splits that are not built yet, and open all of them.

    One training per body serves all its splits; a random split needs none.

    workers  number of processes; by default one per body
    """
    _check_workers(workers)
    if not checkpoint_seconds >= 0:
        raise UserError(f"--checkpoint-seconds must be at least 0, not {checkpoint_seconds:g}")
    missing: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        split, spec = LOCAL_SPLITS[name], spec_of(name, size, seed)
        if force or not built_datasets.is_built(name, spec.options(split)):
            missing.setdefault(split.body, []).append(name)
            require_writable(built_datasets.path(name))
    jobs = [(BuildSpec(body, size, seed), missing[body], checkpoint_seconds, quiet) for body in missing]
    _run(_build_body, jobs, workers or len(jobs))
    return [built_datasets.load(name) for name in names]


def spec_of(name: str, size: Size, seed: int) -> BuildSpec:
    """What a split's data depends on. Raises UserError for illegal values."""
    if LOCAL_SPLITS[name].trained:
        size.training.check()
    return BuildSpec(LOCAL_SPLITS[name].body, size, seed)


def _check_workers(workers: int | None) -> None:
    if workers is not None and workers < 1:
        raise UserError(f"--workers must be at least 1, not {workers}")


def _run(build: Callable[..., None], jobs: Sequence[tuple], workers: int) -> None:
    """Call build(position of its progress bar, *job) for each job, in up to `workers` processes."""
    if len(jobs) < 2 or workers == 1:
        for job in jobs:
            build(0, *job)
        return
    workers = min(workers, len(jobs))
    placed = [(i % workers, *job) for i, job in enumerate(jobs)]
    for _ in processes.run_parallel(build, placed, workers):
        pass


def _build_body(
    position: int, spec: BuildSpec, names: list[str], checkpoint_seconds: float, quiet: bool
) -> None:
    processes.prepare()  # in the main process too: rounding may depend on the number of threads
    if not any(LOCAL_SPLITS[name].trained for name in names):
        return _build_splits(position, spec, names, None, checkpoint_seconds, quiet)
    training = OnlineTraining(spec.task, spec.size.training, spec.seed)
    require_writable(training.folder)
    if Watch([training.folder]).is_locked():
        _say(f"{spec.task.env_id}: waiting for another process that builds splits of the same training")
    with Lock([training.folder], wait=True):
        training.resume()
        _build_splits(position, spec, names, training, checkpoint_seconds, quiet)


def _build_splits(
    position: int,
    spec: BuildSpec,
    names: list[str],
    training: OnlineTraining | None,
    checkpoint_seconds: float,
    quiet: bool,
) -> None:
    total = len(splits.policies_of(names)) * spec.size.rolled_out
    total += training.settings.steps if training else 0
    if not quiet:
        _announce_body(spec, names, training)
    style = {"desc": spec.body, "unit": "step", "unit_scale": True, "position": position}
    with tqdm(total=total, disable=quiet or None, **style) as bar:

        def report(state: str, steps: int) -> None:
            bar.set_postfix_str(state, refresh=False)
            bar.update(steps)

        splits.build_body(spec, names, training, report, checkpoint_seconds)


def _announce_body(spec: BuildSpec, names: Sequence[str], training: OnlineTraining | None) -> None:
    """Print how long building a body's splits takes, from rates measured now."""
    policies = [name for name in splits.policies_of(names) if not _is_rolled_out(name, spec, training)]
    steps = len(policies) * spec.size.rolled_out
    work, measured, seconds = [], [], 0.0
    if training and training.step < training.settings.steps:
        settings, since = training.settings, training.step
        rates = measure(training.task, settings)
        work = [f"training {settings.steps - since:,} steps with {settings.updates(since):,} updates"]
        measured = [f"{rates.updates:,.0f} updates/s"]
        seconds, step_rate = rates.seconds(settings, since), rates.steps
    elif policies:
        step_rate = _step_rate(spec)
    else:
        return
    if policies:
        work.append(f"rolling out {steps:,} steps")
    times = ", ".join([f"{step_rate:,.0f} steps/s", *measured])
    left = duration(seconds + steps / step_rate)
    _say(f"{spec.task.env_id}: {' and '.join(work)} takes about {left} (measured: {times})")


def _is_rolled_out(policy: str, spec: BuildSpec, training: OnlineTraining | None) -> bool:
    return training is not None and splits.rollout_file(policy, spec, training).exists()


def _step_rate(spec: BuildSpec) -> float:
    """Environment steps per second, measured with a tenth of the roll-outs or less."""
    environments = spec.size.training.environments
    collector = VectorCollector(spec.task, (0, 0), environments)
    actions = torch.zeros(environments, spec.task.action_dim)
    rate = measure_rate(lambda: collector.step(actions), spec.size.rolled_out // environments // 10)
    collector.close()
    return rate * environments


def _say(line: str) -> None:
    tqdm.write(line, file=sys.stderr)
