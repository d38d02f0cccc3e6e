r"""MiniGrid and BabyAI for every script on vectors: tiles as one-hot vectors.

    .venv/bin/pip install --no-deps minigrid        # of its needs, Gymnasium and pygame are there
    PYTHONPATH=examples ./run.sh ppo --env-id minigrid_envs:OneHot-MiniGrid-DoorKey-8x8-v0

Each id of theirs is there once more, with OneHot- in front. `actions` keeps the first ones: 3 turn
left, turn right and walk, which is all that MiniGrid-Memory needs.

    PYTHONPATH=examples ./run.sh ppo_trxl_torchcompile --compile --total-timesteps 2000000 \
        --env-id minigrid_envs:OneHot-MiniGrid-MemoryS9-v0 \
        --env-kwargs '{"agent_view_size": 3, "actions": 3}' --num-envs 16 --num-steps 256 \
        --num-minibatches 8 --update-epochs 3 --clip-coef 0.1 --learning-rate 1e-3 \
        --ent-coef 0.005 --trxl-memory-length 64 --trxl-dim 128
"""

from functools import partial

import gymnasium as gym
import minigrid  # noqa: F401 - registers its ids
import numpy as np

# of each tile that is seen: 11 kinds of object, 6 colours, 3 states of a door
TILES = [np.eye(size, dtype=np.float32) for size in (11, 6, 3)]
WORDS = "red green blue purple yellow grey key ball box door".split()  # of missions


class OneHot(gym.ObservationWrapper):
    """Observations (994,) float32 of 0 and 1: 7 x 7 tiles, direction, and the mission's words."""

    def __init__(self, env, actions=None):
        super().__init__(env)
        height, width, _ = env.observation_space["image"].shape
        size = height * width * sum(map(len, TILES)) + 4 + len(WORDS)
        self.observation_space = gym.spaces.Box(0.0, 1.0, (size,))
        self.action_space = gym.spaces.Discrete(actions or int(env.action_space.n))

    def observation(self, observation):
        tiles = [eye[observation["image"][..., i]].ravel() for i, eye in enumerate(TILES)]
        words = [word in observation["mission"] for word in WORDS]
        direction = np.arange(4) == observation["direction"]
        return np.concatenate([*tiles, direction, words], dtype=np.float32)


def make(env_id, actions=None, **options):
    return OneHot(gym.make(env_id, disable_env_checker=True, **options), actions)


for env_id in [x for x in gym.registry if x.startswith(("MiniGrid-", "BabyAI-"))]:
    gym.register(f"OneHot-{env_id}", partial(make, env_id))
