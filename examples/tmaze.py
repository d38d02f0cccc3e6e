"""A T-maze, a task for a memory: what is seen at its start is asked for at its end.

    PYTHONPATH=examples ./run.sh ppo_trxl --env-id tmaze:TMaze40-v0

The first observation shows a cue, -1 or 1. Then comes a corridor, in which no action matters, and
at its end a junction, where action 0 is right after -1 and action 1 after 1. A right turn pays 1, a
wrong one -1: without a memory the mean return is 0. Task: Bakker, 2001, "Reinforcement Learning
with Long Short-Term Memory"; here, the agent walks on by itself.
"""

import gymnasium as gym
import numpy as np


class TMaze(gym.Env):
    """Observations (3,) float32: the cue, 0 after the first step; 1 at the junction, else 0; noise
    from -1 to 1. length: steps from the cue to the junction. An episode takes length + 1 steps."""

    observation_space, action_space = gym.spaces.Box(-1.0, 1.0, (3,)), gym.spaces.Discrete(2)

    def __init__(self, length=40):
        self.length = length

    def look(self):
        cue = self.cue * (self.t == 0)
        return np.array([cue, self.t == self.length, self.np_random.uniform(-1, 1)], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.cue = 0, self.np_random.choice([-1, 1])
        return self.look(), {}

    def step(self, action):
        at_junction = self.t == self.length
        right = (action == 1) == (self.cue == 1)
        self.t += 1
        return self.look(), at_junction * (1.0 if right else -1.0), at_junction, False, {}


gym.register("TMaze-v0", TMaze)  # --env-kwargs '{"length": 7}'
for length in (10, 20, 40, 80):
    gym.register(f"TMaze{length}-v0", TMaze, kwargs={"length": length})
