"""The Python API: train, evaluate, save, load, export."""

import csv
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
import torch

from offline_gntd import TrainedAgent, evaluate, load, train
from offline_gntd.algorithms.q_learning import QLearning
from offline_gntd.cli import main
from offline_gntd.errors import UserError
from offline_gntd.files import save_tensors

FAST = "@hidden_dims=16x16@batch_size=32"
EXPORTED = ["gntd3_bc", "bcq", "cql", "pg_gntd"]  # every kind of continuous policy


def trained(algorithm="gndqn" + FAST, steps=60, **options):
    options = {"evaluate_every": 25, "evaluate_episodes": 2, "progress": False} | options
    return train(algorithm, "cartpole-replay-small", steps, **options)


def test_training_from_python_gives_the_scores_of_the_command_line(small_dataset, home):
    command = ["run", "study", "--algorithms", "gndqn" + FAST, "--datasets", "cartpole-replay-small"]
    command += ["--seeds", "2", "--steps", "60", "--evaluate-every", "25", "--evaluate-episodes", "2"]
    assert main([*command, "--workers", "1"]) == 0
    agents = [trained(seed=0), trained(seed=1)]
    for seed, agent in enumerate(agents):
        path = home / f"results/study/cartpole-replay-small/gndqn{FAST}/seed-{seed}/scores.csv"
        with path.open() as file:
            logged = [(int(row["step"]), float(row["score"])) for row in csv.DictReader(file)]
        assert [(made.step, made.score) for made in agent.evaluations] == logged
        assert evaluate(agent, episodes=2).score == logged[-1][1]
    assert logged[-1][0] == 60


def test_training_takes_a_settings_object_a_dataset_and_several_seeds(small_dataset):
    dataset = load("cartpole-replay-small")
    seen = []
    agents = train(
        QLearning(hidden_dims=(16, 16), batch_size=32),
        dataset,
        steps=50,
        seed=[3, 4],
        evaluate_every=25,
        evaluate_episodes=1,
        progress=False,
        callback=lambda agent, evaluation: seen.append((agent.seed, agent.step, evaluation.step)),
    )
    assert [agent.seed for agent in agents] == [3, 4]
    assert seen == [(3, 25, 25), (4, 25, 25), (3, 50, 50), (4, 50, 50)]


def smallest_kept() -> bool:
    """Whether torch computes with numbers below 1e-38 in this thread."""
    return bool((torch.tensor(1e-40) * 1).item())


def test_training_restores_the_settings_of_torch(small_dataset):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    seen = []
    trained(evaluate_every=25, callback=lambda agent, evaluation: seen.append(smallest_kept()))
    assert torch.get_num_threads() == 2
    assert not any(seen)  # denormal numbers are slow: see processes.prepare
    assert smallest_kept()
    torch.set_num_threads(threads)


def test_a_saved_agent_acts_the_same(small_dataset, tmp_path):
    agent = trained()
    agent.save(tmp_path / "agent.pt")
    again = TrainedAgent.load(tmp_path / "agent.pt")
    obs = np.random.default_rng(0).normal(size=(20, 4))
    assert again.config == agent.config
    assert (again.act(obs) == agent.act(obs)).all()
    assert again.act(obs[0]) == agent.act(obs)[0]
    assert evaluate(again, 3).returns.tolist() == evaluate(agent, 3).returns.tolist()


def continuous_agent(algorithm):
    rng = np.random.default_rng(0)
    arrays = {
        "observations": rng.normal(size=(200, 11)).astype(np.float32),
        "actions": rng.uniform(-1, 1, size=(200, 3)).astype(np.float32),
        "rewards": rng.normal(size=200).astype(np.float32),
        "terminals": np.zeros(200, bool),
        "timeouts": np.zeros(200, bool),
    }
    dataset = "Hopper-v4" if algorithm.startswith("pg_") else load(arrays, env="hopper")
    return train(algorithm, dataset, steps=3, progress=False)


@pytest.mark.parametrize("algorithm", ["gndqn" + FAST, *EXPORTED])
def test_an_exported_policy_gives_the_same_actions(small_dataset, tmp_path, algorithm):
    agent = trained(evaluate_every=None) if algorithm.startswith("gndqn") else continuous_agent(algorithm)
    obs = np.random.default_rng(1).normal(size=(7, agent.task.obs_dim)).astype(np.float32)
    agent.export(tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    np.testing.assert_allclose(session.run(None, {"obs": obs})[0], agent.act(obs), atol=1e-5)


def test_a_policy_exported_by_torch_gives_the_same_actions(small_dataset, tmp_path):
    agent = trained(evaluate_every=None)
    agent.export(tmp_path / "policy.pt2")
    program = torch.export.load(tmp_path / "policy.pt2").module()
    obs = np.random.default_rng(1).normal(size=(7, 4)).astype(np.float32)
    np.testing.assert_allclose(program(torch.from_numpy(obs)).numpy(), agent.act(obs), atol=1e-5)


def test_actions_are_in_the_range_of_the_environment(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "observations": rng.normal(size=(200, 3)).astype(np.float32),
        "actions": np.full((200, 1), 1.8, np.float32),
        "rewards": np.zeros(200, np.float32),
        "terminals": np.zeros(200, bool),
        "timeouts": np.zeros(200, bool),
    }
    agent = train("bc", load(arrays, env="Pendulum-v1"), steps=300, progress=False)
    obs = rng.normal(size=(7, 3)).astype(np.float32)
    np.testing.assert_allclose(agent.act(obs), 1.8, atol=0.25)  # not 0.9
    agent.export(tmp_path / "policy.pt2")
    program = torch.export.load(tmp_path / "policy.pt2").module()
    np.testing.assert_allclose(program(torch.from_numpy(obs)).numpy(), agent.act(obs), atol=1e-5)


@pytest.mark.slow
def test_an_exported_policy_scores_the_same_in_the_environment(small_dataset, tmp_path):
    agent = trained(steps=200, evaluate_every=None)
    agent.export(tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    expected = evaluate(agent, 5)
    agent.agent.act = lambda obs: torch.from_numpy(session.run(None, {"obs": obs[0].numpy()})[0])[None]
    assert evaluate(agent, 5).returns.tolist() == expected.returns.tolist()


def saved(path, save):
    """A file of tensors that is not an agent."""
    save(path, {"step": 1}) if save is save_tensors else save({"step": 1}, path)
    return path


def test_a_seed_may_be_a_number_of_numpy(small_dataset):
    assert trained(seed=np.int64(1)).seed == 1
    assert [agent.seed for agent in trained(seed=np.arange(2))] == [0, 1]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda path: trained("nosuch"), "no algorithm 'nosuch'"),
        (lambda path: trained(steps=0), "steps must be at least 1"),
        (lambda path: trained(evaluate_every=-1), "evaluate_every must be at least 1"),
        (lambda path: trained(evaluate_every=0), "evaluate_every must be at least 1"),
        (
            lambda path: trained(evaluate_every=20, evaluate_episodes=0),
            "evaluate_episodes must be at least 1",
        ),
        (lambda path: trained(seed=[]), "number of seeds must be at least 1"),
        (lambda path: trained(seed=-1), "seed must be a whole number of at least 0"),
        (lambda path: trained(seed=0.5), "seed must be a whole number of at least 0"),
        (lambda path: trained("td3_bc"), "is for continuous actions"),
        (lambda path: evaluate(trained(), 0), "episodes must be at least 1"),
        (lambda path: trained().act([1, 2, 3]), r"obs must be \[4\] or \[n, 4\], not \[3\]"),
        (lambda path: trained().export(path / "policy.txt"), r"ends in \.onnx or \.pt2"),
        (lambda path: TrainedAgent.load(path / "none.pt"), "cannot read"),
        (lambda path: TrainedAgent.load(saved(path / "a.pt", torch.save)), "was not written by offline_gntd"),
        (
            lambda path: TrainedAgent.load(saved(path / "a.pt", save_tensors)),
            "is not an agent that was saved",
        ),
    ],
)
def test_bad_arguments_raise_a_clear_error(small_dataset, tmp_path, call, words):
    with pytest.raises(UserError, match=words):
        call(tmp_path)


def test_importing_the_package_imports_no_torch():
    code = "import sys, offline_gntd; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
