"""Times d3rlpy's updates in another Python environment: d3rlpy needs other versions of our dependencies.

It imports nothing of this package. It reads one JSON object per line {algorithm, obs_dim, action_dim, rows,
config, seconds} and answers each with its updates per second.
"""

import functools
import json
import sys
import time

import d3rlpy
import numpy as np
import structlog
import torch


def encoder(hidden_dims):
    return d3rlpy.models.VectorEncoderFactory(list(hidden_dims))


def config_of(algorithm, config, obs_dim):
    """d3rlpy's algorithm with our layer sizes and batch size; all other settings are d3rlpy's defaults."""
    networks = {
        "actor_encoder_factory": encoder(config["hidden_dims"]),
        "critic_encoder_factory": encoder(config["hidden_dims"]),
    }
    batch = {"batch_size": config["batch_size"]}
    if algorithm == "bc":
        return d3rlpy.algos.BCConfig(encoder_factory=encoder(config["hidden_dims"]), **batch)
    if algorithm == "td3_bc":
        # the statistics of `episodes`; d3rlpy would compute them one transition at a time
        scaler = d3rlpy.preprocessing.StandardObservationScaler(mean=np.zeros(obs_dim), std=np.ones(obs_dim))
        return d3rlpy.algos.TD3PlusBCConfig(observation_scaler=scaler, **networks, **batch)
    if algorithm == "bcq":
        vae = {"imitator_encoder_factory": encoder(config["vae_hidden_dims"])}
        return d3rlpy.algos.BCQConfig(n_action_samples=config["candidates"], **networks, **vae, **batch)
    return d3rlpy.algos.CQLConfig(n_action_samples=config["samples"], **networks, **batch)


@functools.cache
def episodes(rows, obs_dim, action_dim):
    rng = np.random.default_rng(0)
    ends = (np.arange(rows) % 1000 == 999).astype(np.float32)
    return d3rlpy.dataset.MDPDataset(
        rng.standard_normal((rows, obs_dim), np.float32),
        np.tanh(rng.standard_normal((rows, action_dim), np.float32)),
        rng.standard_normal((rows, 1), np.float32),
        terminals=np.zeros(rows, np.float32),
        timeouts=ends,
    )


class TimedAgent:
    def __init__(self, request):
        self.dataset = episodes(request["rows"], request["obs_dim"], request["action_dim"])
        algorithm = config_of(request["algorithm"], request["config"], request["obs_dim"])
        self.algorithm = algorithm.create(device="cpu")
        self.algorithm.build_with_dataset(self.dataset)
        self.batch = request["config"]["batch_size"]
        self.update()

    def update(self):
        """One step of d3rlpy's `fit`."""
        self.algorithm.update(self.dataset.sample_transition_batch(self.batch))

    def rate(self, seconds):
        count, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds or not count:
            for _ in range(2):  # the period of a delayed actor
                self.update()
            count += 2
        return count / elapsed


def main():
    torch.set_num_threads(1)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    agents = {}
    for line in sys.stdin:
        request = json.loads(line)
        key = (request["algorithm"], request["obs_dim"])
        if key not in agents:
            agents[key] = TimedAgent(request)
        print(json.dumps(agents[key].rate(request["seconds"])), flush=True)


if __name__ == "__main__":
    main()
