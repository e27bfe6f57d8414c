"""d3rlpy as a referee for continuous algorithms: same weights, batch and noise, same losses and gradients.

One's own reference shares one's own misreadings. Where d3rlpy's algorithm is another one, the test says so at
the line that levels it, and docs/algorithms/ says which of the two we follow.
"""

import dataclasses
import math

import pytest
import torch

pytest.importorskip("d3rlpy")

from d3rlpy.algos import BCQConfig, CQLConfig, IQLConfig, ReBRACConfig, TD3PlusBCConfig
from d3rlpy.models import VectorEncoderFactory
from d3rlpy.models.torch import VAEDecoder
from d3rlpy.torch_utility import TorchMiniBatch

from offline_gntd.algorithms.bcq import BCQ
from offline_gntd.algorithms.cql import CQL
from offline_gntd.algorithms.iql import IQL
from offline_gntd.algorithms.rebrac import ReBRAC
from offline_gntd.algorithms.td3_bc import TD3BC
from offline_gntd.tasks import Task
from offline_gntd.transitions import Batch, from_rows, row_width

pytestmark = pytest.mark.conformance

TASK = Task("HalfCheetah-v5", 5, 3, False, -280.0, 12135.0, "test")
WIDTHS, BATCH = (16, 12), 32


def encoder(hidden_dims=WIDTHS):
    return VectorEncoderFactory(list(hidden_dims))


def created(config):
    algorithm = config.create(device="cpu")
    algorithm.create_impl((TASK.obs_dim,), TASK.action_dim)
    return algorithm.impl


def batch(seed):
    """A batch as ours, [1, batch, …], and as theirs."""
    generator = torch.Generator().manual_seed(100 + seed)
    rows = torch.empty(BATCH, row_width(TASK)).normal_(generator=generator)
    rows[:, TASK.obs_dim : TASK.obs_dim + TASK.action_dim].clamp_(-0.99, 0.99)
    rows[:, -1] = (rows[:, -1] > 1).float()
    ours = from_rows(rows[None], TASK)
    column = {name: values[0].reshape(BATCH, -1) for name, values in ours._asdict().items()}
    theirs = TorchMiniBatch(
        observations=column["obs"],
        actions=column["action"],
        rewards=column["reward"],
        next_observations=column["next_obs"],
        next_actions=column["action"],  # not used by these algorithms
        returns_to_go=column["reward"],  # nor this
        terminals=column["terminated"],
        intervals=torch.ones(BATCH, 1),
        device="cpu",
    )
    return ours, theirs


def linears(module):
    return [m for m in module.modules() if isinstance(m, torch.nn.Linear)]


def mats(module, values):
    """A network of theirs, layer by layer as ours; heads that share an input are one layer side by side."""
    found = [torch.cat([values(m.weight).T, values(m.bias)[None]]) for m in linears(module)]
    if (
        len(found) > 1
        and found[-1].shape[0] == found[-2].shape[0]
        and "_logstd" in dict(module.named_children())
    ):
        found[-2:] = [torch.cat(found[-2:], -1)]
    return torch.cat([mat.detach().flatten() for mat in found])


def load(network, index, module):
    """Give a network of theirs our weights."""
    modules = linears(module)
    for l, layer in enumerate(network.layers):
        mat = layer[index]
        heads = modules[l:] if l == len(network.layers) - 1 else [modules[l]]
        for head, part in zip(heads, mat.split([h.out_features for h in heads], -1), strict=True):
            head.weight.data.copy_(part[:-1].T)
            head.bias.data.copy_(part[-1])


def same(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def weights(parameter):
    return parameter


def gradients(parameter):
    return parameter.grad


def stacked(modules, values):
    return torch.stack([mats(module, values) for module in modules])


@pytest.fixture
def noise(monkeypatch):
    """Noise that both sides draw: ours from its generator, theirs from a queue of what ours will be."""
    queue = []

    def take(shape):
        drawn = queue.pop(0)
        assert tuple(drawn.shape) == tuple(shape), (drawn.shape, shape)
        return drawn

    def randn(*shape, device=None):
        return take(shape[0] if isinstance(shape[0], tuple | torch.Size) else shape)

    def rsample(self, shape=()):
        return self.loc + self.scale * take((*shape, *self.loc.shape))

    def draw(generator, *shapes, uniform=()):
        copied = torch.Generator()
        copied.set_state(generator.get_state())
        drawn = [torch.empty(shape).normal_(generator=copied) for shape in shapes]
        return drawn + [torch.empty(shape).uniform_(-1, 1, generator=copied) for shape in uniform]

    monkeypatch.setattr(torch, "randn", randn)
    monkeypatch.setattr(torch.distributions.Normal, "rsample", rsample)
    return queue, draw


def test_td3_bc(noise):
    queue, draw = noise
    config = TD3PlusBCConfig(actor_encoder_factory=encoder(), critic_encoder_factory=encoder())
    impl, generator = created(config), torch.Generator().manual_seed(0)
    agent = TD3BC(hidden_dims=WIDTHS, batch_size=BATCH).agent(TASK, [generator])
    modules = impl._modules
    for policy in (modules.policy, modules.targ_policy):
        load(agent.actor.network, (0,), policy)
    for i in range(2):
        for critics in (modules.q_funcs, modules.targ_q_funcs):
            load(agent.critic.network, (0, i), critics[i])
    for step in range(1, 7):
        ours, theirs = batch(step)
        queue[:] = draw(generator, (BATCH, TASK.action_dim))
        metrics, losses = agent.update(ours), impl.inner_update(theirs, step)
        same(2 * metrics["loss"][0].mean(), torch.tensor(losses["critic_loss"]))  # they add the twins
        if step % 2:  # their actor's backward pass adds to the critics' gradients
            same(agent.critic.gradient[0], stacked(modules.q_funcs, gradients))
        else:
            same(agent.actor.gradient[0], mats(modules.policy, gradients))
    same(agent.actor.network.flat[0], mats(modules.policy, weights))
    same(agent.critic.network.flat[0], stacked(modules.q_funcs, weights))
    same(agent.target_actor.network.flat[0], mats(modules.targ_policy, weights))
    same(agent.target_critic.network.flat[0], stacked(modules.targ_q_funcs, weights))


def test_bcq(noise, monkeypatch):
    queue, draw = noise
    # named difference: `with_squash` of their decoder means without, so that their actions are not squashed
    forward = VAEDecoder.forward
    monkeypatch.setattr(VAEDecoder, "forward", lambda self, x, z, squash: forward(self, x, z, False))
    impl = created(
        BCQConfig(
            actor_encoder_factory=encoder(),
            critic_encoder_factory=encoder(),
            imitator_encoder_factory=encoder((20, 18)),
            n_action_samples=10,  # named difference: theirs is 100, in the target too
        )
    )
    generator, latent = torch.Generator().manual_seed(0), 2 * TASK.action_dim
    agent = BCQ(hidden_dims=WIDTHS, vae_hidden_dims=(20, 18), batch_size=BATCH).agent(TASK, [generator])
    modules = impl._modules
    load(agent.encoder.network, (0,), modules.vae_encoder)
    load(agent.decoder.network, (0,), modules.vae_decoder)
    for policy in (modules.policy, modules.targ_policy):
        load(agent.actor.network, (0,), policy)
    for i in range(2):
        for critics in (modules.q_funcs, modules.targ_q_funcs):
            load(agent.critic.network, (0, i), critics[i])
    for step in range(5):
        ours, theirs = batch(step)
        queue[:] = draw(generator, (BATCH, latent), (10 * BATCH, latent), (BATCH, latent))
        metrics, losses = agent.update(ours), impl.inner_update(theirs, step)
        same(metrics["vae_loss"][0], torch.tensor(losses["vae_loss"]))
        same(2 * metrics["loss"][0].mean(), torch.tensor(losses["critic_loss"]))
        same(agent.encoder.gradient[0], mats(modules.vae_encoder, gradients))
        same(agent.actor.gradient[0], mats(modules.policy, gradients))
    same(agent.encoder.network.flat[0], mats(modules.vae_encoder, weights))
    same(agent.decoder.network.flat[0], mats(modules.vae_decoder, weights))
    same(agent.actor.network.flat[0], mats(modules.policy, weights))
    same(agent.critic.network.flat[0], stacked(modules.q_funcs, weights))
    same(agent.target_critic.network.flat[0], stacked(modules.targ_q_funcs, weights))


def test_cql(noise, monkeypatch):
    queue, draw = noise
    impl = created(
        CQLConfig(
            actor_encoder_factory=encoder(),
            critic_encoder_factory=encoder(),
            alpha_threshold=0.0,  # named difference: their default is the Lagrangian version
            alpha_learning_rate=0.0,
            temp_learning_rate=0.0,  # set by hand below: they step α itself, we its logarithm, as the authors
            initial_temperature=math.exp(-1e-4),  # ours after its first step; theirs is read after it too
        )
    )
    generator, samples = torch.Generator().manual_seed(0), 10
    config = CQL(hidden_dims=WIDTHS, batch_size=BATCH, warm_up=0)  # named difference: they have no warm-up
    agent = config.agent(TASK, [generator])
    modules = impl._modules
    load(agent.policy.network, (0,), modules.policy)
    for i in range(2):
        for critics in (modules.q_funcs, modules.targ_q_funcs):
            load(agent.critic.network, (0, i), critics[i])
    ours, theirs = batch(0)
    shape = (BATCH, 1 + samples, TASK.action_dim)
    now, after, random = draw(generator, shape, shape, uniform=[(BATCH, samples, TASK.action_dim)])
    monkeypatch.setattr(
        torch.Tensor, "uniform_", lambda self, *_, **__: self.copy_(random.flatten(0, 1)), raising=False
    )

    # the policy's loss, before any step
    queue[:] = [now[:, 0]]
    loss = impl.compute_actor_loss(theirs, modules.policy(theirs.observations))
    modules.actor_optim.zero_grad()
    loss.actor_loss.backward()
    policy_gradient = mats(modules.policy, gradients)

    # named difference: they bootstrap from the mean action, we as the authors from a sampled one
    with torch.no_grad():
        output = modules.policy(theirs.next_observations)
        action = (output.mu + output.logstd.exp() * after[:, 0]).tanh()
        next_value = impl._targ_q_func_forwarder.compute_target(theirs.next_observations, action, "min")
    queue[:] = [now[:, 1:].transpose(0, 1), after[:, 1:].transpose(0, 1)]
    modules.critic_optim.zero_grad()
    loss = impl.compute_critic_loss(theirs, next_value)
    loss.critic_loss.backward()

    monkeypatch.undo()
    metrics = agent.update(ours)
    same(agent.policy.gradient[0], policy_gradient)
    same(agent.critic.gradient[0], stacked(modules.q_funcs, gradients))
    same(2 * metrics["loss"][0].mean(), (loss.critic_loss - loss.conservative_loss).detach())
    same(2 * config.alpha * metrics["conservative_gap"][0].mean(), loss.conservative_loss.detach())


def test_iql():
    """One update, loss by loss: they step Q and V at once, we V first, as the authors do."""
    impl = created(
        IQLConfig(
            actor_encoder_factory=encoder(),
            critic_encoder_factory=encoder(),
            value_encoder_factory=encoder(),
        )
    )
    agent = IQL(hidden_dims=WIDTHS, batch_size=BATCH).agent(TASK, [torch.Generator().manual_seed(0)])
    modules = impl._modules
    # named difference: their log σ is −5 + 7 sigmoid(x), ours is clipped to [−5, 2]; both 0 here
    modules.policy._logstd.data.fill_(math.log(5 / 2))
    load(agent.policy.network, (0,), modules.policy)
    load(agent.state_value.network, (0,), modules.value_func)
    for i in range(2):
        for critics in (modules.q_funcs, modules.targ_q_funcs):
            load(agent.critic.network, (0, i), critics[i])
    ours, theirs = batch(0)
    metrics = agent.update(ours)

    value_loss = impl.compute_value_loss(theirs)
    value_loss.backward()
    same(metrics["value_loss"][0].mean(), value_loss.detach())
    same(agent.state_value.gradient[0], mats(modules.value_func, gradients))

    load(agent.state_value.network, (0,), modules.value_func)  # after our step
    impl.compute_actor_loss(theirs, modules.policy(theirs.observations)).actor_loss.backward()
    same(agent.policy.gradient[0], mats(modules.policy, gradients))
    log_std_gradient = agent.log_std_optimiser.mean[0] / 0.1  # Adam's mean after one step
    same(log_std_gradient * 10 / 7, modules.policy._logstd.grad[0])  # the derivative of 7 sigmoid

    loss = impl.compute_critic_loss(theirs, impl.compute_target(theirs))
    loss.q_loss.backward()
    same(2 * metrics["loss"][0].mean(), loss.q_loss.detach())
    same(agent.critic.gradient[0], stacked(modules.q_funcs, gradients))


def test_rebrac(noise):
    queue, draw = noise
    normed = VectorEncoderFactory(list(WIDTHS), use_layer_norm=True)
    impl = created(
        ReBRACConfig(
            actor_encoder_factory=encoder(),
            critic_encoder_factory=normed,
            actor_beta=0.01,  # named difference: theirs is 0.001
        )
    )
    generator = torch.Generator().manual_seed(0)
    stack = ReBRAC(hidden_dims=WIDTHS, batch_size=BATCH).agent(TASK, [generator])
    [agent], modules = stack.agents, impl._modules
    pairs = [(agent.actor, modules.policy), (agent.target_actor, modules.targ_policy)]
    for i in range(2):
        pairs.append((agent.critic.critics[i], modules.q_funcs[i]))
        pairs.append((agent.target_critic.critics[i], modules.targ_q_funcs[i]))
    for mine, yours in pairs:
        for source, copy in zip(mine.parameters(), yours.parameters(), strict=True):
            copy.data.copy_(source)
        for module in yours.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.eps = 1e-6  # named difference: theirs is torch's 1e-5, ours Flax's
    for step in range(1, 7):
        ours, theirs = batch(step)
        # an episode: every row but the last begins where the one before it ended
        rows = torch.cat([ours.obs[0], ours.action[0], ours.reward[0, :, None]], -1)
        following = torch.cat([ours.obs[0, 1:], ours.next_obs[0, -1:]])
        rows = torch.cat([rows, following, ours.terminated[0, :, None]], -1)
        end = torch.cat([following[-1], torch.zeros(row_width(TASK) - TASK.obs_dim)])
        ours = Batch(*from_rows(rows[None], TASK))
        ours.rows, ours.row_index = torch.cat([rows, end[None]]), torch.arange(BATCH)[None]
        next_actions = torch.cat([rows[1:], end[None]])[:, TASK.obs_dim : TASK.obs_dim + TASK.action_dim]
        theirs = dataclasses.replace(theirs, next_observations=following, next_actions=next_actions)
        queue[:] = draw(generator, (BATCH, TASK.action_dim))
        metrics, losses = stack.update(ours), impl.inner_update(theirs, step)
        same(metrics["critic_loss"][0], torch.tensor(losses["critic_loss"]))
        if step % 2 == 0:
            same(metrics["actor_loss"][0], torch.tensor(losses["actor_loss"]))
    for mine, yours in pairs:
        for one, other in zip(mine.parameters(), yours.parameters(), strict=True):
            same(one.detach(), other.detach())


def test_the_defaults_that_are_said_to_be_the_same_are():
    ours, theirs = TD3BC(), TD3PlusBCConfig()
    assert (ours.actor_learning_rate, ours.critic_learning_rate) == (
        theirs.actor_learning_rate,
        theirs.critic_learning_rate,
    )
    assert (ours.batch_size, ours.discount, ours.tau, ours.alpha, ours.policy_freq) == (
        theirs.batch_size,
        theirs.gamma,
        theirs.tau,
        theirs.alpha,
        theirs.update_actor_interval,
    )
    iql, their_iql = IQL(), IQLConfig()
    assert (iql.expectile, iql.inverse_temperature, iql.max_weight, iql.tau) == (
        their_iql.expectile,
        their_iql.weight_temp,
        their_iql.max_weight,
        their_iql.tau,
    )
    rebrac, their_rebrac = ReBRAC(), ReBRACConfig()
    assert (rebrac.batch_size, rebrac.critic_learning_rate, rebrac.critic_bc_weight, rebrac.policy_freq) == (
        their_rebrac.batch_size,
        their_rebrac.critic_learning_rate,
        their_rebrac.critic_beta,
        their_rebrac.update_actor_interval,
    )
    assert dataclasses.asdict(CQL())["alpha"] == CQLConfig().conservative_weight
    assert (BCQ().clipping, BCQ().perturbation, BCQ().kl_weight) == (
        BCQConfig().lam,
        BCQConfig().action_flexibility,
        BCQConfig().beta,
    )
