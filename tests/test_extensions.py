"""A user's own files, from an empty folder to a table: those of examples/."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import bits
import pytest

from offline_gntd import extensions
from offline_gntd.algorithms import CATALOGUE, preset
from offline_gntd.cli import main
from offline_gntd.datasets import load
from offline_gntd.errors import UserError

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = "awac@hidden_dim=16@batch_size=32"
RUN = ["--datasets", "mountaincar-noisy", "--evaluate-episodes", "2"]


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    """What a command adds to the environment goes with the test."""
    monkeypatch.setenv(extensions.VARIABLE, "")


@pytest.fixture
def folder(tmp_path):
    """A folder away from the package with the two examples in it."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name in ("my_algorithm.py", "my_dataset.py"):
        shutil.copy(EXAMPLES / name, folder)
    return folder


@pytest.fixture
def algorithm(folder):
    return folder / "my_algorithm.py"


@pytest.fixture
def dataset(folder):
    return folder / "my_dataset.py"


def write(path, text):
    path.write_text(text)
    return path


def test_a_table_with_a_user_s_algorithm_and_dataset(algorithm, dataset, home, capsys, monkeypatch):
    imports = ["--import", str(algorithm), "--import", str(dataset)]
    command = ["run", "mine", *RUN, "--algorithms", SMALL, "bc@hidden_dims=16x16"]
    command += ["--seeds", "2", "--steps", "60", "--evaluate-every", "30"]
    assert main([*command, "--workers", "2", *imports]) == 0  # in processes of their own
    monkeypatch.setenv(extensions.VARIABLE, "")
    capsys.readouterr()
    assert main(["table", "mine"]) == 0  # results are read without the files
    out = capsys.readouterr().out
    assert "| dataset | AWAC hidden_dim=16 batch_size=32 | BC hidden_dims=16x16 |" in out
    assert "1 imported" in out
    assert main(["explain", "mine", "mountaincar-noisy", SMALL]) == 0
    explanation = capsys.readouterr().out
    assert f"--import {algorithm}" in explanation
    assert extensions.fingerprints() == {}
    assert main(["status"]) == 0
    assert "mine: 4 done" in capsys.readouterr().out
    run = next((home / "results/mine/mountaincar-noisy").glob("awac*")) / "seed-1"
    assert main(["evaluate", str(run)]) == 2
    assert main(["evaluate", str(run), *imports]) == 0
    assert "the same" in capsys.readouterr().out


def test_a_user_s_algorithm_is_killed_and_resumes_to_the_bit(folder, home):
    """Two seeds in one process, run by the command line from the user's folder."""

    def start(experiment):
        command = [sys.executable, "-m", "offline_gntd", "run", experiment, *RUN, "--algorithms", SMALL]
        command += ["--seeds", "2", "--seeds-per-process", "2", "--steps", "600", "--evaluate-every", "300"]
        command += [
            "--import",
            "my_algorithm.py",
            "--import",
            "my_dataset.py",
            "--checkpoint-seconds",
            "0.05",
        ]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(command, cwd=folder, start_new_session=True, **quiet)

    assert start("whole").wait() == 0
    run = start("killed")
    results = home / "results/killed/mountaincar-noisy"
    deadline = time.monotonic() + 60
    while not list(results.glob("awac*/seed-1/checkpoint-*.pt")):
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(run.pid, signal.SIGKILL)  # its worker too
    run.wait()
    assert start("killed").wait() == 0
    for seed in range(2):
        [killed] = results.glob(f"awac*/seed-{seed}")
        [whole] = (home / "results/whole/mountaincar-noisy").glob(f"awac*/seed-{seed}")
        assert bits.read(killed) == bits.read(whole)


def test_presets_and_datasets_of_a_user_are_like_ours(algorithm, dataset, capsys):
    extensions.use(algorithm)
    extensions.use(dataset)
    assert preset("awac@temperature=0.1").config.temperature == 0.1
    loaded = load("mountaincar-noisy")
    assert (loaded.origin, loaded.task.reference_max, len(loaded.rows[0])) == ("imported", 94, 7)
    assert main(["datasets", "list"]) == 0
    assert "mountaincar-noisy" in capsys.readouterr().out
    assert "awac" not in CATALOGUE


def test_a_user_s_dataset_is_checked_and_not_converted(dataset, capsys):
    assert main(["datasets", "check", "mountaincar-noisy", "--import", str(dataset)]) == 0
    assert "mountaincar-noisy: sound" in capsys.readouterr().out
    assert main(["datasets", "convert", "mountaincar-noisy", "--format", "d4rl"]) == 2
    assert "is imported" in capsys.readouterr().err


def test_data_is_made_once_and_again_when_its_file_changes(dataset, monkeypatch):
    extensions.use(dataset)
    module = extensions._module(dataset)
    calls = []
    source = module.DATASETS["mountaincar-noisy"]
    monkeypatch.setitem(
        module.DATASETS,
        "mountaincar-noisy",
        type(source)(source.env_id, lambda: calls.append(1) or module.noisy_controller(50)),
    )
    assert load("mountaincar-noisy").sha256 == load("mountaincar-noisy").sha256
    assert len(calls) == 1
    dataset.write_text(dataset.read_text() + "\n")
    load("mountaincar-noisy")
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


def test_two_files_may_be_used_at_once(algorithm, tmp_path):
    extensions.use(algorithm)
    other = "from offline_gntd.algorithms import CATALOGUE\nPRESETS = {'again': CATALOGUE['dqn']}\n"
    extensions.use(write(tmp_path / "b.py", other))
    assert preset("again").label == "DQN"
    assert preset("awac").label == "AWAC"
