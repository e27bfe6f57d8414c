"""TD3+BC and GNTD3+BC against a plain reference, the delayed policy step inside."""

import copy

import plain
import pytest
import torch

from offline_gntd.algorithms import CATALOGUE, preset


class Reference:
    def __init__(self, config, agent):
        self.config, self.agent, self.count = config, agent, 0
        self.actor = plain.net(agent.actor.network, 0)
        self.target_actor = copy.deepcopy(self.actor)
        self.actor_optimiser = torch.optim.Adam(self.actor.parameters(), lr=config.actor_learning_rate)
        self.critics = plain.TwinCritics(agent)

    def update(self, batch, draws):
        config = self.config
        obs, next_obs = (plain.normalised(self.agent, x, True) for x in (batch.obs, batch.next_obs))
        with torch.no_grad():
            noise = (draws.normal(*batch.action.shape) * config.policy_noise).clamp(-0.5, 0.5)
            next_action = (self.target_actor(next_obs).tanh() + noise).clamp(-1, 1)
            next_value = self.critics.values(next_obs, next_action, target=True).min(0).values
            target = batch.reward + config.discount * (1 - batch.terminated) * next_value
        values = self.critics.values(obs, batch.action)
        loss = config.critic_loss_weight * sum(
            torch.nn.functional.mse_loss(value, target) for value in values
        )
        self.critics.step(loss, obs, batch.action)
        self.count += 1
        if self.count % config.policy_freq == 0:
            action = self.actor(obs).tanh()
            value = self.critics.values(obs, action)[0]
            actor_loss = -value.mean()
            if config.alpha is not None:
                scale = config.alpha / value.abs().mean().detach()
                actor_loss = scale * actor_loss + torch.nn.functional.mse_loss(action, batch.action)
            self.actor_optimiser.zero_grad()
            actor_loss.backward()
            self.actor_optimiser.step()
            self.critics.polyak_update(config.tau)
            plain.polyak_update(self.target_actor, self.actor, config.tau)


@pytest.mark.parametrize(
    "name",
    [
        "td3_bc",
        "td3_bc_tuned",
        "gntd3_bc",
        "gntd3_bc_v01",
        "td3_bc@alpha=none",
        "gntd3_bc@alpha=none",
        "td3_bc_authors",
        "gntd3_bc_authors",
        "gntd3_bc@critic_optimiser.max_grad_norm=0.01",
    ],
)
def test_update_equals_a_plain_reference(name):
    agent, reference = plain.compare(plain.small(preset(name).config), Reference)
    assert reference.count == plain.UPDATES
    plain.assert_same(agent.actor.network, reference.actor)
    plain.assert_same(agent.critic.network, *reference.critics.nets)
    plain.assert_same(agent.target_actor.network, reference.target_actor)
    plain.assert_same(agent.target_critic.network, *reference.critics.targets)


def test_the_actor_moves_at_every_second_update_only():
    config = plain.small(CATALOGUE["td3_bc"].config)
    generators = [torch.Generator().manual_seed(0)]
    agent, moved = config.agent(plain.TASK, generators), []
    for _ in range(4):
        before = agent.actor.network.flat.clone(), agent.target_critic.network.flat.clone()
        agent.update(plain.sample(plain.rows(), 32, generators))
        after = agent.actor.network.flat, agent.target_critic.network.flat
        moved.append([not torch.equal(a, b) for a, b in zip(before, after, strict=True)])
    assert moved == [[False, False], [True, True]] * 2


def test_a_terminated_row_does_not_bootstrap():
    data = plain.rows()
    data[:, -1] = 1
    agent = plain.small(CATALOGUE["td3_bc"].config).agent(plain.TASK, [torch.Generator().manual_seed(0)])
    batch = plain.from_rows(data, plain.TASK)
    far = batch._replace(next_obs=100 * batch.next_obs)
    torch.testing.assert_close(agent.measure([batch])["bellman_error"], agent.measure([far])["bellman_error"])


def test_exploring_is_acting_with_noise_within_the_range_of_actions():
    config = plain.small(CATALOGUE["td3_bc"].config, alpha=None)
    agent = config.agent(plain.TASK, [torch.Generator().manual_seed(0)])
    obs = plain.from_rows(plain.rows(), plain.TASK).obs[None]
    assert torch.equal(agent.explore(obs, 0.0), agent.act(obs))
    away = agent.explore(obs, 0.1) - agent.act(obs)
    assert 0.08 < away.std() < 0.12
    far = agent.explore(obs, 10.0)
    assert far.abs().max() == 1
    assert not torch.equal(far, agent.explore(obs, 10.0))  # fresh noise every time
