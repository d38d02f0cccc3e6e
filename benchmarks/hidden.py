"""CartPole without its velocities, what `ppo_lstm` sees, for the scripts that have no memory.

    PYTHONPATH=benchmarks ./run.sh ppo --env-id hidden:HiddenCartPole-v1

A module as anyone could write for an environment of one's own.
"""

import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv


def make(**options) -> gym.Env:
    """Observations (2,) float32: the cart's position in m and the pole's angle in rad."""
    env = CartPoleEnv(**options)
    low, high = (bound[::2] for bound in (env.observation_space.low, env.observation_space.high))
    space = gym.spaces.Box(low, high)
    return gym.wrappers.TransformObservation(env, lambda obs: obs[::2], space)


gym.register("HiddenCartPole-v1", make, max_episode_steps=500, reward_threshold=475.0)
