"""Networks with their tape, gradient and optimiser; target networks, their Polyak-averaged copies."""

import torch
from torch import Tensor

from offline_gntd.nn.mlp import MLP, Tape
from offline_gntd.nn.optimisers import Optimiser, Stepper


class Learner:
    """Networks with their tape, gradient and optimiser: forward, backward, step."""

    def __init__(self, network: MLP, batch: int, learning_rate: float, optimiser: Optimiser = Optimiser()):
        self.network = network
        self.tape = Tape(network, batch)
        self.gradient = torch.zeros_like(network.flat)  # [*stack, parameters]
        self.optimiser = Stepper(network.flat, learning_rate, optimiser)

    def forward(self, *parts: Tensor) -> Tensor:
        """Outputs [*stack, batch, fan_out] for the concatenated parts; the tape keeps the pass."""
        return self.tape.forward(*parts)

    def backward(self, grad_output: Tensor) -> None:
        """Compute the gradient of a loss from ∂loss/∂output [*stack, batch, fan_out]."""
        self.tape.backward(grad_output)
        self.tape.parameter_grad(out=self.gradient)

    def step(self) -> None:
        self.optimiser.step(self.gradient)

    def state_dict(self) -> dict[str, Tensor]:
        return {"network": self.network.flat} | state_of(optimiser=self.optimiser)


class Target(Tape):
    """A Polyak-averaged copy of networks, evaluated by `forward` as a tape is."""

    def __init__(self, network: MLP, batch: int):
        super().__init__(network.copy(), batch)
        self.online = network

    def polyak_update(self, tau: float) -> None:
        """θ_target ← (1 − τ) θ_target + τ θ"""
        self.network.flat.lerp_(self.online.flat, tau)

    def state_dict(self) -> dict[str, Tensor]:
        return {"network": self.network.flat}


def state_of(**parts) -> dict[str, Tensor]:
    """The state of all parts, under `part.name`."""
    return {f"{key}.{name}": x for key, part in parts.items() for name, x in part.state_dict().items()}
