"""The exact Gauss-Newton TD step (Algorithm 1): the yardstick K-FAC is measured against.

With the Jacobian J = ∂Q/∂θ [batch, n], residuals δ [batch] and N samples,
    d = (JᵀJ/N + ωI)⁻¹ Jᵀδ/N  =  Jᵀ (JJᵀ/N + ωI)⁻¹ δ/N.
"""

import torch
from torch import Tensor

from offline_gntd.nn.mlp import Tape


def jacobian(tape: Tape) -> Tensor:
    """∂Q_i/∂θ for every sample, layer after layer: [networks, batch, parameters of one network]."""
    rows = [torch.einsum("sbi,sbo->sbio", p, q) for p, q in zip(tape.inputs, tape.grad_outputs, strict=True)]
    return torch.cat([row.flatten(2) for row in rows], dim=-1)


def dense_direction(J: Tensor, residual: Tensor, damping: float) -> Tensor:
    """Algorithm 1 to the letter: d [..., n] from J [..., N, n] and residual [..., N]."""
    samples, size = J.shape[-2:]
    H = J.mT @ J / samples
    g = (J.mT @ residual[..., None]) / samples
    return torch.linalg.solve(H + damping * torch.eye(size, dtype=J.dtype, device=J.device), g)[..., 0]


def dual_direction(J: Tensor, residual: Tensor, damping: float) -> Tensor:
    """The same d by the second form: an N × N system."""
    samples = J.shape[-2]
    system = J @ J.mT / samples + damping * torch.eye(samples, dtype=J.dtype, device=J.device)
    return (J.mT @ torch.linalg.solve(system, residual[..., None]))[..., 0] / samples


def direction(J: Tensor, residual: Tensor, damping: float) -> Tensor:
    """The same d by whichever system is smaller."""
    return (dense_direction if J.shape[-1] <= J.shape[-2] else dual_direction)(J, residual, damping)


def gauss_newton_weights(tape: Tape, residual: Tensor, damping: float) -> Tensor:
    """y = (JJᵀ/N + ωI)⁻¹ δ for residual [*stack, batch]: the exact d is then Jᵀy/N, an ordinary gradient.

    JJᵀ = Σ_l (p̄_l p̄_lᵀ) ⊙ (q_l q_lᵀ) needs no Jacobian, so the exact step costs a batch × batch solve.
    """
    layers = ((p @ p.mT) * (q @ q.mT) for p, q in zip(tape.inputs, tape.grad_outputs, strict=True))
    kernel = sum(layers, torch.zeros(()))
    system = kernel / tape.batch
    system.diagonal(dim1=-2, dim2=-1).add_(damping)
    cholesky, _ = torch.linalg.cholesky_ex(system)
    flat = residual.reshape(-1, tape.batch, 1)
    return torch.cholesky_solve(flat, cholesky).view_as(residual)
