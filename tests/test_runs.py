"""A run: its record, its resumption, its divergence."""

import csv
import json
import math
import random
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from offline_gntd import TrainedAgent, evaluate, versions
from offline_gntd.algorithms import CATALOGUE
from offline_gntd.algorithms.q_learning import QLearner, QLearning
from offline_gntd.configuration import from_dict
from offline_gntd.datasets import load
from offline_gntd.errors import UserError
from offline_gntd.experiments import planning
from offline_gntd.experiments.definitions import Cell, Experiment, Protocol
from offline_gntd.experiments.record import Record
from offline_gntd.experiments.run import Run, Stopped, evaluate_stored
from offline_gntd.files import Unreadable, load_tensors, save_tensors

PROTOCOL = Protocol(steps=100, evaluate_every=40, evaluate_episodes=2, seeds_per_process=2)
FAST = "@hidden_dims=16x16@batch_size=32"


def cell(algorithm="gndqn", seeds=(0, 1), protocol=PROTOCOL):
    return Cell("study", "cartpole-replay-small", algorithm + FAST, seeds, protocol)


def rows(cell, seed, name):
    with open(cell.folder(seed) / name) as file:
        return list(csv.DictReader(file))


def without_timing(cell, seed):
    """The rows and the state of a run, without the columns of seconds."""
    scores, metrics = (
        [{k: v for k, v in row.items() if "seconds" not in k} for row in rows(cell, seed, name)]
        for name in ("scores.csv", "metrics.csv")
    )
    [checkpoint] = cell.folder(seed).glob("checkpoint-*.pt")
    state = load_tensors(checkpoint)["state"]
    flat = {(part, k): v.tolist() for part, values in state.items() for k, v in values.items()}
    return scores, metrics, flat


def test_a_run_records_every_seed(small_dataset):
    Run(cell()).execute()
    for seed in (0, 1):
        description = json.loads((cell().folder(seed) / "run.json").read_text())
        assert description["status"] == "done"
        assert description["seed"] == seed
        assert description["stack"] == 2
        assert description["dataset_sha256"] == load(f"cartpole-replay-small-s{seed}").sha256
        assert description["config"]["kfac"]["damping"] == 0.25
        assert description["env_id"] == "CartPole-v1"
        assert description["training_seconds"] > 0
        scores = rows(cell(), seed, "scores.csv")
        assert [int(row["step"]) for row in scores] == [40, 80, 100]  # the last step is always evaluated
        for row in scores:
            returns = list(map(float, row["returns"].split()))
            assert len(returns) == 2
            assert float(row["return"]) == pytest.approx(sum(returns) / 2)
            assert float(row["score"]) == pytest.approx(100 * (float(row["return"]) - 22.5) / (500 - 22.5))
        seconds = [float(row["training_seconds"]) for row in scores]
        assert seconds == sorted(seconds)
        metrics = rows(cell(), seed, "metrics.csv")
        assert {"bellman_error", "loss", "kfac_condition", "kfac_failures"} <= set(metrics[0])


def test_a_repeated_run_gives_the_same_bits(small_dataset):
    Run(cell()).execute()
    first = [without_timing(cell(), seed) for seed in (0, 1)]
    for seed in (0, 1):
        (cell().folder(seed) / "run.json").unlink()
    Run(cell()).execute()
    assert [without_timing(cell(), seed) for seed in (0, 1)] == first


@pytest.mark.parametrize("algorithm", ["td", "dqn", "gndqn", "gntd_plain", "gntd_exact"])
def test_a_stopped_run_resumes_to_the_same_bits(small_dataset, algorithm, monkeypatch, tmp_path):
    undisturbed, resumed = cell(algorithm), cell(algorithm)
    Run(undisturbed).execute()
    expected = [without_timing(undisturbed, seed) for seed in (0, 1)]
    for seed in (0, 1):
        (undisturbed.folder(seed) / "run.json").unlink()
        [checkpoint] = undisturbed.folder(seed).glob("checkpoint-*.pt")
        checkpoint.unlink()
    checks = iter([False, True])  # stop at the second check, between two evaluations
    monkeypatch.setattr("offline_gntd.experiments.run.STOP_CHECK", 30)
    with pytest.raises(Stopped):
        Run(resumed).execute(stopping=lambda: next(checks))
    Run(resumed).execute()
    assert [without_timing(resumed, seed) for seed in (0, 1)] == expected
    description = json.loads((resumed.folder(0) / "run.json").read_text())
    assert description["resumed_at"] == [40]
    assert description["status"] == "done"


def test_a_checkpoint_of_other_settings_is_not_resumed(small_dataset, monkeypatch):
    monkeypatch.setattr("offline_gntd.experiments.run.STOP_CHECK", 30)
    with pytest.raises(Stopped):
        Run(cell()).execute(stopping=lambda: True)
    longer = cell(protocol=Protocol(steps=120, evaluate_every=60, evaluate_episodes=2, seeds_per_process=2))
    Run(longer).execute()
    assert json.loads((longer.folder(0) / "run.json").read_text())["resumed_at"] == []


def test_a_checkpoint_of_another_torch_version_is_not_resumed(small_dataset, monkeypatch, capsys):
    monkeypatch.setattr("offline_gntd.experiments.run.STOP_CHECK", 30)
    with pytest.raises(Stopped):
        Run(cell()).execute(stopping=lambda: True)
    now = versions.versions()
    monkeypatch.setattr(versions, "versions", lambda: now | {"torch": "an abacus"})
    Run(cell()).execute()
    assert json.loads((cell().folder(0) / "run.json").read_text())["resumed_at"] == []
    assert f"starts from scratch: its checkpoint has torch {now['torch']}, not an abacus\n" in (
        capsys.readouterr().err
    )


def test_a_damaged_checkpoint_of_one_seed_restarts_all_seeds(small_dataset, monkeypatch):
    monkeypatch.setattr("offline_gntd.experiments.run.STOP_CHECK", 50)
    checks = iter([False, True])  # after one evaluation
    with pytest.raises(Stopped):
        Run(cell()).execute(stopping=lambda: next(checks))
    [checkpoint] = cell().folder(1).glob("checkpoint-*.pt")
    checkpoint.write_bytes(b"spoiled")
    Run(cell()).execute()
    for seed in (0, 1):
        assert [int(row["step"]) for row in rows(cell(), seed, "scores.csv")] == [40, 80, 100]


def test_a_diverged_seed_is_recorded_and_the_others_continue(small_dataset):
    run = Run(cell("td"))
    update = run.training.agent.update

    def poisoned(batch):
        if run.step == 60:
            run.training.agent.critic.network.flat[0] = math.nan
        return update(batch)

    run.training.agent.update = poisoned
    run.execute()
    first, second = (json.loads((cell("td").folder(seed) / "run.json").read_text()) for seed in (0, 1))
    assert (first["status"], first["diverged_at"]) == ("diverged", 80)
    assert second["status"] == "done"
    assert [int(row["step"]) for row in rows(cell("td"), 0, "scores.csv")] == [40]  # its last finite value
    assert [int(row["step"]) for row in rows(cell("td"), 1, "scores.csv")] == [40, 80, 100]


def test_a_run_with_too_large_values_has_diverged(small_dataset):
    run = Run(cell("td", seeds=(0,)))
    run.training.agent.critic.network.flat *= 1e6
    run.execute()
    description = json.loads((cell("td").folder(0) / "run.json").read_text())
    assert description["status"] == "diverged"
    assert description["steps"] == 40  # nothing is left to train


def test_cells_and_their_hashes():
    experiment = Experiment(
        "study", ("a", "b"), ("td", "dqn"), seeds=4, protocol=Protocol(seeds_per_process=2)
    )
    cells = experiment.cells()
    assert [c.seeds for c in cells[:2]] == [(0, 1), (2, 3)]
    assert len(cells) == 2 * 2 * 2
    by_algorithm = {c.algorithm: c.config_hash for c in cells if c.seeds == (0, 1)}
    assert by_algorithm["td"] != by_algorithm["dqn"]
    alone = replace(experiment, seeds=1).cells()[0]  # fewer seeds than a stack holds
    assert cells[0].config_hash == cells[1].config_hash != alone.config_hash
    assert from_dict(Experiment, experiment.to_dict()) == experiment


@pytest.mark.parametrize("algorithm", ["gndqn", "td"])
def test_a_stored_policy_reproduces_its_logged_score_exactly(small_dataset, algorithm):
    Run(cell(algorithm, seeds=(3,))).execute()
    evaluation = evaluate_stored(cell(algorithm).folder(3))
    assert evaluation.step == 100
    assert evaluation.reproduced is True
    other = evaluate_stored(cell(algorithm).folder(3), episodes=3)
    assert (len(other.returns), other.reproduced) == (3, None)
    agent = TrainedAgent.load(cell(algorithm).folder(3))
    assert (agent.seed, agent.step) == (3, 100)
    assert evaluate(agent, len(evaluation.returns)).returns.tolist() == evaluation.returns.tolist()


def test_a_stored_policy_of_other_settings_is_refused(small_dataset, monkeypatch):
    Run(cell("td", seeds=(0,))).execute()
    td = CATALOGUE["td"]
    monkeypatch.setitem(CATALOGUE, "td", replace(td, config=replace(td.config, discount=0.5)))
    with pytest.raises(UserError, match="the settings of td@hidden_dims=16x16@batch_size=32 have changed"):
        evaluate_stored(cell("td").folder(0))


def test_a_folder_without_a_checkpoint_is_an_error(home):
    with pytest.raises(UserError, match="there is no checkpoint in"):
        evaluate_stored(home)


LONGER = replace(PROTOCOL, steps=200)


@pytest.mark.parametrize("algorithm", ["dqn", "gndqn", "gntd_plain"])
def test_a_longer_run_continues_a_shorter_one_to_the_same_bits(small_dataset, algorithm):
    Run(cell(algorithm)).execute()  # 100 steps, evaluated at 40, 80 and 100
    Run(cell(algorithm, protocol=LONGER)).execute()
    continued = [without_timing(cell(algorithm), seed) for seed in (0, 1)]
    description = json.loads((cell(algorithm).folder(0) / "run.json").read_text())
    assert description["resumed_at"] == [100]
    assert description["protocol"]["steps"] == description["steps"] == 200
    for seed in (0, 1):
        Record(cell(algorithm).folder(seed)).clear()
    Run(cell(algorithm, protocol=LONGER)).execute()
    assert continued == [without_timing(cell(algorithm), seed) for seed in (0, 1)]
    assert [row["step"] for row in continued[0][0]] == ["40", "80", "120", "160", "200"]


def test_a_finished_run_is_continued_only_by_a_longer_one_with_the_same_versions(small_dataset, monkeypatch):
    study = Experiment("study", ("cartpole-replay-small",), ("dqn" + FAST,), 2, PROTOCOL).canonical()
    [short] = study.cells()
    [longer] = replace(study, protocol=LONGER).cells()
    [shorter] = replace(study, protocol=replace(PROTOCOL, steps=50)).cells()
    sha256s = [source.sha256 for source in short.sources()]
    Run(short).execute()
    assert planning.state(short, sha256s) == "finished"
    assert planning.state(longer, sha256s) == "missing"
    assert planning.state(shorter, sha256s) == "stale"
    Run(shorter).execute()  # --rerun-stale
    description = json.loads((short.folder(0) / "run.json").read_text())
    assert (description["steps"], description["resumed_at"]) == (50, [])
    assert planning.state(shorter, sha256s) == "finished"
    monkeypatch.setattr(versions, "versions", lambda: {"torch": "other"})
    assert planning.state(longer, sha256s) == "stale"


def test_a_run_that_stopped_beyond_the_last_step_is_stale(small_dataset, monkeypatch):
    monkeypatch.setattr("offline_gntd.experiments.run.STOP_CHECK", 20)
    one, checks = cell(), iter([False, False, True])
    with pytest.raises(Stopped):
        Run(one).execute(stopping=lambda: next(checks))  # at 60 of 100 steps
    sha256s = [source.sha256 for source in one.sources()]
    assert planning.state(one, sha256s) == "missing"
    shorter = cell(protocol=replace(PROTOCOL, steps=50))
    assert planning.state(shorter, sha256s) == "stale"
    assert (planning.last_checkpoint(one), planning.last_checkpoint(shorter)) == (60, 0)


def flipped(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_a_flipped_bit_in_a_checkpoint_is_noticed(small_dataset):
    one = cell(seeds=(0,), protocol=replace(PROTOCOL, seeds_per_process=1))
    Run(one).execute()
    [checkpoint] = one.folder(0).glob("checkpoint-*.pt")
    content, draws = checkpoint.read_bytes(), random.Random(0)
    for _ in range(300):
        flipped(checkpoint, draws.randrange(8 * len(content)))
        with pytest.raises(Unreadable):
            Record(one.folder(0)).load(100)
        checkpoint.write_bytes(content)
    assert Record(one.folder(0)).load(100)["step"] == 100


def test_a_damaged_checkpoint_is_not_used_and_the_run_ends_with_the_same_bits(small_dataset, capsys):
    Run(cell()).execute()
    expected = [without_timing(cell(), seed) for seed in (0, 1)]
    [checkpoint] = cell().folder(1).glob("checkpoint-*.pt")
    flipped(checkpoint, 4000)
    Run(cell()).execute()
    assert "checkpoint 100 is not used" in capsys.readouterr().err
    assert [without_timing(cell(), seed) for seed in (0, 1)] == expected


@pytest.mark.parametrize("change", ["name", "shape", "step"])
def test_a_checkpoint_of_another_agent_or_step_is_not_used(small_dataset, capsys, change):
    Run(cell()).execute()
    expected = [without_timing(cell(), seed) for seed in (0, 1)]
    record = Record(cell().folder(0))
    content = record.load(100)
    agent = content["state"]["agent"]
    name = next(name for name, tensor in agent.items() if tensor.dim())
    if change == "name":
        agent["other"] = agent.pop(name)
    elif change == "shape":
        agent[name] = agent[name][..., :-1]
    else:
        content["step"] = 40
    save_tensors(cell().folder(0) / "checkpoint-100.pt", content)
    Run(cell()).execute()
    assert "checkpoint 100 is not used" in capsys.readouterr().err
    assert [without_timing(cell(), seed) for seed in (0, 1)] == expected


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (lambda agent, state: state | {"scale": agent.scale.clone()}, "returns a copy of 'scale'"),
        (lambda agent, state: state | ({"late": agent.scale} if agent.updates else {}), "no tensor 'late'"),
    ],
    ids=["copy", "late"],
)
def test_state_that_cannot_be_restored_is_an_error_at_the_first_checkpoint(
    small_dataset, monkeypatch, state, words
):
    whole, update = QLearner.state_dict, QLearner.update

    def counted(self, batch):
        self.updates = 1
        self.scale += 1
        return update(self, batch)

    monkeypatch.setattr(QLearner, "scale", None, raising=False)
    monkeypatch.setattr(QLearner, "updates", 0, raising=False)
    monkeypatch.setattr(QLearner, "update", counted)
    monkeypatch.setattr(QLearner, "state_dict", lambda self: state(self, whole(self)))
    made = QLearning.agent

    def with_scale(self, *arguments):
        agent = made(self, *arguments)
        agent.scale = torch.zeros(agent.seeds)
        return agent

    monkeypatch.setattr(QLearning, "agent", with_scale)
    with pytest.raises(UserError, match=words):
        Run(cell("dqn")).execute()


def test_a_package_installed_from_git_knows_its_commit(monkeypatch):
    record = '{"url": "git+https://host/offline_gntd", "vcs_info": {"vcs": "git", "commit_id": "abc123"}}'
    monkeypatch.setattr(versions.subprocess, "run", Mock(side_effect=OSError))
    monkeypatch.setattr(versions.metadata, "distribution", lambda _: Mock(read_text=lambda _: record))
    assert versions.commit.__wrapped__() == "abc123"
    monkeypatch.setattr(versions.metadata, "distribution", lambda _: Mock(read_text=lambda _: None))
    assert versions.commit.__wrapped__() is None
