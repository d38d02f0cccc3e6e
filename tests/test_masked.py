"""Actions that are not possible: never taken, in no loss; what happens without a mask."""

import json
import runpy
import sys

import doors
import gymnasium as gym
import numpy as np
import pytest
from helpers import PPO, TINY, run_main
from test_gymnasium import no_compiling

import torch

PAIR = ["ppo_masked", "ppo_masked_torchcompile"]


class Forgets(doors.Doors):
    """Gives no mask after 9 observations, or from the start one of another shape."""

    def __init__(self, shape=None):
        self.shape, self.seen = shape, 0

    def look(self, closed=False):
        obs, info = super().look(closed)
        self.seen += 1
        if self.shape:
            return obs, {"action_mask": np.ones(self.shape, np.int8)}
        return obs, info if self.seen < 10 else {}


gym.register("Forgets-v0", Forgets)
gym.register("OtherShape-v0", lambda: Forgets((4,)))


@pytest.mark.parametrize("name", PAIR)
def test_no_closed_door_is_tried(name, tmp_path):
    """In training, by PyTorch and by NumPy, and in evaluation: Doors-v0 raises where one is."""
    flags = [*TINY, "--env-id", "Doors-v0", "--num-envs", 4, "--num-steps", 32]
    flags += ["--total-timesteps", 1280, "--learning-rate", 0.01]
    edit = None
    if name.endswith("compile"):
        flags, edit = [*flags, "--compile"], no_compiling
    run = run_main(name, *flags, runs_dir=tmp_path, edit=edit)
    rows = run.storage
    taken = rows["masks"].gather(2, rows["actions"].unsqueeze(2)).squeeze(2)  # (T + 1, N)
    ended = torch.from_numpy(run.host_dones == 1)
    assert taken[:-1][~ended[:-1]].all() and not rows["masks"][ended].all()
    assert (rows["masks"].sum(2)[~ended] == 1).any(), "at times one door alone is open"
    (run_dir,) = tmp_path.iterdir()
    script = PPO / "ppo_eval.py"
    for way in ([], ["--deterministic"]):
        argv, sys.argv = sys.argv, [str(script), str(run_dir), "--episodes", "20", *way]
        try:
            runpy.run_path(str(script), run_name="__main__")
        finally:
            sys.argv = argv
        assert len(json.loads((run_dir / "eval.json").read_text())["returns"]) == 20


def test_another_shape_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        run_main("ppo_masked", *TINY, "--env-id", "OtherShape-v0", runs_dir=tmp_path)
    assert ended.value.code == 2 and not [*tmp_path.iterdir()]
    said = 'OtherShape-v0: info["action_mask"] has the shape (2, 4), not (2, 5)'
    assert said in capsys.readouterr().err


def test_a_mask_that_is_missing_later(tmp_path):
    """The run ends with an error that says where; its last checkpoint is whole."""
    flags = [*TINY, "--env-id", "Forgets-v0", "--num-steps", 4, "--total-timesteps", 24]
    with pytest.raises(ValueError, match='no info."action_mask". from environment 0'):
        run_main("ppo_masked", *flags, "--checkpoint-interval", 1, runs_dir=tmp_path)
    (path,) = tmp_path.glob("*/checkpoint.pt")
    assert torch.load(path, weights_only=True)["global_step"] == 8
