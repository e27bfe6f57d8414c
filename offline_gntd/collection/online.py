"""Online learning: environments stepped together, roll-outs, a replay buffer, and batches from it.

The discrete datasets, the MuJoCo splits and the online algorithms of a grid all learn with `OnlineBatches`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from offline_gntd.errors import UserError
from offline_gntd.evaluation import make
from offline_gntd.files import load_tensors, save_tensors
from offline_gntd.nn.policies import uniform
from offline_gntd.tasks import Task
from offline_gntd.transitions import Sampler, Transitions, row_width

COLLECTING = 2**32 - 1  # second part of the key of a seed's environments; evaluations use their step
PREFIX = "online."  # of names in a checkpoint
MEASURED_CALLS = 200  # to measure a rate, at most …
MEASURED_SECONDS = 2.0  # … and for at most this long


# ---- collecting ----


@dataclass
class RolloutBuffer:
    """Collected steps by round; in a round, every environment takes one step."""

    rows: Tensor  # [rounds, environments, row_width] float32: obs | action | reward | next_obs | terminated
    truncated: Tensor  # [rounds, environments] bool: ended by the time limit, not by a terminal state

    def __getitem__(self, rounds: slice) -> "RolloutBuffer":
        return RolloutBuffer(self.rows[rounds], self.truncated[rounds])

    @property
    def done(self) -> Tensor:
        """[rounds, environments] bool: the last step of an episode."""
        return self.truncated | self.rows[..., -1].bool()

    def episodes(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The first `count` steps as episodes, in the order they began.

        Returns rows [count, row_width], and the row after each episode's last. The last episode of each
        environment is cut after its share of the steps.
        """
        environments, done = self.rows.shape[1], self.done.numpy()
        parts = []
        for i in range(environments):
            length = (count - i + environments - 1) // environments  # of this environment's share
            ends = np.flatnonzero(done[:length, i]) + 1
            ends = ends if len(ends) and ends[-1] == length else np.append(ends, length)
            bounds = zip([0, *ends[:-1]], ends, strict=True)
            parts += [(start, i, end) for start, end in bounds if end > start]
        parts.sort()
        rows = np.concatenate([self.rows[start:end, i].numpy() for start, i, end in parts])
        return rows, np.cumsum([end - start for start, _, end in parts])

    def complete_returns(self, task: Task) -> np.ndarray:
        """Returns of the complete episodes."""
        rewards, done = self.rows[..., task.obs_dim + task.action_dim].double().numpy(), self.done.numpy()
        returns = []
        for i in range(done.shape[1]):
            ends = np.flatnonzero(done[:, i]) + 1
            if len(ends):
                returns.append(np.add.reduceat(rewards[: ends[-1], i], [0, *ends[:-1]]))
        return np.concatenate(returns) if returns else np.zeros(0)

    def save(self, path: Path) -> None:
        # cloned: torch would store all of the memory behind a view
        save_tensors(path, {"rows": self.rows.clone(), "truncated": self.truncated.clone()})

    @staticmethod
    def load(path: Path) -> "RolloutBuffer":
        return RolloutBuffer(**load_tensors(path))


class VectorCollector:
    """Environments stepped together, each through one episode after another.

    The start of an episode depends only on the key, the environment's number and the episode's number. A
    checkpoint holds the episode's number and the actions taken in it; the episode is replayed when a run
    resumes.
    """

    def __init__(self, task: Task, key: tuple[int, ...], environments: int):
        self.task, self.key = task, key
        self.environments = [make(task.env_id, **task.env_options) for _ in range(environments)]
        self._action_width = 1 if task.discrete else task.action_dim
        self._first_action = int(getattr(self.environments[0].action_space, "start", 0))
        self.obs = torch.zeros(environments, task.obs_dim)
        self.rows = torch.zeros(environments, row_width(task))
        self.truncated = torch.zeros(environments, dtype=torch.bool)
        # the same memory as arrays: setting a few numbers in a tensor takes ten times as long
        self._obs, self._rows, self._truncated = (
            tensor.numpy() for tensor in (self.obs, self.rows, self.truncated)
        )
        self._episodes = [0] * environments  # started so far
        self._taken: list[list[np.ndarray]] = [[] for _ in range(environments)]  # actions of current episodes
        self.reset()

    def reset(self) -> None:
        """Abandon the current episodes and start new ones."""
        for i in range(len(self.environments)):
            self._start(i)

    def _start(self, i: int) -> None:
        start = np.random.SeedSequence([*self.key, i, self._episodes[i]])
        self._obs[i], _ = self.environments[i].reset(seed=int(start.generate_state(1)[0]))
        self._episodes[i] += 1
        self._taken[i] = []

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """One step of every environment: rows [environments, row_width] and truncated [environments].

        actions  [environments, action_dim] within their range, or integers [environments] if discrete

        The result is valid until the next step. A row is truncated if the time limit ended its episode and
        its state is not terminal.
        """
        o, a = self.task.obs_dim, self._action_width
        rows = self._rows
        rows[:, :o], rows[:, o : o + a] = self._obs, actions.reshape(-1, a).numpy()
        for i in range(len(self.environments)):
            action = rows[i, o : o + a].copy()  # rows are overwritten at the next step
            self._taken[i].append(action)
            self._obs[i], rows[i, o + a], terminated, limit, _ = self._act(i, action)
            rows[i, o + a + 1 : -1], rows[i, -1] = self._obs[i], terminated
            self._truncated[i] = limit and not terminated
            if terminated or limit:
                self._start(i)
        return self.rows, self.truncated

    def _act(self, i: int, action: np.ndarray) -> tuple:
        """Step environment i with an action as it is stored in a row."""
        return self.environments[i].step(
            int(action[0]) + self._first_action if self.task.discrete else action
        )

    def state(self) -> dict[str, Tensor]:
        """The number and the actions of every environment's current episode: its future depends on these."""
        taken = [np.array(actions, np.float32).reshape(-1, self._action_width) for actions in self._taken]
        return {
            "episodes": torch.tensor(self._episodes),
            "lengths": torch.tensor([len(actions) for actions in taken]),
            "actions": torch.from_numpy(np.concatenate(taken)),
            "obs": self.obs.clone(),
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        """Replay the current episodes of a state. Raises UserError if their observations differ."""
        taken = state["actions"].split(state["lengths"].tolist())
        for i, (episodes, actions) in enumerate(zip(state["episodes"].tolist(), taken, strict=True)):
            self._episodes[i] = episodes - 1
            self._start(i)
            self._taken[i] = list(actions.numpy())
            for action in self._taken[i]:
                self._obs[i], *_ = self._act(i, action)
        if not torch.equal(self.obs, state["obs"]):
            raise UserError(
                f"{self.task.env_id} does not repeat its episodes on this machine, so the run cannot be "
                "resumed; delete its folder and start again"
            )

    def close(self) -> None:
        for environment in self.environments:
            environment.close()


def roll_out(
    task: Task,
    act: Callable[[Tensor], Tensor],
    transitions: int,
    key: tuple[int, ...],
    environments: int = 10,
    report: Callable[[int], None] = lambda steps: None,
) -> RolloutBuffer:
    """At least `transitions` steps of a policy, obs [1, n, obs_dim] -> actions [1, n, action_dim].

    Every environment takes the same number of steps, so that short episodes are not favoured.
    """
    collector = VectorCollector(task, key, environments)
    rounds = -(-transitions // environments)
    rows = torch.empty(rounds, *collector.rows.shape)
    truncated = torch.empty(rounds, environments, dtype=torch.bool)
    for i in range(rounds):
        rows[i], truncated[i] = collector.step(act(collector.obs[None])[0])
        report(environments)
    collector.close()
    return RolloutBuffer(rows, truncated)


# ---- learning ----


@dataclass(frozen=True)
class OnlineSettings:
    batch_size: int
    random_steps: int  # uniformly random steps before the first update
    buffer_size: int  # transitions of a seed that are stored; then the oldest are overwritten
    environments: int = 1  # per seed, stepped together
    updates_per_step: float = 1.0  # per step of one environment
    timeouts_terminal: bool = False  # whether a time limit stops bootstrapping in the batches


class ReplayBuffer:
    """The last `capacity` transitions of each seed, in one tensor, so that a batch is one gather."""

    def __init__(self, task: Task, seeds: int, capacity: int, device: str = "cpu"):
        self.capacity = capacity
        self.rows = torch.zeros(seeds, capacity, row_width(task), device=device)  # `terminated` as in batches
        self.truncated = torch.zeros(seeds, capacity, dtype=torch.bool)
        self.added = 0  # transitions of each seed, overwritten ones included

    def __len__(self) -> int:
        """Stored transitions of each seed."""
        return min(self.added, self.capacity)

    def add(self, rows: Sequence[Tensor], truncated: Sequence[Tensor]) -> None:
        """Store the same number n of transitions of every seed: rows [n, row_width] and truncated [n]."""
        count = len(rows[0])
        places = (self.added + torch.arange(count)) % self.capacity
        for seed, (new_rows, new_truncated) in enumerate(zip(rows, truncated, strict=True)):
            self.rows[seed, places] = new_rows.to(self.rows.device)
            self.truncated[seed, places] = new_truncated
        self.added += count

    def ranges(self) -> list[tuple[int, int]]:
        """Each seed's part of rows.flatten(0, 1)."""
        return [(i * self.capacity, i * self.capacity + len(self)) for i in range(len(self.rows))]

    def in_order(self, seed: int) -> tuple[Tensor, Tensor]:
        """Copies of the rows [n, row_width] and truncated [n] of a seed, oldest first."""
        oldest = self.added % self.capacity if self.added > self.capacity else 0
        order = (oldest + torch.arange(len(self))) % self.capacity
        return self.rows[seed, order].cpu(), self.truncated[seed, order]

    def restore(self, rows: Sequence[Tensor], truncated: Sequence[Tensor], added: int) -> None:
        """Store what `in_order` returned for each seed after `added` transitions."""
        self.added = added - len(rows[0])
        self.add(rows, truncated)


class OnlineBatches:
    """Collects transitions in every seed's environments and draws batches from those collected so far."""

    statistics = None  # of observations: unknown in advance
    transitions = None  # no dataset to measure over

    def __init__(
        self,
        task: Task,
        settings: OnlineSettings,
        seeds: Sequence[int],
        generators: Sequence[torch.Generator],
        stream: int = COLLECTING,
    ):
        """stream  second part of the key of each seed's environments"""
        self.task, self.settings, self.generators = task, settings, generators
        self.device = str(generators[0].device)
        self.collectors = [VectorCollector(task, (seed, stream), settings.environments) for seed in seeds]
        self.buffer = ReplayBuffer(task, len(seeds), settings.buffer_size, self.device)
        self.sampler = Sampler(task, settings.batch_size, generators)
        self.steps = 0  # of each seed, all its environments together
        # for each seed: return so far of each environment's episode, and returns of finished episodes
        self.current_returns = torch.zeros(len(seeds), settings.environments, dtype=torch.float64)
        self.finished_returns: list[list[float]] = [[] for _ in seeds]

    def batch(self, agent) -> Transitions | None:
        """Take one step in every environment; then a batch per seed, or None during the random steps."""
        return self.sample() if self.step(agent.explore) else None

    def step(self, explore: Callable[[Tensor], Tensor]) -> int:
        """One step in every environment, random at first. Returns the number of updates now due.

        explore  obs [seeds, environments, obs_dim] -> actions [seeds, environments, …]
        """
        if self.steps < self.settings.random_steps:
            actions = self._random_actions()
        else:
            obs = torch.stack([collector.obs for collector in self.collectors])
            actions = explore(obs.to(self.device))
        due = self._updates_due()
        taken = zip(self.collectors, actions.cpu(), strict=True)
        rows, truncated = zip(*(collector.step(action) for collector, action in taken), strict=True)
        self._count_returns(rows, truncated)
        if self.settings.timeouts_terminal:
            for seed_rows, cut in zip(rows, truncated, strict=True):
                seed_rows[cut, -1] = 1.0
        self.buffer.add(rows, truncated)
        self.steps += self.settings.environments
        return self._updates_due() - due

    def _updates_due(self) -> int:
        """Updates due since the first step."""
        return int(max(0, self.steps - self.settings.random_steps) * self.settings.updates_per_step)

    def sample(self) -> Transitions:
        """A batch for each seed, drawn uniformly from its part of the buffer."""
        return self.sampler(self.buffer.rows.flatten(0, 1), self.buffer.ranges())

    def reset(self) -> None:
        """Abandon the current episodes and start new ones."""
        for collector in self.collectors:
            collector.reset()
        self.current_returns.zero_()

    def _random_actions(self) -> Tensor:
        count = self.settings.environments
        if not self.task.discrete:
            return uniform(self.generators, count, self.task.action_dim)
        shape, choices = (count,), self.task.action_dim
        draws = [torch.randint(choices, shape, generator=g, device=g.device) for g in self.generators]
        return torch.stack(draws)

    def _count_returns(self, rows: Sequence[Tensor], truncated: Sequence[Tensor]) -> None:
        reward = -self.task.obs_dim - 2
        for i, (seed_rows, cut) in enumerate(zip(rows, truncated, strict=True)):
            self.current_returns[i] += seed_rows[:, reward].double()
            for j in torch.nonzero(cut | seed_rows[:, -1].bool())[:, 0].tolist():
                self.finished_returns[i].append(float(self.current_returns[i, j]))
                self.current_returns[i, j] = 0.0

    def metrics(self, i: int) -> dict[str, float]:
        """Mean return of a seed's episodes that ended since the last call, if any did."""
        finished, self.finished_returns[i] = self.finished_returns[i], []
        return {"collected_return": float(np.mean(finished))} if finished else {}

    def state(self, i: int) -> dict[str, Tensor]:
        """Everything that seed i's future batches depend on, except its generator."""
        rows, truncated = self.buffer.in_order(i)
        state = self.collectors[i].state() | {
            "steps": torch.tensor(self.steps),
            "rows": rows,
            "truncated": truncated,
            "current_returns": self.current_returns[i].clone(),
            "finished_returns": torch.tensor(self.finished_returns[i], dtype=torch.float64),
        }
        return {f"{PREFIX}{name}": tensor for name, tensor in state.items()}

    def restore(self, states: Sequence[dict[str, Tensor]]) -> None:
        """Continue from the states of all seeds."""
        parts = [
            {name.removeprefix(PREFIX): tensor for name, tensor in state.items() if name.startswith(PREFIX)}
            for state in states
        ]
        self.steps = int(parts[0]["steps"])
        self.buffer.restore(
            [part["rows"] for part in parts], [part["truncated"] for part in parts], self.steps
        )
        for i, part in enumerate(parts):
            self.current_returns[i] = part["current_returns"]
            self.finished_returns[i] = part["finished_returns"].tolist()
            self.collectors[i].restore(part)

    def close(self) -> None:
        for collector in self.collectors:
            collector.close()


def measure_rate(work: Callable[[], object], most: int) -> float:
    """Calls of `work` per second, after a first call, which may be slower. Makes at most `most` calls."""
    work()
    started, count = time.perf_counter(), 0
    while count < max(1, min(MEASURED_CALLS, most - 1)):
        work()
        count += 1
        if time.perf_counter() - started >= MEASURED_SECONDS:
            break
    return count / (time.perf_counter() - started)
