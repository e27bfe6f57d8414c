"""From a cell of a table to its runs, and the commands that repeat them."""

import json
import shlex
from dataclasses import replace

import pytest
from fabricated import write_run

from offline_gntd.algorithms import preset
from offline_gntd.analysis.explain import explain
from offline_gntd.cli import main
from offline_gntd.configuration import to_dict
from offline_gntd.errors import UserError
from offline_gntd.experiments import definitions, results
from offline_gntd.experiments.definitions import Experiment, Protocol, store

ALGORITHM = "dqn@hidden_dims=16x16@batch_size=32"


def test_commands_reproduce_every_score(small_dataset, home, capsys):
    run = ["run", "study", "--algorithms", ALGORITHM, "--datasets", "cartpole-replay-small", "--seeds", "2"]
    run += ["--steps", "60", "--evaluate-every", "30", "--evaluate-episodes", "2", "--seeds-per-process", "2"]
    assert main(run) == 0
    command = explain("study", "cartpole-replay-small", ALGORITHM).commands[-1]
    words = shlex.split(command)
    assert words[:3] == ["offline-gntd", "run", "again-study"]
    assert main(words[1:]) == 0
    first, again = (results.read(name).evaluations for name in ("study", "again-study"))
    columns = [*results.KEY, "step", "returns", "score", "loss"]
    assert first[columns].values.tolist() == again[columns].values.tolist()
    hashes = {
        name: explain(name, "cartpole-replay-small", ALGORITHM).provenance["config hash"]
        for name in ("study", "again-study")
    }
    assert hashes["study"] == hashes["again-study"]


@pytest.fixture
def study():
    experiment = Experiment("study", ("cartpole-replay",), ("dqn", "gntd"), 2, Protocol(20, 10, 1))
    store(experiment)
    config = to_dict(replace(preset("dqn").config, hidden_dims=(16, 16)))
    write_run(experiment, "dqn", 0, [100, 200], label="DQN", config=config)
    write_run(experiment, "dqn", 1, [100, 300], label="DQN", config=config, commit="decaf-changed")
    return experiment


def test_text(study, capsys):
    assert main(["explain", "study", "cartpole-replay", "DQN"]) == 0  # by its label
    text = capsys.readouterr().out
    for words in (
        "score 50.0 ± 14.1 (std with ddof 1), 2 of 2 seeds",  # 40 and 60
        "hidden_dims  16x16, not 256x256",
        "f" * 64,
        "CartPole-v1",
        "c0ffee (seed 0); decaf-changed (seed 1)",
        "uncommitted changes",
        "offline-gntd datasets build cartpole-replay --transitions 100",
        "run again-study --algorithms dqn --datasets cartpole-replay --seeds 2 --steps 20",
        "study/cartpole-replay/dqn/seed-0",
    ):
        assert words in text
    assert "kfac" not in text.partition("differ from the preset")[2].partition("data")[0]


def test_build_command_is_the_recorded_one(home, capsys):
    experiment = Experiment("other", ("cartpole-replay",), ("dqn",), seeds=1, protocol=Protocol(20, 10, 2))
    store(experiment)
    write_run(
        experiment, "dqn", 0, [1, 2], dataset_built_by="offline-gntd datasets build cartpole-replay --seed 7"
    )
    assert main(["explain", "other", "cartpole-replay", "dqn"]) == 0
    assert "datasets build cartpole-replay --seed 7\n" in capsys.readouterr().out


def test_json(study, capsys):
    assert main(["explain", "study", "cartpole-replay", "dqn", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [seed["value"] for seed in found["seeds"]] == [40, 60]
    assert found["changed"] == {"hidden_dims": ["256x256", "16x16"]}


def test_cell_without_runs(study):
    with pytest.raises(UserError, match="no finished runs of gntd on cartpole-replay in study"):
        explain("study", "cartpole-replay", "gntd")


def test_exported_runs_name_their_file(study):
    results.export(definitions.find("study"))
    for seed in (0, 1):
        (study.cells()[0].folder(seed) / "run.json").unlink()
        for path in study.cells()[0].folder(seed).iterdir():
            path.unlink()
        study.cells()[0].folder(seed).rmdir()
    kept = {seed["folder"] for seed in explain("study", "cartpole-replay", "dqn").seeds}
    assert [path.endswith("results/study.csv") for path in kept] == [True]
