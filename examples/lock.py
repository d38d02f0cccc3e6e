"""A combination lock, which a policy that explores at random does not open.

    PYTHONPATH=examples ./run.sh ppo_rnd --env-id lock:Lock-v0 --total-timesteps 200000

In each of 20 positions one of 4 keys turns the lock on, and each other one turns it back to the
start. The reward is 1 when it opens, and 0 until then. Random keys open it in one of 4**20, about
10**12, attempts. An episode ends when it opens, or after 100 steps.
"""

import gymnasium as gym
import numpy as np


class Lock(gym.Env):
    """Observations (size + 1,) float32: the position, one-hot, the last one when it is open. The
    combination depends on a seed of its own: it is the same in all episodes and runs."""

    def __init__(self, size: int = 20, keys: int = 4, combination_seed: int = 42):
        self.size = size
        self.combination = np.random.default_rng(combination_seed).integers(keys, size=size)
        self.observation_space = gym.spaces.Box(0.0, 1.0, (size + 1,))
        self.action_space = gym.spaces.Discrete(keys)

    def observation(self):
        return np.eye(self.size + 1, dtype=np.float32)[self.position]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = 0
        return self.observation(), {}

    def step(self, action):
        right = action == self.combination[self.position]
        self.position = self.position + 1 if right else 0
        opened = self.position == self.size
        return self.observation(), float(opened), opened, False, {}


gym.register("Lock-v0", Lock, max_episode_steps=100, reward_threshold=1.0)
