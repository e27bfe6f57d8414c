"""Tests of every continuous preset, and settings that are refused."""

import dataclasses

import plain
import pytest
import torch
from conftest import seeded

from offline_gntd.algorithms import CATALOGUE, preset
from offline_gntd.errors import UserError

CONTINUOUS = [name for name, preset in CATALOGUE.items() if not preset.config.discrete]
SAMPLED = plain.rows()


def config_of(name):
    changes = {"warm_up": 2, "samples": 4} if hasattr(CATALOGUE[name].config, "warm_up") else {}
    return plain.small(CATALOGUE[name].config, **changes)


def train(agent, config, generators, updates):
    for _ in range(updates):
        seen = agent.update(plain.sample(SAMPLED, config.batch_size, generators))
    return {name: values.reshape(len(values), -1).mean(1) for name, values in seen.items()}


def made(config, *seeds):
    generators = seeded(*seeds)
    return config.agent(plain.TASK, generators, plain.statistics(SAMPLED)), generators


@pytest.mark.parametrize("name", CONTINUOUS)
def test_every_preset_trains_acts_and_measures(name):
    config = config_of(name)
    agent, generators = made(config, 0, 1)
    metrics = train(agent, config, generators, 3) | agent.measure([plain.from_rows(SAMPLED, plain.TASK)] * 2)
    assert all(values.shape == (2,) and values.isfinite().all() for values in metrics.values())
    if name != "bc":
        assert {"loss", "value", "largest_value"} <= set(metrics)
        assert ("bellman_error" in metrics) == (not getattr(config, "online", False))
    assert ("kfac_step_ratio" in metrics) == (getattr(config, "kfac", None) is not None)
    actions = agent.act(SAMPLED[:10, : plain.TASK.obs_dim].expand(2, -1, -1))
    assert actions.shape == (2, 10, plain.TASK.action_dim)
    assert actions.abs().max() <= 1
    assert all(tensor.dim() == 0 or len(tensor) == 2 for tensor in agent.state_dict().values())


@pytest.mark.parametrize("name", CONTINUOUS)
def test_stacked_seeds_equal_each_seed_alone(name):
    config = config_of(name)

    def trained(*seeds):
        agent, generators = made(config, *seeds)
        train(agent, config, generators, 5)
        return agent.state_dict()

    stacked = trained(3, 4, 5)
    for i, seed in enumerate((3, 4, 5)):
        for key, alone in trained(seed).items():
            both = stacked[key] if alone.dim() == 0 else stacked[key][i]
            torch.testing.assert_close(
                both, alone if alone.dim() == 0 else alone[0], rtol=1e-5, atol=1e-6, msg=key
            )


@pytest.mark.parametrize("name", CONTINUOUS)
def test_a_restored_state_continues_exactly(name):
    config = config_of(name)
    whole, generators = made(config, 0, 1)
    train(whole, config, generators, 3)
    state = {key: tensor.clone() for key, tensor in whole.state_dict().items()}
    # statistics are part of the state: the second agent is given none
    again_generators = seeded(7, 8)
    again = config.agent(plain.TASK, again_generators)
    for key, tensor in again.state_dict().items():
        tensor.copy_(state[key])
    for old, new in zip(generators, again_generators, strict=True):
        new.set_state(old.get_state())
    obs = SAMPLED[:10, : plain.TASK.obs_dim].expand(2, -1, -1)
    assert torch.equal(whole.act(obs), again.act(obs))
    train(whole, config, generators, 4)
    train(again, config, again_generators, 4)
    for key, tensor in again.state_dict().items():
        assert torch.equal(tensor, whole.state_dict()[key]), key


@pytest.mark.parametrize("name", CONTINUOUS)
def test_a_seed_with_nan_does_not_affect_the_others(name):
    config = config_of(name)

    def trained(spoil):
        agent, generators = made(config, 0, 1)
        for _ in range(4):
            batch = plain.sample(SAMPLED, config.batch_size, generators)
            if spoil:
                batch.obs[0] = torch.nan
            agent.update(batch)
        return agent.state_dict()

    spoiled, sound = trained(True), trained(False)
    for key, tensor in sound.items():
        if tensor.dim():
            assert torch.equal(spoiled[key][1], tensor[1]), key


@pytest.mark.parametrize("name", [name for name in CONTINUOUS if "rebrac" not in name])
def test_bfloat16_updates_are_near_float32_and_keep_a_float32_state(name):
    metrics = []
    for precision in ("float32", "bfloat16"):
        config = dataclasses.replace(config_of(name), precision=precision)
        agent, generators = made(config, 0, 1)
        metrics.append(train(agent, config, generators, 5))
        assert all(x.dtype in (torch.float32, torch.int64) for x in agent.state_dict().values())
    torch.testing.assert_close(metrics[1]["loss"], metrics[0]["loss"], rtol=0.03, atol=0)
    assert not torch.equal(metrics[1]["loss"], metrics[0]["loss"])


@pytest.mark.parametrize("name", ["rebrac", "gn_rebrac"])
def test_rebrac_has_float32_only(name):
    with pytest.raises(UserError, match="precision must be one of float32"):
        preset(f"{name}@precision=bfloat16")


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_other_kind_of_actions_is_refused(name):
    task = dataclasses.replace(plain.TASK, discrete=not CATALOGUE[name].config.discrete)
    with pytest.raises(UserError, match="actions, but HalfCheetah-v5 has"):
        CATALOGUE[name].config.agent(task, seeded(0))


@pytest.mark.parametrize(
    "setting",
    [
        "batch_size=0",
        "hidden_dims=0x4",
        "discount=1",
        "critic_optimiser.kind=sgd",
        "policy_freq=0",
        "discrete=true",
    ],
)
def test_illegal_settings_are_refused(setting):
    with pytest.raises(UserError):
        preset(f"td3_bc@{setting}")


def test_every_critic_has_the_field_kfac():
    for name in ("td3_bc", "bcq", "cql", "iql", "rebrac"):
        assert preset(f"{name}@kfac.damping=1").config.kfac.damping == 1
    assert preset("gntd3_bc_v01@kfac=none").config == CATALOGUE["td3_bc"].config


def test_largest_value_and_bellman_error_of_a_long_dataset_come_from_the_same_rows():
    data = plain.rows(40_000)
    agent, _ = made(config_of("td3_bc"), 0)
    batch = plain.from_rows(data, plain.TASK)
    every_third = type(batch)(*(column[::3] for column in batch))
    assert agent.measure([batch]) == agent.measure([every_third])
