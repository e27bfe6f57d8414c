"""Algorithms that learn online: collection, replay buffer, resuming to the bit, errors."""

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
from offline_gntd.analysis import render
from offline_gntd.analysis.selection import select
from offline_gntd.cli import main
from offline_gntd.collection.online import ReplayBuffer
from offline_gntd.errors import UserError
from offline_gntd.evaluation import task_of
from offline_gntd.experiments import definitions
from offline_gntd.experiments.definitions import Cell, Experiment, Protocol
from offline_gntd.experiments.run import Run, Stopped
from offline_gntd.experiments.training import batches_of

SMALL = "@batch_size=32@hidden_dims=8@policy_freq=2@random_steps=20@buffer_size=200"


def cell(name, algorithm="pg_gntd", steps=60, seeds=(0,), task="Hopper-v5", evaluate_every=30):
    protocol = Protocol(steps, evaluate_every, evaluate_episodes=1, seeds_per_process=len(seeds))
    return Cell(name, task, algorithm + SMALL, seeds, protocol)


def online(seeds=(0, 1), **settings):
    made = cell("study", seeds=seeds)
    config = dataclasses.replace(made.config, **settings)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    agent = config.agent(task_of("Hopper-v5"), generators)
    return batches_of(made.sources(), config, seeds, generators), agent


def test_random_steps_come_first_and_give_no_batch():
    batches, agent = online(random_steps=5)
    asked = []
    explore = agent.explore
    agent.explore = lambda obs: asked.append(obs) or explore(obs)
    drawn = [batches.batch(agent) for _ in range(8)]
    assert [batch is None for batch in drawn] == [True] * 5 + [False] * 3
    assert len(asked) == 3
    assert drawn[-1].obs.shape == (2, 32, 11)


def test_batches_are_drawn_from_the_transitions_of_the_seed():
    batches, agent = online(random_steps=5)
    seen = [[], []]
    step = [collector.step for collector in batches.collectors]
    for seed, collector in enumerate(batches.collectors):

        def record(action, seed=seed):
            rows, truncated = step[seed](action)
            seen[seed].append(rows[0].clone())
            return rows, truncated

        collector.step = record
    for _ in range(30):
        batch = batches.batch(agent)
    for seed in range(2):
        stored = torch.stack(seen[seed])[:, :11]
        for obs in batch.obs[seed]:
            assert (stored == obs).all(1).any()
    assert not torch.equal(batches.buffer.rows[0, :30], batches.buffer.rows[1, :30])


def test_a_full_buffer_overwrites_the_oldest():
    task = task_of("Hopper-v5")
    buffer = ReplayBuffer(task, 1, 5)
    width = buffer.rows.shape[-1]
    for i in range(8):
        buffer.add([torch.full((1, width), float(i))], [torch.tensor([i % 2 == 0])])
    rows, truncated = buffer.in_order(0)
    assert rows[:, 0].tolist() == [3, 4, 5, 6, 7]
    assert truncated.tolist() == [False, True, False, True, False]
    again = ReplayBuffer(task, 1, 5)
    again.restore([rows], [truncated], 8)
    assert torch.equal(again.rows, buffer.rows)
    assert len(again) == 5


def test_collected_returns_are_of_complete_episodes():
    batches, agent = online(seeds=(3,), random_steps=0)
    rewards, expected = 0.0, []
    for i in range(150):
        batches.batch(agent)
        row = batches.buffer.rows[0, i]
        rewards += float(row[11 + 3])
        if row[-1]:
            expected.append(rewards)
            rewards = 0.0
    assert len(expected) > 1
    assert batches.metrics(0)["collected_return"] == pytest.approx(np.mean(expected), rel=1e-5)
    assert batches.metrics(0) == {}  # no episode has ended since


@pytest.mark.parametrize("algorithm", ["pg_td", "pg_gntd"])
def test_a_stopped_run_resumes_to_the_same_bits(algorithm):
    whole, stopped = cell("whole", algorithm, seeds=(0, 1)), cell("stopped", algorithm, seeds=(0, 1))
    Run(whole).execute()
    for at in (7, 33, 41):  # steps; a run is stopped where it looks up
        run = Run(stopped)
        run._pause_at = lambda run=run: run.step + 1
        with pytest.raises(Stopped):
            run.execute(stopping=lambda run=run, at=at: run.step >= at)
    Run(stopped).execute()
    assert bits.of_cells([whole]) == {
        (name.replace("stopped", "whole"), seed): found
        for (name, seed), found in bits.of_cells([stopped]).items()
    }


def test_a_killed_run_resumes_to_the_same_bits():
    whole, killed = (cell(name, steps=800, evaluate_every=400) for name in ("whole", "killed"))
    assert finish(whole) == 0
    run = start(killed, checkpoint_seconds=0.2)
    wait_for_status(killed.folder(0), process=run.pid)
    while not list(killed.folder(0).glob("checkpoint-*.pt")) and run.is_alive():
        time.sleep(0.01)
    os.kill(run.pid, signal.SIGKILL)
    run.join()
    assert finish(killed) == 0
    [resumed_at] = json.loads((killed.folder(0) / "run.json").read_text())["resumed_at"]
    assert 0 < resumed_at < 800
    assert bits.read(killed.folder(0)) == bits.read(whole.folder(0))


def test_a_stored_policy_is_evaluated_again(capsys):
    made = cell("study")
    Run(made).execute()
    assert main(["evaluate", str(made.folder(0))]) == 0
    assert "the same" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--datasets", "Hoper-v5"], "not from 'Hoper-v5'"),
        (["--datasets", "hopper-medium-v2"], "not from 'hopper-medium-v2'"),
        (["--datasets", "some/hopper.hdf5"], "not from 'some/hopper.hdf5'"),
        (["--datasets", "CartPole-v1"], "is for continuous actions"),
        (["--algorithms", "td3_bc"], "HalfCheetah-v4 is an environment, and TD3BC learns from a dataset"),
        (["--set", "environments=0"], "environments must be positive"),
        (["--set", "policy_freq=0"], "policy_freq must be positive"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, words, home, capsys):
    assert main(["run", "figure1", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1
    assert not list(home.iterdir())


def test_a_grid_from_run_to_export(home, capsys):
    settings = ["--datasets", "Hopper-v5", "--seeds", "1", "--steps", "40", "--evaluate-every", "20"]
    changes = [word for setting in SMALL.split("@")[1:] for word in ("--set", setting)]
    command = ["run", "figure1", *settings, "--evaluate-episodes", "1", "--workers", "1", *changes]
    assert main(command) == 0
    assert main(command) == 0
    assert "2 finished before" in capsys.readouterr().out
    assert main(["status", "figure1"]) == 0
    assert "2 done" in capsys.readouterr().out
    assert main(["table", "figure1"]) == 0
    assert "1 seed, 40 environment steps" in capsys.readouterr().out
    assert main(["explain", "figure1", "Hopper-v5", f"pg_td{SMALL}"]) == 0
    assert "online" in capsys.readouterr().out
    assert main(["export", "figure1"]) == 0
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
        table=dataclasses.replace(built_in.table, aggregate="final-3"),
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


def test_the_pairwise_table_shows_the_significant_difference():
    made_up()
    table = render.table("figure1")
    rows = {row[0].text: row for row in table.rows}
    # means over seeds of 10, 11, 12 times 2, 3, 4
    assert [cell.text for cell in rows["Hopper-v5"][2:4]] == ["133.0 ± 3.0", "33.0 ± 3.0"]
    assert rows["Hopper-v5"][4].bold
    assert rows["Hopper-v5"][4].text.startswith("100.0 [")
    assert not rows["Swimmer-v5"][6].bold
    assert "3 seeds, 40 environment steps" in table.protocol
    assert "Trained online in Hopper-v5, Swimmer-v5." in table.protocol


def test_figures_show_returns_by_steps_and_by_seconds():
    from matplotlib import pyplot

    made_up()
    selection = select("figure1")
    for kind, label in {"updates": "environment steps", "seconds": "seconds"}.items():
        drawn = render.draw(selection, kind, 2)
        assert [axis.get_ylabel() for axis in drawn.axes] == ["return"] * 2
        assert all(label in axis.get_xlabel() for axis in drawn.axes)
        pyplot.close(drawn)
    with pytest.raises(UserError, match="profiles"):  # returns of two tasks have no common axis
        render.draw(selection, "profiles", 2)


def test_report_of_online_runs(home):
    made_up()
    page = render.report(["figure1"]).read_text()
    assert "Learning curves by environment steps" in page
    assert "collected during training" in page
