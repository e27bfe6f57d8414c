"""Reading and writing Minari datasets, and lossless conversion of D4RL files."""

import json
import sys
from pathlib import Path

import gymnasium
import minari
import numpy as np
import pytest
from d4rl_files import AWKWARD, arrays, read, write
from minari.data_collector import EpisodeBuffer

from offline_gntd import extensions
from offline_gntd.cli import main
from offline_gntd.datasets import download, load, minari_store
from offline_gntd.datasets.check import check
from offline_gntd.datasets.download import fetch
from offline_gntd.datasets.loading import convert
from offline_gntd.errors import UserError
from offline_gntd.evaluation import Evaluator, make

pytestmark = pytest.mark.filterwarnings("ignore")


def collect(env_id: str, lengths=(12, 9), **options) -> list[EpisodeBuffer]:
    environment = gymnasium.make(env_id, **options)
    environment.action_space.seed(0)
    buffers = []
    for number, length in enumerate(lengths):
        observation, _ = environment.reset(seed=number)
        observations, actions, rewards, terminations = [observation], [], [], []
        for _ in range(length):
            action = environment.action_space.sample()
            observation, reward, terminated, _, _ = environment.step(action)
            observations.append(observation)
            actions.append(action)
            rewards.append(reward)
            terminations.append(terminated)
            if terminated:
                break
        truncations = np.zeros(len(rewards), bool)
        truncations[-1] = not terminations[-1]
        if isinstance(observation, dict):
            observations = {key: np.array([o[key] for o in observations]) for key in observation}
        buffers.append(
            EpisodeBuffer(number, number, None, observations, actions, rewards, terminations, truncations, {})
        )
    return buffers


def stored(identifier: str, env_id: str, **options) -> list[EpisodeBuffer]:
    """A dataset in the folder that Minari itself uses."""
    buffers = collect(env_id)
    minari.create_dataset_from_buffers(identifier, buffers, env=env_id, data_format="hdf5", **options)
    return buffers


def test_continuous_dataset(capsys):
    buffers = stored("mujoco/hopper/medium-v0", "Hopper-v5")
    dataset = load("mujoco/hopper/medium-v0")
    assert (dataset.name, dataset.origin, dataset.version) == ("mujoco-hopper-medium-v0", "minari", "v0")
    assert dataset.task.env_id == "Hopper-v5"
    assert "since the Minari dataset gives none" in dataset.task.reference_source
    np.testing.assert_array_equal(
        dataset.transitions.next_obs.numpy(),
        np.concatenate([np.array(b.observations[1:], np.float32) for b in buffers]),
    )
    np.testing.assert_array_equal(
        dataset.transitions.action.numpy(), np.concatenate([np.array(b.actions) for b in buffers])
    )
    np.testing.assert_allclose(dataset.episode_returns, [np.sum(b.rewards) for b in buffers])
    assert check("mujoco/hopper/medium-v0").verdict == "sound"
    assert main(["datasets", "show", "mujoco/hopper/medium-v0"]) == 0
    assert main(["datasets", "list"]) == 0
    assert "here  mujoco/hopper/medium-v0" in capsys.readouterr().out


def test_actions_of_another_range_are_scaled():
    buffers = stored("mujoco/invertedpendulum/medium-v0", "InvertedPendulum-v5")
    dataset = load("mujoco/invertedpendulum/medium-v0")
    actions = np.concatenate([b.actions for b in buffers])
    assert abs(actions).max() > 1  # the environment's range is [-3, 3]
    np.testing.assert_allclose(dataset.transitions.action.numpy(), actions / 3, rtol=1e-6)
    np.testing.assert_allclose(
        dataset.task.to_environment(dataset.transitions.action.numpy()), actions, rtol=1e-6
    )
    assert check("mujoco/invertedpendulum/medium-v0").verdict == "sound"
    converted = load(convert("mujoco/invertedpendulum/medium-v0", "d4rl"))
    assert (converted.rows[:3] == dataset.rows[:3]).all()

    environment, original = make("InvertedPendulum-v5"), gymnasium.make("InvertedPendulum-v5")
    for env in (environment, original):
        env.reset(seed=0)
    np.testing.assert_allclose(environment.step(np.ones(1))[0], original.step(np.full(1, 3.0))[0])


def nan_reward(buffers):
    buffers[1].rewards[3] = np.nan


def beyond_the_range(buffers):
    buffers[0].actions[2] = np.full(3, 2.0, np.float32)


def no_end(buffers):
    buffers[0].truncations[-1] = buffers[0].terminations[-1] = False


def end_inside(buffers):
    buffers[0].truncations[4] = True


@pytest.mark.parametrize(
    ("harm", "what", "exit_code"),
    [
        (nan_reward, "not-finite", 2),
        (beyond_the_range, "action-range", 1),
        (no_end, "no-end", 1),
        (end_inside, "end-inside", 1),
    ],
)
def test_fault_is_reported(harm, what, exit_code):
    buffers = collect("Hopper-v5")
    harm(buffers)
    minari.create_dataset_from_buffers("mine/harmed-v0", buffers, env="Hopper-v5", data_format="hdf5")
    report = check("mine/harmed-v0")
    assert what in {finding.what for finding in report.findings}
    assert report.exit_code == exit_code


def test_illegal_discrete_actions_are_reported():
    buffers = collect("CartPole-v1")
    buffers[0].actions[2] = 7
    minari.create_dataset_from_buffers("mine/harmed-v0", buffers, env="CartPole-v1", data_format="hdf5")
    report = check("mine/harmed-v0")
    assert "1 actions are not whole numbers from 0 to 1" in {f.message for f in report.findings}


def test_reference_scores_of_the_dataset_are_used():
    buffers = stored("mine/cartpole-v3", "CartPole-v1", ref_min_score=20.0, ref_max_score=500.0)
    dataset = load("mine/cartpole-v3")
    assert (dataset.task.reference_min, dataset.task.reference_max) == (20.0, 500.0)
    assert dataset.task.reference_source == "Minari"
    assert dataset.transitions.action.tolist() == [action for b in buffers for action in b.actions]
    assert dataset.version == "v3"


def test_observations_are_flattened_like_the_environment():
    options = {"observation_space": gymnasium.spaces.Discrete(16)}
    stored("mine/lake-v0", "FrozenLake-v1", **options)
    dataset = load("mine/lake-v0")
    environment = make("FrozenLake-v1")
    assert dataset.task.obs_dim == environment.observation_space.shape[0] == 16
    first, _ = environment.reset(seed=0)
    np.testing.assert_array_equal(dataset.transitions.obs[0].numpy(), first)


def test_changed_dataset_is_read_again(capsys):
    stored("mine/cartpole-v0", "CartPole-v1")
    before = load("mine/cartpole-v0")
    minari.load_dataset("mine/cartpole-v0").update_dataset_from_buffer(
        [
            EpisodeBuffer(
                None,
                None,
                None,
                *[
                    getattr(collect("CartPole-v1", (5,))[0], name)
                    for name in ("observations", "actions", "rewards", "terminations", "truncations", "infos")
                ],
            )
        ]
    )
    assert len(load("mine/cartpole-v0")) == len(before) + 5
    assert "another source" in capsys.readouterr().err


def test_wrong_number_of_observations_is_refused(tmp_path):
    buffers = collect("CartPole-v1")
    buffers[0].observations.pop()
    minari.create_dataset_from_buffers("mine/short-v0", buffers, env="CartPole-v1", data_format="hdf5")
    with pytest.raises(UserError, match="observations for"):
        load("mine/short-v0")
    assert check("mine/short-v0").exit_code == 2


def edit_metadata(identifier, **values):
    path = minari_store.find(identifier) / "data" / "metadata.json"
    metadata = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in metadata.items() if value is not None}))


@pytest.fixture
def hostile_set(tmp_path, monkeypatch):
    """A dataset with an environment of a module that must not be imported."""
    stored("mine/cartpole-v0", "CartPole-v1")
    spec = json.loads(
        json.loads((minari_store.find("mine/cartpole-v0") / "data/metadata.json").read_text())["env_spec"]
    )
    edit_metadata("mine/cartpole-v0", env_spec=json.dumps(spec | {"id": "hostile_module:Hostile-v0"}))
    text = "import gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
    text += "gymnasium.register('Hostile-v0', CartPoleEnv, max_episode_steps=500)\n"
    (tmp_path / "hostile_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield "mine/cartpole-v0"
    sys.modules.pop("hostile_module", None)
    gymnasium.registry.pop("Hostile-v0", None)


def test_env_spec_does_not_import_a_module(hostile_set, capsys):
    for verb in (["show"], ["convert", "--format", "d4rl"]):
        assert main(["datasets", verb[0], hostile_set, *verb[1:]]) == 2
        error = capsys.readouterr().err
        assert "--env hostile_module:Hostile-v0" in error
        assert error.count("\n") == 1
    assert check(hostile_set).exit_code == 2
    assert "hostile_module" not in sys.modules


def test_missing_spaces_do_not_import_a_module(hostile_set):
    edit_metadata(hostile_set, observation_space=None)
    with pytest.raises(UserError, match="lacks observation_space"):
        load(hostile_set, env="CartPole-v1")
    assert "hostile_module" not in sys.modules


def test_user_can_allow_the_module_of_an_env_spec(hostile_set, tmp_path, monkeypatch):
    assert load(hostile_set, env="hostile_module:Hostile-v0").task.env_id == "hostile_module:Hostile-v0"
    converted = convert(hostile_set, "d4rl", env="hostile_module:Hostile-v0")
    with pytest.raises(UserError, match="would import the Python module 'hostile_module'"):
        load(converted)
    monkeypatch.setenv(extensions.VARIABLE, "")
    (tmp_path / "trusted.py").write_text("import hostile_module\nDATASETS = {}\n")
    extensions.use(tmp_path / "trusted.py")
    assert load(hostile_set).task.env_id == load(converted).task.env_id == "Hostile-v0"


@pytest.mark.parametrize("key", [None, "env_spec", "offline_gntd", "observation_space"])
def test_metadata_of_100000_brackets_is_one_line(key, capsys):
    stored("mine/cartpole-v0", "CartPole-v1")
    if key is None:
        (minari_store.find("mine/cartpole-v0") / "data" / "metadata.json").write_text("[" * 100_000)
    else:
        edit_metadata("mine/cartpole-v0", **{key: "[" * 100_000})
    code = 0 if key == "offline_gntd" else 2  # notes that cannot be read are ignored
    for verb in ("show", "check"):
        assert main(["datasets", verb, "mine/cartpole-v0"]) == code
        assert capsys.readouterr().err.count("\n") == (1 if code and verb == "show" else 0)


@pytest.mark.parametrize("harm", ["metadata", "data", "json", "link"])
def test_damaged_dataset_is_one_line(tmp_path, harm, capsys):
    stored("mine/cartpole-v0", "CartPole-v1")
    data = minari_store.find("mine/cartpole-v0") / "data"
    if harm == "link":
        import h5py

        with h5py.File(data / "main_data.hdf5", "a") as file:
            del file["episode_0/rewards"]
            file["episode_0/rewards"] = h5py.ExternalLink("/etc/passwd", "/x")
    else:
        texts = {
            "metadata": ("metadata.json", "{"),
            "json": ("metadata.json", "[]"),
            "data": ("main_data.hdf5", "x"),
        }
        name, text = texts[harm]
        (data / name).write_text(text)
    assert main(["datasets", "show", "mine/cartpole-v0"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("ends", AWKWARD.values(), ids=AWKWARD)
@pytest.mark.parametrize("layout", ["v0", "v0-old", "v1-replay", "v2"])
def test_d4rl_file_survives_conversion_to_minari(tmp_path, layout, ends):
    data = arrays(layout, ends=ends)
    assert_round_trip(write(tmp_path / "hopper_medium.hdf5", data))


def assert_round_trip(path):
    identifier = convert(str(path), "minari")
    original, converted = load(path), load(identifier)
    assert converted.sha256 == original.sha256
    assert (converted.origin, converted.version, converted.task) == (
        original.origin,
        original.version,
        original.task,
    )
    np.testing.assert_array_equal(converted.episode_returns, original.episode_returns)
    before, after = read(path), read(convert(identifier, "d4rl"))
    assert set(before) == set(after)
    for key, value in before.items():
        assert np.asarray(value).dtype == np.asarray(after[key]).dtype, key
        assert np.shape(value) == np.shape(after[key]), key
        assert np.asarray(value).tobytes() == np.asarray(after[key]).tobytes(), key
    for episode in minari.MinariDataset(minari_store.find(identifier) / "data").iterate_episodes():
        assert len(episode.observations) == len(episode.rewards) + 1
        assert episode.terminations[-1] or episode.truncations[-1]


def test_d4rl_excerpts_survive_conversion_to_minari(shared):
    for file in sorted((shared / "d4rl" / "excerpts").glob("*.hdf5")):
        assert_round_trip(file)


def test_minari_dataset_as_d4rl_file(tmp_path):
    buffers = stored("mujoco/hopper/medium-v0", "Hopper-v5")
    path = convert("mujoco/hopper/medium-v0", "d4rl")
    data = read(path)
    np.testing.assert_array_equal(
        data["next_observations"], np.concatenate([np.array(b.observations[1:]) for b in buffers])
    )
    dataset = load(path)
    assert dataset.task.env_id == "Hopper-v5"  # noted in the file, not guessed from its name
    assert dataset.version is None
    assert len(dataset) == sum(len(b.rewards) - (not b.terminations[-1]) for b in buffers) - (
        1 if buffers[-1].terminations[-1] else 0
    )


def test_convert_does_not_overwrite(tmp_path, capsys):
    path = str(write(tmp_path / "hopper_x.hdf5", arrays()))
    assert main(["datasets", "convert", path, "--format", "minari"]) == 0
    assert capsys.readouterr().out.strip() == "d4rl-files/hopper_x-v0"
    assert main(["datasets", "convert", path, "--format", "minari"]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["datasets", "convert", path, "--format", "minari", "--force"]) == 0
    assert main(["datasets", "convert", path, "--format", "d4rl"]) == 2


def test_a_converted_file_keeps_its_d4rl_id_and_its_environment(tmp_path):
    path = write(tmp_path / "hopper_medium-v2.hdf5", arrays("v2", "hopper"))
    source = load(str(path))
    identifier = convert(str(path), "minari")
    assert load(identifier).d4rl_id == source.d4rl_id == "hopper-medium-v2"
    back = convert(identifier, "d4rl")
    Path(back).rename(tmp_path / "unnamed.hdf5")
    assert load(str(tmp_path / "unnamed.hdf5")).sha256 == source.sha256


def test_an_unnamed_file_gets_the_name_of_its_environment(tmp_path, capsys):
    path = write(tmp_path / "data.hdf5", arrays("v2", "hopper"))
    with pytest.raises(UserError, match=r"convert .*data.hdf5 --format d4rl --env ENV"):
        load(str(path))
    assert main(["datasets", "convert", str(path), "--format", "d4rl", "--env", "Hopper-v5"]) == 0
    written = capsys.readouterr().out.strip()
    dataset = load(written)
    assert dataset.task.env_id == "Hopper-v5"
    assert dataset.sha256 == load(str(path), env="Hopper-v5").sha256


def test_a_file_without_timeouts_keeps_its_episode_limit(tmp_path, capsys):
    ends = ((30, "terminal"), (80, "timeout"))
    path = write(tmp_path / "data.hdf5", arrays("v0-old", "hopper", ends))
    options = ["--format", "d4rl", "--env", "Hopper-v4", "--episode-limit", "50"]
    assert main(["datasets", "convert", str(path), *options]) == 0
    written = capsys.readouterr().out.strip()
    expected = load(str(path), env="Hopper-v4", episode_limit=50)
    assert load(written).sha256 == expected.sha256
    back = convert(convert(written, "minari"), "d4rl", replace=True)
    assert load(back).sha256 == expected.sha256


def test_an_env_without_a_version_is_refused(tmp_path):
    path = write(tmp_path / "data.hdf5", arrays("v2", "hopper"))
    with pytest.raises(UserError, match="--env takes"):
        load(str(path), env="Hopper")


def test_the_version_of_env_is_used_and_must_exist(tmp_path):
    path = write(tmp_path / "my_hopper.hdf5", arrays("v2", "hopper"))
    assert load(str(path)).task.env_id == "Hopper-v4"
    assert load(str(path), env="Hopper-v5").task.env_id == "Hopper-v5"
    for env in ("Hopper-v9", "Hopper-vfoo"):
        with pytest.raises(UserError, match=env):
            load(str(path), env=env)


def test_an_interrupted_download_is_not_there(home, monkeypatch):
    """Minari writes metadata.json first; here it stops after it, then succeeds."""
    monkeypatch.setattr(download, "MINARI_HOSTS", {"hf": None})

    def interrupted(minari_id):
        data = minari_store.user_root() / minari_id / "data"
        data.mkdir(parents=True)
        (data / "metadata.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(minari, "download_dataset", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch("mujoco/hopper/medium-v0")
    assert minari_store.find("mujoco/hopper/medium-v0") is None
    monkeypatch.setattr(minari, "download_dataset", lambda minari_id: stored(minari_id, "Hopper-v5"))
    fetch("mujoco/hopper/medium-v0")
    assert len(load("mujoco/hopper/medium-v0")) == 21


def test_minari_dataset_does_not_answer_to_a_d4rl_name(tmp_path):
    stored("hopper-medium-v2", "Hopper-v5")  # a Minari set under D4RL's name
    with pytest.raises(UserError, match="datasets fetch hopper-medium-v2"):
        load("hopper-medium-v2")


def test_built_dataset_is_stored_as_minari(monkeypatch):
    from offline_gntd.datasets import built_datasets

    rng = np.random.default_rng(0)
    rows = rng.standard_normal((40, 11)).astype(np.float32)
    rows[:, 4], rows[:, -1] = rng.integers(2, size=40), 0
    rows[:-1, 6:10] = rows[1:, :4]
    built_datasets.store("cartpole-replay-s0", rows, np.array([25, 40]), {"seed": 0}, {})
    dataset = load("cartpole-replay")
    assert (dataset.origin, dataset.name, len(dataset)) == ("built", "cartpole-replay-s0", 40)
    assert dataset.provenance["seed"] == 0
    np.testing.assert_array_equal(dataset.rows[:24].numpy(), rows[:24])
    assert dataset.episode_lengths.tolist() == [25, 15]
    metadata = json.loads((built_datasets.path("cartpole-replay-s0") / "data" / "metadata.json").read_text())
    assert metadata["dataset_id"] == "cartpole-replay-s0-v0"


def test_offline_error_is_one_line(monkeypatch):
    monkeypatch.setattr(download, "MINARI_HOSTS", {"hf": "http://127.0.0.1:9"})
    with pytest.raises(UserError, match=r"does not answer .* copy it"):
        fetch("mujoco/hopper/medium-v0")


def test_actions_are_clipped(capfd):
    import torch

    task = load(arrays("v2", "halfcheetah"), env="halfcheetah").task
    evaluator = Evaluator(task, [0], 1)
    returns = [
        evaluator.returns(lambda obs, size=size: torch.full((1, 1, 6), size), key=0)[0, 0]
        for size in (1.0, 50.0)
    ]
    evaluator.close()
    assert returns[0] == returns[1]
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""
