"""TD, DQN (Mnih et al. 2013), GNTD and GNDQN (Ke, Zhang & Wen) for discrete actions, offline or exploring.

The 2×2 of {no target network, Polyak-averaged target} × {semi-gradient, Gauss-Newton}, all under the optimal
Bellman operator: one class, four presets.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offline_gntd import bellman
from offline_gntd.algorithms.preset import Preset, check_actions, check_settings
from offline_gntd.nn.critic import Critic
from offline_gntd.nn.kfac import KFAC
from offline_gntd.nn.mlp import MLP, Tape
from offline_gntd.nn.normaliser import Statistics
from offline_gntd.tasks import Task
from offline_gntd.transitions import Transitions


@dataclass(frozen=True)
class QLearning:
    hidden_dims: tuple[int, ...] = (128, 128)  # hidden units
    batch_size: int = 256
    learning_rate: float = 3e-4  # β
    optimiser: str = "adam"  # adam | plain; what the (preconditioned) semi-gradient is fed to
    discount: float = 0.99  # γ
    tau: float | None = None  # Polyak rate of the target network; none: bootstrap from Q itself
    kfac: KFAC | None = None  # Gauss-Newton step by Kronecker factors (Algorithm 3)
    exact_damping: float | None = None  # ω of the exact Gauss-Newton step instead (Algorithm 1)

    discrete = True  # not a field: which actions it learns

    def __post_init__(self):
        check_settings(self)
        if self.kfac and self.exact_damping is not None:
            raise ValueError("kfac and exact_damping are two ways to one step; set one of them")

    def agent(
        self, task: Task, generators: Sequence[torch.Generator], obs_statistics: Statistics | None = None
    ) -> "QLearner":
        """Observations are taken as they are; `obs_statistics` lets all algorithms be made alike."""
        check_actions(self, task)
        return QLearner(self, task, generators)


class QLearner:
    """One Q-network per seed, one output per action."""

    def __init__(self, config: QLearning, task: Task, generators: Sequence[torch.Generator]):
        self.config, self.task = config, task
        device = generators[0].device
        network = MLP((task.obs_dim, *config.hidden_dims, task.action_dim), (len(generators),), device)
        self.critic = Critic(
            network.initialise(generators),
            config.batch_size,
            config.learning_rate,
            config.optimiser,
            config.kfac,
            config.exact_damping,
        )
        self.target = network if config.tau is None else network.copy()
        self.target_tape = Tape(self.target, config.batch_size)

    def act(self, obs: Tensor) -> Tensor:
        """Greedy actions [seeds, n] for obs [seeds, n, obs_dim]."""
        return self.critic.network(obs).argmax(-1)

    def explore(self, obs: Tensor, epsilon: float, generators: Sequence[torch.Generator]) -> Tensor:
        """Greedy actions, but for a share `epsilon` drawn uniformly."""
        shape = obs.shape[1:-1]
        drawn = torch.stack([torch.randint(self.task.action_dim, shape, generator=g) for g in generators])
        random = torch.stack([torch.rand(shape, generator=g) for g in generators]) < epsilon
        return torch.where(random, drawn, self.act(obs))

    @torch.inference_mode()
    def update(self, batch: Transitions) -> dict[str, Tensor]:
        next_value = self.target_tape.forward(batch.next_obs).amax(-1)  # [seeds, batch]
        target = bellman.target(batch, next_value, self.config.discount)
        values = self.critic.forward(batch.obs)  # [seeds, batch, actions]
        action = batch.action[..., None]
        value = values.gather(-1, action)[..., 0]
        residual = value - target
        taken = torch.zeros_like(values).scatter_(-1, action, 1)  # Q(s, a) is the output of the action taken
        self.critic.descend(residual / self.config.batch_size, taken)
        if self.config.tau is not None:
            self.target.flat.lerp_(self.critic.network.flat, self.config.tau)
        return {"loss": residual.square(), "value": value}

    def measure(self, transitions: Transitions, rows_at_once: int = 4096) -> dict[str, Tensor]:
        """Bellman error E[(Q(s,a) − r − γ(1−terminated) max Q(s′,·))²] over all rows, Q itself on both sides,
        and the largest |Q|, per seed; with the curvature's diagnostics."""
        network, largest = self.critic.network, torch.tensor(0.0)
        total = torch.zeros_like(largest, dtype=torch.float64)
        for start in range(0, len(transitions.obs), rows_at_once):
            part = Transitions(*(column[start : start + rows_at_once] for column in transitions))
            stack = network.stack
            values = network(part.obs.expand(*stack, *part.obs.shape))
            next_value = network(part.next_obs.expand(*stack, *part.next_obs.shape)).amax(-1)
            value = values.gather(-1, part.action.expand(*stack, -1)[..., None])[..., 0]
            error = value - bellman.target(part, next_value, self.config.discount)
            total = total + error.double().square().sum(-1)
            largest = torch.maximum(largest, values.abs().amax((-2, -1)))
        return {
            "bellman_error": total / len(transitions.obs),
            "largest_value": largest,
            **self.critic.diagnostics(),
        }

    def state_dict(self) -> dict[str, Tensor]:
        """Everything an update changes, by name: [seeds, …], or a number that all seeds share."""
        state = {f"critic.{name}": tensor for name, tensor in self.critic.state_dict().items()}
        if self.config.tau is not None:
            state["target"] = self.target.flat
        return state


DQN_TAU = 0.005

PRESETS = {
    "td": Preset("TD", QLearning()),
    "dqn": Preset("DQN", QLearning(tau=DQN_TAU)),
    "gntd": Preset("GNTD", QLearning(kfac=KFAC())),
    "gndqn": Preset("GNDQN", QLearning(tau=DQN_TAU, kfac=KFAC())),
    # the paper's updates to the letter: θ ← θ − β d, curvature renewed at every update
    "td_plain": Preset("TD (plain)", QLearning(optimiser="plain")),
    "dqn_plain": Preset("DQN (plain)", QLearning(optimiser="plain", tau=DQN_TAU)),
    "gntd_plain": Preset(
        "GNTD (plain)", QLearning(optimiser="plain", kfac=KFAC(factor_every=1, inverse_every=1))
    ),
    "gndqn_plain": Preset(
        "GNDQN (plain)",
        QLearning(optimiser="plain", tau=DQN_TAU, kfac=KFAC(factor_every=1, inverse_every=1)),
    ),
    # Algorithm 1 itself: no Kronecker approximation
    "gntd_exact": Preset("GNTD (exact)", QLearning(exact_damping=0.25)),
    "gndqn_exact": Preset("GNDQN (exact)", QLearning(exact_damping=0.25, tau=DQN_TAU)),
}
