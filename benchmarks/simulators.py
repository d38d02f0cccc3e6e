"""Whether what was learned in EnvPool scores as much in Gymnasium's own simulator of the task.

    python benchmarks/simulators.py runs/<run> ...

Runs are those of ppo_envpool, of a fork of it by --patch minigrid, or of ppo_pixels on the fast
CarRacing of examples/my_pixels.py. ppo_eval plays 100 episodes of each by its own script, and 100
by ppo.py, which makes Gymnasium's environment of that id; for MiniGrid's ids that of
examples/minigrid_envs.py, for the car the other one. Each adds a line to results/simulators.jsonl.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from lib.records import RESULTS, ROOT, append, commit, machine, now, python, run_process

MADE = "gym.make(args.env_id, "  # as ppo.py and ppo_pixels.py have it


def other(env_id: str) -> str:
    """The text of a script that makes Gymnasium's environment of that task."""
    name, made = "ppo", MADE
    if "MiniGrid" in env_id:
        made = 'gym.make(f"minigrid_envs:OneHot-{args.env_id}", '
    elif ":Fast" in env_id:
        name, made = "ppo_pixels", 'gym.make(args.env_id.replace(":Fast", ":"), '
    text = (ROOT / "ppo" / f"{name}.py").read_text()
    assert text.count(MADE) == 1
    return text.replace(MADE, made)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    parser.add_argument("--episodes", type=int, default=100, help="in each simulator")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the records")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "other.py"
        for run in args.runs:
            about = json.loads((run / "summary.json").read_text())["args"]
            script.write_text(other(about["env_id"]))
            for simulator, more in (("EnvPool", []), ("Gymnasium", ["--script", script])):
                flags = [run, "--episodes", args.episodes, *more]
                env = {"PYTHONPATH": os.fspath(ROOT / "examples")}
                run_process(python("ppo/ppo_eval.py", *flags), env)
                found = json.loads((run / "eval.json").read_text())
                played = {key: found[key] for key in ("mean", "std", "episodes")}
                case = {"env_id": about["env_id"], "seed": about["seed"], "simulator": simulator}
                case |= {"date": now(), "commit": commit(), **machine()}
                append(args.results / "simulators.jsonl", case | played)
                print(*case.values(), *played.values(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
