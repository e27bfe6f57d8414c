"""Setup of processes that train."""

import multiprocessing
import os
import threading

import torch


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
