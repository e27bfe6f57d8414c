"""Each preset against a plain reference, and stacked seeds against each seed alone."""

import copy

import pytest
import torch
from conftest import seeded

from offline_gntd.algorithms import CATALOGUE
from offline_gntd.tasks import Task
from offline_gntd.transitions import Sampler, from_rows

UPDATES = 6
TASK = Task("Acrobot-v1", 6, 3, True, -499.0, -80.0, "test")
DISCRETE = [name for name, preset in CATALOGUE.items() if preset.config.discrete]


class Reference:
    """nn.Linear, autograd and torch.optim; curvature from per-sample gradients, solved densely."""

    def __init__(self, config, network, seed):
        layers = []
        for layer in network.layers:
            linear = torch.nn.Linear(layer.shape[-2] - 1, layer.shape[-1])
            linear.weight.data, linear.bias.data = layer[seed, :-1].T.clone(), layer[seed, -1].clone()
            layers += [linear, torch.nn.ReLU()]
        self.config, self.net = config, torch.nn.Sequential(*layers[:-1])
        self.linears = layers[::2]
        self.target = copy.deepcopy(self.net)
        kind = {"adam": torch.optim.Adam, "plain": torch.optim.SGD}[config.optimiser]
        self.optimiser = kind(self.net.parameters(), lr=config.learning_rate)
        self.P, self.G, self.inverses, self.count = {}, {}, {}, 0

    def update(self, batch):
        config = self.config
        bootstrap = self.net if config.tau is None else self.target
        with torch.no_grad():
            next_value = bootstrap(batch.next_obs).max(-1).values
            target = batch.reward + config.discount * (1 - batch.terminated) * next_value
        value = self.net(batch.obs)[torch.arange(len(batch.action)), batch.action]
        self.optimiser.zero_grad()
        residual = value - target
        if config.exact_damping is not None:
            self.set_exact_direction(value, residual.detach())
        else:
            (0.5 * residual.square()).mean().backward()  # its gradient is E[δ∇Q]
            if config.kfac:
                self.precondition(batch)
        self.optimiser.step()
        if config.tau is not None:
            for old, new in zip(self.target.parameters(), self.net.parameters(), strict=True):
                old.data += config.tau * (new.data - old.data)

    def set_exact_direction(self, value, residual):
        parameters = list(self.net.parameters())
        rows = [
            torch.cat([g.flatten() for g in torch.autograd.grad(v, parameters, retain_graph=True)])
            for v in value
        ]
        J = torch.stack(rows).double()
        H = J.T @ J / len(J) + self.config.exact_damping * torch.eye(J.shape[1], dtype=torch.double)
        direction = torch.linalg.solve(H, J.T @ residual.double() / len(J)).float()
        pieces = direction.split([p.numel() for p in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.grad = piece.view_as(parameter)

    def precondition(self, batch):
        kfac = self.config.kfac
        inputs, outputs = [], []
        hidden = batch.obs
        for module in self.net:
            if isinstance(module, torch.nn.Linear):
                inputs.append(torch.cat([hidden, torch.ones(len(hidden), 1)], dim=-1).detach())
                hidden = module(hidden)
                outputs.append(hidden)
            else:
                hidden = module(hidden)
        taken = hidden[torch.arange(len(batch.action)), batch.action].sum()
        signals = torch.autograd.grad(taken, outputs)
        for l, linear in enumerate(self.linears):
            P, G = inputs[l].T @ inputs[l] / len(hidden), signals[l].T @ signals[l] / len(hidden)
            if self.count == 0:
                self.P[l], self.G[l] = P, G
            elif self.count % kfac.factor_every == 0:
                self.P[l] = (1 - kfac.momentum) * self.P[l] + kfac.momentum * P
                self.G[l] = G
            if self.count % kfac.inverse_every == 0:
                root = kfac.damping**0.5
                self.inverses[l] = [
                    torch.linalg.inv(F + root * torch.eye(len(F))) for F in (self.P[l], self.G[l])
                ]
            P_inverse, G_inverse = self.inverses[l]
            mat = P_inverse @ torch.cat([linear.weight.grad.T, linear.bias.grad[None]]) @ G_inverse
            linear.weight.grad, linear.bias.grad = mat[:-1].T.contiguous(), mat[-1].contiguous()
        self.count += 1

    def flat(self):
        mats = [torch.cat([l.weight.T, l.bias[None]]).detach() for l in self.linears]
        return torch.cat([mat.flatten() for mat in mats])


def small(config):
    """The preset with networks and periods that a test can follow."""
    import dataclasses

    config = dataclasses.replace(config, hidden_dims=(16, 12), batch_size=32)
    if config.kfac and config.kfac.factor_every > 1:
        config = dataclasses.replace(
            config, kfac=dataclasses.replace(config.kfac, factor_every=2, inverse_every=3)
        )
    return config


@pytest.mark.parametrize("name", DISCRETE)
def test_update_equals_a_plain_reference(name, random_rows):
    config, rows, generators = small(CATALOGUE[name].config), random_rows(TASK), seeded(0, 1)
    agent = config.agent(TASK, generators)
    references = [Reference(config, agent.critic.network, seed) for seed in range(2)]
    for _ in range(UPDATES):
        batch = Sampler(TASK, config.batch_size, generators)(rows)
        agent.update(batch)
        for seed, reference in enumerate(references):
            reference.update(type(batch)(*(column[seed] for column in batch)))
    for seed, reference in enumerate(references):
        torch.testing.assert_close(
            agent.critic.network.parameters[seed], reference.flat(), rtol=1e-4, atol=2e-6
        )


@pytest.mark.parametrize("name", DISCRETE)
def test_stacked_seeds_equal_each_seed_alone(name, random_rows):
    config, rows = small(CATALOGUE[name].config), random_rows(TASK)

    def trained(*seeds):
        generators = seeded(*seeds)
        agent, sample = config.agent(TASK, generators), Sampler(TASK, config.batch_size, generators)
        for _ in range(UPDATES):
            agent.update(sample(rows))
        return agent.state_dict()

    stacked = trained(3, 4, 5)
    for i, seed in enumerate((3, 4, 5)):
        for key, alone in trained(seed).items():
            both = stacked[key] if alone.dim() == 0 else stacked[key][i]
            torch.testing.assert_close(
                both, alone if alone.dim() == 0 else alone[0], rtol=1e-5, atol=1e-6, msg=key
            )


def test_bellman_error_is_the_mean_over_all_rows(random_rows):
    rows = random_rows(TASK, 100)
    agent = small(CATALOGUE["dqn"].config).agent(TASK, seeded(0, 1))
    batch = from_rows(rows, TASK)
    whole, in_parts = agent.measure(batch), agent.measure(batch, rows_at_once=7)
    network = agent.critic.network
    for seed in range(2):
        values = network(batch.obs.expand(2, -1, -1))[seed]
        next_values = network(batch.next_obs.expand(2, -1, -1))[seed]
        target = batch.reward + 0.99 * (1 - batch.terminated) * next_values.max(-1).values
        error = (values[torch.arange(100), batch.action] - target).square().mean()
        torch.testing.assert_close(whole["bellman_error"][seed].float(), error)
    torch.testing.assert_close(whole["bellman_error"], in_parts["bellman_error"])


def test_a_terminated_row_does_not_bootstrap(random_rows):
    rows = random_rows(TASK, 64)
    rows[:, -1] = 1
    batch = from_rows(rows, TASK)
    agent = small(CATALOGUE["td"].config).agent(TASK, seeded(0))
    far = batch._replace(next_obs=batch.next_obs * 1e6)
    torch.testing.assert_close(agent.measure(batch)["bellman_error"], agent.measure(far)["bellman_error"])


def test_exploration_share(random_rows):
    agent = small(CATALOGUE["dqn"].config).agent(TASK, seeded(0))
    obs = torch.randn(1, 4000, TASK.obs_dim)
    assert torch.equal(agent.explore(obs, 0.0, seeded(1)), agent.act(obs))
    same = (agent.explore(obs, 0.6, seeded(1)) == agent.act(obs)).float().mean()
    assert abs(same - (0.4 + 0.6 / 3)) < 0.03
