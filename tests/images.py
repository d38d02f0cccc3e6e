"""Images that tests play with: each is noise, known by the seed and the steps so far."""

import gymnasium as gym
import numpy as np


class Images(gym.Env):
    """Observations (12, 16, 3) uint8, mostly black; three actions, of which one earns 1."""

    def __init__(self):
        self.observation_space = gym.spaces.Box(0, 255, (12, 16, 3), np.uint8)
        self.action_space = gym.spaces.Discrete(3)

    def image(self):
        self.right = int(self.np_random.integers(3))
        image = self.np_random.integers(0, 256, (12, 16, 3))
        return (image * (self.np_random.random((12, 16, 3)) < 0.2)).astype(np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.image(), {}

    def step(self, action):
        reward = float(action == self.right)
        return self.image(), reward, self.np_random.random() < 0.1, False, {}
