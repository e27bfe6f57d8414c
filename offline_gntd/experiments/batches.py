"""Where a run's batches come from: drawn from its datasets, or collected online by the policy it learns."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from offline_gntd.collection.online import OnlineBatches, OnlineSettings
from offline_gntd.datasets import Dataset, OnlineEnv
from offline_gntd.experiments.sources import Source
from offline_gntd.nn.normaliser import Statistics
from offline_gntd.transitions import Sampler, Transitions, from_rows


class ReplayBatches:
    """Batches drawn uniformly from the rows of each seed's dataset, with the seed's generator.

    The datasets of all seeds are concatenated, so that a batch for all seeds is one gather. A dataset that
    all seeds share is not copied, unless its truncated rows are to count as terminal.
    """

    def __init__(
        self,
        datasets: Sequence[Dataset],
        batch_size: int,
        generators: Sequence[torch.Generator],
        timeouts_terminal: bool = False,
    ):
        """datasets  one per seed; the same object where seeds share it"""
        task = datasets[0].task
        distinct = list({id(dataset): dataset for dataset in datasets}.values())
        rows = [_rows(dataset, timeouts_terminal) for dataset in distinct]
        self.rows = (rows[0] if len(rows) == 1 else torch.cat(rows)).to(generators[0].device)
        ends = torch.tensor([len(each) for each in rows]).cumsum(0).tolist()
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


def _rows(dataset: Dataset, timeouts_terminal: bool) -> Tensor:
    """A dataset's rows; with `timeouts_terminal`, a copy where truncated rows are terminal, if it has any."""
    if not timeouts_terminal or not len(dataset.truncated):
        return dataset.rows
    rows = dataset.rows.clone()
    rows[torch.from_numpy(dataset.truncated), -1] = 1.0
    return rows


def batches_of(
    sources: Sequence[Source], config: Any, seeds: Sequence[int], generators: Sequence[torch.Generator]
) -> ReplayBatches | OnlineBatches:
    """The batches of a run.

    sources     one per seed: all datasets, or all the same environment
    generators  one per seed, on the device of the networks
    """
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
    return ReplayBatches(datasets, config.batch_size, generators, timeouts_terminal)
