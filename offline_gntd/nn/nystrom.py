"""The inverse of a damped moment, known along its leading directions alone: Nyström's approximation.

With test vectors U [n, rank] and Y = A U, A ≈ Y (UᵀY)⁻¹ Yᵀ, which is exact where A has no higher rank; by
Woodbury's identity

    (A + λI)⁻¹ ≈ I/λ − W Wᵀ,   W = Y L⁻ᵀ / √λ,   L Lᵀ = (Y + λU)ᵀ Y

(Frangella, Tropp & Udell 2023, Randomized Nyström preconditioning). W spans what one step of subspace
iteration makes of U, so it is the U of the next time: as A changes, the test vectors follow its leading
eigenvectors. The inverse is kept as W and a column of 1/λ side by side, [networks, n, rank + 1].
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from offline_gntd.nn.linalg import add_product, aligned, cholesky, each, mirrored, product

PASSES = 4  # after which drawn test vectors have found what they are to follow
SHIFT = 1e-3  # of λ, added to A: no test vector vanishes, whatever becomes of A
# of its diagonal, for every direction, added to L Lᵀ: rounding leaves it definite, if Y's columns are alike
SLACK = torch.finfo(torch.float32).eps / 2


def room(like: Tensor, rank: int) -> Tensor:
    """Test vectors to begin with, in the place of an inverse, for x [networks, batch, n]."""
    networks, _, n = like.shape
    begun = of_damping_alone(like.new_ones(networks), n, rank)
    return aligned(like, *begun.shape).copy_(begun)


def of_damping_alone(damping: Tensor, n: int, rank: int) -> Tensor:
    """I/λ for the damping of networks, with a W that is too small to count beside it."""
    scale = (1 / damping)[:, None, None]
    return torch.cat([1e-6 * drawn(n, rank, damping.device) * scale.sqrt(), scale.expand(-1, n, 1)], -1)


@cache
def drawn(n: int, rank: int, device: torch.device) -> Tensor:
    """The test vectors everything begins from: always the same, and on a device copied there once."""
    return torch.randn(n, rank, generator=torch.Generator().manual_seed(0)).to(device)


def damped_leading(factor: Tensor, out: Tensor) -> Callable[[Tensor], None]:
    """A call that sets out ← (factor + damping I)⁻¹, in that form, for the damping given, [networks], or to
    NaN where there is none. It fills in the factor's upper triangle."""
    W, scale = out[..., :-1], out[..., -1:]
    networks, _, rank = W.shape
    Y, damped = (aligned(out, *W.shape) for _ in range(2))
    gram, inverse_root = (out.new_empty(networks, rank, rank) for _ in range(2))
    root = torch.zeros_like(gram).mT  # LAPACK goes by columns
    slack = 1 + SLACK * rank
    identity, diagonal = torch.eye(rank, device=out.device).expand_as(gram), gram.diagonal(dim1=-2, dim2=-1)
    mirror, multiply, factorise = mirrored(factor), product(factor, W, out=Y), cholesky(gram, out=root)
    make_gram, make_W = product(damped.mT, Y, out=gram), product(Y, inverse_root.mT, out=W)

    def call(damping: Tensor) -> None:
        damping = damping[:, None, None]
        mirror()
        multiply()
        Y.addcmul_(W, damping, value=SHIFT)
        torch.addcmul(Y, W, damping, out=damped)
        make_gram()
        diagonal.mul_(slack)
        failed = factorise()
        torch.linalg.solve_triangular(root, identity, upper=False, out=inverse_root)
        inverse_root.div_(damping.sqrt())
        make_W()
        scale.copy_(1 / damping)
        if failed is not None:
            out.masked_fill_(failed, torch.nan)

    return call


def leading_times(inverse: Tensor, b: Tensor, out: Tensor) -> Callable[[], Any]:
    """A call that sets out ← inverse · b."""
    W, scale = inverse[..., :-1], inverse[..., -1:]
    along = b.new_empty(len(W), W.shape[-1], b.shape[-1])
    less = partial(add_product(W, along, out=out), alpha=-1)
    return each([product(W.mT, b, out=along), partial(torch.mul, b, scale, out=out), less])
