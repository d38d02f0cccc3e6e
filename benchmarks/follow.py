"""Scores each new checkpoint of a run while it trains, and keeps the best.

    ./run.sh ppo_eval runs/<run> --follow --episodes 50   # in a second terminal; ends with the run

A checkpoint is copied and played by ppo_eval, whose flags these are, at the lowest priority, so
that training keeps its cores. TensorBoard shows the curve `eval/mean_return` beside the run's own;
the best is runs/<run>/followed/best, a folder for ppo_eval, with its eval.json. One that comes
while another is played may be left out, never the last.
"""

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
    os.nice(19)
    run, *flags = [x for x in sys.argv[1:] if x != "--follow"] or [""]
    run, best, seen = Path(run), -math.inf, -math.inf
    if not run.name or not run.is_dir():
        print(f"--follow: no run '{run}': give its folder first", file=sys.stderr)
        return 2
    place = run / "followed"
    last, kept = place / "last", place / "best"
    with SummaryWriter(str(place)) as writer:
        while True:
            ended = changed(run / "summary.json") >= max(changed(run / "checkpoint.pt"), 0)
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
