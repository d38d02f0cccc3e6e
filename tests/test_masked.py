"""Actions that are not possible: never taken, in no loss; masks of other kinds, or none."""

import itertools
from functools import partial

import doors
import gymnasium as gym
import pytest
from helpers import TINY, load, run_main

import torch


class Otherwise(doors.Doors):
    """Says the same in another way, or something else."""

    def __init__(self, way):
        self.way = way

    def look(self, closed=False):
        obs, info = super().look(closed)
        return obs, {"action_mask": self.way(info["action_mask"])}


class Forgets(doors.Doors):
    """Gives no mask after 7 observations; if one_of_two, every second one that is made goes on."""

    made = itertools.count()

    def __init__(self, one_of_two=False):
        self.last = 1000 if one_of_two and next(self.made) % 2 else 7
        self.seen = 0

    def look(self, closed=False):
        obs, info = super().look(closed)
        self.seen += 1
        return obs, info if self.seen <= self.last else {}


WAYS = {"Lists-v0": list, "Tuples-v0": tuple, "Bools-v0": lambda mask: mask.astype(bool)}
WRONG = {"OtherShape-v0": lambda mask: mask[:4], "Weights-v0": lambda mask: 2 * mask}
for env_id, way in (WAYS | WRONG).items():
    gym.register(env_id, partial(Otherwise, way), max_episode_steps=12)
gym.register("Forgets-v0", Forgets)
gym.register("OneForgets-v0", partial(Forgets, one_of_two=True))


def test_no_closed_door_is_tried(tmp_path):
    """In training and in evaluation: Doors-v0 raises where one is."""
    flags = [*TINY, "--env-id", "Doors-v0", "--num-envs", 4, "--num-steps", 32]
    flags += ["--total-timesteps", 1280, "--learning-rate", 0.01]
    run = run_main("ppo_masked", *flags, runs_dir=tmp_path)
    masks, actions = run.storage["obs"][..., 3:], run.storage["actions"]
    taken = masks.gather(2, actions.unsqueeze(2)).squeeze(2)  # (T + 1, N)
    ended = torch.from_numpy(run.dones == 1)
    assert (taken[:-1][~ended[:-1]] == 1).all() and not masks[ended].all()
    assert (masks.sum(2)[~ended] == 1).any(), "at times one door alone is open"
    evaluation = load("ppo_eval")
    policy = evaluation.load(run.run_dir)
    for deterministic in (False, True):
        for seed in range(10):
            assert evaluation.play(policy, seed, deterministic, 1000).actions


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


@pytest.mark.parametrize(("env_id", "found"), [("Forgets-v0", 0), ("OneForgets-v0", 1)])
def test_a_mask_that_is_missing_later(env_id, found, tmp_path):
    """The run ends with an error that says so; its last checkpoint is whole."""
    flags = [*TINY, "--env-id", env_id, "--num-steps", 4, "--total-timesteps", 24]
    with pytest.raises(ValueError, match=f"but {found} of 2 environments gave"):
        run_main("ppo_masked", *flags, "--checkpoint-interval", 1, runs_dir=tmp_path)
    (path,) = tmp_path.glob("*/checkpoint.pt")
    assert torch.load(path, weights_only=True)["global_step"] == 8
