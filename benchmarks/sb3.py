"""Stable-Baselines3's PPO on a script's environments with the script's hyper-parameters: a peer.

    python benchmarks/sb3.py ppo_atari_envpool --total-timesteps 12288

Prints one JSON object with the steps/s after the same burn-in as the scripts have. Networks, batch
sizes, epochs and clipping are the same; it has its own value loss and its own environment loop, and
on EnvPool it trains on the rows that are no transition.
"""

import argparse
import importlib
import json
import sys
import time
from functools import partial

from records import ROOT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("script", help="a script of ppo/, whose Args give the hyper-parameters")
    parser.add_argument("--env-id")
    parser.add_argument("--num-envs", type=int)
    parser.add_argument("--total-timesteps", type=int)
    given = parser.parse_args()
    try:
        from stable_baselines3 import PPO
        from stable_baselines3.common.callbacks import BaseCallback
        from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize
    except ImportError:
        sys.exit("needs stable-baselines3: pip install -r requirements/requirements-bench.txt")
    sys.path.insert(0, str(ROOT / "ppo"))
    script = importlib.import_module(given.script)  # with the script's number of threads
    asked = {name: value for name, value in vars(given).items() if name != "script"}
    args = script.Args(**{name: value for name, value in asked.items() if value is not None})

    class EnvPool(VecEnv):
        """EnvPool's environments as SB3 wants them."""

        def __init__(self, envs):
            self.envs = envs
            super().__init__(args.num_envs, envs.single_observation_space, envs.single_action_space)
            self.infos = [{} for _ in range(args.num_envs)]

        def reset(self):
            return self.envs.reset()[0]

        def step_async(self, actions):
            self.actions = actions

        def step_wait(self):
            obs, rewards, terminated, truncated, _ = self.envs.step(self.actions)
            return obs, rewards, terminated | truncated, self.infos

        def close(self):
            self.envs.close()

        def get_attr(self, name, indices=None):
            return [None] * self.num_envs

        def set_attr(self, name, value, indices=None):
            raise NotImplementedError

        def env_method(self, name, *args, indices=None, **kwargs):
            raise NotImplementedError

        def env_is_wrapped(self, wrapper, indices=None):
            return [False] * self.num_envs

    class Clock(BaseCallback):
        """Reads the clock after the burn-in."""

        iterations = 0

        def _on_rollout_start(self):
            if self.iterations == args.measure_burnin:
                self.burnin_step, self.burnin_time = self.num_timesteps, time.perf_counter()
            self.iterations += 1

        def _on_step(self):
            return True

    policy = "CnnPolicy" if "atari" in given.script else "MlpPolicy"
    if hasattr(script, "envpool"):
        envs = EnvPool(script.make_envs(args))
    else:
        make = partial(script.gym.make, args.env_id, disable_env_checker=True)
        envs = DummyVecEnv([make] * args.num_envs)
    if hasattr(script, "RunningMeanStd"):
        envs = VecNormalize(envs, gamma=args.gamma)
    model = PPO(
        policy,
        envs,
        learning_rate=lambda remaining: remaining * args.learning_rate,
        n_steps=args.num_steps,
        batch_size=args.minibatch_size,
        n_epochs=args.update_epochs,
        gamma=args.gamma,
        gae_lambda=args.gae_lambda,
        clip_range=args.clip_coef,
        clip_range_vf=args.clip_coef,
        ent_coef=args.ent_coef,
        vf_coef=args.vf_coef,
        max_grad_norm=args.max_grad_norm,
        seed=args.seed,
        device="auto" if policy == "CnnPolicy" else "cpu",  # as SB3 advises for small networks
    )
    clock = Clock()
    model.learn(args.total_timesteps, callback=clock)
    if not hasattr(clock, "burnin_time"):
        sys.exit(f"too short a run: give more than {args.measure_burnin} iterations")
    seconds = time.perf_counter() - clock.burnin_time
    print(json.dumps({"sps": (model.num_timesteps - clock.burnin_step) / seconds}))


if __name__ == "__main__":
    main()
