"""PG-TD and PG-GNTD against the formulas they are made of, by autograd."""

import copy
import dataclasses
import math

import pytest
import torch
from offline_gntd.algorithms.policy_iteration import PRESETS, PolicyIteration

from offline_gntd.nn.kfac import KFAC
from offline_gntd.nn.noise import normal
from offline_gntd.tasks import Task
from offline_gntd.transitions import Transitions

TASK = Task("Hopper-v5", 3, 2, False, 0.0, 1.0, "none")
SEEDS, BATCH = 2, 16


def generators():
    return [torch.Generator().manual_seed(seed) for seed in range(SEEDS)]


def batch():
    draw = torch.Generator().manual_seed(9)
    obs, next_obs = (torch.randn(SEEDS, BATCH, 3, generator=draw) for _ in range(2))
    action = torch.rand(SEEDS, BATCH, 2, generator=draw) * 2 - 1
    reward = torch.randn(SEEDS, BATCH, generator=draw)
    return Transitions(obs, action, reward, next_obs, (reward > 1).float())


def agent(**settings):
    return PolicyIteration(hidden_dims=(8,), batch_size=BATCH, **settings).agent(TASK, generators())


def future(made):
    """The generators as they are now, to draw the same noise from."""
    copies = [torch.Generator() for _ in made.generators]
    for copied, generator in zip(copies, made.generators, strict=True):
        copied.set_state(generator.get_state())
    return copies


def values(made, layers, x):
    for layer in layers[:-1]:
        x = (x @ layer[..., :-1, :] + layer[..., -1:, :]).relu()
    return x @ layers[-1][..., :-1, :] + layers[-1][..., -1:, :]


def test_an_evaluation_step_is_the_semi_gradient_without_entropy():
    made, data = agent(optimiser="plain", critic_learning_rate=0.1), batch()
    before = made.critic.network.flat.clone()
    leaf = before.clone().requires_grad_()
    noise = normal(future(made), BATCH, 2)
    mean, log_std = made.policy.network(data.next_obs).chunk(2, -1)
    next_action = (mean + log_std.exp() * noise).tanh()
    next_value = made.critic.network(torch.cat([data.next_obs, next_action], -1))[..., 0]
    target = data.reward + 0.99 * (1 - data.terminated) * next_value
    value = values(made, made.critic.network.views(leaf), torch.cat([data.obs, data.action], -1))[..., 0]
    (value - target).square().mean(-1).sum().div(2).backward()
    made._evaluate(data)
    torch.testing.assert_close(made.critic.network.flat, before - 0.1 * leaf.grad)


def test_the_ascent_step_follows_value_and_entropy():
    made, data = agent(entropy_weight=0.3), batch()
    leaf = made.policy.network.flat.clone().requires_grad_()
    noise = normal(future(made), BATCH, 2)
    mean, log_std = values(made, made.policy.network.views(leaf), data.obs).chunk(2, -1)
    u = mean + log_std.exp() * noise
    log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    log_density = (log_normal - (1 - u.tanh().square()).log()).sum(-1)
    value = made.critic.network(torch.cat([data.obs, u.tanh()], -1))[..., 0]
    (-(value - 0.3 * log_density)).mean(-1).sum().backward()
    entropy = made._improve(data.obs)
    torch.testing.assert_close(made.policy.flat_step, leaf.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(entropy, -log_density.detach(), rtol=1e-4, atol=1e-4)


def test_the_critic_steps_as_often_as_it_says_and_the_policy_once():
    made = agent(evaluation_steps=7)
    made.update(batch())
    assert int(made.critic.optimiser.count) == 7
    assert int(made.policy.optimiser.count) == 1


@pytest.mark.parametrize("kfac", [None, KFAC()])
def test_a_round_continues_from_its_tensors(kfac):
    one, other = agent(kfac=kfac), agent(kfac=kfac)
    one.update(batch())
    for name, tensor in other.state_dict().items():
        tensor.copy_(one.state_dict()[name])
    for mine, theirs in zip(other.generators, future(one), strict=True):
        mine.set_state(theirs.get_state())
    for made in (one, other):
        made.update(copy.deepcopy(batch()))
    for name, tensor in other.state_dict().items():
        assert torch.equal(tensor, one.state_dict()[name]), name


def test_the_presets_differ_by_the_gauss_newton_step_alone():
    td, gntd = PRESETS["pg_td"].config, PRESETS["pg_gntd"].config
    assert gntd.kfac.damping == 0.25
    assert dataclasses.replace(gntd, kfac=None) == td
    assert td.critic_learning_rate == 3e-4
    assert td.evaluation_steps == 25
