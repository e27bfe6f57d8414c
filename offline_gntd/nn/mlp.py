"""Stacks of multilayer perceptrons as views of one flat buffer, and the tape (p̄_l, q_l) of Algorithm 2.

Layer l of a stack is one tensor [*stack, fan_in + 1, fan_out] whose last row is the bias: the paper's
Mat(θ_l) acting on p̄ = (p, 1). `stack` is (seeds,) or (seeds, 2) for twin critics. Nothing here reduces
over the stack, so the networks of a stack never see one another. The buffer is [*stack, parameters], each
network's beginning on a cache line: `flat[i]` is all there is to know of seed i.
"""

import copy
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from offline_gntd.nn.linalg import aligned, product, whole_lines


class MLP:
    """ReLU networks of equal widths, linear at the output."""

    def __init__(self, widths: Sequence[int], stack: tuple[int, ...], device: torch.device | str = "cpu"):
        self.dims, self.stack = tuple(widths), tuple(stack)
        self.shapes = [(fan_in + 1, fan_out) for fan_in, fan_out in pairwise(widths)]
        size = sum(map(math.prod, self.shapes))
        self.flat = torch.zeros(*stack, whole_lines(size), device=device)  # with a few zeros to end on a line
        self.parameters = self.flat[..., :size]
        self.layers = self.views(self.flat)

    def views(self, flat: Tensor) -> list[Tensor]:
        """A buffer like `flat` seen layer by layer."""
        pieces = flat[..., : self.parameters.shape[-1]].split([*map(math.prod, self.shapes)], dim=-1)
        return [piece.unflatten(-1, shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def initialise(self, generators: Sequence[torch.Generator]) -> "MLP":
        """Draw each seed's weights from its own generator, uniform within ±1/√fan_in as torch.nn.Linear."""
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
        self.dims, self.stack, self.shapes = whole.dims, whole.stack[:-1], whole.shapes
        self.flat, self.parameters = whole.flat[..., i, :], whole.parameters[..., i, :]
        self.layers = self.views(self.flat)


class Memory:
    """Rows for what a pass leaves behind. Several tapes may take turns in it, since what was used last is
    still in the cache; a tape's pass is lost when another in the same memory begins its own."""

    def __init__(self, like: Tensor, rows: int):
        self._like, self._rows, self._first = like, rows, 0
        self._made: dict[tuple[str, int, int], Tensor] = {}

    def halves(self) -> tuple["Memory", "Memory"]:
        """Its two halves, which do not disturb each other."""
        lower, upper = copy.copy(self), copy.copy(self)
        upper._first = self._first + self._rows // 2
        return lower, upper

    def take(self, name: str, layer: int, networks: int, batch: int, width: int) -> Tensor:
        """A layer's "inputs" or "signals" [networks, batch, width], from the first row on."""
        key = name, layer, width
        if key not in self._made:
            make = aligned if name == "inputs" else Tensor.new_empty
            self._made[key] = make(self._like, self._rows, width)
        rows = self._made[key][self._first : self._first + networks * batch]
        return rows.unflatten(0, (networks, batch))


class Tape:
    """One forward and one backward pass of a stack over a batch, in buffers made once (Algorithm 2): its own
    or, with `memory`, those it shares.

    inputs[l]   p̄ of layer l's input   [networks, batch, fan_in + 1]
    signals[l]  q_l = ∂output/∂h_l     [networks, batch, fan_out]

    What `forward` returns is a buffer too: the next pass overwrites it.
    """

    def __init__(self, network: MLP, batch: int, memory: Memory | None = None):
        self.network, self.batch = network, batch
        self.weights = [layer.flatten(0, -3) for layer in network.layers]
        self.networks = math.prod(network.stack)
        self.memory = memory or Memory(network.flat, self.networks * batch)
        self.inputs = [self._take("inputs", l, w.shape[-2]).fill_(1) for l, w in enumerate(self.weights)]
        self.hidden = [p[..., :-1] for p in self.inputs]  # without the constant 1
        self.output = network.flat.new_empty(self.networks, batch, network.dims[-1])
        self._x, self._y = self._stacked(self.hidden[0]), self._stacked(self.output)
        self._splits: dict[tuple[int, ...], Sequence[Tensor]] = {}  # of _x, by the widths of its parts
        self._slopes: dict[int, tuple[Callable[[], Any], Tensor]] = {}  # to the inputs from a column on
        self._layers = [
            product(p, w, out=h)
            for p, w, h in zip(self.inputs, self.weights, [*self.hidden[1:], self.output], strict=True)
        ]

    def _take(self, name: str, layer: int, width: int) -> Tensor:
        return self.memory.take(name, layer, self.networks, self.batch, width)

    def _stacked(self, x: Tensor) -> Tensor:
        """[networks, …] seen as [*stack, …]."""
        return x.view(*self.network.stack, *x.shape[1:])

    @cached_property
    def signals(self) -> list[Tensor]:  # a tape that only goes forward never makes them
        return [self._take("signals", l, w.shape[-1]) for l, w in enumerate(self.weights)]

    def after_signals(self, layer: int, rows: int) -> Tensor:
        """Rows as wide as a layer's signals, in their place where that has room: for what comes after the
        gradient, since to write to them is to lose the signals."""
        signals = self.signals[layer].flatten(0, 1)
        return signals[:rows] if rows <= len(signals) else signals.new_empty(rows, signals.shape[-1])

    @cached_property
    def _top(self) -> Tensor:
        return self._stacked(self.signals[-1])

    @cached_property
    def _layers_back(self) -> list[Callable[[], Any]]:
        """From each layer's signal to the one below, the first layer's left out."""
        return [
            product(q, w[:, :-1].mT, out=below)
            for q, w, below in zip(self.signals[1:], self.weights[1:], self.signals[:-1], strict=True)
        ]

    def _places(self, widths: tuple[int, ...]) -> Sequence[Tensor]:
        """Where parts of these widths go."""
        if widths not in self._splits:
            self._splits[widths] = self._x.split(widths, -1)
        return self._splits[widths]

    def forward(self, *parts: Tensor) -> Tensor:
        """The outputs [*stack, batch, fan_out] for parts [*stack or broadcastable, batch, n] side by side."""
        for place, part in zip(self._places(tuple(part.shape[-1] for part in parts)), parts, strict=True):
            place.copy_(part)
        for layer, hidden in zip(self._layers, self.hidden[1:], strict=False):
            layer()
            hidden.clamp_min_(0)  # ReLU
        self._layers[-1]()
        return self._y

    def backward(self, output_signal: Tensor | float) -> None:
        """Carry ∂/∂output [*stack, batch, fan_out] back to every layer's q_l.

        Samples are independent, so each row of q_l is that sample's own derivative.
        """
        self._top[...] = output_signal
        for l in range(len(self.weights) - 2, -1, -1):
            self._layers_back[l]()
            # ReLU's derivative: passes where the unit's output is positive
            q = self.signals[l]
            torch.ops.aten.threshold_backward.grad_input(q, self.hidden[l + 1], 0, grad_input=q)

    def input_signal(self, start: int = 0) -> Tensor:
        """∂/∂x of the last backward pass, for the inputs from column `start` on: [*stack, batch, n]."""
        if start not in self._slopes:
            weights = self.weights[0][:, start:-1]
            slope = weights.new_empty(self.networks, weights.shape[1], self.batch)
            multiply = product(weights, self.signals[0].mT, out=slope)
            self._slopes[start] = multiply, self._stacked(slope.mT)
        multiply, slope = self._slopes[start]
        multiply()
        return slope


class Gradient:
    """Σ_i weight_i ∂output_i/∂θ_l of every layer, p̄ᵀ(weight ⊙ q), into a buffer like the network's."""

    def __init__(self, tape: Tape, flat: Tensor):
        self.tape = tape
        self.layers = [layer.flatten(0, -3) for layer in tape.network.views(flat)]  # [networks, …, fan_out]
        self._products = [
            product(p.mT, q, out=layer)
            for p, q, layer in zip(tape.inputs, tape.signals, self.layers, strict=True)
        ]

    def __call__(self, weight: Tensor | None = None) -> None:
        """After a backward pass, for weight [*stack, batch], which the tape's signals have in them from then
        on; none: it was in the signal carried back."""
        if weight is not None:
            weight = weight.reshape(-1, self.tape.batch, 1)
            for q in self.tape.signals:
                q *= weight
        for multiply in self._products:
            multiply()
