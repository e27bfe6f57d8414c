"""The command line: exit codes, error messages of one line, no files after bad input."""

import os
import re
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

from offline_gntd.algorithms import preset
from offline_gntd.analysis.table import FORMATS as WRITTEN_FORMATS
from offline_gntd.cli import main, parser, runs
from offline_gntd.cli.analysis import FORMATS
from offline_gntd.cli.runs import experiment_of
from offline_gntd.collection import discrete
from offline_gntd.configuration import flatten
from offline_gntd.experiments import grid
from offline_gntd.experiments.definitions import BUILT_IN, Experiment, Protocol, store
from offline_gntd.nn import mlp

STUDY = ["run", "study", "--datasets", "cartpole-replay-small", "--seeds", "1", "--steps", "40"]
STUDY += ["--evaluate-every", "20", "--evaluate-episodes", "2", "--workers", "1"]
FAST = ["--set", "hidden_dims=16x16", "--set", "batch_size=32"]


def test_help_is_quick_and_does_not_import_torch():
    start = time.perf_counter()
    code = "import sys; from offline_gntd.cli import main\ntry: main(['--help'])\n"
    code += "except SystemExit: pass\nassert not {'torch', 'numpy', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert time.perf_counter() - start < 2  # 0.3 s on an idle machine


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["datasets", "build", "cartpole-repaly"], "did you mean 'cartpole-replay'"),
        (["datasets", "build", "cartpole-replay", "--transitions", "0"], "at least 1, not 0"),
        (["datasets", "build", "hopper-medium-local", "--seed", "-1"], "--seed must be at least 0"),
        (["datasets", "show", "cartpole-replay"], "datasets build cartpole-replay"),
        (
            ["datasets", "build", "cartpole-replay-small", "hopper-medium-local", "--steps", "5"],
            "must be a multiple of the 10 environments",
        ),
        (
            ["datasets", "build", "hopper-random-local", "--transitions", "1000000000000000"],
            "at most 1,000,000,000",
        ),
        (["run", "theory", "--seeds", "2"], "--seeds does not apply to theory"),
        (["run", "theory", "--seeds", "0"], "--seeds does not apply to theory"),
        (["run", "table9"], "no experiment 'table9'"),
        (["run", "table1"], "datasets build cartpole-replay"),
        (["run", "table1", "--algorithms", "dqnn"], "no algorithm 'dqnn'; did you mean 'dqn'"),
        (["run", "table1", "--set", "kfac.dampng=1"], "did you mean 'kfac.damping'"),
        (["run", "table1", "--set", "damping"], "field=value"),
        (["run", "table1", "--seeds", "0"], "--seeds must be at least 1"),
        (["run", "table1", "--steps", "-5"], "steps must be at least 1"),
        (["run", "table1", "--algorithms", "dqn", "dqn"], "dqn is named twice"),
        (
            ["run", "table1", "--set", "learning_rate=-1"],
            "learning_rate must be positive and finite",
        ),
        (["run", "table1", "--dry-run", "--device", "abacus"], "no device 'abacus'"),
        (["run", "table1", "--seeds-per-process", "2"], "5 seeds cannot be divided into groups of 2"),
        (["run", "table1", "--workers", "0"], "--workers must be at least 1"),
        (["run", "table1", "--device", "abacus"], "no device 'abacus'"),
        (
            ["run", "../escape", "--algorithms", "td", "--datasets", "cartpole-replay"],
            "cannot name an experiment",
        ),
        (["run", "nowhere.toml"], "cannot read nowhere.toml"),
        (["table", "table1"], "no finished runs of table1"),
        (["figure", "nothing"], "no experiment 'nothing'"),
        (["figure", "table1", "--columns", "0"], "--columns must be at least 1"),
        (["table", "table1", "--aggregate", "final"], "no aggregate 'final'; did you mean 'final-N'"),
        (["table", "table1", "--rows", "dataset", "--columns", "dataset"], "--columns are both dataset"),
        (["table", "table1", "--kind", "statistics", "--metric", "return"], "--metric applies to --kind"),
        (["explain", "table1", "cartpole-replay", "dqn"], "no finished runs of table1"),
        (["explain", "table1", "cartpole", "dqn"], "did you mean 'cartpole-replay'"),
        (["explain", "theory", "random", "GNTD"], "theory has measurements and no runs"),
        (["report"], "no results to report on"),
        (["report", "table9"], "no experiment 'table9'"),
        (["algorithms", "gnt"], "did you mean 'gntd'"),
        (["run", "mine", "--algorithms", "td"], "no experiment 'mine'"),
        (["run", "table2", "--version", "v9"], "no version 'v9'; there are: local, v0, v2"),
        (["run", "table1", "--version", "v2"], "--version applies only to table2, not to table1"),
        (["run", "table1", "--device", "tpu"], "no device 'tpu'; use cpu, cuda or cuda:N"),
        (["algorithms", "dqn@batch_size=abc"], "cannot set batch_size=abc: it must be a whole number"),
        (["algorithms", "dqn@kfac.damping=1@kfac=none"], "kfac.damping has no effect with kfac=none"),
        (["export", "nosuch"], "no experiment 'nosuch'"),
        (["datasets", "build", "hopper-medium-v2"], "cannot be built; download it"),
        (["run", "table1", "--dry-run", "--workers", "0"], "--workers must be at least 1"),
        (["run", "table1", "--address", "auto"], "--address applies to --engine ray, not to --engine local"),
        (["run", "table1", "--slurm", "time=5"], "--slurm applies to --engine slurm, not to --engine local"),
        (["run", "table1", "--engine", "slurm", "--slurm", "time"], "--slurm takes name=value, not 'time'"),
        (["export", "table1"], "no finished runs of table1"),
        (["evaluate", "nowhere"], "there is no checkpoint in nowhere"),
        (["bench", "--rounds", "0"], "--rounds must be at least 1"),
        (["bench", "--seconds", "-1"], "--seconds must be more than 0"),
        (
            ["datasets", "build", "hopper-medium-local", "--checkpoint-seconds", "-1"],
            "must be at least 0, not -1",
        ),
        (["bench", "--sizes", "humanoid"], "no size 'humanoid'"),
        (
            ["datasets", "build", "cartpole-replay", "--steps", "10"],
            "--steps applies only to MuJoCo",
        ),
        (["datasets", "build", "hopper-medium-local", "--set", "noise"], "FIELD=VALUE, not 'noise'"),
        (["datasets", "fetch", "cartpole-replay"], "datasets build cartpole-replay"),
        (["datasets", "fetch", "hopper-mediun-v2"], "did you mean 'hopper-medium-v2'"),
        (
            ["datasets", "fetch", "mujoco/hopper/medium-v0", "--from-file", "a"],
            "--from-file takes a D4RL file",
        ),
        (["datasets", "show", "mujoco/hopper/medium-v0"], "datasets fetch mujoco/hopper/medium-v0"),
        (["datasets", "convert", "cartpole-replay", "--format", "minari"], "already has the format minari"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, words, home, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not list(home.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "table1", "--steps", "many"], "argument --steps: invalid int value: 'many'"),
        (["table", "table1", "--nosuch"], "unrecognized arguments: --nosuch"),
        (["tables"], "invalid choice: 'tables'"),
    ],
)
def test_invalid_options_are_one_line(arguments, words, home, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert words in error
    assert error.count("\n") == 1


def test_an_unwritable_folder_is_reported_before_any_work(home, monkeypatch, capsys):
    blocked = home / "file"
    blocked.write_text("")
    monkeypatch.setenv("OFFLINE_GNTD_HOME", str(blocked))
    monkeypatch.setattr("offline_gntd.collection.discrete.collect", None)  # not called
    assert main(["datasets", "build", "cartpole-replay-small"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("offline-gntd: cannot write to")
    assert error.count("\n") == 1


def test_an_interrupted_command_exits_with_130(monkeypatch, capsys):
    def interrupt(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "algorithms", interrupt)
    assert main(["algorithms"]) == 130
    assert capsys.readouterr().err == "offline-gntd: interrupted\n"


def test_quickstart_ends_with_its_table(home, monkeypatch, capsys, quick_settings):
    small = Experiment(
        "quickstart",
        ("cartpole-replay-small",),
        ("dqn@hidden_dims=16x16@batch_size=32",),
        seeds=1,
        protocol=Protocol(steps=20, evaluate_every=10, evaluate_episodes=2),
        table=BUILT_IN["quickstart"].table,
    )
    monkeypatch.setitem(BUILT_IN, "quickstart", small)
    monkeypatch.setitem(discrete.DEFAULTS, "-small", quick_settings)
    assert main(["quickstart"]) == 0
    assert "| cartpole-replay-small | DQN hidden_dims=16x16 batch_size=32 |" in capsys.readouterr().out
    assert (home / "analysis/quickstart-updates.png").stat().st_size > 5_000


def test_from_build_to_table(home, monkeypatch, capsys, quick_settings):
    monkeypatch.setitem(discrete.DEFAULTS, "-small", quick_settings)
    assert main(["datasets", "build", "cartpole-replay-small", "--seeds", "1", "--transitions", "300"]) == 0
    assert main(["datasets", "show", "cartpole-replay-small"]) == 0
    card = capsys.readouterr().out
    for words in ("257 transitions", "return histogram", "references", "sha256"):
        assert words in card
    assert main(["datasets", "list"]) == 0
    assert "here  cartpole-replay-small" in capsys.readouterr().out
    assert main([*STUDY, "--algorithms", "dqn", *FAST, "--set", "learning_rate=0.001,0.01"]) == 0
    assert "2 done" in capsys.readouterr().out
    folder = home / "results/study/cartpole-replay-small"
    assert sorted(path.name for path in folder.iterdir()) == [
        "dqn@hidden_dims=16x16@batch_size=32@learning_rate=0.001",
        "dqn@hidden_dims=16x16@batch_size=32@learning_rate=0.01",
    ]
    assert main([*STUDY, "--algorithms", "dqn", *FAST, "--set", "learning_rate=0.001,0.01"]) == 0
    assert "2 finished before" in capsys.readouterr().out
    assert main(["table", "study"]) == 0
    table = capsys.readouterr().out
    assert "| DQN learning_rate=0.001 | DQN learning_rate=0.01 |" in table
    assert "all with hidden_dims=16x16, batch_size=32" in table
    assert main(["table", "study", "--format", "csv"]) == 0
    assert capsys.readouterr().out.count("\n") >= 3
    assert main(["table", "study", "--metric", "loss", "--rows", "learning_rate"]) == 0
    assert main(["figure", "study", "--kind", "updates", "profiles"]) == 0
    assert main(["report"]) == 0
    assert {path.name for path in (home / "analysis").iterdir()} == {
        *(f"{name}.{form}" for name in ("study", "study-loss-learning_rate") for form in FORMATS),
        *(f"study-{kind}.{form}" for kind in ("updates", "profiles") for form in ("png", "pdf")),
        "report.html",
    }
    assert main(["export", "study"]) == 0
    assert "not exported" not in capsys.readouterr().err
    (home / "results/study.runs.csv").unlink()
    run = folder / "dqn@hidden_dims=16x16@batch_size=32@learning_rate=0.01/seed-0/run.json"
    run.write_text(run.read_text().replace('"status": "done"', '"status": "failed"'))
    assert main(["export", "study"]) == 0
    assert "not exported: 1 unfinished or failed runs" in capsys.readouterr().err
    (home / "results/study.runs.csv").unlink()
    run.unlink()
    assert main(["table", "study"]) == 1
    assert "missing: cartpole-replay-small dqn@" in capsys.readouterr().err
    monkeypatch.setattr("offline_gntd.cli.analysis.MOST_MISSING", 0)
    assert main(["table", "study"]) == 1
    assert "\nmissing: 1 more; see offline-gntd status study\n" in capsys.readouterr().err


def test_an_experiment_from_a_file(home, small_dataset, capsys):
    (home / "mine.toml").write_text(
        'datasets = ["cartpole-replay-small"]\nalgorithms = ["dqn@hidden_dims=16x16@batch_size=32"]\n'
        "seeds = 1\n[protocol]\nsteps = 20\nevaluate_every = 20\nevaluate_episodes = 1\n"
    )
    assert main(["run", str(home / "mine.toml")]) == 0
    assert main(["table", "mine"]) == 0
    (home / "typo.toml").write_text('datasets = ["a"]\nalgorithm = ["dqn"]\n')
    assert main(["run", str(home / "typo.toml")]) == 2
    assert "did you mean 'algorithms'" in capsys.readouterr().err


def test_run_says_that_bfloat16_is_slow_on_this_cpu(home, small_dataset, monkeypatch, capsys):
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    mlp.warn_if_bfloat16_is_slow.cache_clear()
    algorithm = "dqn@hidden_dims=16x16@batch_size=32@precision=bfloat16"
    options = ["--seeds", "1", "--steps", "2", "--evaluate-every", "2", "--evaluate-episodes", "1"]
    run = ["run", "mine", "--algorithms", algorithm, "--datasets", "cartpole-replay-small", *options]
    assert main(run) == 0
    assert "no AVX512-BF16 or AMX" in capsys.readouterr().err
    mlp.warn_if_bfloat16_is_slow.cache_clear()


def test_options_that_are_not_given_keep_their_values_when_an_experiment_is_extended(
    home, monkeypatch, capsys
):
    small = "@hidden_dims=16x16"
    first = Experiment(
        "mine", ("cartpole-replay-small",), ("dqn" + small,), 2, algorithm_steps={"dqn" + small: 40}
    )
    store(replace(first, protocol=Protocol(steps=20, evaluate_every=10)))
    arguments = ["mine", "--algorithms", "dqn" + small, "td", "--datasets", "cartpole-replay-small"]
    extended = experiment_of(parser().parse_args(["run", *arguments]))
    assert (extended.seeds, extended.protocol.evaluate_every) == (2, 10)
    varied = experiment_of(parser().parse_args(["run", *arguments, "--set", "tau=0.1"]))
    assert varied.algorithm_steps == {f"dqn{small}@tau=0.1": 40}
    written = ["--algorithms", "dqn", "--set", "hidden_dims=16x16"]  # the same algorithm
    same = experiment_of(parser().parse_args(["run", "mine", *written]))
    assert same.algorithm_steps == {"dqn" + small: 40}
    store(replace(first, protocol=Protocol(steps=20, evaluate_every=5)))
    assert "earlier runs leave its tables" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("datasets = 'cartpole-replay'", "datasets must be a list of names"),
        ("seeds = '5'", "seeds must be a whole number, not '5'"),
        ("protocol = 3", "protocol must be a table"),
        ("[protocol]\nsteps = 1.5", "steps must be a whole number, not 1.5"),
        ("[protocol]\nstep = 1", "did you mean 'steps'"),
        ("seeds =", "cannot read"),
        ("\udcff", "cannot read"),
    ],
)
def test_an_invalid_toml_file_is_one_line(text, words, tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text(text, errors="surrogateescape")
    assert main(["run", str(path)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_formats_offered_are_those_that_can_be_written():
    assert tuple(WRITTEN_FORMATS) == FORMATS


def test_algorithms_are_listed_with_their_fields(capsys):
    assert main(["algorithms"]) == 0
    assert "gndqn" in capsys.readouterr().out
    assert main(["algorithms", "gntd@kfac.damping=1"]) == 0
    assert re.search(r"^kfac.damping  +1$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.slow
def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -m offline_gntd algorithms | true"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, env=os.environ
    )
    assert "Traceback" not in done.stderr


def test_a_gpu_trains_all_seeds_of_a_cell_together():
    def stack(*options):
        return runs.experiment_of(parser().parse_args(["run", "table1", *options])).protocol.seeds_per_process

    assert stack() == 1
    assert stack("--device", "cuda") == 5
    assert stack("--device", "cuda", "--seeds", "3") == 3
    assert stack("--device", "cuda", "--seeds-per-process", "1") == 1


def test_help_shows_the_defaults(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    new, protocol = Experiment("new", (), ()), Protocol()
    for words in (
        f"0 … N−1 (default: {new.seeds})",
        f"environment steps (default: {protocol.steps})",
        f"between evaluations (default: {protocol.evaluate_every})",
        f"per evaluation (default: {protocol.evaluate_episodes})",
        f"(default: {protocol.seeds_per_process}; on a GPU, all)",
        f"(default: {grid.RETRIES})",
    ):
        assert words in text
    assert grid.RETRIES == runs.RETRIES


def test_an_unknown_field_lists_the_fields(capsys):
    assert main(["run", "table1", "--algorithms", "gntd", "--set", "nosuch=1"]) == 2
    error = capsys.readouterr().err
    assert "no field 'nosuch'" in error
    for path in flatten(preset("gntd").config):
        assert path in error
