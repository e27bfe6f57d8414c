"""Building the discrete sets: which rows, the same bytes again, nothing half-written."""

import numpy as np
import pytest

from offline_gntd.collection import discrete, online
from offline_gntd.collection.discrete import RECIPES, Recipe, build, draw
from offline_gntd.collection.online import Training, Verdict
from offline_gntd.datasets import Missing, cache, load
from offline_gntd.errors import UserError


def training(lengths, seed=0):
    """Rows numbered in their first column; every second episode is truncated."""
    rows = np.zeros((sum(lengths), 11), np.float32)
    rows[:, 0] = np.arange(len(rows)) + 1_000 * seed
    ends = np.cumsum(lengths)
    truncated = np.zeros(len(rows), bool)
    truncated[ends[1::2] - 1] = True
    rows[ends[::2] - 1, -1] = 1
    return Training(rows, truncated, seed)


def test_draw_takes_whole_episodes_from_all_trainings_and_cuts_only_the_last():
    trainings = [training([5] * 40, seed) for seed in range(3)]
    rows, ends = draw(trainings, 101, np.random.default_rng(0))
    assert len(rows) == 101 == ends[-1]
    lengths = np.diff([0, *ends])
    assert sorted(lengths)[:2] == [1, 5]
    assert {int(row // 1_000) for row in rows[:, 0]} == {0, 1, 2}
    assert not np.array_equal(rows[:40, 0], np.arange(40))  # not simply the first rows
    assert (np.diff(rows[:, 0]) > 0).all()  # in their order in time
    assert (rows[[0, *ends[:-1]], 0] % 5 == 0).all()  # each from its start


def test_draw_of_everything_is_everything():
    whole = training([3, 4, 5])
    rows, ends = draw([whole], 12, np.random.default_rng(1))
    np.testing.assert_array_equal(rows, whole.rows)
    assert ends.tolist() == [3, 7, 12]


def test_a_training_s_episodes_end_where_it_terminated_or_was_truncated():
    assert training([3, 4, 5]).episodes() == [slice(0, 3), slice(3, 7), slice(7, 12)]


def test_levels():
    replay, medium = RECIPES["cartpole-replay"], RECIPES["cartpole-medium-replay"]
    assert replay.judge([500, 474, 500, 500]) is Verdict.GO_ON
    assert replay.judge([10, 475, 480, 500]) is Verdict.REACHED
    assert medium.judge([200.0]) is Verdict.GO_ON
    assert medium.judge([200.0, 260.0]) is Verdict.REACHED
    assert medium.judge([500.0, 500.0]) is Verdict.GO_ON  # it may come back into the window
    assert medium.judge([310.0, 500.0, 400.0]) is Verdict.MISSED
    acrobot = RECIPES["acrobot-medium-replay"]
    assert acrobot.judge([-500.0]) is Verdict.GO_ON
    assert acrobot.judge([-500.0, -290.0]) is Verdict.REACHED


def test_the_same_seed_gives_the_same_bytes(easy, quick_collection, monkeypatch, tmp_path):
    hashes = {}
    for place, seed in (("a", 0), ("b", 0), ("c", 1)):
        monkeypatch.setenv("OFFLINE_GNTD_HOME", str(tmp_path / place))
        dataset = build("cartpole-replay-small", 500, seed, collection=quick_collection, quiet=True)
        hashes[place] = dataset.sha256
    assert hashes["a"] == hashes["b"] != hashes["c"]


def test_a_built_set(easy, quick_collection):
    built = build("cartpole-replay-small", 450, collection=quick_collection, quiet=True)
    assert len(built) == 450
    assert built.episode_lengths.sum() == 450
    transitions = built.transitions
    assert transitions.obs.shape == transitions.next_obs.shape == (450, 4)
    assert set(transitions.action.tolist()) == {0, 1}
    assert (transitions.reward == 1).all()
    inside = ~transitions.terminated[:-1].bool()  # rows that go on are followed by their next observation
    same = (transitions.next_obs[:-1] == transitions.obs[1:]).all(-1)
    assert same[inside].float().mean() > 0.9
    assert len(built.provenance["trainings"]) == 3  # 200 rows each
    assert all(account["rows"] == 200 for account in built.provenance["trainings"])
    again = load("cartpole-replay-small")
    assert again.sha256 == built.sha256
    assert again.provenance == built.provenance


def test_minari_reads_the_same_as_the_flat_cache(easy, quick_collection, monkeypatch, home):
    import minari

    built = build("cartpole-replay-small", 300, collection=quick_collection, quiet=True)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(home / "datasets" / "minari"))
    stored = minari.load_dataset("cartpole-replay-small-v0")
    episodes = list(stored.iterate_episodes())
    transitions = built.transitions
    np.testing.assert_array_equal(np.concatenate([e.observations[:-1] for e in episodes]), transitions.obs)
    np.testing.assert_array_equal(
        np.concatenate([e.observations[1:] for e in episodes]), transitions.next_obs
    )
    np.testing.assert_array_equal(np.concatenate([e.actions for e in episodes]), transitions.action)
    np.testing.assert_array_equal(np.concatenate([e.terminations for e in episodes]), transitions.terminated)
    assert [len(e.rewards) for e in episodes] == built.episode_lengths.tolist()
    assert all(e.terminations[-1] != e.truncations[-1] for e in episodes)
    metadata = stored.storage.metadata
    assert metadata["ref_min_score"] == built.task.reference_min
    assert metadata["ref_max_score"] == built.task.reference_max


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "no description"])
def test_a_damaged_cache_is_made_anew_never_trusted(easy, quick_collection, damage):
    built = build("cartpole-replay-small", 300, collection=quick_collection, quiet=True)
    folder = cache.folder("cartpole-replay-small")
    whole = (folder / "rows.npy").read_bytes()
    content = bytearray(whole)
    if damage == "truncate":
        (folder / "rows.npy").write_bytes(content[:-100])
    elif damage == "flip":
        content[-50] ^= 0xFF
        (folder / "rows.npy").write_bytes(content)
    elif damage == "remove":
        (folder / "rows.npy").unlink()
    else:
        (folder / "dataset.json").write_text("{")
    assert load("cartpole-replay-small").sha256 == built.sha256
    assert (folder / "rows.npy").read_bytes() == whole


def test_an_interrupted_build_leaves_nothing(easy, quick_collection, monkeypatch, home):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("minari.create_dataset_from_buffers", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build("cartpole-replay-small", 300, collection=quick_collection, quiet=True)
    assert not [path for path in home.rglob("*") if path.is_file()]
    monkeypatch.undo()
    monkeypatch.setattr(Recipe, "judge", lambda self, returns: Verdict.REACHED)
    monkeypatch.setenv("OFFLINE_GNTD_HOME", str(home))
    assert len(build("cartpole-replay-small", 300, collection=quick_collection, quiet=True)) == 300


def test_build_with_other_options_refuses_without_force(easy, quick_collection):
    build("cartpole-replay-small", 300, collection=quick_collection, quiet=True)
    with pytest.raises(UserError, match=r"--transitions 300.*--force"):
        build("cartpole-replay-small", 200, quiet=True)
    assert len(load("cartpole-replay-small")) == 300
    forced = build("cartpole-replay-small", 200, force=True, collection=quick_collection, quiet=True)
    assert len(forced) == len(load("cartpole-replay-small")) == 200


def test_trainings_that_miss_their_level_are_set_aside(quick_collection, monkeypatch):
    numbers = iter(range(100))
    verdicts = {}

    def judge(self, returns):
        if len(returns) == 1:
            verdicts["now"] = next(numbers)
        if len(returns) < 2:
            return Verdict.GO_ON
        return Verdict.MISSED if verdicts["now"] % 2 else Verdict.REACHED

    monkeypatch.setattr(Recipe, "judge", judge)
    built = build("cartpole-replay-small", 500, collection=quick_collection, quiet=True)
    assert [t["seed"] for t in built.provenance["trainings"]] == [0, 2, 4]
    assert [t["seed"] for t in built.provenance["missed"]] == [1, 3]


def test_a_level_that_is_never_reached_is_an_error_and_not_an_endless_loop(quick_collection, monkeypatch):
    monkeypatch.setattr(Recipe, "judge", lambda self, returns: Verdict.MISSED)
    with pytest.raises(UserError, match="without reaching"):
        build("cartpole-replay-small", 500, collection=quick_collection, quiet=True)


def test_online_training_stores_what_happened(cartpole, quick_collection):
    judge = lambda returns: Verdict.REACHED if len(returns) == 3 else Verdict.GO_ON  # noqa: E731
    trained = online.train(cartpole, quick_collection, 0, judge)
    assert trained.reached
    assert len(trained.rows) == 300
    for part in trained.episodes():
        rows = trained.rows[part]
        np.testing.assert_array_equal(rows[:-1, 6:10], rows[1:, 0:4])  # next_obs is the next row's obs
        assert not rows[:-1, -1].any()


def test_names():
    with pytest.raises(UserError, match="did you mean 'cartpole-replay'"):
        load("cartpole-repaly")
    with pytest.raises(Missing, match="datasets build acrobot-replay"):
        load("acrobot-replay")
    with pytest.raises(UserError, match="at least 1, not 0"):
        discrete.build("cartpole-replay", 0)
