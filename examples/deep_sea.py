r"""DeepSea, where what pays at once leads away from the treasure (arXiv:1908.03568, bsuite).

    PYTHONPATH=examples ./run.sh ppo_rnd --env-id deep_sea:DeepSea-v0 --total-timesteps 250000 \
        --num-envs 8 --learning-rate 1e-3 --no-clip-vloss

A diver begins at the top left of a square sea and sinks one row a step, to the left or to the
right. The treasure, 1, is at the bottom right: all 20 steps of an episode must go right, and each
step to the right costs 0.01 / 20. Random steps find it in one of 2**20, about 10**6, episodes.
"""

import gymnasium as gym
import numpy as np


class DeepSea(gym.Env):
    """Observations (size * size,) float32: the square, one-hot; zeros at the bottom. Which action
    goes right is drawn for each square, once for all episodes."""

    def __init__(self, size: int = 20, mapping_seed: int = 42):
        self.size = size
        self.right = np.random.default_rng(mapping_seed).integers(2, size=(size, size))
        self.observation_space = gym.spaces.Box(0.0, 1.0, (size * size,))
        self.action_space = gym.spaces.Discrete(2)

    def observation(self):
        sea = np.zeros((self.size, self.size), np.float32)
        if self.row < self.size:
            sea[self.row, self.column] = 1.0
        return sea.ravel()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.row = self.column = 0
        return self.observation(), {}

    def step(self, action):
        right = action == self.right[self.row, self.column]
        found = right and self.row == self.column == self.size - 1
        reward = float(found) - 0.01 / self.size * right
        self.column = np.clip(self.column + (1 if right else -1), 0, self.size - 1)
        self.row += 1
        return self.observation(), reward, self.row == self.size, False, {}


gym.register("DeepSea-v0", DeepSea, reward_threshold=0.99)
