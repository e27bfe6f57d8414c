"""Plain versions of networks, K-FAC and Adam, with nn.Linear and autograd, for the references in tests.

They are float64 and for one seed: the fast code differs from them by rounding, or has a fault.
"""

import copy
import dataclasses

import torch
from torch import nn

from offline_gntd.tasks import Task
from offline_gntd.transitions import Sampler, from_rows, row_width

TASK = Task("HalfCheetah-v5", 5, 3, False, -280.0, 12135.0, "test")
UPDATES = 6


def rows(count=300, seed=0):
    """Random transitions, some with actions at ±1."""
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(count, row_width(TASK), generator=generator)
    made[:, TASK.obs_dim : TASK.obs_dim + TASK.action_dim].clamp_(-1, 1)
    made[:, -1] = (made[:, -1] > 1).float()
    return made


def sample(data, batch_size, generators):
    return Sampler(TASK, batch_size, generators)(data)


def statistics(data):
    obs = from_rows(data, TASK).obs
    return obs.mean(0), obs.std(0)


def small(config, **changes):
    """A preset with small networks and short periods."""
    changes = {"hidden_dims": (16, 12), "batch_size": 32} | changes
    if getattr(config, "kfac", None):
        changes["kfac"] = dataclasses.replace(config.kfac, factor_every=2, inverse_every=3)
    if hasattr(config, "vae_hidden_dims"):
        changes["vae_hidden_dims"] = (20, 18)
    return dataclasses.replace(config, **changes)


def net(network, *index):
    """Network `index` of a stack as plain modules."""
    modules = []
    for layer in network.layers:
        mat = layer[index].double()
        linear = nn.Linear(mat.shape[0] - 1, mat.shape[1], dtype=torch.double)
        linear.weight.data, linear.bias.data = mat[:-1].T.contiguous(), mat[-1].clone()
        modules += [linear, nn.ReLU()]
    return nn.Sequential(*modules[:-1])


def flat(module):
    """A plain network's parameters in the order of a stack's flat buffer."""
    linears = [m for m in module if isinstance(m, nn.Linear)]
    return torch.cat([torch.cat([m.weight.T, m.bias[None]]).detach().flatten() for m in linears])


def assert_same(network, *modules):
    """Compare a stack (1,) or (1, 2) with one or two plain networks."""
    wanted = torch.stack([flat(module) for module in modules])
    torch.testing.assert_close(network.flat[0].double().view_as(wanted), wanted, rtol=1e-4, atol=1e-6)


def polyak_update(target, online, tau):
    for old, new in zip(target.parameters(), online.parameters(), strict=True):
        old.data += tau * (new.data - old.data)


def double(batch):
    """The only seed's batch, in float64."""
    return type(batch)(*(column[0].double() for column in batch))


class Draws:
    """The noise that the fast code will draw next, from a copy of its generator."""

    def __init__(self, generator):
        self.generator = copy.copy(generator).clone_state()

    def normal(self, *shape):
        return torch.empty(shape).normal_(generator=self.generator).double()

    def uniform(self, *shape):
        return torch.empty(shape).uniform_(-1, 1, generator=self.generator).double()


class Curvature:
    """Algorithm 3 for one plain network: per-sample p̄ and q by autograd, (P + √ω I) ⊗ (G + √ω I) solved
    densely."""

    def __init__(self, kfac, module):
        self.kfac, self.module, self.count, self.factors, self.used = kfac, module, 0, {}, {}

    def precondition(self, x, value=lambda output: output):
        """Replace the gradients in place, with factors from the inputs x [batch, n]; `value` gives Q from
        the outputs."""
        kfac, inputs, outputs = self.kfac, [], []
        for m in self.module:
            if isinstance(m, nn.Linear):
                inputs.append(torch.cat([x, torch.ones_like(x[:, :1])], -1).detach())
                x = m(x)
                outputs.append(x)
            else:
                x = m(x)
        grad_outputs = torch.autograd.grad(value(x).sum() * kfac.output_scale, outputs)
        linears = [m for m in self.module if isinstance(m, nn.Linear)]
        for l, linear in enumerate(linears):
            batch = [each.T @ each / len(x) for each in (inputs[l], grad_outputs[l])]
            if self.count % kfac.factor_every == 0:
                self.factors[l] = self.averaged(self.factors.get(l), batch)
            if self.count % kfac.inverse_every == 0:
                self.used[l] = self.factors[l]
            P, G = (F + kfac.damping**0.5 * torch.eye(len(F), dtype=torch.double) for F in self.used[l])
            gradient = torch.cat([linear.weight.grad.T, linear.bias.grad[None]])
            step = torch.linalg.solve(torch.kron(P, G), gradient.flatten()).view_as(gradient)
            linear.weight.grad, linear.bias.grad = step[:-1].T.contiguous(), step[-1].contiguous()
        self.count += 1

    def averaged(self, old, batch):
        if old is None:
            identity = [torch.eye(len(F), dtype=torch.double) for F in batch]
            old = batch if self.kfac.start == "batch" else identity
        P, G = (
            self.kfac.ema_decay * a + (1 - self.kfac.ema_decay) * b for a, b in zip(old, batch, strict=True)
        )
        return P, (G if self.kfac.average == "both" else batch[1])


class Adam:
    """Adam with the fields of `Optimiser`, for plain networks clipped one by one."""

    def __init__(self, modules, learning_rate, config):
        self.modules, self.learning_rate, self.config, self.count = modules, learning_rate, config, 0
        self.means = {p: (torch.zeros_like(p), torch.zeros_like(p)) for m in modules for p in m.parameters()}

    def zero_grad(self):
        for p in self.means:
            p.grad = None

    def clip(self):
        if self.config.max_grad_norm is not None:
            for module in self.modules:
                nn.utils.clip_grad_norm_(module.parameters(), self.config.max_grad_norm)

    def step(self):
        config = self.config
        self.count += 1
        for p, (mean, square) in self.means.items():
            if config.kind == "plain":
                p.data -= self.learning_rate * p.grad
                continue
            mean.mul_(config.beta1).add_((1 - config.beta1) * p.grad)
            square.mul_(config.beta2).add_((1 - config.beta2) * p.grad**2)
            corrections = (1 - config.beta1**self.count, 1 - config.beta2**self.count)
            first, second = corrections if config.bias_correction else (1, 1)
            p.data -= self.learning_rate * (mean / first) / ((square / second).sqrt() + config.eps)


class TwinCritics:
    """Two plain critics with their targets and optimiser; with kfac, their curvature."""

    def __init__(self, agent):
        config = agent.config
        self.nets = [net(agent.critic.network, 0, i) for i in range(2)]
        self.targets = copy.deepcopy(self.nets)
        self.optimiser = Adam(self.nets, config.critic_learning_rate, config.critic_optimiser)
        self.curvatures = [Curvature(config.kfac, module) for module in self.nets] if config.kfac else []

    def values(self, obs, action, target=False):
        x = torch.cat([obs, action], -1)
        return torch.stack([module(x)[..., 0] for module in (self.targets if target else self.nets)])

    def step(self, loss, obs, action):
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.clip()
        for curvature in self.curvatures:
            curvature.precondition(torch.cat([obs, action], -1))
        self.optimiser.step()

    def polyak_update(self, tau):
        for target, online in zip(self.targets, self.nets, strict=True):
            polyak_update(target, online, tau)


def normalised(agent, obs, on):
    if not on:
        return obs
    mean, std = agent.statistics_given
    return (obs - mean.double()) / (std.double() + 1e-3)


def compare(config, reference_kind, seed=0, prepare=lambda agent: None):
    """Train the fast agent and a plain reference on the same batches and noise; returns both.

    `prepare` may change the new agent before the reference is made.
    """
    data = rows()
    generators = [torch.Generator().manual_seed(seed)]
    agent = config.agent(TASK, generators, statistics(data))
    agent.statistics_given = statistics(data)
    prepare(agent)
    reference = reference_kind(config, agent)
    for _ in range(UPDATES):
        batch = sample(data, config.batch_size, generators)
        draws = Draws(generators[0])
        agent.update(batch)
        reference.update(double(batch), draws)
    return agent, reference
