"""The dataset doctor finds what was broken, and nothing in what was not."""

import json

import numpy as np
import pytest
from d4rl_files import arrays, write

from offline_gntd.cli import main
from offline_gntd.datasets.check import check, distinct


def found(tmp_path, data, name="hopper_x.hdf5", **options):
    report = check(write(tmp_path / name, data), **options)
    return report, {finding.what for finding in report.findings if finding.level != "note"}


def usual(**options):
    """Nothing is wrong with it: long enough, and inside the references."""
    return arrays(ends=((30, "terminal"), (100, "timeout")), **options)


def test_nothing_is_wrong(tmp_path):
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
def test_what_is_wrong_is_named(tmp_path, harm, what):
    data = usual()
    harm(data)
    report, names = found(tmp_path, data)
    assert what in names
    assert report.exit_code == (2 if what in ("not-finite", "unreadable") else 1)


def test_episodes_that_were_joined_are_seen_by_their_resets(tmp_path):
    data = arrays("v0", ends=((100, "timeout"),))
    data["observations"][60] = [1.25] + [0.001] * 10
    report, what = found(tmp_path, data)
    assert what == {"cross-episode"}
    assert "after row 59" in report.findings[-1].message


def test_too_long_and_impossible(tmp_path):
    data = arrays("v0", "halfcheetah", ends=((1200, "terminal"),), steps=1200)
    _, what = found(tmp_path, data, "halfcheetah_x.hdf5")
    assert {"too-long", "impossible-terminal"} <= what


def test_known_issues_carry_their_numbers(tmp_path):
    report, what = found(tmp_path, arrays("v0"), "hopper_medium_expert.hdf5")
    assert "known-issue" in what
    assert any("D4RL#19" in finding.message for finding in report.findings)


def test_distinct_rows_are_counted():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((5000, 7)).astype(np.float32)
    assert distinct(rows) == 5000
    assert distinct(np.concatenate([rows, rows[:10]])) == 5000
    assert distinct(rows[:, [1, 0, 2, 3, 4, 5, 6]]) == 5000


def test_the_command_tells_by_its_exit_code(tmp_path, capsys):
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
def test_bad_input_is_one_line_and_changes_nothing(tmp_path, kind, capsys):
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


def test_genuine_excerpts_check(shared):
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
