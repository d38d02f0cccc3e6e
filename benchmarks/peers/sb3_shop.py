"""Stable-Baselines3's PPO with VecNormalize on examples/shop.py, in processes: a peer.

    PYTHONPATH=examples python benchmarks/peers/sb3_shop.py --seed 1

Networks and hyper-parameters are those of USING.md's command with --vf-coef 1 --no-clip-vloss.
Prints the mean return of the last 100 episodes, and steps/s, learning included.
"""

import argparse
import time

import numpy as np
import shop  # noqa: F401 - registers Shop-v0
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecNormalize

import torch

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ms", type=float, default=2.0, help="of work in a step")
    parser.add_argument("--total-timesteps", type=int, default=100_352)
    args = parser.parse_args()
    torch.set_num_threads(1)
    how = {"env_kwargs": {"ms": args.ms}, "vec_env_cls": SubprocVecEnv, "seed": args.seed}
    envs = VecNormalize(make_vec_env("Shop-v0", 8, **how), norm_obs_keys=["prices", "stock"])
    model = PPO(
        "MultiInputPolicy", envs, learning_rate=lambda left: 1e-3 * left, n_steps=128,
        batch_size=256, n_epochs=4, ent_coef=0.01, seed=args.seed, device="cpu",
        policy_kwargs={"net_arch": [64, 64]},
    )  # fmt: skip
    begun = time.perf_counter()
    model.learn(args.total_timesteps)
    sps = args.total_timesteps / (time.perf_counter() - begun)
    print(f"mean return {np.mean([x['r'] for x in model.ep_info_buffer]):.2f}, {sps:.0f} steps/s")
