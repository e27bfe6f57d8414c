"""Build datasets by name, in parallel: a process for each member of a discrete family or each MuJoCo body."""

import dataclasses
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from tqdm import tqdm

from offline_gntd import processes
from offline_gntd.collection import discrete, splits
from offline_gntd.collection.discrete import Recipe
from offline_gntd.collection.splits import SIZES, Order, Size
from offline_gntd.collection.training import Training, measure
from offline_gntd.datasets import built_datasets
from offline_gntd.datasets.dataset import Dataset
from offline_gntd.errors import UserError
from offline_gntd.files import duration, require_writable


def members_of(names: Sequence[str], seeds: int = built_datasets.DEFAULT_SEEDS) -> list[str]:
    """The members to build: the first `seeds` members of each family, and the members that are named."""
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
    recipe: Callable[[str], Recipe] = discrete.recipe_of,
    seeds: int = built_datasets.DEFAULT_SEEDS,
    force: bool = False,
    workers: int | None = None,
    quiet: bool = False,
) -> list[Dataset]:
    """Build discrete datasets that are not built yet, and open all of them.

    names    families (cartpole-replay) and members (cartpole-replay-s3)
    recipe   the recipe for a member's name
    seeds    members to build of a family
    force    replace datasets that were built with another recipe
    workers  processes at once; by default one for each core
    """
    _check_workers(workers)
    members = members_of(names, seeds)
    recipes = {name: recipe(name) for name in members}
    wanted = [
        name
        for name in members
        if force or not built_datasets.is_built(name, dataclasses.asdict(recipes[name]))
    ]
    for name in wanted:
        require_writable(built_datasets.path(name))
    jobs = [(name, recipes[name], quiet) for name in wanted]
    _run(_build_member, jobs, workers or os.cpu_count() or 1)
    return [built_datasets.load(name) for name in members]


def _build_member(place: int, name: str, recipe: Recipe, quiet: bool) -> None:
    processes.prepare()
    discrete.build(name, recipe, place, quiet)


def build_splits(
    names: Sequence[str],
    size: Size = SIZES["small"],
    seed: int = 0,
    force: bool = False,
    workers: int | None = None,
    checkpoint_seconds: float = 60.0,
    quiet: bool = False,
) -> list[Dataset]:
    """Build MuJoCo splits with one training per body; several bodies are built in parallel.

    A body of which only the random split is to be built is not trained.

    workers  processes at once; by default one for each body
    """
    _check_workers(workers)
    if not checkpoint_seconds >= 0:
        raise UserError(f"--checkpoint-seconds must be at least 0, not {checkpoint_seconds:g}")
    wanted: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        recipe = splits.RECIPES[name]
        order = Order(recipe.body, size, seed)
        if recipe.trained:
            size.practice.check()
        if force or not built_datasets.is_built(name, order.options(recipe)):
            wanted.setdefault(recipe.body, []).append(name)
            require_writable(built_datasets.path(name))
    jobs = [(Order(body, size, seed), wanted[body], checkpoint_seconds, quiet) for body in wanted]
    _run(_build_body, jobs, workers or len(jobs))
    return [built_datasets.load(name) for name in names]


def _check_workers(workers: int | None) -> None:
    if workers is not None and workers < 1:
        raise UserError(f"--workers must be at least 1, not {workers}")


def _run(build: Callable[..., None], jobs: Sequence[tuple], workers: int) -> None:
    """Call build(place of the progress bar, *job) for each job; several run in processes of their own."""
    if len(jobs) < 2 or workers == 1:
        for job in jobs:
            build(0, *job)
        return
    workers = min(workers, len(jobs))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _prepare_worker, (context.RLock(),)) as pool:
        try:
            for future in [pool.submit(build, i % workers, *job) for i, job in enumerate(jobs)]:
                future.result()
        except BrokenProcessPool as error:
            raise UserError("a worker died; run the same command again to continue") from error
        finally:
            pool.shutdown(cancel_futures=True)  # after an error, no further job starts


def _prepare_worker(lock: Any) -> None:
    processes.end_with_parent()
    tqdm.set_lock(lock)  # the progress bars of all workers share one terminal


def _build_body(place: int, order: Order, names: list[str], checkpoint_seconds: float, quiet: bool) -> None:
    processes.prepare()  # in the main process too: rounding may depend on the number of threads
    total = len(splits.policies_of(names)) * order.size.rolled_out
    if any(splits.RECIPES[name].trained for name in names):
        total += order.size.practice.steps
    looks = {"desc": order.body, "unit": "step", "unit_scale": True, "position": place, "disable": quiet}
    with tqdm(total=total, **looks) as bar:
        announce = (lambda training: None) if quiet else _announce
        splits.build_body(order, names, _show(bar), checkpoint_seconds, announce)


def _announce(training: Training) -> None:
    """Say how long a training will take, by what is measured now."""
    settings, since = training.settings, training.step
    rates = measure(training.task, settings)
    work = f"{settings.steps - since:,} steps with {settings.updates(since):,} updates"
    took = f"measured: {rates.steps:,.0f} steps/s, {rates.updates:,.0f} updates/s"
    left = duration(rates.seconds(settings, since))
    tqdm.write(f"{training.task.env_id}: training {work} takes about {left} ({took})", file=sys.stderr)


def _show(bar: tqdm) -> Callable[[str, int], None]:
    def report(state: str, steps: int) -> None:
        bar.set_postfix_str(state, refresh=False)
        bar.update(steps)

    return report
