"""Kronecker-factored Gauss-Newton curvature of a value network (Algorithm 3, GNTD-KFAC).

P = E[p̄ p̄ᵀ] of a layer's input and G = E[q qᵀ] of its output (the paper's P and Q matrices); the step of
layer l is d_l = (P + √ω I)⁻¹ · gradient · (G + √ω I)⁻¹.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from offline_gntd.configuration import added
from offline_gntd.nn import nystrom
from offline_gntd.nn.linalg import (
    SMALL,
    damped_halves,
    damped_inverse,
    damped_root,
    halves_times,
    inverse_times,
    parts,
    product,
    second_moment,
    solution,
    squares,
    transposed_squares,
    where_sound,
)
from offline_gntd.nn.mlp import Gradient


@dataclass(frozen=True)
class KFAC:
    damping: float = 0.25  # ω, split between the two factors
    momentum: float = 0.05  # η, the weight of the new batch in the averaged factors
    average_G: bool = False  # Algorithm 3 averages P only; G is the batch's
    factor_every: int = 10  # updates between refreshes of P and G; the paper's is 1
    inverse_every: int = 20  # updates between refreshes of the inverses; the paper's is 1
    row_every: int = added(1)  # of a batch's rows one in so many is taken into P and G; the paper's is 1
    rank: int | None = added(None)  # directions of a large P that are inverted; none: all (the paper)
    split: str = "even"  # even: √ω on both factors (the paper); trace: balanced by their mean eigenvalues

    def __post_init__(self):
        if not self.damping > 0:
            raise ValueError(f"damping must be positive, not {self.damping}")
        if not 0 < self.momentum <= 1:
            raise ValueError(f"momentum must be in (0, 1], not {self.momentum}")
        if min(self.factor_every, self.inverse_every, self.row_every) < 1:
            raise ValueError("factor_every, inverse_every and row_every must be at least 1")
        if self.rank is not None and self.rank < 1:
            raise ValueError(f"rank must be at least 1 or none, not {self.rank}")
        if self.split not in ("even", "trace"):
            raise ValueError(f"split must be 'even' or 'trace', not {self.split!r}")

    def rank_of(self, n: int) -> int | None:
        """The directions inverted of P [n, n]; none, where all are: a third of them costs as much to make."""
        return self.rank if self.rank is not None and n > 3 * self.rank else None


def mean_eigenvalue(factor: Tensor) -> Tensor:
    return factor.diagonal(dim1=-2, dim2=-1).mean(-1)


def identity(scale: Tensor, n: int) -> Tensor:
    """I [networks, n, n] times the scale [networks] of each."""
    return scale[:, None].expand(-1, n).diag_embed()


class Form(NamedTuple):
    """How the inverse of a damped factor is kept."""

    room: Callable[[Tensor], Tensor]  # what it is kept in, for x [networks, batch, n]
    make: Callable[[Tensor, Tensor], Callable[[Tensor], None]]
    times: Callable[[Tensor, Tensor, Tensor], Callable[[], Any]]
    of_damping_alone: Callable[[Tensor, int], Tensor]  # what it holds for damping · I [networks, n, n]
    passes: int = 1  # how often it is made the first time


def inverse_of_damping(damping: Tensor, n: int) -> Tensor:
    return identity(1 / damping, n)


WHOLE = Form(squares, damped_inverse, inverse_times, inverse_of_damping)
# 5/8 of the arithmetic to make; four products for one
HALVES = Form(squares, damped_halves, halves_times, inverse_of_damping)
# a Cholesky factor: a third of the arithmetic; to solve by it is slow
ROOT = Form(transposed_squares, damped_root, solution, lambda damping, n: identity(damping.sqrt(), n))
OFTEN = 10  # updates; an inverse that lasts as long may take its time to make


@cache
def leading(rank: int) -> Form:
    """Known along so many directions: 2 rank / n of a whole one's arithmetic to multiply by."""
    return Form(
        partial(nystrom.room, rank=rank),
        nystrom.damped_leading,
        nystrom.leading_times,
        partial(nystrom.of_damping_alone, rank=rank),
        nystrom.PASSES,
    )


def cheapest_form(n: int, columns: int, period: int) -> Form:
    """For an n × n inverse made once in a period and multiplied with so many columns at every update."""
    if period >= OFTEN:
        return WHOLE
    if columns * period < n / 2:
        return ROOT
    return HALVES if n > SMALL else WHOLE


@dataclass(frozen=True, eq=False)
class Factor:
    """E[x xᵀ] on one side of a layer, x [networks, batch, n], and the inverse of it damped."""

    form: Form
    moment: Tensor  # [networks, n, n]
    inverse: Tensor  # as its form keeps it
    average: Callable[[float], None]  # take in what x holds, with this weight

    def times(self, b: Tensor, out: Tensor, of: slice) -> Callable[[], Any]:
        """A call that sets out ← inverse · b for these of the networks."""
        return self.form.times(self.inverse[of], b, out)

    def after(self, b: Tensor, out: Tensor, of: slice) -> Callable[[], Any]:
        """A call that sets out ← b · inverse for these of the networks."""
        return product(b, self.inverse[of], out) if self.form is WHOLE else self.times(b.mT, out.mT, of)

    def spectrum(self) -> Tensor:
        """The eigenvalues, ascending, without damping."""
        return torch.linalg.eigvalsh(torch.nan_to_num(self.moment, posinf=0, neginf=0))


class Alike:
    """Factors of one form and size, side by side, so that one computation inverts them all."""

    def __init__(self, form: Form, sides: Sequence[Tensor]):
        """For what they are the moments of, [networks, batch, n] each."""
        networks, _, n = sides[0].shape
        all_of_them = sides[0].new_empty(networks * len(sides), 0, n)
        moments = squares(all_of_them)
        inverses = form.room(all_of_them)
        self.passes, self._invert = form.passes, form.make(moments, inverses)
        places = zip(moments.split(networks), inverses.split(networks), strict=True)
        self.factors = [
            Factor(form, moment, inverse, second_moment(moment, x))
            for x, (moment, inverse) in zip(sides, places, strict=True)
        ]

    def invert(self, damping: Sequence[Tensor]) -> None:
        """With the damping [networks] of each."""
        self._invert(torch.cat(list(damping)))


def grouped(sides: Sequence[tuple[Tensor, Form]]) -> tuple[list[Factor], list[Alike]]:
    """A factor for every side x, with the form of its inverse, and the groups that hold them."""
    alike: dict[tuple[Form, int], list[int]] = {}  # positions among the sides
    for i, (x, form) in enumerate(sides):
        alike.setdefault((form, x.shape[-1]), []).append(i)
    factors: dict[int, Factor] = {}
    groups = []
    for (form, _), places in alike.items():
        groups.append(Alike(form, [sides[i][0] for i in places]))
        factors |= zip(places, groups[-1].factors, strict=True)
    return [factors[i] for i in range(len(sides))], groups


class KroneckerFactors:
    """The factors and inverses of every layer of a stack: what K-FAC remembers between updates.

    Where a factor cannot be inverted, its damping alone is, and that layer's damping is multiplied by 10;
    every sound inverse lets it fall back by a tenth. No update on a device waits for that to be read.
    """

    def __init__(self, config: KFAC, gradient: Gradient):
        self.config, self.tape, tape = config, gradient.tape, gradient.tape
        self.updates = torch.zeros((), dtype=torch.int64)  # on the CPU: reading it never waits for a device
        sides = []  # P and G of every layer in turn
        for layer, p, q in zip(gradient.layers, tape.inputs, tape.signals, strict=True):
            fan_in, fan_out = layer.shape[-2:]
            rank = config.rank_of(fan_in)
            for x, n, columns, kept in (p, fan_in, fan_out, rank), (q, fan_out, fan_in, None):
                form = leading(kept) if kept else cheapest_form(n, columns, config.inverse_every)
                sides.append((x[:, :: config.row_every], form))
        factors, self._groups = grouped(sides)
        self.P, self.G = factors[0::2], factors[1::2]
        self._products = [step for l, layer in enumerate(gradient.layers) for step in self._steps(l, layer)]
        self.boost = tape.output.new_ones(tape.networks, len(self.P))  # [networks, layers]
        self.failures = torch.zeros_like(self.boost)

    def _steps(self, l: int, layer: Tensor) -> Iterator[Callable[[], Any]]:
        """Calls that turn the gradient of layer l into d_l, for all networks at once or, of large layers, one
        after the other through the same memory, which is still in the cache."""
        together = len(parts(layer)) == 1
        half = layer.new_empty(layer.shape) if together else self.tape.after_signals(l, layer.shape[-2])[None]
        for of in parts(layer):
            yield self.P[l].times(layer[of], half, of)
            yield self.G[l].after(half, layer[of], of)

    @property
    def due(self) -> bool:
        """Whether the next refresh takes in the tape's batch."""
        return int(self.updates) % self.config.factor_every == 0

    def refresh(self) -> None:
        """Take in the tape's batch, as far as this update is one that refreshes."""
        count = int(self.updates)
        if self.due:
            self._average(first=count == 0)
        if count % self.config.inverse_every == 0:
            self._invert(first=count == 0)
        self.updates += 1

    def _average(self, first: bool) -> None:
        eta = 1.0 if first else self.config.momentum
        for P, G in zip(self.P, self.G, strict=True):
            P.average(eta)
            G.average(eta if self.config.average_G else 1.0)

    def _invert(self, first: bool) -> None:
        damping = dict(self._damped())
        for group in self._groups:
            for _ in range(group.passes if first else 1):
                group.invert([damping[factor] for factor in group.factors])
        factors = list(damping)

        def alone(i: int) -> Tensor:
            return factors[i].form.of_damping_alone(damping[factors[i]], factors[i].moment.shape[-1])

        sound = where_sound([factor.inverse for factor in factors], alone)
        if sound is not None:
            sound = sound.unflatten(-1, (-1, 2)).all(-1)  # [networks, layers]: both factors
            self.failures += ~sound
        self.boost.mul_(0.9 if sound is None else torch.where(sound, 0.9, 10.0)).clamp_(1, 1e12)

    def _damped(self) -> Iterator[tuple[Factor, Tensor]]:
        """P and G of every layer in turn, with the damping [networks] in force on each."""
        for P, G, damping in zip(self.P, self.G, (self.config.damping * self.boost).unbind(-1), strict=True):
            yield from zip((P, G), self._split(P.moment, G.moment, damping), strict=True)

    def _split(self, P: Tensor, G: Tensor, damping: Tensor) -> tuple[Tensor, Tensor]:
        root = damping.sqrt()
        if self.config.split == "even":
            return root, root
        # Martens & Grosse 2015, section 6.3: π = √(mean eigenvalue of P / that of G)
        pi = (mean_eigenvalue(P) / mean_eigenvalue(G).clamp_min(1e-12)).clamp(1e-6, 1e6).sqrt()
        return root * pi, root / pi

    def precondition(self) -> None:
        """Turn every layer's gradient into d_l, in place; the tape's signals may be lost."""
        for multiply in self._products:
            multiply()

    def diagnostics(self) -> dict[str, Tensor]:
        """Per seed: the worst condition of a damped factor, the largest damping in force, failures so far."""
        conditions = []
        for factor, damping in self._damped():
            spectrum = factor.spectrum()
            conditions.append((spectrum[:, -1] + damping) / (spectrum[:, 0].clamp_min(0) + damping))
        return {
            "kfac_condition": self._per_seed(torch.stack(conditions, -1)).amax(-1),
            "kfac_damping": self._per_seed(self.config.damping * self.boost).amax(-1),
            "kfac_failures": self._per_seed(self.failures).sum(-1),
        }

    def _per_seed(self, values: Tensor) -> Tensor:
        """[networks, n] -> [seeds, the rest]"""
        return values.reshape(self.tape.network.stack[0], -1)

    def state_dict(self) -> dict[str, Tensor]:
        state = {"boost": self.boost, "failures": self.failures}
        for side, factors in (("P", self.P), ("G", self.G)):
            for l, factor in enumerate(factors):
                state |= {f"{side}.{l}": factor.moment, f"{side}_inverse.{l}": factor.inverse}
        by_seed = {name: tensor.unflatten(0, self.tape.network.stack) for name, tensor in state.items()}
        return by_seed | {"updates": self.updates}
