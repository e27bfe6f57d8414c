"""Each preset against a plain reference, and stacked seeds against each seed alone."""

import copy
import dataclasses

import plain
import pytest
import torch
from conftest import seeded

from offline_gntd.algorithms import CATALOGUE
from offline_gntd.algorithms.bellman import td_errors
from offline_gntd.tasks import Task
from offline_gntd.transitions import Sampler, from_rows

UPDATES = 6
TASK = Task("Acrobot-v1", 6, 3, True, -499.0, -80.0, "test")
DISCRETE = [name for name, preset in CATALOGUE.items() if preset.config.discrete]


class Reference:
    """One seed by nn.Linear and autograd in float64."""

    def __init__(self, config, network, seed):
        self.config, self.net = config, plain.net(network, seed)
        self.target = copy.deepcopy(self.net)
        self.optimiser = plain.Adam([self.net], config.learning_rate, config.optimiser)
        self.curvature = plain.Curvature(config.kfac, self.net) if config.kfac else None

    def update(self, batch):
        config = self.config
        bootstrap = self.net if config.tau is None else self.target
        with torch.no_grad():
            next_value = bootstrap(batch.next_obs).max(-1).values
            target = batch.reward + config.discount * (1 - batch.terminated) * next_value

        def taken(output):
            return output[torch.arange(len(output)), batch.action.long()]

        value = taken(self.net(batch.obs))
        self.optimiser.zero_grad()
        loss = config.loss_weight * (value - target).square().mean()
        loss.backward(retain_graph=True)
        if config.exact_damping is not None:
            self.set_exact_direction(value)
        self.optimiser.clip()
        if self.curvature:
            self.curvature.precondition(batch.obs, taken)
        self.optimiser.step()
        if config.tau is not None:
            plain.polyak_update(self.target, self.net, config.tau)

    def set_exact_direction(self, value):
        """(H + ωI)⁻¹ gradient, with H from per-sample gradients."""
        parameters = list(self.net.parameters())
        rows = [
            torch.cat([g.flatten() for g in torch.autograd.grad(v, parameters, retain_graph=True)])
            for v in value
        ]
        J = torch.stack(rows)
        H = J.T @ J / len(J) + self.config.exact_damping * torch.eye(J.shape[1], dtype=torch.double)
        direction = torch.linalg.solve(H, torch.cat([p.grad.flatten() for p in parameters]))
        for parameter, piece in zip(
            parameters, direction.split([p.numel() for p in parameters]), strict=True
        ):
            parameter.grad = piece.view_as(parameter)


def small(config):
    """The preset with networks and periods that a test can follow."""
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
            reference.update(type(batch)(*(column[seed].double() for column in batch)))
    for seed, reference in enumerate(references):
        trained = agent.critic.network.flat[seed].double()
        torch.testing.assert_close(trained, plain.flat(reference.net), rtol=1e-4, atol=2e-6)


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


def test_td_errors_are_means_over_all_rows_of_each_seed_s_dataset(random_rows):
    config = small(CATALOGUE["dqn"].config)
    agent = config.agent(TASK, seeded(0, 1))
    agent.target.network.flat *= 0.9
    datasets = [from_rows(random_rows(TASK, count), TASK) for count in (100, 70)]
    whole = agent.measure(datasets)
    in_parts = td_errors(datasets, agent._values, config.discount, chunk=7)
    for seed, rows in enumerate(datasets):

        def q(network, obs, seed=seed):
            return network(obs.expand(2, -1, -1))[seed]

        value = q(agent.critic.network, rows.obs)[torch.arange(len(rows.obs)), rows.action]
        error, target_error = (
            value - rows.reward - 0.99 * (1 - rows.terminated) * q(network, rows.next_obs).amax(-1)
            for network in (agent.critic.network, agent.target.network)
        )
        torch.testing.assert_close(whole["bellman_error"][seed].float(), error.square().mean())
        torch.testing.assert_close(whole["td_error_abs"][seed].float(), error.abs().mean())
        torch.testing.assert_close(whole["td_error_abs_target"][seed].float(), target_error.abs().mean())
    for name, values in in_parts.items():
        torch.testing.assert_close(values, whole[name])


def test_a_terminated_row_does_not_bootstrap(random_rows):
    rows = random_rows(TASK, 64)
    rows[:, -1] = 1
    batch = from_rows(rows, TASK)
    agent = small(CATALOGUE["td"].config).agent(TASK, seeded(0))
    far = batch._replace(next_obs=batch.next_obs * 1e6)
    torch.testing.assert_close(agent.measure([batch])["bellman_error"], agent.measure([far])["bellman_error"])


def test_exploration_share(random_rows):
    agent = small(CATALOGUE["dqn"].config).agent(TASK, seeded(0))
    obs = torch.randn(1, 4000, TASK.obs_dim)
    assert torch.equal(agent.explore(obs, 0.0, seeded(1)), agent.act(obs))
    same = (agent.explore(obs, 0.6, seeded(1)) == agent.act(obs)).float().mean()
    assert abs(same - (0.4 + 0.6 / 3)) < 0.03
