"""The Gauss-Newton step for any nn.Module against the fast path."""

import copy
import re
from pathlib import Path

import plain
import pytest
import torch
from conftest import seeded
from torch import nn

from offline_gntd import GaussNewton
from offline_gntd.errors import UserError
from offline_gntd.nn.critic import Critic
from offline_gntd.nn.kfac import KFAC
from offline_gntd.nn.mlp import MLP
from offline_gntd.nn.optimisers import Optimiser

BATCH = 32


def batches(count):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(BATCH, 6, generator=generator).split([5, 1], -1) for _ in range(count)]


def loss_of(value, target):
    return (value - target).square().mean()


@pytest.mark.parametrize("optimiser", ["adam", "plain"])
@pytest.mark.parametrize(
    "settings", [{}, {"average": "P", "start": "batch"}, {"split": "trace"}, {"output_scale": 0.5}]
)
@pytest.mark.parametrize("max_grad_norm", [None, 0.05])
def test_it_equals_the_fast_path(optimiser, settings, max_grad_norm):
    settings = {"factor_every": 2, "inverse_every": 3, **settings}
    network = MLP((5, 16, 12, 1), (1,)).initialise(seeded(0))
    module = plain.net(network, 0).float()
    fast = Critic(network, BATCH, 1e-2, Optimiser(optimiser, max_grad_norm=max_grad_norm), KFAC(**settings))
    step = GaussNewton(module, lr=1e-2, optimiser=optimiser, max_grad_norm=max_grad_norm, **settings)
    for x, y in batches(8):
        value = fast.forward(x[None])[..., 0]
        fast.update((value - y.T) * (2 / BATCH))
        q = module(x)
        step.step(loss_of(q, y), q)
    torch.testing.assert_close(network.flat[0], plain.flat(module), rtol=1e-4, atol=1e-5)


class Twins(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = (nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1)) for _ in range(2))

    def forward(self, x):
        return self.one(x), self.two(x)


def test_twin_critics_in_one_module_are_stepped_like_two():
    twins = Twins()
    singles = copy.deepcopy([twins.one, twins.two])
    together = GaussNewton(twins, factor_every=1, inverse_every=2)
    apart = [GaussNewton(module, factor_every=1, inverse_every=2) for module in singles]
    for x, y in batches(4):
        first, second = twins(x)
        together.step(loss_of(first, y) + loss_of(second, y), (first, second))
        for module, step in zip(singles, apart, strict=True):
            q = module(x)
            step.step(loss_of(q, y), q)
    for module, single in zip((twins.one, twins.two), singles, strict=True):
        torch.testing.assert_close(plain.flat(module), plain.flat(single))


def mixed():
    torch.manual_seed(1)
    return nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 8, bias=False), nn.ReLU(), nn.Linear(8, 1))


def test_other_parameters_get_the_plain_gradient():
    module = mixed()
    before = copy.deepcopy(module)
    step = GaussNewton(module, lr=0.1, optimiser="plain")
    [(x, y)] = batches(1)
    q = module(x)
    step.step(loss_of(q, y), q)
    loss_of(before(x), y).backward()
    torch.testing.assert_close(module[0].weight, before[0].weight - 0.1 * before[0].weight.grad)
    assert not torch.allclose(module[1].weight, before[1].weight - 0.1 * before[1].weight.grad)


def test_a_restored_state_continues_exactly():
    def train(module, step, data):
        for x, y in data:
            q = module(x)
            step.step(loss_of(q, y), q)

    module, data = mixed(), batches(9)
    step = GaussNewton(module, factor_every=2, inverse_every=3)
    train(module, step, data[:4])
    again = copy.deepcopy(module)
    restored = GaussNewton(again, factor_every=2, inverse_every=3)
    restored.load_state_dict(copy.deepcopy(step.state_dict()))
    train(module, step, data[4:])
    train(again, restored, data[4:])
    for one, other in zip(module.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_passes_of_a_copied_target_network_are_not_recorded():
    module, other = mixed(), mixed()
    steps = [GaussNewton(each) for each in (module, other)]
    target_network = copy.deepcopy(other)
    [(x, y)] = batches(1)
    q = module(x)
    steps[0].step(loss_of(q, y), q)
    q = other(x)
    target_network(x + 1)
    steps[1].step(loss_of(q, y), q)
    for one, two in zip(module.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x):
        return self.layer(self.layer(x).relu()).sum(-1, keepdim=True)


def test_unsupported_uses_raise_errors():
    [(x, y)] = batches(1)
    module = Shared()
    step = GaussNewton(module)
    q = module(x)
    with pytest.raises(UserError, match="uses twice"):
        step.step(loss_of(q, y), q)
    with pytest.raises(UserError, match=r"at least one nn\.Linear"):
        GaussNewton(nn.LayerNorm(3))
    with pytest.raises(UserError, match="adam or plain"):
        GaussNewton(mixed(), optimiser="sgd")
    with pytest.raises(ValueError, match="damping"):
        GaussNewton(mixed(), damping=-1)
    module = mixed()
    step = GaussNewton(module)
    with pytest.raises(UserError, match="did not use"):
        step.step(torch.tensor(0.0), torch.tensor(0.0))


def test_a_pass_without_gradients_may_come_before_the_step():
    """Double DQN: the critic chooses the next action between its forward pass and the step."""
    [(x, y)] = batches(1)
    torch.manual_seed(0)
    once, twice = mixed(), mixed()
    twice.load_state_dict(once.state_dict())
    for module in (once, twice):
        step, q = GaussNewton(module), module(x)
        if module is twice:
            with torch.no_grad():
                module(x + 1)
        step.step(loss_of(q, y), q)
    for old, new in zip(once.parameters(), twice.parameters(), strict=True):
        assert torch.equal(old, new)


EXAMPLE = Path(__file__).parents[1] / "examples/td3_bc_with_gauss_newton.py"


@pytest.mark.parametrize("algorithm", ["GNTD3+BC", "TD3+BC"])
def test_the_example_trains_with_and_without_its_three_lines(algorithm):
    source, marks = EXAMPLE.read_text(), r"^( *)# TD3\+BC: (.*)\n.*# \(\d\)$"
    assert len(re.findall(marks, source, re.MULTILINE)) == 3
    if algorithm == "TD3+BC":
        source = re.sub(marks, r"\1\2", source, flags=re.MULTILINE)
        assert "GaussNewton" not in source
    names = {"__name__": "example"}
    exec(compile(source, EXAMPLE, "exec"), names)
    torch.manual_seed(0)
    agent = names["train"](plain.from_rows(plain.rows(), plain.TASK), steps=4)
    assert isinstance(agent.critic_optimiser, GaussNewton) == (algorithm == "GNTD3+BC")
    assert agent.updates == 4
    for old, new in zip(agent.target_critic.parameters(), agent.critic.parameters(), strict=True):
        assert new.isfinite().all()
        assert not torch.equal(old, new)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu():
    module = mixed().cuda()
    step = GaussNewton(module)
    for x, y in batches(3):
        q = module(x.cuda())
        step.step(loss_of(q, y.cuda()), q)
    assert all(p.isfinite().all() for p in module.parameters())
