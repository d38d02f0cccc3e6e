"""ppo_eval --follow: what a run saves is scored while it trains."""

import json
import subprocess
import sys

import pytest
from helpers import ROOT, TINY, command, run_main, wait_for
from lib.records import events

FOLLOW = [sys.executable, ROOT / "benchmarks" / "follow.py"]


WON = """
import gymnasium as gym

class Won(gym.Wrapper):
    def step(self, action):
        obs, *rest, info = self.env.step(action)
        return obs, *rest, info | {"success": obs[0] > 0}

gym.register("Won-v0", lambda: Won(gym.make("CartPole-v1")))
"""


@pytest.mark.slow
def test_a_run_is_followed_to_its_end(tmp_path, monkeypatch):
    """Through a resumed run, too: each checkpoint is a point, the best of them is kept whole."""
    (tmp_path / "won.py").write_text(WON)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run_main("ppo", *TINY, "--env-id", "won:Won-v0", runs_dir=tmp_path / "runs")
    (run,) = (tmp_path / "runs").iterdir()
    (run / "summary.json").rename(tmp_path / "summary.json")  # as before its end
    with subprocess.Popen([*FOLLOW, run, "--follow", "--episodes", "2"]) as following:
        try:
            wait_for((run / "followed" / "best" / "eval.json").exists, 300)
            run_main("ppo", "--resume", run, "--total-timesteps", 96, runs_dir="unused")
            following.wait(300)
        finally:
            following.kill()
    assert following.returncode == 0
    curves = [events(run / "followed")[f"eval/{x}"] for x in ("mean_return", "success")]
    assert [[x.step for x in curve] for curve in curves] == 2 * [[48, 96]]
    best = json.loads((run / "followed" / "best" / "eval.json").read_text())
    of = {x.value: won.value for x, won in zip(*curves, strict=True)}
    assert (best["mean"], best["success"]) == pytest.approx((max(of), of[max(of)]))
    assert best["episodes"] == 2
    assert (run / "followed" / "best" / "checkpoint.pt").exists()


def test_a_folder_that_is_no_run(tmp_path):
    done = command("follow", tmp_path / "none", "--follow")
    assert done.returncode == 2 and "no run" in done.stderr
