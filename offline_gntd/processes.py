"""Setup of processes that train."""

import multiprocessing
import os
import threading

import torch


def prepare() -> None:
    """Use one thread: small networks are slower with more, and other processes use the other cores."""
    torch.set_num_threads(1)


def end_with_parent() -> None:
    """End this process as soon as the process that started it ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "only a child process has a parent"

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
