"""Environments stepped together, one episode after another, with every step stored."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from offline_gntd import tensors
from offline_gntd.errors import UserError
from offline_gntd.evaluation import make
from offline_gntd.tasks import Task
from offline_gntd.transitions import row_width


@dataclass
class RolloutBuffer:
    """Stored steps by round: in each round, every environment takes one step."""

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
        tensors.save(path, {"rows": self.rows.clone(), "truncated": self.truncated.clone()})

    @staticmethod
    def load(path: Path) -> "RolloutBuffer":
        return RolloutBuffer(**tensors.load(path))


class VectorCollector:
    """Environments stepped together, each through one episode after another.

    The start of an episode depends only on the key, the environment's number and the episode's number. A
    checkpoint therefore holds the actions of the current episodes, which are replayed when a run resumes.
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
        self._episodes = [0] * environments  # begun so far
        self._taken: list[list[np.ndarray]] = [[] for _ in range(environments)]  # actions of current episodes
        self.reset()

    def reset(self) -> None:
        """Abandon the current episodes and begin new ones."""
        for i in range(len(self.environments)):
            self._begin(i)

    def _begin(self, i: int) -> None:
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
                self._begin(i)
        return self.rows, self.truncated

    def _act(self, i: int, action: np.ndarray) -> tuple:
        """Step environment i with an action as it is stored in a row."""
        return self.environments[i].step(
            int(action[0]) + self._first_action if self.task.discrete else action
        )

    def state(self) -> dict[str, Tensor]:
        """The number and the actions of every environment's current episode: what its future depends on."""
        taken = [np.array(actions, np.float32).reshape(-1, self._action_width) for actions in self._taken]
        return {
            "episodes": torch.tensor(self._episodes),
            "lengths": torch.tensor([len(actions) for actions in taken]),
            "actions": torch.from_numpy(np.concatenate(taken)),
            "obs": self.obs.clone(),
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        """Replay the current episodes of a state. Raises UserError if they come out differently."""
        taken = state["actions"].split(state["lengths"].tolist())
        for i, (episodes, actions) in enumerate(zip(state["episodes"].tolist(), taken, strict=True)):
            self._episodes[i] = episodes - 1
            self._begin(i)
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
