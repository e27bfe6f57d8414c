"""Stacks of multilayer perceptrons and the tape (p̄_l, q_l) of Algorithm 2.

Layer l of a stack is one tensor [*stack, fan_in + 1, fan_out] with the bias as its last row: the paper's
Mat(θ_l)ᵀ, which acts on p̄ = (p, 1). `stack` is (seeds,), or (seeds, 2) for twin critics. Nothing here
reduces over the stack, so its networks never influence each other. All parameters are views of one buffer
`flat` [*stack, parameters], so an optimiser step or a target update is one call.
"""

import functools
import math
import sys
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from offline_gntd.nn.linalg import matmul

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}  # dtype of a tape's matrix products


class MLP:
    """ReLU networks with layer sizes `dims`, linear at the output. The parameters are float32."""

    def __init__(
        self,
        dims: Sequence[int],
        stack: tuple[int, ...],
        device: torch.device | str = "cpu",
        precision: str = "float32",
    ):
        self.dims, self.stack, self.precision = tuple(dims), tuple(stack), precision
        self.shapes = [(fan_in + 1, fan_out) for fan_in, fan_out in pairwise(dims)]
        self.flat = torch.zeros(*stack, sum(map(math.prod, self.shapes)), device=device)
        self.layers = self.views(self.flat)

    def views(self, flat: Tensor) -> list[Tensor]:
        """A buffer shaped like `self.flat` as one tensor [*stack, fan_in + 1, fan_out] per layer."""
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
        network = MLP(self.dims, self.stack, self.flat.device, self.precision)
        network.flat.copy_(self.flat)
        return network

    def member(self, i: int) -> "MLP":
        """Network i of every seed of a stack (seeds, networks), sharing its parameters."""
        network = MLP(self.dims, self.stack[:-1], "meta", self.precision)
        network.flat = self.flat[..., i, :]
        network.layers = network.views(network.flat)
        return network

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs [*stack, batch, fan_out] for x [*stack, batch, fan_in]: float32 and without a tape."""
        for layer in self.layers[:-1]:
            x = (x @ layer[..., :-1, :] + layer[..., -1:, :]).relu_()
        return x @ self.layers[-1][..., :-1, :] + self.layers[-1][..., -1:, :]


class Tape:
    """One forward and one backward pass of a stack over a batch, in buffers allocated once (Algorithm 2).

    inputs[l]        p̄ of layer l's input   [networks, batch, fan_in + 1]
    grad_outputs[l]  q_l = ∂output/∂h_l      [networks, batch, fan_out], h_l the layer's output before ReLU

    `networks` is the product of the stack's dimensions. The next pass overwrites what a pass returned. With
    precision bfloat16 the buffers and a copy of the weights are bfloat16; arguments and results (outputs,
    gradients) are float32.
    """

    def __init__(self, network: MLP, batch: int):
        self.network, self.batch = network, batch
        self.networks = math.prod(network.stack)
        dtype, device = PRECISIONS[network.precision], network.flat.device
        if dtype == torch.bfloat16 and device.type == "cpu":
            warn_if_bfloat16_is_slow()
        self.parameters = network.flat.to(dtype)  # the network's own in float32, a copy in bfloat16
        self.weights = [layer.flatten(0, -3) for layer in network.views(self.parameters)]
        empty = functools.partial(torch.empty, self.networks, batch, device=device)
        self.inputs = [empty(w.shape[-2], dtype=dtype).fill_(1) for w in self.weights]
        self.grad_outputs = [empty(w.shape[-1], dtype=dtype) for w in self.weights]
        self.output = empty(network.dims[-1])

    def _stacked(self, x: Tensor) -> Tensor:
        """[networks, …] as [*stack, …]."""
        return x.view(*self.network.stack, *x.shape[1:])

    def forward(self, *parts: Tensor) -> Tensor:
        """Outputs [*stack, batch, fan_out] for the concatenated parts [*stack, batch, n], broadcast to it."""
        if self.parameters is not self.network.flat:
            self.parameters.copy_(self.network.flat)
        x, start = self._stacked(self.inputs[0]), 0
        for part in parts:
            x[..., start : start + part.shape[-1]] = part
            start += part.shape[-1]
        for l, weight in enumerate(self.weights[:-1]):
            hidden = self.inputs[l + 1][..., :-1]  # the last column stays 1
            matmul(self.inputs[l], weight, out=hidden)  # h = Mat(θ) p̄
            hidden.clamp_min_(0)  # p = ReLU(h)
        matmul(self.inputs[-1], self.weights[-1], out=self.output)
        return self._stacked(self.output)

    def backward(self, grad_output: Tensor | float) -> None:
        """Compute every layer's q_l from ∂/∂output [*stack, batch, fan_out].

        Samples are independent, so row i of q_l is the derivative of sample i alone.
        """
        self._stacked(self.grad_outputs[-1])[...] = grad_output
        for l in range(len(self.weights) - 2, -1, -1):
            q, hidden = self.grad_outputs[l], self.inputs[l + 1][..., :-1]
            weight = self.weights[l + 1][:, :-1]
            if weight.dtype == torch.bfloat16:  # a copy without gaps halves the time of oneDNN's product
                weight = weight.clone(memory_format=torch.contiguous_format)
            matmul(self.grad_outputs[l + 1], weight.mT, out=q)  # Dp = Mat(θ)ᵀ q
            torch.ops.aten.threshold_backward.grad_input(q, hidden, 0, grad_input=q)  # q = Dp ⊙ ReLU′(h)

    def parameter_grad(self, out: Tensor, sample_weight: Tensor | None = None) -> None:
        """out ← Σ_i ∂output_i/∂θ, each sample multiplied by sample_weight [*stack, batch] if given.

        For a layer it is p̄ᵀ(sample_weight ⊙ q). The product is written to q: a pass can be weighted once.
        """
        for p, q, grad in zip(self.inputs, self.grad_outputs, self.network.views(out), strict=True):
            if sample_weight is not None:
                q *= sample_weight.reshape(-1, self.batch, 1).to(q.dtype)
            matmul(p.mT, q, out=grad.flatten(0, -3))

    def input_grad(self, start: int = 0) -> Tensor:
        """∂/∂x of the last backward pass, for the inputs from column `start` on: [*stack, batch, n]."""
        return self._stacked((self.weights[0][:, start:-1] @ self.grad_outputs[0].mT).mT.float())


@functools.cache
def warn_if_bfloat16_is_slow() -> None:
    """Print one line per process if this CPU has no instructions for bfloat16 products."""
    capabilities = torch.cpu.get_capabilities()
    if not (capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")):
        words = "this CPU has no AVX512-BF16 or AMX: precision=bfloat16 is slower here than float32"
        print(f"offline-gntd: {words}", file=sys.stderr)
