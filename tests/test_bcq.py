"""BCQ against a plain reference, and the choice it acts by."""

import copy

import plain
import pytest
import torch

from offline_gntd.algorithms import CATALOGUE


class Reference:
    def __init__(self, config, agent):
        self.config = config
        self.encoder, self.decoder = plain.net(agent.encoder.network, 0), plain.net(agent.decoder.network, 0)
        vae = [*self.encoder.parameters(), *self.decoder.parameters()]
        self.vae_optimiser = torch.optim.Adam(vae, lr=config.vae_learning_rate)
        self.actor = plain.net(agent.actor.network, 0)
        self.target_actor = copy.deepcopy(self.actor)
        self.actor_optimiser = torch.optim.Adam(self.actor.parameters(), lr=config.actor_learning_rate)
        self.critics = plain.TwinCritics(agent)

    def decode(self, obs, latent):
        return self.decoder(torch.cat([obs, latent], -1)).tanh()

    def perturb(self, actor, obs, action):
        moved = action + self.config.perturbation * actor(torch.cat([obs, action], -1)).tanh()
        return moved.clamp(-1, 1)

    def update(self, batch, draws):
        config, obs, latent = self.config, batch.obs, 2 * plain.TASK.action_dim
        mean, log_std = self.encoder(torch.cat([obs, batch.action], -1)).chunk(2, -1)
        posterior = torch.distributions.Normal(mean, log_std.clamp(-4, 15).exp())
        z = posterior.loc + posterior.scale * draws.normal(*mean.shape)
        prior = torch.distributions.Normal(torch.zeros_like(mean), 1)
        divergence = torch.distributions.kl_divergence(posterior, prior).mean()
        fit = torch.nn.functional.mse_loss(self.decode(obs, z), batch.action)
        self.vae_optimiser.zero_grad()
        (fit + config.kl_weight * divergence).backward()
        self.vae_optimiser.step()

        with torch.no_grad():
            next_obs = batch.next_obs.repeat_interleave(config.candidates, 0)
            action = self.decode(next_obs, draws.normal(len(next_obs), latent).clamp(-0.5, 0.5))
            action = self.perturb(self.target_actor, next_obs, action)
            low, high = self.critics.values(next_obs, action, target=True).sort(0).values
            next_value = config.clipping * low + (1 - config.clipping) * high
            next_value = next_value.view(len(obs), config.candidates).max(1).values
            target = batch.reward + config.discount * (1 - batch.terminated) * next_value
        values = self.critics.values(obs, batch.action)
        loss = sum(torch.nn.functional.mse_loss(value, target) for value in values)
        self.critics.step(loss, obs, batch.action)

        proposed = self.decode(obs, draws.normal(len(obs), latent).clamp(-0.5, 0.5)).detach()
        actor_loss = -self.critics.values(obs, self.perturb(self.actor, obs, proposed))[0].mean()
        self.actor_optimiser.zero_grad()
        actor_loss.backward()
        self.actor_optimiser.step()
        self.critics.polyak_update(config.tau)
        plain.polyak_update(self.target_actor, self.actor, config.tau)


@pytest.mark.parametrize("name", ["bcq", "gn_bcq"])
@pytest.mark.parametrize("at_the_edge", [False, True])
def test_update_equals_a_plain_reference(name, at_the_edge):
    config = plain.small(CATALOGUE[name].config, perturbation=0.9 if at_the_edge else 0.05)

    def generate_large_actions(agent):  # so that many perturbed ones are clipped
        agent.decoder.network.flat *= 5 if at_the_edge else 1

    agent, reference = plain.compare(config, Reference, prepare=generate_large_actions)
    for part in ("encoder", "decoder", "actor"):
        plain.assert_same(getattr(agent, part).network, getattr(reference, part))
    plain.assert_same(agent.critic.network, *reference.critics.nets)
    plain.assert_same(agent.target_actor.network, reference.target_actor)
    plain.assert_same(agent.target_critic.network, *reference.critics.targets)


def test_act_takes_the_best_candidate_and_is_deterministic():
    config = plain.small(CATALOGUE["bcq"].config)
    agent, reference = plain.compare(config, Reference)
    obs = plain.rows(7)[:, : plain.TASK.obs_dim]
    chosen = agent.act(obs[None])[0]
    torch.manual_seed(5)
    assert torch.equal(chosen, agent.act(obs[None])[0])
    assert torch.allclose(chosen[2:4], agent.act(obs[None, 2:4])[0], atol=1e-6)
    latent = torch.empty(100, 2 * plain.TASK.action_dim).normal_(generator=torch.Generator().manual_seed(0))
    for row, action in zip(obs.double(), chosen, strict=True):
        many = row.expand(100, -1)
        candidates = reference.decode(many, latent.double().clamp(-0.5, 0.5))
        candidates = reference.perturb(reference.actor, many, candidates)
        best = candidates[reference.critics.values(many, candidates)[0].argmax()]
        torch.testing.assert_close(action.double(), best, rtol=1e-3, atol=1e-5)
