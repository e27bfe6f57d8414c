"""Setup of processes that train, and a pool of them."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch
from tqdm import tqdm

from offline_gntd.errors import UserError


def prepare() -> None:
    """Use one thread: small networks are slower with more, and other processes use the other cores.

    Numbers below 1e-38 become 0. K-FAC's running averages reach them a few thousand updates after a unit of
    the network dies, and Intel processors take a hundred times as long for an operation on such a number.
    """
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def end_with_parent() -> None:
    """End this process as soon as the process that started it ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "only a child process has a parent"

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def run_parallel(function: Callable[..., Any], jobs: Sequence[tuple], workers: int) -> Iterator[Any]:
    """Call function(*job) for each job in up to `workers` processes; yields the results in order.

    After an error, no further job starts. Raises UserError if a worker is killed.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _prepare_worker, (context.RLock(),)) as pool:
        try:
            for future in [pool.submit(function, *job) for job in jobs]:
                yield future.result()
        except BrokenProcessPool as error:
            raise UserError("a worker died; run the same command again to continue") from error
        finally:
            pool.shutdown(cancel_futures=True)


def _prepare_worker(lock: Any) -> None:
    prepare()
    end_with_parent()
    tqdm.set_lock(lock)  # the progress bars of all workers share one terminal
