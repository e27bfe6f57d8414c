"""Damaged files and impossible input: one clear line, no traceback, and no effect on other runs."""

import json
import random
import shutil
import signal
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from offline_gntd import extensions, lock
from offline_gntd.cli import main
from offline_gntd.experiments import definitions, planning, results
from offline_gntd.experiments.definitions import Experiment, Protocol
from offline_gntd.experiments.job import Options, run_job
from offline_gntd.experiments.record import DamagedRun
from offline_gntd.lock import Lock

FAST = "@hidden_dims=16x16@batch_size=32"
STUDY = Experiment(
    "study",
    ("cartpole-replay-small",),
    ("dqn" + FAST, "td" + FAST),
    seeds=2,
    protocol=Protocol(steps=40, evaluate_every=20, evaluate_episodes=2),
)
RUN = ["run", "study", "--datasets", *STUDY.datasets, "--algorithms", *STUDY.algorithms, "--seeds", "2"]
RUN += ["--steps", "40", "--evaluate-every", "20", "--evaluate-episodes", "2", "--workers", "1"]
LONG = "a" * 300


@contextmanager
def time_limit(seconds):
    def expire(number, frame):
        raise TimeoutError(f"not finished after {seconds} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def assert_one_line(arguments, capsys, code=2):
    capsys.readouterr()
    with time_limit(30):
        assert main(arguments) == code
    error = capsys.readouterr().err
    assert error.startswith("offline-gntd: ")
    assert error.count("\n") == 1
    assert len(error) < 800
    return error


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", LONG, "--algorithms", "td", "--datasets", "cartpole-replay"],
        ["run", "x", "--algorithms", LONG, "--datasets", "cartpole-replay"],
        ["run", "x", "--algorithms", "td", "--datasets", LONG],
        ["run", "x", "--algorithms", "td", "--datasets", f"{LONG}.hdf5"],
        ["run", f"{LONG}.toml"],
        ["run", LONG],
        ["run", "table1", "--set", f"{LONG}=1"],
        ["run", "table1", "--set", f"kfac.damping={LONG}"],
        ["run", "table1", "--device", LONG],
        ["run", "table1", "--import", f"{LONG}.py"],
        ["status", LONG],
        ["table", LONG],
        ["figure", LONG],
        ["report", LONG],
        ["explain", LONG, "a", "b"],
        ["explain", "table1", LONG, "dqn"],
        ["export", LONG],
        ["evaluate", LONG],
        ["algorithms", LONG],
        ["datasets", "show", LONG],
        ["datasets", "build", LONG],
        ["datasets", "fetch", LONG],
        ["datasets", "check", LONG],
        ["datasets", "convert", LONG, "--format", "d4rl"],
        ["bench", "--sizes", LONG],
    ],
    ids=lambda arguments: " ".join(word[:12] for word in arguments),
)
def test_a_name_of_300_letters_is_refused_in_one_line(arguments, home, capsys):
    assert_one_line(arguments, capsys)
    assert not list(home.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seeds", "99999999999", "--dry-run"], "--seeds must be at least 1 and at most 10,000"),
        (["--seeds", str(2**70)], "--seeds must be at least 1 and at most 10,000"),
        (["--steps", str(2**70)], "steps must be at least 1 and at most"),
        (["--evaluate-every", str(2**70)], "evaluate_every must be at least 1 and at most"),
        (["--evaluate-episodes", str(2**70)], "evaluate_episodes must be at least 1 and at most"),
        (["--seeds-per-process", str(2**70)], "seeds_per_process must be at least 1 and at most"),
        (["--set", f"batch_size={2**70}"], "it does not fit into 64 bits"),
        (["--set", f"batch_size={'9' * 5000}"], "is too long a name"),
        (["--set", f"hidden_dims=16x{2**70}"], "it does not fit into 64 bits"),
        (["--set", "learning_rate=1e999"], "it must be finite"),
        (["--device", "cpu:7"], "no device 'cpu:7'; use cpu, cuda or cuda:N"),
    ],
)
def test_too_large_numbers_are_refused_in_one_line(arguments, words, home, capsys):
    assert words in assert_one_line(["run", "table1", *arguments], capsys)
    assert not list(home.iterdir())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = " + "[" * 5000, "nested too deeply"),
        ("a = " + "[" * 400 + "]" * 400, "no Experiment setting 'a'"),
        ("name = 5", "name must be text, not 5"),
        ("name = 'a/b'", "cannot name an experiment"),
        ("name = '..'", "cannot name an experiment"),
        ("seeds = 99999999999999999999999", "--seeds must be at least 1 and at most"),
        ("seeds = true", "seeds must be a whole number"),
        ("datasets = ['a']\nalgorithms = ['../../td']", "cannot name an algorithm"),
        ("[table]\nmetric = 5", "metric must be text"),
        ("algorithm_steps = 5", "algorithm_steps must be a table"),
    ],
    ids=lambda text: text[:20],
)
def test_invalid_toml_experiments_are_refused_in_one_line(text, words, home, capsys):
    path = home / "mine.toml"
    path.write_text(text)
    assert words in assert_one_line(["run", str(path)], capsys)
    assert list(home.iterdir()) == [path]


@pytest.mark.parametrize(
    "arguments",
    [["--retries", "-1"], ["--checkpoint-seconds", "nan"], ["--workers", "0"], ["--slurm", "time=5"]],
)
def test_a_dry_run_refuses_what_a_run_refuses(arguments, small_dataset, capsys):
    error = assert_one_line([*RUN, *arguments], capsys)
    assert assert_one_line([*RUN, *arguments, "--dry-run"], capsys) == error


def test_a_damaged_run_json_fails_its_run_and_not_the_grid(small_dataset, home, capsys):
    contents = ["", "[]", "5", "{", "[" * 100_000, "\udcff", '{"status": "done"}']
    command, study = [*RUN, "--seeds", "4"], replace(STUDY, seeds=4)
    for cell, content in zip(study.cells(), contents, strict=False):
        [folder] = cell.folders()
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(content, errors="surrogateescape")
    assert main(command) == 1
    output = capsys.readouterr()
    assert "1 done, 7 failed" in output.out
    assert output.err.count("delete its folder to run it again") == 7
    assert "Traceback" not in output.err
    assert "trying again" not in output.err
    assert main(["status", "study"]) == 2
    assert "1 done, 7 failed" in capsys.readouterr().out
    for command in ("table", "export"):
        assert "delete its folder to run it again" in assert_one_line([command, "study"], capsys)
    for cell in study.cells()[:7]:
        shutil.rmtree(cell.folders()[0])
    assert main(["table", "study"]) == 1  # incomplete


@pytest.fixture(scope="module")
def trained_study(built_datasets, tmp_path_factory):
    """A home in which STUDY is finished."""
    folder = tmp_path_factory.mktemp("trained")
    shutil.copytree(built_datasets / "datasets", folder / "datasets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OFFLINE_GNTD_HOME", str(folder))
        definitions.store(STUDY)
        for cell in STUDY.cells():
            assert run_job(cell, Options()).kind == "done"
    return folder


@pytest.fixture
def finished_study(trained_study, home):
    shutil.copytree(trained_study, home, dirs_exist_ok=True)
    return STUDY.cells()


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\x00",
        b"step\n20\n",
        b"score,return\n1,2\n",
        b"step,score\n20,x\n",
        b"step,return,score\n20\n",
    ],
)
def test_a_damaged_scores_file_is_named(content, finished_study, capsys):
    (finished_study[0].folder(0) / "scores.csv").write_bytes(content)
    for command in ("table", "export"):
        error = assert_one_line([command, "study"], capsys)
        assert "seed-0 is damaged" in error
        assert "delete its folder" in error
    assert main(["status", "study"]) == 2
    out = capsys.readouterr().out
    assert "3 done, 1 failed" in out
    assert "scores.csv" in out
    assert main([*RUN, "--dry-run"]) == 0  # rates come from the other runs


@pytest.mark.parametrize("content", ["", "[]", "5", "{", '{"name": 5}', "[" * 100_000])
def test_a_damaged_experiment_json_is_named(content, finished_study, capsys):
    definitions.store(Experiment("other", ("a",), ("td",)))
    definitions.stored_path("study").write_text(content)
    for arguments in (["table", "study"], ["status", "study"], ["export", "study"], RUN):
        assert "delete it and run study again" in assert_one_line(arguments, capsys)
    assert main(["status"]) == 2
    out = capsys.readouterr().out
    assert "study: " in out
    assert "other: 5 waiting" in out
    definitions.stored_path("study").unlink()
    assert main(RUN) == 0
    assert main(["table", "study"]) == 0


@pytest.mark.parametrize("name", ["lock-x", "lock-", "lock-1e3", f"lock-{'9' * 30}"])
def test_files_with_other_names_than_locks_are_ignored(name, small_dataset):
    cell = STUDY.cells()[0]
    cell.folder(0).mkdir(parents=True)
    (cell.folder(0) / name).write_text("")
    with Lock(cell.folders()), pytest.raises(lock.Locked), Lock(cell.folders()):
        pass
    assert run_job(cell, Options()).kind == "done"


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000, '{"machine": 5}', '{"process": "x"}'])
def test_an_unreadable_lock_without_heartbeats_is_taken_over(content, home, monkeypatch):
    monkeypatch.setattr(lock, "TIMEOUT", 0.2)
    (home / "run").mkdir()
    (home / "run/lock-5").write_text(content)
    assert lock.owner(home / "run")["silent_seconds"] >= 0
    with time_limit(10), Lock([home / "run"]):
        assert [path.name for path in (home / "run").iterdir()] == ["lock-6"]


def test_flipped_bits_in_run_json_are_noticed_or_harmless(finished_study):
    """run.json has no checksum. What decides a result is compared: the hashes, the settings behind them, the
    protocol, the status, the steps, the run's names. `verify` compares every key with the checkpoint's copy.
    Left over, and harmless: the final timing, the number of the process, the steps it was resumed at and the
    white space."""
    cell = finished_study[0]
    folder, path = cell.folder(0), cell.folder(0) / "run.json"
    sha256s = [source.sha256 for source in cell.sources()]
    content, draws, counts = path.read_bytes(), random.Random(0), Counter()
    before = json.loads(content)
    unchecked = {"finished", "training_seconds", "training_cpu_seconds", "evaluation_seconds"}
    unchecked |= {"checkpoint_seconds", "process", "resumed_at"}
    for _ in range(300):
        bit = draws.randrange(8 * len(content))
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            state = planning.state(cell, sha256s)
            results.verify(folder)
        except DamagedRun:
            counts["noticed"] += 1
            continue
        if state != "finished":  # the run is repeated, or resumed from its checkpoint
            counts[state] += 1
            continue
        run = json.loads(path.read_bytes())
        changed = {key for key in before.keys() | run.keys() if before.get(key) != run.get(key)}
        assert not changed & set(before) - unchecked, (changed, bit)
        counts["harmless"] += 1
    assert sum(counts.values()) == 300
    assert counts["harmless"] < 60, counts
    print(dict(counts))


@pytest.mark.parametrize("name", ["scores.csv", "metrics.csv"])
def test_flipped_bits_in_csv_files_are_noticed(name, finished_study, capsys):
    folder = finished_study[0].folder(0)
    content, draws = (folder / name).read_bytes(), random.Random(0)
    for _ in range(100):
        bit = draws.randrange(8 * len(content))
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        (folder / name).write_bytes(damaged)
        with pytest.raises(DamagedRun):
            results.verify(folder)
    assert "is damaged" in assert_one_line(["export", "study"], capsys)
    (folder / name).write_bytes(content)
    assert main(["export", "study"]) == 0


USERS = """
from dataclasses import dataclass
import torch
from offline_gntd.algorithms import Preset
from offline_gntd.algorithms.q_learning import QLearning, QLearner

class Agent(QLearner):
    def update(self, batch):
        {update}
        return super().update(batch)

    def act(self, obs):
        {act}
        return super().act(obs)

@dataclass(frozen=True)
class Mine(QLearning):
    def agent(self, *arguments):
        return Agent(self, *arguments)

PRESETS = {{"{name}": Preset("Mine", Mine(hidden_dims=(16, 16), batch_size=32))}}
"""


def users_file(home, update="pass", act="pass", name="mine"):
    path = home / "mine.py"
    path.write_text(USERS.format(update=update, act=act, name=name))
    return str(path)


@pytest.fixture
def no_imports(monkeypatch):
    monkeypatch.setenv(extensions.VARIABLE, "")


@pytest.mark.parametrize("where", ["update", "act"])
def test_an_error_of_a_users_algorithm_is_tried_once(where, small_dataset, home, no_imports, capsys):
    path = users_file(home, **{where: "raise ValueError('a mistake')"})
    extensions.use(Path(path))
    cell = replace(STUDY.cells()[0], algorithm="mine")
    result = run_job(cell, Options())
    assert (result.kind, result.error) == ("refused", "ValueError: a mistake")
    if where == "act":  # the grid does not try again
        assert main([*RUN, "--seeds", "1", "--algorithms", "mine", "--import", path]) == 1
        output = capsys.readouterr()
        assert "1 failed" in output.out
        assert "trying again" not in output.err


def test_a_users_algorithm_stopped_before_its_first_evaluation_is_stopped(
    small_dataset, home, no_imports, monkeypatch
):
    extensions.use(Path(users_file(home)))
    monkeypatch.setattr("offline_gntd.experiments.run.STOP_CHECK", 2)
    cell = replace(STUDY.cells()[0], algorithm="mine")
    assert run_job(cell, Options(), stopping=lambda: True).kind == "stopped"
    assert json.loads((cell.folder(0) / "run.json").read_text())["status"] == "stopped"


@pytest.mark.parametrize("name", ["../mine", "a/b", "..", ""])
def test_names_of_a_users_presets_stay_inside_the_home(name, small_dataset, home, no_imports, capsys):
    error = assert_one_line([*RUN, "--algorithms", name, "--import", users_file(home, name=name)], capsys)
    assert "cannot name" in error or "name" in error
    assert not (home / "results").exists()


def test_a_grid_in_which_every_run_diverged_says_so(small_dataset, capsys):
    command = [*RUN, "--seeds", "1", "--algorithms", "dqn", "--set", "learning_rate=1e30"]
    for count in ("1 diverged", "1 finished before"):
        assert main(command) == 0
        summary, last = capsys.readouterr().out.splitlines()
        assert summary == f"study: {count}"
        assert last.startswith("study: every run diverged")
