"""How a process that trains is set up."""

import ctypes
import multiprocessing
import os
import threading

import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>
KEPT = 1 << 30  # bytes: the largest piece of memory that is kept for the next that asks


def prepare() -> None:
    """One thread: these networks lose by more, and other processes use the other cores.

    And freed memory stays with the process: glibc would give every large buffer back, and the next one would
    come with new pages to be cleared. Other C libraries have no such setting, and are left as they are.
    """
    torch.set_num_threads(1)
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, KEPT)
        library.mallopt(M_TRIM_THRESHOLD, KEPT)


def end_with_parent() -> None:
    """Let this process not outlive the one that started it, however that ended."""

    def wait() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
