"""Masks of other kinds, or none. What they do: test_reference, and test_eval, where a door that is
closed raises."""

import itertools
from functools import partial

import doors
import gymnasium as gym
import pytest
from helpers import TINY, run_main

import torch


class Otherwise(doors.Doors):
    """Says the same in another way, or something else."""

    def __init__(self, way):
        self.way = way

    def look(self, closed=False):
        obs, info = super().look(closed)
        return obs, {"action_mask": self.way(info["action_mask"])}


class Forgets(doors.Doors):
    """Every second one that is made gives no mask after 7 observations."""

    made = itertools.count()

    def __init__(self):
        self.left = 7 if next(self.made) % 2 else 1000

    def look(self, closed=False):
        obs, info = super().look(closed)
        self.left -= 1
        return obs, info if self.left >= 0 else {}


WAYS = {"Lists-v0": list, "Tuples-v0": tuple, "Bools-v0": lambda mask: mask.astype(bool)}
WRONG = {"OtherShape-v0": lambda mask: mask[:4], "Weights-v0": lambda mask: 2 * mask}
for env_id, way in (WAYS | WRONG).items():
    gym.register(env_id, partial(Otherwise, way), max_episode_steps=12)
gym.register("Forgets-v0", Forgets)


def test_a_mask_in_another_way(tmp_path):
    """As a list, as a tuple, as an array of bool: the same run."""
    runs = [
        run_main("ppo_masked", *TINY, "--env-id", env_id, runs_dir=tmp_path / env_id)
        for env_id in ("Doors-v0", *WAYS)
    ]
    masks = runs[0].storage["obs"][..., 3:]
    assert masks.any() and not masks.all()
    for run in runs[1:]:
        assert all(torch.equal(x, runs[0].storage[key]) for key, x in run.storage.items())


@pytest.mark.parametrize("env_id", WRONG)
def test_what_is_no_mask_is_refused(env_id, tmp_path):
    """Before a folder is made."""
    message = r"must be \(2, 5\) of 0 and 1, but 2 of 2 environments gave \["
    with pytest.raises(ValueError, match=message):
        run_main("ppo_masked", *TINY, "--env-id", env_id, runs_dir=tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_mask_that_is_missing_later(tmp_path):
    """The run ends with an error that says so; its last checkpoint is whole."""
    flags = [*TINY, "--env-id", "Forgets-v0", "--num-steps", 4, "--total-timesteps", 24]
    with pytest.raises(ValueError, match="but 1 of 2 environments gave"):
        run_main("ppo_masked", *flags, "--checkpoint-interval", 1, runs_dir=tmp_path)
    (path,) = tmp_path.glob("*/checkpoint.pt")
    assert torch.load(path, weights_only=True)["global_step"] == 8
