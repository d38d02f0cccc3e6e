"""Environments of one's own, for any script on Gymnasium: tasks whose velocities are hidden.

    PYTHONPATH=examples ./run.sh ppo --env-id my_envs:HiddenCartPole-v1
    PYTHONPATH=examples ./run.sh ppo_continuous_action --env-id my_envs:HiddenPendulum-v1

Before the colon stands the module, which Python must find; importing it registers the environments.
These two scripts cannot solve them, as one observation does not say where things move. `ppo_lstm`
and `ppo_continuous_action_lstm` can.
"""

import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv


def make(**options) -> gym.Env:
    """Observations (2,) float32: the cart's position in m and the pole's angle in rad."""
    env = CartPoleEnv(**options)
    low, high = (bound[::2] for bound in (env.observation_space.low, env.observation_space.high))
    space = gym.spaces.Box(low, high)
    return gym.wrappers.TransformObservation(env, lambda obs: obs[::2], space)


def make_pendulum(**options) -> gym.Env:
    """Observations (2,) float32: cosine and sine of the pendulum's angle."""
    space = gym.spaces.Box(-1.0, 1.0, (2,))
    return gym.wrappers.TransformObservation(PendulumEnv(**options), lambda obs: obs[:2], space)


gym.register("HiddenCartPole-v1", make, max_episode_steps=500, reward_threshold=475.0)
gym.register("HiddenPendulum-v1", make_pendulum, max_episode_steps=200)
