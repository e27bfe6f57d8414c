# mypy: ignore-errors
"""What each speed trick of the core brings: updates per second with all of them over updates per second
without one, in alternating slices of one run.

    python benchmarks/tricks.py [--presets td3_bc gntd3_bc gntd gndqn] [--rounds 5] [--seconds 0.6]

A trick stays in the core if it brings 5 % or more on one of these presets. The control removes nothing: its
distance from 1.00 is the noise. Tricks are removed by replacing methods, which type checkers do not allow.
"""

import argparse
import statistics
import subprocess
import sys

import torch
from torch import Tensor

from offline_gntd.bench import measurement
from offline_gntd.nn import kfac, linalg, mlp
from offline_gntd.nn.learner import Learner, Target
from offline_gntd.nn.mlp import Tape
from offline_gntd.nn.optimisers import Stepper
from offline_gntd.processes import prepare
from offline_gntd.transitions import Transitions, from_rows

PRESETS = ("td3_bc", "gntd3_bc", "gntd", "gndqn")


def replace_matmul(matmul) -> None:
    for module in (linalg, mlp, kfac):
        module.matmul = matmul


def without_output_buffers() -> None:
    def matmul(a: Tensor, b: Tensor, out: Tensor) -> None:
        narrow = b.shape[-1] < linalg.FEW_COLUMNS
        product = a * b if a.shape[-1] == 1 else torch.bmm(b.mT, a.mT).mT if narrow else torch.bmm(a, b)
        out.copy_(product)

    replace_matmul(matmul)


def without_narrow_products() -> None:
    replace_matmul(lambda a, b, out: torch.bmm(a, b, out=out))


def without_batched_products() -> None:
    one = linalg.matmul

    def matmul(a: Tensor, b: Tensor, out: Tensor) -> None:
        for i in range(len(a)):
            one(a[i : i + 1], b[i : i + 1], out[i : i + 1])

    replace_matmul(matmul)


def without_fused_adam() -> None:
    def adam(self: Stepper, gradient: Tensor) -> None:
        if not hasattr(self, "reference"):
            self.reference = torch.optim.Adam([self.flat], lr=self.learning_rate)
        self.flat.grad = gradient
        self.reference.step()

    Stepper._adam = adam


def without_flat_buffers() -> None:
    def step(self: Learner) -> None:
        stepper, config = self.optimiser, self.optimiser.config
        stepper.count += 1
        buffers = (self.network.flat, self.gradient, stepper.mean, stepper.square)
        options = {"lr": stepper.learning_rate, "beta1": config.beta1, "beta2": config.beta2}
        for layer, gradient, mean, square in zip(*map(self.network.views, buffers), strict=True):
            tensors = ([layer], [gradient], [mean], [square], [], [stepper.count])
            torch._fused_adam_(
                *tensors, **options, weight_decay=0.0, eps=config.eps, amsgrad=False, maximize=False
            )

    def polyak_update(self: Target, tau: float) -> None:
        for layer, online in zip(self.network.layers, self.online.layers, strict=True):
            layer.lerp_(online, tau)

    Learner.step, Target.polyak_update = step, polyak_update


def without_one_gather() -> None:
    class Sampler(measurement.Sampler):
        def __call__(self, rows: Tensor, ranges=None) -> Transitions:
            if not hasattr(self, "columns"):
                self.columns = [column.contiguous() for column in from_rows(rows, self.task)]
            index = torch.randint(len(rows), self._index.shape, generator=self.generators[0])
            return Transitions(*(column[index][None] for column in self.columns))

    measurement.Sampler = Sampler


def with_unused_weight_gradients() -> None:
    input_grad = Tape.input_grad

    def with_weights(self: Tape, start: int = 0) -> Tensor:
        self.parameter_grad(torch.empty_like(self.network.flat))
        return input_grad(self, start)

    Tape.input_grad = with_weights


TRICKS = {
    "control": None,
    "results written to buffers allocated once": without_output_buffers,
    "transposed products for fewer than 16 columns": without_narrow_products,
    "twin critics as one batched product": without_batched_products,
    "fused Adam": without_fused_adam,
    "flat buffers for Adam and target averaging": without_flat_buffers,
    "one gather per batch": without_one_gather,
    "no weight gradients where only dQ/da is needed": with_unused_weight_gradients,
}


def work(preset: str, removed: str, seconds: float) -> None:
    """In a process of its own: print a rate for every line of standard input."""
    prepare()
    if change := TRICKS.get(removed):
        change()
    size = measurement.MAIN_SIZE[measurement.settings(preset).discrete]
    rows = measurement.random_rows(measurement.SIZES[size], 100_000)
    agent = measurement.TimedAgent(preset, size, rows)
    for _ in sys.stdin:
        print(agent.rate(seconds), flush=True)


class Worker:
    def __init__(self, *arguments: str):
        command = [sys.executable, __file__, "--worker", *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def rate(self) -> float:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--presets", nargs="+", default=PRESETS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.6)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        preset, removed, seconds = args.worker
        return work(preset, removed, float(seconds))
    print("| trick |", " | ".join(args.presets), "|\n|---|" + "---|" * len(args.presets))
    ratios: dict[str, list[float]] = {trick: [] for trick in TRICKS}
    for preset in args.presets:  # all variants of a preset take turns
        workers = {name: Worker(preset, name, str(args.seconds)) for name in ("all", *TRICKS)}
        rounds = [{name: worker.rate() for name, worker in workers.items()} for _ in range(args.rounds + 1)]
        for trick in TRICKS:  # the first round warms up
            ratios[trick].append(statistics.median(rates["all"] / rates[trick] for rates in rounds[1:]))
        for worker in workers.values():
            worker.process.kill()
    for trick, values in ratios.items():
        print(f"| {trick} |", " | ".join(f"{value:.2f}" for value in values), "|")


if __name__ == "__main__":
    main()
