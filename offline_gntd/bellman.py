"""The Bellman target, and how far a value function is from its own."""

from collections.abc import Callable

import torch
from torch import Tensor

from offline_gntd.transitions import Transitions


def target(batch: Transitions, next_value: Tensor, discount: float) -> Tensor:
    """r + γ(1 − terminated) Q(s′, ·) [seeds, batch]."""
    return torch.addcmul(batch.reward, 1 - batch.terminated, next_value, value=discount)


def measure(
    transitions: Transitions,
    values: Callable[[Transitions], tuple[Tensor, Tensor]],
    discount: float,
    most_rows: int = 16_384,
    rows_at_once: int = 2_048,
) -> dict[str, Tensor]:
    """E[(Q(s,a) − r − γ(1−terminated) Q(s′,π(s′)))²], averaged over a seed's critics, and the largest |Q|.

    `values` gives Q(s,a) [seeds, critics, n] and Q(s′,π(s′)) [seeds, n], online networks on both sides.
    A dataset of more than `most_rows` rows is measured on every k-th, the same ones each time.
    """
    every = -(-len(transitions.obs) // most_rows)
    chosen = Transitions(*(column[::every] for column in transitions))
    largest = torch.zeros((), device=chosen.obs.device)
    total = torch.zeros_like(largest, dtype=torch.float64)
    for start in range(0, len(chosen.obs), rows_at_once):
        part = Transitions(*(column[None, start : start + rows_at_once] for column in chosen))
        value, next_value = values(part)
        error = value - target(part, next_value, discount)[:, None]
        total = total + error.double().square().mean(1).sum(-1)
        largest = torch.maximum(largest, value.abs().amax((1, 2))).maximum(next_value.abs().amax(1))
    return {"bellman_error": total / len(chosen.obs), "largest_value": largest}
