"""Full, read-only and damaged disks: one clear line, nothing corrupted, and runs continue afterwards."""

import json
import shutil
import subprocess

import bits
import pytest

from offline_gntd.cli import main
from offline_gntd.datasets import cache
from offline_gntd.experiments.definitions import Cell, Experiment, Protocol
from offline_gntd.experiments.job import Options, run_job
from offline_gntd.experiments.record import Record
from offline_gntd.experiments.run import Run
from offline_gntd.files import home as home_folder

STUDY = Experiment(
    "study",
    ("cartpole-replay-small",),
    ("dqn@hidden_dims=128x128@batch_size=32", "gndqn@hidden_dims=128x128@batch_size=32"),
    seeds=1,
    protocol=Protocol(steps=300, evaluate_every=100, evaluate_episodes=1),
)
COMMAND = ["run", "study", "--datasets", *STUDY.datasets, "--algorithms", *STUDY.algorithms, "--seeds", "1"]
COMMAND += ["--steps", "300", "--evaluate-every", "100", "--evaluate-episodes", "1", "--workers", "2"]


@pytest.fixture
def small_disk(home, small_dataset, monkeypatch):
    """A home of 6 MB with the dataset on it."""
    disk = home / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        shutil.copytree(home / "datasets", disk / "datasets")
        monkeypatch.setenv("OFFLINE_GNTD_HOME", str(disk))
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk, leave):
    """Fill the disk up to `leave` bytes."""
    free = shutil.disk_usage(disk).free
    (disk / "ballast").write_bytes(b"\0" * (free - leave))


def assert_sound(disk):
    """All files can be read, and none is half written."""
    for path in (disk / "results").rglob("*"):
        assert not path.name.startswith((".", "lock-")), path
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".csv":
            rows = bits.rows(path)
            assert all(None not in row.values() for row in rows)
        elif path.suffix == ".pt":
            Record(path.parent).load(int(path.stem.partition("-")[2]))


@pytest.mark.parametrize(
    "left",  # bytes: none, enough for run.json, enough for all files but a checkpoint
    [pytest.param(0, marks=pytest.mark.slow), pytest.param(20_000, marks=pytest.mark.slow), 300_000],
)
def test_full_disk_stops_a_grid_that_continues_later(small_disk, left, capfd):
    assert main(COMMAND) == 0
    expected = bits.of_cells(STUDY.cells())
    shutil.rmtree(small_disk / "results")
    fill(small_disk, left)
    capfd.readouterr()
    code = main(COMMAND)
    error = capfd.readouterr().err
    assert code == (2 if left == 0 else 1)  # 2: nothing was started
    assert "No space left on device" in error
    assert "Traceback" not in error
    assert_sound(small_disk)
    (small_disk / "ballast").unlink()
    assert main(COMMAND) == 0
    assert bits.of_cells(STUDY.cells()) == expected


def test_disk_that_fills_during_a_run_keeps_the_last_checkpoint(small_disk, monkeypatch):
    cell = STUDY.cells()[1]
    Run(cell).execute()
    expected = bits.read(cell.folder(0))
    shutil.rmtree(cell.folder(0))
    monkeypatch.setattr("offline_gntd.experiments.run.STOP_CHECK", 50)

    def fill_late(progress):
        if progress.step == 200:
            fill(small_disk, leave=100_000)

    monkeypatch.setattr("offline_gntd.experiments.job.REPORT_SECONDS", 0.0)
    result = run_job(cell, Options(checkpoint_seconds=1e-9), fill_late)
    assert result.kind == "unwritable"
    assert "No space left on device" in result.error
    assert_sound(small_disk)
    assert Record(cell.folder(0)).checkpoint_steps() == {150}
    assert run_job(cell, Options()).kind == "unwritable"  # still full
    assert_sound(small_disk)
    (small_disk / "ballast").unlink()
    assert run_job(cell, Options()).kind == "done"
    assert json.loads((cell.folder(0) / "run.json").read_text())["resumed_at"][-1] == 150
    assert bits.read(cell.folder(0)) == expected


def test_read_only_folder_is_reported_before_anything_runs(small_disk, capfd):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert main(COMMAND) == 2
    error = capfd.readouterr().err
    assert "read-only" in error
    assert error.count("\n") == 1


def test_table_is_printed_on_a_read_only_disk(small_disk, capfd):
    assert main(COMMAND) == 0
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    capfd.readouterr()
    assert main(["table", "study"]) == 2
    shown = capfd.readouterr()
    assert "| cartpole-replay-small" in shown.out
    assert "Read-only" in shown.err
    assert shown.err.count("\n") == 1


def test_missing_dataset_fails_its_run_in_one_line(small_dataset, home):
    cell = Cell("study", "cartpole-replay-small", "dqn@batch_size=32", (0,), STUDY.protocol)
    shutil.move(home_folder() / "datasets", home / "away")
    result = run_job(cell, Options())
    assert result.kind == "refused"  # another attempt would fail too
    assert "datasets build cartpole-replay-small" in result.error
    assert "\n" not in result.error
    assert json.loads((cell.folder(0) / "run.json").read_text())["status"] == "failed"
    shutil.move(home / "away", home_folder() / "datasets")
    assert run_job(cell, Options()).kind == "done"


def test_damaged_checkpoint_is_skipped(small_dataset, monkeypatch):
    cell = STUDY.cells()[0]
    Run(cell).execute()
    expected = bits.read(cell.folder(0))
    shutil.rmtree(cell.folder(0))
    monkeypatch.setattr("offline_gntd.experiments.run.STOP_CHECK", 100)
    run_job(cell, Options(), stopping=lambda: True)
    spoiled = cell.folder(0) / "checkpoint-200.pt"
    spoiled.write_bytes((cell.folder(0) / "checkpoint-100.pt").read_bytes()[:1000])
    assert run_job(cell, Options()).kind == "done"
    assert json.loads((cell.folder(0) / "run.json").read_text())["resumed_at"] == [100]
    assert bits.read(cell.folder(0)) == expected


@pytest.mark.parametrize("when", ["before the run", "during the run"])
def test_run_on_rows_that_differ_from_their_sha256_is_not_done(small_dataset, monkeypatch, when):
    cell = STUDY.cells()[0]
    rows = small_dataset.rows_file
    content = bytearray(rows.read_bytes())
    content[-40] ^= 1
    stamp = json.loads((rows.parent / "dataset.json").read_text())["stamp"]

    def damage(progress=None):
        with rows.open("r+b") as file:  # in place, so that mapped pages change too
            file.write(content)

    if when == "before the run":
        damage()
    with monkeypatch.context() as patch:  # as when a disk fails: the size and times of the file stay the same
        patch.setattr(cache, "_stamp", lambda path: stamp)
        result = run_job(cell, Options(), damage)
    assert result.kind == "refused"
    assert "no longer match their sha256" in result.error
    assert json.loads((cell.folder(0) / "run.json").read_text())["status"] == "failed"
    assert run_job(cell, Options()).kind == "done"
