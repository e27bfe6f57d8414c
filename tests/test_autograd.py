"""Algorithms written as losses: seeds, optimisers, targets, noise and state."""

import copy
from dataclasses import dataclass

import plain
import pytest
import torch
from conftest import seeded
from torch import nn

from offline_gntd import AutogradAgent, GaussNewton
from offline_gntd.algorithms.autograd import create_state
from offline_gntd.errors import UserError
from offline_gntd.experiments.training import restore_agent as restore

SAMPLED = plain.rows()


@dataclass(frozen=True)
class Config:
    batch_size: int = 32
    discount: float = 0.9
    sequential: bool = False
    optimiser: str = "Adam"

    discrete = False

    def agent(self, *args):
        return Small.stack(self, *args)


class Small(AutogradAgent):
    """A critic with dropout, an actor, noise in the target and a buffer that is replaced by assignment."""

    def __init__(self, config, task):
        super().__init__(config, task)
        self.critic = nn.Sequential(
            nn.Linear(task.obs_dim + task.action_dim, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1)
        )
        self.actor = nn.Linear(task.obs_dim, task.action_dim)
        self.target_critic = self.target(self.critic, tau=0.1)
        self.register_buffer("mean_q", torch.zeros(()))
        if config.optimiser == "GaussNewton":
            self.optimisers["critic"] = GaussNewton(self.critic, lr=1e-2, factor_every=2, inverse_every=3)
        else:
            kind = getattr(torch.optim, config.optimiser)
            options = {"momentum": 0.9} if config.optimiser == "SGD" else {}
            self.optimisers["critic"] = kind(self.critic.parameters(), lr=1e-2, **options)
        self.optimisers["actor"] = torch.optim.Adam(self.actor.parameters(), lr=1e-2, fused=True)

    def losses(self, batch):
        with torch.no_grad():
            noise = torch.randn_like(batch.action)
            next_q = self.q(self.target_critic, batch.next_obs, self.act(batch.next_obs) + noise)
            target = batch.reward + self.config.discount * (1 - batch.terminated) * next_q
        q = self.q(self.critic, batch.obs, batch.action)
        self.mean_q = 0.9 * self.mean_q + 0.1 * q.detach().mean()
        loss = (q - target).square().mean()
        critic = {"critic": (loss, q) if self.config.optimiser == "GaussNewton" else loss}
        if self.config.sequential:
            return self.one_by_one(critic, batch)
        return critic | {"actor": self.actor_loss(batch)}

    def one_by_one(self, critic, batch):
        yield critic
        yield {"actor": self.actor_loss(batch)}

    def actor_loss(self, batch):
        return -self.q(self.critic, batch.obs, self.act(batch.obs)).mean()

    def q(self, critic, obs, action):
        return critic(torch.cat([obs, action], -1))[:, 0]

    def act(self, obs):
        return self.actor(obs).tanh()


def made(config, *seeds):
    generators = seeded(*seeds)
    return config.agent(plain.TASK, generators), generators


def train(agent, generators, updates):
    for _ in range(updates):
        seen = agent.update(plain.sample(SAMPLED, agent.config.batch_size, generators))
    return seen


VARIANTS = [
    Config(),
    Config(sequential=True),
    Config(sequential=True, optimiser="GaussNewton"),
    *(Config(optimiser=name) for name in ("AdamW", "SGD", "RMSprop", "Adagrad")),
]


@pytest.mark.parametrize("config", VARIANTS, ids=str)
def test_seeds_share_nothing(config):
    stacked, generators = made(config, 3, 4)
    metrics = train(stacked, generators, 5)
    assert {name: len(values) for name, values in metrics.items()} == {"critic_loss": 2, "actor_loss": 2}
    for i, seed in enumerate((3, 4)):
        alone, generator = made(config, seed)
        train(alone, generator, 5)
        for name, tensor in alone.state_dict().items():
            torch.testing.assert_close(stacked.state_dict()[name][i], tensor[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("config", VARIANTS, ids=str)
def test_a_restored_agent_continues_to_the_bit(config):
    whole, generators = made(config, 0, 1)
    train(whole, generators, 3)
    states = [{name: tensor[i].clone() for name, tensor in whole.state_dict().items()} for i in range(2)]
    again, again_generators = made(config, 7, 8)
    restore(again, states)
    for old, new in zip(generators, again_generators, strict=True):
        new.set_state(old.get_state())
    train(whole, generators, 4)
    train(again, again_generators, 4)
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, whole.state_dict()[name]), name
    assert again.agents[0].mean_q != 0


class Encoded(AutogradAgent):
    """The critic's loss also trains an encoder, which another optimiser steps."""

    def __init__(self, config, task):
        super().__init__(config, task)
        self.encoder, self.critic = nn.Linear(task.obs_dim, 8), nn.Linear(8, 1)
        self.optimisers["encoder"] = torch.optim.SGD(self.encoder.parameters(), lr=0.1)
        self.optimisers["critic"] = GaussNewton(self.critic, lr=1e-2)

    def losses(self, batch):
        q = self.critic(self.encoder(batch.obs))[:, 0]
        loss = (q - batch.reward).square().mean()
        losses = {"encoder": loss, "critic": (loss, q)}
        return losses if self.config.sequential else dict(reversed(losses.items()))

    def act(self, obs):
        return self.encoder(obs)


@pytest.mark.parametrize("encoder_first", [False, True])
def test_a_gauss_newton_step_leaves_the_gradients_of_other_optimisers_alone(encoder_first):
    generators = seeded(0)
    agent = Encoded.stack(Config(sequential=encoder_first), plain.TASK, generators)
    before = copy.deepcopy(agent.agents[0])
    batch = plain.sample(SAMPLED, 32, generators)
    agent.update(batch)
    q = before.critic(before.encoder(batch.obs[0]))[:, 0]
    (q - batch.reward[0]).square().mean().backward()
    expected = before.encoder.weight - 0.1 * before.encoder.weight.grad
    torch.testing.assert_close(agent.agents[0].encoder.weight, expected)


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD", "RMSprop", "Adagrad"])
def test_weight_decay_does_not_enter_the_averages_before_training(kind):
    options = {"momentum": 0.9} if kind == "SGD" else {}
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    for layer in (ours, theirs):
        optimiser = getattr(torch.optim, kind)(layer.parameters(), lr=0.1, weight_decay=0.01, **options)
        if layer is ours:
            create_state(optimiser)
        layer(torch.ones(1, 3)).sum().backward()
        optimiser.step()
    assert torch.equal(ours.weight, theirs.weight)


@pytest.mark.parametrize("sequential", [False, True])
def test_an_update_is_what_plain_torch_computes(sequential):
    """Simultaneous: all gradients at the old parameters. Sequential: the actor's after the critic's step."""
    agent, generators = made(Config(sequential=sequential), 0)
    theirs = copy.deepcopy(agent.agents[0])
    optimisers = {
        name: torch.optim.Adam(getattr(theirs, name).parameters(), lr=1e-2) for name in ("critic", "actor")
    }
    for _ in range(3):
        batch = plain.sample(SAMPLED, 32, generators)
        torch.default_generator.set_state(generators[0].get_state())
        agent.update(batch)
        losses = theirs.losses(batch.of_seed(0))
        for part in losses if sequential else [losses]:
            gradients = {
                name: torch.autograd.grad(loss, getattr(theirs, name).parameters(), retain_graph=True)
                for name, loss in part.items()
            }
            for name, gradient in gradients.items():
                for parameter, g in zip(getattr(theirs, name).parameters(), gradient, strict=True):
                    parameter.grad = g
                optimisers[name].step()
        plain.polyak_update(theirs.target_critic, theirs.critic, 0.1)
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(agent.state_dict()[name][0], parameter.detach(), rtol=1e-5, atol=1e-7)


def test_noise_comes_from_the_seed_s_generator_alone():
    agent, generators = made(Config(), 0)
    other, other_generators = made(Config(), 0)
    before = torch.get_rng_state()
    train(agent, generators, 2)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)
    train(other, other_generators, 2)
    for name, tensor in other.state_dict().items():
        assert torch.equal(tensor, agent.state_dict()[name]), name


def test_acting_has_no_dropout_and_the_initial_state_is_a_fresh_optimiser_s():
    agent, _ = made(Config(), 0)
    assert all(x.count_nonzero() == 0 for name, x in agent.state_dict().items() if "_optimiser." in name)
    obs = SAMPLED[None, :10, : plain.TASK.obs_dim]
    assert torch.equal(agent.act(obs), agent.act(obs))
    assert not agent.agents[0].training


def test_a_loss_without_an_optimiser_is_named():
    class Wrong(Small):
        def losses(self, batch):
            return {"value": self.actor_loss(batch)}

    generators = seeded(0)
    agent = Wrong.stack(Config(), plain.TASK, generators)
    with pytest.raises(UserError, match="no optimiser 'value'; there are: actor, critic"):
        train(agent, generators, 1)


def test_a_gauss_newton_loss_comes_with_its_values():
    class Wrong(Small):
        def losses(self, batch):
            return {"critic": self.actor_loss(batch)}

    generators = seeded(0)
    with pytest.raises(UserError, match=r"critic: a GaussNewton needs a pair \(loss, Q\)"):
        train(Wrong.stack(Config(optimiser="GaussNewton"), plain.TASK, generators), generators, 1)


def test_a_parameter_that_no_checkpoint_would_hold_is_refused():
    class Wrong(Small):
        def __init__(self, config, task):
            super().__init__(config, task)
            self.networks = [nn.Linear(2, 2)]  # a list does not register its modules
            self.optimisers["extra"] = torch.optim.Adam(self.networks[0].parameters())

    with pytest.raises(UserError, match=r"optimisers\['extra'\] has a parameter that is not registered"):
        Wrong.stack(Config(), plain.TASK, seeded(0))
