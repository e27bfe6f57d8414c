"""Matrix products by OpenBLAS, which on AMD's Zen 4 is faster than torch's MKL (docs/performance.md).

Left to itself it would take its kernels for Intel's AVX-512 there, but those for AVX2 are the fast ones. They
are chosen as it is loaded, so this is a library of our own: numpy's belongs to whoever imports numpy first.
"""

import ctypes
import functools
import importlib.util
import os
from collections.abc import Callable
from ctypes import byref, c_char_p, c_float, c_int, c_void_p
from functools import partial
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path

import torch
from torch import Tensor

PACKAGE = "scipy_openblas32"
LOADED_WITH = {"OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_NUM_THREADS": "1"}
BY_ROWS, AS_IT_IS, TRANSPOSED = c_int(101), c_int(111), c_int(112)  # of <cblas.h>


@functools.cache
def is_faster() -> bool:
    """Whether it is installed, on a machine where it is worth it."""
    return _zen4() and _path() is not None


def who_multiplies() -> str:
    """The library whose products a number depends on, on a CPU."""
    return f"OpenBLAS {version(PACKAGE)}" if is_faster() else "torch"


def takes(*matrices: Tensor) -> bool:
    """Whether it multiplies these: float32 in rows, or in columns, that do not overlap."""
    return is_faster() and all(x.dtype == torch.float32 and (_rows(x) or _rows(x.mT)) for x in matrices)


def product(a: Tensor, b: Tensor, out: Tensor) -> Callable[[], None]:
    """A call that sets out ← a @ b, for matrices that stay where they are."""
    return _planned(a, b, out, beta=c_float(0), alpha=c_float(1))


def add_product(a: Tensor, b: Tensor, out: Tensor) -> Callable[..., None]:
    """A call that sets out ← beta out + alpha a @ b, for the beta and alpha given; without, 1."""
    scale, weight = c_float(), c_float()
    add = _planned(a, b, out, beta=scale, alpha=weight)

    def call(beta: float = 1, alpha: float = 1) -> None:
        scale.value, weight.value = beta, alpha
        add()

    return call


def cholesky(matrix: Tensor) -> Callable[[], bool]:
    """A call that makes a symmetric matrix its lower Cholesky factor, leaves what is above the diagonal, and
    says whether there was none."""
    of_columns = b"U" if _rows(matrix) else b"L"  # LAPACK takes rows for columns, and what is below for above
    _, where, apart = _operand(matrix)
    size, failed = c_int(len(matrix)), c_int()
    factorise = partial(
        _library().scipy_spotrf_, c_char_p(of_columns), byref(size), where, byref(apart), byref(failed)
    )

    def call() -> bool:
        factorise()
        return failed.value != 0

    return call


def _planned(a: Tensor, b: Tensor, out: Tensor, beta: c_float, alpha: c_float) -> Callable[[], None]:
    if not _rows(out):
        return _planned(b.mT, a.mT, out.mT, beta, alpha)
    (a_is, *a_at), (b_is, *b_at), (_, *out_at) = _operand(a), _operand(b), _operand(out)
    sizes = [c_int(size) for size in (*out.shape, a.shape[-1])]
    sgemm = _library().scipy_cblas_sgemm
    return partial(sgemm, BY_ROWS, a_is, b_is, *sizes, alpha, *a_at, *b_at, beta, *out_at)


def _rows(x: Tensor) -> bool:
    """Whether a matrix, or each of a stack, lies row by row."""
    rows, columns = x.shape[-2:]
    return (x.stride(-1) == 1 or columns == 1) and (x.stride(-2) >= columns or rows == 1)


def _operand(x: Tensor) -> tuple[c_int, c_void_p, c_int]:
    """How it lies there, where, and how far apart its rows are, or its columns."""
    how, x = (AS_IT_IS, x) if _rows(x) else (TRANSPOSED, x.mT)
    where = x.numpy().ctypes.data_as(c_void_p)  # which keeps what it points at
    return how, where, c_int(max(x.stride(0), x.shape[1]))


@functools.cache
def _library() -> ctypes.CDLL:
    path = _path()
    assert path is not None, "nothing is multiplied by what is not there"
    before = {name: os.environ.get(name) for name in LOADED_WITH}
    os.environ.update(LOADED_WITH)
    try:
        return ctypes.CDLL(str(path))
    finally:  # other libraries, and processes we start, are to have what the user set
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _path() -> Path | None:
    """Of the library in its package, which is not imported: that would load it as it loads by itself."""
    package = importlib.util.find_spec(PACKAGE)
    if package is None or package.origin is None:
        return None
    return next(Path(package.origin).parent.glob("lib/libscipy_openblas.so"), None)


def _zen4(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    try:
        with cpuinfo.open() as lines:
            first_processor = [line.partition(":") for line in takewhile(str.strip, lines)]
    except OSError:  # no Linux
        return False
    about = {name.strip(): value.strip() for name, _, value in first_processor}
    zen_3_or_4 = (about.get("vendor_id"), about.get("cpu family")) == ("AuthenticAMD", "25")
    return zen_3_or_4 and "avx512f" in about.get("flags", "").split()
