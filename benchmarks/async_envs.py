"""What the patch async_envs buys where a simulator's step takes milliseconds.

    python benchmarks/async_envs.py              # 3 interleaved rounds, half an hour on 2 cores
    python benchmarks/async_envs.py --scripts ppo_continuous_action

CartPole by ppo and Pendulum by ppo_continuous_action, whose step keeps a core busy for so many ms
more, 8 environments: steps per second with each environment in a process of its own and without, by
the eager version with the patch, by the fast one, and by Stable-Baselines3 in DummyVecEnv and
SubprocVecEnv, with the same hyper-parameters. A run adds a line to results/async_envs.jsonl.
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

TASKS = {"ppo": "CartPole-v1", "ppo_continuous_action": "Pendulum-v1"}
CASES = {  # script and ms of a step: steps/s to expect, for a run's length
    ("ppo", 0.1): 2000,
    ("ppo", 1): 750,
    ("ppo", 5): 250,
    ("ppo_continuous_action", 2): 600,
}
STEPS = {"ppo": 32, "ppo_continuous_action": 256}  # of a rollout
SECONDS = 20  # of a run, about; five rollouts at least, of which three are burn-in


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


def make(script, ms):
    return Slow(gym.make(TASKS[script], disable_env_checker=True), ms)


for case in CASES:
    gym.register(f"Slow{case[1]}-v0", partial(make, *case))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scripts", nargs="+", choices=TASKS, default=[*TASKS])
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the records")
    args = parser.parse_args()
    common = {"commit": commit(), "session": now(), **machine()}
    cases = [case for case in CASES if case[0] in args.scripts]
    with tempfile.TemporaryDirectory() as place:
        for name in args.scripts:
            for path in (Path(place, f"{name}{end}.py") for end in ("", "_torchcompile")):
                path.write_text((ROOT / "ppo" / path.name).read_text())
                apply(IDEAS / "async_envs.patch", path, path.name)
        systems = [("eager", False), ("eager", True), ("fast", True), ("sb3", False), ("sb3", True)]
        for n, (name, ms), (system, apart) in product(range(args.rounds), cases, systems):
            env = settings(name) | {"PYTHONPATH": str(ROOT / "benchmarks")}
            rollout = 8 * STEPS[name]
            steps = max(SECONDS * CASES[name, ms] // rollout, 5) * rollout
            flags = ["--env-id", f"async_envs:Slow{ms}-v0", "--num-envs", "8"]
            flags += ["--num-steps", str(STEPS[name]), "--total-timesteps", str(steps)]
            if system == "sb3":
                flags = [name, *flags, *["--subproc"] * apart]
                command = ["python", "benchmarks/peers/sb3.py", *flags]
                lines = timed_lines(python(command[1], *flags), env)
                sps = [float(match[1]) for _, match in matches(SPS, lines)][-1]
            else:
                path = Path(place, f"{name}_torchcompile.py" if system == "fast" else f"{name}.py")
                flags += [
                    "--no-cuda",
                    *["--async-envs"] * apart,
                    *["--compile"] * (system == "fast"),
                ]
                command = ["python", path.name, *flags]
                run_process([sys.executable, str(path), *flags, "--runs-dir", place], env)
                (found,) = (x for x in Path(place).glob("*/summary.json"))
                sps = json.loads(found.read_text())["sps"]
                found.unlink()
            case = {
                "script": name,
                "system": system,
                "ms": ms,
                "async": apart,
                "round": n,
                "sps": sps,
            }
            case |= {"code": code(name), **common, "command": shlex.join(command)}
            append(args.results / "async_envs.jsonl", case)
            print(f"{ms} ms, {case['command']}: {sps} steps/s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
