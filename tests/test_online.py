"""Algorithms that collect their own batches: on-policy, resumed to the bit, refused in one line."""

import dataclasses
import json
import os
import signal
import time

import bits
import numpy as np
import pytest
import torch
from fabricated import write_run
from test_survival import finish, start, wait_for_status

from offline_gntd.algorithms import preset
from offline_gntd.analysis import pairwise, render
from offline_gntd.analysis.selection import select
from offline_gntd.cli import main
from offline_gntd.evaluation import task_of
from offline_gntd.experiments import definitions
from offline_gntd.experiments.batches import Collected
from offline_gntd.experiments.definitions import Cell, Experiment, Protocol
from offline_gntd.experiments.run import Run, Stopped
from offline_gntd.experiments.sources import source_of

SMALL = "@batch_size=32@environments=4@hidden_dims=8@evaluation_steps=2"


def cell(name, algorithm="pg_gntd", steps=6, seeds=(0,), task="Hopper-v5", evaluate_every=2):
    protocol = Protocol(steps, evaluate_every, evaluate_episodes=1, stack=len(seeds))
    return Cell(name, task, algorithm + SMALL, seeds, protocol)


def collected(seeds=(0, 1)):
    made = cell("study", seeds=seeds)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    agent = made.config.agent(task_of("Hopper-v5"), generators)
    return Collected(source_of(made), made.config, seeds, "cpu"), agent


def test_a_batch_is_lived_by_the_policy_as_it_is_and_used_once():
    experience, agent = collected()
    asked = []
    explore = agent.explore
    agent.explore = lambda obs: asked.append((obs.clone(), explore(obs))) or asked[-1][1]
    batches = [experience.batch(agent) for _ in range(3)]
    assert len(asked) == 3 * 8  # 32 samples by 4 environments
    for i, batch in enumerate(batches):
        mine = asked[8 * i : 8 * (i + 1)]
        assert torch.equal(batch.obs, torch.cat([obs for obs, _ in mine], 1))
        assert torch.equal(batch.action, torch.cat([action for _, action in mine], 1))
        assert batch.obs.shape == (2, 32, 11)
    # episodes go on from one batch to the next
    last, first = batches[0].next_obs[:, -4:], batches[1].obs[:, :4]
    whole = ~batches[0].terminated[:, -4:].bool()
    assert torch.equal(last[whole], first[whole])
    assert not torch.equal(batches[0].obs[0], batches[0].obs[1])  # seeds live apart


def test_returns_are_those_of_whole_episodes():
    experience, agent = collected(seeds=(3,))
    rewards, ends = [], []
    for _ in range(6):
        batch = experience.batch(agent)
        rewards.append(batch.reward[0].view(8, 4))
        ends.append(batch.terminated[0].view(8, 4))
    rewards, ends = torch.cat(rewards).double().numpy(), torch.cat(ends).numpy()
    expected = []
    for i in range(4):
        marks = np.flatnonzero(ends[:, i]) + 1
        expected += [rewards[a:b, i].sum() for a, b in zip([0, *marks[:-1]], marks, strict=True)]
    assert expected
    assert experience.metrics(0)["collected_return"] == pytest.approx(np.mean(expected))
    assert experience.metrics(0) == {}  # none since


@pytest.mark.parametrize("algorithm", ["pg_td", "pg_gntd"])
def test_a_stopped_run_resumes_to_the_same_bits(algorithm):
    whole, stopped = cell("whole", algorithm, seeds=(0, 1)), cell("stopped", algorithm, seeds=(0, 1))
    Run(whole).execute()
    for at in (1, 3, 4):  # steps; a run is stopped where it looks up
        run = Run(stopped)
        run._pause_at = lambda run=run: run.step + 1
        with pytest.raises(Stopped):
            run.execute(stopping=lambda run=run, at=at: run.step >= at)
    Run(stopped).execute()
    assert bits.of_cells([whole]) == {
        (name.replace("stopped", "whole"), seed): found
        for (name, seed), found in bits.of_cells([stopped]).items()
    }


def test_killed_it_goes_on_to_the_same_bits():
    whole, killed = (cell(name, steps=500, evaluate_every=200) for name in ("whole", "killed"))
    assert finish(whole) == 0
    run = start(killed)
    wait_for_status(killed.folder(0), process=run.pid)
    while not list(killed.folder(0).glob("checkpoint-*.pt")) and run.is_alive():
        time.sleep(0.01)
    os.kill(run.pid, signal.SIGKILL)
    run.join()
    assert finish(killed) == 0
    [resumed_at] = json.loads((killed.folder(0) / "run.json").read_text())["resumed_at"]
    assert 0 < resumed_at < 500
    assert bits.read(killed.folder(0)) == bits.read(whole.folder(0))


def test_a_stored_policy_is_scored_again(capsys):
    made = cell("study")
    Run(made).execute()
    assert main(["evaluate", str(made.folder(0))]) == 0
    assert "the same" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--datasets", "Hoper-v5"], "'Hoper-v5' is none"),
        (["--datasets", "hopper-medium-v2"], "'hopper-medium-v2' is none"),
        (["--datasets", "some/hopper.hdf5"], "'some/hopper.hdf5' is none"),
        (["--datasets", "CartPole-v1"], "learns continuous actions"),
        (["--datasets", "Pendulum-v1"], "takes actions from -2 to 2"),
        (["--algorithms", "td3_bc"], "Hopper-v5 is an environment, and td3_bc learns from a dataset"),
        (["--set", "environments=7"], "no multiple of 7 environments"),
        (["--set", "evaluation_steps=0"], "evaluation_steps must be at least 1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, words, home, capsys):
    assert main(["run", "figure1", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1
    assert not list(home.iterdir())


def test_a_grid_from_run_to_ship(home, capsys):
    settings = ["--datasets", "Hopper-v5", "--seeds", "1", "--steps", "4", "--evaluate-every", "2"]
    changes = [word for setting in SMALL.split("@")[1:] for word in ("--set", setting)]
    command = ["run", "figure1", *settings, "--evaluate-episodes", "1", "--workers", "1", *changes]
    assert main(command) == 0
    assert main(command) == 0
    assert "2 finished before" in capsys.readouterr().out
    assert main(["status", "figure1"]) == 0
    assert "2 done" in capsys.readouterr().out
    assert main(["table", "figure1"]) == 0
    assert "4 batches, 1 seed" in capsys.readouterr().out
    assert main(["explain", "figure1", "Hopper-v5", f"pg_td{SMALL}"]) == 0
    assert "online" in capsys.readouterr().out
    assert main(["ship", "figure1"]) == 0
    assert main(["table", "figure1"]) == 0


def made_up():
    """PG-GNTD ahead on Hopper, and nothing to tell on Swimmer."""
    built_in = definitions.BUILT_IN["figure1"]
    experiment = Experiment(
        "figure1",
        ("Hopper-v5", "Swimmer-v5"),
        built_in.algorithms,
        seeds=3,
        protocol=dataclasses.replace(built_in.protocol, steps=40, evaluate_every=10),
    )
    definitions.store(experiment)
    for seed in range(3):
        for task, gain in (("Hopper-v5", 100), ("Swimmer-v5", 0)):
            for algorithm, ahead in (("pg_td", 0), ("pg_gntd", gain)):
                returns = [(1 + 0.1 * seed) * 10 * k + ahead for k in range(1, 5)]
                write_run(
                    experiment,
                    algorithm,
                    seed,
                    returns,
                    dataset=task,
                    label=preset(algorithm).label,
                    config={"batch_size": 512},
                    dataset_sha256=None,
                    dataset_rows=0,
                    dataset_score=None,
                    dataset_origin="online",
                    env_id=task,
                    task={
                        "discrete": False,
                        "reference_min": 0,
                        "reference_max": 500,
                        "reference_source": "",
                    },
                )


def test_the_table_says_what_holds():
    made_up()
    table = render.table("figure1")
    rows = {(row[0].text, row[1].text): row for row in table.rows}
    # means over seeds of 10, 11, 12 times 1 … 4, whose mean is 2.5
    assert [cell.text for cell in rows["Hopper-v5", "at the end"][3:5]] == ["127.5 ± 2.5", "27.5 ± 2.5"]
    assert rows["Hopper-v5", "at the end"][5].bold
    assert rows["Hopper-v5", "at the end"][5].text.startswith("100.0 [")
    assert not rows["Swimmer-v5", "all of training"][5].bold
    assert "40 batches, 3 seeds" in table.caption
    assert "Batches of 512 transitions, collected on-policy in Hopper-v5, Swimmer-v5." in table.caption


def test_differences_draw_either_side_anew():
    found = pairwise.difference(np.array([3.0, 5.0]), np.array([1.0, 1.0]))
    assert found == (3.0, 2.0, 4.0)


def test_figures_are_of_returns_by_batches_and_by_seconds():
    from offline_gntd.analysis import figures

    made_up()
    drawn = figures.draw(select("figure1"), render.usual("figure1"), 2)
    assert {"updates", "seconds", "efficiency"} <= set(drawn)
    assert "profiles" not in drawn  # returns of two tasks have no common axis
    labels = [(axis.get_xlabel(), axis.get_ylabel()) for axis in drawn["updates"].axes]
    assert labels == [("batches", "return")] * 2
    for figure in drawn.values():
        figures.close(figure)


def test_the_report_has_it(home):
    made_up()
    page = render.report(["figure1"]).read_text()
    assert "Learning curves by batches" in page
    assert "collected as it learns" in page
