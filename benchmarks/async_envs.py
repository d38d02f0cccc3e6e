"""What the patch async_envs buys where a simulator's step takes milliseconds.

    python benchmarks/async_envs.py              # 3 interleaved rounds, some 15 minutes on 2 cores

CartPole whose step keeps a core busy for so many ms more, 8 environments: steps per second with
each environment in a process of its own and without, by ppo with the patch, and by
Stable-Baselines3 in SubprocVecEnv and DummyVecEnv, with the same hyper-parameters. A run adds a
line to results/async_envs.jsonl.
"""

import argparse
import json
import shlex
import sys
import tempfile
import time
from functools import partial
from itertools import product
from pathlib import Path

import gymnasium as gym
from fork import IDEAS, apply
from lib.records import (
    RESULTS,
    ROOT,
    SPS,
    append,
    code,
    commit,
    machine,
    matches,
    now,
    python,
    run_process,
    settings,
    timed_lines,
)

ENVS = {0.1: 4000, 1: 1500, 5: 500}  # ms of a step: twice the steps/s to expect, for its length
SECONDS = 20  # of a run, about


class Slow(gym.Wrapper):
    """Each step takes so many ms of a core longer."""

    def __init__(self, env, ms):
        super().__init__(env)
        self.seconds = ms / 1000

    def step(self, action):
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass
        return self.env.step(action)


def make(ms):
    return Slow(gym.make("CartPole-v1", disable_env_checker=True), ms)


for ms in ENVS:
    gym.register(f"Slow{ms}-v0", partial(make, ms))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the records")
    args = parser.parse_args()
    common = {"code": code("ppo"), "commit": commit(), "session": now(), **machine()}
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "ppo.py"
        path.write_text((ROOT / "ppo" / "ppo.py").read_text())
        apply(IDEAS / "async_envs.patch", path, "ppo.py")
        env = settings("ppo") | {"PYTHONPATH": str(ROOT / "benchmarks")}
        systems = product(("ppo", "sb3"), (False, True))
        for n, ms, (system, apart) in product(range(args.rounds), ENVS, list(systems)):
            steps = int(SECONDS * ENVS[ms] / 2) // 256 * 256
            flags = ["--env-id", f"async_envs:Slow{ms}-v0", "--num-envs", "8", "--num-steps", "32"]
            flags += ["--total-timesteps", str(steps)]
            if system == "ppo":
                flags += ["--no-cuda", *["--async-envs"] * apart]
                command = ["python", "ppo.py", *flags]
                run_process([sys.executable, str(path), *flags, "--runs-dir", place], env)
                (found,) = (x for x in Path(place).glob("*/summary.json"))
                sps = json.loads(found.read_text())["sps"]
                found.unlink()
            else:
                flags += ["--subproc"] * apart
                command = ["python", "benchmarks/peers/sb3.py", "ppo", *flags]
                lines = timed_lines(python(command[1], "ppo", *flags), env)
                sps = [float(match[1]) for _, match in matches(SPS, lines)][-1]
            case = {"system": system, "ms": ms, "async": apart, "round": n, "sps": sps}
            case |= common | {"command": shlex.join(command)}
            append(args.results / "async_envs.jsonl", case)
            print(f"{ms} ms, {shlex.join(command)}: {sps} steps/s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
