r"""A shop, as an environment of one's own: a Dict, several choices at once, steps that take 2 ms.

    ./run.sh fork ppo ~/idea/my_ppo --patch multidiscrete normalize scale_rewards async_envs
    PYTHONPATH=examples ./run.sh ~/idea/my_ppo_torchcompile --compile --async-envs --num-envs 8 \
        --env-id shop:Shop-v0 --env-kwargs '{"ms": 2}'

Of three goods it says what they cost today, some 10,000, and how many are there; it takes how many
to buy. Cheap days are for buying, customers come most at the weekend, and what is left costs rent.
"""

import time

import gymnasium as gym
import numpy as np

PRICE, SPREAD = 10_000.0, 300.0


class Shop(gym.Env):
    """ms: milliseconds of work in each step, in place of a simulator's."""

    observation_space = gym.spaces.Dict(
        {
            "prices": gym.spaces.Box(0.0, np.inf, (3,), np.float32),
            "stock": gym.spaces.Box(0.0, 100.0, (3,), np.float32),
            "weekday": gym.spaces.Discrete(7),
        }
    )
    action_space = gym.spaces.MultiDiscrete([11, 11, 6])

    def __init__(self, ms=0.0):
        self.ms = ms

    def look(self):
        self.prices = PRICE + SPREAD * self.np_random.standard_normal(3)
        prices, stock = self.prices.astype(np.float32), self.stock.astype(np.float32)
        return {"prices": prices, "stock": stock, "weekday": self.day % 7}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.day, self.stock = int(self.np_random.integers(7)), np.full(3, 5.0)
        return self.look(), {}

    def step(self, action):
        begun = time.perf_counter()
        gain = (action * (PRICE - self.prices)).sum() / SPREAD
        self.stock = np.minimum(self.stock + action, 30.0)
        customers = self.np_random.poisson(3 + 2 * (self.day % 7 >= 5), 3)
        sold = np.minimum(self.stock, customers)
        self.stock -= sold
        self.day += 1
        while time.perf_counter() - begun < self.ms / 1000:
            pass
        reward = gain + sold.sum() - 0.2 * self.stock.sum()
        return self.look(), float(reward), False, False, {}


gym.register("Shop-v0", Shop, max_episode_steps=50)
