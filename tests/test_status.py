"""Dry runs, progress and status of a grid, from its files and from measured rates."""

import dataclasses
import io
import json
import os
import time

import pytest
from rich.console import Console

from offline_gntd import lock
from offline_gntd.cli import main
from offline_gntd.experiments import planning
from offline_gntd.experiments.definitions import Experiment, Protocol, store
from offline_gntd.experiments.job import JobResult, Options, Progress, run_job
from offline_gntd.experiments.planning import Rate, Rates, known_rates, measure_rate
from offline_gntd.experiments.progress import Forecast, open_display, read_status
from offline_gntd.files import duration
from offline_gntd.lock import Lock

FAST = "@hidden_dims=16x16@batch_size=32"
STUDY = Experiment(
    "study",
    ("cartpole-replay-small",),
    ("dqn" + FAST, "td" + FAST),
    seeds=3,
    protocol=Protocol(steps=60, evaluate_every=20, evaluate_episodes=2),
)
ARGUMENTS = ["run", "study", "--datasets", *STUDY.datasets, "--algorithms", *STUDY.algorithms, "--seeds", "3"]
ARGUMENTS += ["--steps", "60", "--evaluate-every", "20", "--evaluate-episodes", "2"]


@pytest.fixture
def half_done(small_dataset, monkeypatch):
    """Three runs of dqn: done, stopped, failed. Three of td: one diverged, two not started."""
    monkeypatch.setattr("offline_gntd.experiments.run.STOP_CHECK", 20)
    store(STUDY)
    cells = STUDY.cells()
    assert run_job(cells[0], Options()).kind == "done"
    checks = iter([False, True])
    assert run_job(cells[1], Options(), stopping=lambda: next(checks)).kind == "stopped"

    def fail(progress):
        raise ValueError("by accident\nin two lines")

    assert run_job(cells[2], Options(), fail).kind == "failed"
    monkeypatch.setattr("offline_gntd.experiments.run.LARGEST_VALUE", 0.0)
    assert run_job(cells[3], Options()).kind == "diverged"
    return cells


def states(found):
    return [run.state for run in found.runs]


def test_status_is_read_from_files(half_done, capsys):
    found = read_status("study")
    assert states(found) == ["done", "waiting", "failed", "diverged", "waiting", "waiting"]
    assert found.seconds_left is None  # nothing runs
    assert "1 done, 1 diverged, 1 failed, 3 waiting" in found.headline()
    assert found.runs[1].step == 40
    assert found.runs[2].error == "ValueError: by accident in two lines"
    assert "see results/study" in found.runs[2].text()
    with Lock(half_done[1].folders()):
        found = read_status("study")
        assert states(found)[1] == "running"
        dqn, td = known_rates().rate(half_done[1]), known_rates().rate(half_done[4])
        rest = 20 * dqn.seconds_per_update + 2 * dqn.seconds_per_episode
        whole = [60 * rate.seconds_per_update + 6 * rate.seconds_per_episode for rate in (dqn, td, td)]
        assert found.runs[1].seconds_left == pytest.approx(rest)
        assert found.seconds_left == pytest.approx(rest + sum(whole))  # one at a time, the failed one too
        assert "updates/s" in found.runs[1].text()
        assert main(["status", "study", "--json"]) == 0
        [output] = json.loads(capsys.readouterr().out)
        assert output["counts"] == {
            "done": 1,
            "diverged": 1,
            "running": 1,
            "failed": 1,
            "stale": 0,
            "waiting": 2,
        }
    assert states(read_status("study"))[1] == "waiting"
    assert main(["status"]) == 0
    assert capsys.readouterr().out.startswith("study: 1 done")
    assert main(["status", "nothing"]) == 2


def test_runs_of_another_length_are_not_done(half_done):
    store(dataclasses.replace(STUDY, protocol=dataclasses.replace(STUDY.protocol, steps=80)))
    found = read_status("study")
    assert states(found)[:2] == ["waiting", "waiting"]
    assert (found.runs[0].step, found.runs[0].steps) == (60, 80)
    store(dataclasses.replace(STUDY, protocol=dataclasses.replace(STUDY.protocol, steps=20)))
    assert states(read_status("study"))[:2] == ["stale", "waiting"]


def test_a_damaged_run_does_not_hide_the_others(half_done, home):
    name, *_ = (path.parent.name for path in (home / "results").glob("*/experiment.json"))
    before = read_status(name)
    path = next((home / "results").glob("*/*/*/seed-*/run.json"))
    path.write_text("{")
    found = read_status(name)
    assert len(found.runs) == len(before.runs)
    assert [run.state for run in found.runs if run.error and "delete its folder" in run.error] == ["failed"]


def test_a_run_of_a_dead_process_is_waiting(half_done):
    (half_done[1].folder(1) / "lock-0").write_text(json.dumps(dict(machine="?", process=1, start_time="1")))
    assert states(read_status("study"))[1] == "running"  # elsewhere, for all we know
    assert "no heartbeat" not in read_status("study").runs[1].text()
    os.utime(half_done[1].folder(1) / "lock-0", (0, 0))
    assert "no heartbeat for" in read_status("study").runs[1].text()
    owner = {"machine": lock.machine(), "process": 1, "start_time": "never"}
    (half_done[1].folder(1) / "lock-0").write_text(json.dumps(owner))
    assert states(read_status("study"))[1] == "waiting"


def test_a_dry_run_shows_the_plan_and_writes_nothing(small_dataset, home, capsys):
    assert main([*ARGUMENTS, "--dry-run", "--workers", "2"]) == 0
    output = capsys.readouterr().out
    assert output.count("to run") == 6 + 1
    assert "of work, " in output  # from rates measured on the spot
    assert "?" not in output
    assert not (home / "results").exists()
    assert main([*ARGUMENTS, "--datasets", "cartpole-replay-small", "acrobot-replay", "--dry-run"]) == 1
    assert "missing   " in (output := capsys.readouterr().out)
    assert "datasets build acrobot-replay" in output
    assert "12 to run" in output


def test_a_dry_run_counts_hours_from_measured_rates(half_done):
    made = planning.preview(STUDY, workers=2, measure=False)
    rate = known_rates().rate(half_done[0])
    whole = 60 * rate.seconds_per_update + 6 * rate.seconds_per_episode
    part = 20 * rate.seconds_per_update + 2 * rate.seconds_per_episode
    assert made.seconds[half_done[1]] == pytest.approx(part)  # it resumes at step 40
    assert made.seconds[half_done[2]] == pytest.approx(whole)
    assert "from step 40" in made.text()
    assert len(made.plan.finished) == 2


def test_the_wall_time_of_a_plan():
    cells = STUDY.cells()
    seconds = dict(zip(cells, (5.0, 4.0, 3.0, 3.0, None, 1.0), strict=True))
    made = planning.Preview(planning.Plan(todo=cells), 2, seconds)
    assert made.total == 16
    assert made.wall == 8  # one worker: 5 + 3, the other: 4 + 3 + 1
    assert "without 1 that have no estimate" in made.text()


def test_rates_are_those_of_the_most_similar_runs():
    cell = STUDY.cells()[0]
    widest, closest = ("dqn", 1), ("dqn" + FAST, "cartpole-replay-small", 1)
    known = {widest: [Rate(1.0, 0.0)], closest: [Rate(0.1, 2.0), Rate(0.3, 4.0), Rate(9.0, 9.0)]}
    assert Rates(known).rate(cell) == Rate(0.3, 4.0)  # the median
    assert Rates({widest: known[widest]}).rate(cell) == Rate(1.0, 0.0)
    assert Rates({("td", 1): [Rate(1.0, 0.0)]}).rate(cell) is None
    half = dataclasses.replace(cell, algorithm=f"{cell.algorithm}@precision=bfloat16")
    assert Rates(known).rate(half) is None  # another precision is another speed
    assert Rates({("dqn@precision=bfloat16", 1): [Rate(2.0, 0.0)]}).rate(half) == Rate(2.0, 0.0)
    assert Rate(0.5, 2.0).seconds(cell) == 60 * 0.5 + 3 * 2 * 2.0
    assert Rate(0.5, 2.0).seconds(cell, start=50) == 10 * 0.5 + 1 * 2 * 2.0


def test_a_forecast_weighs_cells_by_their_length(monkeypatch, home):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    short, long = STUDY.cells()[0], STUDY.cells()[3]
    known = Rates({("dqn", 1): [Rate(1.0, 0.0)], ("td", 1): [Rate(3.0, 0.0)]})
    forecast = Forecast([short, long], known)
    assert forecast.seconds_left() is None
    now = 130.0
    forecast.set_step(short, 60)  # a quarter of the work, in 30 seconds
    assert forecast.seconds_left() == pytest.approx(90)
    forecast.set_step(long, 30)
    assert forecast.done_share == pytest.approx(0.625)
    assert forecast.seconds_left() == pytest.approx(30 * 0.375 / 0.625)
    forecast.remove(long)
    assert forecast.seconds_left() == 0


@pytest.mark.parametrize(
    ("source", "algorithm"), [("cartpole-replay-small", "gndqn"), ("Hopper-v5", "pg_td")]
)
def test_a_rate_is_measured_on_the_spot(source, algorithm, small_dataset):
    cell = Experiment("study", (source,), (algorithm,), 1, STUDY.protocol).cells()[0]
    start = time.monotonic()
    rate = measure_rate(cell, cell.sources())
    assert time.monotonic() - start < 20  # about one second on a quiet machine
    assert rate.seconds_per_update > 0
    assert rate.seconds_per_episode > 0
    plan = planning.Plan(todo=[cell], sources={(cell.source, cell.seeds): cell.sources()})
    rates = Rates({}).with_measured(plan)
    assert rates.seconds(cell) > 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "?"), (12.4, "12 s"), (240, "4 min"), (12_000, "3 h 20 min"), (188_000, "2 d 4 h")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_bars_on_a_terminal_and_lines_elsewhere(terminal, home, monkeypatch):
    monkeypatch.setattr("offline_gntd.experiments.progress.LINE_SECONDS", 0.0)
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=200, highlight=False)
    cell, other = STUDY.cells()[:2]
    with open_display("study", Forecast([cell, other], Rates({})), quiet=False, console=console) as shown:
        shown.progress(Progress(cell, 30, 12.34))
        shown.progress(Progress(other, 20))
        shown.ended(JobResult(cell, "done"))
        shown.line("a word")
    output = file.getvalue()
    for words in (str(cell), "score 12.3", "1 of 2 ended", "left", "a word"):
        assert words in output
    assert ("\x1b[" in output) == terminal
