"""D4RL's names and layouts, and the rule for episode boundaries."""

import time

import h5py
import numpy as np
import pytest
from d4rl_files import AWKWARD, arrays, write

from offline_gntd.datasets import DatasetNotFound, catalogue, d4rl, hdf5, load
from offline_gntd.errors import UserError
from offline_gntd.tasks import LOCOMOTION


def qlearning(data: dict[str, np.ndarray], limit: int | None = None) -> np.ndarray:
    """d4rl.qlearning_dataset row by row, but for its miscount after a terminal."""
    rows, step = [], 0
    for i in range(len(data["rewards"]) - 1):
        step += 1
        terminal = bool(data["terminals"][i])
        over = bool(data["timeouts"][i]) if limit is None else step == limit
        if terminal or over:
            step = 0
        if over:
            continue
        parts = (
            data["observations"][i],
            data["actions"][i],
            data["rewards"][i],
            data["observations"][i + 1],
            terminal,
        )
        rows.append(np.concatenate([np.atleast_1d(part) for part in parts]).astype(np.float32))
    return np.array(rows)


@pytest.mark.parametrize("ends", AWKWARD.values(), ids=AWKWARD)
@pytest.mark.parametrize("layout", ["v0", "v1-replay", "v2"])
def test_rows_match_a_plain_loop(tmp_path, layout, ends):
    data = arrays(layout, ends=ends)
    dataset = load(write(tmp_path / "hopper.hdf5", data))
    np.testing.assert_array_equal(dataset.rows.numpy(), qlearning(data))
    assert dataset.episode_lengths.sum() == 100


def test_parts_join_to_the_same_rows():
    data = arrays()
    recording = d4rl.recording(data, LOCOMOTION["hopper"].task(), "it")
    np.testing.assert_array_equal(np.concatenate(list(recording.transitions(7))), qlearning(data))


@pytest.mark.parametrize("limit", [1, 7, 30, 50, 1000])
def test_steps_are_counted_from_each_terminal(tmp_path, limit):
    data = arrays("v0-old", ends=((30, "terminal"), (65, "terminal")))
    if limit == 1:
        with pytest.raises(UserError, match="every row is a timeout"):
            load(data, env="hopper", episode_limit=limit)
        return
    dataset = load(data, env="hopper", episode_limit=limit)
    np.testing.assert_array_equal(dataset.rows.numpy(), qlearning(data, limit))


def test_boundaries_from_stored_next_observations():
    data = arrays("v2")
    with_timeouts = load(data, env="hopper").rows.numpy()
    del data["timeouts"]
    np.testing.assert_array_equal(load(data, env="hopper").rows.numpy(), with_timeouts)


def test_halfcheetah_v0_episodes_have_999_steps(tmp_path):
    data = arrays("v0-old", "halfcheetah", ends=(), steps=2500)
    assert load(write(tmp_path / "halfcheetah_medium.hdf5", data)).episode_lengths.tolist() == [999, 999, 502]
    assert load(write(tmp_path / "halfcheetah-mine.hdf5", data)).episode_lengths.tolist() == [1000, 1000, 500]


def test_check_opens_one_array_at_a_time(tmp_path, monkeypatch):
    path = write(tmp_path / "many.hdf5", {f"episode_{i}/rewards": np.zeros(3, np.float32) for i in range(20)})
    opened, getitem = [], h5py.Group.__getitem__

    def counted_getitem(group, name):
        opened.append(h5py.h5f.get_obj_count(group.file.id, h5py.h5f.OBJ_DATASET))
        return getitem(group, name)

    monkeypatch.setattr(h5py.Group, "__getitem__", counted_getitem)
    hdf5.check(path)
    assert len(opened) >= 20
    assert max(opened) == 1  # the last array is closed after the next is opened


def test_2000_nested_groups_are_refused_quickly(tmp_path):
    path = tmp_path / "hopper.hdf5"
    with h5py.File(path, "w") as file:
        group = file
        for _ in range(2000):
            group = group.create_group("g")
    started = time.process_time()
    with pytest.raises(UserError, match="nested more than 32 deep"):
        load(path)
    assert time.process_time() - started < 2


def test_group_that_contains_itself_is_read_once(tmp_path):
    path = write(tmp_path / "hopper.hdf5", arrays())
    with h5py.File(path, "a") as file:
        file["infos/again"] = file["infos"]
    with hdf5.reading(path) as columns:
        assert set(columns) == set(arrays())
    assert len(load(path)) > 0


def test_observation_statistics_match_numpy(tmp_path):
    dataset = load(write(tmp_path / "hopper.hdf5", arrays(steps=100)))
    obs = dataset.transitions.obs.numpy().astype(np.float64)
    np.testing.assert_allclose(dataset.obs_mean, obs.mean(0), rtol=1e-6)
    np.testing.assert_allclose(dataset.obs_std, obs.std(0), rtol=1e-6)


def test_dict_loads_like_a_file(tmp_path):
    data = arrays("v1-replay")
    assert load(data, env="hopper").sha256 == load(write(tmp_path / "hopper.hdf5", data)).sha256
    with pytest.raises(UserError, match="env"):
        load(data)
    with pytest.raises(UserError, match="values that are no arrays"):
        load(data | {"rewards": [[1.0], [1.0, 2.0]]}, env="hopper")


def test_task_comes_from_name_or_env_never_from_shapes(tmp_path):
    data = arrays("v2", "walker2d")
    assert load(write(tmp_path / "walker2d_x.hdf5", data)).task.env_id == "Walker2d-v4"
    assert load(write(tmp_path / "my-halfcheetah.hdf5", data)).task.env_id == "HalfCheetah-v4"
    nameless = write(tmp_path / "data.hdf5", data)
    with pytest.raises(UserError, match="--env"):
        load(nameless)
    assert load(nameless, env="walker2d").task.reference_max == 4592.3
    assert load(nameless, env="HalfCheetah-v5").task.env_id == "HalfCheetah-v5"
    with pytest.raises(UserError, match="but --env is"):
        load(tmp_path / "walker2d_x.hdf5", env="halfcheetah")
    with pytest.raises(UserError, match=r"observations has shape \(100, 17\)"):
        load(nameless, env="hopper")


def test_file_name_never_stands_for_another_dataset(tmp_path):
    data = arrays()
    excerpt = load(write(tmp_path / "hopper_medium-v2.hdf5", data))
    assert (excerpt.name, excerpt.origin, excerpt.version) == ("hopper_medium-v2", "file", "v2")
    assert load(write(tmp_path / "hopper-medium-v2.hdf5", data)).name == "hopper-medium-v2-file"
    assert load(write(tmp_path / "my hopper; v2.hdf5", data)).name == "my-hopper-v2"
    with pytest.raises(DatasetNotFound, match="fetch hopper-medium-v2"):
        load("hopper-medium-v2")


def test_d4rl_id_accepts_only_the_published_file(tmp_path, monkeypatch):
    path = write(tmp_path / "d4rl-package" / "hopper_medium-v2.hdf5", arrays())
    with pytest.raises(DatasetNotFound, match="is not the published hopper-medium-v2"):
        load("hopper-medium-v2")
    fake = publish(monkeypatch, path, "hopper-medium-v2")
    dataset = load("hopper-medium-v2")
    assert (dataset.name, dataset.origin, dataset.version) == (fake.id, "d4rl", "v2")
    path.unlink()
    assert load("hopper-medium-v2").sha256 == dataset.sha256  # from the cache


def publish(monkeypatch, path, name: str) -> catalogue.Entry:
    """Let the catalogue have this very file under a name."""
    import dataclasses
    import hashlib

    content = path.read_bytes()
    entry = catalogue.entries()[name]
    entry = dataclasses.replace(entry, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(catalogue, "entries", lambda: {name: entry})
    return entry


def test_catalogue_is_complete():
    ids = {
        f"{environment}-{split}-{version}"
        for environment in LOCOMOTION
        for split in catalogue.SPLITS
        for version in catalogue.VERSIONS
        if (split, version) != ("full-replay", "v0")
    }
    assert set(catalogue.entries()) == ids
    assert len(ids) == 51
    assert len({entry.sha256 for entry in catalogue.entries().values()}) == 51
    assert len({entry.file_name for entry in catalogue.entries().values()}) == 51
    entry = catalogue.entries()["walker2d-medium-replay-v0"]
    assert (entry.file_name, entry.split, entry.version) == ("walker_mixed.hdf5", "medium-replay", "v0")
    assert catalogue.environment_in("walker_mixed") == "walker2d"


def test_catalogue_matches_the_reference_list(shared):
    import csv

    with (shared / "d4rl" / "files.csv").open() as file:
        facts = {row["id"]: row for row in csv.DictReader(file)}
    for name, entry in catalogue.entries().items():
        row = facts.pop(name)
        assert (entry.path, entry.bytes, entry.sha256) == (row["path"], int(row["bytes"]), row["sha256"])
        assert entry.episodes == int(row["episodes_tfds"])
    assert not facts


def test_known_issues_are_printed(tmp_path, capsys):
    dataset = load(write(tmp_path / "hopper_medium_expert.hdf5", arrays("v0")))
    assert any("D4RL#19" in note for note in dataset.notes)
    assert "D4RL#19" in capsys.readouterr().err
    load(tmp_path / "hopper_medium_expert.hdf5")
    assert not capsys.readouterr().err


def test_d4rl_excerpts_load(shared):
    files = sorted((shared / "d4rl" / "excerpts").glob("*.hdf5"))
    assert len(files) == 12
    for file in files:
        dataset = load(file)
        assert dataset.name == file.stem
        assert dataset.version == (file.stem.rpartition("-")[2] if "-" in file.stem else "v0")
        assert len(dataset.episode_returns) == 2


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("hopper-med-v2", "did you mean 'hopper-medium-v2'"),
        ("hopper-full-replay-v0", "did you mean"),
        ("mujoco/hopper/medium-v0", "datasets fetch"),
        ("nowhere/file.hdf5", "no file"),
        ("../hopper", "no file"),
        ("nonsense", "no dataset 'nonsense'. See"),
    ],
)
def test_missing_datasets_name_the_remedy(name, hint):
    with pytest.raises(UserError, match=hint):
        load(name)


def test_score_and_its_spread():
    task = LOCOMOTION["hopper"].task()
    assert task.score(task.reference_min) == 0
    assert task.score(task.reference_max) == 100
    returns = np.array([100.0, 900.0, 2000.0])
    assert task.score_spread(returns.std()) == pytest.approx(task.score(returns).std())
    assert "D4RL" in task.reference_source
