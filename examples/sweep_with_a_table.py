"""A sweep over the damping of GNDQN, resumed if it is run again, and its table.

python examples/sweep_with_a_table.py

The same from a shell:
offline-gntd datasets build cartpole-replay-small --seeds 2
offline-gntd run damping --datasets cartpole-replay-small --seeds 2 --steps 600 \\
             --evaluate-every 100 --evaluate-episodes 10 --seeds-per-process 2 \\
             --algorithms dqn gndqn@kfac.damping=0.05 gndqn@kfac.damping=0.25 gndqn@kfac.damping=1
offline-gntd table damping --metric return
"""

from offline_gntd.analysis import render
from offline_gntd.collection.builders import build_discrete
from offline_gntd.experiments import grid
from offline_gntd.experiments.definitions import Experiment, Protocol, TableView


def main(steps: int = 600, seeds: int = 2) -> str:
    dampings = (0.05, 0.25, 1.0)
    experiment = Experiment(
        name="damping",
        datasets=("cartpole-replay-small",),
        algorithms=("dqn", *(f"gndqn@kfac.damping={damping:g}" for damping in dampings)),
        seeds=seeds,
        protocol=Protocol(
            steps=steps, evaluate_every=max(1, steps // 6), evaluate_episodes=10, seeds_per_process=seeds
        ),
        table=TableView(kind="scores", metric="return"),
    )
    build_discrete(experiment.datasets, seeds=seeds)  # skipped if it is there
    grid.run(experiment.canonical())  # finished runs are skipped, interrupted ones resumed
    table = render.table(experiment.name)
    render.write(table)  # analysis/damping.md, .tex, .csv and .html
    return table.text("md")


if __name__ == "__main__":
    print(main())
