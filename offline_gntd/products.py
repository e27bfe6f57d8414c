"""Products and inverses of stacked matrices, as fast as a CPU has them; on CUDA, torch's own.

The hot path multiplies the same buffers at every update, so a product is planned once: `product` decides how,
takes its slices, and gives back a call without arguments.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

ALIGNED = 16  # floats in a cache line: rows that start on one are multiplied at the full rate
NARROW = 16  # columns; below that a product's transpose is several times faster
SMALL = 72  # rows; up to that LAPACK inverts faster than products of its blocks do


def on_device(x: Tensor) -> bool:
    """Whether x is where torch's own batched kernels are the fast ones, and to look at a value is to wait."""
    return x.is_cuda


def aligned(like: Tensor, *shape: int) -> Tensor:
    """An uninitialised buffer whose rows are padded to whole cache lines."""
    padded = -(-shape[-1] // ALIGNED) * ALIGNED
    return like.new_empty(*shape[:-1], padded)[..., : shape[-1]]


def product(a: Tensor, b: Tensor, out: Tensor) -> Callable[[], Any]:
    """A call that sets out ← a @ b, for [networks, …, …] that stay where they are.

    It is torch.bmm, but for the shapes that are slow there: outer products, one column, few columns.
    """
    if a.shape[-1] == 1:
        return partial(torch.mul, a, b, out=out)
    if b.shape[-1] == 1 and not on_device(a):
        return _each(
            [
                partial(torch.mv, *pair, out=result)
                for *pair, result in zip(a, b[..., 0], out[..., 0], strict=True)
            ]
        )
    if b.shape[-1] < NARROW and not on_device(a):
        transposed = torch.empty_like(out.mT.contiguous())
        return _each([partial(torch.bmm, b.mT, a.mT, out=transposed), partial(out.copy_, transposed.mT)])
    return partial(torch.bmm, a, b, out=out)


def _each(calls: list[Callable[[], Any]]) -> Callable[[], None]:
    def call_each() -> None:
        for call in calls:
            call()

    return call_each


def average_second_moment(factor: Tensor, x: Tensor, weight: float) -> None:
    """factor ← (1 − weight) factor + weight E[x xᵀ] for x [networks, batch, n]; of a large one no more than
    the lower triangle is kept true."""
    scale = {"beta": 1 - weight, "alpha": weight / x.shape[-2]}
    half = x.shape[-1] // 2 if x.shape[-1] > SMALL and not on_device(x) else 0
    lower, corner = factor[:, half:], factor[:, :half, :half]
    torch.baddbmm(lower, x[..., half:].mT, x, **scale, out=lower)
    if half:
        torch.baddbmm(corner, x[..., :half].mT, x[..., :half], **scale, out=corner)


def solution(cholesky: Tensor, b: Tensor, out: Tensor) -> Callable[[], Any]:
    """A call that sets out ← (L Lᵀ)⁻¹ b for lower triangular L; torch.cholesky_solve would copy L first."""
    solve, half = torch.linalg.solve_triangular, torch.empty_like(b)
    forwards = partial(solve, cholesky, b, upper=False, out=half)
    return _each([forwards, partial(solve, cholesky.mT, half, upper=True, out=out)])


def damped_inverse(factor: Tensor, damping: Tensor, out: Tensor) -> Tensor:
    """out ← (factor + damping I)⁻¹ for [networks, n, n] and damping [networks], or (damping I)⁻¹ where that
    cannot be had; where it could be [networks]."""
    _diagonal(out.copy_(factor)).add_(damping[:, None])
    return _or_else(1 / damping, out, sound=_invert(out))


def damped_root(factor: Tensor, damping: Tensor, out: Tensor) -> Tensor:
    """The lower Cholesky factor of factor + damping I, or of damping I, likewise."""
    _diagonal(out.copy_(factor)).add_(damping[:, None])
    root, info = torch.linalg.cholesky_ex(out)
    return _or_else(damping.sqrt(), out.copy_(root), sound=info == 0)


def _or_else(alone: Tensor, matrices: Tensor, sound: Tensor) -> Tensor:
    """Put alone · I where the matrices are not sound; where they are."""
    sound = sound & _diagonal(matrices).isfinite().all(-1)
    if on_device(matrices) or not sound.all():  # to ask is to wait for a device
        fallback = alone[:, None].expand(matrices.shape[:2]).diag_embed()
        matrices.copy_(torch.where(sound[:, None, None], matrices, fallback))
    return sound


def _invert(matrices: Tensor) -> Tensor:
    """Symmetric positive definite matrices ← their inverses. Whether each was one; nothing is raised where
    it was not.

    Large ones by blocks: with M = [A Bᵀ; B C], T = B A⁻¹ and S = C − T Bᵀ, the inverse is
    [A⁻¹ + Tᵀ S⁻¹ T, −Tᵀ S⁻¹; −S⁻¹ T, S⁻¹]. Only the lower triangle is read.
    """
    n = matrices.shape[-1]
    if n == 1:
        return matrices.reciprocal_()[:, 0, 0] > 0
    if n <= SMALL or on_device(matrices):
        cholesky, info = torch.linalg.cholesky_ex(matrices)
        sound = info == 0
        if on_device(matrices) or not sound.all():
            diagonal = _diagonal(cholesky)
            diagonal.copy_(torch.where(diagonal > 0, diagonal, 1))  # cholesky_inverse raises on a zero
        matrices.copy_(torch.cholesky_inverse(cholesky))
        return sound
    half = n // 2
    A, B, C = matrices[:, :half, :half], matrices[:, half:, :half], matrices[:, half:, half:]
    sound = _invert(A)
    T = torch.bmm(B, A)
    torch.baddbmm(C, T, B.mT, alpha=-1, out=C)
    sound = sound & _invert(C)
    torch.baddbmm(B, C, T, beta=0, alpha=-1, out=B)
    torch.baddbmm(A, T.mT, B, alpha=-1, out=A)
    matrices[:, :half, half:] = B.mT
    return sound


def _diagonal(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1)
