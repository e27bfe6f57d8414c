"""The Bellman target, and TD errors over a dataset."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from offline_gntd.transitions import Transitions


def bellman_target(batch: Transitions, next_value: Tensor, discount: float) -> Tensor:
    """r + γ(1 − terminated) Q(s′, ·) [seeds, batch]."""
    return torch.addcmul(batch.reward, 1 - batch.terminated, next_value, value=discount)


def td_errors(
    transitions: Sequence[Transitions],
    values: Callable[[Transitions], tuple[Tensor, Tensor, Tensor]],
    discount: float,
    max_rows: int = 16_384,
    chunk: int = 2_048,
) -> dict[str, Tensor]:
    """Metrics of δ = Q(s,a) − r − γ(1−terminated) Q(s′,π(s′)) over each seed's dataset: [seeds] each.

    transitions  one dataset per seed; with more than `max_rows` rows, every k-th is used
    values       returns Q(s,a) [seeds, critics, n] of the online networks, and Q(s′,π(s′)) [seeds, n] of the
                 online and of the target networks

    Returns
    bellman_error        E[δ²] with the online networks on both sides, averaged over the critics
    td_error_abs         E|δ|, also with the online networks on both sides
    td_error_abs_target  E|δ| with the target networks in the target, as the paper's authors log it
    largest_value        max |Q|
    """
    count = torch.tensor(0)  # rows so far
    totals = {name: torch.tensor(0.0, dtype=torch.float64) for name in ERRORS}
    largest = torch.tensor(0.0)
    for part, weight in chunks(transitions, max_rows, chunk):
        value, next_value, target_next_value = values(part)
        error = (value - bellman_target(part, next_value, discount)[:, None]).double()
        target_error = (value - bellman_target(part, target_next_value, discount)[:, None]).double()
        sums = (error.square(), error.abs(), target_error.abs())
        for name, errors in zip(ERRORS, sums, strict=True):
            totals[name] = totals[name] + (errors.mean(1) * weight).sum(-1).cpu()
        largest = largest.maximum(value.abs().amax((1, 2)).cpu()).maximum(next_value.abs().amax(1).cpu())
        count = count + weight.sum(-1).cpu()
    return {name: total / count for name, total in totals.items()} | {"largest_value": largest}


ERRORS = ("bellman_error", "td_error_abs", "td_error_abs_target")


def chunks(
    transitions: Sequence[Transitions], max_rows: int, size: int
) -> Iterator[tuple[Transitions, Tensor]]:
    """Chunks [seeds, m, …] that cover every seed's dataset once, with weights [seeds, m].

    Datasets may differ in length: the rows of a shorter one are repeated with weight 0.
    """
    strides = [-(-len(rows.obs) // max_rows) for rows in transitions]
    counts = [-(-len(rows.obs) // stride) for rows, stride in zip(transitions, strides, strict=True)]
    for start in range(0, max(counts), size):
        index = torch.arange(start, min(start + size, max(counts)), device=transitions[0].obs.device)
        parts = [
            Transitions(*(column[index % count * stride] for column in rows))
            for rows, count, stride in zip(transitions, counts, strides, strict=True)
        ]
        weight = torch.stack([index < count for count in counts])
        yield Transitions(*map(torch.stack, zip(*parts, strict=True))), weight
