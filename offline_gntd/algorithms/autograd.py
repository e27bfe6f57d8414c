"""The base class of algorithms that are written as losses: torch modules, autograd, torch optimisers."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from offline_gntd.algorithms.seed_stack import SeedStack
from offline_gntd.errors import UserError, unknown
from offline_gntd.nn.gauss_newton import GaussNewton
from offline_gntd.nn.normaliser import Statistics
from offline_gntd.tasks import Task
from offline_gntd.transitions import Batch

Losses = Mapping[str, Tensor | tuple[Tensor, Any]]  # by the optimiser's name; (loss, Q) for a GaussNewton


class AutogradAgent(nn.Module):
    """One seed of an algorithm. A subclass defines __init__(config, task), where it makes its networks, and
        losses(batch)   a dict with a loss for each optimiser to step; or yields such dicts one after another,
                        and the steps of one are taken before the next is computed
        act(obs)        greedy actions [n, …] for obs [n, obs_dim]
        values(batch)   optional: Q(s, a) [critics, n], and Q(s′, π(s′)) [n] of the online and of the target
                        networks, from which TD errors and `largest_value` are measured

    Observations are normalised already if the config's `normalise_obs` is true. Random functions draw from
    the seed's generator. What lasts from one update to the next must be a parameter or a buffer.
    """

    def __init__(self, config: Any, task: Task):
        super().__init__()
        self.config, self.task = config, task
        self.updates = torch.zeros((), dtype=torch.int64, device="cpu")  # this one included
        self.optimisers: dict[str, torch.optim.Optimizer | GaussNewton] = {}
        self.targets: list[tuple[nn.Module, nn.Module, float]] = []  # target, online network and τ
        self.metrics: dict[str, Tensor] = {}  # of the last update; `losses` may add to them

    @classmethod
    def stack(
        cls,
        config: Any,
        task: Task,
        generators: Sequence[torch.Generator],
        obs_statistics: Statistics | None = None,
    ) -> SeedStack:
        """The agent of a config: one AutogradAgent for each seed's generator."""
        return SeedStack(cls, config, task, generators, obs_statistics)

    def target(self, network: nn.Module, tau: float) -> nn.Module:
        """A copy of a network, θ_target ← (1 − τ) θ_target + τ θ after every update."""
        target = copy.deepcopy(network).requires_grad_(False)
        self.targets.append((target, network, tau))
        return target

    def losses(self, batch: Batch) -> Losses | Iterable[Losses]:
        raise NotImplementedError

    def act(self, obs: Tensor) -> Tensor:
        raise NotImplementedError

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One update from a batch [batch, …]; its metrics."""
        self.updates += 1
        self.metrics = {}
        losses = self.losses(batch)
        for part in [losses] if isinstance(losses, Mapping) else losses:
            self._step(part)
        self.polyak_update()
        return self.metrics

    def _step(self, losses: Losses) -> None:
        """Step every optimiser that has a loss, with gradients at the parameters before all these steps."""
        for name, loss in losses.items():
            if name not in self.optimisers:
                raise unknown("optimiser", name, self.optimisers)
            optimiser = self.optimisers[name]
            if isinstance(optimiser, GaussNewton) != isinstance(loss, tuple):
                raise UserError(
                    f"{name}: a GaussNewton needs a pair (loss, Q), other optimisers a loss alone"
                )
            if isinstance(loss, Tensor) and not isinstance(optimiser, GaussNewton):
                parameters = [p for group in optimiser.param_groups for p in group["params"]]
                gradients = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.grad = gradient
        for name, loss in losses.items():
            self.metrics[f"{name}_loss"] = (loss[0] if isinstance(loss, tuple) else loss).detach()
            optimiser = self.optimisers[name]
            if isinstance(optimiser, GaussNewton):
                optimiser.step(*loss)
            else:
                optimiser.step()

    @torch.no_grad()
    def polyak_update(self) -> None:
        for target, online, tau in self.targets:
            for old, new in zip(target.parameters(), online.parameters(), strict=True):
                old.lerp_(new, tau)
            for kept, current in zip(target.buffers(), online.buffers(), strict=True):
                kept.copy_(current)

    def live_tensors(self) -> dict[str, Tensor]:
        """The tensors themselves, not copies, of all that the next update depends on."""
        tensors = {"updates": self.updates, **dict(self.named_parameters()), **dict(self.named_buffers())}
        for name, optimiser in self.optimisers.items():
            if isinstance(optimiser, GaussNewton):
                tensors |= {f"{name}_factors.{key}": x for key, x in optimiser.live_tensors().items()}
                optimiser = optimiser.optimiser
            for i, state in enumerate(optimiser.state.values()):
                entries = {key: x for key, x in state.items() if torch.is_tensor(x)}
                tensors |= {f"{name}_optimiser.{i}.{key}": x for key, x in entries.items()}
        return tensors
