"""The setup of processes that train."""

import ctypes
import multiprocessing
import os
import threading

import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>
KEEP_BYTES = 1 << 30  # freed buffers up to this size stay with the process


def prepare() -> None:
    """Use one thread, and keep freed memory.

    Networks of this size are slower with more threads, and other processes use the other cores. glibc would
    return every large buffer to the system, and the next buffer would consist of new pages that must be
    cleared. Other C libraries have no such setting.
    """
    torch.set_num_threads(1)
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, KEEP_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, KEEP_BYTES)


def end_with_parent() -> None:
    """End this process as soon as the process that started it ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "only a child process has a parent"

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
