"""The replay buffers of the paper's authors: two layouts of the same data, and errors."""

import numpy as np
import pytest

from offline_gntd.datasets import load
from offline_gntd.datasets.authors import FILES
from offline_gntd.errors import UserError

STEM = "CartPole-v1_0_Replay"


def buffer(lengths=(30, 12, 500, 8), done=(True, True, True, False), seed=0):
    """The five arrays of CartPole episodes with these lengths; `done` is that of their last rows."""
    generator = np.random.default_rng(seed)
    episodes = [generator.normal(size=(length + 1, 4)) for length in lengths]
    count = sum(lengths)
    dones = np.zeros((count, 1))
    dones[np.cumsum(lengths) - 1, 0] = done
    return {
        "observations": np.concatenate([episode[:-1] for episode in episodes]),
        "actions": generator.integers(2, size=(count, 1)),
        "rewards": np.ones((count, 1)),
        "next_observations": np.concatenate([episode[1:] for episode in episodes]),
        "dones": dones,
    }


def write_npy(folder, arrays, stem=STEM):
    """The path to load of arrays, each written to a file of its own."""
    for key, ending in FILES.items():
        if key in arrays:
            np.save(folder / f"{stem}_{ending}.npy", arrays[key])
    return folder / stem


def write_npz(folder, arrays, stem=STEM):
    np.savez(folder / f"{stem}.npz", **arrays)
    return folder / f"{stem}.npz"


WRITERS = pytest.mark.parametrize("write", [write_npy, write_npz], ids=["npy", "npz"])


def refusal(source, **options):
    """The one line that refuses a source."""
    with pytest.raises(UserError) as refused:
        load(source, **options)
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_without_files_the_message_says_where_to_get_them(tmp_path):
    message = refusal(tmp_path / STEM)
    assert "there are no files" in message
    assert f"gntd/buffers of the authors' repository (GitHub: kezhifa1006/gntd) to {tmp_path}" in message


def test_file_names(tmp_path):
    write_npy(tmp_path, buffer())
    assert sorted(path.name for path in tmp_path.glob("*.npy")) == [
        "CartPole-v1_0_Replay_action.npy",
        "CartPole-v1_0_Replay_next_state.npy",
        "CartPole-v1_0_Replay_not_done.npy",
        "CartPole-v1_0_Replay_reward.npy",
        "CartPole-v1_0_Replay_state.npy",
    ]


def test_npy_and_npz_load_equally(tmp_path):
    arrays = buffer()
    npy, npz = load(write_npy(tmp_path, arrays)), load(write_npz(tmp_path, arrays))
    assert npy.sha256 == npz.sha256
    np.testing.assert_array_equal(npy.episode_returns, npz.episode_returns)
    np.testing.assert_array_equal(npy.episode_lengths, npz.episode_lengths)
    np.testing.assert_array_equal(npy.truncated, npz.truncated)
    assert npy.origin == npz.origin == "authors"
    assert npy.task == npz.task
    assert npy.task.env_id == "CartPole-v1"
    assert len(npy.provenance["files"]) == 5
    assert len(npz.provenance["files"]) == 1


@WRITERS
def test_rows_are_the_concatenated_arrays(tmp_path, write):
    arrays = buffer()
    dataset = load(write(tmp_path, arrays))
    transitions = dataset.transitions
    np.testing.assert_array_equal(transitions.obs, arrays["observations"].astype(np.float32))
    np.testing.assert_array_equal(transitions.next_obs, arrays["next_observations"].astype(np.float32))
    np.testing.assert_array_equal(transitions.action, arrays["actions"][:, 0])
    np.testing.assert_array_equal(transitions.reward, arrays["rewards"][:, 0])
    assert dataset.episode_lengths.tolist() == [30, 12, 500, 8]
    assert dataset.episode_returns.tolist() == [30, 12, 500, 8]
    again = load(dataset.source)
    assert again.sha256 == dataset.sha256


@WRITERS
def test_done_at_the_time_limit_is_a_truncation(tmp_path, write):
    dataset = load(write(tmp_path, buffer()))
    assert dataset.truncated.tolist() == [541]
    # the last episode is not done: it is cut by the end of the buffer
    assert np.flatnonzero(dataset.transitions.terminated).tolist() == [29, 41]


def test_episode_limit_can_be_given(tmp_path):
    dataset = load(write_npy(tmp_path, buffer()), episode_limit=12)
    assert dataset.truncated.tolist() == [41]
    assert np.flatnonzero(dataset.transitions.terminated).tolist() == [29, 541]


def test_episode_that_is_not_done_is_neither_truncated_nor_terminated(tmp_path):
    dataset = load(write_npy(tmp_path, buffer((500, 500), (False, True))))
    assert dataset.truncated.tolist() == [999]
    assert not dataset.transitions.terminated.any()
    assert dataset.episode_lengths.tolist() == [500, 500]  # the next row does not continue it


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, np.uint8, bool])
def test_scalar_columns_may_be_flat_and_of_any_dtype(tmp_path, kind):
    arrays = buffer()
    expected = load(write_npy(tmp_path, arrays))
    flat = arrays | {key: arrays[key][:, 0].astype(kind) for key in ("actions", "rewards", "dones")}
    assert load(write_npz(tmp_path, flat)).sha256 == expected.sha256


def test_environment_comes_from_the_file_name_or_env(tmp_path):
    source = write_npz(tmp_path, buffer(), "unnamed")
    assert "give --env" in refusal(source)
    assert load(source, env="cartpole").sha256 == load(source, env="CartPole-v1").sha256
    assert "but --env is acrobot" in refusal(write_npz(tmp_path, buffer()), env="acrobot")


def test_changed_files_are_read_again(tmp_path):
    before = load(write_npy(tmp_path, buffer()))
    after = load(write_npy(tmp_path, buffer(seed=1)))
    assert before.sha256 != after.sha256
    assert load(write_npy(tmp_path, buffer())).sha256 == before.sha256


@pytest.mark.parametrize("key", FILES)
def test_missing_array_is_named(tmp_path, key):
    arrays = buffer()
    del arrays[key]
    assert f"{STEM}_{FILES[key]}.npy is missing in {tmp_path}" in refusal(write_npy(tmp_path, arrays))
    assert f"has no {key!r}" in refusal(write_npz(tmp_path, arrays))


def test_missing_file_is_named(tmp_path):
    assert refusal(tmp_path / f"{STEM}.npz") == f"there is no file {tmp_path / STEM}.npz"
    assert str(tmp_path / STEM) in refusal(tmp_path / STEM)


def entry(value):
    """An array with one value of it replaced."""

    def change(array):
        array = array.astype(np.float64)
        array[7, 0] = value
        return array

    return change


BAD = {
    "fewer rows": (lambda array: array[:-1], "rows"),
    "no rows": (lambda array: array[:0], "rows|no transitions|cannot read"),
    "one number": (lambda array: array[0, 0], "rows|no transitions"),
    "a column too many": (
        lambda array: np.concatenate([array, array[:, :1]], 1),
        r"has shape \(550, \d\), not",
    ),
    "three dimensions": (lambda array: array[..., None], r"has shape \(550, \d, 1\), not"),
    "strings": (lambda array: array.astype(str), "not numbers"),
    "complex": (lambda array: array.astype(complex), "has dtype complex128, not numbers"),
    "objects": (lambda array: array.astype(object), "cannot read .*[Oo]bject"),
    "times": (lambda array: array.astype("datetime64[s]"), "not numbers"),
    "NaN": (entry(np.nan), "NaN|action nan|values other than 0 and 1"),
    "infinite": (entry(np.inf), "infinite|action inf|values other than 0 and 1"),
    "too large for float32": (entry(1e300), "infinite|action inf|values other than 0 and 1"),
}


@WRITERS
@pytest.mark.parametrize("key", FILES)
@pytest.mark.parametrize(("change", "reason"), BAD.values(), ids=BAD)
def test_bad_array_is_one_line(tmp_path, write, key, change, reason):
    arrays = buffer()
    arrays[key] = change(arrays[key])
    source = write(tmp_path, arrays)
    with pytest.raises(UserError, match=reason):
        load(source)
    refusal(source)
    assert not list(tmp_path.rglob("rows.npy"))


@WRITERS
@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("actions", 2, "transition 7 is 2, not a whole number from 0 to 1"),
        ("actions", -1, "transition 7 is -1, not"),
        ("actions", 0.5, "transition 7 is 0.5, not"),
        ("dones", 0.5, "dones contains values other than 0 and 1"),
        ("dones", -1, "dones contains values other than 0 and 1"),
    ],
)
def test_value_out_of_range_is_refused(tmp_path, write, key, value, reason):
    arrays = buffer()
    arrays[key] = entry(value)(arrays[key])
    assert reason in refusal(write(tmp_path, arrays))


@pytest.mark.parametrize("content", [b"", b"not an array", b"\x93NUMPY\x01\x00", b"PK\x03\x04"])
def test_other_file_is_refused(tmp_path, content):
    source = write_npy(tmp_path, buffer())
    (tmp_path / f"{STEM}_state.npy").write_bytes(content)
    assert "cannot read" in refusal(source)
    (tmp_path / f"{STEM}.npz").write_bytes(content)
    assert "cannot read" in refusal(tmp_path / f"{STEM}.npz")


def test_layout_with_the_wrong_name_is_refused(tmp_path):
    npy, npz = write_npy(tmp_path, buffer()), write_npz(tmp_path, buffer())
    state = tmp_path / f"{STEM}_state.npy"
    array, archive = state.read_bytes(), npz.read_bytes()
    state.write_bytes(archive)
    npz.write_bytes(array)
    assert "cannot read" in refusal(npy)
    assert "cannot read" in refusal(npz)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_archive_is_refused_or_read(tmp_path, save):
    path = tmp_path / f"{STEM}.npz"
    save(path, **buffer((20,), (True,)))
    whole, generator = path.read_bytes(), np.random.default_rng(0)
    refusals = []
    for _ in range(100):
        content = bytearray(whole)
        content[generator.integers(len(content))] ^= int(generator.integers(1, 256))
        path.write_bytes(content[: generator.integers(len(content))] if generator.random() < 0.2 else content)
        try:
            load(path)
        except UserError as error:
            refusals.append(str(error))
    assert len(refusals) > 50
    assert not [message for message in refusals if "\n" in message]
