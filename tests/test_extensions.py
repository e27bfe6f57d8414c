"""A user's own file, from an empty folder to a table: the one the documentation shows."""

import shutil
from pathlib import Path

import pytest

from offline_gntd import extensions
from offline_gntd.algorithms import CATALOGUE, preset
from offline_gntd.cli import main
from offline_gntd.datasets import load
from offline_gntd.errors import UserError

EXAMPLE = Path(__file__).parents[1] / "docs/my_algorithm.py"
RUN = ["run", "mine", "--algorithms", "logistic", "dqn@hidden_dims=16x16", "--datasets", "cartpole-clumsy"]
RUN += ["--seeds", "2", "--steps", "200", "--evaluate-every", "100", "--evaluate-episodes", "2"]


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    """What a command adds to the environment goes with the test."""
    monkeypatch.setenv(extensions.VARIABLE, "")


@pytest.fixture
def mine(tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return Path(shutil.copy(EXAMPLE, folder))


def write(path, text):
    path.write_text(text)
    return path


def test_a_table_with_one_s_own_algorithm_and_dataset(mine, home, capsys, monkeypatch):
    assert main([*RUN, "--workers", "2", "--import", str(mine)]) == 0  # in processes of their own
    monkeypatch.setenv(extensions.VARIABLE, "")
    capsys.readouterr()
    assert main(["table", "mine"]) == 0  # results are read without the file
    out = capsys.readouterr().out
    assert "| dataset | Logistic | DQN hidden_dims=16x16 |" in out
    assert "1 imported" in out
    assert main(["explain", "mine", "cartpole-clumsy", "logistic"]) == 0
    explanation = capsys.readouterr().out
    assert f"--import {mine}" in explanation
    assert extensions.fingerprints() == {}
    assert main(["status"]) == 0
    assert "mine: 4 done" in capsys.readouterr().out
    run = home / "results/mine/cartpole-clumsy/logistic/seed-1"
    assert main(["evaluate", str(run)]) == 2
    assert main(["evaluate", str(run), "--import", str(mine)]) == 0
    assert "the same" in capsys.readouterr().out


def test_presets_and_datasets_of_one_s_own_are_like_ours(mine, capsys):
    extensions.use(mine)
    assert preset("logistic@learning_rate=0.1").config.learning_rate == 0.1
    dataset = load("cartpole-clumsy")
    assert (dataset.origin, dataset.task.reference_max, len(dataset.rows[0])) == ("imported", 500, 11)
    assert main(["datasets", "list"]) == 0
    assert "cartpole-clumsy" in capsys.readouterr().out
    assert "logistic" not in CATALOGUE


def test_a_dataset_of_one_s_own_is_checked_and_not_converted(mine, capsys):
    assert main(["datasets", "check", "cartpole-clumsy", "--import", str(mine)]) == 0
    assert "cartpole-clumsy: sound" in capsys.readouterr().out
    assert main(["datasets", "convert", "cartpole-clumsy", "--format", "d4rl"]) == 2
    assert "is imported" in capsys.readouterr().err


def test_data_is_made_once_and_anew_when_its_file_changes(mine, monkeypatch):
    extensions.use(mine)
    module = extensions._module(mine)
    calls = []
    source = module.DATASETS["cartpole-clumsy"]
    monkeypatch.setitem(
        module.DATASETS,
        "cartpole-clumsy",
        type(source)("CartPole-v1", lambda: calls.append(1) or module.clumsy(50)),
    )
    assert load("cartpole-clumsy").sha256 == load("cartpole-clumsy").sha256
    assert len(calls) == 1
    mine.write_text(mine.read_text() + "\n")
    load("cartpole-clumsy")
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("PRESETS = {}\nx = 1 / 0\n", "line 2: ZeroDivisionError"),
        ("def f(:\n", "line 1: SyntaxError"),
        ("x = 1\n", "neither PRESETS nor DATASETS"),
        ("PRESETS = [1]\n", "PRESETS must be a dict by name, not list"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(text, words, tmp_path, capsys):
    path = write(tmp_path / "bad.py", text)
    assert main(["algorithms", "--import", str(path)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert extensions.files() == []


def test_an_entry_of_another_kind_is_one_line(tmp_path, capsys):
    path = write(tmp_path / "other.py", "PRESETS = {'mine': 1}\n")
    assert main(["algorithms", "--import", str(path)]) == 2
    assert "PRESETS['mine'] must be a Preset, not int" in capsys.readouterr().err


def test_a_file_that_is_not_there(tmp_path, capsys):
    assert main(["algorithms", "--import", str(tmp_path / "none.py")]) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_names_that_are_taken_are_refused(tmp_path):
    extensions.use(
        write(tmp_path / "a.py", "PRESETS = {'dqn': None}\nDATASETS = {'cartpole-replay': None}\n")
    )
    with pytest.raises(UserError, match="'dqn': that name is taken"):
        preset("gntd")
    with pytest.raises(UserError, match="'cartpole-replay': that name is taken"):
        load("something")


def test_two_files_may_be_used_at_once(mine, tmp_path):
    extensions.use(mine)
    other = "from offline_gntd.algorithms import CATALOGUE\nPRESETS = {'again': CATALOGUE['dqn']}\n"
    extensions.use(write(tmp_path / "b.py", other))
    assert preset("again").label == "DQN"
    assert preset("logistic").label == "Logistic"
