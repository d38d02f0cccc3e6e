"""An environment of one's own, for any script on Gymnasium: CartPole without its velocities.

    PYTHONPATH=examples ./run.sh ppo --env-id my_envs:HiddenCartPole-v1

Before the colon stands the module, which Python must find; importing it registers the environment.
`ppo` cannot solve it, as one observation does not say where things move. `ppo_lstm` can.
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
