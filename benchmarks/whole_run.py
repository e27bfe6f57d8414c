"""Whole runs of TD3+BC, from the start of Python to the last score: ours and d3rlpy's in turn.

    make peers && .venv-d3rlpy/bin/pip install h5py "gymnasium[mujoco]"
    .venv/bin/python benchmarks/whole_run.py halfcheetah_medium-v2.hdf5 --steps 10000

Both train 256-256 networks on one thread and run 10 greedy episodes after every 5,000 updates. Our run also
builds the file's cache and writes results and checkpoints.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

EPOCH, EPISODES = 5_000, 10


def d3rlpy_run(args: argparse.Namespace) -> None:
    """Train d3rlpy's TD3+BC; print the seconds of its evaluations as JSON."""
    import d3rlpy
    import d3rlpy_scores
    import gymnasium
    import numpy as np
    import torch

    torch.set_num_threads(1)
    dataset = d3rlpy_scores.read(args.file)
    obs = np.concatenate([episode.observations for episode in dataset.episodes])
    encoder = d3rlpy.models.VectorEncoderFactory([256, 256])
    algorithm = d3rlpy.algos.TD3PlusBCConfig(
        actor_encoder_factory=encoder,
        critic_encoder_factory=encoder,
        observation_scaler=d3rlpy.preprocessing.StandardObservationScaler(mean=obs.mean(0), std=obs.std(0)),
    ).create(device="cpu")
    evaluate = d3rlpy.metrics.EnvironmentEvaluator(gymnasium.make(args.env), n_trials=EPISODES)
    seconds = 0.0

    def timed(*both: Any) -> float:
        nonlocal seconds
        began = time.perf_counter()
        mean_return = evaluate(*both)
        seconds += time.perf_counter() - began
        return mean_return

    algorithm.fit(
        dataset,
        n_steps=args.steps,
        n_steps_per_epoch=min(EPOCH, args.steps),
        evaluators={"return": timed},
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
        show_progress=False,
    )
    print(json.dumps({"evaluation": seconds}))


def command(library: str, args: argparse.Namespace) -> list[str]:
    if library == "d3rlpy":
        options = ["--role", "d3rlpy", "--steps", str(args.steps), "--env", args.env]
        return [args.peer_python, __file__, args.file, *options]
    preset = {"ours": "td3_bc", "ours, bfloat16": "td3_bc@precision=bfloat16"}[library]
    options = ["--steps", args.steps, "--evaluate-every", EPOCH, "--evaluate-episodes", EPISODES]
    grid = ["--algorithms", preset, "--datasets", args.file, "--seeds", 1, "--workers", 1, *options]
    return [sys.executable, "-m", "offline_gntd", "run", "whole", *map(str, grid)]


def timed_run(library: str, args: argparse.Namespace, home: Path) -> dict[str, float]:
    """Wall-clock and CPU seconds of the whole process, and seconds of its evaluations."""
    began, before = time.perf_counter(), os.times()
    environment = os.environ | {"OFFLINE_GNTD_HOME": str(home), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        command(library, args), env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    after = os.times()
    if library == "d3rlpy":
        evaluation = json.loads(run.stdout.splitlines()[-1])["evaluation"]
    else:
        [record] = home.glob("results/whole/*/*/seed-0/run.json")
        evaluation = json.loads(record.read_text())["evaluation_seconds"]
    cpu = sum(after[2:4]) - sum(before[2:4])
    return {"seconds": time.perf_counter() - began, "cpu_seconds": cpu, "evaluation": evaluation}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", help="a D4RL HDF5 file")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--env", default="HalfCheetah-v4", help="the file's environment, for d3rlpy")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--peer-python", default=".venv-d3rlpy/bin/python")
    parser.add_argument("--role", choices=["compare", "d3rlpy"], default="compare", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role == "d3rlpy":
        d3rlpy_run(args)
        return
    for number in range(args.rounds):
        for library in ("ours", "ours, bfloat16", "d3rlpy"):
            with tempfile.TemporaryDirectory() as folder:
                times = timed_run(library, args, Path(folder))
            figures = ", ".join(f"{name} {value:.1f}" for name, value in times.items())
            print(f"round {number}: {library}: {figures}", flush=True)


if __name__ == "__main__":
    main()
