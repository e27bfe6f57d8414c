"""What it costs an update to be kept waiting: python benchmarks/pauses.py [ROUNDS]

On a host whose third-level cache other guests use too, a process's data leave it with time, and curvature
takes time. So three take turns: TD3+BC's updates alone, the same with a pause after each in which nothing is
computed, as long as what GNTD3+BC spends on curvature, and GNTD3+BC's. The pause itself is not counted.
"""

import sys
import time
from statistics import median

from offline_gntd import processes
from offline_gntd.bench.measurement import ROWS, TURN
from offline_gntd.bench.subjects import SIZES, Subject, transitions

SIZE = "halfcheetah"


def turn(subject: Subject, pause: float = 0.0) -> float:
    """Seconds an update, without those of the pauses."""
    spent = 0.0
    for _ in range(TURN):
        began = time.perf_counter()
        subject.update()
        ended = time.perf_counter()
        spent += ended - began
        while time.perf_counter() - ended < pause:
            pass
    return spent / TURN


def main(rounds: int) -> None:
    rows = transitions(SIZES[SIZE], ROWS)
    plain, curved = (Subject("gntd3_bc", SIZE, rows, plain=plain) for plain in (True, False))
    alone, waiting, with_curvature, pauses = [], [], [], []
    for _ in range(rounds):
        before = curved.agent.critic.curvature_seconds
        with_curvature.append(turn(curved))
        pauses.append((curved.agent.critic.curvature_seconds - before) / TURN)
        alone.append(turn(plain))
        waiting.append(turn(plain, pauses[-1]))
    curvature = [a / b for a, b in zip(with_curvature, alone, strict=True)]
    rest = [(a - b) / c for a, b, c in zip(with_curvature, pauses, alone, strict=True)]
    kept_waiting = [a / b for a, b in zip(waiting, alone, strict=True)]
    print(f"TD3+BC: {median(alone) * 1e6:,.0f} µs an update; GNTD3+BC: {median(curvature):.3f} times that,")
    print(f"of which {median(rest):.3f} are not spent on curvature ({median(pauses) * 1e6:,.0f} µs).")
    print(f"TD3+BC after pauses as long: {median(kept_waiting):.3f} times its time without them.")


if __name__ == "__main__":
    processes.prepare()
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
