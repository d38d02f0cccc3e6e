"""Environments on the device without a simulator, for the scripts on MuJoCo Warp: a mass on a line
that falls off, where its last observation may not be finite, or is cut by the time limit. In some
episodes it diverges in the seventh step, and no flag says so."""

import gymnasium as gym

import torch

LIMIT = 20  # steps


class Worlds:
    """Nothing is random: `first` says where episode k of world n begins. See WarpVectorEnv for what
    such a class needs."""

    max_episode_steps = LIMIT

    def __init__(self, num_envs, device):
        self.num_envs = num_envs
        self.single_observation_space = gym.spaces.Box(-float("inf"), float("inf"), (3,))
        self.single_action_space = gym.spaces.Box(-0.4, 1.5, (2,))  # no ±1
        self.metrics = {}
        self.n = torch.arange(num_envs, device=device)
        self.k = torch.zeros(num_envs, dtype=torch.int64, device=device)  # episodes begun
        self.elapsed = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.done = torch.ones(num_envs, dtype=torch.bool, device=device)
        self.sick = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self.p, self.v = torch.zeros((2, num_envs), device=device)

    def first(self):
        return 0.3 * (7.0 * self.n + 3.0 * self.k).sin(), 0.1 * (5.0 * self.n + self.k).cos()

    def observe(self):
        return torch.stack([self.p, self.v, (self.p * self.v) ** 3], 1)

    def reset(self):
        self.done.fill_(True)
        return self.step(torch.zeros((self.num_envs, 2), device=self.n.device))[0]

    def step(self, action):
        anew = self.done.clone()
        self.k += anew
        p, v = self.first()
        v_next = 0.9 * self.v + 0.3 * action[:, 0] - 0.1 * self.p
        p_next = self.p + v_next
        reward = v_next - 0.2 * action.square().sum(1)
        self.p.copy_(torch.where(anew, p, p_next))
        self.v.copy_(torch.where(anew, v, v_next))
        self.elapsed.add_(1).masked_fill_(anew, 0)
        odd = ((2 * self.n + self.k) % 5 == 0) & (self.k > 1)
        self.sick |= odd & (self.elapsed == 7)
        self.sick &= ~anew
        terminated = (self.p.abs() > 1.2) & ~anew & ~self.sick
        truncated = (self.elapsed >= self.max_episode_steps) & ~anew
        self.done.copy_(terminated | truncated)
        wild = torch.tensor([1.0, torch.nan, torch.inf], device=action.device)
        fallen = terminated & ((self.n + self.k) % 2 == 0)
        obs = torch.where(fallen[:, None], self.observe() * wild, self.observe())
        kind = torch.where(self.sick, self.n % 4, -1)
        obs[:, 1] = torch.where(kind == 0, torch.nan, obs[:, 1])
        obs[:, 2] = torch.where(kind == 1, -1e11, obs[:, 2])
        reward = torch.where(
            (kind == 2) | (fallen & (self.n % 3 == 0)),
            torch.nan,
            torch.where(kind == 3, torch.inf, reward),
        )
        return obs, torch.where(anew, 0.0, reward), terminated, truncated


class Unbounded(Worlds):
    """Its actions have no bounds."""

    def __init__(self, num_envs, device):
        super().__init__(num_envs, device)
        self.single_action_space = gym.spaces.Box(-float("inf"), float("inf"), (2,))


class Rare(Worlds):
    """One step of the first world pays a lot, which is clipped."""

    def step(self, action):
        obs, reward, *flags = super().step(action)
        once = (self.n == 0) & (self.k == 1) & (self.elapsed == 14)
        return obs, torch.where(once, 30.0, reward), *flags


class Broken(Worlds):
    """All worlds see nan from their third step on, and a new episode does not heal them."""

    ill = False

    def step(self, action):
        obs, *rest = super().step(action)
        self.ill = (self.elapsed[:, None] >= 3) | self.ill
        return torch.where(self.ill, torch.nan, obs), *rest
