"""Training: the agents of a group of seeds, the batches they learn from, and the one training loop."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from offline_gntd.experiments.batches import batches_of
from offline_gntd.experiments.sources import Source
from offline_gntd.tensors import Unreadable

State = dict[str, dict[str, Tensor]]  # of one seed: agent, batches, generator


class StateMismatch(Unreadable):
    """A stored state is not that of the agent."""


class Training:
    """Everything that the next update depends on. The seeds never influence each other."""

    def __init__(self, config: Any, sources: Sequence[Source], seeds: Sequence[int], device: str = "cpu"):
        """sources  one per seed: all datasets, or all the same environment"""
        self.config, self.task, self.device = config, sources[0].task, device
        self.generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        self.batches = batches_of(sources, config, seeds, self.generators)
        self.agent = config.agent(self.task, self.generators, self.batches.statistics)
        self.step = 0
        self.last: dict[str, Tensor] = {}  # what the last update returned

    def train(self, until: int) -> None:
        """The training loop: one batch and one update per step."""
        while self.step < until:
            batch = self.batches.batch(self.agent)
            self.last = {} if batch is None else self.agent.update(batch)
            self.step += 1
        if self.device != "cpu":
            torch.cuda.synchronize()

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """Greedy actions [seeds, n, …] for obs [seeds, n, obs_dim]."""
        return self.agent.act(obs)

    @torch.no_grad()
    def metrics(self) -> dict[str, Tensor]:
        """By name, for every seed: means over the last batch, and what the agent measures over its data."""
        means = {name: values.reshape(len(values), -1).mean(1) for name, values in self.last.items()}
        return means | self.agent.measure(self.batches.transitions)

    def state(self, i: int) -> State:
        """A copy of everything that seed i's next update depends on."""
        return {
            "agent": {name: view.clone() for name, view in agent_state(self.agent, i).items()},
            "batches": self.batches.state(i),
            "generator": {"state": self.generators[i].get_state()},
        }

    def restore(self, states: Sequence[State], step: int) -> None:
        restore_agent(self.agent, [state["agent"] for state in states])
        for generator, state in zip(self.generators, states, strict=True):
            generator.set_state(state["generator"]["state"])
        self.batches.restore([state["batches"] for state in states])
        self.step = step

    def check_restorable(self) -> None:
        """Raise StateMismatch if an agent restored from this one's state would not be the same."""
        twin = self.config.agent(self.task, [torch.Generator(self.device) for _ in self.generators])
        restore_agent(twin, [self.state(i)["agent"] for i in range(len(self.generators))])

    def close(self) -> None:
        self.batches.close()


def agent_state(agent: Any, i: int) -> dict[str, Tensor]:
    """Views of seed i's part of an agent's state; tensors without dimensions are shared by all seeds."""
    state = {name: tensor.detach() for name, tensor in agent.state_dict().items()}
    return {name: tensor[i] if tensor.dim() else tensor for name, tensor in state.items()}


@torch.no_grad()
def restore_agent(agent: Any, states: Sequence[dict[str, Tensor]]) -> None:
    """Copy the state of every seed into an agent, and check that the agent then has it."""
    for i, state in enumerate(states):
        views = agent_state(agent, i)
        for name in views.keys() ^ state.keys():
            where = "the stored state" if name in views else "the agent"
            raise StateMismatch(
                f"{where} has no tensor {name!r}; state_dict() must name the same tensors at any time, an "
                "optimiser's from the start"
            )
        for name, view in views.items():
            if view.shape != state[name].shape or view.dtype != state[name].dtype:
                raise StateMismatch(
                    f"{name} is stored as {tuple(state[name].shape)} {state[name].dtype}, but the agent has "
                    f"{tuple(view.shape)} {view.dtype}"
                )
            view.copy_(state[name])
    for i, state in enumerate(states):
        for name, view in agent_state(agent, i).items():
            if not torch.equal(view.nan_to_num(), state[name].to(view.device).nan_to_num()):
                raise StateMismatch(
                    f"state_dict() returns a copy of {name!r}, not the tensor that the agent uses"
                )
