"""A value network and the one step by which every algorithm moves it: semi-gradient or Gauss-Newton."""

import torch
from torch import Tensor

from offline_gntd.gauss_newton import gauss_newton_weights
from offline_gntd.kfac import KFAC, KroneckerFactors
from offline_gntd.networks import MLP, Tape
from offline_gntd.optimisers import optimiser


class Critic:
    """Q-networks with their tape, curvature and optimiser.

    Without curvature the step is the semi-gradient E[δ ∇Q] (TD). With `kfac` it is preconditioned by the
    Kronecker factors (Algorithm 3); with `exact_damping` it is Algorithm 1's own (H + ωI)⁻¹ E[δ ∇Q].
    """

    def __init__(
        self,
        network: MLP,
        batch: int,
        learning_rate: float,
        optimiser_name: str = "adam",
        kfac: KFAC | None = None,
        exact_damping: float | None = None,
    ):
        self.network = network
        self.tape = Tape(network, batch)
        self.curvature = KroneckerFactors(kfac, self.tape) if kfac else None
        self.exact_damping = exact_damping
        self.optimiser = optimiser(optimiser_name, network.flat, learning_rate)
        self.flat_step = torch.zeros_like(network.flat)
        self.step_layers = network.views(self.flat_step)

    def forward(self, x: Tensor) -> Tensor:
        return self.tape.forward(x)

    def descend(self, output_signal: Tensor, residual: Tensor) -> None:
        """Take one step after `forward`: output_signal = ∂Q/∂output [*stack, batch, fan_out] picks what Q is,
        residual δ [*stack, batch] is what it is off by."""
        self.tape.backward(output_signal)
        if self.exact_damping is not None:
            residual = gauss_newton_weights(self.tape, residual, self.exact_damping)
        self.tape.gradient(residual / self.tape.batch, out=self.step_layers)
        if self.curvature:
            self.curvature.refresh(self.tape)
            self.curvature.precondition(self.step_layers)
        self.optimiser.step(self.flat_step)

    def diagnostics(self) -> dict[str, Tensor]:
        return self.curvature.diagnostics() if self.curvature else {}

    def tensors(self) -> dict[str, Tensor]:
        parts = {"optimiser": self.optimiser, "curvature": self.curvature}
        state = {"network": self.network.flat}
        for name, part in parts.items():
            if part is not None:
                state |= {f"{name}.{key}": value for key, value in part.tensors().items()}
        return state
