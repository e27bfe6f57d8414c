"""MuJoCo splits built from scratch: their content, and reproducibility to the byte, also after a kill."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

from offline_gntd.cli import main
from offline_gntd.collection import builders, splits, training
from offline_gntd.collection.builders import build_splits
from offline_gntd.collection.online import RolloutBuffer, VectorCollector, roll_out
from offline_gntd.collection.splits import SIZES, BuildSpec, Size, TrainedPolicies
from offline_gntd.collection.training import OnlineTraining, Rates, Snapshot, TrainingSettings, measure
from offline_gntd.datasets import DatasetNotFound, built_datasets, load
from offline_gntd.datasets.check import check
from offline_gntd.errors import UserError
from offline_gntd.experiments.definitions import BUILT_IN, Cell, Protocol
from offline_gntd.experiments.run import Run
from offline_gntd.files import load_tensors
from offline_gntd.lock import Lock
from offline_gntd.tasks import LOCOMOTION

SMALL = "@hidden_dims=16x16@batch_size=16"
QUICK = TrainingSettings(
    algorithm="td3_bc" + SMALL,
    steps=400,
    environments=4,
    updates_per_step=0.5,
    warm_up=200,
    evaluate_every=100,
    evaluate_episodes=2,
)
FLAGS = ["--steps", "400", "--algorithm", QUICK.algorithm, "--transitions", "301"]
for field in ("environments", "updates_per_step", "warm_up", "evaluate_every", "evaluate_episodes"):
    FLAGS += ["--set", f"{field}={getattr(QUICK, field)}"]
HOPPER = LOCOMOTION["hopper"].task()


@pytest.fixture
def quick():
    return Size(QUICK, 301, 301)


class Stopped(Exception):
    pass


def random_actions(task, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return lambda obs: torch.rand(1, obs.shape[1], task.action_dim, generator=generator) * 2 - 1


def returns_of(*scores):
    """Snapshots with these scores."""
    span = HOPPER.reference_max - HOPPER.reference_min
    return [
        Snapshot(100 * i, HOPPER.reference_min + score / 100 * span, torch.empty(0))
        for i, score in enumerate(scores)
    ]


# ---- environments stepped together ----


def test_episodes_contain_every_step_once_in_order():
    task = LOCOMOTION["hopper"].task()
    rows = torch.arange(12.0).view(6, 2, 1).expand(6, 2, 27).clone()  # round · 2 + environment
    rows[..., -1] = 0
    truncated = torch.zeros(6, 2, dtype=torch.bool)
    rows[1, 0, -1], truncated[3, 0], rows[2, 1, -1] = 1, True, 1
    steps = RolloutBuffer(rows, truncated)
    kept, ends = steps.episodes(12)
    assert kept[:, 0].tolist() == [0, 2, 1, 3, 5, 4, 6, 7, 9, 11, 8, 10]
    assert ends.tolist() == [2, 5, 7, 10, 12]
    kept, ends = steps.episodes(5)  # three rounds of the first, two of the second
    assert kept[:, 0].tolist() == [0, 2, 1, 3, 4]
    assert ends.tolist() == [2, 4, 5]
    assert steps.episodes(1)[1].tolist() == [1]
    rewards = rows[..., task.obs_dim + task.action_dim]
    wanted = [rewards[:2, 0].sum(), rewards[2:4, 0].sum(), rewards[:3, 1].sum()]
    assert steps.complete_returns(task).tolist() == wanted


@pytest.mark.parametrize("body", LOCOMOTION)
def test_collector_continues_from_a_state(body, capfd):
    task = LOCOMOTION[body].task()
    whole = roll_out(task, random_actions(task), 120, (5, 0), environments=2)
    rows, ends = whole.episodes(120)
    o, a = task.obs_dim, task.action_dim
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        np.testing.assert_array_equal(rows[start : end - 1, o + a + 1 : -1], rows[start + 1 : end, :o])
        assert not rows[start : end - 1, -1].any()
    starts = rows[[0, *ends[:-1]], :o]
    assert len(np.unique(starts, axis=0)) == len(starts)  # every episode starts elsewhere
    act, first = random_actions(task), VectorCollector(task, (5, 0), 2)
    for _ in range(33):
        first.step(act(first.obs[None])[0])
    second = VectorCollector(task, (5, 0), 2)
    second.restore(first.state())
    for i in range(33, 60):
        stepped, truncated = second.step(act(second.obs[None])[0])
        assert torch.equal(stepped, whole.rows[i])
        assert torch.equal(truncated, whole.truncated[i])
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_time_limit_is_not_a_termination():
    task = dataclasses.replace(LOCOMOTION["halfcheetah"].task(), env_options={"max_episode_steps": 7})
    steps = roll_out(task, random_actions(task), 40, (0, 0), environments=2)
    assert not steps.rows[..., -1].any()
    assert steps.truncated.nonzero()[:, 0].tolist() == [6, 6, 13, 13]
    assert len(steps.complete_returns(task)) == 4


# ---- medium and expert ----


@pytest.mark.parametrize(
    ("scores", "medium", "expert"),
    [
        ([1, 20, 34, 90, 60], 2, 3),  # 34 is nearest to 30 of those up to the first past it
        ([1, 28, 60, 90, 31], 1, 3),  # 31 came too late
        ([1, 2, 90], 1, 2),
        ([5], 0, 0),
        ([-5, -2, -4], 1, 1),  # never as good as random
        ([9, 3, 9], 0, 0),
    ],
)
def test_medium_and_expert(scores, medium, expert):
    snapshots = returns_of(*scores)
    assert splits.medium(snapshots, HOPPER) is snapshots[medium]
    assert splits.expert(snapshots) is snapshots[expert]


def test_full_size_matches_d4rl():
    full = SIZES["full"]
    assert full.training.steps == full.transitions == 1_000_000
    assert splits.LOCAL_SPLITS["hopper-medium-expert-local"].rows(full) == 2_000_000
    assert full.rolled_out == 1_000_000
    small = SIZES["small"]
    assert (small.training.steps, small.transitions, small.mixed_transitions) == (300_000, 200_000, 200_000)


# ---- datasets ----


def test_one_training_gives_all_splits_of_a_body(quick, monkeypatch, capsys):
    names = [name for name in splits.LOCAL_SPLITS if name.startswith("hopper")]
    sets = dict(zip(names, build_splits(names, quick, quiet=True), strict=True))
    random, medium, medium_replay, medium_expert, expert, full_replay = sets.values()
    assert [len(s) for s in (random, medium, medium_expert, expert)] == [301] * 4
    rows = {name: {row.tobytes() for row in s.rows.numpy()} for name, s in sets.items()}
    assert len(full_replay) == 400 == len(rows["hopper-full-replay-local"])
    assert len(medium_replay) % 100 == 0
    assert rows["hopper-medium-replay-local"] <= rows["hopper-full-replay-local"]
    halves = [rows["hopper-medium-expert-local"] & rows[f"hopper-{p}-local"] for p in ("medium", "expert")]
    assert len(halves[0] | halves[1]) == len(rows["hopper-medium-expert-local"])
    assert medium.rows[:20].equal(medium_expert.rows[:20])
    assert not rows["hopper-random-local"] & rows["hopper-full-replay-local"]
    for dataset in sets.values():
        assert (dataset.origin, dataset.task.env_id) == ("built", "Hopper-v4")
        assert check(dataset.name).verdict == "sound"
        assert dataset.transitions.action.abs().max() <= 1
    assert medium.provenance["steps"] == 400
    assert medium.provenance["training"]["updates"] == 100

    # a finished training is not repeated
    monkeypatch.setattr(OnlineTraining, "train_step", None)
    monkeypatch.setattr(builders, "measure", None)
    (again,) = build_splits(["hopper-medium-local"], quick, force=True, quiet=True)
    assert again.sha256 == medium.sha256
    with pytest.raises(UserError, match=r"built with --transitions 301, not --transitions 300; --force"):
        build_splits(["hopper-medium-local"], quick.of_rows(300), quiet=True)
    assert main(["datasets", "build", "hopper-medium-local", *FLAGS, "--format", "d4rl"]) == 0
    headline, file = capsys.readouterr().out.splitlines()
    assert "301 transitions" in headline
    converted = load(file)
    assert converted.task == medium.task
    assert converted.provenance["level"] == medium.provenance["level"]
    # D4RL's layout has no next observation at a timeout: those rows are lost in it, and the last one
    assert {row.tobytes() for row in converted.rows.numpy()[:, : 11 + 3 + 1]} <= {
        row.tobytes() for row in medium.rows.numpy()[:, : 11 + 3 + 1]
    }


def test_same_seed_gives_the_same_bytes(quick, monkeypatch, tmp_path):
    names = ["hopper-random-local", "hopper-medium-expert-local", "hopper-full-replay-local"]
    sums = {}
    for place, seed in (("one", 0), ("two", 0), ("other", 1)):
        monkeypatch.setenv("OFFLINE_GNTD_HOME", str(tmp_path / place))
        sums[place] = [dataset.sha256 for dataset in build_splits(names, quick, seed, quiet=True)]
    assert sums["one"] == sums["two"]
    assert not set(sums["one"]) & set(sums["other"])


# ---- only the training that is needed ----


def test_random_split_needs_no_training(home, monkeypatch, capsys):
    monkeypatch.setattr(training, "OnlineBatches", None)  # no training can be made
    began = time.monotonic()
    assert main(["datasets", "build", "hopper-random-local", "--transitions", "2000"]) == 0
    assert time.monotonic() - began < 20
    captured = capsys.readouterr()
    assert "2,000 transitions" in captured.out
    assert re.search(
        r"Hopper-v4: rolling out 2,000 steps takes about \d+ s \(measured: [\d,]+ steps/s\)", captured.err
    )
    assert not (home / "datasets" / "trainings").exists()
    dataset = load("hopper-random-local")
    assert check(dataset.name).verdict == "sound"
    assert "training" not in dataset.provenance
    assert dataset.provenance["level"].startswith("random policy, score ")
    # the settings of a training do not change it, and its command repeats it
    longer = dataclasses.replace(SIZES["small"].of_rows(2000), training=TrainingSettings(steps=500_000))
    assert build_splits([dataset.name], longer, quiet=True)[0].sha256 == dataset.sha256
    assert main([*dataset.provenance["command"].split()[1:], "--force"]) == 0
    assert load(dataset.name).sha256 == dataset.sha256


def test_random_split_accepts_any_number_of_environments():
    size = Size(TrainingSettings(environments=7), 30, 30)
    assert len(build_splits(["hopper-random-local"], size, quiet=True)[0]) == 30
    with pytest.raises(UserError, match="steps must be a multiple of the 7 environments"):
        build_splits(["hopper-random-local", "hopper-medium-local"], size, quiet=True)


def test_only_needed_bodies_are_trained_and_the_time_is_announced(home, capsys):
    names = ["walker2d-random-local", "hopper-random-local", "hopper-full-replay-local"]
    assert main(["datasets", "build", *names, *FLAGS, "--workers", "1"]) == 0
    assert [folder.name[:6] for folder in (home / "datasets" / "trainings").iterdir()] == ["Hopper"]
    error = capsys.readouterr().err
    (line,) = [line.strip() for line in error.replace("\r", "\n").splitlines() if "training 400" in line]
    assert re.fullmatch(
        r"Hopper-v4: training 400 steps with 100 updates and rolling out 301 steps takes about \d+ (s|min) "
        r"\(measured: [\d,]+ steps/s, [\d,]+ updates/s\)",
        line,
    )
    # a finished training is not announced, nor are stored roll-outs
    assert main(["datasets", "build", "hopper-medium-local", *FLAGS]) == 0
    assert "Hopper-v4: rolling out 301 steps takes about" in capsys.readouterr().err
    assert main(["datasets", "build", "hopper-medium-local", *FLAGS, "--force"]) == 0
    assert "takes about" not in capsys.readouterr().err


def test_resumed_training_is_announced_with_the_remaining_steps(capsys):
    def stop(training):
        if training.step == 304:
            raise Stopped

    with pytest.raises(Stopped):
        OnlineTraining(HOPPER, QUICK, 0).run(stop, checkpoint_seconds=0)
    assert main(["datasets", "build", "hopper-full-replay-local", *FLAGS]) == 0
    error = capsys.readouterr().err
    assert "training 100 steps with 50 updates takes about" in error  # the last checkpoint was at 300


def test_estimated_time_of_a_training():
    rates = Rates(steps=1_000.0, updates=10.0, episode_limit=1_000)
    # 400 steps and four evaluations of two episodes, and 100 updates
    assert rates.seconds(QUICK) == pytest.approx(0.4 + 8 + 10)
    assert rates.seconds(QUICK, since=300) == pytest.approx(0.1 + 2 + 5)
    assert rates.seconds(QUICK, since=400) == 0


def test_measuring_does_not_change_a_training(home):
    trained = OnlineTraining(HOPPER, QUICK, 0)
    before = trained.generators[0].get_state()
    rates = measure(HOPPER, QUICK)
    assert rates.steps > 0
    assert rates.updates > 0
    assert rates.episode_limit == 1_000
    assert torch.equal(trained.generators[0].get_state(), before)
    assert trained.step == 0
    assert not list(home.iterdir())


def test_behaviour_scores_are_shown_and_recorded(quick, capsys):
    spec = BuildSpec("hopper", quick)
    trained = OnlineTraining(spec.task, quick.training, 0)
    trained.run()
    policies = TrainedPolicies(spec, trained, lambda state, steps: None).snapshots
    build_splits(["hopper-medium-local", "hopper-medium-replay-local"], quick, quiet=True)
    greedy = f"scored {HOPPER.score(policies['medium'].greedy_return):.1f} at step"
    main(["datasets", "show", "hopper-medium-local"])
    shown = capsys.readouterr().out
    assert f"{greedy} {policies['medium'].step} of 400 without noise" in shown
    assert "--steps 400" in shown
    steps = TrainedPolicies(spec, trained, lambda state, steps: None).rolled_out("medium")
    assert f"medium policy, score {HOPPER.score(steps.complete_returns(HOPPER).mean()):.1f}" in shown
    assert greedy in load("hopper-medium-replay-local").provenance["level"]
    protocol = Protocol(steps=2, evaluate_every=2, evaluate_episodes=1)
    run = Run(Cell("table2-local", "hopper-medium-local", "bc@batch_size=8", (0,), protocol))
    run.execute()
    assert run.records[0].description["dataset_level"] == load("hopper-medium-local").provenance["level"]


def test_table2_local_datasets_can_be_built():
    assert set(BUILT_IN["table2-local"].datasets) < set(built_datasets.TASKS)
    with pytest.raises(DatasetNotFound, match="datasets build walker2d-expert-local"):
        load("walker2d-expert-local")


@pytest.mark.parametrize("algorithm", [pytest.param("td3_bc", marks=pytest.mark.slow), "gntd3_bc"])
def test_stopped_training_gives_the_same_bits(algorithm, monkeypatch, tmp_path):
    settings = dataclasses.replace(QUICK, algorithm=algorithm + SMALL)

    def trained(place, seed, *stops):
        monkeypatch.setenv("OFFLINE_GNTD_HOME", str(tmp_path / place))
        for stop in stops:

            def report(training, stop=stop):
                if training.step == stop:
                    raise Stopped

            with pytest.raises(Stopped):
                OnlineTraining(HOPPER, settings, seed).run(report, checkpoint_seconds=0)
        last = OnlineTraining(HOPPER, settings, seed)
        last.run(checkpoint_seconds=0)
        return last

    whole, other = trained("whole", 0), trained("other", 1)
    again = trained("stopped", 0, 204, 304)
    assert torch.equal(again.samples.rows, whole.samples.rows)
    assert torch.equal(again.samples.truncated, whole.samples.truncated)
    for one, two in zip(again.snapshots, whole.snapshots, strict=True):
        assert (one.step, one.greedy_return) == (two.step, two.greedy_return)
        assert torch.equal(one.weights, two.weights)
    assert not torch.equal(other.samples.rows, whole.samples.rows)


def test_killed_build_gives_the_same_data(quick, monkeypatch, tmp_path):
    names = ["hopper-medium-local", "hopper-medium-replay-local", "hopper-full-replay-local"]
    size = dataclasses.replace(quick, training=dataclasses.replace(QUICK, steps=1_200))
    command = [sys.executable, "-m", "offline_gntd", "datasets", "build", *names, *FLAGS, "--steps", "1200"]
    environment = os.environ | {"OFFLINE_GNTD_HOME": str(tmp_path / "killed")}
    process = subprocess.Popen(
        [*command, "--checkpoint-seconds", "0"], env=environment, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 300
    while len(list((tmp_path / "killed").glob("datasets/trainings/*/samples-*.pt"))) < 60:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    folder = next((tmp_path / "killed").glob("datasets/trainings/*"))
    steps = load_tensors(folder / "checkpoint.pt")["steps"]
    assert 200 < steps < 1_200  # it was learning
    sums = {}
    for place in ("killed", "whole"):
        monkeypatch.setenv("OFFLINE_GNTD_HOME", str(tmp_path / place))
        sums[place] = [dataset.sha256 for dataset in build_splits(names, size, quiet=True)]
    assert sums["killed"] == sums["whole"]


@pytest.mark.slow
def test_parallel_build_gives_the_same_data(quick, monkeypatch, tmp_path):
    names = ["hopper-medium-local", "walker2d-medium-local", "halfcheetah-expert-local"]
    monkeypatch.setenv("OFFLINE_GNTD_HOME", str(tmp_path / "together"))
    together = [dataset.sha256 for dataset in build_splits(names, quick, workers=2, quiet=True)]
    monkeypatch.setenv("OFFLINE_GNTD_HOME", str(tmp_path / "alone"))
    assert together == [build_splits([name], quick, quiet=True)[0].sha256 for name in names]


def test_a_second_build_waits_for_the_training_of_the_first(quick, capsys):
    first = Lock([OnlineTraining(HOPPER, QUICK, 0).folder]).acquire()
    threading.Timer(0.5, first.release).start()
    build_splits(["hopper-full-replay-local"], quick, quiet=True)
    assert "waiting for another process" in capsys.readouterr().err


def test_a_damaged_roll_out_is_made_again(quick):
    [expected] = build_splits(["hopper-expert-local"], quick, quiet=True)
    [path] = OnlineTraining(HOPPER, QUICK, 0).folder.glob("expert-*.pt")
    path.write_bytes(b"nothing")
    [again] = build_splits(["hopper-expert-local"], quick, force=True, quiet=True)
    assert again.sha256 == expected.sha256


def test_damaged_training_is_reported(quick):
    build_splits(["hopper-full-replay-local"], quick, quiet=True)
    folder = OnlineTraining(HOPPER, QUICK, 0).folder
    (folder / "checkpoint.pt").write_bytes(b"no checkpoint")
    with pytest.raises(UserError, match=r"checkpoint.pt is damaged.*; delete .* and start again"):
        build_splits(["hopper-expert-local"], quick, quiet=True)


def test_pickled_code_is_not_run(quick, tmp_path):
    trained = OnlineTraining(HOPPER, QUICK, 0)
    trained.folder.mkdir(parents=True)

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "evil"),)

    torch.save({"steps": Evil()}, trained.folder / "checkpoint.pt")
    with pytest.raises(UserError, match="is damaged"):
        trained.run()
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["hopper-medum-local"], "did you mean 'hopper-medium-local'"),
        (["hopper-medium-local", "--steps", "10"], "warm_up must be at least 0 and less than the 10 steps"),
        (["hopper-medium-local", "--steps", "100001"], "multiple of the 10 environments"),
        (["hopper-medium-local", "--transitions", "1"], "at least 2 and at most 1,000,000,000, not 1"),
        (["hopper-medium-local", "--seed", "-1"], "at least 0, not -1"),
        (["hopper-medium-local", "--seed", str(2**64)], "--seed must be less than 2**63"),
        (["hopper-medium-local", "--workers", "0"], "--workers must be at least 1"),
        (["hopper-medium-local", "--algorithm", "cql"], "must be td3_bc or gntd3_bc, not cql"),
        (["hopper-medium-local", "--algorithm", "td4"], "no algorithm 'td4'"),
        (["hopper-medium-local", "--set", "warmup=0"], "did you mean 'warm_up'"),
        (["hopper-medium-local", "--set", "warm_up"], "FIELD=VALUE"),
        (["hopper-random-local", "--set", "environments=0"], "environments must be at least 1, not 0"),
        (["hopper-random-local", "--steps", "20000"], "--steps applies only to splits that need a training"),
        (["hopper-medium-local", "--checkpoint-seconds", "-1"], "--checkpoint-seconds must be at least 0"),
        (["cartpole-replay", "--steps", "500"], "--steps applies only to MuJoCo datasets"),
        (["cartpole-replay", "--size", "full"], "--size applies only to MuJoCo datasets"),
    ],
)
def test_bad_input_is_one_line(arguments, words, home, capsys):
    assert main(["datasets", "build", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not list(home.iterdir())


def test_number_of_updates_follows_the_rate():
    settings = dataclasses.replace(QUICK, updates_per_step=0.3)
    trained = OnlineTraining(HOPPER, settings, 0)
    assert [settings.updates(since) for since in (0, 200, 300, 400)] == [60, 60, 30, 0]
    trained.run()
    assert int(trained.agent.updates) == 60  # 0.3 of the 200 steps after the warm-up
    assert [snapshot.step for snapshot in trained.snapshots] == [100, 200, 300, 400]
    assert trained.agent.config.alpha is None
    assert training.STREAM not in splits.STREAMS.values()
