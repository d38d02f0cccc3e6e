"""A simulator of one's own on the device, for ppo_continuous_action_warp: N pendulums in PyTorch.

    PYTHONPATH=examples ./run.sh ppo_continuous_action_warp --env-id my_warp_env:Pendulum

The docstring of WarpVectorEnv there says what such a class needs. This one is Gymnasium's
Pendulum-v1, for N at once: swing up and stay there, within 200 steps. HiddenPendulum has groups of
observations, for an asymmetric critic: `./run.sh fork ppo_continuous_action_warp ~/idea/asymmetric
--patch asymmetric_warp` and `--env-id my_warp_env:HiddenPendulum`.
"""

import gymnasium as gym

import torch


class Pendulum:
    """Observations (N, 3): cosine and sine of the angle, rad/s; actions (N, 1): torques, N m."""

    max_episode_steps = 200

    def __init__(self, num_envs, device):
        self.num_envs = num_envs
        self.single_observation_space = gym.spaces.Box(-8.0, 8.0, (3,))
        self.single_action_space = gym.spaces.Box(-2.0, 2.0, (1,))
        self.metrics = {}
        self.angle, self.speed = torch.zeros((2, num_envs), device=device)  # 0: upright
        self.gravity, self.strength = torch.ones((2, num_envs), device=device)  # 1: Gymnasium's
        self.elapsed = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.done = torch.ones(num_envs, dtype=torch.bool, device=device)

    def reset(self):
        self.done.fill_(True)
        return self.step(torch.zeros((self.num_envs, 1), device=self.angle.device))[0]

    def step(self, action):
        anew, torque = self.done.clone(), action[:, 0]
        error = (self.angle + torch.pi) % (2 * torch.pi) - torch.pi
        reward = -(error.square() + 0.1 * self.speed.square() + 0.001 * torque.square())
        pull = 15 * self.gravity * self.angle.sin() + 3 * self.strength * torque
        speed = self.speed + 0.05 * pull
        speed = speed.clamp(-8.0, 8.0)
        angle = self.angle + 0.05 * speed
        # first states are drawn for all, and taken where an episode begins: shapes never change
        first_angle = torch.pi * (2 * torch.rand_like(angle) - 1)
        first_speed = 2 * torch.rand_like(speed) - 1
        self.angle.copy_(torch.where(anew, first_angle, angle))
        self.speed.copy_(torch.where(anew, first_speed, speed))
        self.elapsed.add_(1).masked_fill_(anew, 0)
        truncated = (self.elapsed >= self.max_episode_steps) & ~anew
        self.done.copy_(truncated)
        obs = torch.stack([self.angle.cos(), self.angle.sin(), self.speed], 1)
        return obs, torch.where(anew, 0.0, reward), torch.zeros_like(truncated), truncated


class HiddenPendulum(Pendulum):
    """Gravity and strength are others in each episode, 0.4 to 1.6 times Gymnasium's. The group
    `actor`, 3 entries, does not see them; the group `critic`, 5 entries, does."""

    def see(self, *groups):
        """Observations are these groups, joined; returns their sizes."""
        self.groups, sizes = groups, [{"actor": 3, "critic": 5}[name] for name in groups]
        self.single_observation_space = gym.spaces.Box(-8.0, 8.0, (sum(sizes),))
        return sizes

    def step(self, action):
        anew = self.done.clone()
        actor, *rest = super().step(action)
        for value in (self.gravity, self.strength):
            value.copy_(torch.where(anew, 0.4 + 1.2 * torch.rand_like(value), value))
        hidden = torch.stack([self.gravity, self.strength], 1)
        seen = {"actor": actor, "critic": torch.cat([actor, hidden], 1)}
        return torch.cat([seen[name] for name in getattr(self, "groups", ["actor"])], 1), *rest
