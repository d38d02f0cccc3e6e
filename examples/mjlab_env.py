r"""Robots of mjlab (https://github.com/mujocolab/mjlab) for ppo_continuous_action_warp, on the
device. mjlab wants MuJoCo's versions of its own, so give it a Python environment too:

    python -m venv ../mjlab
    ../mjlab/bin/pip install torch mjlab==1.6.0 gymnasium tyro tqdm tensorboard
    PYTHONPATH=examples ../mjlab/bin/python ppo/ppo_continuous_action_warp.py \
        --env-id mjlab_env:Mjlab-Velocity-Flat-Unitree-Go1 --num-envs 4096 --num-steps 24

Behind the colon stands any of mjlab's ids. The policy sees the group `actor`; a fork by
`--patch asymmetric_warp` lets the critic see the group `critic`, too.
"""

from functools import partial

import gymnasium as gym
import mjlab.tasks  # noqa: F401 - registers its ids
from mjlab.envs import ManagerBasedRlEnv
from mjlab.tasks.registry import load_env_cfg

import torch

INF = float("inf")


class Task:
    """What the docstring of WarpVectorEnv lists, of one of mjlab's tasks."""

    capturable = False  # mjlab asks the device which worlds have ended

    def __init__(self, task, num_envs, device):
        cfg = load_env_cfg(task)
        # mjlab would reset a world in the step that ends its episode, and lose its last observation
        cfg.auto_reset = False
        cfg.scene.num_envs, cfg.seed = num_envs, torch.initial_seed() % 2**31
        self.env = ManagerBasedRlEnv(cfg, device=str(device))
        self.time_limits_end = cfg.is_finite_horizon  # then time is up for good
        self.max_episode_steps = self.env.max_episode_length
        self.see("actor")
        shape = self.env.single_action_space.shape
        self.single_action_space = gym.spaces.Box(-INF, INF, shape)  # mjlab bounds what it needs to
        self.done = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self.logged = {}  # what mjlab's managers said since `metrics` were read, by name
        self.steps_before = 0  # of the run that is resumed

    def see(self, *groups):
        """Observations are these groups of mjlab's, joined; returns their sizes."""
        spaces, self.groups = self.env.single_observation_space.spaces, groups
        sizes = [spaces[name].shape[0] for name in groups]
        self.single_observation_space = gym.spaces.Box(-INF, INF, (sum(sizes),))
        return sizes

    @property
    def elapsed(self):
        return self.env.episode_length_buf

    @property
    def metrics(self):
        """Means of what mjlab logged since the last call: terms of the reward, ends, curricula. The
        step that is for nothing, after an episode's end, is among it."""
        means = {name: torch.stack(values).mean() for name, values in self.logged.items()}
        self.logged.clear()
        return means

    def joined(self, obs):
        for name, value in self.env.extras["log"].items():
            value = torch.as_tensor(value, dtype=torch.float32)
            self.logged.setdefault(name, []).append(value.detach().clone().mean())
        return torch.cat([obs[name] for name in self.groups], 1)

    def state(self):
        """What curricula go by; a resumed run goes on with it."""
        terrain = self.env.scene.terrain
        levels = getattr(terrain, "terrain_levels", None)
        return {"steps": self.env.common_step_counter, "levels": levels}

    def load(self, state):
        self.steps_before = state["steps"]
        if state["levels"] is not None:
            terrain, worlds = self.env.scene.terrain, torch.arange(len(self.done))
            terrain.terrain_levels.copy_(state["levels"][worlds % len(state["levels"])])
            stay = torch.zeros_like(terrain.terrain_levels)
            terrain.update_env_origins(worlds.to(stay.device), stay, stay)

    def reset(self):
        self.done.zero_()
        obs = self.joined(self.env.reset()[0])
        # subtle: curricula take step 0 for the first reset, in which nothing is to be judged
        self.env.common_step_counter += self.steps_before
        self.steps_before = 0
        return obs

    def step(self, action):
        anew = self.done.clone()
        # subtle: mjlab steps all worlds or none, and refuses where one waits for its reset. So a
        # world that starts anew is stepped for nothing, and reset after that
        self.env._manual_reset_pending.zero_()
        obs, reward, terminated, truncated, _ = self.env.step(action)
        obs = self.joined(obs)
        if anew.any():  # sync
            first = self.joined(self.env.reset(env_ids=anew.nonzero().squeeze(1))[0])
            obs = torch.where(anew[:, None], first, obs)
        terminated, truncated = terminated & ~anew, truncated & ~anew
        if self.time_limits_end:
            terminated, truncated = terminated | truncated, torch.zeros_like(truncated)
        self.done.copy_(terminated | truncated)
        return obs, torch.where(anew, 0.0, reward), terminated, truncated


def __getattr__(name):
    """mjlab_env:ID is the class of that task."""
    if not name.startswith("Mjlab"):
        raise AttributeError(name)
    return partial(Task, name)
