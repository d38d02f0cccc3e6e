"""MiniGrid and BabyAI for every script on vectors: tiles as one-hot vectors.

    .venv/bin/pip install --no-deps minigrid        # of its needs, Gymnasium and pygame are there
    PYTHONPATH=examples ./run.sh ppo --env-id minigrid_envs:OneHot-MiniGrid-DoorKey-8x8-v0

Each id of theirs is there once more, with OneHot- in front.
"""

from functools import partial

import gymnasium as gym
import minigrid  # noqa: F401 - registers its ids
import numpy as np

# of each of the 7 x 7 tiles that are seen: 11 kinds of object, 6 colours, 3 states of a door
TILES = [np.eye(size, dtype=np.float32) for size in (11, 6, 3)]
WORDS = "red green blue purple yellow grey key ball box door".split()  # of missions


class OneHot(gym.ObservationWrapper):
    """Observations (994,) float32 of 0 and 1: tiles, direction, and the mission's words."""

    def __init__(self, env):
        super().__init__(env)
        size = 7 * 7 * 20 + 4 + len(WORDS)
        self.observation_space = gym.spaces.Box(0.0, 1.0, (size,))

    def observation(self, observation):
        tiles = [eye[observation["image"][..., i]].ravel() for i, eye in enumerate(TILES)]
        words = [word in observation["mission"] for word in WORDS]
        direction = np.arange(4) == observation["direction"]
        return np.concatenate([*tiles, direction, words], dtype=np.float32)


def make(env_id, **options):
    return OneHot(gym.make(env_id, disable_env_checker=True, **options))


for env_id in [x for x in gym.registry if x.startswith(("MiniGrid-", "BabyAI-"))]:
    gym.register(f"OneHot-{env_id}", partial(make, env_id))
