"""PG-TD and PG-GNTD against their formulas, by autograd."""

import dataclasses
import math

import pytest
import torch
from conftest import seeded

from offline_gntd.algorithms.policy_gradient import PRESETS, PolicyGradient
from offline_gntd.nn.kfac import KFAC
from offline_gntd.nn.optimisers import Optimiser
from offline_gntd.nn.policies import normal
from offline_gntd.tasks import Task
from offline_gntd.transitions import Transitions

TASK = Task("Hopper-v4", 3, 2, False, 0.0, 1.0, "none")
SEEDS, BATCH = 2, 16


def batch():
    draw = torch.Generator().manual_seed(9)
    obs, next_obs = (torch.randn(SEEDS, BATCH, 3, generator=draw) for _ in range(2))
    action = torch.rand(SEEDS, BATCH, 2, generator=draw) * 2 - 1
    reward = torch.randn(SEEDS, BATCH, generator=draw)
    return Transitions(obs, action, reward, next_obs, (reward > 1).float())


def agent(**settings):
    return PolicyGradient(hidden_dims=(8,), batch_size=BATCH, **settings).agent(TASK, seeded(*range(SEEDS)))


def copies(generators):
    """Generators that will draw the same noise."""
    return [generator.clone_state() for generator in generators]


def outputs(layers, x):
    for layer in layers[:-1]:
        x = (x @ layer[..., :-1, :] + layer[..., -1:, :]).relu()
    return x @ layers[-1][..., :-1, :] + layers[-1][..., -1:, :]


def test_a_critic_step_is_the_semi_gradient_without_entropy():
    made = agent(critic_optimiser=Optimiser("plain"), critic_learning_rate=0.1, tau=0.3)
    data = batch()
    made.target_critic.network.flat *= 0.8
    before, target_before = made.critic.network.flat.clone(), made.target_critic.network.flat.clone()
    leaf = before.clone().requires_grad_()
    noise = normal(copies(made.generators), BATCH, 2)
    mean, log_std = made.policy.network(data.next_obs).chunk(2, -1)
    next_action = (mean + log_std.exp() * noise).tanh()
    next_value = made.target_critic.network(torch.cat([data.next_obs, next_action], -1))[..., 0]
    target = data.reward + 0.99 * (1 - data.terminated) * next_value
    value = outputs(made.critic.network.views(leaf), torch.cat([data.obs, data.action], -1))[..., 0]
    (value - target).square().mean(-1).sum().backward()
    made.update(data)
    torch.testing.assert_close(made.critic.network.flat, before - 0.1 * leaf.grad)
    followed = 0.7 * target_before + 0.3 * made.critic.network.flat
    torch.testing.assert_close(made.target_critic.network.flat, followed)


def test_a_policy_step_ascends_value_and_entropy():
    made, data = agent(entropy_weight=0.3), batch()
    leaf = made.policy.network.flat.clone().requires_grad_()
    noise = normal(copies(made.generators), BATCH, 2)
    mean, log_std = outputs(made.policy.network.views(leaf), data.obs).chunk(2, -1)
    u = mean + log_std.exp() * noise
    log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    log_prob = (log_normal - (1 - u.tanh().square()).log()).sum(-1)
    value = made.critic.network(torch.cat([data.obs, u.tanh()], -1))[..., 0]
    (0.3 * log_prob - value).mean(-1).sum().backward()
    made._update_policy(data.obs)
    torch.testing.assert_close(made.policy.gradient, leaf.grad, rtol=1e-4, atol=1e-6)


def test_the_policy_steps_once_per_policy_freq_critic_steps():
    made = agent(policy_freq=5)
    for _ in range(11):
        made.update(batch())
    assert int(made.critic.optimiser.count) == 11
    assert int(made.policy.optimiser.count) == 2


@pytest.mark.parametrize("kfac", [None, KFAC(factor_every=2, inverse_every=3)])
def test_a_restored_agent_continues_exactly(kfac):
    one, other = agent(kfac=kfac, policy_freq=2), agent(kfac=kfac, policy_freq=2)
    for _ in range(3):
        one.update(batch())
    for name, tensor in other.state_dict().items():
        tensor.copy_(one.state_dict()[name])
    other.generators = copies(one.generators)
    for made in (one, other):
        for _ in range(4):
            made.update(batch())
    for name, tensor in other.state_dict().items():
        assert torch.equal(tensor, one.state_dict()[name]), name


def test_the_presets_differ_by_the_gauss_newton_step_alone():
    td, gntd = PRESETS["pg_td"].config, PRESETS["pg_gntd"].config
    assert gntd.kfac.damping == 0.25
    assert dataclasses.replace(gntd, kfac=None) == td
    assert (td.critic_learning_rate, td.policy_freq, td.random_steps) == (3e-4, 25, 25_000)
