"""Tables from numbers small enough to check by hand."""

import math
import subprocess
import sys

import pandas as pd
import pytest
from fabricated import d4rl, write_run

from offline_gntd.analysis import FIGURES, TABLES, comparisons, published, render, scores
from offline_gntd.analysis.scores import Layout
from offline_gntd.analysis.selection import Measure, MissingRun, refuse_incomparable, run_values, select
from offline_gntd.analysis.table import Cell, Table
from offline_gntd.errors import UserError
from offline_gntd.experiments import definitions, results
from offline_gntd.experiments.definitions import Experiment, Protocol, store
from offline_gntd.files import write_text
from offline_gntd.theory import runner as theory

PROTOCOL = Protocol(steps=20, evaluate_every=10, evaluate_episodes=1)


@pytest.fixture
def study():
    """TD never reaches 400 and one of its seeds diverges; DQN's two seeds reach it after 1 s and 2 s."""
    experiment = Experiment("study", ("cartpole-replay",), ("td", "dqn"), seeds=2, protocol=PROTOCOL)
    store(experiment)
    write_run(experiment, "td", 0, [10, 20], [5.0, 7.0])
    write_run(experiment, "td", 1, [30], [9.0], status="diverged")
    write_run(experiment, "dqn", 0, [400, 300], [0.5, 0.4])
    write_run(experiment, "dqn", 1, [100, 500], [0.7, 0.6])
    return experiment


def test_td_error_table(study):
    write_run(
        study, "dqn", 0, [400, 300], [0.5, 0.4],
        metrics={"td_error_abs": [1, 0.2], "td_error_abs_target": [1, 0.3]},
    )  # fmt: skip
    table = render.table("study", "td_error")
    td, dqn = table.long.to_dict("records")
    assert (td["bellman_error"], td["bellman_error_std"]) == (8.0, pytest.approx(math.sqrt(2)))
    assert (td["diverged"], td["reached"], td["final_return"]) == (1, 0, 25.0)
    assert math.isnan(td["seconds"])
    assert dqn["bellman_error"] == pytest.approx(0.5)
    assert (dqn["td_error_abs"], dqn["td_error_abs_target"]) == (0.2, 0.3)
    assert (dqn["reached"], dqn["seconds"], dqn["updates"]) == (2, 1.5, 15.0)
    assert (td["paper_td_error_abs_target"], dqn["paper_seconds"]) == (757.93, 23.17)
    cells = [dict(zip(table.columns, (cell.text for cell in row), strict=True)) for row in table.rows]
    assert cells[0] == {
        "dataset": "cartpole-replay",
        "algorithm": "TD",
        "TD error (abs, target net)": "—",  # not measured by version 0.1
        "paper": "757.9",
        "TD error (abs)": "—",
        "TD error (squared)": "8.00 ± 1.41 †1",
        "at threshold": "0/2",
        "updates to threshold": "—",
        "seconds to threshold": "—",
        "paper seconds": "—",
        "final return": "25.0 ± 7.1",
    }
    assert cells[1]["TD error (squared)"] == "0.50 ± 0.14"
    assert (cells[1]["updates to threshold"], cells[1]["seconds to threshold"]) == ("15", "1.50")
    assert not table.missing
    assert "≥ 400 on CartPole-v1" in table.caption
    for words in ("2 seeds, 20 updates", "every 10", "100 transitions"):
        assert words in table.protocol
        assert words in table.text("md")


def test_time_to_threshold_of_fewer_seeds_is_not_bold(study):
    write_run(study, "td", 0, [500, 20], [5.0, 7.0])  # one seed of two, after one second
    td, dqn = render.table("study", "td_error").rows
    assert (td[6].text, td[8]) == ("1/2", Cell("1.00"))
    assert (dqn[6].text, dqn[8]) == ("2/2", Cell("1.50", bold=True))


def test_script_presets_show_the_numbers_of_the_paper():
    experiment = Experiment("script", ("cartpole-replay",), ("td_script",), seeds=1, protocol=PROTOCOL)
    store(experiment)
    config = {"timeouts_terminal": True}
    write_run(experiment, "td_script", 0, [1, 2], label="TD (script)", dataset_per_seed=True, config=config)
    table = render.table("script", "td_error")
    assert table.long["paper_td_error_abs_target"].tolist() == [757.93]
    assert "one dataset per seed" in table.protocol
    assert "Time limits count as terminal." in table.protocol


def test_settings_that_all_algorithms_share_stand_in_the_caption_not_in_labels():
    names = ("td3_bc@precision=bfloat16", "bc@precision=bfloat16")
    experiment = Experiment("half", ("hopper-medium-v2",), names, seeds=1, protocol=PROTOCOL)
    store(experiment)
    for name, label in zip(names, ("TD3+BC", "BC"), strict=True):
        changes = d4rl("hopper-medium-v2") | {"label": f"{label} precision=bfloat16"}
        write_run(experiment, name, 0, [100, 200], dataset="hopper-medium-v2", **changes)
    table = render.table("half")
    assert table.columns == ("dataset", "TD3+BC", "BC")
    assert "all with precision=bfloat16" in table.protocol
    assert {row[0].text for row in table.block} == {"paper: hopper-medium", "CORL: hopper-medium-v2"}
    assert render.table("half", algorithms=["BC", "TD3+BC"]).columns == ("dataset", "BC", "TD3+BC")
    alone = render.table("half", algorithms=["TD3+BC"])
    assert alone.columns == ("dataset", "TD3+BC")
    assert "all with precision=bfloat16" in alone.protocol


@pytest.fixture
def gauss_newton():
    """GNTD reaches 400 in all seeds, TD in one of three."""
    experiment = Experiment("gn", ("cartpole-replay",), ("td", "gntd"), seeds=3, protocol=PROTOCOL)
    store(experiment)
    for seed in range(3):
        errors = {"td_error_abs_target": [9, 4 + seed]}
        write_run(experiment, "td", seed, [10, 400 if seed == 0 else 20], metrics=errors)
        write_run(experiment, "gntd", seed, [400, 500], metrics={"td_error_abs_target": [1, 1]})
    return experiment


def test_claims_count_seeds_that_never_reach_the_threshold(gauss_newton):
    table = render.table("gn", "claims")
    lines = table.long.set_index("measure")
    # GNTD after 10, 10, 10 updates; TD after 20, and never (20) twice
    updates = lines.loc["updates_counted"]
    assert (updates["value"], updates["baseline_value"], updates["estimate"]) == (10, 20, 0.5)
    assert (updates["reached"], updates["baseline_reached"], updates["verdict"]) == (3, 1, "better")
    assert lines.loc["td_error_abs_target", "estimate"] == 0.2
    assert lines.loc["final_return", "verdict"] == "better"
    assert lines.loc["seconds_counted", ["value", "baseline_value"]].tolist() == [1, 2]
    assert [[cell.text for cell in row] for row in table.rows[1:3]] == [
        ["cartpole-replay", "GNTD : TD", "TD error (abs, target net)", "1.00", "5.00", "× 0.20 [0.17, 0.25]",
         "better", "better (× 0.004)"],
        ["cartpole-replay", "GNTD : TD", "updates to threshold", "10 (3/3)", "≥ 20 (1/3)",
         "× 0.50 [0.50, 0.50]", "better", "better"],
    ]  # fmt: skip
    assert table.rows[3][-1].text == "better (baseline never reaches it)"
    assert "cut at the end of the shortest run that does not reach it" in table.caption
    assert "GNTD against TD: 4 better. " in table.caption


def test_baseline_that_fails_quickly_is_not_faster():
    """GNTD reaches 400 after 2 s, but TD, which never does, trains for only 1 s."""
    experiment = Experiment(
        "quick", ("cartpole-replay",), ("td", "gntd"), 3, PROTOCOL, algorithm_steps={"td": 10}
    )
    store(experiment)
    for seed in range(3):
        write_run(experiment, "td", seed, [10])
        write_run(experiment, "gntd", seed, [10, 500])
    line = render.table("quick", "claims").long.set_index("measure").loc["seconds_counted"]
    assert (line["value"], line["baseline_value"], line["verdict"]) == (1, 1, "unclear")
    assert (line["reached"], line["limited"], line["baseline_reached"]) == (3, True, 0)


def test_claims_with_missing_metrics_or_algorithms(gauss_newton):
    for seed in range(3):
        write_run(gauss_newton, "td", seed, [600, 700])  # no absolute TD errors
    verdicts = render.table("gn", "claims").long.set_index("measure")["verdict"]
    assert verdicts["td_error_abs_target"] == "missing"
    assert (verdicts["final_return"], verdicts["updates_counted"]) == ("worse", "unclear")
    with pytest.raises(UserError, match="neither GNTD and TD nor GNDQN and DQN"):
        render.table("gn", "claims", algorithms=["gntd"])


def test_score_table(study):
    table = render.table("study", "scores")
    assert [cell.text for cell in table.rows[0]] == ["cartpole-replay", "5.0 ± 1.4 †1", "80.0 ± 28.3"]
    assert [cell.bold for cell in table.rows[0]] == [False, False, True]
    assert table.columns == ("dataset", "TD", "DQN")
    for words in ("mean ± std over seeds", "last evaluation", "too few seeds for a test"):
        assert words in table.caption
    for words in ("20 updates", "2 seeds", "CartPole-v1"):
        assert words in table.protocol


def test_std_of_scores_is_the_scaled_std_of_returns(study):
    """A score is a fifth of a return here: its mean and its std are too, and nothing is shifted."""
    score, returns = (render.table("study", metric=m).long for m in ("score", "return"))
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
def test_aggregates_of_a_run(study, metric, protocol, expected):
    lines = run_values(select("study"), Measure(metric, protocol))
    assert lines[lines["algorithm"] == "dqn"]["value"].tolist() == expected


def test_caption_names_the_aggregate(study):
    """A number of evaluations is named only if the runs have more."""
    words = {name: Measure("score", name).words(select("study")) for name in ("best", "final-2", "final-9")}
    assert "biased upwards" in words["best"]
    assert words["final-2"] == words["final-9"] == "mean of all 2 evaluations"
    assert (
        Measure("score", "final-2").words(select("study", algorithms=["td"])) == "mean of all 2 evaluations"
    )


def test_rows_and_columns_can_be_chosen(study):
    table = render.table("study", metric="bellman_error", rows="algorithm", columns="dataset")
    assert table.columns == ("algorithm", "cartpole-replay")
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["TD", "8.00 ± 1.41 †1"],
        ["DQN", "0.50 ± 0.14"],
    ]
    assert [row[1].bold for row in table.rows] == [False, True]  # less is better


def test_setting_as_rows_or_columns():
    sweep = Experiment("sweep", ("a",), ("td", "td@learning_rate=0.01", "dqn"), seeds=1, protocol=PROTOCOL)
    store(sweep)
    for algorithm, rate in (("td", 0.1), ("td@learning_rate=0.01", 0.01), ("dqn", 0.1)):
        write_run(sweep, algorithm, 0, [rate * 1000], dataset="a", config={"learning_rate": rate})
    table = render.table("sweep", rows="learning_rate", columns="preset")
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["0.01", "2.0", ""],
        ["0.1", "20.0", "20.0"],
    ]
    with pytest.raises(UserError, match="would hold a td and a dqn"):
        render.table("sweep", rows="learning_rate", columns="dataset")
    with pytest.raises(UserError, match="did you mean 'learning_rate'"):
        render.table("sweep", rows="learning_rat", columns="preset")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Measure("score", "final-0"), "no aggregate 'final-0'"),
        (lambda: Measure("value", "best"), "value has no best value"),
        (lambda: Layout("dataset", "dataset"), "--rows and --columns are both dataset"),
        (lambda: render.table("study", metric="scores"), "did you mean 'score'"),
        (lambda: select("study", datasets=["cartpole"]), "did you mean 'cartpole-replay'"),
        (lambda: select("study", without=["cartpole"]), "did you mean 'cartpole-replay'"),
        (lambda: select("study", without=["cartpole-replay"]), "--without leaves no dataset"),
        (lambda: select("study", algorithms=["sarsa"]), "no algorithm in study 'sarsa'"),
    ],
)
def test_bad_arguments(study, make, words):
    with pytest.raises(UserError, match=words):
        make()


def test_algorithms_are_selected_by_name_or_label(study):
    for name in ("dqn", "DQN"):  # by its name or by its label
        assert set(select("study", algorithms=[name]).runs["algorithm"]) == {"dqn"}


def test_missing_runs_are_marked_and_counted(study):
    folder = next(cell for cell in study.cells() if cell.algorithm == "dqn").folder
    (folder(0) / "run.json").unlink()
    errors, grid = render.table("study", "td_error"), render.table("study", "scores")
    assert errors.missing == grid.missing == (MissingRun("cartpole-replay", "dqn", 0),)
    assert errors.rows[1][5].text == "0.60 (1/2)"
    assert grid.rows[0][2].text == "100.0 (1/2)"
    for form in ("md", "tex", "html"):
        assert "INCOMPLETE: 1 runs are missing, in 1 cells" in errors.text(form)
    (folder(1) / "run.json").unlink()
    errors, grid = render.table("study", "td_error"), render.table("study", "scores")
    assert [cell.text for cell in errors.rows[1][2:7]] == ["missing", "0.60", "missing", "missing", "0/2"]
    assert [cell.text for cell in grid.rows[0]][2] == "missing"
    assert "2 runs are missing, in 1 cells" in grid.incomplete


def test_runs_of_another_protocol_are_left_out_and_named(study):
    write_run(study, "dqn", 1, [100, 500], protocol=dict(vars(PROTOCOL), steps=40))
    selection = select("study")
    assert selection.missing == (MissingRun("cartpole-replay", "dqn", 1),)
    assert "are left out: cartpole-replay dqn seed 1" in selection.notes[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dataset_sha256": "0" * 64}, "data: f+ for 3 of them, but 0+ for cartpole-replay dqn seed 1"),
        ({"env_id": "CartPole-v0"}, "environment: CartPole-v1 for 3 of them, but CartPole-v0"),
        ({"dataset_origin": "file"}, "origin of the data: built for 3 of them, but file"),
        ({"dataset_version": "v2"}, "version of the data"),
        ({"stack": 2}, "seeds per process: 1 for 3 of them, but 2 for cartpole-replay dqn seed 1"),
    ],
)
def test_incomparable_runs_are_refused_and_named(study, change, words):
    write_run(study, "dqn", 1, [100, 500], **change)
    for allowed in (False, True):  # runs on one dataset are never mixed
        with pytest.raises(UserError, match=words):
            select("study", allow_mixed_data=allowed)


def test_exported_runs_of_another_protocol_are_left_out(study):
    results.export(definitions.find("study"))
    for path in (study.cells()[0].folder(0).parents[2]).rglob("run.json"):
        path.unlink()
    shorter = Experiment("study", study.datasets, study.algorithms, seeds=2, protocol=Protocol(5, 5, 1))
    store(shorter)
    write_run(shorter, "td", 0, [1.0], [1.0])
    selection = select("study")
    assert len(selection.runs) == 1
    assert "3 runs have another protocol" in render.table("study", "td_error").legend


def test_formats():
    long = pd.DataFrame({"dataset": ["a_b"], "value": [0.123456789]})
    rows, foot = ((Cell("a_b"), Cell("1 ± 2", True)),), ((Cell("total"), Cell("<3")),)
    table = Table("5 % of Q(s,a) − r", ("dataset", "value"), rows, long, foot=foot)
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


def test_final_evaluations_totals_and_published_numbers(locomotion):
    table = render.table("table2-v2", "scores", aggregate="final-2")
    hopper, walker = table.rows
    assert hopper[1].text == "13.5 ± 2.8"  # seeds 11.5 and 15.5
    assert walker[1].text == "103.5 ± 2.8"
    # the mean of per-seed totals and their std over seeds
    assert [cell.text for cell in table.foot[0]][:2] == ["total", "117.0 ± 5.7"]
    assert [[cell.text for cell in row] for row in table.block] == [
        ["paper: hopper-medium", "100.2 ± 0.2"],
        ["paper: walker2d-medium", "79.4 ± 1.6"],
        ["CORL: hopper-medium-v2", "60.4 ± 3.5"],  # d3rlpy's numbers are for v0
        ["CORL: walker2d-medium-v2", "82.7 ± 4.8"],
    ]
    assert "mean of the last 2 evaluations" in table.caption
    assert "| *published, genuine D4RL* |  |" in table.text("md")


def test_seed_with_missing_datasets_has_no_total(locomotion):
    (locomotion.cells()[0].folder(0) / "run.json").unlink()
    assert render.table("table2-v2", "scores", aggregate="final-2").foot[0][1].text == "121.0 (1/2)"


def test_mixed_data_is_refused_unless_allowed(locomotion):
    facts = d4rl("hopper-medium-v2") | {"dataset_origin": "file"}
    for seed in (0, 1):
        write_run(locomotion, "td3_bc", seed, [1, 2, 3], dataset="hopper-medium-v2", label="TD3+BC", **facts)
    with pytest.raises(
        UserError, match=r"origin of the data.*hopper-medium-v2 td3_bc seed 0.*--allow-mixed-data"
    ):
        select("table2-v2")
    table = render.table("table2-v2", "scores", allow_mixed_data=True)
    assert not table.foot  # one dataset of each source
    assert [row[0].text for row in table.rows] == ["hopper-medium (rebuilt)", "walker2d-medium-v2 (D4RL v2)"]
    assert "MIXED DATA: origin of the data (file, d4rl)" in table.legend
    assert len(select("table2-v2", datasets=["walker2d-medium-v2"]).runs) == 2
    assert len(select("table2-v2", without=["hopper-medium-v2"]).runs) == 2


def test_totals_are_per_source():
    names = ("hopper-medium-v2", "walker2d-medium-v2", "hopper-expert-v2")
    experiment = Experiment("table2-v2", names, ("td3_bc",), seeds=1, protocol=Protocol(30, 10, 1))
    store(experiment)
    for name, value in zip(names, (50, 100, 250), strict=True):
        facts = d4rl(name) | ({"dataset_origin": "file"} if name == names[1] else {})
        write_run(experiment, "td3_bc", 0, [value] * 3, dataset=name, label="TD3+BC", **facts)
    table = render.table("table2-v2", "scores", allow_mixed_data=True)
    assert [[cell.text for cell in row[:2]] for row in table.foot] == [["total, D4RL v2", "60.0"]]
    assert "sum over the datasets of one source" in table.caption


def test_versions_of_an_environment_are_not_mixed():
    runs = pd.DataFrame(
        {
            "dataset": ["a", "b", "c"],
            "algorithm": "td",
            "seed": 0,
            "env_id": ["Hopper-v4", "Hopper-v4", "Hopper-v5"],
            **dict.fromkeys(("dataset_sha256", "dataset_origin", "dataset_version"), "x"),
            "stack": 1,
            "dataset_per_seed": False,
        }
    )
    with pytest.raises(UserError, match="version of the environment: Hopper-v4 for 2 of them, but Hopper-v5"):
        refuse_incomparable(runs)
    refuse_incomparable(runs.assign(env_id=["Hopper-v4", "Walker2d-v4", "HalfCheetah-v4"]))


def test_rebuilt_files_are_marked():
    """A file with a D4RL name and other contents; its medium-replay set has no published counterpart."""
    files = ("data/hopper_medium-v2.hdf5", "data/hopper_medium_replay-v2.hdf5")
    experiment = Experiment("table2-built", files, ("bc",), 2, Protocol(10, 10, 1))
    store(experiment)
    for name in ("hopper_medium-v2", "hopper_medium_replay-v2"):
        facts = d4rl(name.replace("_", "-")) | {"dataset_origin": "file"}
        for seed in (0, 1):
            write_run(experiment, "bc", seed, [100 + 100 * seed], dataset=name, label="BC", **facts)
    table = render.table("table2-built", "scores")
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["hopper-medium (rebuilt)", "30.0 ± 14.1"],
        ["hopper-medium-replay (rebuilt)", "30.0 ± 14.1"],
    ]
    assert [[cell.text for cell in row] for row in table.block] == [
        ["paper: hopper-medium", "30.1 ± 0.3"],
        ["CORL: hopper-medium-v2", "53.5 ± 1.8"],
    ]
    assert set(render.table("table2-built", "published").long["dataset"]) == {"hopper_medium-v2"}


def test_algorithm_with_other_steps_is_labelled():
    experiment = Experiment(
        "steps", ("hopper-medium-v2",), ("bc", "bcq"), 1, PROTOCOL, algorithm_steps={"bcq": 10}
    )
    store(experiment)
    facts = d4rl("hopper-medium-v2") | {"dataset": "hopper-medium-v2"}
    write_run(experiment, "bc", 0, [5, 10], label="BC", **facts)
    write_run(experiment, "bcq", 0, [10], label="BCQ", **facts)
    for kind in ("scores", "pairwise", "budget"):
        table = render.table("steps", kind=kind)
        assert "BCQ (10 updates)" in [*table.columns, *(cell.text for cell in table.rows[0])]
    assert "20 updates (BCQ 10)" in table.protocol


def test_rising_curves_are_marked():
    experiment = Experiment("curves", ("a",), ("flat", "rising", "noisy"), 2, Protocol(80, 10, 1))
    store(experiment)
    returns = {"flat": [50] * 8, "rising": [5 * k for k in range(8)], "noisy": [50] * 4 + [52] * 4}
    for name, values in returns.items():
        for seed in (0, 1):
            write_run(experiment, name, seed, [value + 40 * seed for value in values], dataset="a")
    assert scores.still_rising(select("curves")) == set()  # 2 points, where seeds differ by 5.7
    for seed in (0, 1):
        write_run(experiment, "rising", seed, [25 * k for k in range(8)], dataset="a")
    assert scores.still_rising(select("curves")) == {("a", "rising")}
    table = render.table("curves", "scores")
    assert [cell.text.endswith("↑") for cell in table.rows[0]] == [False, False, True, False]
    assert "still rising when training ended" in table.caption


def test_exported_results_keep_the_experiment_s_order():
    names = ("walker2d_expert-v2", "hopper_medium-v2", "halfcheetah_medium-v2")
    experiment = Experiment("table2-v2", names, ("td3_bc", "bc"), seeds=1, protocol=Protocol(10, 10, 1))
    store(experiment)
    for name in names:
        for algorithm in experiment.algorithms:
            write_run(experiment, algorithm, 0, [1], dataset=name, **d4rl(name.replace("_", "-")))
    results.export(definitions.find("table2-v2"))
    for path in (experiment.cells()[0].folder(0).parents[2]).rglob("*.json"):
        path.unlink()
    exported = select("table2-v2").experiment
    assert exported.datasets == names
    assert exported.algorithms == ("td3_bc", "bc")


def test_versus_published(locomotion):
    table = render.table("table2-v2", "published", aggregate="final-2")
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
    assert "contain 0 of 2 (paper, score), 0 of 2 (CORL, score)" in table.caption
    assert "FEW SEEDS (2)" in table.caption


def test_interval_that_contains_the_published_number(study):
    for seed, error in enumerate((0.5, 0.7)):  # the paper has 0.6
        metrics = {"td_error_abs_target": [1, error]}
        write_run(study, "dqn", seed, [400, 300], metrics=metrics)
    lines = render.table("study", "published").long.set_index(["label", "metric"])
    assert lines.loc[("DQN", "td_error_abs_target"), "covered"]
    assert not lines.loc[("DQN", "seconds"), "covered"]
    assert ("TD", "seconds") not in lines.index  # never reached, and nothing is published


def test_published_numbers_without_runs(home):
    name = "hopper-medium-v2"
    experiment = Experiment("mine", (name,), ("td3_bc", "gn_bcq"), 1, Protocol(10, 10, 1))
    store(experiment)
    write_run(experiment, "gn_bcq", 0, [1.0], dataset=name, label="GN-BCQ", **d4rl(name))
    with pytest.raises(UserError, match="no finished runs of mine have published numbers"):
        render.table("mine", "published")


def test_published_table_without_published_numbers(study):
    other = Experiment("other", ("mine",), ("td",), seeds=1, protocol=PROTOCOL)
    store(other)
    write_run(other, "td", 0, [1, 2], dataset="mine")
    with pytest.raises(UserError, match="nothing is published"):
        render.table("other", "published")


def test_inconsistencies_of_the_paper():
    text = published.inconsistencies()
    assert "CQL's total is printed as 728.9, its rows sum to 729.2" in text
    assert "BC's ± is printed as 37.7, its rows' sum is 45.7" in text
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


def test_statistics_over_datasets(locomotion):
    table = render.table("table2-v2", "statistics", aggregate="final-2")
    # seeds × datasets: 11.5, 101.5 and 15.5, 105.5
    assert [cell.text for cell in table.rows[0]][:3] == ["TD3+BC", "2 × 2", "58.5 [56.5, 60.5]"]
    values = table.long.set_index("statistic")["value"]
    assert values["median"] == (13.5 + 103.5) / 2
    assert values["IQM"] == (15.5 + 101.5) / 2
    assert values["optimality gap"] == 100 - (11.5 + 15.5 + 100 + 100) / 4
    assert "FEW SEEDS (2)" in table.caption


def test_probability_of_improvement_table(study):
    table = render.table("study", "improvement")
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["TD", "—", "0.00 [0.00, 0.00]"],
        ["DQN", "1.00 [1.00, 1.00]", "—"],
    ]
    assert not table.rows[1][1].bold  # two seeds
    assert not table.rows[0][2].bold


def test_statistics_use_only_seeds_with_all_datasets(locomotion):
    (locomotion.cells()[0].folder(0) / "run.json").unlink()
    table = render.table("table2-v2", "statistics", aggregate="final-2")
    assert [cell.text for cell in table.rows[0]][1:3] == ["1 × 2", "60.5"]  # 15.5 and 105.5


def test_panels_keep_their_height_under_a_long_legend():
    from matplotlib import pyplot as plt

    from offline_gntd.analysis.figures import HEIGHT, legend, panels

    figure, axes = panels(2, columns=2)
    for i in range(12):
        axes[0].plot([0, 1], [0, i], label=f"an algorithm with many settings, such as kfac.damping={i}")
    legend(figure, axes, columns=2)
    figure.canvas.draw()
    inches = axes[0].get_position().height * figure.get_figheight()
    plt.close(figure)
    assert inches > 0.7 * HEIGHT


@pytest.fixture
def race():
    """Two seeds, two datasets: GN scores 20 and 40 after 10 and 20 updates, TD 10 and 20, but GN is twice as
    slow: TD has 10 after 1 s and 20 after 2 s, GN 20 after 2 s and 40 after 4 s."""
    experiment = Experiment("race", ("a", "b"), ("td", "gn"), seeds=2, protocol=PROTOCOL)
    store(experiment)
    for dataset in experiment.datasets:
        for seed in (0, 1):
            write_run(experiment, "td", seed, [50, 100], dataset=dataset)
            write_run(experiment, "gn", seed, [100, 200], dataset=dataset)
            scores_csv = (
                next(c for c in experiment.cells() if (c.algorithm, c.dataset) == ("gn", dataset)).folder(
                    seed
                )
                / "scores.csv"
            )
            lines = pd.read_csv(scores_csv)
            lines["training_cpu_seconds"] *= 2
            lines.to_csv(scores_csv, index=False)
    return experiment


def test_pairwise_by_updates_and_by_seconds(race):
    table = render.table("race", "pairwise")
    line = table.long.iloc[0]
    assert (line["end_difference"], line["training_difference"]) == (20, 15)  # 40 − 20, 30 − 15
    assert line["end_seconds_difference"] == 0  # after 2 s both have 20
    assert line["training_seconds_difference"] == 0  # GN is not evaluated before 2 s
    assert [cell.text for cell in table.foot[0]] == [
        "P(improvement)", "GN", "", "", "1.00 [1.00, 1.00]", "0.50 [0.50, 0.50]", "1.00 [1.00, 1.00]",
        "0.50 [0.50, 0.50]",
    ]  # fmt: skip
    assert "from the first evaluation of both to the end of the shorter run" in table.caption


def test_equal_seconds_begin_at_the_first_evaluation_of_both():
    protocol = Protocol(steps=40, evaluate_every=10, evaluate_episodes=1)
    experiment = Experiment("laps", ("a",), ("td", "gn"), seeds=1, protocol=protocol)
    store(experiment)
    write_run(experiment, "td", 0, [0, 50, 100, 150], dataset="a")  # scores 0 to 30 after 1 to 4 s
    write_run(experiment, "gn", 0, [100, 100, 100, 100], dataset="a")  # score 20 after 2, 4, 6 and 8 s
    path = experiment.cells()[1].folder(0) / "scores.csv"
    lines = pd.read_csv(path)
    write_text(path, lines.assign(training_cpu_seconds=2 * lines["training_cpu_seconds"]).to_csv(index=False))
    line = render.table("laps", "pairwise").long.iloc[0]
    assert line["training_seconds_difference"] == pytest.approx(20 - (10 + 30) / 2, abs=0.01)  # 2 s to 4 s
    lines = lines.assign(
        training_cpu_seconds=10 * lines["training_cpu_seconds"]
    )  # 10 s: TD has ended by then
    write_text(path, lines.to_csv(index=False))
    assert [cell.text for cell in render.table("laps", "pairwise").rows[0]][-3:] == ["—", "5.0", "—"]


def test_a_seed_that_diverges_early_does_not_shorten_the_others():
    protocol = Protocol(steps=40, evaluate_every=10, evaluate_episodes=1)
    experiment = Experiment("crash", ("a",), ("td", "gn"), seeds=3, protocol=protocol)
    store(experiment)
    for seed in range(3):
        write_run(experiment, "td", seed, [50, 50, 50, 50], dataset="a")
    for seed in range(2):
        write_run(experiment, "gn", seed, [50, 100, 100, 100], dataset="a")
    write_run(experiment, "gn", 2, [50], dataset="a", status="diverged")
    line = render.table("crash", "pairwise").long.iloc[0]
    assert line["end_seconds_difference"] == pytest.approx((20 + 20 + 10) / 3 - 10)


def test_the_caption_has_the_bold_rule_of_the_cells_with_most_seeds():
    experiment = Experiment("partial", ("a", "b"), ("td", "gn"), seeds=5, protocol=PROTOCOL)
    store(experiment)
    for seed in range(5):
        write_run(experiment, "td", seed, [10, 20 + seed], dataset="a")
        write_run(experiment, "gn", seed, [10, 90 + seed], dataset="a")
    write_run(experiment, "td", 0, [10, 20], dataset="b")
    assert "permutation test" in render.table("partial").caption
    assert "FEW SEEDS (1)" in render.table("partial", "pairwise").caption


def test_the_caption_says_that_kfac_failed():
    experiment = Experiment("kfac", ("a",), ("td", "gn"), seeds=2, protocol=PROTOCOL)
    store(experiment)
    for seed in range(2):
        write_run(experiment, "td", seed, [10, 20], dataset="a")
        metrics = {"kfac_failures": [0, 3 * seed], "kfac_damping": [0.1, 0.1 + 20 * seed]}
        write_run(experiment, "gn", seed, [10, 20], dataset="a", metrics=metrics)
    caption = render.table("kfac").caption
    assert "K-FAC FAILED to invert a factor in 1 run; a layer's damping rose to 20.1." in caption


def test_two_algorithms_never_have_the_same_label():
    names = ("td3_bc", "td3_bc@precision=bfloat16", "bc@precision=bfloat16")
    experiment = Experiment("both", ("a",), names, seeds=1, protocol=PROTOCOL)
    store(experiment)
    for name, label in zip(names[1:], ("TD3+BC", "BC"), strict=True):
        write_run(experiment, name, 0, [10, 20], dataset="a", label=f"{label} precision=bfloat16")
    columns = render.table("both").columns
    assert columns == ("dataset", "TD3+BC", "TD3+BC precision=bfloat16", "BC precision=bfloat16")


def test_runs_of_different_length_are_compared_over_the_updates_of_both():
    names = ("td", "gn")
    experiment = Experiment("lengths", ("a", "b"), names, 1, PROTOCOL, algorithm_steps={"gn": 10})
    store(experiment)
    for dataset in experiment.datasets:
        write_run(experiment, "td", 0, [50, 500], dataset=dataset)
        write_run(experiment, "gn", 0, [50], dataset=dataset)
    table = render.table("lengths", "pairwise")
    assert table.long["training_difference"].tolist() == [0, 0, 0.5]
    assert render.table("lengths", "improvement").columns == ("algorithm", "TD", "GN (10 updates)")


def test_a_mean_over_some_of_the_seeds_is_not_bold():
    experiment = Experiment("few", ("a",), ("td", "gn"), seeds=3, protocol=PROTOCOL)
    store(experiment)
    for seed in range(3):
        write_run(experiment, "td", seed, [10, 20 + seed], dataset="a")
    write_run(experiment, "gn", 0, [10, 400], dataset="a")
    td, gn = render.table("few").rows[0][1:]
    assert (td.bold, gn) == (True, Cell("80.0 (1/3)"))


def test_a_grid_in_progress_has_a_table():
    names = ("bc@precision=bfloat16", "td3_bc@precision=bfloat16", "cql")
    experiment = Experiment("partial", ("a", "b"), names, 1, PROTOCOL, algorithm_steps={"cql": 10})
    store(experiment)
    write_run(experiment, names[0], 0, [10, 20], dataset="a", label="BC precision=bfloat16")
    write_run(experiment, names[1], 0, [10, 20], dataset="a", label="TD3+BC precision=bfloat16")
    table = render.table("partial")
    assert table.columns == ("dataset", "BC", "TD3+BC", "CQL (10 updates)")
    assert [cell.text for cell in table.rows[1]] == ["b", "missing", "missing", "missing"]
    assert table.foot == ()  # no total
    assert "1 seed, 20 updates, evaluated" in table.protocol  # CQL has no runs
    assert "all with precision=bfloat16" in table.protocol
    assert render.table("partial", algorithms=["CQL", "BC"]).columns == ("dataset", "CQL (10 updates)", "BC")


def test_pairwise_of_any_metric(study):
    table = render.table("study", kind="pairwise", metric="bellman_error")
    (row,) = table.rows
    assert [cell.text for cell in row[:4]] == ["cartpole-replay", "DQN", "0.50 ± 0.14", "8.00 ± 1.41 †1"]
    assert row[4] == Cell("−7.50 [−8.60, −6.40]")  # 0.4 and 0.6 against 7 and 9; two seeds are never bold
    assert table.columns[2] == "bellman error at the end"
    with pytest.raises(UserError, match="a pairwise table needs two algorithms"):
        render.table("study", kind="pairwise", algorithms=["td"])
    with pytest.raises(UserError, match="--metric applies to --kind scores and pairwise"):
        render.table("study", kind="improvement", metric="bellman_error")


def test_best_within_a_budget(race, monkeypatch):
    monkeypatch.setattr(comparisons, "BUDGETS", (1 / 60, 2 / 60, 1, 5))
    table = render.table("race", "budget")
    rows = [[cell.text for cell in row[2:]] for row in table.rows[:3]]
    assert rows == [
        ["TD", "10.0 ± 0.0", "—"],  # after 1 s GN has no evaluation yet
        ["TD", "20.0 ± 0.0 ‡", "20.0 ± 0.0"],
        ["GN", "20.0 ± 0.0 ‡", "40.0 ± 0.0 ‡"],
    ]
    assert len(table.rows) == 6  # no budget beyond the end of all runs


def test_tables_of_exported_results_do_not_import_torch(study):
    results.export(definitions.find("study"))
    code = (
        "import sys; from offline_gntd.analysis import TABLES, render\n"
        "for kind in (None, *TABLES):\n"
        "    if kind not in ('claims', 'published'): render.table('study', kind=kind)\n"
        "assert not {'torch', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_registered_kind_exists():
    for kind in (*TABLES.values(), *FIGURES.values()):
        assert callable(render.function_of(kind))
    assert set(definitions.TABLE_KINDS) <= set(TABLES)
    assert render.THEORY == theory.NAME
