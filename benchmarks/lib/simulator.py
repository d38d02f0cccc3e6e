"""The simulator of a script alone: steps/s of its environments with actions drawn beforehand.

    python benchmarks/lib/simulator.py ppo_atari_envpool --env-id Breakout-v5 --num-envs 8

Nothing is learned, copied or counted. Prints `SPS: x`.
"""

import argparse
import importlib
import inspect
import sys
import time
from pathlib import Path

import numpy as np

import torch


def steps_per_second(envs, num_envs: int, device) -> float:
    """Environment steps per second with random actions, in 5 seconds after a first one."""
    rng, space = np.random.default_rng(0), envs.single_action_space
    if hasattr(space, "n"):
        actions = rng.integers(0, space.n, (1024, num_envs))  # (steps, N)
    else:
        actions = rng.uniform(space.low, space.high, (1024, num_envs, *space.shape))
        actions = actions.astype(np.float32)  # (steps, N, A)
    if device:  # a tensor of it is read to wait for it
        actions = torch.from_numpy(actions).to(device)
    start, steps, warm = time.perf_counter(), 0, False
    while True:
        envs.step(actions[steps % len(actions)])
        steps += 1
        if device and steps % 16 == 0:
            envs.elapsed[0].item()
        elapsed = time.perf_counter() - start
        if not warm and elapsed > 1:
            start, steps, warm = time.perf_counter(), 0, True
        elif warm and elapsed > 5:
            return steps * num_envs / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("script", help="a script of ppo/, whose make_envs makes the environments")
    parser.add_argument("--env-id", required=True)
    parser.add_argument("--num-envs", type=int, required=True)
    given = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "ppo"))
    script = importlib.import_module(given.script)
    args = script.Args(env_id=given.env_id, num_envs=given.num_envs)
    seeds = np.random.SeedSequence(args.seed).generate_state(args.num_envs) >> 1
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    takes = inspect.signature(script.make_envs).parameters
    more = {name: x for name, x in (("seeds", seeds), ("device", device)) if name in takes}
    envs = script.make_envs(args, **more)
    if hasattr(envs, "simulate"):  # MuJoCo Warp's physics, captured as in the fast version
        fast = importlib.import_module(f"{given.script.removesuffix('_torchcompile')}_torchcompile")
        envs.simulate = fast.captured_by_warp(envs.simulate, envs.device)
        envs.derive = fast.captured_by_warp(envs.derive, envs.device)
    agents = len(getattr(envs, "agents", [0]))
    envs.reset(*[seeds.tolist()] * (agents > 1))  # PettingZoo's want one for each
    rows = args.num_envs * agents
    sps = steps_per_second(envs, rows, more.get("device")) / agents
    print(f"SPS: {sps:.1f}")


if __name__ == "__main__":
    main()
