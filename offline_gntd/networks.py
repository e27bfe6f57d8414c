"""Stacks of multilayer perceptrons as views of one flat buffer, and the tape (p̄_l, q_l) of Algorithm 2.

Layer l of a stack is one tensor [*stack, fan_in + 1, fan_out] whose last row is the bias: the paper's
Mat(θ_l) acting on p̄ = (p, 1). `stack` is (seeds,) or (seeds, 2) for twin critics. Nothing here reduces
over the stack, so the networks of a stack never see one another. The buffer is [*stack, parameters]:
`flat[i]` is all there is to know of seed i.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor


class MLP:
    """ReLU networks of equal widths, linear at the output."""

    def __init__(self, widths: Sequence[int], stack: tuple[int, ...], device: str = "cpu"):
        self.widths, self.stack = tuple(widths), tuple(stack)
        self.shapes = [(fan_in + 1, fan_out) for fan_in, fan_out in pairwise(widths)]
        self.flat = torch.zeros(*stack, sum(map(math.prod, self.shapes)), device=device)
        self.layers = self.views(self.flat)

    def views(self, flat: Tensor) -> list[Tensor]:
        """`flat` [*stack, parameters] seen layer by layer."""
        pieces = flat.split([math.prod(shape) for shape in self.shapes], dim=-1)
        return [piece.unflatten(-1, shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def initialise(self, generators: Sequence[torch.Generator]) -> "MLP":
        """Draw each seed's weights from its own generator, uniform within ±1/√fan_in as torch.nn.Linear."""
        for seed, generator in enumerate(generators):
            for layer in self.layers:
                bound = 1 / math.sqrt(layer.shape[-2] - 1)
                layer[seed].uniform_(-bound, bound, generator=generator)
        return self

    def copy(self) -> "MLP":
        twin = MLP(self.widths, self.stack, self.flat.device)
        twin.flat.copy_(self.flat)
        return twin

    def __call__(self, x: Tensor) -> Tensor:
        """The outputs for x [*stack, batch, fan_in], with nothing kept for a backward pass."""
        for layer in self.layers[:-1]:
            x = (x @ layer[..., :-1, :] + layer[..., -1:, :]).relu_()
        return x @ self.layers[-1][..., :-1, :] + self.layers[-1][..., -1:, :]


class Tape:
    """One forward and one backward pass of a stack over a batch, in buffers made once (Algorithm 2).

    inputs[l]   p̄ of layer l's input   [networks, batch, fan_in + 1]
    signals[l]  q_l = ∂output/∂h_l     [networks, batch, fan_out]
    """

    def __init__(self, network: MLP, batch: int):
        self.network, self.batch = network, batch
        self.weights = [layer.flatten(0, -3) for layer in network.layers]
        new = network.flat.new_empty
        networks = math.prod(network.stack)
        self.inputs = [new(networks, batch, w.shape[-2]).fill_(1) for w in self.weights]
        self.hidden = [p[..., :-1] for p in self.inputs]  # without the constant 1
        self.output = new(networks, batch, network.widths[-1])
        self.signals = [new(networks, batch, w.shape[-1]) for w in self.weights]
        self.scaled = [torch.empty_like(q) for q in self.signals]
        self.shape = (*network.stack, batch)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs [*stack, batch, fan_out] for x [*stack or broadcastable, batch, fan_in]."""
        self.hidden[0].view(*self.shape, -1).copy_(x)
        for p, w, hidden in zip(self.inputs, self.weights, self.hidden[1:], strict=False):
            torch.bmm(p, w, out=hidden).relu_()
        torch.bmm(self.inputs[-1], self.weights[-1], out=self.output)
        return self.output.view(*self.shape, -1)

    def backward(self, output_signal: Tensor) -> None:
        """Carry ∂/∂output [*stack, batch, fan_out] back to every layer's q_l.

        Samples are independent, so each row of q_l is that sample's own derivative.
        """
        self.signals[-1].view(*self.shape, -1).copy_(output_signal)
        for l in range(len(self.weights) - 1, 0, -1):
            below = self.signals[l - 1]
            torch.bmm(self.signals[l], self.weights[l][:, :-1].mT, out=below)
            # ReLU's derivative: passes where the unit's output is positive
            torch.ops.aten.threshold_backward.grad_input(below, self.hidden[l], 0, grad_input=below)

    def gradient(self, weight: Tensor, out: Sequence[Tensor]) -> None:
        """Σ_i weight_i ∂output_i/∂θ_l of every layer, i.e. p̄ᵀ(weight ⊙ q), for weight [*stack, batch]."""
        weight = weight.reshape(-1, self.batch, 1)
        for p, q, scaled, gradient in zip(self.inputs, self.signals, self.scaled, out, strict=True):
            torch.mul(q, weight, out=scaled)
            torch.bmm(p.mT, scaled, out=gradient.flatten(0, -3))
