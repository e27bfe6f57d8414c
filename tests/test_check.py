"""`datasets check` finds every fault, and reports none in a sound file."""

import json
import re

import numpy as np
import pytest
from d4rl_files import arrays, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offline_gntd.cli import main
from offline_gntd.datasets import catalogue, load
from offline_gntd.datasets.check import check, distinct
from offline_gntd.errors import UserError


def found(tmp_path, data, name="hopper_x.hdf5", **options):
    report = check(write(tmp_path / name, data), **options)
    return report, {finding.what for finding in report.findings if finding.level != "note"}


def usual(**options):
    """A file without faults."""
    return arrays(ends=((30, "terminal"), (100, "timeout")), **options)


def test_sound_file(tmp_path):
    report, what = found(tmp_path, usual())
    assert (report.verdict, what) == ("sound", set())
    assert report.returns["episodes"] == 2
    assert sum(report.returns["histogram"]["counts"]) == 2


def harmed(key, row, value):
    def harm(data):
        data[key][row] = value

    return harm


def swap_rows(data):
    data["observations"][[10, 11]] = data["observations"][[11, 10]]


def repeat(data):
    for key in ("observations", "actions", "rewards", "next_observations"):
        data[key][50:60] = data[key][10:20]


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        (harmed("observations", 5, np.nan), "not-finite"),
        (harmed("actions", 5, np.inf), "not-finite"),
        (harmed("rewards", 5, -np.inf), "not-finite"),
        (harmed("actions", 5, 1.5), "action-range"),
        (harmed("timeouts", 29, True), "terminal-and-timeout"),
        (harmed("timeouts", 60, True), "early-timeout"),
        (harmed("rewards", 5, 1e7), "returns"),
        (swap_rows, "cross-episode"),
        (repeat, "duplicates"),
        (harmed("infos/qpos", slice(None), 0), "frozen-qpos"),
        (harmed("observations", (slice(None), 3), 0), "constant-observation"),
        (harmed("rewards", slice(None), 1.0), "constant-reward"),
        (lambda data: data.pop("timeouts"), "no-timeouts"),
        (lambda data: data.pop("actions"), "unreadable"),
        (lambda data: data.update(rewards=data["rewards"][:-1]), "unreadable"),
        (lambda data: data.update(terminals=np.full(100, 0.5)), "unreadable"),
    ],
)
def test_fault_is_reported(tmp_path, harm, what):
    data = usual()
    harm(data)
    report, names = found(tmp_path, data)
    assert what in names
    assert report.exit_code == (2 if what in ("not-finite", "unreadable") else 1)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
@pytest.mark.parametrize(
    ("key", "row", "usable"),
    [
        ("rewards", 99, False),  # a timeout, and the last row: counts in the return
        ("rewards", 40, False),
        ("observations", 99, False),  # the next observation of row 98
        ("observations", 40, False),
        ("actions", 99, True),  # of a row that is not a transition
        ("actions", 40, False),
        ("next_observations", 40, True),  # never used
    ],
)
def test_load_refuses_what_check_calls_an_error(tmp_path, key, row, value, usable):
    data = usual()
    data[key] = data[key].astype(np.float64)
    data[key][row] = value
    report, what = found(tmp_path, data)
    assert report.exit_code == (1 if usable else 2)
    assert ("not-finite-unused" if usable else "not-finite") in what
    for source, options in ((tmp_path / "hopper_x.hdf5", {}), (data, {"env": "hopper"})):
        if usable:
            assert bool(load(source, **options).rows.isfinite().all())
        else:
            with pytest.raises(UserError, match="NaN"):
                load(source, **options)


LONG = "x" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", LONG],
        ["show", f"{LONG}.hdf5"],
        ["show", f"/{LONG}"],
        ["show", "a/" * 3000],
        ["show", f"mujoco/{LONG}-v0"],
        ["show", "cartpole-replay-s" + "9" * 300],
        ["check", LONG],
        ["check", f"{LONG}.npz"],
        ["convert", LONG, "--format", "d4rl"],
        ["extend", f"{LONG}.hdf5"],
        ["fetch", LONG],
        ["fetch", f"mujoco/{LONG}-v0"],
        ["fetch", "hopper-medium-v2", "--from-file", LONG],
        ["build", LONG],
        ["build", "cartpole-replay-s" + "9" * 300],
    ],
)
def test_long_names_are_one_line(arguments, capsys):
    assert main(["datasets", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("offline-gntd: ")
    assert error.count("\n") == 1


def quickly(examples):
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


@given(st.text(max_size=300) | st.from_regex(r"[-_.\w{}/]{1,60}(-v\d|-s\d+|\.hdf5|\.npz)?", fullmatch=True))
@quickly(150)
def test_any_name_is_a_dataset_or_a_user_error(text):
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", catalogue.results_name(text))
    with pytest.raises(UserError) as error:
        load(text)
    assert len(str(error.value).splitlines()) == 1


shapes = st.sampled_from([(6,), (6, 1), (6, 11), (6, 3), (5, 11), (0,), (0, 11), (), (6, 0), (6, 11, 1)])
layouts = st.dictionaries(
    st.sampled_from(["observations", "actions", "rewards", "terminals", "timeouts", "next_observations"]),
    st.tuples(shapes, st.sampled_from(["f4", "f8", "i8", "?", "c8", "S3"]), st.sampled_from([0, 1, 2, -1])),
)


@given(layouts)
@quickly(100)
def test_load_and_check_agree_on_any_layout(tmp_path, layout):
    usable = {
        "observations": ((6, 11), "f4", 1),
        "actions": ((6, 3), "f4", 0),
        "rewards": ((6,), "f4", 1),
        "terminals": ((6,), "?", 0),
    }
    parts = (usable | layout).items()
    report, _ = found(
        tmp_path, {key: np.full(shape, value).astype(kind) for key, (shape, kind, value) in parts}
    )
    try:
        load(tmp_path / "hopper_x.hdf5")
    except UserError:
        assert report.exit_code == 2
    else:
        assert report.exit_code < 2


def test_joined_episodes_are_found_by_their_initial_states(tmp_path):
    data = arrays("v0", ends=((100, "timeout"),))
    data["observations"][60] = [1.25] + [0.001] * 10
    report, what = found(tmp_path, data)
    assert what == {"cross-episode"}
    assert "after row 59" in report.findings[-1].message


def test_long_episodes_and_impossible_terminals(tmp_path):
    data = arrays("v0", "halfcheetah", ends=((1200, "terminal"),), steps=1200)
    _, what = found(tmp_path, data, "halfcheetah_x.hdf5")
    assert {"too-long", "impossible-terminal"} <= what


def test_known_issues_are_cited(tmp_path):
    report, what = found(tmp_path, arrays("v0"), "hopper_medium_expert.hdf5")
    assert "known-issue" in what
    assert any("D4RL#19" in finding.message for finding in report.findings)


def test_distinct_rows_are_counted():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((5000, 7)).astype(np.float32)
    assert distinct(rows) == 5000
    assert distinct(np.concatenate([rows, rows[:10]])) == 5000
    assert distinct(rows[:, [1, 0, 2, 3, 4, 5, 6]]) == 5000


def test_exit_codes(tmp_path, capsys):
    sound, warned = write(tmp_path / "hopper_a.hdf5", usual()), usual()
    warned["actions"][0] = 2
    write(tmp_path / "hopper_b.hdf5", warned)
    (tmp_path / "hopper_c.hdf5").write_text("not HDF5")
    assert main(["datasets", "check", str(sound)]) == 0
    assert "sound" in capsys.readouterr().out
    assert main(["datasets", "check", str(tmp_path / "hopper_b.hdf5"), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "warnings"
    assert report["findings"][0]["what"] == "action-range"
    assert main(["datasets", "check", str(tmp_path / "hopper_c.hdf5"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["verdict"] == "unusable"


@pytest.mark.parametrize("kind", ["missing", "folder", "text", "empty", "unknown", "gone"])
def test_bad_input_is_one_line(tmp_path, kind, capsys):
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.hdf5").write_text("hello")
    (tmp_path / "hopper-empty.hdf5").write_text("")
    names = {
        "missing": str(tmp_path / "hopper.hdf5"),
        "folder": str(tmp_path / "folder"),
        "text": str(tmp_path / "text.hdf5"),
        "empty": str(tmp_path / "hopper-empty.hdf5"),
        "unknown": "hopper-mediun-v2",
        "gone": "hopper-medium-v2",
    }
    for verb in (["show"], ["check"], ["convert", "--format", "minari"]):
        assert main(["datasets", verb[0], names[kind], *verb[1:]]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert len(captured.err.splitlines()) == 1
        assert "Traceback" not in captured.err
    assert {path.name for path in tmp_path.iterdir()} <= {
        "folder",
        "text.hdf5",
        "hopper-empty.hdf5",
        "datasets",
    }


def test_check_of_d4rl_excerpts(shared):
    verdicts = {}
    for file in sorted((shared / "d4rl" / "excerpts").glob("*.hdf5")):
        report = check(file)
        verdicts[file.stem] = report.verdict
        what = {finding.what for finding in report.findings if finding.level == "warning"}
        assert what <= {"known-issue", "frozen-qpos", "impossible-terminal"}
    assert [name for name, verdict in verdicts.items() if verdict == "sound"] == [
        "halfcheetah_medium-v2",
        "hopper_medium-v2",
        "walker2d_medium-v2",
    ]
    assert "unusable" not in verdicts.values()
