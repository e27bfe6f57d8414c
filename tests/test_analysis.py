"""Tables from numbers small enough to check by hand."""

import math

import pandas as pd
import pytest
from fabricated import d4rl, write_run

from offline_gntd.analysis import (
    aggregates,
    bellman,
    captions,
    compatibility,
    grid,
    published,
    render,
    values,
    versus_published,
)
from offline_gntd.analysis.grid import Layout
from offline_gntd.analysis.selection import Absent, select
from offline_gntd.analysis.table import Cell, Table
from offline_gntd.analysis.values import Measure
from offline_gntd.errors import UserError
from offline_gntd.experiments import definitions, results
from offline_gntd.experiments.definitions import Experiment, Protocol, store

PROTOCOL = Protocol(steps=20, evaluate_every=10, evaluate_episodes=1)


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
    table = grid.table(select("study"))
    assert [cell.text for cell in table.rows[0]] == ["cartpole-replay", "5.0 ± 1.4 †1", "80.0 ± 28.3"]
    assert [cell.bold for cell in table.rows[0]] == [False, False, True]
    assert table.columns == ("dataset", "TD", "DQN")
    for words in ("ddof 1", "20 updates", "2 seeds", "last evaluation", "permutation test", "CartPole-v1"):
        assert words in table.caption


def test_a_table_s_spread_is_the_returns_only_scaled(study):
    """A score is a fifth of a return here: its mean and its std are too, and nothing is shifted."""
    score, returns = (grid.table(select("study"), Measure(m)).long for m in ("score", "return"))
    assert score["score"].tolist() == pytest.approx((returns["return"] / 5).tolist())
    assert score["score_std"].tolist() == pytest.approx((returns["return_std"] / 5).tolist())


@pytest.mark.parametrize(
    ("metric", "protocol", "expected"),
    [
        ("score", "last", [60, 100]),
        ("score", "best", [80, 100]),
        ("score", "final-2", [70, 60]),
        ("score", "final-9", [70, 60]),  # as many as there are
        ("bellman_error", "last", [0.4, 0.6]),
        ("bellman_error", "best", [0.4, 0.6]),
        ("training_cpu_seconds", "last", [2, 2]),
    ],
)
def test_what_a_run_is_worth(study, metric, protocol, expected):
    lines = values.read(select("study"), Measure(metric, protocol))
    assert lines[lines["algorithm"] == "dqn"]["value"].tolist() == expected


def test_the_best_evaluation_is_said_to_flatter(study):
    assert "flatters" in grid.table(select("study"), Measure("score", "best")).caption
    assert (
        "mean of its last 2 evaluations" in grid.table(select("study"), Measure("score", "final-9")).caption
    )


def test_rows_and_columns_of_one_s_choice(study):
    table = grid.table(select("study"), Measure("bellman_error"), Layout("algorithm", "dataset"))
    assert table.columns == ("algorithm", "cartpole-replay")
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["TD", "8.00 ± 1.41 †1"],
        ["DQN", "0.50 ± 0.14"],
    ]
    assert [row[1].bold for row in table.rows] == [False, True]  # less is better


def test_a_field_as_an_axis():
    sweep = Experiment("sweep", ("a",), ("td", "td@learning_rate=0.01", "dqn"), seeds=1, protocol=PROTOCOL)
    store(sweep)
    for algorithm, rate in (("td", 0.1), ("td@learning_rate=0.01", 0.01), ("dqn", 0.1)):
        write_run(sweep, algorithm, 0, [rate * 1000], dataset="a", config={"learning_rate": rate})
    table = grid.table(select("sweep"), layout=Layout("learning_rate", "preset"))
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["0.01", "2.0", ""],
        ["0.1", "20.0", "20.0"],
    ]
    with pytest.raises(UserError, match="would hold a td and a dqn"):
        grid.table(select("sweep"), layout=Layout("learning_rate", "dataset"))
    with pytest.raises(UserError, match="did you mean 'learning_rate'"):
        grid.table(select("sweep"), layout=Layout("learning_rat", "preset"))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Measure("score", "final-0"), "no protocol 'final-0'"),
        (lambda: Measure("value", "best"), "no value of value is the best"),
        (lambda: Layout("dataset", "dataset"), "cannot both be dataset"),
        (lambda: grid.table(select("study"), Measure("scores")), "did you mean 'score'"),
        (lambda: select("study", datasets=["cartpole"]), "did you mean 'cartpole-replay'"),
        (lambda: select("study", algorithms=["sarsa"]), "no algorithm in study 'sarsa'"),
    ],
)
def test_what_cannot_be_shown_is_said(study, make, words):
    with pytest.raises(UserError, match=words):
        make()


def test_part_of_an_experiment(study):
    for name in ("dqn", "DQN"):  # by its name or by its label
        assert set(select("study", algorithms=[name]).runs["algorithm"]) == {"dqn"}


def test_missing_runs_are_marked_and_counted(study):
    (next(c for c in study.cells() if c.algorithm == "dqn").folder(0) / "run.json").unlink()
    table, scores = bellman.table(select("study")), grid.table(select("study"))
    assert table.missing == scores.missing == (Absent("cartpole-replay", "dqn", 0),)
    assert table.rows[1][2].text == "0.60 (1/2)"
    assert scores.rows[0][2].text == "100.0 (1/2)"
    for form in ("md", "tex", "html"):
        assert "INCOMPLETE: 1 runs are missing, in 1 cells" in table.text(form)
    (next(c for c in study.cells() if c.algorithm == "dqn").folder(1) / "run.json").unlink()
    table, scores = bellman.table(select("study")), grid.table(select("study"))
    assert [cell.text for cell in table.rows[1][2:6]] == ["missing", "0.60", "missing", "0/2"]
    assert [cell.text for cell in scores.rows[0]][2] == "missing"
    assert "2 runs are missing, in 1 cells" in scores.note


def test_runs_of_another_protocol_are_left_out_by_name(study):
    write_run(study, "dqn", 1, [100, 500], protocol=dict(vars(PROTOCOL), steps=40))
    selection = select("study")
    assert selection.missing == (Absent("cartpole-replay", "dqn", 1),)
    assert "another protocol and are left out: cartpole-replay dqn seed 1" in selection.notes[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dataset_sha256": "0" * 64}, "data: f+ for 3 of them, but 0+ for cartpole-replay dqn seed 1"),
        ({"env_id": "CartPole-v0"}, "environment: CartPole-v1 for 3 of them, but CartPole-v0"),
        ({"dataset_origin": "file"}, "origin of the data: built for 3 of them, but file"),
        ({"dataset_version": "v2"}, "version of the data"),
        ({"stack": 2}, "stack size: 1 for 3 of them, but 2 for cartpole-replay dqn seed 1"),
    ],
)
def test_runs_that_must_not_be_compared_are_refused_by_name(study, change, words):
    write_run(study, "dqn", 1, [100, 500], **change)
    for mixed in (False, True):  # runs on one dataset are never mixed
        with pytest.raises(UserError, match=words):
            select("study", mixed=mixed)


def test_shipped_results_of_another_protocol_are_left_out_and_said(study):
    results.export(definitions.find("study"))
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
    rows, foot = ((Cell("a_b"), Cell("1 ± 2", True)),), ((Cell("total"), Cell("<3")),)
    table = Table("t", "5 % of Q(s,a) − r", ("dataset", "value"), rows, long, foot=foot)
    assert table.text("md").startswith("| dataset | value |\n| --- | --- |\n| a_b | **1 ± 2** |\n| total |")
    assert r"a\_b & \textbf{1 $\pm$ 2} \\" in table.text("tex")
    assert "\\midrule\ntotal & $<$3" in table.text("tex")
    assert r"5 \% of Q(s,a) $-$ r" in table.text("tex")
    assert table.text("csv") == "dataset,value\na_b,0.123457\n"
    assert "<strong>1 ± 2</strong>" in table.text("html")
    assert '<tfoot><tr><td class="words">total</td><td>&lt;3</td></tr></tfoot>' in table.text("html")
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
            write_run(experiment, "td3_bc", seed, returns, dataset=name, label="TD3+BC", **d4rl(name))
    return experiment


FINAL_2 = Measure("score", "final-2")


def test_final_evaluations_totals_and_published_numbers(locomotion):
    table = grid.table(select("table2-v2"), FINAL_2)
    hopper, walker = table.rows
    assert hopper[1].text == "13.5 ± 2.8"  # seeds 11.5 and 15.5
    assert walker[1].text == "103.5 ± 2.8"
    # the mean of per-seed totals and their std over seeds
    assert [cell.text for cell in table.foot[0]][:2] == ["total", "117.0 ± 5.7"]
    columns = dict(zip(table.columns, hopper, strict=True))
    assert columns["paper TD3+BC"].text == "100.2 ± 0.2"
    assert columns["CORL TD3+BC"].text == "60.4 ± 3.5"
    assert "d3rlpy TD3+BC" not in columns  # its numbers are for v0
    assert "CORL (D4RL v2, last evaluation)" in table.caption
    assert "have such names" not in table.caption


def test_a_seed_that_lacks_a_dataset_has_no_total(locomotion):
    (locomotion.cells()[0].folder(0) / "run.json").unlink()
    assert grid.table(select("table2-v2"), FINAL_2).foot[0][1].text == "121.0 (1/2)"


def test_data_of_two_origins_or_versions_is_refused_unless_asked_for(locomotion):
    facts = d4rl("hopper-medium-v2") | {"dataset_origin": "file"}
    for seed in (0, 1):
        write_run(locomotion, "td3_bc", seed, [1, 2, 3], dataset="hopper-medium-v2", label="TD3+BC", **facts)
    with pytest.raises(UserError, match=r"origin of the data.*hopper-medium-v2 td3_bc seed 0.*--mixed"):
        select("table2-v2")
    table = grid.table(select("table2-v2", mixed=True))
    assert not table.foot  # one dataset of each
    assert [row[0].text for row in table.rows] == [
        "hopper-medium-v2 (file v2)",
        "walker2d-medium-v2 (d4rl v2)",
    ]
    assert "MIXED: the datasets do not share their origin of the data (file, d4rl)" in table.caption
    assert "1 of our datasets have such names but are not these" in table.caption
    assert len(select("table2-v2", datasets=["walker2d-medium-v2"]).runs) == 2


def test_only_what_comes_from_one_place_is_summed():
    names = ("hopper-medium-v2", "walker2d-medium-v2", "hopper-expert-v2")
    experiment = Experiment("table2-v2", names, ("td3_bc",), seeds=1, protocol=Protocol(30, 10, 1))
    store(experiment)
    for name, value in zip(names, (50, 100, 250), strict=True):
        facts = d4rl(name) | ({"dataset_origin": "file"} if name == names[1] else {})
        write_run(experiment, "td3_bc", 0, [value] * 3, dataset=name, label="TD3+BC", **facts)
    table = grid.table(select("table2-v2", mixed=True))
    assert [[cell.text for cell in row[:2]] for row in table.foot] == [["total, d4rl v2", "60.0"]]
    assert "sum over datasets of one origin" in table.caption


def test_versions_of_one_environment_are_not_mixed():
    runs = pd.DataFrame(
        {
            "dataset": ["a", "b", "c"],
            "algorithm": "td",
            "seed": 0,
            "env_id": ["Hopper-v4", "Hopper-v4", "Hopper-v5"],
            **dict.fromkeys(("dataset_sha256", "dataset_origin", "dataset_version"), "x"),
            "stack": 1,
        }
    )
    with pytest.raises(UserError, match="version of the environment: Hopper-v4 for 2 of them, but Hopper-v5"):
        compatibility.refuse(runs)
    compatibility.refuse(runs.assign(env_id=["Hopper-v4", "Walker2d-v4", "HalfCheetah-v4"]))


def test_rebuilt_files_stand_beside_what_they_stand_for():
    """Results go by the file's name; what is published is found by what the file stands for."""
    experiment = Experiment("table2-built", ("data/hopper_medium-v2.hdf5",), ("bc",), 2, Protocol(10, 10, 1))
    store(experiment)
    facts = d4rl("hopper-medium-v2") | {"dataset_origin": "file"}
    for seed in (0, 1):
        write_run(experiment, "bc", seed, [100 + 100 * seed], dataset="hopper_medium-v2", label="BC", **facts)
    table = grid.table(select("table2-built"))
    assert [cell.text for cell in table.rows[0]] == [
        "hopper_medium-v2", "30.0 ± 14.1", "30.1 ± 0.3", "53.5 ± 1.8",
    ]  # fmt: skip
    assert "1 of our datasets have such names but are not these" in table.caption


def test_shipped_results_have_the_paper_s_order():
    names = ("walker2d_expert-v2", "hopper_medium-v2", "halfcheetah_medium-v2")
    experiment = Experiment("table2-v2", names, ("td3_bc", "bc"), seeds=1, protocol=Protocol(10, 10, 1))
    store(experiment)
    for name in names:
        for algorithm in experiment.algorithms:
            write_run(experiment, algorithm, 0, [1], dataset=name, **d4rl(name.replace("_", "-")))
    results.export(definitions.find("table2-v2"))
    for path in (experiment.cells()[0].folder(0).parents[2]).rglob("*.json"):
        path.unlink()
    shipped = select("table2-v2").experiment
    assert shipped.datasets == ("halfcheetah_medium-v2", "hopper_medium-v2", "walker2d_expert-v2")
    assert shipped.algorithms == ("bc", "td3_bc")


def test_published_numbers_beside_ours(locomotion):
    table = versus_published.table(select("table2-v2"), FINAL_2)
    lines = {(line["dataset"], line["source"]): line for line in table.long.to_dict("records")}
    paper, corl = (lines["walker2d-medium-v2", source] for source in ("paper", "CORL"))
    assert (paper["ours"], paper["low"], paper["high"]) == (103.5, 101.5, 105.5)
    assert (paper["mean"], paper["covered"]) == (79.4, False)
    assert (corl["mean"], corl["covered"]) == (82.71, False)
    rows = [[cell.text for cell in row] for row in table.rows]
    assert rows[1] == [
        "walker2d-medium-v2", "TD3+BC", "score", "103.5", "[101.5, 105.5]",
        "paper", "79.4 ± 1.6", "+24.1", "no",
    ]  # fmt: skip
    assert "it does for 0 of 2 (paper, score), 0 of 2 (CORL, score)" in table.caption
    assert "FEW SEEDS (2)" in table.caption
    assert "728.9, its rows sum to 729.2" in table.caption


def test_an_interval_that_covers_the_paper_s_number(study):
    write_run(study, "dqn", 0, [400, 300], [0.5, 0.5])  # with seed 1's 0.6, the paper's 0.6 is just inside
    table = versus_published.table(select("study"), Measure())
    lines = table.long.set_index(["label", "metric"])
    assert lines.loc[("DQN", "bellman_error"), "covered"]
    assert not lines.loc[("DQN", "seconds"), "covered"]
    assert ("TD", "seconds") not in lines.index  # never reached, and nothing is published


def test_published_numbers_of_what_has_no_runs_yet(home):
    name = "hopper-medium-v2"
    experiment = Experiment("mine", (name,), ("td3_bc", "gn_bcq"), 1, Protocol(10, 10, 1))
    store(experiment)
    write_run(experiment, "gn_bcq", 0, [1.0], dataset=name, label="GN-BCQ", **d4rl(name))
    with pytest.raises(UserError, match="no finished runs of mine have published numbers"):
        versus_published.table(select("mine"), Measure())


def test_nothing_published_is_said(study):
    other = Experiment("other", ("mine",), ("td",), seeds=1, protocol=PROTOCOL)
    store(other)
    write_run(other, "td", 0, [1, 2], dataset="mine")
    with pytest.raises(UserError, match="nothing is published"):
        versus_published.table(select("other"), Measure())


def test_the_paper_s_inconsistencies():
    """Its CQL total is 728.9 where its rows sum to 729.2; BC's ± is 37.7 where its rows' sum to 45.7."""
    text = " ".join(published.inconsistencies())
    assert "CQL's total is printed as 728.9, its rows sum to 729.2" in text
    assert "BC's ± is printed as 37.7, its rows' sum to 45.7" in text
    assert text.count("is printed as") == 2  # the others add up
    corl = published.locomotion().query(
        "source == 'CORL' and dataset == 'halfcheetah-medium' and label == 'BC'"
    )
    assert corl[["mean", "std"]].round(1).values.tolist() == [[42.4, 0.2]]
    paper = published.locomotion().query("source == 'paper'")
    assert paper.groupby("label").size().eq(12).all()


def test_reference_numbers_have_sources(shared):
    sources = published.read("sources.csv")
    assert set(sources["file"]) == {path.name for path in (shared / "reference").glob("*.csv")}
    for name in sources["file"]:
        pd.testing.assert_frame_equal(published.read(name), pd.read_csv(shared / "reference" / name))


def test_aggregates_over_datasets(locomotion):
    table = aggregates.table(select("table2-v2"), FINAL_2)
    # seeds × datasets: 11.5, 101.5 and 15.5, 105.5
    assert [cell.text for cell in table.rows[0]][:3] == ["TD3+BC", "2 × 2", "58.5 [56.5, 60.5]"]
    values = table.long.set_index("statistic")["value"]
    assert values["median"] == (13.5 + 103.5) / 2
    assert values["IQM"] == (15.5 + 101.5) / 2
    assert values["optimality gap"] == 100 - (11.5 + 15.5 + 100 + 100) / 4
    assert "FEW SEEDS (2)" in table.caption
    assert "10,000 resamples" in table.caption


def test_who_beats_whom(study):
    table = aggregates.improvement_table(select("study"), Measure())
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["TD", "—", "0.00 [0.00, 0.00]"],
        ["DQN", "1.00 [1.00, 1.00]", "—"],
    ]
    assert table.rows[1][1].bold
    assert not table.rows[0][2].bold


def test_aggregates_take_only_seeds_that_have_all_datasets(locomotion):
    (locomotion.cells()[0].folder(0) / "run.json").unlink()
    assert aggregates.matrices(select("table2-v2"), FINAL_2)["TD3+BC"].tolist() == [[15.5, 105.5]]


def test_panels_keep_their_height_under_a_long_legend():
    from matplotlib import pyplot as plt

    from offline_gntd.analysis.panels import HEIGHT, legend, panels

    figure, axes = panels(2, columns=2)
    for i in range(12):
        axes[0].plot([0, 1], [0, i], label=f"an algorithm with many settings, such as kfac.damping={i}")
    legend(figure, axes, columns=2)
    figure.canvas.draw()
    inches = axes[0].get_position().height * figure.get_figheight()
    plt.close(figure)
    assert inches > 0.7 * HEIGHT


def test_a_caption_says_what_the_policies_behind_built_splits_reached():
    experiment = Experiment("local", ("hopper-medium-local",), ("bc",), seeds=1, protocol=PROTOCOL)
    store(experiment)
    task = {"discrete": False, "reference_min": 0.0, "reference_max": 500.0, "reference_source": "hand"}
    level = {"dataset_level": "medium policy, score 31.2", "task": task, "env_id": "Hopper-v4"}
    write_run(experiment, "bc", 0, [10, 20], dataset="hopper-medium-local", **level)
    caption = captions.data(select("local"))
    assert caption.endswith("Levels reached: hopper-medium-local: medium policy, score 31.2.")


def test_a_caption_of_discrete_sets_names_no_levels(study):
    assert "Levels" not in captions.data(select("study"))


def test_any_metric_can_be_duelled_over(study):
    table = render.table("study", kind="duels", metric="bellman_error")
    (last, whole) = table.rows
    assert [cell.text for cell in last[:3]] == ["cartpole-replay", "at the end", "DQN"]
    assert last[3].text == "0.50 ± 0.14"
    assert last[5] == Cell("−7.50 [−8.60, −6.40]", bold=True)  # 7 and 9 against 0.4 and 0.6
    assert whole[3].text == "0.55 ± 0.14"
    assert table.columns[1] == "mean bellman error"
    with pytest.raises(UserError, match="a duel takes two algorithms"):
        render.table("study", kind="duels", algorithms=["td"])
    with pytest.raises(UserError, match="--metric is for grids and duels"):
        render.table("study", kind="improvement", metric="bellman_error")
