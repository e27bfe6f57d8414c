"""CQL against a plain reference, through its warm-up and out of it."""

import math

import plain
import pytest
import torch
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from offline_gntd.algorithms import CATALOGUE, configured, cql


class Reference:
    def __init__(self, config, agent):
        self.config, self.count = config, 0
        self.policy = plain.net(agent.policy.network, 0)
        self.policy_optimiser = torch.optim.Adam(self.policy.parameters(), lr=config.actor_learning_rate)
        self.log_temperature = torch.zeros(1, dtype=torch.double, requires_grad=True)
        self.temperature_optimiser = torch.optim.Adam([self.log_temperature], lr=config.actor_learning_rate)
        self.critics = plain.TwinCritics(agent)

    def distribution(self, obs):
        mean, log_std = self.policy(obs).chunk(2, -1)
        return TransformedDistribution(Normal(mean, log_std.clamp(-20, 2).exp()), [TanhTransform()])

    def sample(self, obs, noise):
        """Actions and log-densities for noise [n, batch, action_dim], by torch.distributions."""
        distribution = self.distribution(obs)
        u = distribution.base_dist.loc + distribution.base_dist.scale * noise
        volume = TanhTransform().log_abs_det_jacobian(u, u.tanh())
        return u.tanh(), (distribution.base_dist.log_prob(u) - volume).sum(-1)

    def update(self, batch, draws):
        config, obs, next_obs = self.config, batch.obs, batch.next_obs
        shape = (len(obs), 1 + config.samples, plain.TASK.action_dim)
        noise, next_noise = (draws.normal(*shape).transpose(0, 1) for _ in range(2))
        random = draws.uniform(len(obs), config.samples, plain.TASK.action_dim).transpose(0, 1)

        action, log_density = self.sample(obs, noise[0])
        temperature_loss = -(self.log_temperature * (log_density - plain.TASK.action_dim).detach()).mean()
        self.temperature_optimiser.zero_grad()
        temperature_loss.backward()
        self.temperature_optimiser.step()
        temperature = self.log_temperature.exp().detach()
        if self.count < config.warm_up:
            clipped = batch.action.clamp(-0.999999, 0.999999)
            gain = self.distribution(obs).log_prob(clipped).sum(-1)
        else:
            gain = self.critics.values(obs, action).min(0).values
        policy_loss = (temperature * log_density - gain).mean()
        policy_gradient = torch.autograd.grad(policy_loss, list(self.policy.parameters()))

        with torch.no_grad():
            next_action, _ = self.sample(next_obs, next_noise[0])
            next_value = self.critics.values(next_obs, next_action, target=True).min(0).values
            target = batch.reward + config.discount * (1 - batch.terminated) * next_value
            current, current_density = self.sample(obs, noise[1:])
            after, after_density = self.sample(next_obs, next_noise[1:])
        many = obs.expand(config.samples, -1, -1)
        corrected = [
            self.critics.values(many, random) - math.log(0.5**plain.TASK.action_dim),
            self.critics.values(many, after) - after_density,
            self.critics.values(many, current) - current_density,
        ]  # [2, samples, batch] each
        values = self.critics.values(obs, batch.action)
        loss = sum(torch.nn.functional.mse_loss(value, target) for value in values)
        gap = torch.cat(corrected, 1).logsumexp(1).mean(1) - values.mean(1)
        self.critics.step(loss + config.alpha * gap.sum(), obs, batch.action)

        for parameter, gradient in zip(self.policy.parameters(), policy_gradient, strict=True):
            parameter.grad = gradient
        self.policy_optimiser.step()
        self.critics.polyak_update(config.tau)
        self.count += 1


@pytest.mark.parametrize("name", ["cql", "gn_cql"])
def test_update_equals_a_plain_reference(name, monkeypatch):
    monkeypatch.setattr(cql, "STATES_AT_ONCE", 8)  # a quarter of the batch
    config = plain.small(CATALOGUE[name].config, warm_up=3, samples=4, hidden_dims=(16, 12, 14))
    agent, reference = plain.compare(config, Reference)
    plain.assert_same(agent.policy.network, reference.policy)
    plain.assert_same(agent.critic.network, *reference.critics.nets)
    plain.assert_same(agent.target_critic.network, *reference.critics.targets)
    torch.testing.assert_close(
        agent.log_temperature.double(), reference.log_temperature.detach(), rtol=1e-4, atol=1e-8
    )


def test_the_warm_up_is_at_most_5_percent_of_a_run():
    assert configured("cql", 10_000).warm_up == 500
    assert configured("cql", 1_000_000).warm_up == 40_000
    assert configured("cql@warm_up=100", 10_000).warm_up == 100
    assert configured("td3_bc", 10) == CATALOGUE["td3_bc"].config
