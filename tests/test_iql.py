"""IQL against a plain reference, and its schedule."""

import numpy as np
import plain
import pytest
import torch
from torch.distributions import Normal

from offline_gntd.algorithms import CATALOGUE, configured
from offline_gntd.algorithms.iql import IQL
from offline_gntd.datasets import load
from offline_gntd.experiments.training import batches_of


class Reference:
    def __init__(self, config, agent):
        self.config, self.agent, self.count = config, agent, 0
        self.policy, self.value = plain.net(agent.policy.network, 0), plain.net(agent.state_value.network, 0)
        self.log_std = agent.log_std[0].double().clone().requires_grad_()
        policy = [*self.policy.parameters(), self.log_std]
        self.policy_optimiser = torch.optim.Adam(policy, lr=config.actor_learning_rate)
        if config.decay_steps is not None:
            self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
                self.policy_optimiser, config.decay_steps
            )
        self.value_optimiser = torch.optim.Adam(self.value.parameters(), lr=config.value_learning_rate)
        self.critics = plain.TwinCritics(agent)

    def update(self, batch, draws):
        config = self.config
        obs, next_obs = (
            plain.normalised(self.agent, x, config.normalise_obs) for x in (batch.obs, batch.next_obs)
        )
        with torch.no_grad():
            q = self.critics.values(obs, batch.action, target=True).min(0).values
        difference = q - self.value(obs)[:, 0]
        asymmetric = (config.expectile - (difference < 0).double()).abs()
        self.step(self.value_optimiser, (asymmetric * difference**2).mean())

        with torch.no_grad():
            weight = torch.exp(config.inverse_temperature * (q - self.value(obs)[:, 0]))
            weight = weight.clamp(max=config.max_weight)
            next_value = self.value(next_obs)[:, 0]
            target = batch.reward + config.discount * (1 - batch.terminated) * next_value
        policy = Normal(self.policy(obs).tanh(), self.log_std.clamp(-5, 2).exp())
        self.step(self.policy_optimiser, -(weight * policy.log_prob(batch.action).sum(-1)).mean())
        if config.decay_steps is not None:
            self.schedule.step()

        values = self.critics.values(obs, batch.action)
        loss = sum(torch.nn.functional.mse_loss(value, target) for value in values)
        self.critics.step(loss, obs, batch.action)
        self.critics.polyak_update(config.tau)

    def step(self, optimiser, loss):
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


@pytest.mark.parametrize("name", ["iql", "gn_iql"])
@pytest.mark.parametrize(
    "changes",
    [
        {"decay_steps": 10},
        {"decay_steps": None, "normalise_obs": True},
        {"decay_steps": None, "inverse_temperature": 30.0, "max_weight": 2.0},  # many weights are clipped
    ],
)
@pytest.mark.parametrize("log_std", [0.0, 3.0, -6.0])  # in range, clipped from above and from below
def test_update_equals_a_plain_reference(name, changes, log_std):
    config = plain.small(CATALOGUE[name].config, **changes)
    agent, reference = plain.compare(config, Reference, prepare=lambda agent: agent.log_std.fill_(log_std))
    plain.assert_same(agent.policy.network, reference.policy)
    plain.assert_same(agent.state_value.network, reference.value)
    plain.assert_same(agent.critic.network, *reference.critics.nets)
    plain.assert_same(agent.target_critic.network, *reference.critics.targets)
    torch.testing.assert_close(agent.log_std[0].double(), reference.log_std.detach(), rtol=1e-4, atol=1e-6)
    assert (agent.log_std[0] == log_std).all() == (log_std != 0.0)


def test_the_policy_s_learning_rate_falls_to_0_at_the_end_of_a_run():
    config = configured("iql", 200)
    assert config.decay_steps == 200
    assert configured("iql@decay_steps=none", 200).decay_steps is None
    agent = config.agent(plain.TASK, [torch.Generator().manual_seed(0)])
    rates = []
    for updates in (0, 100, 200, 300):
        agent.updates.fill_(updates)
        rates.append(agent._actor_learning_rate())
    assert rates == pytest.approx([3e-4, 1.5e-4, 0, 0], abs=1e-12)


def test_rewards_are_scaled_so_that_returns_span_1000():
    rng = np.random.default_rng(0)
    ends = np.zeros(20, bool)
    ends[[4, 11, 19]] = True
    arrays = {
        "observations": rng.normal(size=(20, 11)).astype(np.float32),
        "actions": rng.uniform(-1, 1, size=(20, 3)).astype(np.float32),
        "rewards": rng.normal(size=20).astype(np.float32),
        "terminals": ends,
        "timeouts": np.zeros(20, bool),
    }
    dataset = load(arrays, env="hopper")
    generators = [torch.Generator()]
    scaled = batches_of([dataset], IQL(batch_size=4), [0], generators).transitions[0]
    plain = batches_of([dataset], IQL(batch_size=4, scale_rewards=False), [0], generators).transitions[0]
    torch.testing.assert_close(plain.reward, dataset.transitions.reward, rtol=0, atol=0)
    torch.testing.assert_close(scaled.reward, plain.reward * 1000 / float(np.ptp(dataset.episode_returns)))
    torch.testing.assert_close(scaled.next_obs, plain.next_obs, rtol=0, atol=0)
