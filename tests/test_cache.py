"""The flat cache: shared, keyed by its source, and never trusted when it is not what was written."""

import dataclasses
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from d4rl_files import arrays, write

from offline_gntd.datasets import cache, load
from offline_gntd.errors import UserError
from offline_gntd.files import Unwritable, home, writing


@pytest.fixture
def source(tmp_path):
    return write(tmp_path / "hopper_x.hdf5", arrays())


def cache_of(source):
    return next((home() / "datasets" / "cache").glob(f"{source.stem}-*"))


def test_the_second_opening_reads_the_cache(source, capsys):
    first = load(source)
    before = (cache_of(source) / "rows.npy").stat().st_mtime_ns
    second = load(source)
    assert (cache_of(source) / "rows.npy").stat().st_mtime_ns == before
    assert torch.equal(first.rows, second.rows)
    assert first.sha256 == second.sha256
    assert first.notes == second.notes
    np.testing.assert_array_equal(first.obs_std, second.obs_std)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("part", ["rows.npy", "episodes.npy", "dataset.json"])
@pytest.mark.parametrize("harm", ["flip", "truncate", "delete", "empty"])
def test_a_damaged_cache_is_made_anew(source, part, harm, capsys):
    sound = load(source)
    sound = dataclasses.replace(sound, rows=sound.rows.clone())
    path = cache_of(source) / part
    content = bytearray(path.read_bytes())
    if harm == "delete":
        path.unlink()
    else:
        content[-20] ^= 0x10
        path.write_bytes({"flip": content, "truncate": content[: len(content) // 2], "empty": b""}[harm])
    again = load(source)
    assert again.sha256 == sound.sha256
    assert torch.equal(again.rows, sound.rows)
    np.testing.assert_array_equal(again.episode_returns, sound.episode_returns)
    assert "making it anew" in capsys.readouterr().err
    assert load(source).sha256 == sound.sha256


def test_a_flip_is_seen_though_the_time_of_writing_is_put_back(source):
    sound = load(source)
    sound = dataclasses.replace(sound, rows=sound.rows.clone())
    path = cache_of(source) / "rows.npy"
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert torch.equal(load(source).rows, sound.rows)


def test_a_cache_that_was_only_copied_is_verified_and_kept(source, capsys):
    load(source)
    os.utime(cache_of(source) / "rows.npy")
    load(source)
    assert capsys.readouterr().err == ""


def test_a_changed_source_is_read_again(source, capsys):
    load(source)
    write(source, arrays(seed=1))
    assert load(source).sha256 == load(arrays(seed=1), env="hopper").sha256
    assert "another source" in capsys.readouterr().err


def test_the_key_depends_on_the_environment(source, tmp_path):
    nameless = write(tmp_path / "x.hdf5", arrays())
    assert load(nameless, env="Hopper-v5").task.env_id == "Hopper-v5"
    assert load(nameless, env="hopper").task.env_id == "Hopper-v4"


def test_a_failed_reading_leaves_nothing(tmp_path):
    data = arrays()
    data["rewards"][40] = np.nan
    with pytest.raises(UserError, match="NaN"):
        load(write(tmp_path / "hopper_bad.hdf5", data))
    left = [path.name for path in (home() / "datasets" / "cache").iterdir()]
    assert left == ["fingerprints"]


def test_rows_can_be_written_to_without_changing_the_cache(source):
    dataset = load(source)
    dataset.rows.zero_()
    assert load(source).rows.abs().sum() > 0


def test_a_description_is_strict_json(source):
    load(source)
    json.loads((cache_of(source) / "dataset.json").read_text(), parse_constant=pytest.fail)


@pytest.mark.slow
def test_a_million_rows_open_within_a_tenth_of_a_second(tmp_path):
    rng = np.random.default_rng(0)
    data = arrays("v0", "halfcheetah", ends=(), steps=2)
    steps = 1_000_000
    data["observations"] = rng.standard_normal((steps, 17), dtype=np.float32)
    data["actions"] = np.tanh(rng.standard_normal((steps, 6), dtype=np.float32))
    data["rewards"] = rng.standard_normal(steps, dtype=np.float32)
    data["terminals"], data["timeouts"] = np.zeros((2, steps), bool)
    data["timeouts"][999::1000] = True
    path = write(tmp_path / "halfcheetah_big.hdf5", data)
    load(path)
    started = time.perf_counter()
    assert len(load(path)) == 999_000
    assert time.perf_counter() - started < 0.1


def test_no_cache_and_no_source_is_a_clean_error(source):
    load(source)
    source.unlink()
    with pytest.raises(UserError, match="no file"):
        load(source)
    with pytest.raises(cache.Absent):
        cache.read(cache.folder("nothing"), "key")


def test_a_folder_that_cannot_be_replaced_stays(tmp_path, monkeypatch):
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / "old").touch()
    rename = Path.rename

    def failing(path, target):
        if path.suffix == ".part":
            raise OSError("no")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(Unwritable), writing(folder) as temporary:
        temporary.mkdir()
    assert [path.name for path in tmp_path.rglob("*")] == ["kept", "old"]
