"""ReBRAC against a plain reference, with LayerNorm, both penalties and the delayed actor."""

import copy
from types import SimpleNamespace

import plain
import pytest
import torch
from torch import nn

from offline_gntd.algorithms import CATALOGUE, preset
from offline_gntd.nn.optimisers import Optimiser
from offline_gntd.transitions import from_rows


def episodes():
    """Rows of episodes of ten; the last row of each has no successor."""
    data = plain.rows()
    columns = from_rows(data, plain.TASK)
    follows = torch.arange(len(data) - 1) % 10 != 9
    columns.next_obs[:-1][follows] = columns.obs[1:][follows]
    return data


def net(module, layer_norm):
    """A plain network with the same parameters: Linear, ReLU and maybe LayerNorm, and Linear at the end."""
    parameters, modules = [p.detach().double() for p in module.parameters()], []
    while parameters:
        linear = nn.Linear(*reversed(parameters[0].shape), dtype=torch.double)
        linear.weight.data, linear.bias.data = parameters.pop(0).clone(), parameters.pop(0).clone()
        modules.append(linear)
        if parameters:
            modules.append(nn.ReLU())
        if parameters and layer_norm:
            norm = nn.LayerNorm(linear.out_features, eps=1e-6, dtype=torch.double)
            norm.weight.data, norm.bias.data = parameters.pop(0).clone(), parameters.pop(0).clone()
            modules.append(norm)
    return nn.Sequential(*modules)


class Reference:
    def __init__(self, config, agent):
        self.config, self.count = config, 0
        self.actor = net(agent.actor, layer_norm=False)
        self.critics = [net(critic, layer_norm=True) for critic in agent.critic.critics]
        self.target_actor, self.target_critics = copy.deepcopy(self.actor), copy.deepcopy(self.critics)
        self.actor_optimiser = torch.optim.Adam(self.actor.parameters(), lr=config.actor_learning_rate)
        self.optimiser = plain.Adam(self.critics, config.critic_learning_rate, Optimiser())
        self.curvatures = [plain.Curvature(config.kfac, critic) for critic in self.critics if config.kfac]

    def values(self, critics, obs, action):
        return torch.stack([critic(torch.cat([obs, action], -1))[:, 0] for critic in critics])

    def update(self, batch, draws, data, index):
        config, (obs, action) = self.config, batch[:2]
        with torch.no_grad():
            noise = (config.policy_noise * draws.normal(*action.shape)).clamp(-0.5, 0.5)
            next_action = (self.target_actor(batch.next_obs).tanh() + noise).clamp(-1, 1)
            after = from_rows(data, plain.TASK).action[(index + 1).clamp_max(len(data) - 1)].double()
            penalty = ((next_action - after) ** 2).sum(1) * (index % 10 != 9) * (index != len(data) - 1)
            next_value = self.values(self.target_critics, batch.next_obs, next_action).min(0).values
            next_value = next_value - config.critic_bc_weight * penalty
            target = batch.reward + config.discount * (1 - batch.terminated) * next_value
        loss = sum(nn.functional.mse_loss(value, target) for value in self.values(self.critics, obs, action))
        self.optimiser.zero_grad()
        loss.backward()
        for curvature in self.curvatures:
            curvature.precondition(torch.cat([obs, action], -1))
        self.optimiser.step()
        self.count += 1
        if self.count % config.policy_freq:
            return
        mine = self.actor(obs).tanh()
        value = self.values(self.critics, obs, mine).min(0).values
        cloning = ((mine - action) ** 2).sum(1)
        actor_loss = (config.actor_bc_weight * cloning - value / value.abs().mean().detach()).mean()
        self.actor_optimiser.zero_grad()
        actor_loss.backward()
        self.actor_optimiser.step()
        plain.polyak_update(self.target_actor, self.actor, config.tau)
        for target, online in zip(self.target_critics, self.critics, strict=True):
            plain.polyak_update(target, online, config.tau)


def assert_same(module, wanted):
    for ours, theirs in zip(module.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(ours.detach().double(), theirs.detach(), rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("name", ["rebrac", "gn_rebrac", "rebrac@critic_bc_weight=0.5@actor_bc_weight=0.5"])
def test_update_equals_a_plain_reference(name):
    config, data = plain.small(preset(name).config), episodes()
    generators = [torch.Generator().manual_seed(0)]
    stack = config.agent(plain.TASK, generators)
    [agent] = stack.agents
    reference = Reference(config, agent)
    for _ in range(plain.UPDATES):
        batch = plain.sample(data, config.batch_size, generators)
        draws = plain.Draws(generators[0])
        stack.update(batch)
        reference.update(plain.double(batch), draws, data, batch.row_index[0])
    assert reference.count == plain.UPDATES
    assert_same(agent.actor, reference.actor)
    assert_same(agent.target_actor, reference.target_actor)
    for i in range(2):
        assert_same(agent.critic.critics[i], reference.critics[i])
        assert_same(agent.target_critic.critics[i], reference.target_critics[i])


def test_networks_start_as_the_authors_have_them():
    agent = CATALOGUE["rebrac"].config.agent(plain.TASK, [torch.Generator().manual_seed(0)]).agents[0]
    shapes = SimpleNamespace(actor=list(agent.actor.parameters()), critic=list(agent.critic.parameters()))
    assert [tuple(p.shape) for p in shapes.actor[::2]] == [(256, 5), (256, 256), (256, 256), (3, 256)]
    assert len(shapes.critic) == 2 * (4 + 3) * 2  # four linear layers and three LayerNorms, twice
    assert (shapes.actor[1] == 0.1).all()
    assert shapes.actor[-2].abs().max() <= 1e-3
    assert 2e-3 < shapes.critic[-2].abs().max() <= 3e-3
