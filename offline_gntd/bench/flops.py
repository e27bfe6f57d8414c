"""The minimal floating-point operations of an update, from its shapes (docs/reference/performance.md).

Only matrix products and K-FAC's factorisations count, not elementwise operations. What an update does not
need is left out: parameter gradients of the critic in an actor's update, derivatives with respect to inputs,
the second triangle of a symmetric matrix.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from offline_gntd.algorithms.bc import BC
from offline_gntd.algorithms.bcq import BCQ
from offline_gntd.algorithms.cql import CQL
from offline_gntd.algorithms.iql import IQL
from offline_gntd.algorithms.policy_gradient import PolicyGradient
from offline_gntd.algorithms.q_learning import QLearning
from offline_gntd.algorithms.rebrac import ReBRAC
from offline_gntd.algorithms.td3_bc import TD3BC
from offline_gntd.nn.kfac import KFAC
from offline_gntd.tasks import Task

Dims = tuple[int, ...]


def forward(n: int, dims: Dims) -> float:
    """n samples through a network: a multiplication and an addition per weight and bias."""
    return 2 * n * sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(dims))


gradient = forward  # p̄ᵀq: a multiplication and an addition per weight and sample


def backward(n: int, dims: Dims, inputs: int = 0) -> float:
    """∂/∂h of every layer but the last, and the derivatives with respect to this many of the inputs."""
    return 2 * n * (sum(fan_in * fan_out for fan_in, fan_out in pairwise(dims[1:])) + inputs * dims[1])


def training(n: int, dims: Dims, inputs: int = 0) -> float:
    return forward(n, dims) + backward(n, dims, inputs) + gradient(n, dims)


def input_gradient(n: int, dims: Dims, inputs: int) -> float:
    """A value and its derivative with respect to some inputs, without parameter gradients."""
    return forward(n, dims) + backward(n, dims, inputs)


def curvature(n: int, dims: Dims, kfac: KFAC) -> float:
    """K-FAC of one network, averaged over the periods of factors and inverses."""
    total = 0.0
    for fan_in, fan_out in pairwise(dims):
        P, G = fan_in + 1, fan_out
        factors = n * (P * (P + 1) + G * (G + 1))  # one triangle of each
        cholesky = (P**3 + G**3) / 3
        step = 2 * P * P * G + 2 * P * G * G
        total += factors / kfac.factor_every + cholesky / kfac.inverse_every + step
    return total


def exact_curvature(n: int, dims: Dims) -> float:
    """The exact step by its N × N system: one triangle of JJᵀ and a Cholesky solve."""
    kernel = sum(n * (n + 1) * (fan_in + 1 + fan_out) for fan_in, fan_out in pairwise(dims))
    return kernel + n**3 / 3 + 2 * n * n


def of_update(config: Any, task: Task) -> float | None:
    """Operations of one update of one seed (CQL: after its warm-up), or None for a user's algorithm."""
    count = _OF.get(type(config))
    return count(config, task.obs_dim, task.action_dim) if count else None


def _critics(config: Any, dims: Dims, count: int = 2) -> float:
    one = training(config.batch_size, dims)
    if config.kfac:
        one += curvature(config.batch_size, dims, config.kfac)
    return count * one


def _bc(config: BC, obs: int, action: int) -> float:
    return training(config.batch_size, (obs, *config.hidden_dims, action))


def _td3_bc(config: TD3BC | ReBRAC, obs: int, action: int) -> float:
    n, critic = config.batch_size, (obs + action, *config.hidden_dims, 1)
    actor = (obs, *config.hidden_dims, action)
    differentiated = 2 if isinstance(config, ReBRAC) else 1  # critics in the actor's loss
    target = forward(n, actor) + 2 * forward(n, critic)
    improvement = training(n, actor) + differentiated * input_gradient(n, critic, action)
    return target + _critics(config, critic) + improvement / config.policy_freq


def _bcq(config: BCQ, obs: int, action: int) -> float:
    n, candidates, latent = config.batch_size, config.batch_size * config.candidates, 2 * action
    encoder = (obs + action, *config.vae_hidden_dims, 2 * latent)
    decoder = (obs + latent, *config.vae_hidden_dims, action)
    actor, critic = (obs + action, *config.hidden_dims, action), (obs + action, *config.hidden_dims, 1)
    vae = training(n, encoder) + training(n, decoder, inputs=latent)
    target = forward(candidates, decoder) + forward(candidates, actor) + 2 * forward(candidates, critic)
    improvement = forward(n, decoder) + training(n, actor) + input_gradient(n, critic, action)
    return vae + target + _critics(config, critic) + improvement


def _cql(config: CQL, obs: int, action: int) -> float:
    n, sampled = config.batch_size, config.batch_size * 3 * config.samples
    policy, critic = (obs, *config.hidden_dims, 2 * action), (obs + action, *config.hidden_dims, 1)
    target = forward(n, policy) + 2 * forward(n, critic)
    conservative = 2 * training(sampled, critic)
    improvement = training(n, policy) + 2 * input_gradient(n, critic, action)
    return target + _critics(config, critic) + conservative + improvement


def _iql(config: IQL, obs: int, action: int) -> float:
    n, policy, value = config.batch_size, (obs, *config.hidden_dims, action), (obs, *config.hidden_dims, 1)
    critic = (obs + action, *config.hidden_dims, 1)
    values = 2 * forward(n, critic) + training(n, value) + 2 * forward(n, value)  # V(s) and V(s′) once more
    return values + training(n, policy) + _critics(config, critic)


def _q_learning(config: QLearning, obs: int, actions: int) -> float:
    n, dims = config.batch_size, (obs, *config.hidden_dims, actions)
    exact = exact_curvature(n, dims) if config.exact_damping is not None else 0
    return forward(n, dims) + _critics(config, dims, count=1) + exact


def _policy_gradient(config: PolicyGradient, obs: int, action: int) -> float:
    policy, critic = (obs, *config.hidden_dims, 2 * action), (obs + action, *config.hidden_dims, 1)
    n = config.batch_size
    target = forward(n, policy) + forward(n, critic)
    improvement = training(n, policy) + input_gradient(n, critic, action)
    return target + _critics(config, critic, count=1) + improvement / config.policy_freq


_OF: dict[type, Callable[[Any, int, int], float]] = {
    BC: _bc,
    TD3BC: _td3_bc,
    BCQ: _bcq,
    CQL: _cql,
    IQL: _iql,
    ReBRAC: _td3_bc,
    QLearning: _q_learning,
    PolicyGradient: _policy_gradient,
}
