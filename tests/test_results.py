"""Results in run folders and in exported files, read together: what counts, and what is refused."""

import pytest
from fabricated import write_run

from offline_gntd.analysis.selection import select
from offline_gntd.errors import UserError
from offline_gntd.experiments import results
from offline_gntd.experiments.definitions import Experiment, Protocol, find, store
from offline_gntd.files import remove

STUDY = Experiment("study", ("cartpole-replay",), ("dqn",), seeds=2, protocol=Protocol(steps=20))


@pytest.fixture
def exported(home):
    """Two runs, exported; their folders are gone."""
    for seed in range(2):
        write_run(STUDY, "dqn", seed, [100.0, 200.0])
    results.export(STUDY)
    remove(home / "results/study")
    return home / "results/study.runs.csv"


def returns(found):
    return found.evaluations.groupby("seed")["return"].last().to_dict()


def test_a_run_folder_replaces_the_exported_run(exported):
    write_run(STUDY, "dqn", 1, [100.0, 300.0])
    found = results.read("study")
    assert returns(found) == {0: 200.0, 1: 300.0}
    assert len(found.runs) == 2


def test_an_unfinished_run_folder_does_not_replace_it(exported):
    write_run(STUDY, "dqn", 1, [100.0, 300.0], status="running")
    found = results.read("study")
    finished = found.finished().set_index("seed")
    assert sorted(finished.index) == [0, 1]
    assert set(finished["status"]) == {"done"}
    assert returns(found) == {0: 200.0, 1: 200.0}
    assert len(found.evaluations) == 4


def test_exported_runs_of_another_length_are_left_out_and_listed(exported):
    longer = Experiment("study", ("cartpole-replay",), ("dqn",), seeds=2, protocol=Protocol(steps=40))
    store(longer)
    write_run(longer, "dqn", 0, [100.0, 400.0])
    found = select("study")
    assert returns(found) == {0: 400.0}
    assert [str(run) for run in found.missing] == ["cartpole-replay dqn seed 1"]
    assert "have another protocol" in found.notes[0]


def test_an_algorithm_with_its_own_number_of_steps_is_in_the_same_table(home):
    store(STUDY)
    store(Experiment("study", ("cartpole-replay",), ("gndqn",), seeds=2, protocol=Protocol(steps=10)))
    both = Experiment(
        "study", ("cartpole-replay",), ("dqn", "gndqn"), 2, Protocol(steps=20), algorithm_steps={"gndqn": 10}
    )
    assert find("study") == both
    for seed in range(2):
        write_run(STUDY, "dqn", seed, [100.0, 200.0])
        write_run(both, "gndqn", seed, [100.0], protocol=vars(both.protocol_of("gndqn")))
    assert not select("study").missing


def test_a_run_that_failed_before_its_first_update_is_not_a_result(home):
    folder = home / "results/study/cartpole-replay/dqn/seed-0"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"status": "failed", "error": "no data"}')
    assert results.read("study").runs.empty
    with pytest.raises(UserError, match="no finished runs of study"):
        results.export(STUDY)


def test_damaged_exported_results_are_named(exported):
    exported.write_text(exported.read_text().replace('""steps""', "steps"))
    with pytest.raises(UserError, match="cannot read the exported results of study"):
        results.read("study")


def test_a_run_with_inconsistent_rows_is_named(home):
    write_run(STUDY, "dqn", 0, [100.0, 200.0])
    metrics = home / "results/study/cartpole-replay/dqn/seed-0/metrics.csv"
    metrics.write_text("step,bellman_error\n10,1\n10,2\n")
    with pytest.raises(UserError, match=r"seed-0 is damaged: cannot read scores\.csv"):
        results.read("study")


def test_an_experiment_whose_runs_all_diverged_is_named(home):
    store(STUDY)
    write_run(STUDY, "dqn", 0, [], status="diverged")
    write_run(STUDY, "dqn", 1, [], status="diverged")
    with pytest.raises(UserError, match="all runs of study diverged before their first evaluation"):
        select("study")


def test_runs_add_to_the_exported_experiment_of_their_name(exported):
    more = Experiment("study", ("cartpole-replay",), ("gndqn",), seeds=1, protocol=STUDY.protocol)
    store(more)
    write_run(more, "gndqn", 0, [100.0, 400.0])
    found = select("study")
    assert found.experiment.algorithms == ("dqn", "gndqn")
    assert found.experiment.seeds == 2
    assert len(found.runs) == 3
    assert [str(run) for run in found.missing] == ["cartpole-replay gndqn seed 1"]


def test_a_run_that_lost_its_evaluations_is_missing(home):
    store(STUDY)
    write_run(STUDY, "dqn", 0, [100.0, 200.0])
    write_run(STUDY, "dqn", 1, [])
    found = select("study")
    assert [str(run) for run in found.missing] == ["cartpole-replay dqn seed 1"]
    assert "have no evaluations" in found.notes[0]
    write_run(STUDY, "dqn", 0, [])
    with pytest.raises(UserError, match=r"have no scores\.csv"):
        select("study")
