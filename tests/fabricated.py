"""Finished runs with made-up numbers, so that what is computed from them can be checked by hand."""

from offline_gntd.experiments.record import to_csv
from offline_gntd.files import write_json, write_text

D4RL = {"dataset_origin": "d4rl", "env_id": "Hopper-v4"}


def d4rl(name):
    """The dataset columns of a run on one of D4RL's own files."""
    return D4RL | {"dataset_version": name.rpartition("-")[2], "dataset_d4rl_id": name}


def write_run(
    experiment, algorithm, seed, returns, errors=None, dataset="cartpole-replay", metrics=None, **changes
):
    """Write a finished run with evaluations at 10, 20, … updates. An update takes 1 s, and 0.1 s of CPU time;
    a score is a fifth of a return. `errors` are squared TD errors, `metrics` further columns."""
    cell = next(
        c for c in experiment.cells() if c.algorithm == algorithm and seed in c.seeds and c.dataset == dataset
    )
    description = {
        "experiment": experiment.name,
        "dataset": dataset,
        "algorithm": algorithm,
        "label": algorithm.upper(),
        "seed": seed,
        "status": "done",
        "config": {"hidden_dims": [16, 16], "learning_rate": 0.001, "kfac": None},
        "config_hash": "abc",
        "protocol": vars(experiment.protocol_of(algorithm)),
        "stack": 1,
        "dataset_source": dataset,
        "dataset_sha256": "f" * 64,
        "dataset_rows": 100,
        "dataset_score": 50.0,
        "device": "cpu",
        "threads": 1,
        "dataset_origin": "built",
        "dataset_d4rl_id": None,
        "dataset_version": None,
        "env_id": "CartPole-v1",
        "task": {"discrete": True, "reference_min": 0.0, "reference_max": 500.0, "reference_source": "hand"},
        "versions": {"python": "3"},
        "commit": "c0ffee",
        "machine": {"cpu": "abacus", "cores": 2},
        "resumed_at": [],
        "finished": "2026-01-01T00:00:00+00:00",
    } | changes
    description.setdefault("steps", description["protocol"]["steps"])
    write_json(cell.folder(seed) / "run.json", description)
    steps = range(10, 10 * len(returns) + 1, 10)
    rows = [
        {"step": s, "return": r, "score": r / 5, "training_seconds": s, "training_cpu_seconds": s / 10}
        for s, r in zip(steps, returns, strict=True)
    ]
    write_text(cell.folder(seed) / "scores.csv", to_csv(rows))
    errors = errors or [1.0] * len(returns)
    rows = [
        {"step": s, "bellman_error": e} | {name: values[i] for name, values in (metrics or {}).items()}
        for i, (s, e) in enumerate(zip(steps, errors, strict=True))
    ]
    write_text(cell.folder(seed) / "metrics.csv", to_csv(rows))
