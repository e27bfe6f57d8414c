"""TD, DQN (Mnih et al. 2015), GNTD and GNDQN (Ke, Zhang & Wen) for discrete actions.

All use the optimal Bellman operator. DQN and GNDQN have a Polyak-averaged target network, TD and GNTD none;
GNTD and GNDQN take Gauss-Newton steps, TD and DQN semi-gradient steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offline_gntd import checks
from offline_gntd.algorithms.agent import Agent, Preset
from offline_gntd.algorithms.bellman import bellman_target, td_errors
from offline_gntd.nn.critic import Critic
from offline_gntd.nn.kfac import KFAC
from offline_gntd.nn.mlp import PRECISIONS, Tape
from offline_gntd.nn.optimisers import Optimiser
from offline_gntd.transitions import Transitions


@dataclass(frozen=True)
class QLearning:
    hidden_dims: tuple[int, ...] = (256, 256)
    batch_size: int = 100
    learning_rate: float = 3e-4  # β
    optimiser: Optimiser = Optimiser(max_grad_norm=1.0)
    loss_weight: float = 1.0  # factor of the mean squared error; with ½ its gradient is the paper's E[δ ∇Q]
    discount: float = 0.99  # γ
    tau: float | None = None  # Polyak averaging of the target, at every update; none: no target network
    timeouts_terminal: bool = True  # a time limit stops bootstrapping, as in the paper's authors' code
    kfac: KFAC | None = None  # Gauss-Newton step by Kronecker factors (Algorithm 3)
    exact_damping: float | None = None  # ω of the exact Gauss-Newton step instead (Algorithm 1)
    precision: str = "float32"  # float32 | bfloat16, for the matrix products of an update

    discrete = True  # not fields: the kind of actions, and that observations are used as they are
    normalise_obs = False

    def __post_init__(self):
        checks.positive(self, "hidden_dims", "batch_size", "learning_rate", "loss_weight", "exact_damping")
        checks.fraction(self, "tau")
        checks.below_one(self, "discount")
        checks.choice(self, "precision", PRECISIONS)
        if self.kfac and self.exact_damping is not None:
            raise ValueError("kfac and exact_damping are two forms of the same step; set only one")

    def agent(self, *args) -> "QLearner":
        return QLearner(self, *args)


class QLearner(Agent):
    """One Q-network per seed with one output per action."""

    def __init__(self, *args):
        super().__init__(*args)
        config, task = self.config, self.task
        network = self.networks(task.obs_dim, *config.hidden_dims, task.action_dim)
        self.critic = Critic(
            network,
            config.batch_size,
            config.learning_rate,
            config.optimiser,
            config.kfac,
            config.exact_damping,
        )
        self.target = Tape(network if config.tau is None else network.copy(), config.batch_size)

    def act(self, obs: Tensor) -> Tensor:
        """Greedy actions [seeds, n] for obs [seeds, n, obs_dim]."""
        return self.critic.network(obs).argmax(-1)

    def explore(self, obs: Tensor, epsilon: float, generators: Sequence[torch.Generator]) -> Tensor:
        """Greedy actions, each replaced by a uniformly random one with probability epsilon."""
        shape = obs.shape[1:-1]
        drawn = torch.stack([torch.randint(self.task.action_dim, shape, generator=g) for g in generators])
        random = torch.stack([torch.rand(shape, generator=g) for g in generators]) < epsilon
        return torch.where(random, drawn, self.act(obs))

    @torch.inference_mode()
    def update(self, batch: Transitions) -> dict[str, Tensor]:
        """One step of the network.

        loss = loss_weight · E[δ²], δ = Q(s,a) − r − γ(1−terminated) max Q_target(s′,·)
        """
        next_value = self.target.forward(batch.next_obs).amax(-1)  # [seeds, batch]
        target = bellman_target(batch, next_value, self.config.discount)
        values = self.critic.forward(batch.obs)  # [seeds, batch, actions]
        action = batch.action[..., None]
        value = values.gather(-1, action)[..., 0]  # [seeds, batch]
        residual = value - target  # δ
        dloss_dq = residual * (2 * self.config.loss_weight / self.config.batch_size)
        dq_doutput = torch.zeros_like(values).scatter_(-1, action, 1)  # Q(s, a) is the output of action a
        self.critic.update(dloss_dq, dq_doutput)
        if self.config.tau is not None:
            self.target.network.flat.lerp_(self.critic.network.flat, self.config.tau)
        return {"loss": residual.square(), "value": value}

    def measure(self, transitions: Sequence[Transitions]) -> dict[str, Tensor]:
        return td_errors(transitions, self._values, self.config.discount) | self.critic.diagnostics()

    def _values(self, part: Transitions) -> tuple[Tensor, Tensor, Tensor]:
        online, target = self.critic.network, self.target.network
        value = online(part.obs).gather(-1, part.action[..., None])[..., 0]
        next_value = online(part.next_obs).amax(-1)
        target_value = next_value if target is online else target(part.next_obs).amax(-1)
        return value[:, None], next_value, target_value

    def state_dict(self) -> dict[str, Tensor]:
        state = {f"critic.{name}": tensor for name, tensor in self.critic.state_dict().items()}
        if self.config.tau is not None:
            state["target"] = self.target.network.flat
        return state


TAU = 0.02
# clipping and K-FAC of the paper's authors; their decay is 0.9 until the first evaluation, 0.95 after it
CLIPPED = Optimiser(max_grad_norm=10.0)
CURVATURE = KFAC(damping=0.25, ema_decay=0.95)
SCRIPT = KFAC(damping=0.5, ema_decay=0.95)
PLAIN = Optimiser(kind="plain")
EVERY_UPDATE = KFAC(damping=0.25, ema_decay=0.95, average="P", start="batch", factor_every=1, inverse_every=1)

PRESETS = {
    # the values that the paper states
    "td": Preset("TD", QLearning()),
    "dqn": Preset("DQN", QLearning(tau=TAU)),
    "gntd": Preset("GNTD", QLearning(optimiser=CLIPPED, kfac=CURVATURE)),
    "gndqn": Preset("GNDQN", QLearning(optimiser=CLIPPED, kfac=CURVATURE, tau=TAU)),
    # the values of the authors' run script
    "td_script": Preset("TD (script)", QLearning(learning_rate=1e-5)),
    "dqn_script": Preset("DQN (script)", QLearning(tau=TAU)),
    "gntd_script": Preset("GNTD (script)", QLearning(learning_rate=1e-5, optimiser=CLIPPED, kfac=SCRIPT)),
    "gndqn_script": Preset("GNDQN (script)", QLearning(optimiser=CLIPPED, kfac=SCRIPT, tau=TAU)),
    # Algorithms 2 and 3 as printed: θ ← θ − β d, P averaged, inverses at every update
    "td_plain": Preset("TD (plain)", QLearning(optimiser=PLAIN, loss_weight=0.5)),
    "dqn_plain": Preset("DQN (plain)", QLearning(optimiser=PLAIN, loss_weight=0.5, tau=TAU)),
    "gntd_plain": Preset("GNTD (plain)", QLearning(optimiser=PLAIN, loss_weight=0.5, kfac=EVERY_UPDATE)),
    "gndqn_plain": Preset(
        "GNDQN (plain)", QLearning(optimiser=PLAIN, loss_weight=0.5, kfac=EVERY_UPDATE, tau=TAU)
    ),
    # Algorithm 1: no Kronecker approximation
    "gntd_exact": Preset("GNTD (exact)", QLearning(optimiser=Optimiser(), exact_damping=0.25)),
    "gndqn_exact": Preset("GNDQN (exact)", QLearning(optimiser=Optimiser(), exact_damping=0.25, tau=TAU)),
}
