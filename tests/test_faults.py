"""What public reports found on other people's machines: simulators that blow up, fail to close or
quit, or change the folder; two runs at once."""

import os
import sys
import time
from functools import partial

import doors
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from helpers import (
    TINY,
    checkpoint_of,
    envpool_of_gymnasium,
    evaluate,
    run_main,
    scalars,
    summary_of,
)


class BlowsUp(doors.Still):
    """Ends after 3 steps with an observation of nan and inf; or says nan where nothing ends.

    where: "end", "limit" (a truncation), "middle", "reward"; of every second environment.
    """

    made = 0
    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,))

    def __init__(self, where, continuous):
        self.where, self.bad = where, BlowsUp.made % 2 == 1
        BlowsUp.made += 1
        box = gym.spaces.Box(-1.0, 1.0, (1,))
        self.action_space = box if continuous else gym.spaces.Discrete(2)

    def step(self, action):
        self.t += 1
        ends, cut = self.t == 3, self.where == "limit"
        obs = np.full(3, self.t, np.float32)
        if self.bad and self.t == {"end": 3, "limit": 3, "middle": 2}.get(self.where):
            obs = np.array([np.nan, np.inf, 1.0], np.float32)
        reward = np.nan if self.bad and self.where == "reward" and self.t == 2 else 1.0
        return obs, reward, ends and not cut, ends and cut, {}


for where in ("end", "limit", "middle", "reward"):
    for continuous in (False, True):
        gym.register(f"{where}{continuous}-v0", partial(BlowsUp, where, continuous))


@pytest.fixture
def in_envpool_too(monkeypatch):
    monkeypatch.setattr(BlowsUp, "made", 0)
    envpool_of_gymnasium(monkeypatch)


MUJOCO, POOL = "ppo_continuous_action", "ppo_continuous_action_envpool"


@pytest.mark.parametrize("name", [MUJOCO, POOL])
def test_a_simulator_that_ends_on_nan(name, tmp_path, in_envpool_too):
    """The episode is over: its other rows are learned from."""
    run = run_main(name, *TINY, "--env-id", "endTrue-v0", runs_dir=tmp_path)
    assert run.summary["complete"] and run.storage["obs"].isfinite().all()
    assert all(value.isfinite().all() for value in run.agent.state_dict().values())
    assert run.terminations.sum() > 2


@pytest.mark.parametrize(
    ("name", "env_id"),
    [
        ("ppo", "rewardFalse-v0"),
        (MUJOCO, "middleTrue-v0"),
        (MUJOCO, "rewardTrue-v0"),
        (MUJOCO, "limitTrue-v0"),  # its value is needed: no 0 stands for it
        (POOL, "limitTrue-v0"),
        (POOL, "middleTrue-v0"),
    ],
)
def test_nan_ends_the_run(name, env_id, tmp_path, in_envpool_too):
    """Wherever else it comes from: before it gets into a checkpoint."""
    with pytest.raises(FloatingPointError, match="in iteration 1 .*policy_loss.* are .*nan"):
        run_main(name, *TINY, "--env-id", env_id, runs_dir=tmp_path)
    (run_dir,) = tmp_path.iterdir()
    assert {path.name.split(".")[0] for path in run_dir.iterdir()} == {"events"}


class Bandit(doors.Still):
    """Ends with its first step."""

    length = 1


gym.register("BanditFalse-v0", Bandit)
box = gym.spaces.Box(-1.0, 1.0, (2,))
gym.register("BanditTrue-v0", lambda: type("", (Bandit,), {"action_space": box})())


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", ["ppo", "ppo_rnd", "ppo_lstm", MUJOCO])
def test_a_rollout_without_a_transition(name, tmp_path):
    """Every second one, where it has one step as episodes have: nothing is learned from it, and
    NumPy has nothing to warn of."""
    flags = "--num-envs 4 --num-steps 1 --num-minibatches 2 --total-timesteps 24".split()
    flags += ["--env-id", f"Bandit{name == MUJOCO}-v0"]
    flags += ["--hide"] if name == "ppo_lstm" else []
    run = run_main(name, *flags, runs_dir=tmp_path)
    assert run.episodic_returns == [1.0] * 12 and not run.valid.any()
    curves = scalars(run.run_dir)["losses/explained_variance"]  # the others' returns are equal
    assert len(curves) == 6 and np.isnan([value for _, value in curves]).all()


# Environments that do as they like


class Fails(CartPoleEnv):
    """Its close raises."""

    def close(self):
        raise ZeroDivisionError


class Wanders(CartPoleEnv):
    """Changes the folder of the process in which it runs."""

    def step(self, action):
        os.chdir(os.path.dirname(sys.executable))
        return super().step(action)


class Quits(CartPoleEnv):
    """Ends the process, as some simulators do, in its 20th step."""

    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 20:
            sys.exit(5)
        return super().step(action)


for kind in (Fails, Wanders, Quits):
    gym.register(f"{kind.__name__}-v0", kind)


def test_environments_that_fail_to_close(tmp_path, capsys):
    """The results are there, those of an evaluation too."""
    with pytest.raises(ZeroDivisionError):
        run_main("ppo", *TINY, "--env-id", "Fails-v0", runs_dir=tmp_path)
    (run_dir,) = tmp_path.iterdir()
    assert summary_of(tmp_path)["complete"] and "/Fails-v0__ppo__1__" in capsys.readouterr().out
    evaluate(run_dir, "--episodes", 2)
    assert "mean" in capsys.readouterr().out and (run_dir / "eval.json").exists()


def test_environments_that_change_the_folder(tmp_path, monkeypatch):
    """A relative --runs-dir is meant from where the run began."""
    monkeypatch.chdir(tmp_path)
    run_main("ppo", *TINY, "--env-id", "Wanders-v0", runs_dir="runs")
    assert os.getcwd() != str(tmp_path) and summary_of(tmp_path / "runs")["complete"]
    assert checkpoint_of(tmp_path / "runs")["global_step"] == 48


def test_environments_that_quit(tmp_path, monkeypatch):
    """With their status; the last checkpoint is there, and no summary; so do those of an
    evaluation, whose status could be 0."""
    with pytest.raises(SystemExit) as ended:
        flags = ["--env-id", "Quits-v0", "--checkpoint-interval", 1]
        run_main("ppo", *TINY, *flags, runs_dir=tmp_path)
    assert ended.value.code == 5
    (run_dir,) = tmp_path.iterdir()
    assert checkpoint_of(tmp_path)["global_step"] == 32
    assert not (run_dir / "summary.json").exists()
    monkeypatch.setattr(Quits, "steps", 15)
    with pytest.raises(RuntimeError, match="an environment ended the process"):
        evaluate(run_dir, "--episodes", 2)
    assert not (run_dir / "eval.json").exists()


# Two runs, one folder; one run, two environments; other systems


def test_two_runs_have_two_folders(tmp_path, monkeypatch):
    """In the same second; where the process has the same number too, the second one raises."""
    monkeypatch.setattr(time, "strftime", lambda text: "261125-120000")
    for number in (1, 2):
        monkeypatch.setattr(os, "getpid", lambda: number)  # noqa: B023
        run_main("ppo", *TINY, runs_dir=tmp_path)
    assert len([*tmp_path.iterdir()]) == 2
    with pytest.raises(FileExistsError):
        run_main("ppo", *TINY, runs_dir=tmp_path)
