"""Scores of the policies of examples/td3_bc_with_gauss_newton.py, by the evaluation that our runs use.

    .venv/bin/python benchmarks/example_scores.py FILE --steps 20000 --seed 0 1 2

Compare them with `offline-gntd run check --algorithms gntd3_bc --datasets FILE --steps 20000 --seeds 3`.
"""

import argparse
import contextlib
import runpy
from pathlib import Path

import torch
from torch import Tensor, nn

from offline_gntd import load
from offline_gntd.evaluation import Evaluator

EXAMPLE = Path(__file__).parent.parent / "examples" / "td3_bc_with_gauss_newton.py"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", help="a D4RL or Minari name, or the path of an HDF5 file")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--episodes", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dataset = load(args.dataset)
    obs = dataset.transitions.obs
    mean, std = obs.mean(0), obs.std(0) + 1e-3
    train = runpy.run_path(str(EXAMPLE))["train"]
    for seed in args.seed:
        torch.manual_seed(seed)
        actor = train(dataset.transitions, args.steps).actor

        def act(x: Tensor, actor: nn.Module = actor) -> Tensor:
            """Actions for observations [1, episodes, obs_dim]."""
            return actor((x - mean) / std)

        with contextlib.closing(Evaluator(dataset.task, [seed], args.episodes)) as evaluator, torch.no_grad():
            returns = evaluator.returns(act, args.steps)
        print(f"seed {seed}: score {dataset.task.score(float(returns.mean())):.1f}", flush=True)


if __name__ == "__main__":
    main()
