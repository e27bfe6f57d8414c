"""TD3+BC and GNTD3+BC on a D4RL file, from Python.

offline-gntd datasets fetch hopper-medium-v2
python examples/train_on_d4rl.py hopper-medium-v2
python examples/train_on_d4rl.py path/to/file.hdf5 --steps 100000
"""

import argparse

from offline_gntd import evaluate, load, train


def main(dataset: str, steps: int, episodes: int) -> dict[str, float]:
    data = load(dataset)
    print(f"{data.name}: {len(data):,} transitions, mean score of its episodes {data.score:.1f}")
    scores = {}
    for algorithm in ("td3_bc", "gntd3_bc"):
        agent = train(
            algorithm,
            data,
            steps=steps,
            seed=0,
            evaluate_every=max(1, steps // 4),
            evaluate_episodes=episodes,
        )
        curve = ", ".join(f"{made.step:,}: {made.score:.1f}" for made in agent.evaluations)
        scores[algorithm] = evaluate(agent, episodes).score
        print(f"{algorithm}: score {scores[algorithm]:.1f} (by updates {curve})")
        agent.save(f"{algorithm}.pt")  # TrainedAgent.load reads it
    return scores


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", help="a D4RL name, an HDF5 file or a Minari id")
    parser.add_argument("--steps", type=int, default=2_000, help="updates")
    parser.add_argument("--episodes", type=int, default=5, help="episodes per evaluation")
    arguments = parser.parse_args()
    main(arguments.dataset, arguments.steps, arguments.episodes)
