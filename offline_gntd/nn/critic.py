"""A value network and the one step that every algorithm takes with it: semi-gradient or Gauss-Newton."""

import time

import torch
from torch import Tensor

from offline_gntd.nn.exact import gauss_newton_weights
from offline_gntd.nn.kfac import KFAC, KroneckerFactors
from offline_gntd.nn.learner import state_of
from offline_gntd.nn.mlp import MLP, Tape
from offline_gntd.nn.optimisers import Optimiser, Stepper, clip_grad_norm

RATIO_EVERY = 20  # updates between two measurements of ‖d‖ / ‖gradient‖


class Critic:
    """Q-networks with their tape, curvature and optimiser.

    The step direction d is the semi-gradient E[δ ∇Q] (TD); with `kfac` it is preconditioned by the Kronecker
    factors (Algorithm 3); with `exact_damping` ω it is the exact (H + ωI)⁻¹ E[δ ∇Q] (Algorithm 1).
    """

    def __init__(
        self,
        network: MLP,
        batch: int,
        learning_rate: float,
        optimiser: Optimiser = Optimiser(),
        kfac: KFAC | None = None,
        exact_damping: float | None = None,
    ):
        self.network, self.tape = network, Tape(network, batch)
        self.optimiser = Stepper(network.flat, learning_rate, optimiser)
        self.gradient = torch.zeros_like(network.flat)
        self.factors = KroneckerFactors(kfac, network.layers) if kfac else None
        self.exact_damping = exact_damping
        self.step_ratio = network.flat.new_zeros(network.stack[0])  # ‖d‖ / ‖gradient‖ per seed
        self.curvature_seconds = 0.0  # spent on curvature in this process

    def forward(self, *parts: Tensor) -> Tensor:
        """Outputs [*stack, batch, fan_out] for the concatenated parts, kept for `step`."""
        return self.tape.forward(*parts)

    def step(
        self, weight: Tensor, grad_output: Tensor | float = 1.0, extra_gradient: Tensor | None = None
    ) -> None:
        """Take one step after `forward`, down Σ_i weight_i ∇Q_i (+ extra_gradient).

        weight          [*stack, batch]: ∂loss/∂Q of every sample, δ/batch for ½ E[δ²]
        grad_output     ∂Q/∂output [*stack, batch, fan_out]; 1 where Q is the only output
        extra_gradient  flat gradient of other terms of the loss, preconditioned with the rest
        """
        self.tape.backward(grad_output)
        if self.exact_damping is not None:
            weight = gauss_newton_weights(self.tape, weight, self.exact_damping)
        began = time.perf_counter()
        if self.factors:
            self.factors.update(self.tape.inputs, self.tape.grad_outputs)
        self.curvature_seconds += time.perf_counter() - began
        self.tape.weight_grad(self.gradient, weight)
        if extra_gradient is not None:
            self.gradient += extra_gradient
        if self.optimiser.config.max_grad_norm is not None:
            clip_grad_norm(self.gradient, self.optimiser.config.max_grad_norm)
        began = time.perf_counter()
        if self.factors:
            self._precondition(self.factors)
        self.curvature_seconds += time.perf_counter() - began
        self.optimiser.step(self.gradient)

    def _precondition(self, factors: KroneckerFactors) -> None:
        layers = self.network.views(self.gradient)
        if int(factors.updates) % RATIO_EVERY != 1:
            factors.precondition(layers)
            return
        before = self.gradient.flatten(1).norm(dim=1)
        factors.precondition(layers)
        torch.div(self.gradient.flatten(1).norm(dim=1), before, out=self.step_ratio)

    def diagnostics(self) -> dict[str, Tensor]:
        """Per seed: what K-FAC reports of itself; nothing without it."""
        if not self.factors:
            return {}
        seconds = torch.full_like(self.step_ratio, self.curvature_seconds)
        return self.factors.diagnostics() | {"kfac_step_ratio": self.step_ratio, "kfac_seconds": seconds}

    def state_dict(self) -> dict[str, Tensor]:
        state = {"network": self.network.flat} | state_of(optimiser=self.optimiser)
        if self.factors:
            state |= state_of(factors=self.factors) | {"step_ratio": self.step_ratio}
        return state
