"""Products and inverses of stacked matrices, as fast as a CPU has them; on CUDA, torch's own.

The hot path multiplies the same buffers at every update, so a product is planned once: `product` decides how,
takes its slices, and gives back a call without arguments.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from offline_gntd.nn import openblas

ALIGNED = 16  # floats in a cache line: rows that start on one are multiplied at the full rate
NARROW = 16  # columns; below that torch multiplies the transpose several times faster
STRIP = 64  # rows of a symmetric product that are made at once, as far as the diagonal
TOGETHER = 1 << 16  # floats; larger matrices of a stack would drive one another out of the cache
SMALL = 36  # rows; up to that LAPACK inverts faster than products of its blocks do


def on_device(x: Tensor) -> bool:
    """Whether x is where torch's own batched kernels are the fast ones, and to look at a value is to wait."""
    return x.is_cuda


def whole_lines(floats: int) -> int:
    """So many, and as many more as fill their last cache line."""
    return -(-floats // ALIGNED) * ALIGNED


def aligned(like: Tensor, *shape: int) -> Tensor:
    """An uninitialised buffer whose rows are padded to whole cache lines."""
    return like.new_empty(*shape[:-1], whole_lines(shape[-1]))[..., : shape[-1]]


def product(a: Tensor, b: Tensor, out: Tensor) -> Callable[[], Any]:
    """A call that sets out ← a @ b, for [networks, …, …] that stay where they are.

    Outer products and single columns are torch's, the rest OpenBLAS's where that is the faster. Elsewhere it
    is torch.bmm, but for what is slow there: few columns, one network.
    """
    if a.shape[-1] == 1:
        return partial(torch.mul, a, b, out=out)
    if on_device(a):
        return _matmul(a, b, out)
    if b.shape[-1] == 1:
        return _each_network(_times_column, a, b[..., 0], out[..., 0])
    if openblas.takes(a, b, out):
        return _each_network(openblas.product, a, b, out)
    if b.shape[-1] < NARROW:
        transposed = torch.empty_like(out.mT.contiguous())
        return each([_matmul(b.mT, a.mT, out=transposed), partial(out.copy_, transposed.mT)])
    return _matmul(a, b, out)


def _matmul(a: Tensor, b: Tensor, out: Tensor) -> Callable[[], Any]:
    return partial(torch.mm, a[0], b[0], out=out[0]) if len(a) == 1 else partial(torch.bmm, a, b, out=out)


def add_product(a: Tensor, b: Tensor, out: Tensor) -> Callable[..., Any]:
    """A call that sets out ← beta out + alpha a @ b, for the beta and alpha given; without, 1."""
    if b.shape[-1] == 1 < a.shape[-2] and not on_device(a):
        return _each_network(_add_column, a, b[..., 0], out[..., 0])
    if not on_device(a) and openblas.takes(a, b, out):
        return _each_network(openblas.add_product, a, b, out)
    if len(a) == 1:
        return partial(torch.addmm, out[0], a[0], b[0], out=out[0])
    return partial(torch.baddbmm, out, a, b, out=out)


def _times_column(a: Tensor, column: Tensor, out: Tensor) -> Callable[[], Any]:
    return partial(torch.mv, a, column, out=out)


def _add_column(a: Tensor, column: Tensor, out: Tensor) -> Callable[..., Any]:
    return partial(torch.addmv, out, a, column, out=out)


def _each_network(plan: Callable[..., Callable[..., Any]], *stacks: Tensor) -> Callable[..., Any]:
    """A call for each network in turn, planned for its matrices."""
    calls = [plan(*matrices) for matrices in zip(*stacks, strict=True)]
    return calls[0] if len(calls) == 1 else each(calls)


def parts(stack: Tensor) -> list[slice]:
    """The networks of a stack [networks, …, …] as they are best gone through: all at once or, where their
    matrices are large, one after the other."""
    if on_device(stack) or stack.numel() <= TOGETHER:
        return [slice(None)]
    return [slice(i, i + 1) for i in range(len(stack))]


def each(calls: Sequence[Callable[..., Any]]) -> Callable[..., None]:
    def call_each(**options: Any) -> None:
        for call in calls:
            call(**options)

    return call_each


def second_moment(factor: Tensor, x: Tensor) -> Callable[[float], None]:
    """A call that sets factor ← (1 − weight) factor + weight E[x xᵀ] for the weight given and what is then in
    x [networks, batch, n]; of a large factor no more than the lower triangle is kept true."""
    batch = x.shape[-2]
    strips = [
        add_product(x[of, :, rows].mT, x[of, :, cols], out=factor[of, rows, cols])
        for of in parts(factor)
        for rows, cols in _lower_triangle(factor)
    ]

    def average(weight: float) -> None:
        for add in strips:
            add(beta=1 - weight, alpha=weight / batch)

    return average


def _lower_triangle(symmetric: Tensor) -> list[tuple[slice, slice]]:
    """Rows and columns of the strips in which a symmetric product [networks, n, n] is made: those of a large
    one hold little more than its lower triangle."""
    n = symmetric.shape[-1]
    strips = 1 if on_device(symmetric) else max(1, n // STRIP)
    edges = pairwise(n * i // strips for i in range(strips + 1))
    return [(slice(top, end), slice(end)) for top, end in edges]


def mirrored(symmetric: Tensor) -> Callable[[], None]:
    """A call that fills in what `second_moment` leaves out of the upper triangle."""
    return each(
        [
            partial(symmetric[:, : rows.start, rows].copy_, symmetric[:, rows, : rows.start].mT)
            for rows, _ in _lower_triangle(symmetric)
            if rows.start
        ]
    )


def solution(root: Tensor, b: Tensor, out: Tensor) -> Callable[[], Any]:
    """A call that sets out ← (L Lᵀ)⁻¹ b for lower triangular L; torch.cholesky_solve would copy L first."""
    half = b.new_empty(b.shape)
    if b.stride(-1) == 1:
        solve = torch.linalg.solve_triangular
        forwards = partial(solve, root, b, upper=False, out=half)
        return each([forwards, partial(solve, root.mT, half, upper=True, out=out)])
    # a transpose is copied twice and solved for in half the time
    return each([partial(half.copy_, b), solution(root, half, out=half), partial(out.copy_, half)])


def squares(like: Tensor) -> Tensor:
    """Zeros [networks, n, n] for x [networks, batch, n], whose rows are no power of two apart: those would
    compete for the same places in the cache."""
    networks, _, n = like.shape
    return aligned(like, networks, n, n + 1)[..., :n].zero_()


def transposed_squares(like: Tensor) -> Tensor:
    """The same, each transposed: LAPACK goes by columns."""
    networks, _, n = like.shape
    return like.new_zeros(networks, n, n).mT


def damped_inverse(factor: Tensor, out: Tensor) -> Callable[[Tensor], None]:
    """A call that sets out ← (factor + damping I)⁻¹ [networks, n, n] for the damping given, [networks], or to
    NaN where there is none."""
    diagonal, invert = _diagonal(out), _inversion(out)

    def call(damping: Tensor) -> None:
        out.copy_(factor)
        diagonal.add_(damping[:, None])
        invert()

    return call


def inverse_times(inverse: Tensor, b: Tensor, out: Tensor) -> Callable[[], Any]:
    """A call that sets out ← inverse · b for a symmetric inverse. Its transpose is the same and, where there
    are many columns, read faster."""
    return product(inverse if b.shape[-1] < NARROW else inverse.mT, b, out)


def damped_halves(factor: Tensor, out: Tensor) -> Callable[[Tensor], None]:
    """The same inverse as `halves_times` takes it, for a quarter less: with factor + damping I = [A Bᵀ; B C],
    T = B A⁻¹ and S = C − T Bᵀ, out ← [A⁻¹ ·; T S⁻¹]."""
    (A, T, S), (of_A, B, of_C) = _blocks(out), _blocks(factor)
    diagonal = _diagonal(out)
    steps = each(
        [
            _inversion(A),
            product(B, A, out=T),
            *_less_product(S, T, B),
            _inversion(S),
        ]
    )

    def call(damping: Tensor) -> None:
        A.copy_(of_A)
        S.copy_(of_C)
        diagonal.add_(damping[:, None])
        steps()

    return call


def halves_times(halves: Tensor, b: Tensor, out: Tensor) -> Callable[[], Any]:
    """A call that sets out ← [I −Tᵀ; 0 I] [A⁻¹ 0; 0 S⁻¹] [I 0; −T I] b."""
    A, T, S = _blocks(halves)
    upper, lower = b.tensor_split([A.shape[-1]], -2)
    out_upper, out_lower = out.tensor_split([A.shape[-1]], -2)
    rest = torch.empty_like(lower)
    return each(
        [
            partial(rest.copy_, lower),
            partial(add_product(T, upper, out=rest), alpha=-1),
            product(S, rest, out=out_lower),
            product(A, upper, out=out_upper),
            partial(add_product(T.mT, out_lower, out=out_upper), alpha=-1),
        ]
    )


def _blocks(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Upper left, lower left and lower right of matrices [networks, n, n]."""
    half = matrices.shape[-1] // 2
    return matrices[:, :half, :half], matrices[:, half:, :half], matrices[:, half:, half:]


def damped_root(factor: Tensor, out: Tensor) -> Callable[[Tensor], None]:
    """The same for out ← the lower Cholesky factor of factor + damping I. It is fastest where `out` is a
    transpose: LAPACK goes by columns."""
    diagonal, factorise = _diagonal(out), cholesky(out, out=out)

    def call(damping: Tensor) -> None:
        out.copy_(factor)
        diagonal.add_(damping[:, None])
        if (failed := factorise()) is not None:
            out.masked_fill_(failed, math.nan)

    return call


def where_sound(matrices: Sequence[Tensor], alone: Callable[[int], Tensor]) -> Tensor | None:
    """Which of the matrices [networks, …, …] are free of NaN, which what failed has in its diagonal too:
    [networks, matrices]; None, where it can be known that all are. Where matrix i is not, alone(i) takes its
    place."""
    diagonals = [_diagonal(matrix) for matrix in matrices]
    if not on_device(diagonals[0]) and math.isfinite(torch.cat(diagonals, -1).sum().item()):
        return None
    sound = torch.stack([diagonal.sum(-1) for diagonal in diagonals], -1).isfinite()
    for i, (matrix, kept) in enumerate(zip(matrices, sound.unbind(-1), strict=True)):
        matrix.copy_(torch.where(kept[:, None, None], matrix, alone(i)))
    return sound


def _inversion(matrices: Tensor) -> Callable[[], Any]:
    """A call that turns symmetric positive definite matrices into their inverses, others into NaN.

    Large ones by blocks: with M = [A Bᵀ; B C], T = B A⁻¹ and S = C − T Bᵀ, the inverse is
    [A⁻¹ + Tᵀ S⁻¹ T, −Tᵀ S⁻¹; −S⁻¹ T, S⁻¹]. Only the lower triangle is read.
    """
    n = matrices.shape[-1]
    if n <= SMALL or on_device(matrices):
        return _small_inversion(matrices)
    A, B, C = _blocks(matrices)
    T = aligned(matrices, *B.shape[:2], n // 2 + 1)[..., :-1]
    return each(
        [
            _inversion(A),
            product(B, A, out=T),
            *_less_product(C, T, B),
            _inversion(C),
            partial(add_product(C, T, out=B), beta=0, alpha=-1),
            partial(add_product(T.mT, B, out=A), alpha=-1),
            partial(matrices[:, : n // 2, n // 2 :].copy_, B.mT),
        ]
    )


def _less_product(symmetric: Tensor, T: Tensor, B: Tensor) -> list[Callable[[], Any]]:
    """Calls for symmetric ← symmetric − T Bᵀ; of a large one no more than the lower triangle is kept true."""
    return [
        partial(add_product(T[:, rows], B[:, cols].mT, out=symmetric[:, rows, cols]), alpha=-1)
        for rows, cols in _lower_triangle(symmetric)
    ]


def _small_inversion(matrices: Tensor) -> Callable[[], None]:
    """The same by LAPACK."""
    n = matrices.shape[-1]
    root = matrices.new_zeros(matrices.shape).mT  # LAPACK goes by columns
    factorise = cholesky(matrices, out=root)

    def invert() -> None:
        failed = factorise()
        if failed is not None:  # cholesky_inverse raises on a zero in the diagonal
            root.copy_(torch.where(failed, torch.eye(n, device=failed.device), root))
        matrices.copy_(torch.cholesky_inverse(root))
        if failed is not None:
            matrices.masked_fill_(failed, math.nan)

    def reciprocal() -> None:
        matrices.reciprocal_()
        matrices.copy_(torch.where(matrices > 0, matrices, math.nan))

    return reciprocal if n == 1 else invert


def cholesky(matrices: Tensor, out: Tensor) -> Callable[[], Tensor | None]:
    """A call that sets out ← the lower Cholesky factors of matrices, anything above the diagonal, and says
    which failed [networks, 1, 1]; None, where it can be known that all went well."""
    by_openblas = not on_device(out) and openblas.takes(out)
    factorise = (_cholesky_by_openblas if by_openblas else _cholesky_by_torch)(matrices, out)
    diagonal = _diagonal(out)

    def call() -> Tensor | None:
        failed = factorise()
        if not on_device(out) and not any(failed) and math.isfinite(diagonal.sum().item()):
            return None
        failed = torch.as_tensor(failed, device=out.device)
        return (failed | ~diagonal.sum(-1).isfinite())[:, None, None]  # not every library fails at infinity

    return call


def _cholesky_by_openblas(matrices: Tensor, out: Tensor) -> Callable[[], list[bool]]:
    networks = [openblas.cholesky(matrix) for matrix in out]

    def factorise() -> list[bool]:
        if matrices is not out:
            out.copy_(matrices)
        return [network() for network in networks]

    return factorise


def _cholesky_by_torch(matrices: Tensor, out: Tensor) -> Callable[[], Any]:
    info = torch.empty(len(matrices), dtype=torch.int32, device=matrices.device)

    def factorise() -> Any:
        torch.linalg.cholesky_ex(matrices, out=(out, info))
        return info != 0 if on_device(info) else [value != 0 for value in info.tolist()]

    return factorise


def _diagonal(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1)
