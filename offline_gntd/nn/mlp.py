"""Stacks of multilayer perceptrons and the tape (p̄_l, q_l) of Algorithm 2.

Layer l of a stack is one tensor [*stack, fan_in + 1, fan_out] with the bias as its last row: the paper's
Mat(θ_l) acting on p̄ = (p, 1). `stack` is (seeds,) or (seeds, 2) for twin critics. Nothing here reduces over
the stack, so its networks never influence each other. All parameters are views of one buffer
[*stack, parameters], so an optimiser step or a target update is one call.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from offline_gntd.nn.linalg import matmul


class MLP:
    """ReLU networks with layer sizes `dims`, linear at the output."""

    def __init__(self, dims: Sequence[int], stack: tuple[int, ...], device: torch.device | str = "cpu"):
        self.dims, self.stack = tuple(dims), tuple(stack)
        self.shapes = [(fan_in + 1, fan_out) for fan_in, fan_out in pairwise(dims)]
        self.flat = torch.zeros(*stack, sum(map(math.prod, self.shapes)), device=device)
        self.layers = self.views(self.flat)

    def views(self, flat: Tensor) -> list[Tensor]:
        """A buffer like `flat` as one tensor [*stack, fan_in + 1, fan_out] per layer."""
        pieces = flat.split([*map(math.prod, self.shapes)], dim=-1)
        return [piece.unflatten(-1, shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def initialise(self, generators: Sequence[torch.Generator]) -> "MLP":
        """Draw each seed's weights from its generator, uniform in ±1/√fan_in as torch.nn.Linear does."""
        for seed, generator in enumerate(generators):
            for layer in self.layers:
                bound = 1 / math.sqrt(layer.shape[-2] - 1)
                layer[seed].uniform_(-bound, bound, generator=generator)
        return self

    def copy(self) -> "MLP":
        twin = MLP(self.dims, self.stack, self.flat.device)
        twin.flat.copy_(self.flat)
        return twin

    def member(self, i: int) -> "MLP":
        """Network i of every seed of a stack (seeds, networks), sharing its parameters."""
        view = MLP.__new__(MLP)
        view.dims, view.stack, view.shapes = self.dims, self.stack[:-1], self.shapes
        view.flat = self.flat[..., i, :]
        view.layers = view.views(view.flat)
        return view

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs [*stack, batch, fan_out] for x [*stack, batch, fan_in], without a tape."""
        for layer in self.layers[:-1]:
            x = (x @ layer[..., :-1, :] + layer[..., -1:, :]).relu_()
        return x @ self.layers[-1][..., :-1, :] + self.layers[-1][..., -1:, :]


class Tape:
    """One forward and one backward pass of a stack over a batch, in buffers allocated once (Algorithm 2).

    inputs[l]        p̄ of layer l's input   [networks, batch, fan_in + 1]
    grad_outputs[l]  q_l = ∂output/∂h_l      [networks, batch, fan_out]

    `networks` is the product of the stack's dimensions. The next pass overwrites what a pass returned.
    """

    def __init__(self, network: MLP, batch: int):
        self.network, self.batch = network, batch
        self.networks = math.prod(network.stack)
        self.weights = [layer.flatten(0, -3) for layer in network.layers]
        new = network.flat.new_empty
        self.inputs = [new(self.networks, batch, w.shape[-2]).fill_(1) for w in self.weights]
        self.grad_outputs = [new(self.networks, batch, w.shape[-1]) for w in self.weights]
        self.output = new(self.networks, batch, network.dims[-1])

    def _stacked(self, x: Tensor) -> Tensor:
        return x.view(*self.network.stack, *x.shape[1:])

    def forward(self, *parts: Tensor) -> Tensor:
        """Outputs [*stack, batch, fan_out] for the concatenated parts [*stack, batch, n], broadcast to it."""
        x, start = self._stacked(self.inputs[0]), 0
        for part in parts:
            x[..., start : start + part.shape[-1]] = part
            start += part.shape[-1]
        for l, weight in enumerate(self.weights[:-1]):
            hidden = self.inputs[l + 1][..., :-1]  # the last column stays 1
            matmul(self.inputs[l], weight, out=hidden)
            hidden.clamp_min_(0)  # ReLU
        matmul(self.inputs[-1], self.weights[-1], out=self.output)
        return self._stacked(self.output)

    def backward(self, grad_output: Tensor | float) -> None:
        """Compute every layer's q_l from ∂/∂output [*stack, batch, fan_out].

        Samples are independent, so row i of q_l is the derivative of sample i alone.
        """
        self._stacked(self.grad_outputs[-1])[...] = grad_output
        for l in range(len(self.weights) - 2, -1, -1):
            q, hidden = self.grad_outputs[l], self.inputs[l + 1][..., :-1]
            matmul(self.grad_outputs[l + 1], self.weights[l + 1][:, :-1].mT, out=q)
            torch.ops.aten.threshold_backward.grad_input(q, hidden, 0, grad_input=q)  # q where hidden > 0

    def weight_grad(self, out: Tensor, weight: Tensor | None = None) -> None:
        """out ← Σ_i weight_i ∂output_i/∂θ: p̄ᵀ(weight ⊙ q) of every layer, for weight [*stack, batch].

        Without weight it is Σ_i ∂output_i/∂θ. With it, q_l is multiplied in place.
        """
        for p, q, grad in zip(self.inputs, self.grad_outputs, self.network.views(out), strict=True):
            if weight is not None:
                q *= weight.reshape(-1, self.batch, 1)
            matmul(p.mT, q, out=grad.flatten(0, -3))

    def input_grad(self, start: int = 0) -> Tensor:
        """∂/∂x of the last backward pass, for the inputs from column `start` on: [*stack, batch, n]."""
        return self._stacked((self.weights[0][:, start:-1] @ self.grad_outputs[0].mT).mT)
