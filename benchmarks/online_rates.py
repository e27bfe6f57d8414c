"""The speed of online training, compared with its parts: python benchmarks/online_rates.py [BODY …]

Environment steps and updates per CPU second: of environments alone, of updates alone, and of a training that
alternates between them. A training takes at least the sum of its parts' times.
"""

import dataclasses
import sys
import time

from offline_gntd import processes
from offline_gntd.collection.online import VectorCollector
from offline_gntd.collection.training import OnlineTraining, TrainingSettings
from offline_gntd.nn.policies import uniform
from offline_gntd.tasks import LOCOMOTION
from offline_gntd.transitions import Sampler

STEPS = 1_000  # measured
WARM_UP = 50  # updates
SETTINGS = dataclasses.replace(TrainingSettings(), steps=3 * STEPS, warm_up=2 * STEPS)


def seconds(work) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def measure(body: str) -> str:
    task = LOCOMOTION[body].task()
    training = OnlineTraining(task, SETTINGS, seed=0)
    for _ in range(SETTINGS.warm_up // SETTINGS.environments):
        training.train_step()
    collector = VectorCollector(task, (1, 0), SETTINGS.environments)
    actions = uniform(
        training.generators, STEPS // SETTINGS.environments, SETTINGS.environments, task.action_dim
    )

    def step() -> None:
        for action in actions[0]:
            collector.step(action)

    environments = seconds(step)
    rows = training.samples.rows.flatten(0, 1)
    sample = Sampler(task, training.agent.config.batch_size, training.generators)
    count = int(STEPS * SETTINGS.updates_per_step)
    for _ in range(WARM_UP):
        training.agent.update(sample(rows))
    updates = seconds(lambda: [training.agent.update(sample(rows)) for _ in range(count)])

    def train() -> None:
        while training.step < SETTINGS.steps:
            training.train_step()

    both = seconds(train)
    return (
        f"{body:<12} alone {STEPS / environments:6,.0f} steps/s, {count / updates:4,.0f} updates/s; "
        f"together {STEPS / both:4,.0f} steps/s, {count / both:4,.0f} updates/s: "
        f"{(environments + updates) / both:.0%} of the sum's rate"
    )


if __name__ == "__main__":
    processes.prepare()
    for body in sys.argv[1:] or LOCOMOTION:
        print(measure(body), flush=True)
