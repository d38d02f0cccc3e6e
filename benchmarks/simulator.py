"""The simulator alone: steps/s of a script's environments with actions drawn beforehand.

    python benchmarks/simulator.py ppo_atari_envpool --num-envs 8

Prints one JSON object. The environments are the script's own; actions are random, and nothing is
learned, copied or counted.
"""

import argparse
import importlib
import json
import sys
import time

import numpy as np
from records import ROOT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("script", help="a script of ppo/, whose make_envs makes the environments")
    parser.add_argument("--env-id")
    parser.add_argument("--num-envs", type=int)
    parser.add_argument("--seconds", type=float, default=5.0, help="measured after 1 second")
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT / "ppo"))
    script = importlib.import_module(given.script)
    args = script.Args()
    args.env_id = given.env_id or args.env_id
    args.num_envs = given.num_envs or args.num_envs
    envs = script.make_envs(args)
    envs.reset()
    rng = np.random.default_rng(0)
    space = envs.single_action_space
    if hasattr(space, "n"):
        actions = rng.integers(0, space.n, (1024, args.num_envs))  # (steps, N)
    else:
        actions = rng.uniform(space.low, space.high, (1024, args.num_envs, *space.shape))
        actions = actions.astype(np.float32)  # (steps, N, A)
    start, steps, warm = time.perf_counter(), 0, False
    while True:
        envs.step(actions[steps % len(actions)])
        steps += 1
        elapsed = time.perf_counter() - start
        if not warm and elapsed > 1:
            start, steps, warm = time.perf_counter(), 0, True
        elif warm and elapsed > given.seconds:
            break
    print(json.dumps({"sps": steps * args.num_envs / elapsed}))


if __name__ == "__main__":
    main()
