"""Stacks of multilayer perceptrons as views of one flat buffer, and the tape (p̄_l, q_l) of Algorithm 2.

Layer l of a stack is one tensor [*stack, fan_in + 1, fan_out] whose last row is the bias: the paper's
Mat(θ_l) acting on p̄ = (p, 1). `stack` is (seeds,) or (seeds, 2) for twin critics. Nothing here reduces
over the stack, so the networks of a stack never see one another. The buffer is [*stack, parameters]:
`flat[i]` is all there is to know of seed i.
"""

import math
from collections.abc import Sequence
from functools import cached_property
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

    def member(self, i: int) -> "MLP":
        """Network i of every seed of a stack (seeds, networks): a view, so it moves when they do."""
        return _Member(self, i)

    def __call__(self, x: Tensor) -> Tensor:
        """The outputs for x [*stack, batch, fan_in], with nothing kept for a backward pass."""
        for layer in self.layers[:-1]:
            x = (x @ layer[..., :-1, :] + layer[..., -1:, :]).relu_()
        return x @ self.layers[-1][..., :-1, :] + self.layers[-1][..., -1:, :]


class _Member(MLP):
    """The view `member` gives: stack (seeds,), the parameters those of the whole."""

    def __init__(self, whole: MLP, i: int):
        self.widths, self.stack, self.shapes = whole.widths, whole.stack[:-1], whole.shapes
        self.flat = whole.flat[..., i, :]
        self.layers = self.views(self.flat)


class Tape:
    """One forward and one backward pass of a stack over a batch, in buffers made once (Algorithm 2).

    inputs[l]   p̄ of layer l's input   [networks, batch, fan_in + 1]
    signals[l]  q_l = ∂output/∂h_l     [networks, batch, fan_out]

    What `forward` returns is a buffer too: the next pass overwrites it.
    """

    def __init__(self, network: MLP, batch: int):
        self.network, self.batch = network, batch
        self.weights = [layer.flatten(0, -3) for layer in network.layers]
        self.networks = math.prod(network.stack)
        self.inputs = [self._buffer(w.shape[-2]).fill_(1) for w in self.weights]
        self.hidden = [p[..., :-1] for p in self.inputs]  # without the constant 1
        self.output = self._buffer(network.widths[-1])
        self.shape = (*network.stack, batch)

    def _buffer(self, width: int) -> Tensor:
        return self.network.flat.new_empty(self.networks, self.batch, width)

    @cached_property
    def signals(self) -> list[Tensor]:  # a tape that only goes forward never makes them
        return [self._buffer(w.shape[-1]) for w in self.weights]

    @cached_property
    def scaled(self) -> list[Tensor]:
        return [torch.empty_like(q) for q in self.signals]

    def forward(self, *parts: Tensor) -> Tensor:
        """The outputs [*stack, batch, fan_out] for parts [*stack or broadcastable, batch, n] side by side."""
        x, start = self.hidden[0].view(*self.shape, -1), 0
        for part in parts:
            x[..., start : start + part.shape[-1]].copy_(part)
            start += part.shape[-1]
        for p, w, hidden in zip(self.inputs, self.weights, self.hidden[1:], strict=False):
            product(p, w, out=hidden).relu_()
        return product(self.inputs[-1], self.weights[-1], out=self.output).view(*self.shape, -1)

    def backward(self, output_signal: Tensor | float) -> None:
        """Carry ∂/∂output [*stack, batch, fan_out] back to every layer's q_l.

        Samples are independent, so each row of q_l is that sample's own derivative.
        """
        top = self.signals[-1].view(*self.shape, -1)
        top.copy_(output_signal) if isinstance(output_signal, Tensor) else top.fill_(output_signal)
        for l in range(len(self.weights) - 1, 0, -1):
            below = self.signals[l - 1]
            product(self.signals[l], self.weights[l][:, :-1].mT, out=below)
            # ReLU's derivative: passes where the unit's output is positive
            torch.ops.aten.threshold_backward.grad_input(below, self.hidden[l], 0, grad_input=below)

    def input_signal(self, start: int = 0) -> Tensor:
        """∂/∂x of the last backward pass, for the inputs from column `start` on: [*stack, batch, n]."""
        return (self.signals[0] @ self.weights[0][:, start:-1].mT).view(*self.shape, -1)

    def gradient(self, weight: Tensor | None, out: Sequence[Tensor]) -> None:
        """Σ_i weight_i ∂output_i/∂θ_l of every layer, i.e. p̄ᵀ(weight ⊙ q), for weight [*stack, batch].

        None: the weights were in the signal carried back already.
        """
        signals = self.signals
        if weight is not None:
            weight = weight.reshape(-1, self.batch, 1)
            signals = [torch.mul(q, weight, out=s) for q, s in zip(signals, self.scaled, strict=True)]
        for p, q, gradient in zip(self.inputs, signals, out, strict=True):
            product(p.mT, q, out=gradient.flatten(0, -3))


NARROW = 16  # columns; below that the product's transpose is several times faster


def product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """torch.bmm, but for the shapes that are slow there on a CPU: outer products, one column, few columns."""
    if a.shape[-1] == 1:
        return torch.mul(a, b, out=out)
    if b.shape[-1] == 1 and not a.is_cuda:
        for matrix, vector, result in zip(a, b, out, strict=True):
            torch.mv(matrix, vector[:, 0], out=result[:, 0])
        return out
    if b.shape[-1] < NARROW and not a.is_cuda:
        return out.copy_(torch.bmm(b.mT.contiguous(), a.mT).mT)
    return torch.bmm(a, b, out=out)
