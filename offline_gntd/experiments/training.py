"""The data of a run, the batches drawn from it, and the training loop.

Each seed has a dataset (ReplayBatches) or, for an online algorithm, an environment in which the policy that
learns collects its data (OnlineBatches).
"""

import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from offline_gntd.algorithms.agent import Statistics, check_actions
from offline_gntd.collection.online import OnlineBatches, OnlineSettings
from offline_gntd.datasets import Dataset, DatasetNotFound, OnlineEnv, built_datasets, load
from offline_gntd.datasets.catalogue import SEED, results_name
from offline_gntd.errors import UserError
from offline_gntd.evaluation import task_of
from offline_gntd.files import Unreadable
from offline_gntd.transitions import Sampler, Transitions, from_rows

DataSource = Dataset | OnlineEnv
ACTION_TOLERANCE = 1e-3  # stored actions may exceed [−1, 1] by this, because of rounding

State = dict[str, dict[str, Tensor]]  # one seed's agent, batches and generator


class StateMismatch(Unreadable):
    """A stored state does not fit the agent."""


class Training:
    """The agent, the batches and the generators of a group of seeds, which do not influence each other."""

    def __init__(self, config: Any, sources: Sequence[DataSource], seeds: Sequence[int], device: str = "cpu"):
        """sources  one per seed: all datasets, or all the same environment"""
        self.config, self.task, self.device = config, sources[0].task, device
        self.generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        self.batches = batches_of(sources, config, seeds, self.generators)
        self.agent = config.agent(self.task, self.generators, self.batches.statistics)
        self.step = 0
        self.last_metrics: dict[str, Tensor] = {}  # what the last update returned

    def train(self, until: int) -> None:
        """The training loop: one batch and one update per step."""
        while self.step < until:
            batch = self.batches.batch(self.agent)
            # an online algorithm has no batch during its random steps
            self.last_metrics = {} if batch is None else self.agent.update(batch)
            self.step += 1
        if self.device != "cpu":
            torch.cuda.synchronize()

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """Greedy actions [seeds, n, …] for obs [seeds, n, obs_dim]."""
        return self.agent.act(obs)

    @torch.no_grad()
    def metrics(self) -> dict[str, Tensor]:
        """Metrics [seeds] by name: means over the last update's batch, and those that the agent measures."""
        means = {name: values.reshape(len(values), -1).mean(1) for name, values in self.last_metrics.items()}
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
        restored = self.config.agent(self.task, [torch.Generator(self.device) for _ in self.generators])
        restore_agent(restored, [self.state(i)["agent"] for i in range(len(self.generators))])

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


class ReplayBatches:
    """Batches drawn uniformly from the rows of each seed's dataset, with the seed's generator.

    The datasets of all seeds are concatenated, so that a batch for all seeds is one gather. A dataset that
    all seeds share is not copied, unless settings change its rows.
    """

    def __init__(
        self,
        datasets: Sequence[Dataset],
        batch_size: int,
        generators: Sequence[torch.Generator],
        timeouts_terminal: bool = False,
        scale_rewards: bool = False,
    ):
        """datasets  one per seed; the same object where seeds share it"""
        task = datasets[0].task
        distinct = list({id(dataset): dataset for dataset in datasets}.values())
        rows = [_rows(dataset, timeouts_terminal, scale_rewards) for dataset in distinct]
        self.rows = (rows[0] if len(rows) == 1 else torch.cat(rows)).to(generators[0].device)
        ends = np.cumsum([len(part) for part in rows]).tolist()
        ranges = {id(dataset): (end - len(dataset), end) for dataset, end in zip(distinct, ends, strict=True)}
        self.ranges = [ranges[id(dataset)] for dataset in datasets]
        self.sampler = Sampler(task, batch_size, generators)
        self.statistics: Statistics = (  # [seeds, 1, obs_dim]
            torch.stack([torch.from_numpy(dataset.obs_mean) for dataset in datasets])[:, None],
            torch.stack([torch.from_numpy(dataset.obs_std) for dataset in datasets])[:, None],
        )
        transitions = {part: from_rows(self.rows[slice(*part)], task) for part in set(self.ranges)}
        self.transitions: list[Transitions] = [transitions[part] for part in self.ranges]  # one per seed

    def batch(self, agent: Any) -> Transitions:
        return self.sampler(self.rows, self.ranges)

    def metrics(self, i: int) -> dict[str, float]:
        return {}

    def state(self, i: int) -> dict[str, Tensor]:
        return {}

    def restore(self, states: Sequence[dict[str, Tensor]]) -> None:
        pass

    def close(self) -> None:
        pass


def _rows(dataset: Dataset, timeouts_terminal: bool, scale_rewards: bool) -> Tensor:
    """A dataset's rows, or a copy if settings change them: truncated rows are terminal, or rewards are scaled
    so that the returns of the episodes span 1,000. OGBench's rewards, −1 or 0 a step, are never scaled."""
    timeouts_terminal = timeouts_terminal and len(dataset.truncated) > 0
    span = 0.0 if dataset.origin == "ogbench" else float(np.ptp(dataset.episode_returns))
    if not timeouts_terminal and not (scale_rewards and span):
        return dataset.rows
    rows = dataset.rows.clone()
    if timeouts_terminal:
        rows[torch.from_numpy(dataset.truncated), -1] = 1.0
    if scale_rewards and span:
        rows[:, -dataset.task.obs_dim - 2] *= 1000 / span
    return rows


def batches_of(
    sources: Sequence[DataSource], config: Any, seeds: Sequence[int], generators: Sequence[torch.Generator]
) -> ReplayBatches | OnlineBatches:
    """The batches of a run; `sources` and `generators` have one entry per seed, see `Training`."""
    if isinstance(sources[0], OnlineEnv):
        settings = OnlineSettings(
            batch_size=config.batch_size,
            random_steps=config.random_steps,
            buffer_size=config.buffer_size,
            environments=config.environments,
            updates_per_step=1 / config.environments,  # one update after a step of every environment
        )
        return OnlineBatches(sources[0].task, settings, seeds, generators)
    datasets = [source for source in sources if isinstance(source, Dataset)]
    timeouts_terminal = getattr(config, "timeouts_terminal", False)
    scale_rewards = getattr(config, "scale_rewards", False)
    return ReplayBatches(datasets, config.batch_size, generators, timeouts_terminal, scale_rewards)


# ---- from names to data ----


def is_family(source: str) -> bool:
    """Whether each seed has a different dataset: cartpole-replay, or a name or path with {seed} in it."""
    return source in built_datasets.FAMILIES or SEED in source


def is_online(config: Any) -> bool:
    """Whether an algorithm learns in an environment and needs no dataset."""
    return getattr(config, "online", False)


def sources_of(source: str, config: Any, seeds: Sequence[int]) -> tuple[DataSource, ...]:
    """One source per seed; the same object where seeds share their data.

    source  the name or path of a dataset or of a family; the id of an environment if the algorithm is online

    Raises DatasetNotFound if a known dataset is not on this machine, and UserError for an unknown name.
    """
    if is_online(config):
        return (_online_env(source, config),) * len(seeds)
    if not is_family(source):
        return (_dataset(source, config),) * len(seeds)
    names = [built_datasets.member(source, seed).replace(SEED, str(seed)) for seed in seeds]
    try:
        sources = tuple(_dataset(name, config) for name in names)
    except DatasetNotFound as error:
        if source not in built_datasets.FAMILIES:
            raise
        command = f"offline-gntd datasets build {source} --seeds {max(seeds) + 1}"
        raise DatasetNotFound(f"{source} is not built for every seed; build it with: {command}") from error
    for other in sources[1:]:
        if other.task != sources[0].task:
            raise UserError(
                f"the datasets of a family must have one task: {sources[0].name} has "
                f"{sources[0].task.env_id}, {other.name} has {other.task.env_id}"
            )
    return sources


def _dataset(name: str, config: Any) -> Dataset:
    try:
        return load(name)
    except DatasetNotFound:
        raise
    except UserError as error:
        if _why_no_environment(name):
            raise
        raise UserError(
            f"{name} is an environment, and {type(config).__name__} learns from a dataset; "
            "see: offline-gntd datasets list"
        ) from error


def _online_env(source: str, config: Any) -> OnlineEnv:
    if reason := _why_no_environment(source):
        raise UserError(
            f"{type(config).__name__} learns in an environment such as Hopper-v4, not from {source!r}: "
            f"{reason}"
        )
    return OnlineEnv(name=results_name(source), task=task_of(source), origin="online", source=source)


def _why_no_environment(name: str) -> str:
    """Why gymnasium has no environment of this name; empty if it has one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # out-of-date versions are chosen on purpose
            gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError) as error:
        return str(error).splitlines()[0]
    return ""


def check_compatible(config: Any, source: DataSource) -> None:
    """Raise UserError unless the algorithm can learn from the source: the actions must be of its kind and,
    if continuous, in the environment's range, which the source must know."""
    check_actions(config, source.task)
    if source.task.discrete:
        return
    expected = task_of(source.task.env_id, **source.task.env_options)
    if expected.action_dim != source.task.action_dim or not np.allclose(
        expected.action_bounds, source.task.action_bounds
    ):
        low, high = expected.action_limits
        lowest, highest = source.task.action_limits
        raise UserError(
            f"{expected.env_id} takes actions from {low:g} to {high:g}, {source.name} is for actions from "
            f"{lowest:g} to {highest:g}"
        )
    if isinstance(source, Dataset):
        largest = float(source.transitions.action.abs().max())
        if largest > 1 + ACTION_TOLERANCE:
            raise UserError(
                f"the actions of {source.name} reach {largest:g}, beyond the range of {source.task.env_id}, "
                f"scaled to −1 to 1; see: offline-gntd datasets check {source.source}"
            )
