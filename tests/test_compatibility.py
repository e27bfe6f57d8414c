"""What cannot be learned from is refused before anything runs."""

import dataclasses

import numpy as np
import pytest

from offline_gntd.algorithms import preset
from offline_gntd.datasets import load
from offline_gntd.errors import UserError
from offline_gntd.experiments.training import check_compatible


def hopper(actions=0.5, env="hopper", obs_dim=11, action_dim=3):
    rng = np.random.default_rng(0)
    return load(
        {
            "observations": rng.normal(size=(20, obs_dim)).astype(np.float32),
            "actions": np.full((20, action_dim), actions, np.float32),
            "rewards": rng.normal(size=20).astype(np.float32),
            "terminals": np.zeros(20, bool),
            "timeouts": np.zeros(20, bool),
        },
        env=env,
    )


def check(algorithm, dataset):
    check_compatible(preset(algorithm).config, dataset)


def test_a_sound_dataset_passes():
    check("td3_bc", hopper())
    check("td3_bc", hopper(actions=1.0))


def test_the_wrong_kind_of_actions():
    with pytest.raises(UserError, match="discrete"):
        check("dqn", hopper())


def test_actions_beyond_the_environment_s_range():
    with pytest.raises(UserError, match=r"reach 1\.5, beyond the range of Hopper-v4"):
        check("td3_bc", hopper(actions=1.5))


def test_actions_of_another_range_are_scaled():
    dataset = hopper(actions=2.0, env="Pendulum-v1", obs_dim=3, action_dim=1)
    assert (dataset.transitions.action == 1).all()
    check("bc", dataset)
    with pytest.raises(UserError, match=r"reach 1\.25, beyond the range of Pendulum-v1, scaled to"):
        check("bc", hopper(actions=2.5, env="Pendulum-v1", obs_dim=3, action_dim=1))


def test_data_of_another_range_than_the_environment():
    dataset = hopper()
    dataset = dataclasses.replace(
        dataset, task=dataclasses.replace(dataset.task, action_range=[[-2.0], [3.0]])
    )
    with pytest.raises(
        UserError, match="Hopper-v4 takes actions from -1 to 1, dict is for actions from -2 to 3"
    ):
        check("bc", dataset)
