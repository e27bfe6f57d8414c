"""Building the discrete datasets: one per seed, reproducible to the byte, no partial files."""

import dataclasses
import json
import re

import numpy as np
import pytest
import torch
from conftest import seeded

from offline_gntd.algorithms.q_learning import QLearner
from offline_gntd.collection import discrete
from offline_gntd.collection.builders import build_discrete, members_of
from offline_gntd.collection.discrete import ReplaySettings, build, collect, default_settings
from offline_gntd.datasets import DatasetNotFound, built_datasets, cache, load, minari_store
from offline_gntd.errors import UserError
from offline_gntd.experiments.training import ReplayBatches

NAME = "cartpole-replay-small"
OBS, NEXT_OBS = slice(0, 4), slice(6, 10)  # columns of CartPole's rows


def built_quickly(name, settings):
    build(name, settings, quiet=True)
    return load(name)


@pytest.fixture
def acrobot(quick_settings):
    """An Acrobot set with episodes that the time limit of 500 steps cut."""
    settings = dataclasses.replace(quick_settings, random_steps=1_200, episodes=1, transitions=5_000)
    return built_quickly("acrobot-medium-replay-s0", settings)


def test_same_seed_gives_the_same_bytes(quick_settings, monkeypatch, tmp_path):
    hashes = {}
    for place, seed in (("a", 0), ("b", 0), ("c", 1)):
        monkeypatch.setenv("OFFLINE_GNTD_HOME", str(tmp_path / place))
        hashes[place] = built_quickly(f"{NAME}-s{seed}", quick_settings).sha256
    assert hashes["a"] == hashes["b"] != hashes["c"]


def test_dataset_contains_every_step_of_the_agent(quick_settings):
    dataset = built_quickly(f"{NAME}-s0", quick_settings)
    transitions = dataset.transitions
    assert transitions.obs.shape == transitions.next_obs.shape == (len(dataset), 4)
    assert set(transitions.action.tolist()) == {0, 1}
    assert (transitions.reward == 1).all()
    ends = np.cumsum(dataset.episode_lengths)
    assert ends[-1] == len(dataset)
    assert quick_settings.random_steps in ends  # training begins with a new episode
    assert (ends > quick_settings.random_steps).sum() == quick_settings.episodes
    trained = dataset.episode_returns[-quick_settings.episodes :]
    assert dataset.provenance["mean_return"] == dataset.provenance["last_return"] == trained.mean()
    assert dataset.provenance["seed"] == 0
    assert dataclasses.asdict(quick_settings).items() <= dataset.provenance.items()


def test_next_observations_are_those_of_the_next_row(quick_settings):
    dataset = built_quickly(f"{NAME}-s0", quick_settings)
    last = np.zeros(len(dataset), bool)
    last[np.cumsum(dataset.episode_lengths) - 1] = True
    follows = (dataset.transitions.next_obs[:-1] == dataset.transitions.obs[1:]).all(-1).numpy()
    np.testing.assert_array_equal(follows, ~last[:-1])
    assert not dataset.transitions.terminated[torch.from_numpy(~last)].any()


def test_termination_and_truncation_are_stored_separately(acrobot):
    ends = np.cumsum(acrobot.episode_lengths)
    cut = ends[acrobot.episode_lengths == 500] - 1
    assert len(cut)
    np.testing.assert_array_equal(acrobot.truncated, cut)
    assert not acrobot.transitions.terminated[torch.from_numpy(cut)].any()
    stored = [
        episode for episode, *_ in minari_store.episodes(built_datasets.path("acrobot-medium-replay-s0"))
    ]
    np.testing.assert_array_equal(
        np.flatnonzero(np.concatenate([episode.truncations for episode in stored])), cut
    )
    np.testing.assert_array_equal(
        np.concatenate([episode.terminations for episode in stored]), acrobot.transitions.terminated
    )


def test_episode_cut_when_training_starts_is_neither_terminated_nor_truncated(acrobot):
    last = 1_200 - 1  # of the random steps
    assert last + 1 in np.cumsum(acrobot.episode_lengths)
    assert not acrobot.transitions.terminated[last]
    assert last not in acrobot.truncated


def test_oldest_transitions_are_overwritten(quick_settings, monkeypatch):
    monkeypatch.setattr(discrete, "EPSILON", (1.0, 1.0))  # what is learned from the buffer changes no action
    whole = collect(f"{NAME}-s0", quick_settings)
    assert len(whole.rows) > 100
    for kept in (len(whole.rows) - 60, 50):  # with some of the random steps, and without
        part = collect(f"{NAME}-s0", dataclasses.replace(quick_settings, transitions=kept))
        np.testing.assert_array_equal(part.rows, whole.rows[-kept:])
        gone = len(whole.rows) - kept
        np.testing.assert_array_equal(part.ends, whole.ends[whole.ends > gone] - gone)
        assert part.returns == whole.returns


@pytest.mark.parametrize("random_steps", [0, 1, 200])
def test_one_update_per_step_after_the_random_steps(quick_settings, monkeypatch, random_steps):
    shares, updates = [], []
    explore, update = QLearner.explore, QLearner.update

    def counted_explore(self, obs, epsilon, generators):
        shares.append(epsilon)
        return explore(self, obs, epsilon, generators)

    def counted_update(self, batch):
        updates.append(len(shares))
        return update(self, batch)

    monkeypatch.setattr(QLearner, "explore", counted_explore)
    monkeypatch.setattr(QLearner, "update", counted_update)
    settings = dataclasses.replace(
        quick_settings, random_steps=random_steps, epsilon_steps=25, transitions=10_000
    )
    collected = collect(f"{NAME}-s0", settings)
    steps = len(collected.rows) - random_steps
    assert updates == list(range(1, steps + 1))  # after each step
    assert len(collected.returns) == settings.episodes
    assert sum(collected.returns) == steps  # a reward of 1 for each step
    expected = [max(0.01, 1 - 0.99 * i / settings.epsilon_steps) for i in range(steps)]
    assert steps > settings.epsilon_steps
    np.testing.assert_allclose(shares, expected)


@pytest.mark.parametrize(("epsilon", "least", "most"), [(0.0, 0, 0), (0.5, 400, 600), (1.0, 850, 1_150)])
def test_epsilon_is_the_probability_of_a_random_action(cartpole, epsilon, least, most):
    generators = seeded(0)
    agent = discrete.DQN.agent(cartpole, generators)
    obs = torch.randn(1, 2_000, 4, generator=torch.Generator().manual_seed(1))
    changed = (agent.explore(obs, epsilon, generators) != agent.act(obs)).sum()
    assert least <= changed <= most  # one in two random actions is the greedy one


def test_medium_replay_is_td_without_a_target_network():
    replay, medium = discrete.AGENTS["replay"], discrete.AGENTS["medium-replay"]
    assert (replay.tau, medium.tau) == (0.02, None)
    assert dataclasses.replace(medium, tau=replay.tau) == replay
    for name in built_datasets.FAMILIES:
        assert discrete.kind_of(f"{name}-s3") == ("medium-replay" if "medium" in name else "replay")


def test_default_settings():
    assert (
        default_settings("cartpole-replay")
        == default_settings("acrobot-medium-replay-s12")
        == ReplaySettings()
    )
    small = default_settings("cartpole-replay-small")
    assert small == default_settings("cartpole-replay-small-s1")
    assert small.transitions < ReplaySettings().transitions


@pytest.mark.parametrize(
    ("field", "value"), [("random_steps", -1), ("episodes", 0), ("epsilon_steps", 0), ("transitions", 0)]
)
def test_settings_refuse_small_values(field, value):
    with pytest.raises(UserError, match=f"{field} must be at least {value + 1}, not {value}"):
        ReplaySettings(**{field: value})


def test_family_has_one_member_per_seed(quick_settings):
    first, second = build_discrete([NAME], lambda name: quick_settings, seeds=2, workers=1, quiet=True)
    assert (first.name, second.name) == (f"{NAME}-s0", f"{NAME}-s1")
    assert first.sha256 != second.sha256
    assert [dataset.provenance["seed"] for dataset in (first, second)] == [0, 1]
    assert load(NAME).sha256 == load(f"{NAME}-s0").sha256 == first.sha256
    assert load(NAME).name == first.name
    assert load(f"{NAME}-s1").sha256 == second.sha256
    with pytest.raises(DatasetNotFound, match=f"{NAME}-s2 is not built yet.*datasets build {NAME}-s2"):
        load(f"{NAME}-s2")


def test_only_missing_members_are_built(quick_settings, monkeypatch):
    asked = []
    monkeypatch.setattr(
        discrete, "build", lambda name, *rest, build=build: asked.append(name) or build(name, *rest)
    )

    def build_all(names, **more):
        return build_discrete(names, lambda name: quick_settings, workers=1, quiet=True, **more)

    assert [dataset.name for dataset in build_all([f"{NAME}-s1", NAME], seeds=2)] == [
        f"{NAME}-s1",
        f"{NAME}-s0",
    ]
    assert asked == [f"{NAME}-s1", f"{NAME}-s0"]
    build_all([NAME], seeds=2)
    assert len(asked) == 2
    build_all([NAME], seeds=3)
    assert asked[2:] == [f"{NAME}-s2"]
    build_all([f"{NAME}-s1"], force=True)
    assert asked[3:] == [f"{NAME}-s1"]


def test_time_is_announced_before_building(quick_settings, capsys):
    build_discrete([NAME], lambda name: quick_settings, seeds=2, workers=1)
    announced = rf"{NAME}: 2 datasets take at most \d+ s, 1 at a time \(measured: [\d,]+ updates/s\)"
    assert re.match(announced, capsys.readouterr().err.lstrip())
    build_discrete([NAME], lambda name: quick_settings, seeds=2, workers=1)
    assert capsys.readouterr().err == ""


def test_members_of_names():
    assert members_of(["cartpole-replay", "acrobot-replay-s7", "cartpole-replay-s1"], 2) == [
        "cartpole-replay-s0",
        "cartpole-replay-s1",
        "acrobot-replay-s7",
    ]
    assert len(members_of(["cartpole-replay"])) == built_datasets.DEFAULT_SEEDS
    with pytest.raises(UserError, match="--seeds must be at least 1, not 0"):
        members_of(["cartpole-replay"], 0)


def test_parallel_build_gives_the_same_bytes(monkeypatch, tmp_path):
    settings = ReplaySettings(random_steps=100, episodes=2, epsilon_steps=50, transitions=200)
    hashes = []
    for workers in (1, 2):
        monkeypatch.setenv("OFFLINE_GNTD_HOME", str(tmp_path / str(workers)))
        members = build_discrete([NAME], lambda name: settings, seeds=2, workers=workers, quiet=True)
        hashes.append([dataset.sha256 for dataset in members])
    assert hashes[0] == hashes[1]


def test_minari_and_cache_have_the_same_rows(small_dataset, monkeypatch, home):
    import minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(home / "datasets" / "minari"))
    stored = minari.load_dataset(f"{NAME}-s0-v0")
    episodes = list(stored.iterate_episodes())
    transitions = small_dataset.transitions
    np.testing.assert_array_equal(np.concatenate([e.observations[:-1] for e in episodes]), transitions.obs)
    np.testing.assert_array_equal(
        np.concatenate([e.observations[1:] for e in episodes]), transitions.next_obs
    )
    np.testing.assert_array_equal(np.concatenate([e.actions for e in episodes]), transitions.action)
    np.testing.assert_array_equal(np.concatenate([e.terminations for e in episodes]), transitions.terminated)
    assert [len(e.rewards) for e in episodes] == small_dataset.episode_lengths.tolist()
    assert [e.rewards.sum() for e in episodes] == small_dataset.episode_returns.tolist()
    metadata = stored.storage.metadata
    assert metadata["ref_min_score"] == small_dataset.task.reference_min
    assert metadata["ref_max_score"] == small_dataset.task.reference_max
    assert json.loads(metadata[minari_store.NOTES_KEY]) == small_dataset.provenance


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "no description", "episodes"])
def test_damaged_cache_of_a_built_dataset_is_rebuilt(small_dataset, damage):
    folder = cache.folder(f"{NAME}-s0")
    whole = {name: (folder / name).read_bytes() for name in ("rows.npy", "episodes.npy")}
    content = bytearray(whole["rows.npy"])
    if damage == "truncate":
        (folder / "rows.npy").write_bytes(content[:-100])
    elif damage == "flip":
        content[-50] ^= 0xFF
        (folder / "rows.npy").write_bytes(content)
    elif damage == "remove":
        (folder / "rows.npy").unlink()
    elif damage == "episodes":
        np.save(folder / "episodes.npy", np.ones((3, 3)))
    else:
        (folder / "dataset.json").write_text("{")
    assert load(NAME).sha256 == small_dataset.sha256
    assert {name: (folder / name).read_bytes() for name in whole} == whole


def test_interrupted_build_leaves_no_files(quick_settings, monkeypatch, home):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("minari.create_dataset_from_buffers", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build(f"{NAME}-s0", quick_settings, quiet=True)
    assert not [path for path in home.rglob("*") if path.is_file()]
    assert len(built_quickly(f"{NAME}-s0", quick_settings))


def test_build_with_other_options_refuses_without_force(quick_settings):
    def build_again(settings, **more):
        return build_discrete([NAME], lambda name: settings, seeds=1, workers=1, quiet=True, **more)[0]

    before = build_again(quick_settings)
    other = dataclasses.replace(quick_settings, episodes=2, transitions=150)
    with pytest.raises(UserError) as refused:
        build_again(other)
    assert str(refused.value) == (
        f"{NAME}-s0 was built with --set episodes=4 --transitions 400, "
        "not --set episodes=2 --transitions 150; --force builds it again"
    )
    assert load(NAME).sha256 == before.sha256
    forced = build_again(other, force=True)
    assert len(forced) == len(load(NAME)) == 150
    assert load(NAME).sha256 == forced.sha256 != before.sha256


def test_stored_command_repeats_the_dataset(small_dataset):
    assert small_dataset.provenance["command"] == (
        f"offline-gntd datasets build {NAME}-s0 --set random_steps=200 --set episodes=4 "
        "--set epsilon_steps=50 --transitions 400"
    )


def test_names():
    assert (
        built_datasets.family_of("cartpole-replay-s3")
        == built_datasets.family_of("cartpole-replay")
        == "cartpole-replay"
    )
    assert built_datasets.family_of(f"{NAME}-s10") == NAME
    for name in ("hopper-medium-local", "cartpole-replay-s01", "cartpole-replay-s-1", "cartpole-replay-s"):
        assert built_datasets.family_of(name) is None
    assert built_datasets.member("cartpole-replay", 3) == "cartpole-replay-s3"
    assert built_datasets.member("cartpole-replay-s3", 1) == "cartpole-replay-s3"
    assert built_datasets.is_name("acrobot-replay-s12")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cartpole-repaly", "did you mean 'cartpole-replay'"),
        ("cartpole-replay-s01", "did you mean 'cartpole-replay'"),
        ("acrobot-replay", "acrobot-replay-s0 is not built yet.*datasets build acrobot-replay"),
        ("acrobot-replay-s4", "datasets build acrobot-replay-s4$"),
    ],
)
def test_names_that_cannot_be_loaded(name, reason):
    with pytest.raises(UserError, match=reason) as refused:
        load(name)
    assert isinstance(refused.value, DatasetNotFound) == name.startswith("acrobot")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cartpole-repaly", "did you mean 'cartpole-replay'"),
        ("hopper-medium-v2", "cannot be built; download it"),
        (f"{NAME}-s{2**63}", r"must be less than 2\*\*63"),
    ],
)
def test_names_that_cannot_be_built(name, reason, quick_settings):
    with pytest.raises(UserError, match=reason):
        build_discrete([name], lambda name: quick_settings, workers=1, quiet=True)


def test_workers_must_be_positive():
    with pytest.raises(UserError, match="--workers must be at least 1, not 0"):
        build_discrete([NAME], workers=0)


@pytest.mark.parametrize("timeouts_terminal", [False, True])
def test_timeouts_terminal_changes_batches_only(acrobot, timeouts_terminal):
    before = acrobot.rows.clone()
    batches = ReplayBatches([acrobot, acrobot], 64, seeded(0, 1), timeouts_terminal)
    expected = before.clone()
    if timeouts_terminal:
        expected[torch.from_numpy(acrobot.truncated), -1] = 1
    assert torch.equal(batches.rows, expected)
    assert torch.equal(batches.transitions[1].terminated, expected[:, -1])
    assert torch.equal(acrobot.rows, before)  # the dataset stays as it is
    assert (batches.rows.data_ptr() == acrobot.rows.data_ptr()) == (not timeouts_terminal)


def test_each_seed_draws_from_its_dataset(small_dataset):
    datasets = [small_dataset, load(f"{NAME}-s1"), small_dataset]
    batches = ReplayBatches(datasets, 2_000, seeded(0, 1, 2))
    batch = batches.batch(None)
    for i, dataset in enumerate(datasets):
        drawn = {tuple(row) for row in torch.cat([batch.obs[i], batch.next_obs[i]], -1).tolist()}
        here = torch.cat([dataset.rows[:, OBS], dataset.rows[:, NEXT_OBS]], -1)
        whole = {tuple(row) for row in here.tolist()}
        assert drawn <= whole
        assert len(drawn) > 0.9 * len(whole)  # the first and the last rows too
        np.testing.assert_array_equal(batches.statistics[0][i, 0], dataset.obs_mean)
        np.testing.assert_array_equal(batches.statistics[1][i, 0], dataset.obs_std)
        assert torch.equal(batches.transitions[i].obs, dataset.transitions.obs)
    assert len(batches.rows) == len(datasets[0]) + len(datasets[1])  # a shared set is stored once


def test_draws_of_a_seed_do_not_depend_on_other_seeds(small_dataset):
    other = load(f"{NAME}-s1")
    alone = ReplayBatches([other], 32, seeded(1)).batch(None)
    beside = ReplayBatches([small_dataset, other], 32, seeded(0, 1)).batch(None)
    for one, both in zip(alone, beside, strict=True):
        assert torch.equal(one[0], both[1])
