"""K-FAC where it is exact, its fields, and factors that cannot be inverted."""

import pytest
import torch
from conftest import seeded

from offline_gntd.nn.critic import Critic
from offline_gntd.nn.exact import direction, gauss_newton_weights
from offline_gntd.nn.kfac import KFAC, KroneckerFactors
from offline_gntd.nn.mlp import MLP, Tape
from offline_gntd.nn.optimisers import Optimiser

EVERY = {"factor_every": 1, "inverse_every": 1}


def second_moment(x):
    """E[x xᵀ] over the samples of x [..., batch, n]."""
    return x.mT @ x / x.shape[-2]


def jacobian(tape):
    """∂Q_i/∂θ for every sample, layer after layer: [networks, batch, parameters of one network]."""
    rows = [torch.einsum("sbi,sbo->sbio", p, q) for p, q in zip(tape.inputs, tape.grad_outputs, strict=True)]
    return torch.cat([row.flatten(2) for row in rows], dim=-1)


def recorded_tape(dims, batch, stack=(2,), seed=0, positive=False, precision="float32"):
    """A tape after both passes. `positive` makes every unit active, so that the network is linear."""
    network = MLP(dims, stack, precision=precision).initialise(seeded(*range(stack[0])))
    x = torch.randn(*stack, batch, dims[0], generator=torch.Generator().manual_seed(seed))
    if positive:
        network.flat.abs_()
        x = x.abs()
    tape = Tape(network, batch)
    tape.forward(x)
    tape.backward(1.0)
    return tape


def copy_batch(tape, other):
    for buffer, source in zip(
        tape.inputs + tape.grad_outputs, other.inputs + other.grad_outputs, strict=True
    ):
        buffer.copy_(source)


def block_of(J, tape, l):
    """The columns of the Jacobian that belong to layer l."""
    sizes = [w[0].numel() for w in tape.weights]
    return J[..., sum(sizes[:l]) : sum(sizes[: l + 1])]


def kronecker(P, G):
    """P ⊗ G for row-major Mat(θ) [fan_in + 1, fan_out]."""
    return torch.stack([torch.kron(p, g) for p, g in zip(P, G, strict=True)])


@pytest.mark.parametrize(
    ("batch", "positive"), [(64, True), (1, False)], ids=["linear network", "one sample"]
)
def test_kfac_equals_gauss_newton_for_linear_networks_and_single_samples(batch, positive):
    tape = recorded_tape((3, 5, 4, 1), batch, positive=positive)
    J = jacobian(tape)
    for l in range(3):
        block = block_of(J, tape, l)
        gauss_newton = block.mT @ block / batch
        factored = kronecker(second_moment(tape.inputs[l]), second_moment(tape.grad_outputs[l]))
        torch.testing.assert_close(factored, gauss_newton, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dims", [(1, 8, 6, 1), (3, 33, 32, 1), (2, 6, 6, 6, 1)])
@pytest.mark.parametrize("batch", [32, 1])
def test_preconditioning_equals_a_dense_kronecker_solve(dims, batch):
    tape = recorded_tape(dims, batch, stack=(2, 2))
    gradient = torch.randn_like(tape.network.flat)
    step = gradient.clone()
    factors = KroneckerFactors(KFAC(damping=0.09, start="batch"), tape.network.layers)
    factors.update(tape.inputs, tape.grad_outputs)
    factors.precondition(tape.network.views(step))
    for l, (before, after) in enumerate(
        zip(tape.network.views(gradient), tape.network.views(step), strict=True)
    ):
        for i in range(4):
            P, G = second_moment(tape.inputs[l])[i], second_moment(tape.grad_outputs[l])[i]
            dense = torch.kron(P + 0.3 * torch.eye(len(P)), G + 0.3 * torch.eye(len(G)))
            expected = torch.linalg.solve(dense, before.flatten(0, -3)[i].flatten())
            torch.testing.assert_close(after.flatten(0, -3)[i].flatten(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("start", ["identity", "batch"])
@pytest.mark.parametrize("average", ["both", "P"])
def test_fields_average_and_start(start, average):
    tape, first, second = (recorded_tape((3, 4, 1), 16, seed=seed) for seed in range(3))
    factors = KroneckerFactors(
        KFAC(ema_decay=0.75, start=start, average=average, **EVERY), tape.network.layers
    )
    for batch in (first, second):
        copy_batch(tape, batch)
        factors.update(tape.inputs, tape.grad_outputs)

    def averaged(one, two):
        start_value = torch.eye(one.shape[-1]) if start == "identity" else second_moment(one)
        return 0.75 * (0.75 * start_value + 0.25 * second_moment(one)) + 0.25 * second_moment(two)

    torch.testing.assert_close(factors.P[0], averaged(first.inputs[0], second.inputs[0]))
    q = first.grad_outputs[0], second.grad_outputs[0]
    torch.testing.assert_close(factors.G[0], averaged(*q) if average == "both" else second_moment(q[1]))


def test_output_scale_gives_the_factors_of_a_scaled_output():
    tape = recorded_tape((3, 4, 1), 16)
    factors = KroneckerFactors(KFAC(output_scale=0.5, start="batch"), tape.network.layers)
    factors.update(tape.inputs, tape.grad_outputs)
    torch.testing.assert_close(factors.G[0], second_moment(0.5 * tape.grad_outputs[0]))
    torch.testing.assert_close(factors.P[0], second_moment(tape.inputs[0]))


def test_factors_and_inverses_have_separate_periods():
    batches = [recorded_tape((3, 4, 1), 16, seed=seed) for seed in range(5)]
    tape = recorded_tape((3, 4, 1), 16)
    factors = KroneckerFactors(KFAC(ema_decay=0.0, factor_every=2, inverse_every=4), tape.network.layers)
    for count, batch in enumerate(batches):
        copy_batch(tape, batch)
        factors.update(tape.inputs, tape.grad_outputs)
        seen = batches[count - count % 2]
        inverted = batches[count - count % 4]
        torch.testing.assert_close(factors.G[0], second_moment(seen.grad_outputs[0]))
        expected = torch.linalg.inv(second_moment(inverted.grad_outputs[0]) + 0.5 * torch.eye(4))
        torch.testing.assert_close(factors.G_inverse[0], expected)


def test_trace_split_balances_the_factors():
    tape = recorded_tape((3, 4, 1), 16)
    factors = KroneckerFactors(KFAC(damping=0.25, split="trace", start="batch"), tape.network.layers)
    factors.update(tape.inputs, tape.grad_outputs)
    damping_P, damping_G = factors._damping()[0]
    torch.testing.assert_close(damping_P * damping_G, torch.full_like(damping_P, 0.25))
    ratio = second_moment(tape.inputs[0]).diagonal(dim1=-2, dim2=-1).mean(-1)
    ratio = ratio / second_moment(tape.grad_outputs[0]).diagonal(dim1=-2, dim2=-1).mean(-1)
    torch.testing.assert_close(damping_P / damping_G, ratio)


@pytest.mark.parametrize("broken", [-torch.eye(4), torch.full((4, 4), torch.nan)], ids=["negative", "NaN"])
def test_a_factor_that_cannot_be_inverted_is_replaced_and_the_damping_rises(broken):
    tape = recorded_tape((3, 4, 4, 1), 16)
    factors = KroneckerFactors(KFAC(factor_every=100, inverse_every=1, start="batch"), tape.network.layers)
    factors.update(tape.inputs, tape.grad_outputs)
    others = [factors.G_inverse[0][0], *factors.P_inverse, *factors.G_inverse[1:]]
    before = [inverse.clone() for inverse in others]
    good = factors.G[0][1].clone()
    factors.G[0][1] = broken  # first layer of the second network
    factors.update(tape.inputs, tape.grad_outputs)
    for inverse, kept in zip(others, before, strict=True):
        torch.testing.assert_close(inverse, kept, rtol=0, atol=0)
    torch.testing.assert_close(factors.G_inverse[0][1], torch.eye(4) / 0.5)
    diagnostics = factors.diagnostics()
    assert diagnostics["kfac_failures"].tolist() == [0, 1]
    torch.testing.assert_close(diagnostics["kfac_damping"], torch.tensor([0.25, 2.5]))
    factors.G[0][1] = good
    factors.update(tape.inputs, tape.grad_outputs)
    assert factors.failures.sum() == 1
    torch.testing.assert_close(factors.G_inverse[0][1], torch.linalg.inv(good + 2.5**0.5 * torch.eye(4)))
    for _ in range(30):  # until the damping has fallen to ω
        factors.update(tape.inputs, tape.grad_outputs)
    torch.testing.assert_close(factors.G_inverse[0][1], torch.linalg.inv(good + 0.5 * torch.eye(4)))


def test_factors_of_a_bfloat16_tape_are_float32_and_near_those_of_a_float32_tape():
    tapes = [recorded_tape((3, 16, 16, 1), 64, precision=name) for name in ("float32", "bfloat16")]
    exact, rounded = (KroneckerFactors(KFAC(start="batch"), tape.network.layers) for tape in tapes)
    for factors, tape in zip((exact, rounded), tapes, strict=True):
        factors.update(tape.inputs, tape.grad_outputs)
    for expected, measured in zip(exact.P_inverse + exact.G, rounded.P_inverse + rounded.G, strict=True):
        assert measured.dtype == torch.float32
        torch.testing.assert_close(measured, expected, rtol=0.05, atol=0.02)


def test_factors_of_bfloat16_inputs_stay_positive_definite():
    """Activations with a large mean, as in the last layer of a trained critic: the largest eigenvalue of P is
    10⁶ times the damping. A product rounded to bfloat16 has negative eigenvalues beyond the damping."""
    x = torch.randn(1, 256, 257, generator=seeded(0)[0]) + 8
    factors = KroneckerFactors(KFAC(damping=1e-4, start="batch"), [torch.zeros(1, 257, 1)])
    factors.update([x.bfloat16()], [torch.ones(1, 256, 1).bfloat16()])
    assert torch.linalg.eigvalsh(factors.P[0])[0, -1] > 1e4
    assert factors.failures.sum() == 0
    rounded = torch.bmm(x.bfloat16().mT, x.bfloat16()).float() / 256
    assert torch.linalg.eigvalsh(rounded)[0, 0] < -0.01


def test_settings_out_of_range_are_refused():
    for settings in (
        {"damping": 0.0},
        {"damping": float("nan")},
        {"ema_decay": 1.0},
        {"ema_decay": -0.1},
        {"factor_every": 0},
        {"inverse_every": 0},
        {"output_scale": 0.0},
        {"split": "odd"},
        {"average": "G"},
        {"start": "zero"},
    ):
        with pytest.raises(ValueError, match=next(iter(settings))):
            KFAC(**settings)


@pytest.mark.parametrize("batch", [8, 200], ids=["more parameters than samples", "fewer"])
def test_exact_step_equals_the_dense_one(batch):
    tape = recorded_tape((3, 6, 1), batch)
    residual = torch.randn(2, batch, generator=torch.Generator().manual_seed(3))
    dense = direction(jacobian(tape).double(), residual.double(), damping=0.1)
    step = torch.zeros_like(tape.network.flat)
    weights = gauss_newton_weights(tape, residual, damping=0.1)
    tape.parameter_grad(step, weights / batch)
    torch.testing.assert_close(step.double(), dense, rtol=1e-3, atol=1e-5)


def test_one_undamped_step_on_a_linear_critic_is_least_squares():
    tape = recorded_tape((5, 1), 64)
    y = torch.randn(2, 64)
    step = direction(jacobian(tape), tape.output[..., 0] - y, damping=0.0)
    expected = torch.linalg.lstsq(tape.inputs[0], y[..., None]).solution
    torch.testing.assert_close(tape.network.flat - step, expected[..., 0], rtol=1e-4, atol=1e-5)


def test_one_nearly_undamped_kfac_step_on_a_linear_critic_is_least_squares():
    network = MLP((5, 1), (2,)).initialise(seeded(0, 1))
    x, y = torch.randn(2, 64, 5), torch.randn(2, 64)
    critic = Critic(
        network, 64, learning_rate=1.0, optimiser=Optimiser("plain"), kfac=KFAC(1e-8, start="batch")
    )
    critic.update((critic.forward(x)[..., 0] - y) / 64)
    design = torch.cat([x, torch.ones(2, 64, 1)], dim=-1)
    expected = torch.linalg.lstsq(design, y[..., None]).solution
    torch.testing.assert_close(network.layers[0], expected, rtol=1e-2, atol=1e-3)
