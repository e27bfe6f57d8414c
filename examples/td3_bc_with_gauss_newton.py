"""GNTD3+BC in plain PyTorch: TD3+BC with three changed lines, marked (1), (2) and (3).

    python examples/td3_bc_with_gauss_newton.py hopper-medium-v2 --steps 100000

The comment above a marked line is the line of TD3+BC that it replaces.
"""

import argparse
import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Adam

# TD3+BC: from offline_gntd import load
from offline_gntd import GaussNewton, load  # (1)

BATCH_SIZE, DISCOUNT, TAU = 256, 0.99, 0.005
POLICY_NOISE, NOISE_CLIP, POLICY_FREQ, ALPHA = 0.2, 0.5, 2, 2.5


def mlp(fan_in, fan_out):
    return nn.Sequential(
        nn.Linear(fan_in, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, fan_out)
    )


class Actor(nn.Module):
    def __init__(self, obs_dim, action_dim):
        super().__init__()
        self.network = mlp(obs_dim, action_dim)

    def forward(self, obs):
        return self.network(obs).tanh()


class TwinCritics(nn.Module):
    def __init__(self, obs_dim, action_dim):
        super().__init__()
        self.q1, self.q2 = mlp(obs_dim + action_dim, 1), mlp(obs_dim + action_dim, 1)

    def forward(self, obs, action):
        x = torch.cat([obs, action], -1)
        return self.q1(x), self.q2(x)  # [batch, 1] each


class TD3BC:
    def __init__(self, obs_dim, action_dim):
        self.actor, self.critic = Actor(obs_dim, action_dim), TwinCritics(obs_dim, action_dim)
        self.target_actor, self.target_critic = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.actor_optimiser = Adam(self.actor.parameters(), lr=3e-4)
        # TD3+BC: self.critic_optimiser = Adam(self.critic.parameters(), lr=3e-4)
        self.critic_optimiser = GaussNewton(self.critic, lr=3e-4, damping=0.25)  # (2)
        self.updates = 0

    def update(self, obs, action, reward, next_obs, terminated):
        """One update from a batch; returns the critics' loss."""
        self.updates += 1
        with torch.no_grad():
            noise = (torch.randn_like(action) * POLICY_NOISE).clamp(-NOISE_CLIP, NOISE_CLIP)
            next_action = (self.target_actor(next_obs) + noise).clamp(-1, 1)
            next_q = torch.min(*self.target_critic(next_obs, next_action))
            target = reward + DISCOUNT * (1 - terminated) * next_q  # [batch, 1]
        q1, q2 = self.critic(obs, action)
        loss = F.mse_loss(q1, target) + F.mse_loss(q2, target)
        # TD3+BC: self.critic_optimiser.zero_grad(); loss.backward(); self.critic_optimiser.step()
        self.critic_optimiser.step(loss, (q1, q2))  # (3)
        if self.updates % POLICY_FREQ == 0:
            self.update_actor(obs, action)
            polyak_update(self.target_actor, self.actor)
            polyak_update(self.target_critic, self.critic)
        return loss.item()

    def update_actor(self, obs, action):
        policy_action = self.actor(obs)
        q, _ = self.critic(obs, policy_action)
        weight = ALPHA / q.abs().mean().detach()
        loss = F.mse_loss(policy_action, action) - weight * q.mean()
        self.actor_optimiser.zero_grad()
        loss.backward()
        self.actor_optimiser.step()


@torch.no_grad()
def polyak_update(target, online):
    for old, new in zip(target.parameters(), online.parameters(), strict=True):
        old.lerp_(new, TAU)


def train(transitions, steps):
    """An agent trained on transitions with obs, action, reward, next_obs and terminated [n, …]."""
    mean, std = transitions.obs.mean(0), transitions.obs.std(0) + 1e-3
    agent = TD3BC(transitions.obs.shape[-1], transitions.action.shape[-1])
    for step in range(1, steps + 1):
        index = torch.randint(len(transitions.obs), (BATCH_SIZE,))
        obs, action, reward, next_obs, terminated = (column[index] for column in transitions)
        loss = agent.update(
            (obs - mean) / std, action, reward[:, None], (next_obs - mean) / std, terminated[:, None]
        )
        if step % 1_000 == 0:
            print(f"update {step}: critics' loss {loss:.3f}")
    return agent


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("dataset", help="a D4RL or Minari name, or the path of an HDF5 file")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    train(load(args.dataset).transitions, args.steps)
