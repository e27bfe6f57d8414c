"""The exact Gauss-Newton TD step (Algorithm 1), which K-FAC approximates.

With the Jacobian J = ∂Q/∂θ [N, n] of N samples and residuals δ [N],
    d = (JᵀJ/N + ωI)⁻¹ Jᵀδ/N  =  Jᵀ (JJᵀ/N + ωI)⁻¹ δ/N.
"""

import torch
from torch import Tensor

from offline_gntd.nn.mlp import Tape


def direction(J: Tensor, residual: Tensor, damping: float) -> Tensor:
    """d [..., n] from J [..., N, n] and residual [..., N], by the smaller of the two systems."""
    samples, size = J.shape[-2:]
    identity = torch.eye(min(samples, size), dtype=J.dtype, device=J.device)
    if size <= samples:
        g = (J.mT @ residual[..., None]) / samples
        return torch.linalg.solve(J.mT @ J / samples + damping * identity, g)[..., 0]
    system = J @ J.mT / samples + damping * identity
    return (J.mT @ torch.linalg.solve(system, residual[..., None]))[..., 0] / samples


def gauss_newton_weights(tape: Tape, residual: Tensor, damping: float) -> Tensor:
    """y = (JJᵀ/N + ωI)⁻¹ δ for residual [*stack, N]: the exact d is Jᵀy/N, the gradient
    with sample weights y/N.

    JJᵀ = Σ_l (p̄_l p̄_lᵀ) ⊙ (q_l q_lᵀ) needs no Jacobian, so the exact step costs an N × N solve.
    """
    passes = ((p.float(), q.float()) for p, q in zip(tape.inputs, tape.grad_outputs, strict=True))
    kernel = sum(((p @ p.mT) * (q @ q.mT) for p, q in passes), torch.zeros(()))
    system = kernel / tape.batch
    system.diagonal(dim1=-2, dim2=-1).add_(damping)
    cholesky, _ = torch.linalg.cholesky_ex(system)
    flat = residual.reshape(-1, tape.batch, 1)
    return torch.cholesky_solve(flat, cholesky).view_as(residual)
