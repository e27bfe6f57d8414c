"""offline-gntd bench"""

import argparse
import json
import os
import sys
from pathlib import Path

EVERY_UPDATE = "gntd3_bc@kfac.factor_every=1@kfac.inverse_every=1"  # as the paper has it
FEWEST_ROWS = 1_000  # an episode of d3rlpy's
PEER_PYTHON = Path(".venv-d3rlpy/bin/python")


def add_commands(commands) -> None:
    parser = commands.add_parser("bench", help="updates per second against this machine's ceiling and peers")
    parser.add_argument("presets", nargs="*", metavar="PRESET", help="default: all of them")
    parser.add_argument("--rounds", type=int, default=5, help="timings each figure is the median of")
    parser.add_argument("--seconds", type=float, default=0.5, help="the least time of one timing")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes timed together")
    parser.add_argument(
        "--sizes", nargs="*", default=[], metavar="SIZE", help="further sizes: hopper, acrobot"
    )
    parser.add_argument("--rows", type=int, help="transitions that updates draw from (default: a million)")
    parser.add_argument("--peers", action="store_true", help="d3rlpy in the same rounds (make peers)")
    parser.add_argument("--peer-python", type=Path, default=PEER_PYTHON, help="a Python that has d3rlpy")
    parser.add_argument("--json", action="store_true", help="nothing but JSON on stdout")
    parser.set_defaults(handler=bench)


def bench(args: argparse.Namespace) -> None:
    from tqdm import tqdm

    from offline_gntd.algorithms import CATALOGUE
    from offline_gntd.bench.measurement import ROWS, Bench
    from offline_gntd.bench.peers import D3rlpy
    from offline_gntd.bench.subjects import MAIN_SIZE, SIZES, settings
    from offline_gntd.errors import UserError, unknown

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
    peers = [D3rlpy(args.peer_python, rows)] if args.peers else []
    measured = Bench([*main.items(), *further], args.workers, args.seconds, rows)
    total = args.rounds * len(measured.subjects)
    with tqdm(total=total, desc="bench", unit="timing", disable=not sys.stderr.isatty()) as bar:
        measured.run(args.rounds, peers, bar.update)
    found = measured.summary()
    ours = {name: measured.timings[name, size].rates for name, size in main.items()}
    outcome = {
        "gemm_gflops": sorted(measured.gemm)[len(measured.gemm) // 2] / 1e9,
        "rows": rows,
        "workers": args.workers,
        "rounds": args.rounds,
        "algorithms": {name: found[name, size] for name, size in main.items()},
        "sizes": {size: {name: found[name, at] for name, at in further if at == size} for size in args.sizes},
        "peers": {peer.name: peer.summary(ours) for peer in peers},
    }
    for peer in peers:
        peer.close()
    print(json.dumps(outcome, indent=2) if args.json else "\n".join(_lines(outcome)))


def _or_dash(value: float | None, form: str) -> str:
    return "—" if value is None else format(value, form)


def _lines(outcome: dict) -> list[str]:
    head = f"{'':52} {'updates/s':>9} {'MFLOP':>8} {'of ceiling':>10} {'workers':>9} {'MiB':>6}"
    products = f"matrix products: {outcome['gemm_gflops']:.1f} GFLOP/s on one thread"
    lines = [products, head]
    for title, found in (("", outcome["algorithms"]), *outcome["sizes"].items()):
        lines += [
            f"{(title + ' ' + name).strip():52} {row['updates_per_s']:9.1f} "
            f"{_or_dash(row['minimal_mflop'], '.1f'):>8} {_or_dash(row['ceiling_fraction'], '.0%'):>10} "
            f"{row['workers_updates_per_s']:9.1f} {row['peak_mib']:6.0f}"
            for name, row in found.items()
        ]
    lines += [
        f"{name}: an update takes {row['kfac_ratio']:.2f} times as long as one without kfac, in turn with it"
        for name, row in outcome["algorithms"].items()
        if row["kfac_ratio"]
    ]
    for peer, found in outcome["peers"].items():
        lines += [
            f"{peer} {name}: {row['updates_per_s']:.1f} updates/s; ours are {row['ratio']:.2f} times as many"
            for name, row in found.items()
        ]
    return [*lines, f"workers: {outcome['workers']} together; medians of {outcome['rounds']} rounds"]
