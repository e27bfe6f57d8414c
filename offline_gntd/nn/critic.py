"""A value network and the one step by which every algorithm moves it: semi-gradient or Gauss-Newton."""

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from offline_gntd.nn.exact import gauss_newton_weights
from offline_gntd.nn.kfac import KFAC, KroneckerFactors
from offline_gntd.nn.learner import Learner, state_of
from offline_gntd.nn.mlp import MLP

LOOK_EVERY = 20  # updates from one look at the length of the step to the next


class Critic(Learner):
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
        super().__init__(network, batch, learning_rate, optimiser_name)
        self.curvature = KroneckerFactors(kfac, self.gradient) if kfac else None
        self.exact_damping = exact_damping
        self.step_ratio = network.flat.new_zeros(network.stack[0])  # ‖d‖ / ‖gradient‖, when last looked at
        self.curvature_seconds = 0.0  # of this process, spent on renewing and applying the curvature

    def descend(
        self, weight: Tensor, output_signal: Tensor | None = None, more: Tensor | None = None
    ) -> None:
        """Take one step after `forward`, along Σ_i weight_i ∇Q_i for weight [*stack, batch] (δ / batch, say).

        output_signal = ∂Q/∂output [*stack, batch, fan_out] picks what Q is; without it, the one output.
        `more` is the flat gradient of what else the loss holds. It is preconditioned with the rest, by the
        curvature of the batch gone `forward`.
        """
        curvature, remaining = self.curvature, None
        if self.exact_damping is None and not (curvature and curvature.due):
            signal = weight[..., None]  # with the weights in it: nobody asks for q itself
            self.tape.backward(signal if output_signal is None else signal * output_signal)
        else:
            self.tape.backward(1.0 if output_signal is None else output_signal)
            remaining = weight
        if self.exact_damping is not None:
            remaining = gauss_newton_weights(self.tape, weight, self.exact_damping)
        if curvature:
            self._timed(curvature.refresh)
        self.gradient(remaining)
        if more is not None:
            self.flat_step += more
        if curvature:
            self._timed(partial(self._precondition, curvature))
        self.step()

    def _timed(self, call: Callable[[], None]) -> None:
        began = time.perf_counter()
        call()
        self.curvature_seconds += time.perf_counter() - began

    def _precondition(self, curvature: KroneckerFactors) -> None:
        looks = int(curvature.updates) % LOOK_EVERY == 1
        gradient_norm = self._step_norm() if looks else None
        curvature.precondition()
        if gradient_norm is not None:
            torch.div(self._step_norm(), gradient_norm, out=self.step_ratio)

    def _step_norm(self) -> Tensor:
        return self.flat_step.flatten(1).norm(dim=1)

    def diagnostics(self) -> dict[str, Tensor]:
        if not self.curvature:
            return {}
        seconds = torch.full_like(self.step_ratio, self.curvature_seconds)
        return self.curvature.diagnostics() | {"kfac_step_ratio": self.step_ratio, "kfac_seconds": seconds}

    def state_dict(self) -> dict[str, Tensor]:
        state = super().state_dict()
        if self.curvature:
            state |= state_of(curvature=self.curvature) | {"step_ratio": self.step_ratio}
        return state
