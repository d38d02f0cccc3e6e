"""Stable-Baselines3's PPO with the hyper-parameters that RL Baselines3 Zoo has tuned for a task.

    python benchmarks/peers/zoo.py --env-id LunarLander-v3 --seed 1 --total-timesteps 1000000

ZOO has those of https://github.com/DLR-RM/rl-baselines3-zoo, hyperparams/ppo.yml at commit
00128b5d46, for three tasks of ppo/recipes.toml; what is not there is SB3's default.
The zoo tuned LunarLander-v2 and HalfCheetah-v3; the tasks here are their successors. Prints
`global_step=N, episodic_return=X` after each episode, X the sum of raw rewards, `SPS: x` after each
iteration, and at the end what 20 episodes by the most likely actions came to, with frozen
statistics: `deterministic: mean M, std S, 20 episodes`. One thread.
"""

import argparse
import time
from functools import partial

import torch
from torch import nn

ZOO = {
    "LunarLander-v3": {
        "n_envs": 16,
        "n_steps": 1024,
        "batch_size": 64,
        "n_epochs": 4,
        "gamma": 0.999,
        "gae_lambda": 0.98,
        "ent_coef": 0.01,
    },
    "BipedalWalker-v3": {
        "normalize": True,
        "n_envs": 32,
        "n_steps": 2048,
        "batch_size": 64,
        "n_epochs": 10,
        "gamma": 0.999,
        "gae_lambda": 0.95,
        "learning_rate": 3e-4,
        "clip_range": 0.18,
        "ent_coef": 0.0,
    },
    "HalfCheetah-v5": {
        "normalize": True,
        "n_envs": 1,
        "n_steps": 512,
        "batch_size": 64,
        "n_epochs": 20,
        "gamma": 0.98,
        "gae_lambda": 0.92,
        "learning_rate": 2.0633e-05,
        "clip_range": 0.1,
        "ent_coef": 0.000401762,
        "vf_coef": 0.58096,
        "max_grad_norm": 0.8,
        "policy_kwargs": {
            "log_std_init": -2,
            "ortho_init": False,
            "activation_fn": nn.ReLU,
            "net_arch": {"pi": [256, 256], "vf": [256, 256]},
        },
    },
}
EPISODES = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--env-id", choices=ZOO, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--total-timesteps", type=int, default=1_000_000)
    args = parser.parse_args()
    import gymnasium as gym
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    class Printer(BaseCallback):
        """Prints returns, and steps/s since the start."""

        def _on_training_start(self):
            self.start = time.perf_counter()

        def _on_step(self):
            ended = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            for found in ended:
                print(f"global_step={self.num_timesteps}, episodic_return={found}")
            return True

        def _on_rollout_start(self):
            if self.num_timesteps:
                seconds = time.perf_counter() - self.start
                print(f"SPS: {self.num_timesteps / seconds:.1f}")

        _on_training_end = _on_rollout_start

    torch.set_num_threads(1)
    flags = dict(ZOO[args.env_id])
    # by name make_vec_env would have pictures drawn: LunarLander then simulates its flames as well
    make_env = partial(gym.make, args.env_id)
    envs = make_vec_env(make_env, flags.pop("n_envs"), seed=args.seed)
    eval_envs = make_vec_env(make_env, 1, seed=10_000)  # the same episodes for each seed
    if flags.pop("normalize", False):
        envs = VecNormalize(envs, gamma=flags["gamma"])
        eval_envs = VecNormalize(eval_envs, training=False, norm_reward=False)
        eval_envs.obs_rms = envs.obs_rms
    model = PPO("MlpPolicy", envs, seed=args.seed, device="cpu", **flags)
    model.learn(args.total_timesteps, callback=Printer())
    mean, std = evaluate_policy(model, eval_envs, EPISODES)
    print(f"deterministic: mean {mean}, std {std}, {EPISODES} episodes")


if __name__ == "__main__":
    main()
