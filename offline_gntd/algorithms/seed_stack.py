"""AutogradAgents of several seeds as one agent, with its state in live tensors."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from offline_gntd.algorithms.agent import Agent
from offline_gntd.algorithms.bellman import td_errors
from offline_gntd.errors import UserError
from offline_gntd.nn.gauss_newton import GaussNewton
from offline_gntd.nn.normaliser import Statistics
from offline_gntd.tasks import Task
from offline_gntd.transitions import Batch, Transitions

if TYPE_CHECKING:
    from offline_gntd.algorithms.autograd import AutogradAgent


class SeedStack(Agent):
    """AutogradAgents of several seeds as one agent. They share nothing."""

    def __init__(
        self,
        kind: "type[AutogradAgent]",
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
        self.state_dict()

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
        """TD errors, if the agents have `values`; what K-FAC reports of itself, if there is a GaussNewton."""
        measured = {}
        if hasattr(self.agents[0], "values"):
            measured = td_errors(transitions, self._values, self.config.discount)
        for name, optimiser in self.agents[0].optimisers.items():
            if isinstance(optimiser, GaussNewton):
                parts = [agent.optimisers[name].diagnostics() for agent in self.agents]  # type: ignore[union-attr]
                measured |= {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
        return measured

    def _values(self, part: Transitions) -> tuple[Tensor, Tensor, Tensor]:
        part = part._replace(obs=self.normalise(part.obs), next_obs=self.normalise(part.next_obs))
        seeds = [Transitions(*columns) for columns in zip(*part, strict=True)]
        values = [agent.eval().values(seed) for agent, seed in zip(self.agents, seeds, strict=True)]  # type: ignore[operator]
        return tuple(map(torch.stack, zip(*values, strict=True)))  # type: ignore[return-value]

    @torch.no_grad()
    def state_dict(self) -> dict[str, Tensor]:
        """Live tensors [seeds, …]: the parameters, buffers and optimisers' states of the seeds are views of
        them. One that an algorithm has replaced by assignment since is copied and made a view again."""
        for i, agent in enumerate(self.agents):
            for name, tensor in agent.live_tensors().items():
                mine = self.state[name][i]
                if tensor.data_ptr() != mine.data_ptr():
                    mine.copy_(tensor)
                    tensor.data = mine
        return self.state | {f"obs.{name}": tensor for name, tensor in self.normalise.state_dict().items()}


@contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """Inside, random functions that are given no generator draw from this one."""
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


def check_parameters(agent: "AutogradAgent", name: str, optimiser: torch.optim.Optimizer) -> None:
    """Raise UserError if an optimiser steps a parameter that checkpoints would not hold."""
    registered = {id(parameter) for parameter in agent.parameters()}
    if any(id(p) not in registered for group in optimiser.param_groups for p in group["params"]):
        raise UserError(
            f"optimisers[{name!r}] has a parameter that is not registered in {type(agent).__name__}: make it "
            "an nn.Parameter attribute, or keep its modules in an nn.ModuleList"
        )


def create_state(optimiser: torch.optim.Optimizer) -> None:
    """Create an optimiser's state, which torch does at the first step: by a step of length 0."""
    rates = [group["lr"] for group in optimiser.param_groups]
    for group in optimiser.param_groups:
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    for state in optimiser.state.values():
        if "step" in state:
            state["step"].zero_()
    for group, rate in zip(optimiser.param_groups, rates, strict=True):
        group["lr"] = rate
    optimiser.zero_grad()
