"""Our Kronecker factors against those of curvlinops-for-pytorch, an independent K-FAC."""

import pytest
import torch
from conftest import seeded

from offline_gntd.nn.kfac import KFAC, KroneckerFactors
from offline_gntd.nn.mlp import MLP, Tape

pytestmark = pytest.mark.conformance
BATCH = 32


@pytest.mark.parametrize("dims", [(4, 8, 6, 1), (3, 16, 1)])
def test_factors_equal_those_of_curvlinops_up_to_its_scaling(dims):
    from curvlinops import FisherType, KFACLinearOperator

    network = MLP(dims, (1,)).initialise(seeded(0))
    x = torch.randn(BATCH, dims[0], generator=torch.Generator().manual_seed(1))
    modules = []
    for layer in network.layers:
        linear = torch.nn.Linear(layer.shape[-2] - 1, layer.shape[-1])
        linear.weight.data, linear.bias.data = layer[0, :-1].T.clone(), layer[0, -1].clone()
        modules += [linear, torch.nn.ReLU()]
    model = torch.nn.Sequential(*modules[:-1])
    operator = KFACLinearOperator(
        model,
        torch.nn.MSELoss(reduction="mean"),
        list(model.parameters()),
        [(x, torch.zeros(BATCH, 1))],
        fisher_type=FisherType.TYPE2,  # the Gauss-Newton matrix itself: no sampling
        separate_weight_and_bias=False,
        check_deterministic=False,
    )
    operator.compute_kronecker_factors()

    tape = Tape(network, BATCH)
    tape.forward(x[None])
    tape.backward(torch.ones(1, BATCH, 1))
    ours = KroneckerFactors(KFAC(start="batch"), tape.network.layers)
    ours.update(tape.inputs, tape.grad_outputs)

    inputs, gradients = operator._input_covariances, operator._gradient_covariances  # by module name
    for l, (P, G) in enumerate(zip(ours.P, ours.G, strict=True)):
        torch.testing.assert_close(P[0], inputs[str(2 * l)], rtol=1e-5, atol=1e-6)
        # MSELoss's Hessian is 2: that is all its scaling
        torch.testing.assert_close(2 * G[0], gradients[str(2 * l)], rtol=1e-5, atol=1e-6)
