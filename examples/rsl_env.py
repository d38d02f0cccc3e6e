r"""Environments with the interface of rsl_rl 5, VecEnv, for ppo_continuous_action_warp. Here it is
mjlab's wrapper, the only one that was tried; for another simulator `Cartpole` is the function to
write anew. It needs `episode_length_buf`, which MuJoCo Playground's wrapper has not, and groups of
observations, of which the policy sees `actor`. A curriculum does not go on with --resume.

    python -m venv ../mjlab
    ../mjlab/bin/pip install torch mjlab==1.6.0 gymnasium tyro tqdm tensorboard
    PYTHONPATH=examples ../mjlab/bin/python ppo/ppo_continuous_action_warp.py \
        --env-id rsl_env:Cartpole --num-envs 4096 --num-steps 24

Such environments reset a world in the step that ends its episode. What is lost by that: an
episode's first observation and reward, as its first action was drawn at the end of the one before;
and at a time limit the last observation, where `extras` has no "final_obs". Then the observation
before it bootstraps, as in rsl_rl.
"""

import gymnasium as gym

import torch

INF = float("inf")


class RslRl:
    """What the docstring of WarpVectorEnv lists, of a VecEnv of rsl_rl 5."""

    capturable = False  # these simulators ask the device which worlds have ended

    def __init__(self, env):
        self.env = env
        self.max_episode_steps = env.max_episode_length
        self.single_action_space = gym.spaces.Box(-INF, INF, (env.num_actions,))
        self.see("actor")
        self.done = torch.zeros_like(env.episode_length_buf, dtype=torch.bool)
        self.logged = {}  # what the simulator said since `metrics` were read, by name

    def see(self, *groups):
        """Observations are these groups of the simulator's, joined; returns their sizes."""
        self.groups, obs = groups, self.env.get_observations()
        self.obs = self.joined(obs)  # the last ones
        self.single_observation_space = gym.spaces.Box(-INF, INF, self.obs.shape[1:])
        return [obs[name].shape[1] for name in groups]

    @property
    def elapsed(self):
        return self.env.episode_length_buf

    @property
    def metrics(self):
        """Means over the steps since the last call."""
        means = {name: torch.stack(values).mean() for name, values in self.logged.items()}
        self.logged.clear()
        return means

    def joined(self, obs):
        return torch.cat([obs[name] for name in self.groups], 1)

    def reset(self):
        return self.obs

    def step(self, action):
        anew = self.done.clone()
        obs, reward, done, extras = self.env.step(action)
        obs, done = self.joined(obs), done.bool() & ~anew
        truncated = done & extras.get("time_outs", torch.zeros_like(done)).bool()
        last = self.joined(extras["final_obs"]) if "final_obs" in extras else self.obs
        lost = ~last.isfinite().all(1, keepdim=True)
        last = torch.where(lost, obs, last)  # of a world that diverged and has begun anew
        seen = torch.where(done[:, None], last, obs)
        self.obs = obs
        self.done.copy_(done)
        for name, value in extras.get("log", {}).items():
            value = torch.as_tensor(value, dtype=torch.float32)
            self.logged.setdefault(name, []).append(value.detach().clone().mean())
        return seen, torch.where(anew, 0.0, reward), done & ~truncated, truncated


def Cartpole(num_envs, device):  # noqa: N802 - stands where a class would
    """mjlab's cart and pole by its wrapper for rsl_rl."""
    import mjlab.tasks  # noqa: F401 - registers its ids
    from mjlab.envs import ManagerBasedRlEnv
    from mjlab.rl import RslRlVecEnvWrapper
    from mjlab.tasks.registry import load_env_cfg

    cfg = load_env_cfg("Mjlab-Cartpole-Balance")
    cfg.scene.num_envs, cfg.seed = num_envs, torch.initial_seed() % 2**31
    return RslRl(RslRlVecEnvWrapper(ManagerBasedRlEnv(cfg, str(device))))
