"""d3rlpy's updates, timed in a process of its own: it needs versions of other packages than ours.

Run by the Python of an environment that has d3rlpy, with nothing of this package. It reads one JSON object
per line {algorithm, obs_dim, action_dim, config, seconds} and answers each with its updates per second.
"""

import json
import sys
import time

import d3rlpy
import numpy as np
import structlog
import torch

ROWS = 100_000


def encoder(widths):
    return d3rlpy.models.VectorEncoderFactory(list(widths))


def made(algorithm, config):
    """Their algorithm with our widths and batch, everything else as they have it."""
    networks = {
        "actor_encoder_factory": encoder(config["widths"]),
        "critic_encoder_factory": encoder(config["widths"]),
    }
    batch = {"batch_size": config["batch_size"]}
    if algorithm == "bc":
        return d3rlpy.algos.BCConfig(encoder_factory=encoder(config["widths"]), **batch)
    if algorithm == "td3_bc":
        scaler = d3rlpy.preprocessing.StandardObservationScaler()
        return d3rlpy.algos.TD3PlusBCConfig(observation_scaler=scaler, **networks, **batch)
    if algorithm == "bcq":
        vae = {"imitator_encoder_factory": encoder(config["vae_widths"])}
        return d3rlpy.algos.BCQConfig(n_action_samples=config["candidates"], **networks, **vae, **batch)
    return d3rlpy.algos.CQLConfig(n_action_samples=config["samples"], **networks, **batch)


def episodes(obs_dim, action_dim):
    rng = np.random.default_rng(0)
    ends = (np.arange(ROWS) % 1000 == 999).astype(np.float32)
    return d3rlpy.dataset.MDPDataset(
        rng.standard_normal((ROWS, obs_dim), np.float32),
        np.tanh(rng.standard_normal((ROWS, action_dim), np.float32)),
        rng.standard_normal((ROWS, 1), np.float32),
        terminals=np.zeros(ROWS, np.float32),
        timeouts=ends,
    )


class Subject:
    def __init__(self, request):
        self.dataset = episodes(request["obs_dim"], request["action_dim"])
        self.algorithm = made(request["algorithm"], request["config"]).create(device="cpu")
        if self.algorithm.observation_scaler:
            self.algorithm.observation_scaler.fit_with_transition_picker(
                self.dataset.episodes, self.dataset.transition_picker
            )
        self.algorithm.build_with_dataset(self.dataset)
        self.batch = request["config"]["batch_size"]
        self.update()

    def update(self):
        """What one step of d3rlpy's `fit` does."""
        self.algorithm.update(self.dataset.sample_transition_batch(self.batch))

    def rate(self, seconds):
        count, began = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - began) < seconds or not count:
            for _ in range(2):  # a delayed actor's period
                self.update()
            count += 2
        return count / elapsed


def main():
    torch.set_num_threads(1)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    subjects = {}
    for line in sys.stdin:
        request = json.loads(line)
        key = (request["algorithm"], request["obs_dim"])
        if key not in subjects:
            subjects[key] = Subject(request)
        print(json.dumps(subjects[key].rate(request["seconds"])), flush=True)


if __name__ == "__main__":
    main()
