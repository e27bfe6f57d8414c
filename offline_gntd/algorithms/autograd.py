"""Base class for algorithms written as losses: torch modules, autograd, torch optimisers.

An `AutogradAgent` trains one seed; `SeedStack` makes several of them one agent, as `Training` expects.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from offline_gntd.algorithms.agent import Agent, Statistics
from offline_gntd.algorithms.bellman import td_errors
from offline_gntd.errors import UserError, unknown
from offline_gntd.nn.gauss_newton import GaussNewton
from offline_gntd.tasks import Task
from offline_gntd.transitions import Batch, Transitions

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
        self.updates = torch.zeros((), dtype=torch.int64, device="cpu")  # including the current one
        self.optimisers: dict[str, torch.optim.Optimizer | GaussNewton] = {}
        self.targets: list[tuple[nn.Module, nn.Module, float]] = []  # target, online network and τ
        self.metrics: dict[str, Tensor] = {}  # from the last update; `losses` may add to them

    @classmethod
    def stack(
        cls,
        config: Any,
        task: Task,
        generators: Sequence[torch.Generator],
        obs_statistics: Statistics | None = None,
    ) -> "SeedStack":
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
        gradients = {}
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
                found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
                gradients[name] = list(zip(parameters, found, strict=True))
        for name in sorted(losses, key=gradients.__contains__):  # a GaussNewton differentiates as it steps
            loss, optimiser = losses[name], self.optimisers[name]
            self.metrics[f"{name}_loss"] = (loss[0] if isinstance(loss, tuple) else loss).detach()
            if isinstance(optimiser, GaussNewton):
                optimiser.step(*loss)
                continue
            for parameter, gradient in gradients[name]:
                parameter.grad = gradient
            optimiser.step()

    @torch.no_grad()
    def polyak_update(self) -> None:
        for target, online, tau in self.targets:
            for old, new in zip(target.parameters(), online.parameters(), strict=True):
                old.lerp_(new, tau)
            for target_buffer, buffer in zip(target.buffers(), online.buffers(), strict=True):
                target_buffer.copy_(buffer)

    def live_tensors(self) -> dict[str, Tensor]:
        """All tensors that the next update depends on, not copies of them."""
        tensors = {"updates": self.updates, **dict(self.named_parameters()), **dict(self.named_buffers())}
        for name, optimiser in self.optimisers.items():
            if isinstance(optimiser, GaussNewton):
                tensors |= {f"{name}_factors.{key}": x for key, x in optimiser.factors.live_tensors().items()}
                optimiser = optimiser.optimiser
            for i, state in enumerate(optimiser.state.values()):
                entries = {key: x for key, x in state.items() if torch.is_tensor(x)}
                tensors |= {f"{name}_optimiser.{i}.{key}": x for key, x in entries.items()}
        return tensors


class SeedStack(Agent):
    """AutogradAgents of several seeds as one agent. They share nothing."""

    def __init__(
        self,
        kind: type[AutogradAgent],
        config: Any,
        task: Task,
        generators: Sequence[torch.Generator],
        obs_statistics: Statistics | None = None,
    ):
        super().__init__(config, task, generators, obs_statistics)
        self.agents: list[AutogradAgent] = []
        for generator in generators:
            with drawing_from(generator), torch.device(self.device):
                self.agents.append(kind(config, task))
        for agent in self.agents:
            for name, optimiser in agent.optimisers.items():
                optimiser = optimiser.optimiser if isinstance(optimiser, GaussNewton) else optimiser
                check_parameters(agent, name, optimiser)
                create_state(optimiser)
        states = [agent.live_tensors() for agent in self.agents]
        self.state = {name: torch.stack([s[name].detach() for s in states]) for name in states[0]}
        self.state_dict()  # makes the agents' tensors views of self.state

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        obs = self.normalise(obs)
        return torch.stack([agent.eval().act(x) for agent, x in zip(self.agents, obs, strict=True)])

    def update(self, batch: Batch) -> dict[str, Tensor]:
        obs, next_obs = self.normalise(batch.obs), self.normalise(batch.next_obs)
        metrics = []
        for i, (agent, generator) in enumerate(zip(self.agents, self.generators, strict=True)):
            with drawing_from(generator):
                metrics.append(agent.train().update(batch.of_seed(i, obs=obs, next_obs=next_obs)))
        return {name: torch.stack([m[name].detach() for m in metrics]) for name in metrics[0]}

    @torch.no_grad()
    def measure(self, transitions: Sequence[Transitions]) -> dict[str, Tensor]:
        """TD errors, if the agents have `values`; diagnostics of K-FAC, if there is a GaussNewton."""
        measured = {}
        if hasattr(self.agents[0], "values"):
            measured = td_errors(transitions, self._values, self.config.discount)
        for name, optimiser in self.agents[0].optimisers.items():
            if isinstance(optimiser, GaussNewton):
                parts = [agent.optimisers[name].diagnostics() for agent in self.agents]  # type: ignore[union-attr]
                measured |= {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
                measured["kfac_seconds"] = measured["kfac_seconds"].sum().expand(len(self.agents))
        return measured

    def _values(self, part: Transitions) -> tuple[Tensor, Tensor, Tensor]:
        part = part._replace(obs=self.normalise(part.obs), next_obs=self.normalise(part.next_obs))
        seeds = [Transitions(*columns) for columns in zip(*part, strict=True)]
        values = [agent.eval().values(seed) for agent, seed in zip(self.agents, seeds, strict=True)]  # type: ignore[operator]
        return tuple(map(torch.stack, zip(*values, strict=True)))  # type: ignore[return-value]

    @torch.no_grad()
    def state_dict(self) -> dict[str, Tensor]:
        """Live tensors [seeds, …]: the parameters, buffers and optimisers' states of the seeds are views of
        them. A tensor that an algorithm replaced by assignment is copied and becomes a view again.
        """
        for i, agent in enumerate(self.agents):
            for name, tensor in agent.live_tensors().items():
                view = self.state[name][i]
                if tensor.data_ptr() != view.data_ptr():
                    view.copy_(tensor)
                    tensor.data = view
        return self.state | {f"obs.{name}": tensor for name, tensor in self.normalise.state_dict().items()}


@contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """Within this context, random functions without a generator argument draw from this one."""
    device = generator.device
    default = (
        torch.cuda.default_generators[device.index or 0] if device.type == "cuda" else torch.default_generator
    )
    before = default.get_state()
    default.set_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(default.get_state())
        default.set_state(before)


def check_parameters(agent: AutogradAgent, name: str, optimiser: torch.optim.Optimizer) -> None:
    """Raise UserError if an optimiser steps a parameter that checkpoints would not hold."""
    registered = {id(parameter) for parameter in agent.parameters()}
    if any(id(p) not in registered for group in optimiser.param_groups for p in group["params"]):
        raise UserError(
            f"optimisers[{name!r}] has a parameter that is not registered in {type(agent).__name__}: make it "
            "an nn.Parameter attribute, or keep its modules in an nn.ModuleList"
        )


def create_state(optimiser: torch.optim.Optimizer) -> None:
    """Create an optimiser's state, which torch does at the first step: by a step of length 0."""
    settings = [dict(group) for group in optimiser.param_groups]
    for group in optimiser.param_groups:
        group |= {"lr": 0.0, "weight_decay": 0.0}  # decay would enter the averages
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    for state in optimiser.state.values():
        if "step" in state:
            state["step"].zero_()
    for group, before in zip(optimiser.param_groups, settings, strict=True):
        group |= before
    optimiser.zero_grad()
