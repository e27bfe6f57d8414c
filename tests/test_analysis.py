"""Tables from numbers small enough to check by hand."""

import math

import pandas as pd
import pytest

from offline_gntd.analysis import bellman, published, scores
from offline_gntd.analysis.selection import select
from offline_gntd.analysis.table import Cell, Table
from offline_gntd.errors import UserError
from offline_gntd.files import write_json, write_text
from offline_gntd.runs import results
from offline_gntd.runs.experiments import Experiment, Protocol, store
from offline_gntd.runs.record import to_csv

PROTOCOL = Protocol(steps=20, evaluate_every=10, evaluate_episodes=1)


def write_run(experiment, algorithm, seed, returns, errors, dataset="cartpole-replay", **changes):
    """A finished run with evaluations at 10, 20, … updates, one training second per ten."""
    cell = next(
        c for c in experiment.cells() if c.algorithm == algorithm and seed in c.seeds and c.dataset == dataset
    )
    description = {
        "experiment": experiment.name,
        "dataset": dataset,
        "algorithm": algorithm,
        "label": algorithm.upper(),
        "seed": seed,
        "status": "done",
        "config": {},
        "config_hash": cell.config_hash,
        "protocol": vars(experiment.protocol),
        "stack": 1,
        "dataset_sha256": "f" * 64,
        "dataset_rows": 100,
        "device": "cpu",
        "dataset_origin": "built",
        "dataset_stands_for": None,
        "dataset_version": None,
        "env_id": "CartPole-v1",
        "task": {},
        "versions": {},
        "machine": {"cpu": "abacus"},
        "resumed_at": [],
    } | changes
    write_json(cell.folder(seed) / "run.json", description)
    steps = range(10, 10 * len(returns) + 1, 10)
    rows = [
        {"step": s, "return": r, "score": r / 5, "training_seconds": s, "training_cpu_seconds": s / 10}
        for s, r in zip(steps, returns, strict=True)
    ]
    write_text(cell.folder(seed) / "scores.csv", to_csv(rows))
    rows = [{"step": s, "bellman_error": e} for s, e in zip(steps, errors, strict=True)]
    write_text(cell.folder(seed) / "metrics.csv", to_csv(rows))


@pytest.fixture
def study():
    """TD never gets there and one seed diverges; DQN's two seeds reach 400 after 1 s and 2 s."""
    experiment = Experiment("study", ("cartpole-replay",), ("td", "dqn"), seeds=2, protocol=PROTOCOL)
    store(experiment)
    write_run(experiment, "td", 0, [10, 20], [5.0, 7.0])
    write_run(experiment, "td", 1, [30], [9.0], status="diverged")
    write_run(experiment, "dqn", 0, [400, 300], [0.5, 0.4])
    write_run(experiment, "dqn", 1, [100, 500], [0.7, 0.6])
    return experiment


def test_table1_by_hand(study):
    table = bellman.table(select("study"))
    td, dqn = table.long.to_dict("records")
    assert (td["bellman_error"], td["bellman_error_std"]) == (8.0, pytest.approx(math.sqrt(2)))
    assert (td["diverged"], td["reached"], td["final_return"]) == (1, 0, 25.0)
    assert math.isnan(td["seconds"])
    assert dqn["bellman_error"] == pytest.approx(0.5)
    assert (dqn["reached"], dqn["seconds"], dqn["updates"]) == (2, 1.5, 15.0)
    assert (td["paper_bellman_error"], dqn["paper_seconds"]) == (757.93, 23.17)
    assert [cell.text for cell in table.rows[0]] == [
        "cartpole-replay", "TD", "8.00 ± 1.41 †1", "757.9", "—", "0/2", "—", "25.0 ± 7.1",
    ]  # fmt: skip
    assert table.rows[1][2] == Cell("0.50 ± 0.14", bold=True)
    assert not table.missing
    for words in (
        "20 updates",
        "2 seeds",
        "every 10",
        "ddof 1",
        "400 on CartPole-v1",
        "abacus",
        "100 transitions",
    ):
        assert words in table.caption


def test_a_time_that_fewer_seeds_reached_is_not_the_best(study):
    write_run(study, "td", 0, [500, 20], [5.0, 7.0])  # one seed of two, after one second
    td, dqn = bellman.table(select("study")).rows
    assert (td[4], td[5].text) == (Cell("1.00"), "1/2")
    assert (dqn[4], dqn[5].text) == (Cell("1.50", bold=True), "2/2")


def test_scores_by_hand(study):
    table = scores.table(select("study"))
    assert [cell.text for cell in table.rows[0]] == ["cartpole-replay", "5.0 ± 1.4 †1", "80.0 ± 28.3"]
    assert [cell.bold for cell in table.rows[0]] == [False, False, True]
    assert table.columns == ("dataset", "TD", "DQN")


def test_a_missing_run_makes_the_table_say_so(study):
    (next(c for c in study.cells() if c.algorithm == "dqn").folder(0) / "run.json").unlink()
    table = bellman.table(select("study"))
    assert table.missing == ("cartpole-replay dqn seed 0",)
    for form in ("md", "tex"):
        assert "INCOMPLETE: 1 runs are missing" in table.text(form)


def test_runs_of_another_protocol_are_not_mixed_in(study):
    other = dict(vars(PROTOCOL), steps=40)
    write_run(study, "dqn", 1, [100, 500], [0.7, 0.6], protocol=other)
    assert select("study").missing == ("cartpole-replay dqn seed 1",)


@pytest.mark.parametrize(
    ("change", "word"), [({"dataset_sha256": "0" * 64}, "data"), ({"env_id": "CartPole-v0"}, "environments")]
)
def test_runs_that_must_not_be_compared_are_refused_by_name(study, change, word):
    write_run(study, "dqn", 1, [100, 500], [0.7, 0.6], **change)
    with pytest.raises(UserError, match=f"share their {word}: dqn seed 1"):
        select("study")


def test_shipped_results_of_another_protocol_are_left_out_and_said(study):
    results.ship("study")
    shorter = Experiment("study", study.datasets, study.algorithms, seeds=2, protocol=Protocol(5, 5, 1))
    store(shorter)
    for algorithm in ("td", "dqn"):
        for seed in (0, 1):
            write_run(shorter, algorithm, seed, [1.0], [1.0])
    selection = select("study")
    assert len(selection.runs) == 4
    assert "another protocol" in bellman.caption(selection)


def test_forms():
    long = pd.DataFrame({"dataset": ["a_b"], "value": [0.123456789]})
    table = Table("t", "5 % of Q(s,a) − r", ("dataset", "value"), ((Cell("a_b"), Cell("1 ± 2", True)),), long)
    assert table.text("md").startswith("| dataset | value |\n| --- | --- |\n| a_b | **1 ± 2** |\n")
    assert r"a\_b & \textbf{1 $\pm$ 2} \\" in table.text("tex")
    assert r"5 \% of Q(s,a) $-$ r" in table.text("tex")
    assert table.text("csv") == "dataset,value\na_b,0.123457\n"
    with pytest.raises(UserError, match="no format 'doc'"):
        table.text("doc")


@pytest.fixture
def locomotion():
    """Two seeds, two D4RL files of one version, three evaluations each."""
    names = ("hopper-medium-v2", "walker2d-medium-v2")
    experiment = Experiment("table2-v2", names, ("td3_bc",), seeds=2, protocol=Protocol(30, 10, 1))
    store(experiment)
    for name, base in zip(names, (10, 100), strict=True):
        for seed in (0, 1):
            returns = [5 * (base + seed * 4 + k) for k in range(3)]  # scores base + 4 seed + 0, 1, 2
            facts = {"dataset_origin": "d4rl", "dataset_version": "v2", "dataset_stands_for": name}
            write_run(experiment, "td3_bc", seed, returns, [1, 1, 1], name, label="TD3+BC", **facts)
    return experiment


def test_final_evaluations_totals_and_published_numbers(locomotion):
    table = scores.table(select("table2-v2"), final=2)
    hopper, walker, total = table.rows
    assert hopper[1].text == "13.5 ± 2.8"  # seeds 11.5 and 15.5
    assert walker[1].text == "103.5 ± 2.8"
    # the mean of per-seed totals and their std over seeds
    assert total[1].text == "117.0 ± 5.7"
    columns = dict(zip(table.columns, hopper, strict=True))
    assert columns["paper TD3+BC"].text == "100.2 ± 0.2"
    assert columns["CORL TD3+BC"].text == "60.4 ± 3.5"
    assert "d3rlpy TD3+BC" not in columns  # its numbers are for v0
    assert "the last 2 evaluations" in table.caption
    few = scores.table(select("table2-v2"), final=10)
    assert "the last 3 evaluations" in few.caption
    assert few.long["evaluations"].max() == 3


def test_totals_are_not_summed_across_origins(locomotion):
    facts = {"dataset_origin": "file", "dataset_version": "v2", "dataset_stands_for": "hopper-medium-v2"}
    for seed in (0, 1):
        write_run(
            locomotion, "td3_bc", seed, [1, 2, 3], [1, 1, 1], "hopper-medium-v2", label="TD3+BC", **facts
        )
    assert [row[0].text for row in scores.table(select("table2-v2")).rows] == list(locomotion.datasets)


def test_the_paper_s_own_sums():
    """Its CQL total is printed as 728.9 where its rows sum to 729.2; the others add up."""
    paper = published.locomotion().query("source == 'paper'")
    totals = paper.groupby("label")["mean"].sum().round(1)
    assert totals["CQL"] == 729.2
    assert totals["GNTD3+BC"] == 980.2
    assert totals["TD3+BC"] == 942.8
    assert paper.groupby("label").size().eq(12).all()
