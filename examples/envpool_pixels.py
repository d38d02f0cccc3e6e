"""EnvPool's images for ppo_pixels: Procgen, and whatever else has one image and one choice a step.

    apt install libqt5gui5                          # on Debian; Procgen alone needs it
    PYTHONPATH=examples ./run.sh ppo_pixels --env-id envpool_pixels:EnvPool-StarpilotEasy-v0

Each id of EnvPool's is there once more, with EnvPool- in front.
"""

from functools import partial

import envpool
import gymnasium as gym
import numpy as np


class One(gym.Env):
    """One environment of EnvPool's as one of Gymnasium's. A reset with a seed makes it anew."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}

    def __init__(self, env_id, **options):
        self.make = partial(envpool.make_gymnasium, env_id, num_envs=1, num_threads=1, **options)
        self.envs = self.make()
        self.observation_space = self.envs.observation_space
        self.action_space = self.envs.action_space
        self.render_mode = options.get("render_mode")

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.envs = self.make(seed=seed)
        return self.envs.reset()[0][0], {}

    def step(self, action):
        obs, reward, terminated, truncated, _ = self.envs.step(np.array([action]))
        return obs[0], reward.item(), terminated.item(), truncated.item(), {}

    def render(self):
        return self.envs.render()[0]


for env_id in envpool.list_all_envs():
    gym.register(f"EnvPool-{env_id}", partial(One, env_id))
