"""Scores of d3rlpy's TD3+BC on a D4RL file, by the evaluation that our runs use.

    .venv-d3rlpy/bin/python benchmarks/d3rlpy_scores.py train FILE OUT.npz --steps 30000 --seed 0
    .venv/bin/python benchmarks/d3rlpy_scores.py score FILE OUT.npz --episodes 10

d3rlpy has a Python environment of its own (make peers; also install h5py there). `train` writes the policy as
arrays, `score` evaluates it. Settings are its defaults, but for layer sizes and normalised observations.
"""

import argparse
import time
from typing import Any

import numpy as np


def read(path: str) -> Any:
    """A D4RL file as d3rlpy's dataset."""
    import d3rlpy
    import h5py

    with h5py.File(path) as file:
        names = ("observations", "actions", "rewards", "terminals", "timeouts")
        columns = {name: file[name][()] for name in names}
    timeouts = columns["timeouts"] & ~columns["terminals"]
    timeouts[-1] |= not columns["terminals"][-1]
    return d3rlpy.dataset.MDPDataset(
        columns["observations"],
        columns["actions"],
        columns["rewards"][:, None],
        terminals=columns["terminals"].astype(np.float32),
        timeouts=timeouts.astype(np.float32),
    )


def train(args: argparse.Namespace) -> None:
    import d3rlpy
    import torch

    torch.set_num_threads(1)
    d3rlpy.seed(args.seed)
    dataset = read(args.file)
    encoder = d3rlpy.models.VectorEncoderFactory([256, 256])
    algorithm = d3rlpy.algos.TD3PlusBCConfig(
        actor_encoder_factory=encoder,
        critic_encoder_factory=encoder,
        observation_scaler=d3rlpy.preprocessing.StandardObservationScaler(),
    ).create(device="cpu")
    algorithm.observation_scaler.fit_with_transition_picker(dataset.episodes, dataset.transition_picker)
    algorithm.build_with_dataset(dataset)
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(args.steps):
        algorithm.update(dataset.sample_transition_batch(256))
    print(
        f"{args.steps} updates in {time.perf_counter() - began:.0f} s, {time.process_time() - cpu:.0f} CPU s"
    )
    linears = [m for m in algorithm.impl.policy.modules() if isinstance(m, torch.nn.Linear)]
    scaler = algorithm.observation_scaler
    policy: dict[str, Any] = {"mean": np.ravel(scaler.mean), "scale": np.ravel(scaler.std) + scaler.eps}
    for i, linear in enumerate(linears):
        policy |= {f"weight{i}": linear.weight.detach().numpy().T, f"bias{i}": linear.bias.detach().numpy()}
    np.savez(args.policy, **policy)


def score(args: argparse.Namespace) -> None:
    import torch

    from offline_gntd.datasets import load
    from offline_gntd.evaluation import Evaluator

    torch.set_num_threads(1)
    task, stored = (
        load(args.file).task,
        {k: torch.from_numpy(v).float() for k, v in np.load(args.policy).items()},
    )
    layers = sum(name.startswith("weight") for name in stored)

    def act(obs: torch.Tensor) -> torch.Tensor:
        x = (obs - stored["mean"]) / stored["scale"]
        for i in range(layers):
            x = x @ stored[f"weight{i}"] + stored[f"bias{i}"]
            x = x.tanh() if i == layers - 1 else x.relu()
        return x

    returns = Evaluator(task, [args.seed], args.episodes).returns(act, args.steps)
    print(f"{args.policy}: score {task.score(returns.mean()):.2f} over {args.episodes} episodes")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("role", choices=["train", "score"])
    parser.add_argument("file", help="a D4RL HDF5 file")
    parser.add_argument("policy", help="the .npz file of the policy")
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=10)
    args = parser.parse_args()
    {"train": train, "score": score}[args.role](args)


if __name__ == "__main__":
    main()
