"""The cache: shared, keyed by its source, verified by checksums."""

import dataclasses
import hashlib
import json
import os
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from d4rl_files import arrays, write

from offline_gntd.datasets import cache, load
from offline_gntd.datasets.check import check
from offline_gntd.datasets.d4rl import Recording
from offline_gntd.errors import UserError
from offline_gntd.files import Unwritable, home, sha256_of, writing


@pytest.fixture
def source(tmp_path):
    return write(tmp_path / "hopper_x.hdf5", arrays())


def cache_of(source):
    return next((home() / "datasets" / "cache").glob(f"{source.stem}-*"))


def test_second_load_reads_the_cache(source, capsys):
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
def test_damaged_cache_is_rebuilt(source, part, harm, capsys):
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
    assert "building it again" in capsys.readouterr().err
    assert load(source).sha256 == sound.sha256


def test_flipped_bit_is_noticed_when_mtime_is_restored(source):
    sound = load(source)
    sound = dataclasses.replace(sound, rows=sound.rows.clone())
    path = cache_of(source) / "rows.npy"
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert torch.equal(load(source).rows, sound.rows)


def content_of(dataset):
    arrays = (dataset.rows.numpy(), dataset.episode_returns, dataset.episode_lengths, dataset.truncated)
    words = repr((dataset.name, dataset.task, dataset.notes, dataset.provenance, dataset.sha256))
    return [array.tobytes() for array in (*arrays, dataset.obs_mean, dataset.obs_std)] + [words]


@pytest.mark.parametrize("silent", [False, True], ids=["file times change", "file times do not change"])
def test_300_flipped_bits_are_noticed_or_harmless(source, silent, monkeypatch):
    """With unchanged file times, as when a disk fails, `load` may miss a bit, and `verify` must not."""
    if silent:
        monkeypatch.setattr(cache, "_stamp", lambda path: [path.stat().st_size, 0, 0])
    expected, folder = content_of(load(source)), cache_of(source)
    key = json.loads((folder / "dataset.json").read_text())["key"]
    monkeypatch.setattr(cache, "write_json", lambda path, value: None)  # renewed stamps would take time
    parts = {path: path.read_bytes() for path in sorted(folder.iterdir())}
    rng, counts = np.random.default_rng(0), Counter()
    for number in range(300):
        path = list(parts)[number % len(parts)]
        content = bytearray(parts[path])
        content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
        try:
            dataset = cache.read(folder, key)
            dataset.verify()
        except UserError:
            counts["noticed"] += 1
        else:
            assert content_of(dataset) == expected, path
            counts["harmless"] += 1
        path.write_bytes(parts[path])
    assert counts.total() == 300
    assert counts["noticed"] > 220  # the others are in white space, padding and the stamp


def test_verify_makes_the_next_load_rebuild_a_damaged_file(source, monkeypatch, capsys):
    sound = load(source).rows.clone()
    path = cache_of(source) / "rows.npy"
    description = json.loads((cache_of(source) / "dataset.json").read_text())
    content = bytearray(path.read_bytes())
    content[-9] ^= 4
    path.write_bytes(content)
    description["stamp"] = cache._stamp(path)  # as if the file system did not know of the change
    (cache_of(source) / "dataset.json").write_text(json.dumps(description))
    damaged = load(source)
    assert not torch.equal(damaged.rows, sound)
    with pytest.raises(UserError, match="no longer match their sha256"):
        damaged.verify()
    assert torch.equal(load(source).rows, sound)
    assert "do not match their sha256; building it again" in capsys.readouterr().err


def test_check_verifies_the_cache(source, capsys):
    load(source)
    assert check(source).verdict == "warnings"  # of an early timeout
    path = cache_of(source) / "rows.npy"
    content = bytearray(path.read_bytes())
    content[-9] ^= 4
    path.write_bytes(content)
    assert "cache" in {finding.what for finding in check(source).findings}


@pytest.mark.parametrize("size", ["same size", "other size"])
def test_file_that_changes_while_it_is_read_is_not_cached(source, size, monkeypatch):
    other = write(source.with_name("other.hdf5"), arrays(seed=1)).read_bytes()
    content = source.read_bytes()
    other = (other + bytes(len(content)))[: len(content)] if size == "same size" else other + b"x"
    transitions = Recording.transitions

    def changing(self, *options):
        yield from transitions(self, *options)
        source.write_bytes(other)

    monkeypatch.setattr(Recording, "transitions", changing)
    with pytest.raises(UserError, match="changed while it was read"):
        load(source)
    assert list((home() / "datasets").rglob("rows.npy")) == []


def test_file_that_changes_while_it_is_hashed_is_refused(source, monkeypatch):
    digest = hashlib.file_digest

    def changing(file, name):
        result = digest(file, name)
        with source.open("ab") as end:
            end.write(b"x")
        return result

    monkeypatch.setattr(hashlib, "file_digest", changing)
    with pytest.raises(UserError, match="changed while it was read"):
        load(source)


def test_hash_of_a_recently_written_file_is_not_stored(source):
    first = sha256_of(source)
    status = source.stat()
    source.write_bytes(bytes(status.st_size))
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert sha256_of(source) != first


def test_touched_cache_is_verified_and_kept(source, capsys):
    load(source)
    os.utime(cache_of(source) / "rows.npy")
    load(source)
    assert capsys.readouterr().err == ""


def test_changed_source_is_read_again(source, capsys):
    load(source)
    write(source, arrays(seed=1))
    assert load(source).sha256 == load(arrays(seed=1), env="hopper").sha256
    assert "another source" in capsys.readouterr().err


def test_key_depends_on_the_environment(source, tmp_path):
    nameless = write(tmp_path / "x.hdf5", arrays())
    assert load(nameless, env="Hopper-v5").task.env_id == "Hopper-v5"
    assert load(nameless, env="hopper").task.env_id == "Hopper-v4"


def test_failed_load_leaves_no_cache(tmp_path):
    data = arrays()
    data["rewards"][40] = np.nan
    with pytest.raises(UserError, match="NaN"):
        load(write(tmp_path / "hopper_bad.hdf5", data))
    assert list((home() / "datasets").rglob("rows.npy")) == []


def test_writing_to_rows_does_not_change_the_cache(source):
    dataset = load(source)
    dataset.rows.zero_()
    assert load(source).rows.abs().sum() > 0


def test_description_is_strict_json(source):
    load(source)
    json.loads((cache_of(source) / "dataset.json").read_text(), parse_constant=pytest.fail)


@pytest.mark.slow
def test_a_million_rows_open_in_a_tenth_of_a_second(tmp_path):
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


def test_missing_cache_and_source_is_an_error(source):
    load(source)
    source.unlink()
    with pytest.raises(UserError, match="no file"):
        load(source)
    with pytest.raises(cache.NoCache):
        cache.read(cache.folder("nothing"), "key")


def test_folder_that_cannot_be_replaced_is_unchanged(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
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
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "old"]
