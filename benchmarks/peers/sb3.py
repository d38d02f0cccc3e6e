"""Stable-Baselines3's PPO, RecurrentPPO or MaskablePPO on a script's environments: a peer.

    python benchmarks/peers/sb3.py ppo_atari_envpool --total-timesteps 12288

Its hyper-parameters and networks are the script's; benchmarks/README.md says what differs. Prints
`global_step=N, episodic_return=X` after each episode, X the sum of raw rewards, and `SPS: x` after
each iteration, from the fourth on without the burn-in. Several agents come by SuperSuit's vector
environment; they all have to end together.
"""

import argparse
import importlib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np

from torch import nn


class Masks(gym.Wrapper):
    """Keeps info["action_mask"] for MaskablePPO, which asks for action_masks()."""

    def reset(self, **kwargs):
        found = self.env.reset(**kwargs)
        self.mask = found[-1]["action_mask"]
        return found

    def step(self, action):
        found = self.env.step(action)
        self.mask = found[-1]["action_mask"]
        return found

    def action_masks(self):
        return self.mask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("script", help="a script of ppo/, whose Args give the hyper-parameters")
    parser.add_argument("--env-id")
    parser.add_argument("--num-envs", type=int)
    parser.add_argument("--total-timesteps", type=int)
    parser.add_argument("--seed", type=int)
    given = parser.parse_args()
    from sb3_contrib import MaskablePPO, RecurrentPPO
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor, VecNormalize

    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "ppo"))
    script = importlib.import_module(given.script)  # with the script's number of threads
    asked = {k: v for k, v in vars(given).items() if k != "script" and v is not None}
    args = script.Args(**asked)

    class Many(VecEnv):
        """EnvPool's and ALE's environments as SB3 wants them."""

        def __init__(self, envs):
            self.envs = envs
            super().__init__(args.num_envs, envs.single_observation_space, envs.single_action_space)
            self.returns = np.zeros(args.num_envs)

        def reset(self):
            return self.envs.reset()[0]

        def step_async(self, actions):
            self.actions = actions

        def step_wait(self):
            obs, rewards, terminated, truncated, info = self.envs.step(self.actions)
            self.returns += info.get("reward", rewards)  # Atari's, not clipped
            infos = [{} for _ in range(args.num_envs)]
            over = info.get("terminated", terminated) > 0  # in EnvPool no lost life
            if given.script.startswith("ppo_atari") and "terminated" not in info:  # in ALE it is
                over, rewards = over & (info["lives"] == 0), np.sign(rewards)
            for i in np.flatnonzero(over | truncated):
                infos[i]["episode"] = {"r": self.returns[i], "l": 0}
                self.returns[i] = 0
            for i in np.flatnonzero(truncated & ~terminated):  # SB3 bootstraps from these
                infos[i] |= {"TimeLimit.truncated": True, "terminal_observation": obs[i]}
            return obs, rewards, terminated | truncated, infos

        def close(self):
            self.envs.close()

        def get_attr(self, name, indices=None):
            return [None] * self.num_envs

        def env_is_wrapped(self, wrapper, indices=None):
            return [False] * self.num_envs

        set_attr = env_method = None  # abstract, and not called

    class Layer(BaseFeaturesExtractor):
        """The layer that stands before the LSTM in the script's networks."""

        def __init__(self, space):
            super().__init__(space, 64)
            self.layer = nn.Linear(*space.shape, 64)

        def forward(self, obs):
            return self.layer(obs).tanh()

    class Image(BaseFeaturesExtractor):
        """The network of the script for images of one's own, without its heads."""

        def __init__(self, space):
            actions = gym.spaces.Discrete(1)
            agent = script.Agent(
                SimpleNamespace(single_observation_space=space, single_action_space=actions)
            )
            super().__init__(space, agent.actor.in_features)
            self.network, self.order, self.size = agent.network, agent.order, agent.size
            self.white = agent.white

        def forward(self, obs):
            image = obs.permute(self.order).reshape(len(obs), -1, *self.size)
            return self.network(image / self.white)

    class Printer(BaseCallback):
        """Prints returns, and steps/s since the clock was last set: at the start and after the
        burn-in."""

        iterations = -1

        def _on_rollout_start(self):
            self.iterations += 1
            if self.iterations:
                seconds = time.perf_counter() - self.begin_time
                rows = self.num_timesteps - self.begin_step
                print("SPS:", round(rows / agents / seconds, 1))
            if self.iterations in (0, args.measure_burnin):
                self.begin_step, self.begin_time = self.num_timesteps, time.perf_counter()

        def _on_step(self):
            ended = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            for found in np.reshape(ended, (-1, agents)).mean(1):
                step = self.num_timesteps // agents
                print(f"global_step={step}, episodic_return={found}")
            return True

        _on_training_end = _on_rollout_start  # after the last iteration

    policy, agents = "Cnn" if "atari" in given.script else "Mlp", 1
    if hasattr(script, "ParallelEnvs"):
        import supersuit

        env = importlib.import_module(args.env_id).parallel_env(**json.loads(args.env_kwargs))
        agents = len(env.possible_agents)
        env = supersuit.pettingzoo_env_to_vec_env_v1(env)
        many = {"num_vec_envs": args.num_envs, "base_class": "stable_baselines3"}
        envs = supersuit.concat_vec_envs_v1(env, **many)
        inner = envs.venv  # SB3 calls its seed(), which SuperSuit 3.11 does not have
        inner.seed = lambda seed=None: inner.reset(seed=seed)
        envs = VecMonitor(envs)
    elif hasattr(script, "envpool"):
        seeds = np.random.SeedSequence(args.seed).generate_state(args.num_envs) >> 1
        envs = Many(script.make_envs(args, seeds))
    elif hasattr(script, "ale_py"):
        envs = Many(script.make_envs(args))
    else:
        one = replace(args, num_envs=1, num_minibatches=1)
        wrap = Masks if hasattr(script, "action_masks") else lambda env: env
        make_env = [lambda: wrap(script.make_envs(one).unwrapped.envs[0])]
        envs = VecMonitor(DummyVecEnv(make_env * args.num_envs))
    if hasattr(script, "RunningMeanStd"):
        envs = VecNormalize(envs, gamma=args.gamma)
    algorithm = MaskablePPO if hasattr(script, "action_masks") else PPO
    network = None
    if given.script == "ppo_continuous_action_envpool":  # the others begin as SB3 does, with tanh
        network = {"log_std_init": script.Agent(envs.venv.envs).actor_logstd[0, 0].item()}
        network["activation_fn"] = nn.ELU
    if given.script == "ppo_pixels":
        network = {"features_extractor_class": Image, "net_arch": [], "normalize_images": False}
    if hasattr(script, "LSTM"):
        algorithm, network = RecurrentPPO, {"net_arch": []}
        if policy == "Cnn":
            network |= {"lstm_hidden_size": 128, "shared_lstm": True, "enable_critic_lstm": False}
        else:  # a network each for actor and critic
            network |= {"lstm_hidden_size": 64, "features_extractor_class": Layer}
            network["share_features_extractor"] = False
    model = algorithm(
        f"{policy}{'Lstm' if algorithm is RecurrentPPO else ''}Policy",
        envs,
        policy_kwargs=network,
        learning_rate=lambda remaining: remaining * args.learning_rate,
        n_steps=args.num_steps,
        batch_size=args.batch_size // args.num_minibatches * agents,
        n_epochs=args.update_epochs,
        gamma=args.gamma,
        gae_lambda=args.gae_lambda,
        clip_range=args.clip_coef,
        clip_range_vf=args.clip_coef if args.clip_vloss else None,
        normalize_advantage=args.norm_adv,
        ent_coef=args.ent_coef,
        vf_coef=args.vf_coef / 2,
        max_grad_norm=args.max_grad_norm,
        seed=args.seed,
        device="auto" if policy == "Cnn" else "cpu",  # as SB3 advises for small networks
    )
    model.learn(args.total_timesteps * agents, callback=Printer())


if __name__ == "__main__":
    main()
