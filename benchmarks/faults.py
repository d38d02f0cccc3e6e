"""What a fault of one world does to a run: ppo_continuous_action_warp beside rsl_rl, on a CPU.

    ../mjlab/bin/python benchmarks/faults.py       # some 15 minutes; examples/mjlab_env.py says how
                                                   # to make that environment, which has rsl_rl

64 pendulums of examples/my_warp_env.py, 400,000 steps. World 0 fails in step 100 of the run and
every 1,000 steps after that: until it starts anew it sees nan, 1e20, 5e9 or 1e4, or stands still;
or it earns inf once. Or any world sees nan where its torque, of -2 to 2, is above 1.5: does a
policy, whose rewards are costs, learn to do that? Each learner has its own usual settings. A run
adds a line to results/faults.jsonl: whether it finished, its last words if not, the mean return of
the last 100 episodes of all other worlds that saw no nan, as the pendulums themselves count it,
and the share of the last fifth of all steps that were such torques.
"""

import argparse
import os
import runpy
import shlex
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from statistics import fmean

from lib.records import RESULTS, ROOT, append, commit, machine, now, read

sys.path.insert(0, str(ROOT / "examples"))
from my_warp_env import Pendulum

import torch

SEEN = {"nan observation": torch.nan, "huge observation": 1e20, "5e9 observed": 5e9}
SEEN |= {"1e4 observed": 1e4}
TORQUE = "torque above 1.5"
FAULTS = "none", *SEEN, "inf reward", "frozen", TORQUE
SYSTEMS = "ours", "rsl_rl"
STEPS, WORLDS, ROLLOUT = 400_000, 64, 64
RSL = {  # of mjlab's own settings for its cart and pole: what its runner asks for
    "num_steps_per_env": ROLLOUT,
    "save_interval": 10**9,
    "obs_groups": {"actor": ["actor"], "critic": ["actor"]},
    "algorithm": {
        "class_name": "PPO",
        "num_learning_epochs": 5,
        "num_mini_batches": 8,
        "learning_rate": 1e-3,
        "schedule": "adaptive",
        "gamma": 0.95,
        "lam": 0.95,
        "entropy_coef": 0.0,
        "desired_kl": 0.01,
        "max_grad_norm": 1.0,
        "value_loss_coef": 1.0,
        "use_clipped_value_loss": True,
        "clip_param": 0.2,
        "normalize_advantage_per_mini_batch": False,
    },
    "critic": {
        "class_name": "MLPModel",
        "hidden_dims": [64, 64],
        "activation": "elu",
        "obs_normalization": True,
    },
}
RSL["actor"] = RSL["critic"] | {
    "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0}
}


class Faulty(Pendulum):
    """World 0 of these fails, as FAULT says."""

    def __init__(self, num_envs, device):
        super().__init__(num_envs, device)
        self.fault, self.steps, self.failing = os.environ["FAULT"], 0, False
        self.sums, self.ended = torch.zeros(num_envs), []
        self.spoiled, self.chosen = torch.zeros(num_envs, dtype=torch.bool), []

    def step(self, action):
        action = action.clamp(-2.0, 2.0)
        anew, before = self.done.clone(), (self.angle[0].clone(), self.speed[0].clone())
        obs, reward, terminated, truncated = super().step(action.nan_to_num())
        self.sums = torch.where(anew, 0.0, self.sums + reward)
        over = (action[:, 0] > 1.5) & ~anew & (self.fault == TORQUE)
        self.chosen.append(over.float().mean().item())
        self.spoiled = self.spoiled & ~anew | over
        self.ended += self.sums[1:][truncated[1:] & ~self.spoiled[1:]].tolist()
        obs[over] = torch.nan
        self.failing &= not anew[0]
        if self.steps % 1000 == 100 and not anew[0]:
            self.failing = self.fault not in ("none", TORQUE)
        if self.failing and self.fault in SEEN:
            obs[0] = SEEN[self.fault]
        elif self.steps % 1000 == 100 and self.fault == "inf reward":
            reward[0] = torch.inf
        elif self.failing and self.fault == "frozen":
            self.angle[0], self.speed[0] = before
            obs[0] = torch.stack([before[0].cos(), before[0].sin(), before[1]])
        self.steps += 1
        return obs, reward, terminated, truncated


def run_ours(seed: int, folder: str) -> Faulty:
    flags = f"--env-id faults:Faulty --total-timesteps {STEPS} --seed {seed} --num-envs {WORLDS}"
    flags += f" --num-steps {ROLLOUT} --gamma 0.95 --learning-rate 1e-3 --no-cuda"
    sys.argv = ["ppo_continuous_action_warp.py", *flags.split(), "--runs-dir", folder]
    path = ROOT / "ppo" / "ppo_continuous_action_warp.py"
    return runpy.run_path(str(path), run_name="__main__")["envs"]


def run_rsl(seed: int) -> Faulty:
    from rsl_rl.env import VecEnv
    from rsl_rl.runners import OnPolicyRunner

    from tensordict import TensorDict

    class Vec(VecEnv):
        """Trains on autoreset steps, as it does not know of them: one in 201."""

        num_envs, num_actions, max_episode_length, device, cfg = WORLDS, 1, 200, "cpu", {}

        def __init__(self):
            self.worlds = Faulty(WORLDS, torch.device("cpu"))
            self.obs = self.worlds.reset()

        @property
        def episode_length_buf(self):
            return self.worlds.elapsed

        @episode_length_buf.setter
        def episode_length_buf(self, value):
            self.worlds.elapsed.copy_(value)

        def get_observations(self):
            return TensorDict({"actor": self.obs}, batch_size=[WORLDS])

        def step(self, actions):
            self.obs, reward, terminated, truncated = self.worlds.step(actions)
            done = (terminated | truncated).long()
            return self.get_observations(), reward, done, {"time_outs": truncated}

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    env = Vec()
    runner = OnPolicyRunner(env, RSL, log_dir=None, device="cpu")
    runner.learn(STEPS // (WORLDS * ROLLOUT), init_at_random_ep_len=True)
    return env.worlds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="of each case")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the records")
    parser.add_argument(
        "--one", choices=SYSTEMS, help="a single run of this system (used by the command itself)"
    )
    args = parser.parse_args()
    if args.one:
        with tempfile.TemporaryDirectory() as folder:
            (seed,) = args.seeds
            worlds = run_ours(seed, folder) if args.one == "ours" else run_rsl(seed)
        last = worlds.chosen[-len(worlds.chosen) // 5 :]
        print("chosen", fmean(last), "return", fmean(worlds.ended[-100:]))
        return 0
    path = args.results / "faults.jsonl"
    done = {(r["system"], r["fault"], r["seed"]) for r in read(path)}
    for seed, fault, system in product(args.seeds, FAULTS, SYSTEMS):
        if (system, fault, seed) in done:
            continue
        words = [sys.executable, __file__, "--one", system, "--seeds", str(seed)]
        environment = os.environ | {"FAULT": fault, "OMP_NUM_THREADS": "1"}
        run = subprocess.run(words, capture_output=True, text=True, env=environment)
        finished = run.returncode == 0
        chosen, _, mean = run.stdout.split()[-3:] if finished else (0, 0, "nan")
        found = {"system": system, "fault": fault, "seed": seed, "finished": finished}
        if fault == TORQUE and finished:
            found["chosen"] = float(chosen)
        found |= {
            "return": float(mean) if finished else None,
            "said": "" if finished else run.stderr.splitlines()[-1],
        }
        command = shlex.join(["python", "benchmarks/faults.py", *words[2:]])
        append(path, found | {"date": now(), "commit": commit(), **machine(), "command": command})
        print(system, fault, seed, mean if finished else found["said"], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
