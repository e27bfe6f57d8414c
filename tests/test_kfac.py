"""K-FAC where it is exact, and the guard where it cannot be."""

import pytest
import torch
from conftest import seeded

from offline_gntd.nn import linalg
from offline_gntd.nn.critic import Critic
from offline_gntd.nn.exact import dense_direction, gauss_newton_weights, jacobian
from offline_gntd.nn.kfac import HALVES, KFAC, ROOT, WHOLE, KroneckerFactors, leading
from offline_gntd.nn.linalg import SMALL
from offline_gntd.nn.mlp import MLP, Gradient, Tape

pytestmark = pytest.mark.usefixtures("library")


def second_moment(x):
    """E[x xᵀ] over the samples of x [..., batch, n]."""
    return x.mT @ x / x.shape[-2]


def recorded_tape(widths, batch, stack=(2,), seed=0, positive=False):
    """A tape after both passes. `positive` makes every unit active, so that the net is deep linear."""
    network = MLP(widths, stack).initialise(seeded(*range(stack[0])))
    x = torch.randn(*stack, batch, widths[0], generator=torch.Generator().manual_seed(seed))
    if positive:
        network.flat.abs_()
        x = x.abs()
    tape = Tape(network, batch)
    tape.forward(x)
    tape.backward(torch.ones(*stack, batch, 1))
    return tape


def play(tape, other):
    """Let the tape hold what the other does."""
    for buffer, held in zip(tape.inputs + tape.signals, other.inputs + other.signals, strict=True):
        buffer.copy_(held)


def factors_of(tape, config):
    return KroneckerFactors(config, Gradient(tape, torch.zeros_like(tape.network.flat)))


def block_of(J, tape, l):
    """The columns of the Jacobian that belong to layer l."""
    sizes = [w[0].numel() for w in tape.weights]
    return J[..., sum(sizes[:l]) : sum(sizes[: l + 1])]


def kronecker(P, G):
    """P ⊗ G for row-major Mat(θ) [fan_in + 1, fan_out]."""
    return torch.stack([torch.kron(p, g) for p, g in zip(P, G, strict=True)])


@pytest.mark.parametrize(
    ("batch", "positive"), [(64, True), (1, False)], ids=["deep linear net", "one sample"]
)
def test_kfac_block_is_gauss_newton_where_that_is_exact(batch, positive):
    tape = recorded_tape((3, 5, 4, 1), batch, positive=positive)
    J = jacobian(tape)
    for l in range(3):
        block = block_of(J, tape, l)
        gauss_newton = block.mT @ block / batch
        factored = kronecker(second_moment(tape.inputs[l]), second_moment(tape.signals[l]))
        torch.testing.assert_close(factored, gauss_newton, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("hidden_dims", "inverse_every", "forms"),
    [
        ((1, 8, 6, 1), 20, [WHOLE] * 6),
        ((1, 8, 6, 1), 1, [WHOLE, WHOLE, ROOT, ROOT, WHOLE, WHOLE]),
        ((3, SMALL + 1, SMALL, 1), 9, [WHOLE, HALVES, ROOT, HALVES, WHOLE, WHOLE]),
        ((2, 6, 6, 6, 1), 20, [WHOLE] * 8),
        ((2, 6, 6, 6, 1), 1, [WHOLE, WHOLE, WHOLE, ROOT, WHOLE, WHOLE, WHOLE, WHOLE]),
    ],
    ids=[
        "whole inverses",
        "narrow sides solved for",
        "large ones in halves",
        "several of a size",
        "several of a size and form",
    ],
)
@pytest.mark.parametrize(("together", "batch"), [(10**6, 32), (0, 32), (0, 1)])
def test_batched_step_equals_dense_kronecker_solve(
    widths, inverse_every, forms, together, batch, monkeypatch
):
    """For all networks at once, one after the other in memory of the tape, and where that has no room."""
    monkeypatch.setattr(linalg, "TOGETHER", together)
    tape = recorded_tape(widths, batch, stack=(2, 2))
    moments = [(second_moment(p), second_moment(q)) for p, q in zip(tape.inputs, tape.signals, strict=True)]
    gradient = torch.randn_like(tape.network.flat)
    step = gradient.clone()
    factors = KroneckerFactors(KFAC(damping=0.09, inverse_every=inverse_every), Gradient(tape, step))
    assert [factor.form for factor in factors.P + factors.G] == forms
    factors.refresh()
    factors.precondition()
    for l, (before, after) in enumerate(
        zip(tape.network.views(gradient), tape.network.views(step), strict=True)
    ):
        for s in range(4):
            P, G = (moment[s] for moment in moments[l])
            dense = torch.kron(P + 0.3 * torch.eye(len(P)), G + 0.3 * torch.eye(len(G)))
            expected = torch.linalg.solve(dense, before.flatten(0, -3)[s].flatten())
            torch.testing.assert_close(after.flatten(0, -3)[s].flatten(), expected, rtol=1e-3, atol=1e-4)


def test_momentum_averages_P_and_leaves_G_the_batch_s():
    tape, first, second = (recorded_tape((3, 4, 1), 16, seed=seed) for seed in range(3))
    for average_G in (False, True):
        factors = factors_of(tape, KFAC(momentum=0.25, average_G=average_G, factor_every=1))
        for batch in (first, second):
            play(tape, batch)
            factors.refresh()
        expected = 0.75 * second_moment(first.inputs[0]) + 0.25 * second_moment(second.inputs[0])
        torch.testing.assert_close(factors.P[0].moment, expected)
        G = second_moment(second.signals[0])
        expected = 0.75 * second_moment(first.signals[0]) + 0.25 * G if average_G else G
        torch.testing.assert_close(factors.G[0].moment, expected)


def test_factors_of_some_of_the_rows():
    tape = recorded_tape((3, 4, 1), 10)
    factors = factors_of(tape, KFAC(row_every=4))
    factors.refresh()
    torch.testing.assert_close(factors.P[0].moment, second_moment(tape.inputs[0][:, [0, 4, 8]]))
    torch.testing.assert_close(factors.G[0].moment, second_moment(tape.signals[0][:, [0, 4, 8]]))


def test_refresh_periods():
    tapes = [recorded_tape((3, 4, 1), 16, seed=seed) for seed in range(5)]
    playing = recorded_tape((3, 4, 1), 16)
    factors = factors_of(playing, KFAC(momentum=1.0, factor_every=2, inverse_every=4))
    for count, tape in enumerate(tapes):
        play(playing, tape)
        factors.refresh()
        seen = tapes[count - count % 2]  # factors come from every second batch
        inverted = tapes[count - count % 4]  # inverses from every fourth
        torch.testing.assert_close(factors.G[0].moment, second_moment(seen.signals[0]))
        expected = torch.linalg.inv(second_moment(inverted.signals[0]) + 0.5 * torch.eye(4))
        torch.testing.assert_close(factors.G[0].inverse, expected)


def test_trace_split_balances_the_factors():
    tape = recorded_tape((3, 4, 1), 16)
    factors = factors_of(tape, KFAC(damping=0.25, split="trace"))
    on_P, on_G = factors._split(
        second_moment(tape.inputs[0]), second_moment(tape.signals[0]), torch.tensor(0.25)
    )
    torch.testing.assert_close(on_P * on_G, torch.full_like(on_P, 0.25))
    ratio = second_moment(tape.inputs[0]).diagonal(dim1=-2, dim2=-1).mean(-1)
    ratio = ratio / second_moment(tape.signals[0]).diagonal(dim1=-2, dim2=-1).mean(-1)
    torch.testing.assert_close(on_P / on_G, ratio)


@pytest.mark.parametrize("hidden_dims", [(3, 4, 1), (3, 4, 4, 1)], ids=["one of its size", "one of two"])
def test_a_failed_inverse_is_that_of_the_damping_alone_which_rises(widths):
    tape = recorded_tape(widths, 16)
    factors = factors_of(tape, KFAC(factor_every=100, inverse_every=1))
    factors.refresh()
    others = [factors.G[0].inverse[0], *(factor.inverse for factor in factors.P + factors.G[1:])]
    before = [inverse.clone() for inverse in others]
    factors.G[0].moment[1] = -torch.eye(4)  # of the second network, first layer
    factors.refresh()
    for inverse, kept in zip(others, before, strict=True):
        torch.testing.assert_close(inverse, kept, rtol=0, atol=0)
    torch.testing.assert_close(factors.G[0].inverse[1], torch.eye(4) / 0.5)
    diagnostics = factors.diagnostics()
    assert diagnostics["kfac_failures"].tolist() == [0, 1]
    torch.testing.assert_close(diagnostics["kfac_damping"], torch.tensor([0.25, 2.5]))
    factors.refresh()  # −I + √2.5 I is positive again
    assert factors.failures.sum() == 1
    for inverse, kept in zip(others[2:], before[2:], strict=True):  # of other layers
        torch.testing.assert_close(inverse, kept, rtol=0, atol=0)
    torch.testing.assert_close(factors.G[0].inverse[1], torch.eye(4) / (2.5**0.5 - 1))


@pytest.mark.parametrize("together", [10**6, 0])
def test_leading_directions_are_all_there_is_to_a_few_samples(together, monkeypatch):
    """P of a batch has no more directions than it has samples; G is inverted whole whatever the rank."""
    monkeypatch.setattr(linalg, "TOGETHER", together)
    tape = recorded_tape((3, 24, 24, 1), batch=5, stack=(2, 2))
    gradient = torch.randn(tape.network.flat.shape, generator=torch.Generator().manual_seed(0))
    exact, ranked = (gradient.clone() for _ in range(2))
    for step, rank in (exact, None), (ranked, 6):
        factors = KroneckerFactors(KFAC(damping=0.09, rank=rank), Gradient(tape, step))
        assert [factor.form for factor in factors.P[1:]] == [leading(rank) if rank else WHOLE] * 2
        assert {factors.P[0].form, *(factor.form for factor in factors.G)} == {WHOLE}
        factors.refresh()
        signals = [q.clone() for q in tape.signals]
        factors.precondition()
        for q, kept in zip(tape.signals, signals, strict=True):  # the step may have gone through them
            q.copy_(kept)
    for before, after, expected in zip(*map(tape.network.views, (gradient, ranked, exact)), strict=True):
        assert (after - expected).norm() < 3e-3 * (before - expected).norm()


def test_a_failed_inverse_of_leading_directions_is_that_of_the_damping_alone_and_recovers():
    tape = recorded_tape((3, 8, 1), 16)
    factors = factors_of(tape, KFAC(factor_every=100, inverse_every=1, rank=2))
    factors.refresh()
    good = factors.P[1].moment[1].clone()
    factors.P[1].moment[1] = torch.nan
    factors.refresh()
    b, out = torch.randn(2, 9, 3, generator=torch.Generator().manual_seed(0)), torch.empty(2, 9, 3)
    factors.P[1].times(b, out, slice(None))()
    torch.testing.assert_close(out[1], b[1] / 0.5)
    assert not torch.allclose(out[0], b[0] / 0.5, rtol=0.1)
    assert factors.failures.sum() == 1
    factors.P[1].moment[1] = good
    for _ in range(50):  # until the damping has fallen back too
        factors.refresh()
    assert factors.failures.sum() == 1
    untroubled = factors_of(tape, KFAC(factor_every=100, inverse_every=1, rank=2))
    for _ in range(50):
        untroubled.refresh()
    W, expected = (f.P[1].inverse[..., :-1] for f in (factors, untroubled))
    torch.testing.assert_close(W @ W.mT, expected @ expected.mT, rtol=1e-3, atol=1e-3)


def test_settings_out_of_range_are_refused():
    for settings in (
        {"damping": 0},
        {"momentum": 0},
        {"momentum": 1.5},
        {"factor_every": 0},
        {"row_every": 0},
        {"rank": 0},
        {"split": "odd"},
    ):
        with pytest.raises(ValueError, match=next(iter(settings))):
            KFAC(**settings)


@pytest.mark.parametrize("batch", [8, 200], ids=["more parameters than samples", "fewer"])
def test_exact_step_equals_the_dense_one(batch):
    tape = recorded_tape((3, 6, 1), batch)
    residual = torch.randn(2, batch, generator=torch.Generator().manual_seed(3))
    dense = dense_direction(jacobian(tape).double(), residual.double(), damping=0.1)
    step = torch.zeros_like(tape.network.flat)
    weights = gauss_newton_weights(tape, residual, damping=0.1)
    Gradient(tape, step)(weights / batch)
    step = step[:, : dense.shape[-1]]
    torch.testing.assert_close(step.double(), dense, rtol=1e-3, atol=1e-5)


def test_one_undamped_step_on_a_linear_critic_is_least_squares():
    tape = recorded_tape((5, 1), 64)
    y = torch.randn(2, 64)
    direction = dense_direction(jacobian(tape), tape.output[..., 0] - y, damping=0.0)
    expected = torch.linalg.lstsq(tape.inputs[0], y[..., None]).solution
    torch.testing.assert_close(tape.network.parameters - direction, expected[..., 0], rtol=1e-4, atol=1e-5)


def test_one_nearly_undamped_kfac_step_on_a_linear_critic_is_least_squares():
    network = MLP((5, 1), (2,)).initialise(seeded(0, 1))
    x, y = torch.randn(2, 64, 5), torch.randn(2, 64)
    critic = Critic(network, 64, learning_rate=1.0, optimiser_name="plain", kfac=KFAC(damping=1e-8))
    critic.descend((critic.forward(x)[..., 0] - y) / 64)
    design = torch.cat([x, torch.ones(2, 64, 1)], dim=-1)
    expected = torch.linalg.lstsq(design, y[..., None]).solution
    torch.testing.assert_close(network.layers[0], expected, rtol=1e-2, atol=1e-3)
