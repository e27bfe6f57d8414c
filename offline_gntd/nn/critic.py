"""Value networks that step along the semi-gradient (TD) or the Gauss-Newton direction (GNTD)."""

from torch import Tensor

from offline_gntd.nn.exact import gauss_newton_weights
from offline_gntd.nn.kfac import KFAC, KroneckerFactors
from offline_gntd.nn.learner import Learner, state_of
from offline_gntd.nn.mlp import MLP
from offline_gntd.nn.optimisers import Optimiser, clip_grad_norm


class Critic(Learner):
    """Q-networks that step along a direction d.

    d is the semi-gradient g = E[δ ∇Q] (TD), with `kfac` g preconditioned by Kronecker factors (Algorithm 3),
    with `exact_damping` ω the exact (H + ωI)⁻¹ g (Algorithm 1), H = E[∇Q ∇Qᵀ].
    The optimiser takes d as its gradient.
    """

    def __init__(
        self,
        network: MLP,
        batch: int,
        learning_rate: float,
        optimiser: Optimiser = Optimiser(),
        kfac: KFAC | None = None,
        exact_damping: float | None = None,
    ):
        super().__init__(network, batch, learning_rate, optimiser)
        self.factors = KroneckerFactors(kfac, network.layers) if kfac else None
        self.exact_damping = exact_damping

    def update(
        self, dloss_dq: Tensor, dq_doutput: Tensor | float = 1.0, extra_gradient: Tensor | None = None
    ) -> None:
        """Take one step after `forward`, down Σ_i dloss_dq_i ∇Q_i (+ extra_gradient).

        dloss_dq        [*stack, batch]: 2δ/batch for the loss E[δ²]
        dq_doutput      [*stack, batch, fan_out]; 1 where Q is the only output
        extra_gradient  [*stack, parameters], of other terms of the loss; preconditioned with the rest
        """
        self.tape.backward(dq_doutput)  # from Q, not from the loss: q_l = ∂Q/∂h_l
        if self.exact_damping is not None:  # with these weights the semi-gradient is d
            dloss_dq = gauss_newton_weights(self.tape, dloss_dq, self.exact_damping)
        if self.factors:  # before parameter_grad, which overwrites q_l
            self.factors.update(self.tape.inputs, self.tape.grad_outputs)
        self.tape.parameter_grad(self.gradient, dloss_dq)  # the semi-gradient g
        if extra_gradient is not None:
            self.gradient += extra_gradient
        if self.optimiser.config.max_grad_norm is not None:
            clip_grad_norm(self.gradient, self.optimiser.config.max_grad_norm)
        if self.factors:
            self.factors.precondition(self.network.views(self.gradient))  # g becomes d
        self.step()  # θ ← θ − β d, or Adam with d as its gradient

    def diagnostics(self) -> dict[str, Tensor]:
        """Metrics of K-FAC per seed; empty without it."""
        return self.factors.diagnostics() if self.factors else {}

    def state_dict(self) -> dict[str, Tensor]:
        return super().state_dict() | (state_of(factors=self.factors) if self.factors else {})
