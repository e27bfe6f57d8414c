"""Updates by torch's matrix products and by OpenBLAS's: benchmarks/libraries.py [PRESET …] [--kernels NAME]

They take turns. Nothing here asks whether this is a machine on which OpenBLAS is known to be the faster: it
is how to find out whether another is one.
"""

import argparse
import sys
from collections.abc import Sequence
from statistics import median
from unittest import mock

from offline_gntd import processes
from offline_gntd.bench.measurement import ROWS
from offline_gntd.bench.subjects import MAIN_SIZE, SIZES, Subject, gemm_flops, settings, transitions
from offline_gntd.cli.bench import EVERY_UPDATE
from offline_gntd.nn import openblas

PRESETS = ("td", "gntd", "gntd_plain", "bc", "td3_bc", "gntd3_bc", EVERY_UPDATE, "bcq", "cql")
ROUNDS, SECONDS = 15, 0.3


def choose(faster: bool):
    return mock.patch.object(openblas, "is_faster", return_value=faster)


def main(presets: Sequence[str]) -> None:
    rows = {}
    for name in presets:
        size = MAIN_SIZE[settings(name).discrete]
        if size not in rows:
            rows[size] = transitions(SIZES[size], ROWS)
        rates: dict[bool, list[float]] = {False: [], True: []}
        subjects, products = {}, {}
        for faster in rates:
            with choose(faster):  # long enough: a subject warms up as it is made, and so makes all its plans
                subjects[faster], products[faster] = Subject(name, size, rows[size]), gemm_flops() / 1e9
        for _ in range(ROUNDS):
            for faster, subject in subjects.items():
                rates[faster].append(subject.rate(SECONDS))
        ratio = median(ours / torchs for torchs, ours in zip(*rates.values(), strict=True))
        print(
            f"{name}: {median(rates[False]):,.4g} updates/s by torch ({products[False]:.0f} GFLOP/s), "
            f"{median(rates[True]):,.4g} by OpenBLAS ({products[True]:.0f}), {ratio:.2f} times as many",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("presets", nargs="*", default=PRESETS)
    parser.add_argument("--kernels", default=openblas.KERNELS, help="OpenBLAS's; SkylakeX: for AVX-512")
    args = parser.parse_args()
    openblas.KERNELS = args.kernels
    if openblas._library() is None:
        sys.exit(f"no OpenBLAS with kernels {args.kernels}; install it with: pip install scipy-openblas32")
    processes.prepare()
    main(args.presets)
