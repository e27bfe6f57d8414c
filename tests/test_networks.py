"""The tape against autograd."""

import pytest
import torch
from conftest import seeded

from offline_gntd.nn import mlp
from offline_gntd.nn.mlp import MLP, Tape


def autograd_output(network, x):
    """The same network by plain operations that autograd follows, from leaf weights."""
    leaves = [layer.detach().clone().requires_grad_() for layer in network.layers]
    for l, leaf in enumerate(leaves):
        x = torch.cat([x, torch.ones(*x.shape[:-1], 1)], dim=-1) @ leaf
        if l < len(leaves) - 1:
            x = x.relu()
    return x, leaves


@pytest.mark.parametrize("stack", [(1,), (3,), (2, 2)])
@pytest.mark.parametrize("dims", [(4, 3), (5, 16, 1), (4, 32, 16, 3)])
def test_tape_gradient_equals_autograd(stack, dims):
    network = MLP(dims, stack).initialise(seeded(*range(stack[0])))
    x = torch.randn(*stack, 8, dims[0], generator=torch.Generator().manual_seed(7))
    weight, grad_output = torch.randn(*stack, 8), torch.randn(*stack, 8, dims[-1])
    tape = Tape(network, 8)
    output = tape.forward(x)
    expected, leaves = autograd_output(network, x)
    torch.testing.assert_close(output, expected.detach())
    torch.testing.assert_close(network(x), expected.detach())
    tape.backward(grad_output)
    gradient = torch.zeros_like(network.flat)
    tape.parameter_grad(gradient, weight)
    (expected * grad_output * weight[..., None]).sum().backward()
    for layer, leaf in zip(network.views(gradient), leaves, strict=True):
        torch.testing.assert_close(layer, leaf.grad, rtol=1e-4, atol=1e-5)


def test_input_gradient_equals_autograd():
    network = MLP((5, 16, 1), (2,)).initialise(seeded(0, 1))
    x = torch.randn(2, 8, 5, generator=torch.Generator().manual_seed(7)).requires_grad_()
    tape = Tape(network, 8)
    tape.forward(x.detach()[..., :3], x.detach()[..., 3:])
    tape.backward(1.0)
    autograd_output(network, x)[0].sum().backward()
    torch.testing.assert_close(tape.input_grad(start=3), x.grad[..., 3:])


def test_layers_are_views_of_one_buffer_with_the_seed_first():
    network = MLP((3, 4, 2), (2,)).initialise(seeded(0, 1))
    assert network.flat.shape == (2, 4 * 4 + 5 * 2)
    network.flat[1].zero_()
    assert all((layer[1] == 0).all() and (layer[0] != 0).any() for layer in network.layers)


def test_initial_weights_depend_on_the_seed_alone():
    alone = MLP((3, 8, 2), (1,)).initialise(seeded(5))
    stacked = MLP((3, 8, 2), (3,)).initialise(seeded(1, 5, 9))
    torch.testing.assert_close(stacked.flat[1], alone.flat[0], rtol=0, atol=0)


def test_initial_weights_are_within_the_bound_of_nn_linear():
    network = MLP((16, 64, 1), (1,)).initialise(seeded(0))
    for layer, fan_in in zip(network.layers, (16, 64), strict=True):
        assert layer.abs().max() <= fan_in**-0.5
        assert layer.abs().max() > 0.9 * fan_in**-0.5


def test_a_copy_shares_no_weights():
    network = MLP((2, 2), (1,)).initialise(seeded(0))
    twin = network.copy()
    twin.flat.zero_()
    assert (network.flat != 0).any()


def passed(tape, x):
    """The output and the gradient of Σ output, after a pass over x."""
    output, gradient = tape.forward(x).clone(), torch.zeros_like(tape.network.flat)
    tape.backward(1.0)
    tape.parameter_grad(gradient, torch.ones(*tape.network.stack, tape.batch))
    return output, gradient, tape.input_grad()


def relative_error(measured, expected):
    return ((measured - expected).norm() / expected.norm()).item()


def test_bfloat16_passes_approximate_float32_and_use_the_current_parameters():
    exact = MLP((5, 64, 64, 1), (2, 2)).initialise(seeded(0, 1))
    rounded = MLP((5, 64, 64, 1), (2, 2), precision="bfloat16").initialise(seeded(0, 1))
    assert torch.equal(exact.flat, rounded.flat)
    tapes = Tape(exact, 32), Tape(rounded, 32)
    x = torch.randn(2, 2, 32, 5, generator=torch.Generator().manual_seed(7))
    for _ in range(2):
        for expected, measured in zip(*(passed(tape, x) for tape in tapes), strict=True):
            assert measured.dtype == torch.float32
            assert 0 < relative_error(measured, expected) < 0.1
        exact.flat.mul_(2)
        rounded.flat.mul_(2)


def test_copies_and_members_keep_the_precision():
    network = MLP((5, 8, 1), (2, 2), precision="bfloat16").initialise(seeded(0, 1))
    for other in (network.copy(), network.member(1)):
        assert Tape(other, 4).inputs[0].dtype == torch.bfloat16
    assert torch.equal(network.member(1).flat, network.flat[:, 1])


def test_a_cpu_without_bfloat16_products_is_reported_once(monkeypatch, capsys):
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    mlp.warn_if_bfloat16_is_slow.cache_clear()
    for _ in range(2):
        Tape(MLP((5, 1), (1,), precision="bfloat16"), 4)
    assert capsys.readouterr().err.count("no AVX512-BF16") == 1
    mlp.warn_if_bfloat16_is_slow.cache_clear()
