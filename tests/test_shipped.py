"""Exported results: every analysis command works on them in a fresh clone and gives what analysis/ has."""

import itertools
import shutil
from collections import Counter
from pathlib import Path

import pytest

from offline_gntd.algorithms import configured
from offline_gntd.analysis import FIGURES, TABLES, render
from offline_gntd.analysis.explain import explain
from offline_gntd.analysis.selection import select
from offline_gntd.cli import main
from offline_gntd.errors import UserError
from offline_gntd.experiments import results
from offline_gntd.experiments.definitions import Protocol, find, settings_hash, with_results

REPOSITORY = Path(__file__).parents[1]
EXPERIMENTS = [path.name.removesuffix(".runs.csv") for path in (REPOSITORY / "results").glob("*.runs.csv")]
# every table that is committed: its experiment and its kind
COMMITTED = [
    (name, kind)
    for name in EXPERIMENTS
    for kind in (None, *TABLES)
    if (REPOSITORY / "analysis" / f"{'-'.join(filter(None, (name, kind)))}.md").exists()
]


@pytest.fixture(autouse=True)
def clone(home):
    """The results and nothing else: no datasets, no run folders."""
    (home / "results").mkdir()
    for path in (REPOSITORY / "results").glob("*.*"):
        shutil.copy(path, home / "results")


def test_exported_experiments_are_listed():
    assert set(with_results()) == set(EXPERIMENTS) >= {"table1", "figure1"}
    assert {("table1", None), ("table1", "published"), ("figure1", None)} <= set(COMMITTED)


@pytest.mark.parametrize(("name", "kind"), COMMITTED)
def test_committed_tables_are_what_the_shipped_results_give(name, kind):
    """If this fails, the results or the tables have changed: offline-gntd table NAME [--kind KIND]"""
    table = render.table(name, kind, allow_mixed_data=True)
    not_run = {"bcq", "cql"} if name == "table2-rebuilt" else set()
    assert {run.algorithm.partition("@")[0] for run in table.missing} <= not_run
    for path in render.write(table):
        assert path.read_text() == (REPOSITORY / "analysis" / path.name).read_text()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_shipped_runs_match_the_current_presets(name):
    """If this fails, a preset has changed, and `offline-gntd run` would repeat its shipped runs. A new field
    whose default keeps the old behaviour is declared with `configuration.added`."""
    for run in results.read_exported(name).runs.to_dict("records"):
        if run["versions"]["offline_gntd"].startswith("0.1."):
            continue  # its settings had other names
        protocol = Protocol(**run["protocol"])
        config = configured(run["algorithm"], protocol.steps)
        assert settings_hash(config, protocol, run["stack"]) == run["config_hash"], run["algorithm"]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_cell_can_be_explained(name):
    selection = select(name, allow_mixed_data=True)
    missing = Counter(run.cell for run in selection.missing)
    for cell in itertools.product(selection.experiment.dataset_names(), selection.experiment.algorithms):
        seeds = selection.experiment.seeds - missing[cell]
        if seeds:
            found = explain(name, *cell)
            assert len(found.seeds) == seeds
            assert found.commands[-1].startswith("offline-gntd run again-")
            assert found.text()
        else:
            with pytest.raises(UserError, match="no finished runs"):
                explain(name, *cell)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_figures_of_every_experiment(name, home):
    comparable = find(name).table.metric == "score"  # returns of several tasks have no common profile
    written = render.figure(
        name, ["profiles" if comparable else "updates", "efficiency"], allow_mixed_data=True
    )
    assert [path.suffix for path in written] == [".png", ".pdf"] * 2
    assert all(path.stat().st_size > 5_000 for path in written)


def test_kfac_figure_of_shipped_runs():
    written = render.figure("figure1", ["kfac"])
    assert all(path.name.startswith("figure1-kfac") and path.stat().st_size > 5_000 for path in written)


def test_figure_without_data_is_refused(home):
    text = (home / "results/figure1.csv").read_text().replace("kfac_", "x_")
    (home / "results/figure1.csv").write_text(text)
    with pytest.raises(UserError, match="no data for the figure 'kfac'"):
        render.figure("figure1", ["kfac"])


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_figure_is_drawn_the_same_twice(name):
    first, again = (
        {path: path.read_bytes() for path in render.figure(name, allow_mixed_data=True)} for _ in range(2)
    )
    assert 2 <= len(first) <= 2 * len(FIGURES)
    assert first == again


def test_commands_on_exported_results(capsys):
    assert main(["table", "table1", "--kind", "improvement", "--format", "html"]) == 0
    assert "<table" in capsys.readouterr().out
    options = [
        "--metric",
        "return",
        "--aggregate",
        "best",
        "--rows",
        "algorithm",
        "--datasets",
        "acrobot-replay",
    ]
    assert main(["table", "table1", *options, "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("dataset,algorithm,label,seeds")
    assert main(["explain", "table1", "acrobot-replay", "gntd"]) == 0
