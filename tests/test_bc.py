"""Behaviour cloning against a plain reference."""

import plain
import torch

from offline_gntd.algorithms import CATALOGUE


class Reference:
    def __init__(self, config, agent):
        self.agent, self.config = agent, config
        self.policy = plain.net(agent.policy.network, 0)
        self.optimiser = torch.optim.Adam(self.policy.parameters(), lr=config.learning_rate)

    def update(self, batch, draws):
        action = self.policy(plain.normalised(self.agent, batch.obs, self.config.normalise_obs)).tanh()
        loss = torch.nn.functional.mse_loss(action, batch.action)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()


def test_update_equals_a_plain_reference():
    agent, reference = plain.compare(plain.small(CATALOGUE["bc"].config), Reference)
    plain.assert_same(agent.policy.network, reference.policy)


def test_it_learns_to_imitate():
    data = plain.rows(2000)
    data[:, 5:8] = (data[:, :3] + data[:, 1:4]).tanh()  # a policy that can be cloned
    generators = [torch.Generator().manual_seed(0)]
    config = plain.small(CATALOGUE["bc"].config, learning_rate=3e-3, hidden_dims=(64, 64), batch_size=128)
    agent = config.agent(plain.TASK, generators, plain.statistics(data))
    for _ in range(400):
        loss = agent.update(plain.sample(data, 128, generators))["loss"]
    assert loss.mean() < 0.01
    assert (agent.act(data[None, :100, :5])[0] - data[:100, 5:8]).abs().mean() < 0.1
