"""How far K-FAC's economies move its step: python benchmarks/kfac_steps.py DATASET [UPDATES]

GNTD3+BC trains on the dataset, seed 0. Now and then, at the last update before inverses are renewed, its step
d is compared, layer by layer, with the one whose inverses are whole and of the factors as they are then, d*.
Printed is ‖d − d*‖ / ‖d*‖, the mean of both critics: for whole inverses of the last renewal (their age alone)
and as the preset has them (age and rank). Beside it, what rank leaves out: the first eigenvalue beyond it
over the damping, of P, and what it would be of G.
"""

import sys

import torch
from torch import Tensor

from offline_gntd import processes
from offline_gntd.algorithms import preset
from offline_gntd.datasets import load
from offline_gntd.nn.kfac import Factor
from offline_gntd.transitions import Sampler

LOOKS = (100, 500, 1_000, 2_000, 5_000, 10_000, 20_000)  # updates


def whole(factor: Factor, damping: float) -> Tensor:
    lower = factor.moment.double().tril()
    return torch.linalg.inv(lower + lower.tril(-1).mT + damping * torch.eye(lower.shape[-1]))


def beyond(factor: Factor, rank: int, damping: float) -> str:
    """Of the network that has most there."""
    spectrum = factor.spectrum().amax(0)
    return f"{spectrum[-rank - 1] / damping:.3f}" if len(spectrum) > rank else "—"


def error(step: Tensor, expected: Tensor) -> float:
    return ((step - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)).mean().item()


def main(name: str, updates: int) -> None:
    dataset, config = load(name), preset("gntd3_bc").config
    generators = [torch.Generator().manual_seed(0)]
    statistics = torch.as_tensor(dataset.obs_mean), torch.as_tensor(dataset.obs_std)
    agent = config.agent(dataset.task, generators, statistics)
    sample = Sampler(dataset.task, config.batch_size, generators)
    critic, curvature = agent.critic, agent.critic.curvature
    damping, rank, period = config.kfac.damping**0.5, config.kfac.rank, config.kfac.inverse_every
    gradients: list[Tensor] = []
    renewed: list[list[Tensor]] = []  # whole inverses of P and G of every layer, at the last renewal
    precondition = curvature.precondition

    def keep_gradients() -> None:
        gradients[:] = [layer.double() for layer in critic.gradient.layers]
        precondition()

    curvature.precondition = keep_gradients
    print("update  layer    age  age and rank  beyond rank: P      G")
    for update in range(1, updates + 1):
        agent.update(sample(dataset.rows))
        if not {update, update + period - 1} & {*LOOKS}:  # neither a look nor the renewal before one
            continue
        sides = [*zip(curvature.P, curvature.G, strict=True)]
        now = [[whole(factor, damping) for factor in both] for both in sides]
        assert not curvature.failures.any(), "the damping in force is not the preset's"
        if update not in LOOKS:
            renewed = now
            continue
        for l, step in enumerate(critic.gradient.layers):
            expected, aged = (P @ gradients[l] @ G for P, G in (now[l], renewed[l]))
            left_out = "  ".join(f"{beyond(factor, rank, damping):>5}" for factor in sides[l])
            errors = f"{error(aged, expected):5.3f}  {error(step, expected):12.3f}"
            print(f"{update:6,}  {l + 1:5}  {errors}           {left_out}", flush=True)


if __name__ == "__main__":
    processes.prepare()
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else LOOKS[-1])
