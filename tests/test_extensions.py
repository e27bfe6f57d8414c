"""User files (--import): those of examples/ from import to table, and files with faults."""

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
    """Undo what a command adds to the environment."""
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


def test_preset_without_the_kind_of_its_actions_is_refused(algorithm):
    lines = [line for line in algorithm.read_text().splitlines() if not line.startswith("    discrete =")]
    extensions.use(write(algorithm, "\n".join(lines)))
    with pytest.raises(UserError, match="AWAC has no 'discrete'"):
        preset("awac")


def test_table_with_a_user_algorithm_and_dataset(algorithm, dataset, home, capsys, monkeypatch):
    imports = ["--import", str(algorithm), "--import", str(dataset)]
    command = ["run", "mine", *RUN, "--algorithms", SMALL, "bc@hidden_dims=16x16"]
    command += ["--seeds", "2", "--steps", "60", "--evaluate-every", "30"]
    assert main([*command, "--workers", "2", *imports]) == 0  # in processes of their own
    monkeypatch.setenv(extensions.VARIABLE, "")
    capsys.readouterr()
    assert main(["table", "mine"]) == 0  # results are read without the files
    out = capsys.readouterr().out
    assert "| dataset | AWAC hidden_dim=16 batch_size=32 | BC hidden_dims=16x16 |" in out
    assert "Data: 1 user's" in out
    assert main(["explain", "mine", "mountaincar-noisy", SMALL]) == 0
    explanation = capsys.readouterr().out
    assert f"--import {algorithm}" in explanation
    assert extensions.file_hashes() == {}
    assert main(["status"]) == 0
    assert "mine: 4 done" in capsys.readouterr().out
    run = next((home / "results/mine/mountaincar-noisy").glob("awac*")) / "seed-1"
    assert main(["evaluate", str(run)]) == 2
    assert main(["evaluate", str(run), *imports]) == 0
    assert "the same" in capsys.readouterr().out


def test_killed_user_algorithm_resumes_to_the_bit(folder, home):
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
    deadline = time.monotonic() + 180
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


def test_user_presets_and_datasets_work_like_built_in_ones(algorithm, dataset, capsys):
    extensions.use(algorithm)
    extensions.use(dataset)
    assert preset("awac@temperature=0.1").config.temperature == 0.1
    loaded = load("mountaincar-noisy")
    assert (loaded.origin, loaded.task.reference_max, len(loaded.rows[0])) == ("imported", 94, 7)
    assert main(["datasets", "list"]) == 0
    assert "mountaincar-noisy" in capsys.readouterr().out
    assert "awac" not in CATALOGUE


def test_user_dataset_can_be_checked_but_not_converted(dataset, capsys):
    assert main(["datasets", "check", "mountaincar-noisy", "--import", str(dataset)]) == 0
    assert "mountaincar-noisy: sound" in capsys.readouterr().out
    assert main(["datasets", "convert", "mountaincar-noisy", "--format", "d4rl"]) == 2
    assert "cannot be converted" in capsys.readouterr().err


def test_user_dataset_is_made_again_when_its_file_changes(tmp_path):
    text = """
import numpy as np
from offline_gntd.datasets import Source
def make():
    calls.append(1)
    n = 20
    return {"observations": np.full((n, 4), SCALE), "actions": np.zeros(n), "rewards": np.ones(n),
            "terminals": np.arange(n) % 5 == 4}
calls = []
DATASETS = {"mine": Source("CartPole-v1", make)}
"""
    path = write(tmp_path / "mine.py", text + "SCALE = 1.0\n")
    extensions.use(path)
    first = load("mine").sha256
    assert load("mine").sha256 == first
    assert len(extensions._module(path).calls) == 1
    write(path, text + "SCALE = 2.0\n")
    assert load("mine").sha256 == first  # of the code that was imported
    extensions.use(path)
    assert load("mine").sha256 != first
    assert len(extensions._module(path).calls) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("PRESETS = {}\nx = 1 / 0\n", "line 2: ZeroDivisionError"),
        ("def f(:\n", "line 1: SyntaxError"),
        ("x = 1\n", "neither PRESETS nor DATASETS"),
        ("PRESETS = [1]\n", "PRESETS must be a dict by name, not list"),
        ("import sys\nsys.exit(3)\n", "line 2: SystemExit: the file ends the process"),
        ("raise ValueError('one\\ntwo')\n", "line 1: ValueError: one"),
        ("PRESETS = {'../mine': 1}\n", "'../mine' cannot name a preset"),
        ("DATASETS = {'a/b': 1}\n", "'a/b' cannot name a dataset"),
        ("DATASETS = {'..': 1}\n", "'..' cannot name a dataset"),
        ("DATASETS = {5: 1}\n", "5 cannot name a dataset"),
        (f"PRESETS = {{'{'x' * 300}': 1}}\n", "cannot name a preset"),
    ],
)
def test_unusable_file_is_one_line(text, words, tmp_path, capsys):
    path = write(tmp_path / "bad.py", text)
    assert main(["algorithms", "--import", str(path)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert extensions.files() == []


def test_entry_of_a_wrong_type_is_one_line(tmp_path, capsys):
    path = write(tmp_path / "other.py", "PRESETS = {'mine': 1}\n")
    assert main(["algorithms", "--import", str(path)]) == 2
    assert "PRESETS['mine'] must be a Preset, not int" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("'cartpole-replay-s0': Source('CartPole-v1', dict)", "that name is taken"),
        ("'mine': Source('CartPole-v1', dict, reference_min=5, reference_max=5)", "must be more than"),
    ],
)
def test_impossible_dataset_is_one_line(entry, words, tmp_path, capsys):
    text = f"from offline_gntd.datasets.loading import Source\nDATASETS = {{{entry}}}\n"
    path = write(tmp_path / "other.py", text)
    assert main(["datasets", "show", "mine", "--import", str(path)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_path_with_the_separator_of_paths_is_refused(tmp_path):
    (tmp_path / "a:b").mkdir()
    with pytest.raises(UserError, match="its path contains ':'"):
        extensions.use(write(tmp_path / "a:b" / "mine.py", "PRESETS = {}\n"))


def test_missing_file(tmp_path, capsys):
    assert main(["algorithms", "--import", str(tmp_path / "none.py")]) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_loop_of_links_is_one_line(tmp_path, capsys):
    loop = tmp_path / "loop.py"
    loop.symlink_to(loop)
    for path in (loop, tmp_path / ("x" * 300)):
        assert main(["algorithms", "--import", str(path)]) == 2
        error = capsys.readouterr().err
        assert error.startswith("offline-gntd: cannot import")
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise RuntimeError('no data')", "make() of DATASETS['mine'] failed: RuntimeError: no data"),
        ("raise SystemExit(1)", "make() of DATASETS['mine'] failed: SystemExit: 1"),
        ("return None", "must return a dict of arrays, not NoneType"),
        ("return {'rewards': [[1, 2], [3]]}", "values that are no arrays"),
        ("return {}", "has no 'observations'"),
    ],
)
def test_make_that_fails_is_one_line(body, words, tmp_path, capsys):
    text = f"from offline_gntd.datasets import Source\ndef make():\n    {body}\n"
    path = write(tmp_path / "mine.py", f"{text}DATASETS = {{'mine': Source('CartPole-v1', make)}}\n")
    assert main(["datasets", "show", "mine", "--import", str(path)]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert main(["datasets", "check", "mine", "--import", str(path)]) == 2
    assert words in capsys.readouterr().out


def test_taken_names_are_refused(tmp_path):
    extensions.use(
        write(tmp_path / "a.py", "PRESETS = {'dqn': None}\nDATASETS = {'cartpole-replay': None}\n")
    )
    with pytest.raises(UserError, match="'dqn' in PRESETS: that name is taken"):
        preset("gntd")
    with pytest.raises(UserError, match="'cartpole-replay' in DATASETS: that name is taken"):
        load("something")


def test_two_files_can_be_imported(algorithm, tmp_path):
    extensions.use(algorithm)
    other = "from offline_gntd.algorithms import CATALOGUE\nPRESETS = {'again': CATALOGUE['dqn']}\n"
    extensions.use(write(tmp_path / "b.py", other))
    assert preset("again").label == "DQN"
    assert preset("awac").label == "AWAC"
