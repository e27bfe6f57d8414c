"""Matrix products and Cholesky factors by OpenBLAS, on AMD's Zen 4 faster than torch's (docs/performance.md).

Left to itself it would take its kernels for Intel's AVX-512 there, but those for AVX2 are the faster. They
are chosen as it is loaded, so this is a library of our own: numpy's belongs to whoever imports numpy first.

A plan holds addresses. It keeps what is there from being freed, but must not outlive a tensor's being moved
elsewhere, as share_memory_() and multiprocessing do.
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
KERNELS, THREADS = "Haswell", 1
BY_ROWS, AS_IT_IS, TRANSPOSED = c_int(101), c_int(111), c_int(112)  # CblasRowMajor, CblasNoTrans, CblasTrans


@functools.cache
def is_faster() -> bool:
    """Whether it is here, on a machine where it is worth it."""
    return _zen4() and _library() is not None


def who_multiplies() -> str:
    """The library whose products a number depends on, on a CPU."""
    return f"OpenBLAS {version(PACKAGE)}" if is_faster() else "torch"


def takes(*matrices: Tensor) -> bool:
    """Whether it is to multiply these, matrices or stacks of them."""
    return is_faster() and all(map(_lies_there, matrices))


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
    _check(matrix.shape[0] == matrix.shape[1], matrix)
    of_columns = b"U" if _rows(matrix) else b"L"  # LAPACK takes rows for columns, and what is below for above
    _, where, apart = _operand(matrix)
    size, failed = c_int(len(matrix)), c_int()
    factorise = partial(
        _functions().scipy_spotrf_, c_char_p(of_columns), byref(size), where, byref(apart), byref(failed)
    )

    def call() -> bool:
        factorise()
        return failed.value != 0

    return call


def _planned(a: Tensor, b: Tensor, out: Tensor, beta: c_float, alpha: c_float) -> Callable[[], None]:
    _check(a.shape[1] == b.shape[0] and out.shape == (a.shape[0], b.shape[1]), a, b, out)
    if not _rows(out):
        a, b, out = b.mT, a.mT, out.mT
    (a_is, *a_at), (b_is, *b_at), (_, *out_at) = _operand(a), _operand(b), _operand(out)
    sizes = [c_int(size) for size in (*out.shape, a.shape[1])]
    sgemm = _functions().scipy_cblas_sgemm
    return partial(sgemm, BY_ROWS, a_is, b_is, *sizes, alpha, *a_at, *b_at, beta, *out_at)


def _check(fits: bool, *matrices: Tensor) -> None:
    """OpenBLAS itself takes an address for what it is said to be."""
    if not fits or not all(map(_lies_there, matrices)):
        raise ValueError(f"OpenBLAS cannot take {[(x.dtype, x.shape, x.stride()) for x in matrices]}")


def _lies_there(x: Tensor) -> bool:
    """As float32 in rows, or in columns, that do not overlap."""
    return x.dtype == torch.float32 and (_rows(x) or _rows(x.mT))


def _rows(x: Tensor) -> bool:
    """Whether a matrix, or each of a stack, lies row by row."""
    rows, columns = x.shape[-2:]
    return (x.stride(-1) == 1 or columns == 1) and (x.stride(-2) >= columns or rows == 1)


def _operand(x: Tensor) -> tuple[c_int, c_void_p, c_int]:
    """How it lies there, where, and how far apart its rows are, or its columns."""
    how, x = (AS_IT_IS, x) if _rows(x) else (TRANSPOSED, x.mT)
    where = x.numpy().ctypes.data_as(c_void_p)  # which keeps what it points at
    return how, where, c_int(max(x.stride(0), x.shape[1]))


def _functions() -> ctypes.CDLL:
    library = _library()
    assert library is not None, "nothing is planned with what is not there"
    return library


@functools.cache
def _library() -> ctypes.CDLL | None:
    """With the kernels and the thread it is to have; None if there is no such library."""
    try:
        library = _loaded()
        library.scipy_openblas_get_corename.restype = ctypes.c_char_p
        has = library.scipy_openblas_get_corename().decode(), library.scipy_openblas_get_num_threads()
        library.scipy_cblas_sgemm.restype, library.scipy_spotrf_.restype = None, None
    except (OSError, AttributeError):  # none, none for this machine, or one with other names in it
        return None
    return library if has == (KERNELS, THREADS) else None  # somebody may have loaded it before, otherwise


def _loaded() -> ctypes.CDLL:
    wanted = {"OPENBLAS_CORETYPE": KERNELS, "OPENBLAS_NUM_THREADS": str(THREADS)}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        return ctypes.CDLL(str(_path()))
    finally:  # other libraries, and processes we start, are to have what the user set
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _path() -> Path:
    """Of the library in its package, which is not imported: that would load it as it loads by itself."""
    package = importlib.util.find_spec(PACKAGE)
    if package is None or package.origin is None:
        raise FileNotFoundError(PACKAGE)
    return Path(package.origin).with_name("lib") / "libscipy_openblas.so"


def _zen4(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    try:
        with cpuinfo.open() as lines:
            first_processor = [line.partition(":") for line in takewhile(str.strip, lines)]
    except OSError:  # no Linux
        return False
    about = {name.strip(): value.strip() for name, _, value in first_processor}
    zen_3_or_4 = (about.get("vendor_id"), about.get("cpu family")) == ("AuthenticAMD", "25")
    return zen_3_or_4 and "avx512f" in about.get("flags", "").split()
