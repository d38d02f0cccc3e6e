"""Images of one's own: a small game, and Gymnasium's wrappers around another one.

    PYTHONPATH=examples ./run.sh ppo_pixels --env-id my_pixels:Reach-v0
    PYTHONPATH=examples ./run.sh ppo_pixels --env-id my_pixels:CarRacing4-v0 --reward-scale 0.01
    PYTHONPATH=examples ./run.sh ppo_pixels --env-id my_pixels:DoomBasic4-v0 --reward-scale 0.01

The last one needs VizDoom: .venv/bin/pip install vizdoom

What skips, stacks, greys or shrinks frames stands where an id is registered, and belongs to the
environment: ppo_eval.py plays the same.
"""

import gymnasium as gym
import numpy as np

SIZE = 40  # pixels
SQUARE = 4  # of both squares
DRIVEN = np.float32([[0, 0, 0], [0.6, 0, 0], [-0.6, 0, 0], [0, 0.2, 0], [0, 0, 0.8]])
MOVES = SQUARE * np.array([[0, 1], [0, -1], [1, 0], [-1, 0]])  # pixels


class Reach(gym.Env):
    """A white square is to cover a red one. Observations (40, 40, 3) uint8; actions: right, left,
    down, up. The reward is 1 when it does, which ends the episode, and -0.01 in each other step.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)
        self.action_space = gym.spaces.Discrete(4)

    def render(self):
        image = np.zeros((SIZE, SIZE, 3), np.uint8)
        for (y, x), colour in ((self.goal, (255, 0, 0)), (self.place, (255, 255, 255))):
            image[y : y + SQUARE, x : x + SQUARE] = colour
        return image

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        cells = self.np_random.choice((SIZE // SQUARE) ** 2, size=2, replace=False)
        self.goal, self.place = SQUARE * np.stack(np.divmod(cells, SIZE // SQUARE), 1)
        return self.render(), {}

    def step(self, action):
        self.place = np.clip(self.place + MOVES[action], 0, SIZE - SQUARE)
        touched = bool((self.place == self.goal).all())
        return self.render(), 1.0 if touched else -0.01, touched, False, {}


class Planes(gym.ObservationWrapper):
    """A dictionary of an image, (H, W, C) uint8, and bounded numbers as one image: behind its
    channels a plane for each number, black at its lower bound and white at its upper one."""

    def __init__(self, env, image):
        super().__init__(env)
        spaces = dict(env.observation_space)
        height, width, channels = spaces[image].shape
        self.image, self.numbers = image, {k: x for k, x in spaces.items() if k != image}
        assert all(x.is_bounded() for x in self.numbers.values()), f"no bounds: {spaces}"
        count = sum(int(np.prod(x.shape)) for x in self.numbers.values())
        shape = height, width, channels + count
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)

    def observation(self, observation):
        image = observation[self.image]
        greys = [
            np.ravel((observation[k] - x.low.astype(float)) / (x.high - x.low.astype(float)))
            for k, x in self.numbers.items()
        ]
        planes = np.broadcast_to(np.concatenate(greys), (*image.shape[:2], sum(map(len, greys))))
        return np.concatenate([image, np.rint(planes.clip(0, 1) * 255).astype(np.uint8)], 2)


def car_racing(fast=False, **options):
    """CarRacing-v3 with 5 actions of 4 frames each: 4 grey images, (4, 48, 48) uint8. The fast one
    is EnvPool's, whose steering, gas and brake get what Gymnasium's gives for each action.
    """
    if fast:
        env = gym.make("envpool_pixels:EnvPool-CarRacing-v3", disable_env_checker=True, **options)
        five = gym.spaces.Discrete(5)
        env = gym.wrappers.TransformAction(env, lambda action: DRIVEN[action], five)
    else:
        env = gym.make("CarRacing-v3", continuous=False, **options)
    env = gym.wrappers.MaxAndSkipObservation(env, skip=4)
    env = gym.wrappers.GrayscaleObservation(env)
    half = gym.spaces.Box(0, 255, (48, 48), np.uint8)
    env = gym.wrappers.TransformObservation(env, lambda obs: obs[::2, ::2], half)
    return gym.wrappers.FrameStackObservation(env, 4)


def doom(**options):
    """VizDoom's Basic, a monster to hit, with 4 actions of 4 frames each: grey, (60, 80) uint8."""
    import vizdoom.gymnasium_wrapper  # noqa: F401 - registers its ids

    env = gym.make("VizdoomBasic-v1", frame_skip=4, **options)
    small = gym.spaces.Box(0, 255, (60, 80), np.uint8)

    def shrunk(obs):
        return obs["screen"][2::4, 2::4].mean(2).astype(np.uint8)

    return gym.wrappers.TransformObservation(env, shrunk, small)


gym.register("Reach-v0", Reach, max_episode_steps=100)
gym.register("CarRacing4-v0", car_racing)
gym.register("FastCarRacing4-v0", car_racing, kwargs={"fast": True})
gym.register("DoomBasic4-v0", doom)
