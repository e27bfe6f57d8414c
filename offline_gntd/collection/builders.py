"""Every name that can be built here, and its building: a worker for each MuJoCo body, all at once."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from tqdm import tqdm

from offline_gntd import processes
from offline_gntd.collection import discrete, splits
from offline_gntd.collection.splits import SIZES, Order, Size
from offline_gntd.datasets import built
from offline_gntd.datasets.dataset import Dataset
from offline_gntd.errors import UserError
from offline_gntd.files import require_writable


def build(
    name: str, transitions: int | None = None, seed: int = 0, force: bool = False, **more: Any
) -> Dataset:
    """Build a named set, or return it if it is already there as asked for.

    `more` is what only its kind takes: see `discrete.build` and, for MuJoCo, `build_splits`.
    """
    built.task_of(name)
    if name in discrete.RECIPES:
        return discrete.build(name, transitions, seed, force, **more)
    size = more.pop("size", SIZES["small"])
    size = size if transitions is None else size.of_rows(transitions)
    return build_splits([name], size, seed, force, **more)[0]


def build_splits(
    names: Sequence[str],
    size: Size = SIZES["small"],
    seed: int = 0,
    force: bool = False,
    workers: int | None = None,
    checkpoint_seconds: float = 60.0,
    quiet: bool = False,
) -> list[Dataset]:
    """Build MuJoCo splits: one training per body, in a process of its own where there are several bodies.

    workers  processes at once; by default one per body, however many cores share them
    """
    if workers is not None and workers < 1:
        raise UserError(f"--workers must be at least 1, not {workers}")
    if not checkpoint_seconds >= 0:
        raise UserError(f"--checkpoint-seconds must be at least 0, not {checkpoint_seconds:g}")
    wanted: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        recipe = splits.RECIPES[name]
        options = Order(recipe.body, size, seed).options(recipe)
        if force or not built.is_built(name, options):
            wanted.setdefault(recipe.body, []).append(name)
            require_writable(built.path(name))
    jobs = [(Order(body, size, seed), wanted[body], checkpoint_seconds, quiet) for body in wanted]
    if len(jobs) == 1:
        _build_body(0, *jobs[0])
    elif jobs:
        _build_at_once(jobs, min(workers or len(jobs), len(jobs)))
    return [built.load(name) for name in names]


def _build_at_once(jobs: Sequence[tuple], workers: int) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _prepare_worker, (context.RLock(),)) as pool:
        try:
            for future in [pool.submit(_build_body, i, *job) for i, job in enumerate(jobs)]:
                future.result()
        except BrokenProcessPool as error:
            raise UserError("a worker died; the same command goes on from its checkpoint") from error
        finally:
            pool.shutdown(cancel_futures=True)  # after an error what has not begun does not begin


def _prepare_worker(lock: Any) -> None:
    processes.end_with_parent()
    tqdm.set_lock(lock)  # the bars of all workers share one screen


def _build_body(place: int, order: Order, names: list[str], checkpoint_seconds: float, quiet: bool) -> None:
    processes.prepare()  # here too if it is no worker: another number of threads might round otherwise
    total = order.size.practice.steps + len(splits.policies_of(names)) * order.size.rolled_out
    looks = {"desc": order.body, "unit": "step", "unit_scale": True, "position": place, "disable": quiet}
    with tqdm(total=total, **looks) as bar:
        splits.build_body(order, names, _show(bar), checkpoint_seconds)


def _show(bar: tqdm) -> Callable[[str, int], None]:
    def report(state: str, steps: int) -> None:
        bar.set_postfix_str(state, refresh=False)
        bar.update(steps)

    return report
