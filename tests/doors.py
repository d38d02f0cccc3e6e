"""Environments of our own that tests of several files register and play."""

import gymnasium as gym
import numpy as np


class Still(gym.Env):
    """Shows ones and pays 1, for `length` steps; others are made of it."""

    length = None
    observation_space, action_space = gym.spaces.Box(-1.0, 1.0, (3,)), gym.spaces.Discrete(2)

    def look(self):
        space = self.observation_space
        return np.ones(space.shape, space.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.look(), {}

    def step(self, action):
        self.t += 1
        return self.look(), 1.0, self.t == self.length, False, {}


class Images(Still):
    """Noise, known by the seed and the steps so far, mostly black; of three actions one earns 1."""

    observation_space = gym.spaces.Box(0, 255, (12, 16, 3), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def look(self):
        self.right = int(self.np_random.integers(3))
        image = self.np_random.integers(0, 256, (12, 16, 3))
        return (image * (self.np_random.random((12, 16, 3)) < 0.2)).astype(np.uint8)

    def step(self, action):
        reward = float(action == self.right)
        return self.look(), reward, self.np_random.random() < 0.1, False, {}


class Doors(gym.Env):
    """Five doors, of which some are open, others at each step; to walk into a closed one raises.

    The doors, the rewards and whether an episode terminates hang on the seed and the actions so
    far. At a terminal state no door is open, as in some environments.
    """

    observation_space = gym.spaces.Box(0.0, 1.0, (3,))
    action_space = gym.spaces.Discrete(5)
    render_mode = None

    def look(self, closed=False):
        self.open = self.rng.random(5) < self.rng.choice([0.2, 0.6, 1.0])
        self.open[self.rng.integers(5)] = True
        self.open &= not closed
        obs = self.rng.random(3).astype(np.float32)
        return obs, {"action_mask": self.open.astype(np.int8)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.rng = np.random.default_rng(self.np_random.integers(2**32))
        return self.look()

    def step(self, action):
        if not self.open[action]:
            raise AssertionError(f"door {action} is closed")
        self.rng = np.random.default_rng([int(action), self.rng.integers(2**32)])
        terminated = self.rng.random() < 0.1
        reward = float(self.rng.normal() + action)
        obs, info = self.look(closed=terminated)
        return obs, reward, bool(terminated), False, info


gym.register("Doors-v0", Doors, max_episode_steps=12)
