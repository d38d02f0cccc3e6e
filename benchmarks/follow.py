"""Scores each new checkpoint of a run while it trains, and keeps the best.

    ./run.sh ppo_eval runs/<run> --follow --episodes 50   # in a second terminal

A checkpoint is copied and played by ppo_eval, whose flags these are, at a low priority, until the
run has left its summary. Curves are `eval/mean_return` and, where `info` tells it, `eval/success`;
the best by return is runs/<run>/followed/best, a folder for ppo_eval. One that comes while another
is played may be left out, never the last.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from lib.records import ROOT

from torch.utils.tensorboard import SummaryWriter


def changed(path: Path) -> float:
    """When a file was written; never if there is none."""
    return path.stat().st_mtime if path.exists() else -math.inf


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--follow", action="store_true", help="as run.sh is told to start this")
    args, flags = parser.parse_known_args()
    run, best, seen = args.run, -math.inf, -math.inf
    if not [*run.glob("events.*")]:
        parser.error(f"no run in {run}")
    os.nice(10)
    place = run / "followed"
    last, kept = place / "last", place / "best"
    if (kept / "eval.json").exists():
        best = json.loads((kept / "eval.json").read_text())["mean"]
    with SummaryWriter(str(place)) as writer:
        while True:
            # events.out.tfevents.<seconds>.<host>..., one for each stretch of a run
            began = max(float(x.name.split(".")[3]) for x in run.glob("events.*"))
            ended = changed(run / "summary.json") > began
            if (new := changed(run / "checkpoint.pt")) > seen:
                seen = new
                last.mkdir(exist_ok=True)
                for name in ("checkpoint.pt", "script.py"):
                    shutil.copy(run / name, last)
                command = [sys.executable, ROOT / "ppo" / "ppo_eval.py", last, *flags]
                if status := subprocess.run(command).returncode:
                    return status
                found = json.loads((last / "eval.json").read_text())
                writer.add_scalar("eval/mean_return", found["mean"], found["global_step"])
                if "success" in found:
                    writer.add_scalar("eval/success", found["success"], found["global_step"])
                writer.flush()
                if found["mean"] > best:
                    best = found["mean"]
                    shutil.rmtree(kept, ignore_errors=True)
                    last.rename(kept)
            elif ended:
                print(f"{kept}: mean {best:.2f}, the best of this run's checkpoints")
                return 0
            time.sleep(2)


if __name__ == "__main__":
    sys.exit(main())
