"""The Gauss-Newton critic step for any torch.nn.Module, by Kronecker factors (Algorithm 3)."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from offline_gntd.errors import UserError
from offline_gntd.nn.kfac import KFAC, KroneckerFactors


class GaussNewton:
    """An optimiser for the parameters of a critic.

        optimiser = GaussNewton(critic, lr=3e-4, damping=0.25)
        ...
        q = critic(torch.cat([obs, action], -1))
        loss = (q - target).square().mean()
        optimiser.step(loss, q)

    The gradient of every `nn.Linear` is preconditioned by its factors P = E[p̄p̄ᵀ] and G = E[qqᵀ], where p̄ is
    the layer's input with a 1 appended (if it has a bias) and q = ∂Q/∂h. Other parameters get the plain
    gradient. Then `torch.optim.Adam` (or plain gradient descent) takes the step. Twin critics in one module
    are one critic with two outputs: step(loss, (q1, q2)).

    damping, ema_decay, average, start, factor_every, inverse_every, split, output_scale are fields of `KFAC`.
    """

    def __init__(
        self,
        critic: nn.Module,
        lr: float = 3e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        optimiser: str = "adam",
        max_grad_norm: float | None = None,
        **kfac: Any,
    ):
        """optimiser      adam | plain
        max_grad_norm  limit on the norm of the critic's gradient, before preconditioning
        """
        self.layers = [m for m in critic.modules() if isinstance(m, nn.Linear) and m.weight.requires_grad]
        if not self.layers:
            raise UserError("GaussNewton needs a module with at least one nn.Linear layer")
        self.parameters = [p for p in critic.parameters() if p.requires_grad]
        if optimiser == "adam":
            self.optimiser: torch.optim.Optimizer = torch.optim.Adam(
                self.parameters, lr=lr, betas=betas, eps=eps, fused=True
            )
        elif optimiser == "plain":
            self.optimiser = torch.optim.SGD(self.parameters, lr=lr)
        else:
            raise UserError(f"optimiser must be adam or plain, not {optimiser!r}")
        self.max_grad_norm = max_grad_norm
        self.factors = KroneckerFactors(KFAC(**kfac), [_matrix(layer)[None] for layer in self.layers])
        self.seen: dict[nn.Linear, tuple[Tensor, Tensor]] = {}  # input and output in the last forward pass
        self.shared = False  # whether that pass used a layer twice
        self._watch(critic)

    def _watch(self, critic: nn.Module) -> None:
        """Record every layer's input and output in each forward pass of the critic.

        copy.deepcopy(critic) keeps these hooks, but they ignore the layers of the copy, so a target
        network is not recorded.
        """

        def begin(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if module is critic and torch.is_grad_enabled():
                self._forget()

        def record(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if isinstance(layer, nn.Linear) and layer in self.layers and torch.is_grad_enabled():
                self.shared |= layer in self.seen
                self.seen[layer] = (inputs[0].detach(), output)

        critic.register_forward_pre_hook(begin)
        for layer in self.layers:
            layer.register_forward_hook(record)

    def _forget(self) -> None:
        self.seen, self.shared = {}, False

    def step(self, loss: Tensor, outputs: Tensor | Sequence[Tensor]) -> None:
        """Take one step down the loss.

        outputs  Q of every sample, as the critic's last forward pass returned it
        """
        if self.shared:
            raise UserError(
                "GaussNewton cannot be used with a layer that one forward pass uses twice; call the critic "
                "itself, not its members"
            )
        if missing := [layer for layer in self.layers if layer not in self.seen]:
            raise UserError(
                f"the critic's last forward pass did not use {missing[0]}; call the critic before step"
            )
        if isinstance(outputs, Tensor):
            outputs = [outputs]
        start = time.perf_counter()
        samples = self._samples(outputs) if self.factors.due else ([], [])
        self.factors.seconds += time.perf_counter() - start
        self.factors.update(*samples)
        self.optimiser.zero_grad()
        loss.backward()
        if self.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
        with torch.no_grad():
            self._precondition()
        self.optimiser.step()
        self._forget()

    def _samples(self, outputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """p̄ [1, samples, fan_in + 1] and q = ∂Q/∂h [1, samples, fan_out] of every layer."""
        values = torch.stack([output.sum() for output in outputs]).sum()
        grads = torch.autograd.grad(values, [self.seen[layer][1] for layer in self.layers], retain_graph=True)
        inputs = [_with_one(self.seen[layer][0], layer) for layer in self.layers]
        return inputs, [grad.flatten(0, -2)[None].float() for grad in grads]

    def _precondition(self) -> None:
        gradients = [_gradient(layer)[None] for layer in self.layers]
        self.factors.precondition(gradients)
        for layer, gradient in zip(self.layers, gradients, strict=True):
            fan_in = layer.in_features
            layer.weight.grad = gradient[0, :fan_in].T.to(layer.weight.dtype).contiguous()
            if layer.bias is not None:
                layer.bias.grad = gradient[0, fan_in].to(layer.bias.dtype).contiguous()

    def diagnostics(self) -> dict[str, Tensor]:
        """Metrics of K-FAC, [1] each; the same as for the built-in critics."""
        return self.factors.diagnostics()

    def state_dict(self) -> dict[str, Any]:
        return {"factors": self.factors.state_dict(), "optimiser": self.optimiser.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, tensor in self.factors.state_dict().items():
            tensor.copy_(state["factors"][name])
        self.optimiser.load_state_dict(state["optimiser"])


def _matrix(layer: nn.Linear) -> Tensor:
    """Mat(θ) [fan_in + 1, fan_out]: the weights, and the bias as the last row."""
    rows = [layer.weight.detach().T]
    if layer.bias is not None:
        rows.append(layer.bias.detach()[None])
    return torch.cat(rows).float()


def _gradient(layer: nn.Linear) -> Tensor:
    """The gradient of Mat(θ) [fan_in + 1, fan_out]."""
    assert layer.weight.grad is not None, "the loss does not depend on every layer"
    rows = [layer.weight.grad.T]
    if layer.bias is not None and layer.bias.grad is not None:
        rows.append(layer.bias.grad[None])
    return torch.cat(rows).float()


def _with_one(x: Tensor, layer: nn.Linear) -> Tensor:
    """p̄ [1, samples, fan_in + 1] of a layer's input [..., fan_in]."""
    x = x.flatten(0, -2)[None].float()
    return x if layer.bias is None else torch.cat([x, torch.ones_like(x[..., :1])], -1)
