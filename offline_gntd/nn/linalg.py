"""Products and damped inverses of stacked matrices [networks, rows, columns]."""

import torch
from torch import Tensor

FEW_COLUMNS = 16  # below this, torch.bmm on a CPU is several times faster for the transposed product


def matmul(a: Tensor, b: Tensor, out: Tensor) -> None:
    """out ← a @ b. A bfloat16 product may be written to a float32 `out`."""
    if a.shape[-1] == 1:  # an outer product
        torch.mul(a, b, out=out)
    elif b.shape[-1] < FEW_COLUMNS:
        out.copy_(torch.bmm(b.mT, a.mT).mT)
    elif out.dtype != a.dtype:
        out.copy_(torch.bmm(a, b))
    else:
        torch.bmm(a, b, out=out)


def update_second_moment(moment: Tensor, x: Tensor, decay: float, scale: float = 1.0) -> None:
    """moment ← decay · moment + (1 − decay) · scale · E[x xᵀ], for x [networks, batch, n]."""
    x = x.to(moment.dtype)  # a bfloat16 product would be indefinite by more than the damping of K-FAC
    torch.baddbmm(moment, x.mT, x, beta=decay, alpha=(1 - decay) * scale / x.shape[-2], out=moment)


def damped_inverse(matrix: Tensor, damping: Tensor, out: Tensor) -> Tensor:
    """out ← (matrix + damping I)⁻¹ [networks, n, n] for damping [networks]; returns whether it exists.

    Where it does not exist (not positive definite or not finite), out is I / damping. The result stays on the
    device: the host does not wait for it.
    """
    damped = matrix.clone()
    damped.diagonal(dim1=-2, dim2=-1).add_(damping[:, None])
    root, info = torch.linalg.cholesky_ex(damped)
    diagonal = root.diagonal(dim1=-2, dim2=-1)
    exists = (info == 0) & diagonal.sum(-1).isfinite()
    root.masked_fill_(~exists[:, None, None], 0)
    diagonal.copy_(torch.where(exists[:, None], diagonal, damping.sqrt()[:, None]))
    torch.cholesky_inverse(root, out=out)
    return exists
