"""The least arithmetic an update needs, in floating-point operations, from its shapes alone.

docs/performance.md derives it. Only matrix products count, and the factorisations of K-FAC: what is
elementwise is free, and what is not needed is not counted (weight gradients of a critic that only an actor
climbs, signals to the inputs of a network, the other triangle of a symmetric matrix).
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from offline_gntd.algorithms.bc import BC
from offline_gntd.algorithms.bcq import BCQ
from offline_gntd.algorithms.cql import CQL
from offline_gntd.algorithms.policy_iteration import PolicyIteration
from offline_gntd.algorithms.q_learning import QLearning
from offline_gntd.algorithms.td3_bc import TD3BC
from offline_gntd.nn.kfac import KFAC
from offline_gntd.tasks import Task

Widths = tuple[int, ...]


def forward(n: int, widths: Widths) -> float:
    """n inputs through a network: a multiplication and an addition per weight, the bias as one more input."""
    return 2 * n * sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(widths))


gradient = forward  # p̄ᵀq has a multiplication and an addition per weight and input too


def backward(n: int, widths: Widths, inputs: int = 0) -> float:
    """Signals from the outputs to every layer but the first, and from there to `inputs` of its inputs."""
    return 2 * n * (sum(fan_in * fan_out for fan_in, fan_out in pairwise(widths[1:])) + inputs * widths[1])


def training(n: int, widths: Widths, inputs: int = 0) -> float:
    return forward(n, widths) + backward(n, widths, inputs) + gradient(n, widths)


def climbing(n: int, widths: Widths, inputs: int) -> float:
    """A value and its slope along some inputs, with no gradient of the weights."""
    return forward(n, widths) + backward(n, widths, inputs)


def inverse(n: int, columns: int, rank: int | None = None) -> tuple[float, float]:
    """To make a damped inverse [n, n], and to multiply so many columns by it."""
    if rank is None:
        return n**3 / 3, 2 * n * n * columns  # a Cholesky factor, solved by; or multiplied with an inverse
    # Y = A U, one triangle of (Y + λU)ᵀ Y, its Cholesky factor L, W = Y L⁻ᵀ; then W (Wᵀ · columns)
    making = 2 * n * n * rank + n * rank * (rank + 1) + rank**3 / 3 + n * rank * rank
    return making, 4 * n * rank * columns


def curvature(n: int, widths: Widths, kfac: KFAC) -> float:
    """K-FAC on one network, averaged over the periods at which it is renewed."""
    total, rows = 0.0, -(-n // kfac.row_every)
    for fan_in, fan_out in pairwise(widths):
        P, G = fan_in + 1, fan_out
        factors = rows * (P * (P + 1) + G * (G + 1))  # one triangle of each
        making_P, by_P = inverse(P, G, kfac.rank_of(P))
        making_G, by_G = inverse(G, P)
        total += factors / kfac.factor_every + (making_P + making_G) / kfac.inverse_every + by_P + by_G
    return total


def exact_curvature(n: int, widths: Widths) -> float:
    """The exact step in its dual form: JJᵀ, one triangle, and a Cholesky solution."""
    kernel = sum(n * (n + 1) * (fan_in + 1 + fan_out) for fan_in, fan_out in pairwise(widths))
    return kernel + n**3 / 3 + 2 * n * n


def of_update(config: Any, task: Task) -> float | None:
    """One update of one seed; CQL's after its warm-up. None for an algorithm that is not known here."""
    known = _OF.get(type(config))
    return known(config, task.obs_dim, task.action_dim) if known else None


def _critics(config: Any, widths: Widths, count: int = 2) -> float:
    one = training(config.batch_size, widths)
    if config.kfac:
        one += curvature(config.batch_size, widths, config.kfac)
    return count * one


def _bc(config: BC, obs: int, action: int) -> float:
    return training(config.batch_size, (obs, *config.hidden_dims, action))


def _td3_bc(config: TD3BC, obs: int, action: int) -> float:
    n, actor, critic = (
        config.batch_size,
        (obs, *config.hidden_dims, action),
        (obs + action, *config.hidden_dims, 1),
    )
    target = forward(n, actor) + 2 * forward(n, critic)
    improvement = training(n, actor) + climbing(n, critic, action)
    return target + _critics(config, critic) + improvement / config.policy_freq


def _bcq(config: BCQ, obs: int, action: int) -> float:
    n, candidates, latent = config.batch_size, config.batch_size * config.candidates, 2 * action
    encoder = (obs + action, *config.vae_hidden_dims, 2 * latent)
    decoder = (obs + latent, *config.vae_hidden_dims, action)
    actor, critic = (obs + action, *config.hidden_dims, action), (obs + action, *config.hidden_dims, 1)
    vae = training(n, encoder) + training(n, decoder, inputs=latent)
    target = forward(candidates, decoder) + forward(candidates, actor) + 2 * forward(candidates, critic)
    improvement = forward(n, decoder) + training(n, actor) + climbing(n, critic, action)
    return vae + target + _critics(config, critic) + improvement


def _cql(config: CQL, obs: int, action: int) -> float:
    n, sampled = config.batch_size, config.batch_size * 3 * config.samples
    policy, critic = (obs, *config.hidden_dims, 2 * action), (obs + action, *config.hidden_dims, 1)
    target = forward(n, policy) + 2 * forward(n, critic)
    conservative = 2 * training(sampled, critic)
    improvement = training(n, policy) + 2 * climbing(n, critic, action)
    return target + _critics(config, critic) + conservative + improvement


def _q_learning(config: QLearning, obs: int, actions: int) -> float:
    n, widths = config.batch_size, (obs, *config.hidden_dims, actions)
    exact = exact_curvature(n, widths) if config.exact_damping is not None else 0
    return forward(n, widths) + _critics(config, widths, count=1) + exact


def _policy_iteration(config: PolicyIteration, obs: int, action: int) -> float:
    """A round, without collecting its batch."""
    policy, critic = (obs, *config.hidden_dims, 2 * action), (obs + action, *config.hidden_dims, 1)
    n = config.batch_size
    target = forward(n, policy) + forward(n, critic)
    evaluation = config.evaluation_steps * (target + _critics(config, critic, count=1))
    return evaluation + training(n, policy) + climbing(n, critic, action)


_OF: dict[type, Callable[[Any, int, int], float]] = {
    BC: _bc,
    TD3BC: _td3_bc,
    BCQ: _bcq,
    CQL: _cql,
    QLearning: _q_learning,
    PolicyIteration: _policy_iteration,
}
