"""What public reports found on other people's machines: simulators that blow up, fail to close or
quit, environments that draw from global generators or change the folder, two runs at once."""

import json
import os
import random
import re
import runpy
import subprocess
import sys
import time
import zipfile
from functools import partial
from types import SimpleNamespace

import envpool
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from helpers import PPO, ROOT, TINY, run_main, scalars

import torch


def finished(folder):
    """The only run's summary."""
    (path,) = folder.glob("runs/*/summary.json")
    return json.loads(path.read_text())


# 1. Numbers that are not finite


class BlowsUp(gym.Env):
    """Ends after 3 steps with an observation of nan and inf; or says nan where nothing ends.

    where: "end", "limit" (a truncation), "middle", "reward"; of the second environment alone, if
    there are more.
    """

    made = 0
    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, where, continuous):
        self.where, self.t, self.bad = where, 0, BlowsUp.made % 2 == 1
        BlowsUp.made += 1
        if continuous:
            self.action_space = gym.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.ones(3, np.float32), {}

    def step(self, action):
        self.t += 1
        obs, ends = np.full(3, self.t, np.float32), self.t == 3
        at_end = self.where in ("end", "limit")
        if self.bad and (ends if at_end else self.t == 2 and self.where == "middle"):
            obs = np.array([np.nan, np.inf, 1.0], np.float32)
        reward = np.nan if self.bad and self.where == "reward" and self.t == 2 else 1.0
        cut = self.where == "limit"
        return obs, reward, ends and not cut, ends and cut, {}


for where in ("end", "limit", "middle", "reward"):
    for continuous in (False, True):
        gym.register(f"{where}{continuous}-v0", lambda w=where, c=continuous: BlowsUp(w, c))


@pytest.fixture
def envpool_of_gymnasium(monkeypatch):
    """EnvPool's make gives Gymnasium's environments of that name."""
    BlowsUp.made = 0

    def make(env_id, env_type, num_envs, seed):
        mode = gym.vector.AutoresetMode.NEXT_STEP
        envs = gym.vector.SyncVectorEnv([lambda: gym.make(env_id)] * num_envs, autoreset_mode=mode)
        envs.spec = SimpleNamespace(config=SimpleNamespace(max_episode_steps=3))
        return envs

    monkeypatch.setattr(envpool, "make", make)


@pytest.mark.parametrize("name", ["ppo_continuous_action", "ppo_continuous_action_envpool"])
def test_a_simulator_that_ends_on_nan(name, tmp_path, envpool_of_gymnasium):
    """The episode is over: its other rows are learned from."""
    run = run_main(name, *TINY, "--env-id", "endTrue-v0", runs_dir=tmp_path)
    assert run.summary["complete"] and run.storage["obs"].isfinite().all()
    assert all(value.isfinite().all() for value in run.agent.state_dict().values())
    assert run.terminations.sum() > 2


@pytest.mark.parametrize(
    ("name", "env_id"),
    [
        ("ppo", "rewardFalse-v0"),
        ("ppo_continuous_action", "middleTrue-v0"),
        ("ppo_continuous_action", "rewardTrue-v0"),
        ("ppo_continuous_action", "limitTrue-v0"),  # its value is needed: no 0 stands for it
        ("ppo_continuous_action_envpool", "limitTrue-v0"),
        ("ppo_continuous_action_envpool", "middleTrue-v0"),
    ],
)
def test_nan_ends_the_run(name, env_id, tmp_path, envpool_of_gymnasium):
    """Wherever else it comes from: before it gets into a checkpoint."""
    with pytest.raises(FloatingPointError, match="in iteration 1 .*policy_loss.* are .*nan"):
        run_main(name, *TINY, "--env-id", env_id, runs_dir=tmp_path)
    (run_dir,) = tmp_path.iterdir()
    assert {path.name.split(".")[0] for path in run_dir.iterdir()} == {"events"}


class Bandit(gym.Env):
    """Ends with its first step."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (3,))

    def __init__(self, continuous):
        actions = (gym.spaces.Discrete(2), gym.spaces.Box(-1.0, 1.0, (2,)))
        self.action_space = actions[continuous]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(3, np.float32), {}

    def step(self, action):
        return np.ones(3, np.float32), 1.0, True, False, {}


for continuous in (False, True):
    gym.register(f"Bandit{continuous}-v0", partial(Bandit, continuous))


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", ["ppo", "ppo_rnd", "ppo_lstm", "ppo_continuous_action"])
def test_a_rollout_without_a_transition(name, tmp_path):
    """Every second one, where it has one step as episodes have: nothing is learned from it, and
    NumPy has nothing to warn of."""
    flags = "--num-envs 4 --num-steps 1 --num-minibatches 2 --total-timesteps 24".split()
    flags += ["--env-id", f"Bandit{'continuous' in name}-v0"]
    flags += ["--hide"] if name == "ppo_lstm" else []
    run = run_main(name, *flags, runs_dir=tmp_path)
    assert run.episodic_returns == [1.0] * 12 and not run.valid.any()
    curves = scalars(run.run_dir)["losses/explained_variance"]
    assert len(curves) == 6 and np.isnan([value for _, value in curves[1::2]]).all()


# 2. Environments that do as they like


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


class Global(gym.Env):
    """Draws from the generators that all share."""

    observation_space = gym.spaces.Box(0.0, 1.0, (2,))
    action_space = gym.spaces.Discrete(2)

    def draw(self):
        return np.array([random.random(), np.random.random()], np.float32)

    def reset(self, *, seed=None, options=None):
        return self.draw(), {}

    def step(self, action):
        return self.draw(), 1.0, random.random() < 0.2, False, {}


gym.register("Fails-v0", Fails)
gym.register("Wanders-v0", Wanders)
gym.register("Quits-v0", Quits)
gym.register("Global-v0", Global)


def test_environments_that_fail_to_close(tmp_path, capsys, monkeypatch):
    """The results are there, those of an evaluation too."""
    with pytest.raises(ZeroDivisionError):
        run_main("ppo", *TINY, "--env-id", "Fails-v0", runs_dir=tmp_path / "runs")
    assert finished(tmp_path)["complete"] and "/Fails-v0__ppo__1__" in capsys.readouterr().out
    (run_dir,) = (tmp_path / "runs").iterdir()
    monkeypatch.setattr("sys.argv", ["x", str(run_dir), "--episodes", "2"])
    runpy.run_path(str(PPO / "ppo_eval.py"), run_name="__main__")
    assert "mean" in capsys.readouterr().out and (run_dir / "eval.json").exists()


def test_environments_that_change_the_folder(tmp_path, monkeypatch):
    """A relative --runs-dir is meant from where the run began."""
    monkeypatch.chdir(tmp_path)
    run_main("ppo", *TINY, "--env-id", "Wanders-v0", runs_dir="runs")
    assert os.getcwd() != str(tmp_path) and finished(tmp_path)["complete"]
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert (run_dir / "checkpoint.pt").exists()


def test_environments_that_quit(tmp_path):
    """With their status; the last checkpoint is there, and no summary."""
    with pytest.raises(SystemExit) as ended:
        flags = ["--env-id", "Quits-v0", "--checkpoint-interval", 1]
        run_main("ppo", *TINY, *flags, runs_dir=tmp_path)
    assert ended.value.code == 5
    (run_dir,) = tmp_path.iterdir()
    assert torch.load(run_dir / "checkpoint.pt", weights_only=True)["global_step"] == 32
    assert not (run_dir / "summary.json").exists()


def test_environments_that_quit_an_evaluation(tmp_path, monkeypatch):
    monkeypatch.setattr(Quits, "steps", -1000)
    run_main("ppo", *TINY, "--env-id", "Quits-v0", runs_dir=tmp_path)
    monkeypatch.setattr(Quits, "steps", 10)
    (run_dir,) = tmp_path.iterdir()
    monkeypatch.setattr("sys.argv", ["ppo_eval.py", str(run_dir)])
    with pytest.raises(RuntimeError, match="an environment ended the process"):
        runpy.run_path(str(PPO / "ppo_eval.py"), run_name="__main__")
    assert not (run_dir / "eval.json").exists()


def test_the_seed_is_that_of_global_generators_too(tmp_path):
    def weights(folder, seed):
        flags = [*TINY, "--env-id", "Global-v0", "--seed", seed]
        agent = run_main("ppo", *flags, runs_dir=tmp_path / folder).agent
        return torch.cat([value.flatten() for value in agent.state_dict().values()])

    one = weights("one", 1)
    assert torch.equal(one, weights("again", 1)) and not torch.equal(one, weights("two", 2))


# 3. Two runs, one folder; one run, two environments


def test_two_runs_have_two_folders(tmp_path, monkeypatch):
    """In the same second; where the process has the same number too, the second one raises."""
    monkeypatch.setattr(time, "strftime", lambda text: "261125-120000")
    for number in (1, 2):
        monkeypatch.setattr(os, "getpid", lambda: number)  # noqa: B023
        run_main("ppo", *TINY, runs_dir=tmp_path)
    assert len([*tmp_path.iterdir()]) == 2
    with pytest.raises(FileExistsError):
        run_main("ppo", *TINY, runs_dir=tmp_path)


def test_resumed_with_another_environment(tmp_path):
    """One with the same spaces, a curriculum, is taken; of others PyTorch names the sizes."""
    run_main("ppo", *TINY, "--env-id", "Wanders-v0", runs_dir=tmp_path)
    (run_dir,) = tmp_path.iterdir()
    flags = ["--resume", run_dir, "--total-timesteps", 96, "--env-id"]
    run = run_main("ppo", *flags, "CartPole-v1", runs_dir="unused")
    assert run.global_step == 96
    before = (run_dir / "checkpoint.pt").read_bytes()
    flags[3] = 192
    with pytest.raises(RuntimeError, match=r"size mismatch for critic.0.weight"):
        run_main("ppo", *flags, "Acrobot-v1", runs_dir="unused")
    assert (run_dir / "checkpoint.pt").read_bytes() == before


def test_weights_and_biases_takes_any_name(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **x: calls.append(x)))
    flags = ["--env-id", "doors:CartPole-v1", "--exp-name", "try #2", "--track"]
    run_main("ppo", *TINY, *flags, runs_dir=tmp_path)
    (run_dir,) = tmp_path.iterdir()
    assert calls[0]["id"] == run_dir.name and re.fullmatch(r"[\w.-]+", run_dir.name)


# 4. Evaluation


class Odd(gym.Env):
    """CartPole's shapes, and a game that never ends; so many actions."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (4,))

    def __init__(self, actions):
        self.action_space = gym.spaces.Discrete(actions)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action):
        return np.zeros(4, np.float32), 1.0, False, False, {}


gym.register("Endless-v0", lambda: Odd(2))
gym.register("Three-v0", lambda: Odd(3))


def evaluate(run_dir, *flags, monkeypatch, capsys):
    """Status and output of ppo_eval."""
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["ppo_eval.py", str(run_dir), *map(str, flags)])
    try:
        runpy.run_path(str(PPO / "ppo_eval.py"), run_name="__main__")
        status = 0
    except SystemExit as ended:
        status = ended.code
    return status, capsys.readouterr()


def test_games_that_never_end(tmp_path, monkeypatch, capsys):
    """Are cut, and it is said; other actions, other spaces, unknown environments are refused."""
    run_main("ppo", *TINY, "--env-id", "Endless-v0", runs_dir=tmp_path)
    (run_dir,) = tmp_path.iterdir()
    more = {"monkeypatch": monkeypatch, "capsys": capsys}
    status, printed = evaluate(run_dir, "--episodes", 2, "--max-steps", 50, **more)
    assert status == 0 and "2 of 2 games were cut after 50 steps" in printed.out
    result = json.loads((run_dir / "eval.json").read_text())
    assert result["cut"] == 2 and result["returns"] == [50.0, 50.0]
    status, printed = evaluate(
        run_dir, "--episodes", 1, "--max-steps", 5, "--capture-video", **more
    )
    assert "nothing renders Endless-v0" in str(status) and "Traceback" not in printed.err
    good = torch.load(run_dir / "checkpoint.pt", weights_only=True)
    for env_id, message in (
        ("Three-v0", "size mismatch for actor.4.weight"),
        ("Acrobot-v1", "size mismatch for critic.0.weight"),
        ("Nowhere-v0", "Nowhere"),
    ):
        torch.save({**good, "args": {**good["args"], "env_id": env_id}}, run_dir / "checkpoint.pt")
        status, printed = evaluate(run_dir, **more)
        line = printed.err.splitlines()[-1]
        assert status == 2 and message in line and "error: argument run: " in line, env_id


# 5. Shells, platforms


def test_other_systems(monkeypatch):
    """Without sched_getaffinity, as on macOS and Windows."""
    monkeypatch.delattr(os, "sched_getaffinity")
    script = runpy.run_path(str(PPO / "ppo_atari_envpool_multigpu.py"), run_name="other")
    assert script["CORES"] == os.cpu_count()


def test_run_sh_by_a_link(tmp_path):
    link = tmp_path / "ppo-run"
    link.symlink_to(ROOT / "run.sh")
    done = subprocess.run([link, "nothing"], capture_output=True, text=True)
    assert done.returncode == 2 and "there are: ppo " in done.stderr


def test_run_sh_says_that_a_blank_stops_compiling(tmp_path):
    """PyTorch issue 191010."""
    clone = tmp_path / "a clone"
    (clone / "ppo").mkdir(parents=True)
    for path in ("run.sh", "ppo/ppo.py"):
        (clone / path).write_text((ROOT / path).read_text())
    command = ["bash", str(clone / "run.sh"), "ppo", "--compile"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHON": "/bin/false"})
    assert "blank" in done.stderr.splitlines()[0] and "191010" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "status", "word"),
    [("target", 0, "a package"), ("prefix", 1, "somewhere else than in ")],
)
def test_pip_that_installs_elsewhere(setting, status, word, tmp_path):
    """By its own settings: overruled, or said, and not taken for a set-up at the next call.
    PYTHONSAFEPATH, too, hides what lies beside a program, and is overruled."""
    info = "tiny-1.dist-info"
    with zipfile.ZipFile(tmp_path / "tiny-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    clone = tmp_path / "clone"
    for path, text in {
        "run.sh": (ROOT / "run.sh").read_text(),
        "requirements/requirements.txt": "tiny\n",
        "requirements/constraints.txt": "",
        "ppo/ppo.py": "import beside, tiny\nprint('a package')",
        "ppo/beside.py": "",
    }.items():
        (clone / path).parent.mkdir(parents=True, exist_ok=True)
        (clone / path).write_text(text)
    env = {"PYTHON": sys.executable, "PATH": os.environ["PATH"], "PYTHONSAFEPATH": "1"}
    env |= {f"PIP_{setting.upper()}": str(tmp_path / "else"), "PIP_NO_INDEX": "1"}
    env |= {"PIP_FIND_LINKS": str(tmp_path)}
    for _ in range(2):
        command = ["bash", str(clone / "run.sh"), "ppo"]
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        assert done.returncode == status and word in done.stdout + done.stderr, done.stderr
