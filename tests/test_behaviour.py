"""Extending a D4RL file with the policy stored in it: the policy is read exactly, and no row is lost."""

import numpy as np
import pytest
import torch
from d4rl_files import arrays, read, write

from offline_gntd.cli import main
from offline_gntd.collection.extend import Behaviour, extend, policy_in
from offline_gntd.datasets import hdf5, load
from offline_gntd.datasets.check import check
from offline_gntd.errors import UserError
from offline_gntd.nn.policies import LOG_STD_RANGE, Gaussian
from offline_gntd.tasks import LOCOMOTION

HOPPER = LOCOMOTION["hopper"].task()


def policy_arrays(obs_dim=11, action_dim=3, hidden=(8, 5), seed=0):
    """metadata/policy/… as D4RL's files have it."""
    rng = np.random.default_rng(seed)
    names = [f"fc{i}" for i in range(len(hidden))]
    found = {"nonlinearity": np.bytes_(b"relu"), "output_distribution": np.bytes_(b"tanh_gaussian")}
    widths = [obs_dim, *hidden]
    shapes = dict(zip(names, zip(hidden, widths, strict=False), strict=True))
    shapes |= {name: (action_dim, hidden[-1]) for name in ("last_fc", "last_fc_log_std")}
    for name, shape in shapes.items():
        found[f"{name}/weight"] = 0.3 * rng.standard_normal(shape).astype(np.float32)
        found[f"{name}/bias"] = 0.3 * rng.standard_normal(shape[0]).astype(np.float32)
    return {f"metadata/policy/{key}": value for key, value in found.items()}


@pytest.fixture
def file(tmp_path):
    data = arrays("v2", "hopper", ends=((30, "terminal"), (70, "timeout")))  # open at its end
    del data["metadata/policy/fc0/weight"]
    return write(tmp_path / "hopper_mine.hdf5", data | policy_arrays())


def test_stored_policy_is_read_correctly(file):
    stored = policy_arrays()
    with hdf5.reading(file) as columns:
        network = policy_in(columns, HOPPER, "it")
    obs = np.random.default_rng(1).standard_normal((4, 11)).astype(np.float32)
    x = obs
    weights = {key.removeprefix("metadata/policy/"): value for key, value in stored.items()}
    for name in ("fc0", "fc1"):
        x = np.maximum(x @ weights[f"{name}/weight"].T + weights[f"{name}/bias"], 0)
    mean, log_std = (
        x @ weights[f"{name}/weight"].T + weights[f"{name}/bias"] for name in ("last_fc", "last_fc_log_std")
    )
    output = network(torch.from_numpy(obs)[None])
    np.testing.assert_allclose(output[0], np.concatenate([mean, log_std], 1), rtol=1e-5, atol=1e-6)
    act = Behaviour(network, 0)
    drawn = act(torch.from_numpy(np.tile(obs, (3_000, 1)))[None])[0].view(3_000, 4, 3)
    u = np.arctanh(drawn.numpy().clip(-0.9999, 0.9999))
    np.testing.assert_allclose(np.median(u, axis=0), mean, atol=0.15)


def test_extend_appends_rows(file, home, capsys):
    before = file.read_bytes()
    assert main(["datasets", "extend", str(file), "--transitions", "55"]) == 0
    path = capsys.readouterr().out.strip()
    assert path == str(home / "datasets" / "extended" / "hopper_mine-extended.hdf5")
    assert file.read_bytes() == before
    old, new = read(file), read(path)
    for key in ("observations", "actions", "rewards", "next_observations", "terminals"):
        assert len(new[key]) == 155
        assert new[key].dtype == old[key].dtype
        np.testing.assert_array_equal(new[key][:100], old[key])
    assert np.flatnonzero(new["timeouts"][:100]).tolist() == [69, 99]  # where the file ended, an episode does
    assert new["timeouts"][-1] | new["terminals"][-1]
    for key in policy_arrays():
        np.testing.assert_array_equal(new[key], old[key])
    extended = load(path)
    assert extended.task == HOPPER
    assert "55 steps more of the policy stored in hopper_mine.hdf5" in extended.provenance["level"]
    assert not [f for f in check(path).findings if f.level == "error" or f.what == "cross-episode"]
    assert np.abs(new["actions"][100:]).max() <= 1
    assert len(np.unique(new["observations"][100:], axis=0)) == 55


def test_same_seed_gives_the_same_rows(file):
    sums = [load(extend(file, 40, seed, replace=True, quiet=True)).sha256 for seed in (0, 0, 1)]
    assert sums[0] == sums[1] != sums[2]


def changed(**changes):
    return {f"metadata/policy/{key.replace('__', '/')}": value for key, value in changes.items()}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (changed(nonlinearity=np.bytes_(b"tanh")), "nonlinearity is 'tanh'"),
        (changed(output_distribution=np.bytes_(b"gaussian")), "output_distribution is 'gaussian'"),
        (changed(nonlinearity=None), "lacks metadata/policy/nonlinearity"),
        (changed(last_fc__bias=None), "'last_fc' of its policy is incomplete"),
        (changed(fc1__weight=np.zeros((5, 7), np.float32)), "do not fit Hopper-v4"),
        (changed(fc0__weight=np.zeros((8, 17), np.float32)), "do not fit Hopper-v4"),
        (changed(fc0__bias=np.full(8, np.nan, np.float32)), "not a finite matrix"),
        (changed(last_fc_log_std__weight=np.zeros((2, 5), np.float32)), "incomplete"),
    ],
)
def test_unsupported_policy_is_one_line(changes, words, tmp_path, home, capsys):
    data = arrays("v2", "hopper") | policy_arrays() | changes
    path = write(tmp_path / "hopper.hdf5", {key: value for key, value in data.items() if value is not None})
    assert main(["datasets", "extend", str(path), "--transitions", "5"]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (home / "datasets" / "extended").exists()


def test_bad_requests(file, tmp_path, home):
    without = write(tmp_path / "hopper_replay.hdf5", arrays("v1-replay", "hopper"))
    with pytest.raises(UserError, match="stores no policy"):
        extend(without, 5)
    with pytest.raises(UserError, match="--transitions must be at least 1, not 0"):
        extend(file, 0)
    with pytest.raises(UserError, match="--seed must be at least 0"):
        extend(file, 5, seed=-1)
    with pytest.raises(UserError, match="not a file in D4RL's layout"):
        extend("hopper-medium-local")
    extend(file, 5, quiet=True)
    with pytest.raises(UserError, match="--force replaces it"):
        extend(file, 5, quiet=True)


@pytest.mark.parametrize("body", LOCOMOTION)
def test_log_probabilities_match_those_recorded_by_d4rl(shared, body):
    path = shared / "d4rl" / "excerpts" / f"{body}_medium-v2.hdf5"
    task = LOCOMOTION[body].task()
    with hdf5.reading(path) as columns:
        network = policy_in(columns, task, str(path))
        obs, action = (torch.from_numpy(columns[key][:]) for key in ("observations", "actions"))
        recorded = columns["infos/action_log_probs"][:]
    inside = (action.abs() < 0.99).all(1)  # nearer to the edge the action before tanh is rounded away
    policy = Gaussian.of(network(obs[None]))
    std = policy.log_std.clamp(*LOG_STD_RANGE).exp()
    u = action.atanh()
    normal = torch.distributions.Normal(policy.mean[0], std[0]).log_prob(u)
    found = (normal - (1 - action.square()).log()).sum(1)
    assert inside.sum() > 20
    np.testing.assert_allclose(found[inside], recorded[inside], atol=0.05)
