"""Updates per second of two installed versions of the package, in alternating slices of one run.

    python benchmarks/versions.py OLD/bin/python NEW/bin/python --presets td3_bc bc:bc@widths=256x256

A preset that has other settings in the old version is given as NEW:OLD.

Each version trains in a process of its own, one thread, on random transitions of HalfCheetah's or CartPole's
shape. Only one process works at a time, so that changes of the machine's speed affect both.
"""

import argparse
import statistics
import subprocess

PRESETS = ["td", "dqn", "gntd", "gndqn", "bc", "td3_bc", "gntd3_bc", "bcq", "cql"]
WORKER = """
import sys, time, torch
torch.set_num_threads(1)
from offline_gntd.processes import prepare
prepare()
try:
    from offline_gntd.bench.measurement import MAIN_SIZE, SIZES, TimedAgent, random_rows, settings
except ImportError:  # a version before 0.2.0
    from offline_gntd.bench.subjects import MAIN_SIZE, SIZES, settings
    from offline_gntd.bench.subjects import Subject as TimedAgent, transitions as random_rows
name, seconds = sys.argv[1], float(sys.argv[2])
size = MAIN_SIZE[settings(name).discrete]
agent = TimedAgent(name, size, random_rows(SIZES[size], 100_000))
for line in sys.stdin:
    count, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        for _ in range(20 if name in ("bcq", "cql") else 100):
            agent.update()
            count += 1
    print(count / spent, flush=True)
"""


class Worker:
    def __init__(self, python: str, preset: str, seconds: float):
        command = [python, "-I", "-c", WORKER, preset, str(seconds)]
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
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--presets", nargs="+", default=PRESETS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    print("| preset | old, updates/s | new, updates/s | new / old |\n|---|---|---|---|")
    for preset in args.presets:
        preset, _, old_preset = preset.partition(":")
        old = Worker(args.old, old_preset or preset, args.seconds)
        new = Worker(args.new, preset, args.seconds)
        rates = [(old.rate(), new.rate()) for _ in range(args.rounds + 1)][1:]  # the first warms up
        ratio = statistics.median(b / a for a, b in rates)
        before, after = (statistics.median(column) for column in zip(*rates, strict=True))
        print(f"| {preset} | {before:.0f} | {after:.0f} | {ratio:.2f} |", flush=True)
        for worker in (old, new):
            worker.process.kill()


if __name__ == "__main__":
    main()
