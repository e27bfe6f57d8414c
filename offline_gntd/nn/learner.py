"""A stack of networks and what it takes to train it: tape, gradient buffer, optimiser; and its slow copy."""

import torch
from torch import Tensor

from offline_gntd.nn.mlp import MLP, Gradient, Memory, Tape
from offline_gntd.nn.optimisers import optimiser


class Learner:
    """Descends any loss that is known by its derivative with respect to the networks' outputs."""

    def __init__(
        self,
        network: MLP,
        batch: int,
        learning_rate: float,
        optimiser_name: str = "adam",
        memory: Memory | None = None,
    ):
        self.network = network
        self.tape = Tape(network, batch, memory)
        self.optimiser = optimiser(optimiser_name, network.flat, learning_rate)
        self.flat_step = torch.zeros_like(network.flat)
        self.gradient = Gradient(self.tape, self.flat_step)

    def forward(self, *parts: Tensor) -> Tensor:
        """The outputs [*stack, batch, fan_out] for the inputs' parts, kept for a backward pass."""
        return self.tape.forward(*parts)

    def backward(self, signal: Tensor) -> None:
        """From ∂loss/∂output [*stack, batch, fan_out], with the batch's mean in it, to the gradient."""
        self.tape.backward(signal)
        self.gradient()

    def step(self) -> None:
        self.optimiser.step(self.flat_step)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything a step changes."""
        return {"network": self.network.flat} | state_of(optimiser=self.optimiser)


class Target(Tape):
    """A Polyak-averaged copy of networks: it goes forward and follows."""

    def __init__(self, network: MLP, batch: int, memory: Memory | None = None):
        super().__init__(network.copy(), batch, memory)
        self.followed = network

    def follow(self, rate: float) -> None:
        self.network.flat.lerp_(self.followed.flat, rate)

    def state_dict(self) -> dict[str, Tensor]:
        return {"network": self.network.flat}


def state_of(**parts) -> dict[str, Tensor]:
    """The tensors of all parts, under `part.name`."""
    return {
        f"{key}.{name}": tensor for key, part in parts.items() for name, tensor in part.state_dict().items()
    }
