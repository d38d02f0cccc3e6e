"""ppo_eval --follow: what a run saves is scored while it trains."""

import json
import subprocess
import sys
import time

import pytest
from helpers import PPO, ROOT
from lib.records import scalars

FOLLOW = [sys.executable, ROOT / "benchmarks" / "follow.py"]


@pytest.mark.slow
def test_a_run_is_followed_to_its_end(tmp_path):
    """More than one checkpoint has a point of the curve, and the best of them is kept whole."""
    flags = ["--total-timesteps", "20000", "--checkpoint-interval", "3", "--runs-dir", tmp_path]
    with subprocess.Popen([sys.executable, PPO / "ppo.py", *flags]) as training:
        while not (found := [*tmp_path.glob("*/checkpoint.pt")]):
            assert training.poll() is None
            time.sleep(0.1)
        run = found[0].parent
        done = subprocess.run([*FOLLOW, run, "--follow", "--episodes", "2"], timeout=120)
    assert done.returncode == training.returncode == 0
    curve = scalars(run / "followed", "eval/mean_return")
    best = json.loads((run / "followed" / "best" / "eval.json").read_text())
    assert (
        len(curve) > 1
        and curve[-1].step == json.loads((run / "summary.json").read_text())["global_step"]
    )
    assert best["mean"] == pytest.approx(max(x.value for x in curve))
    assert best["global_step"] in [x.step for x in curve] and best["episodes"] == 2
    assert (run / "followed" / "best" / "checkpoint.pt").exists()


def test_a_folder_that_is_no_run(tmp_path):
    done = subprocess.run([*FOLLOW, tmp_path / "none", "--follow"], capture_output=True, text=True)
    assert done.returncode == 2 and "no run" in done.stderr
