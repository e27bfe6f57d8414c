"""offline-gntd bench"""

import argparse
import json
import os
import sys
from pathlib import Path
from statistics import median

from offline_gntd.errors import UserError, unknown

EVERY_UPDATE = "gntd3_bc@kfac.factor_every=1@kfac.inverse_every=1"  # the paper's Algorithm 3
FEWEST_ROWS = 1_000  # one episode of the data that d3rlpy is timed with
PEER_PYTHON = Path(".venv-d3rlpy/bin/python")


def add_commands(commands) -> None:
    parser = commands.add_parser("bench", help="updates per second, against the machine's peak and d3rlpy")
    add = parser.add_argument
    add("presets", nargs="*", metavar="PRESET", help="td3_bc, td3_bc@precision=bfloat16, … (default: all)")
    add("--rounds", type=int, default=5, help="timings that a result is the median of (default: 5)")
    add("--seconds", type=float, default=0.5, help="minimum length of a timing (default: 0.5)")
    add("--workers", type=int, default=os.cpu_count(), help="processes timed together (default: every core)")
    add("--sizes", nargs="*", default=[], metavar="SIZE", help="additional task sizes: hopper, acrobot")
    add("--rows", type=int, help="transitions that updates draw from (default: 1,000,000)")
    add("--peers", action="store_true", help="also time d3rlpy, in the same rounds (install: make peers)")
    add("--peer-python", type=Path, default=PEER_PYTHON, help="a Python with d3rlpy (default: %(default)s)")
    add("--json", action="store_true", help="print JSON only")
    parser.set_defaults(handler=bench)


def bench(args: argparse.Namespace) -> None:
    from tqdm import tqdm

    from offline_gntd.algorithms import CATALOGUE
    from offline_gntd.bench.measurement import MAIN_SIZE, ROWS, SIZES, Bench, D3rlpy, settings

    rows = ROWS if args.rows is None else args.rows
    if rows < FEWEST_ROWS:
        raise UserError(f"--rows must be at least {FEWEST_ROWS:,}, not {rows}")
    for option in ("rounds", "workers"):
        if getattr(args, option) < 1:
            raise UserError(f"--{option} must be at least 1, not {getattr(args, option)}")
    if not args.seconds > 0:
        raise UserError(f"--seconds must be more than 0, not {args.seconds:g}")
    for size in args.sizes:
        if size not in SIZES:
            raise unknown("size", size, SIZES)
    presets = args.presets or [*CATALOGUE, EVERY_UPDATE]
    main = {name: MAIN_SIZE[settings(name).discrete] for name in presets}
    further = [
        (name, size)
        for name in presets
        for size in args.sizes
        if SIZES[size].discrete == settings(name).discrete and size != main[name]
    ]
    peer = D3rlpy(args.peer_python, rows) if args.peers else None
    timed = Bench([*main.items(), *further], args.workers, args.seconds, rows)
    total = args.rounds * len(timed.pairs)
    with tqdm(total=total, desc="bench", unit="timing", disable=not sys.stderr.isatty()) as bar:
        timed.run(args.rounds, peer, bar.update)
    summary = timed.summary()
    ours = {name: timed.timings[name, size].rates for name, size in main.items()}
    ceilings: dict[str, list[float]] = {}  # by precision
    for row in summary.values():
        ceilings.setdefault(row["precision"], []).append(row["ceiling_gflops"])
    results = {
        "ceiling_gflops": {name: median(values) for name, values in ceilings.items()},
        "rows": rows,
        "workers": args.workers,
        "rounds": args.rounds,
        "algorithms": {name: summary[name, size] for name, size in main.items()},
        "sizes": {
            size: {name: summary[name, at] for name, at in further if at == size} for size in args.sizes
        },
        "peers": {peer.name: peer.summary(ours)} if peer else {},
    }
    if peer:
        peer.close()
    print(json.dumps(results, indent=2) if args.json else "\n".join(_lines(results)))


def _or_dash(value: float | None, form: str) -> str:
    return "—" if value is None else format(value, form)


def _lines(results: dict) -> list[str]:
    lines = [
        f"ceiling: {gflops:.0f} GFLOP/s, {precision} matrix products on one thread"
        for precision, gflops in results["ceiling_gflops"].items()
    ]
    lines.append(f"{'':52} {'updates/s':>9} {'MFLOP':>8} {'of ceiling':>10} {'workers':>9} {'MiB':>6}")
    for title, part in (("", results["algorithms"]), *results["sizes"].items()):
        lines += [
            f"{(title + ' ' + name).strip():52} {row['updates_per_s']:9.1f} "
            f"{_or_dash(row['minimal_mflop'], '.1f'):>8} {_or_dash(row['ceiling_fraction'], '.0%'):>10} "
            f"{row['workers_updates_per_s']:9.1f} {row['peak_mib']:6.0f}"
            for name, row in part.items()
        ]
    lines += [
        f"{name}: an update takes {row['kfac_ratio']:.2f} times as long as without kfac"
        for name, row in results["algorithms"].items()
        if row["kfac_ratio"]
    ]
    for peer, part in results["peers"].items():
        lines += [
            f"{peer} {name}: {row['updates_per_s']:.1f} updates/s; ours / theirs = {row['ratio']:.2f}"
            for name, row in part.items()
        ]
    rounds = f"medians of {results['rounds']} rounds"
    return [*lines, f"workers: updates/s of {results['workers']} processes together; {rounds}"]
