"""Environments stepped together, each through one episode after another, with every step stored."""

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
    """What happened, round by round: in a round every environment takes one step."""

    rows: Tensor  # [rounds, environments, row_width] float32: obs | action | reward | next_obs | terminated
    truncated: Tensor  # [rounds, environments] bool: cut by the time limit and not terminated

    def __getitem__(self, rounds: slice) -> "RolloutBuffer":
        return RolloutBuffer(self.rows[rounds], self.truncated[rounds])

    @property
    def over(self) -> Tensor:
        """Where an episode ended: [rounds, environments]."""
        return self.truncated | self.rows[..., -1].bool()

    def episodes(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The first `count` steps as episodes in the order they began: rows [count, …], and where each ends.

        Each environment's last episode is cut where those steps end.
        """
        environments, over = self.rows.shape[1], self.over.numpy()
        parts = []
        for i in range(environments):
            length = (count - i + environments - 1) // environments  # of this environment's share
            ends = np.flatnonzero(over[:length, i]) + 1
            ends = ends if len(ends) and ends[-1] == length else np.append(ends, length)
            bounds = zip([0, *ends[:-1]], ends, strict=True)
            parts += [(start, i, end) for start, end in bounds if end > start]
        parts.sort()
        rows = np.concatenate([self.rows[start:end, i].numpy() for start, i, end in parts])
        return rows, np.cumsum([end - start for start, _, end in parts])

    def whole_returns(self, task: Task) -> np.ndarray:
        """Returns of the episodes that were not cut by the end of the steps."""
        rewards, over = self.rows[..., task.obs_dim + task.action_dim].double().numpy(), self.over.numpy()
        returns = []
        for i in range(over.shape[1]):
            ends = np.flatnonzero(over[:, i]) + 1
            if len(ends):
                returns.append(np.add.reduceat(rewards[: ends[-1], i], [0, *ends[:-1]]))
        return np.concatenate(returns) if returns else np.zeros(0)

    def save(self, path: Path) -> None:
        # cloned, since all of the memory behind a view would be stored
        tensors.save(path, {"rows": self.rows.clone(), "truncated": self.truncated.clone()})

    @staticmethod
    def load(path: Path) -> "RolloutBuffer":
        return RolloutBuffer(**tensors.load(path))


class VectorCollector:
    """Environments under way, and what they have lived so far.

    An episode's start depends on the key, the environment's number and the episode's alone. So an episode
    comes back by living it again: its start and its actions are all there is to know of it.
    """

    def __init__(self, task: Task, key: tuple[int, ...], rounds: int, environments: int):
        self.task, self.key = task, key
        self.environments = [make(task.env_id, **task.env_options) for _ in range(environments)]
        self.kept = RolloutBuffer(
            torch.zeros(rounds, environments, row_width(task)),
            torch.zeros(rounds, environments, dtype=torch.bool),
        )
        self._action_width = 1 if task.discrete else task.action_dim
        self._first_action = int(getattr(self.environments[0].action_space, "start", 0))
        self.rounds = 0  # stored so far
        self.obs = torch.zeros(environments, task.obs_dim)
        # The same memory as arrays: to set a few numbers at a time costs a tenth of what it does in a tensor
        self._rows, self._truncated = self.kept.rows.numpy(), self.kept.truncated.numpy()
        self._obs = self.obs.numpy()
        self._begun = [0] * environments  # episodes
        self._taken: list[list[np.ndarray]] = [[] for _ in range(environments)]  # actions of present episodes
        for i in range(environments):
            self._begin(i)

    def _begin(self, i: int) -> None:
        start = np.random.SeedSequence([*self.key, i, self._begun[i]])
        obs, _ = self.environments[i].reset(seed=int(start.generate_state(1)[0]))
        self._obs[i] = obs
        self._begun[i] += 1
        self._taken[i] = []

    def step(self, actions: Tensor) -> None:
        """One step of every environment.

        actions  [environments, action_dim] within their range, or whole numbers [environments] if discrete
        """
        o, a = self.task.obs_dim, self._action_width
        rows, truncated = self._rows[self.rounds], self._truncated[self.rounds]
        rows[:, :o], rows[:, o : o + a] = self._obs, actions.reshape(-1, a).numpy()
        for i in range(len(self.environments)):
            action = rows[i, o : o + a].copy()  # rows may be overwritten
            self._taken[i].append(action)
            self._obs[i], rows[i, o + a], terminated, limit, _ = self._act(i, action)
            rows[i, o + a + 1 : -1], rows[i, -1] = self._obs[i], terminated
            truncated[i] = limit and not terminated
            if terminated or limit:
                self._begin(i)
        self.rounds += 1

    def _act(self, i: int, action: np.ndarray) -> tuple:
        """Step environment i with an action as it is stored in a row."""
        return self.environments[i].step(int(action[0]) + self._first_action if self.task.discrete else action)

    def reset(self) -> None:
        """Abandon the current episodes and begin new ones."""
        for i in range(len(self.environments)):
            self._begin(i)

    def forget(self) -> None:
        """Give up what was kept, for the next rounds to be kept in its place; life goes on."""
        self.rounds = 0

    def resume(self, lived: RolloutBuffer) -> None:
        """Go on from the end of what was lived before, all of which is kept again."""
        self.rounds = len(lived.rows)
        self.kept.rows[: self.rounds], self.kept.truncated[: self.rounds] = lived.rows, lived.truncated
        o, a = self.task.obs_dim, self._action_width
        for i, over in enumerate(lived.over.mT):
            ends = torch.nonzero(over)[:, 0].tolist()
            present = lived.rows[ends[-1] + 1 if ends else 0 :, i].numpy()
            self._live_again(i, len(ends), present[:, o : o + a])
            if len(present):
                self._require(i, present[-1, o + a + 1 : -1])

    def state(self) -> dict[str, Tensor]:
        """All that its future depends on: of every environment, which episode it is in, and its actions."""
        taken = [np.array(actions, np.float32).reshape(-1, self._action_width) for actions in self._taken]
        return {
            "episodes": torch.tensor(self._begun),
            "lengths": torch.tensor([len(actions) for actions in taken]),
            "actions": torch.from_numpy(np.concatenate(taken)),
            "obs": self.obs.clone(),
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on from a state, with nothing kept."""
        self.forget()
        taken = state["actions"].split(state["lengths"].tolist())
        for i, (episode, actions) in enumerate(zip(state["episodes"].tolist(), taken, strict=True)):
            self._live_again(i, episode - 1, actions.numpy())
            self._require(i, state["obs"][i].numpy())

    def _live_again(self, i: int, episode: int, actions: np.ndarray) -> None:
        self._begun[i] = episode
        self._begin(i)
        self._taken[i] = list(actions)
        for action in actions:
            self._obs[i], *_ = self._act(i, action)

    def _require(self, i: int, obs: np.ndarray) -> None:
        if not np.array_equal(self._obs[i], obs):
            raise UserError(
                f"{self.task.env_id} does not repeat an episode here; what was begun must be begun anew"
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
    """At least `transitions` steps of a policy, obs [1, n, obs_dim] -> actions [1, n, action_dim]; the same
    number in every environment, so that short episodes are not favoured."""
    streams = VectorCollector(task, key, -(-transitions // environments), environments)
    for _ in range(len(streams.kept.rows)):
        streams.step(act(streams.obs[None])[0])
        report(environments)
    streams.close()
    return streams.kept
