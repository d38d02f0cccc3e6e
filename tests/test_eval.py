"""ppo_eval: whole games by the script that trained, scored the same way twice, filmed frame by
frame; forks are played as they are, or refused."""

import copy
import importlib
import json
import os
import random
import re
import runpy
import shutil
import subprocess
import sys
from functools import cache, partial
from types import SimpleNamespace

import doors
import envpool
import gymnasium as gym
import imageio.v2 as imageio
import numpy as np
import onnxruntime
import pytest
from helpers import (
    PAIRS,
    PPO,
    ROOT,
    TINY,
    kind,
    load,
    patched,
    run_main,
    run_script,
    said,
    task,
)

import torch

EVAL = PPO / "ppo_eval.py"
GAMES = {  # that are short under an agent that has learned nothing, by task
    "atari": "Breakout-v5",
    "ale": "ALE/Breakout-v5",
    "pixels": "my_pixels:Reach-v0",
    "continuous": "Hopper-v4",
    "many": "Hopper-v4",
    "warp": "Hopper-v5",
    "small": "CartPole-v1",
    "masked": "Doors-v0",
    "together": "meadow",
    "": "CartPole-v1",
}
SHORT = {eager: GAMES[task(eager)] for eager, _ in PAIRS if "multigpu" not in eager}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run's folder of each format, by the fast script."""
    found = {}
    for eager in SHORT:
        folder = tmp_path_factory.mktemp(eager)
        flags = [*TINY, "--env-id", SHORT[eager]]
        run_main(f"{eager}_torchcompile", *flags, runs_dir=folder)
        (found[eager],) = folder.iterdir()
    return found


def checkpoint_of(run_dir):
    return torch.load(run_dir / "checkpoint.pt", weights_only=True)


def on(env_id, run_dir, folder):
    """A copy of a run whose environment is another one."""
    checkpoint = checkpoint_of(run_dir)
    checkpoint["args"]["env_id"] = env_id
    torch.save(checkpoint, folder / "checkpoint.pt")
    shutil.copy(run_dir / "script.py", folder)
    return folder


def evaluate(monkeypatch, run_dir, *flags):
    """Runs ppo_eval in this process; what it says at its end, None if all is well."""
    monkeypatch.setattr("sys.argv", [*map(str, [EVAL, run_dir, *flags])])
    try:
        runpy.run_path(str(EVAL), run_name="__main__")
    except SystemExit as ended:
        return ended.code


def scores(run_dir):
    """Returns and lengths of eval.json."""
    result = json.loads((run_dir / "eval.json").read_text())
    return [*zip(result["returns"], result["lengths"], strict=True)]


def train(name, runs_dir, *changes, flags=()):
    """Trains a fork of a script, with texts that are replaced; its variables and its folder."""

    def edit(text):
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        return text

    run = run_main(name, *TINY, *flags, runs_dir=runs_dir, edit=edit)
    return run, *runs_dir.iterdir()


def seeds_of(episodes, seed=1):
    """Of the games that are played."""
    drawn = np.random.SeedSequence(seed, spawn_key=(1,)).generate_state(episodes)
    return (drawn >> 1).tolist()


def as_trained(run, seed, deterministic=False):
    """Return and length of a game by what main left in memory: its agent, its make_envs, its
    statistics. Written without ppo_eval."""
    args = copy.copy(run.args)
    args.num_envs = 1
    envs = run.make_envs(args)
    next_obs, info = envs.reset(seed=[seed])
    noise = torch.Generator().manual_seed(seed).get_state()
    state, total, length = None, 0.0, 0
    while True:
        obs = next_obs
        if hasattr(run, "return_rms"):
            std = np.sqrt(run.obs_rms.var + 1e-8)
            obs = ((obs - run.obs_rms.mean) / std).clip(-10, 10)
        obs, more = torch.from_numpy(obs).float(), ()
        if hasattr(run, "lstm_state"):
            state = torch.zeros_like(run.lstm_state[:, :, :1]) if state is None else state
            more = torch.zeros(1), state
        if hasattr(run, "action_masks"):
            more = (run.action_masks(envs, info),)
        with torch.no_grad():
            probs, _, *after = run.agent(obs, *more)
            state = after[0] if after else None
            kept, _ = torch.get_rng_state(), torch.set_rng_state(noise)
            action = probs.sample()
            noise, _ = torch.get_rng_state(), torch.set_rng_state(kept)
        if deterministic:
            action = probs.mode() if callable(probs.mode) else probs.mode
        action = action.numpy()
        if hasattr(run, "low"):
            action = action.clip(run.low, run.high)
        next_obs, reward, terminated, truncated, info = envs.step(action)
        total, length = total + float(reward[0]), length + 1
        if terminated[0] or truncated[0]:
            return total, length


def check(run, run_dir, monkeypatch, *flags, episodes=4):
    """ppo_eval's scores are those of the games as_trained, sampled and by most likely actions."""
    for way in ([], ["--deterministic"]):
        assert evaluate(monkeypatch, run_dir, "--episodes", episodes, *way, *flags) is None
        expected = [as_trained(run, seed, bool(way)) for seed in seeds_of(episodes)]
        assert len({*expected}) > 1, "a game that is always the same shows nothing"
        near = 1e-3 if "--onnx" in flags else 1e-9  # simulators make more of other roundings
        for found, other in zip(scores(run_dir), expected, strict=True):
            assert found == (pytest.approx(other[0], rel=near), other[1])


# first policies are nearly uniform; so that a wrong network is seen
SHARP = "std=0.01", "std=3.0"
RESIDUAL = """class Residual(nn.Sequential):
    def forward(self, x):
        x = self[1](self[0](x))
        return self[4](x + self[3](self[2](x)))


class Agent("""
HEADS = """class Heads:
    \"\"\"A choice of 3 and one of 2.\"\"\"

    def __init__(self, logits):
        self.parts = [Categorical(logits=x) for x in logits.split([3, 2], -1)]

    def sample(self):
        return torch.stack([x.sample() for x in self.parts], -1)

    def mode(self):
        return torch.stack([x.mode for x in self.parts], -1)

    def log_prob(self, actions):
        return sum(x.log_prob(actions[..., i]) for i, x in enumerate(self.parts))

    def entropy(self):
        return sum(x.entropy() for x in self.parts)


class Agent(""".replace('\\"', '"')
FORKS = {
    "another activation": [("nn.Tanh()", "nn.ReLU()")],
    "other layers": [
        ("64)", "256)"), ("Linear(64,", "Linear(256,"),
        ("nn.Tanh()", "nn.LayerNorm(256), nn.SiLU()"),
    ],
    "a residual layer": [("class Agent(", RESIDUAL), ("nn.Sequential(\n", "Residual(\n")],
    "a wrapper": [
        ("return env if obs_space.shape else gym.wrappers.FlattenObservation(env)",
         "return gym.wrappers.TransformObservation(env, lambda x: 9 * x[::-1].copy(), obs_space)"),
    ],
    "a row of main": [("torch.from_numpy(next_obs)", "torch.from_numpy(next_obs * 1)")],
    "two heads": [
        ("class Agent(", HEADS),
        ("envs.single_action_space.n", "5"),
        ("Categorical(logits=self.actor(obs), validate_args=False)", "Heads(self.actor(obs))"),
        ("    assert discrete,", "    assert not discrete,"),
        ("(T + 1, N), dtype=torch.int64", "(T + 1, N, 2), dtype=torch.int64"),
    ],
}  # fmt: skip


class Two(gym.Env):
    """Pays what two choices have to do with what is seen; the second one may end it."""

    observation_space = gym.spaces.Box(-9.0, 9.0, (4,), np.float32)
    action_space = gym.spaces.MultiDiscrete([3, 2])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.look(), {}

    def look(self):
        self.seen = self.np_random.normal(size=4).astype(np.float32)
        return self.seen

    def step(self, action):
        assert self.action_space.contains(action)
        reward = float(self.seen[action[0]] + self.seen[3] * action[1])
        over = bool(self.np_random.random() < 0.02 + 0.1 * action[1])
        return self.look(), reward, over, False, {}


gym.register("Two-v0", Two)


@pytest.mark.parametrize("fork", FORKS)
def test_a_fork_is_played_as_it_trained(fork, tmp_path, monkeypatch):
    """Scores are those of its own agent in its own environments."""
    flags = ["--env-id", "Two-v0"] if fork == "two heads" else []
    run, run_dir = train("ppo", tmp_path, *FORKS[fork], SHARP, flags=flags)
    check(run, run_dir, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("fork", ["other layers", "two heads"])
def test_a_fork_as_onnx(fork, tmp_path, monkeypatch, capsys):
    """The file plays the same games; of a distribution that it has no names for, it has the most
    likely actions alone, which is said."""
    flags = ["--env-id", "Two-v0"] if fork == "two heads" else []
    run, run_dir = train("ppo", tmp_path, *FORKS[fork], SHARP, flags=flags)
    if fork == "other layers":
        return check(run, run_dir, monkeypatch, "--onnx")
    flags = ["--episodes", 4, "--onnx"]
    assert evaluate(monkeypatch, run_dir, *flags, "--deterministic") is None
    assert scores(run_dir) == [as_trained(run, seed, True) for seed in seeds_of(4)]
    capsys.readouterr()
    assert evaluate(monkeypatch, run_dir, *flags) == 2
    assert "a Heads is in the file by its most likely actions" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("ppo_lstm", ["--hide", 0, 3]),
        ("ppo_lstm_torchcompile", []),
        ("ppo_masked", ["--env-id", "Doors-v0"]),
        ("ppo_continuous_action", ["--env-id", "Hopper-v4"]),
        ("ppo_continuous_action_lstm", ["--env-id", "Pendulum-v1", "--hide", 0]),
    ],
)
def test_a_run_is_played_as_it_trained(name, flags, tmp_path, monkeypatch):
    """With its memory, its mask, the entries that it did not see, its statistics as they were at
    the end, and actions that are clipped; by PyTorch and by the file."""
    run, run_dir = train(name, tmp_path, SHARP, flags=flags)
    assert (np.abs(run.actions.numpy()) > 1).any() if "Hopper-v4" in flags else True
    check(run, run_dir, monkeypatch)
    check(run, run_dir, monkeypatch, "--onnx")


REFUSED = {
    "a syntax error": ("class Agent(", "class Agent((", "script.py cannot be played: "),
    "no Agent": ("Agent", "Policy", "script.py has no Agent"),
    "another package": ("import tyro", "import tyro, not_there", "needs what is not installed"),
    "more to know": ("(self, obs)", "(self, obs, task)", "wants 'task'"),
    "more for make_envs": ("def make_envs(args)", "def make_envs(args, level)", "wants 'level'"),
    "weights": ("64", "32", "the weights do not fit"),
    "no line of an observation": ("obs[T] =", "storage['obs'][T] =", "has no line like"),
    "two rows": ("obs[T] = torch.from_numpy(next_obs)", "obs[T] = torch.from_numpy(next_obs / 9)",
                 "stores an observation as"),
    "actions": ("envs.step(action.cpu()", "envs.step(1 - action.cpu()", "does not know how to do"),
    "no distribution": ("return Categorical(logits=self.actor(obs), validate_args=False)",
                        "return self.actor(obs)", "no distribution"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_script_that_cannot_play(what, runs, tmp_path, monkeypatch, capsys):
    """One line says why, with status 2; nothing is written, and no other script plays."""
    old, new, message = REFUSED[what]
    text = (PPO / "ppo.py").read_text()
    assert old in text
    shutil.copy(runs["ppo"] / "checkpoint.pt", tmp_path)
    (tmp_path / "script.py").write_text(text.replace(old, new))
    capsys.readouterr()
    assert evaluate(monkeypatch, tmp_path, "--episodes", 1) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "error: argument run: " in line and message in line
    assert {path.name for path in tmp_path.iterdir()} <= {"checkpoint.pt", "script.py"}


def test_a_run_of_an_older_network(tmp_path, monkeypatch, capsys):
    """Whose weights fit today's, but whose activation was another one: no script, no score."""
    path = PPO / "ppo_continuous_action_envpool.py"
    run_main(path.stem, *TINY, "--env-id", "Pendulum-v1", runs_dir=tmp_path)
    (run_dir,) = tmp_path.iterdir()
    checkpoint = checkpoint_of(run_dir)
    assert checkpoint["format"].endswith(" 2")
    checkpoint["format"] = checkpoint["format"].removesuffix(" 2")
    torch.save(checkpoint, run_dir / "checkpoint.pt")
    (run_dir / "script.py").unlink()
    capsys.readouterr()
    assert evaluate(monkeypatch, run_dir, "--episodes", 1) == 2
    assert f"{path} another network: see --script" in said(capsys.readouterr().err)
    with pytest.raises(SystemExit, match="not of ppo_continuous_action_envpool 2"):
        run_main(path.stem, "--resume", run_dir, "--total-timesteps", 96, runs_dir="unused")


def test_flags_that_numpy_has_annealed(runs, tmp_path):
    """args.clip_coef = np.clip(...) and the like leave NumPy's scalars in a checkpoint."""
    checkpoint = checkpoint_of(runs["ppo"])
    checkpoint["args"] |= {"clip_coef": np.float64(0.1), "ent_coef": np.float32(0.5)}
    checkpoint["args"] |= {"update_epochs": np.int64(2), "anneal_lr": np.bool_(True)}
    torch.save(checkpoint, tmp_path / "checkpoint.pt")
    shutil.copy(runs["ppo"] / "script.py", tmp_path)
    done = subprocess.run(
        [sys.executable, EVAL, tmp_path, "--episodes", "2"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads((tmp_path / "eval.json").read_text())["returns"]) == 2


def test_a_run_without_a_script(runs, tmp_path, monkeypatch, capsys):
    """As runs were before: the project's script plays if the weights fit, which is said; another
    one on request. A checkpoint in a folder of its run's has that run's script."""
    shutil.copy(runs["ppo"] / "checkpoint.pt", tmp_path)
    capsys.readouterr()
    assert evaluate(monkeypatch, tmp_path, "--episodes", 2) is None
    first = capsys.readouterr().out.splitlines()[0]
    assert first == f"plays: {PPO / 'ppo.py'}; the run is from before scripts were kept: did a " + (
        "fork train it? See --script"
    )
    plain = scores(tmp_path)
    fork = tmp_path / "fork.py"
    fork.write_text((PPO / "ppo.py").read_text().replace("nn.Tanh()", "torch.nn.Softsign()"))
    flags = ["--episodes", 2, "--deterministic"]
    assert evaluate(monkeypatch, tmp_path, "--script", fork, "--episodes", 2) is None
    assert capsys.readouterr().out.splitlines()[0] == f"plays: {fork}"
    assert len(scores(tmp_path)) == len(plain)
    checkpoint = checkpoint_of(tmp_path)
    best = shutil.copytree(runs["ppo"], tmp_path / "run") / "best"
    best.mkdir()
    shutil.copy(tmp_path / "checkpoint.pt", best)
    assert evaluate(monkeypatch, best, *flags) is None
    assert f"{tmp_path / 'run' / 'script.py'}" in capsys.readouterr().out
    for key, message in (("actor.4.bias", "actor.4.bias is missing"), ("odd", "odd is (1,)")):
        wrong = {**checkpoint["agent"], "odd": torch.zeros(1)}
        wrong.pop(key if key != "odd" else "none", None)
        wrong.pop("odd" if key != "odd" else "none", None)
        torch.save({**checkpoint, "agent": wrong}, tmp_path / "checkpoint.pt")
        assert evaluate(monkeypatch, tmp_path) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert "the weights do not fit" in line and message in line


def test_games_do_not_hang_on_each_other(runs, monkeypatch):
    """A game is the same whichever were played before, also where the environment draws from the
    generators of Python, NumPy and PyTorch; and its film is of that game."""
    evaluation = load("ppo_eval")
    checkpoint = checkpoint_of(runs["ppo"])
    checkpoint["args"]["env_id"] = "Draws-v0"
    policy = evaluation.Policy(checkpoint, str(runs["ppo"] / "script.py"))
    one, two = (evaluation.play(policy, seed, False, 500) for seed in (5, 6))
    again = evaluation.play(policy, 6, False, 500)
    assert (again.total, again.actions) == (two.total, two.actions) and one.total != two.total
    twin = evaluation.Game(policy, 6)
    for action in two.actions:  # as in a film: nothing is sampled beside
        twin.step(action)
    assert twin.total == two.total


class Draws(gym.Env):
    """Draws from the generators of Python, NumPy and PyTorch, and from no other."""

    observation_space = gym.spaces.Box(-9.0, 9.0, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def look(self):
        drawn = [random.random(), np.random.random(), torch.rand(()).item(), 0.0]
        return np.array(drawn, np.float32)

    def reset(self, *, seed=None, options=None):
        return self.look(), {}

    def step(self, action):
        obs = self.look()
        return obs, float(obs.sum() * (1 + action)), bool(random.random() < 0.1), False, {}


gym.register("Draws-v0", Draws)


@pytest.mark.slow
def test_a_simulator_of_ones_own_on_the_device(tmp_path, monkeypatch, capsys):
    """module:Class of MuJoCo Warp's script is played in that class. A task is played in Gymnasium,
    unless the script has another simulator, which then plays."""
    name = "ppo_continuous_action_warp"
    _, run_dir = train(name, tmp_path / "own", flags=["--env-id", "my_warp_env:Pendulum"])
    assert evaluate(monkeypatch, run_dir, "--episodes", 3) is None
    found = scores(run_dir)
    assert {length for _, length in found} == {200} and len({*found}) == 3
    assert evaluate(monkeypatch, run_dir, "--episodes", 3) is None and scores(run_dir) == found
    _, run_dir = train(name, tmp_path / "task", flags=["--env-id", "HalfCheetah-v5"])
    path = run_dir / "script.py"
    play = ["--episodes", 1, "--max-steps", 5]
    for text in (path.read_text(), path.read_text().replace("5, 0.1, 0.1", "5, 90.0, 0.1")):
        path.write_text(text)
        capsys.readouterr()
        assert evaluate(monkeypatch, run_dir, *play) is None
        found.append((scores(run_dir)[0][0], capsys.readouterr().out))
    (gymnasium, said_of_it), (own, said_of_own) = found[-2:]
    assert f"plays: {path}\n" in said_of_it
    assert f"plays: {path}; its simulator is not the project's" in said_of_own
    assert own < gymnasium - 10, "of its own cost of controls"


class Lists(doors.Doors):
    """Gives its masks as lists."""

    def look(self, closed=False):
        obs, info = super().look(closed)
        return obs, {"action_mask": info["action_mask"].tolist()}


class Odd(gym.Env):
    """Five steps a game; pays and shows what it is told."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, pays=(1.0,), shows=(), render_mode=None):
        self.pays, self.shows, self.render_mode = pays, shows, render_mode

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self.t += 1
        paid = self.pays[self.t % len(self.pays)]
        return np.zeros(4, np.float32), paid, self.t == 5, False, {}

    def render(self):
        return self.shows[self.t > 2]


SMALL, LARGE = np.zeros((32, 48, 3), np.uint8), np.zeros((64, 48, 3), np.uint8)
gym.register("Lists-v0", Lists, max_episode_steps=12)
gym.register("Nan-v0", partial(Odd, pays=[np.nan, 1.0]))
gym.register("Inf-v0", partial(Odd, pays=[np.inf]))
gym.register("Grows-v0", partial(Odd, shows=[SMALL, LARGE]))
gym.register("Stops-v0", partial(Odd, shows=[SMALL, None]))
gym.register("Text-v0", partial(Odd, shows=["#", "#"]))


def test_masks_may_be_lists(runs, tmp_path, monkeypatch):
    """As in training: no closed door is tried."""
    run_dir = on("Lists-v0", runs["ppo_masked"], tmp_path)
    assert evaluate(monkeypatch, run_dir, "--episodes", 20) is None
    assert len(json.loads((run_dir / "eval.json").read_text())["returns"]) == 20


@pytest.mark.parametrize(("env_id", "word", "value"), [("Nan", "nan", None), ("Inf", "inf", "inf")])
def test_a_return_that_is_not_finite(env_id, word, value, runs, tmp_path, monkeypatch, capsys):
    """Is in table and file, which are written."""
    run_dir = on(f"{env_id}-v0", runs["ppo"], tmp_path)
    assert evaluate(monkeypatch, run_dir, "--episodes", 2) is None
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].split() == ["1", word, "5"] and lines[-1].startswith(f"mean {word}, ")
    result = json.loads((run_dir / "eval.json").read_text())
    assert result["returns"] == [value] * 2 and result["mean"] == value


@pytest.mark.parametrize("env_id", ["Grows-v0", "Stops-v0", "Text-v0"])
def test_frames_that_make_no_film(env_id, runs, tmp_path, monkeypatch):
    """One line says so; the scores are there, and the film of before."""
    run_dir = on(env_id, runs["ppo"], tmp_path)
    (run_dir / "video.mp4").write_text("a film")
    ended = evaluate(monkeypatch, run_dir, "--episodes", 2, "--capture-video")
    assert ended.startswith(f"--capture-video: no film of {env_id}: ") and "\n" not in ended
    assert json.loads((run_dir / "eval.json").read_text())["returns"] == [5.0, 5.0]
    assert (run_dir / "video.mp4").read_text() == "a film"
    left = {"checkpoint.pt", "eval.json", "script.py", "video.mp4"}
    assert {path.name for path in run_dir.iterdir()} == left


@pytest.mark.parametrize(
    ("eager", "env_id", "package"),
    [
        ("ppo", "LunarLander-v3", "Box2D"),
        ("ppo_atari", "ALE/Breakout-v5", "ale_py"),
        ("ppo_atari_envpool", "Breakout-v5", "envpool"),
        ("ppo_pettingzoo", "mpe2.simple_spread_v3", "mpe2"),
    ],
)
def test_a_missing_simulator_is_named(eager, env_id, package, runs, tmp_path, monkeypatch, capsys):
    run_dir = on(env_id, runs[eager], tmp_path)
    for name in [*sys.modules]:
        if name.startswith((f"{package}.", "gymnasium.envs.box2d")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert evaluate(monkeypatch, run_dir) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "argument run: " in line and "needs what is not installed: " in line and package in line


@pytest.fixture(scope="module")
def exported(runs, tmp_path_factory):
    """A copy of a format's run with its policy.onnx, which has played one game."""

    @cache
    def export(eager):
        run_dir = shutil.copytree(runs[eager], tmp_path_factory.mktemp("onnx") / "run")
        with pytest.MonkeyPatch.context() as patch:
            assert evaluate(patch, run_dir, "--episodes", 1, "--max-steps", 5, "--onnx") is None
        assert len(json.loads((run_dir / "eval.json").read_text())["returns"]) == 1
        return run_dir

    return export


@pytest.mark.slow
@pytest.mark.parametrize("eager", SHORT)
def test_policy_as_onnx(eager, exported):
    """Gives what the agent gives, with its normalisation, its mask or its memory, for one row and
    for seven, of what the environment shows; and says nothing of this machine."""
    path = exported(eager) / "policy.onnx"
    evaluation = load("ppo_eval")
    policy = evaluation.load(str(path.parent))
    shown = evaluation.Game(policy, 1).obs
    session, rng = onnxruntime.InferenceSession(path), np.random.default_rng(1)
    names = [x.name for x in session.get_inputs()]
    for rows in (1, 7):
        fed = {"obs": rng.normal(scale=3.0, size=(rows, *shown.shape[1:])).astype(shown.dtype)}
        if kind(eager) == "atari":
            fed["obs"] = rng.integers(0, 256, (rows, *shown.shape[1:]), np.uint8)
        if "masked" in eager:
            fed["mask"] = rng.random((rows, 5)) < 0.5
        if "lstm" in eager:
            shape = (2, rows, 128) if "atari" in eager else (2, 2, rows, 64)
            fed["lstm_state"] = rng.normal(size=shape).astype(np.float32)
        if "trxl" in eager:  # of games that began a while ago, or just now
            fed["window"] = rng.normal(size=(rows, 32, 1, 64)).astype(np.float32)
            fed["ages"] = rng.integers(0, 40, rows)
        assert names == [*fed]
        kept = torch.uint8 if kind(eager) == "atari" else torch.float32
        assert policy.see(torch.from_numpy(fed["obs"])).dtype == kept, "as main stores it"
        obs, *more = (torch.from_numpy(x) for x in fed.values())
        if "continuous" in eager:
            mean, var, _ = map(np.array, policy.checkpoint["obs_rms"])
            obs = torch.from_numpy(((fed["obs"] - mean) / np.sqrt(var + 1e-8)).clip(-10, 10))
        if "lstm" in eager:
            more = [torch.zeros(rows), *more]
        probs, _, *rest = policy.agent(obs if kept is torch.uint8 else obs.float(), *more)
        if "continuous" in eager:
            expected = [probs.base_dist.loc, probs.base_dist.scale]
        else:
            expected = [probs.logits]
        if "lstm" in eager:
            expected += rest
        if "trxl" in eager:
            window = torch.cat([more[0], rest[0].unsqueeze(1)], 1)[:, 1:]
            expected += [window, more[1] + 1]
        for found, x in zip(session.run(None, fed), expected, strict=True):
            np.testing.assert_allclose(found, x.numpy(), rtol=0, atol=1e-5)
    outputs = ["mean", "std"] if "continuous" in eager else ["logits"]
    outputs += [f"next_{name}" for name in names if name in ("lstm_state", "window", "ages")]
    assert [x.name for x in session.get_outputs()] == outputs
    assert b"ppo_eval" not in path.read_bytes() and b"script.py" not in path.read_bytes()


def test_what_plays_is_the_file(runs, tmp_path, capfd):
    """What becomes of the weights is all one to it. To write it says nothing."""
    evaluation = load("ppo_eval")
    policy = evaluation.load(str(runs["ppo"]))
    obs = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    expected, _ = policy.probs(policy.see(torch.from_numpy(obs)), {})
    evaluation.Exported(policy).write(str(tmp_path / "policy.onnx"), obs, None)
    assert capfd.readouterr() == ("", "")
    for weights in policy.agent.parameters():
        weights.zero_()
    found, _ = policy.probs_of_file({"obs": torch.from_numpy(obs)})
    torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=1e-5)


FALSE_FILES = {
    "that cannot be traced": ("self.actor(obs)", "self.actor(obs if obs.sum() > 0 else -obs)"),
    "that is another agent's": ("x / np.sqrt(self.var + 1e-8)", "x / np.sqrt(self.var + 1.0)"),
}


@pytest.mark.parametrize("what", FALSE_FILES)
def test_an_agent(what, tmp_path, monkeypatch, capsys):
    """Of a fork: one line, and no file."""
    name = "ppo_continuous_action" if "another" in what else "ppo"
    changes = [FALSE_FILES[what]] if "another" in what else []
    flags = ["--env-id", "Pendulum-v1"] if "another" in what else []
    _, run_dir = train(name, tmp_path, *changes, flags=flags)
    if "traced" in what:
        path = run_dir / "script.py"
        path.write_text(path.read_text().replace(*FALSE_FILES[what]))
    capsys.readouterr()
    assert evaluate(monkeypatch, run_dir, "--episodes", 1, "--onnx") == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and "error: argument --onnx: " in lines[0]
    assert "mean is not the agent's" in lines[0] or "traced" in what
    assert not (run_dir / "policy.onnx").exists() and not (run_dir / "eval.json").exists()


def test_what_onnx_needs_is_named(runs, tmp_path, monkeypatch, capsys):
    """Once it is asked for."""
    run_dir = on("CartPole-v1", runs["ppo"], tmp_path)
    for name in ("onnxscript", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)
    assert evaluate(monkeypatch, run_dir, "--episodes", 1) is None
    capsys.readouterr()
    assert evaluate(monkeypatch, run_dir, "--episodes", 1, "--onnx") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "argument --onnx: not installed: onnxscript, onnxruntime (pip install" in line


def deployed(eager, path):
    """The guide's program that plays with ONNX Runtime, with its lines for a kind of policy."""
    guide = (PPO / "USING.md").read_text()
    (program,) = re.findall(
        r"```python\n(import gymnasium[^`]+?onnxruntime.+?)```", guide, re.DOTALL
    )
    guide = guide[guide.index("### The policy as a file") :]
    hunks = dict(zip(LINES, re.findall(r"```diff\n(.+?)```", guide, re.DOTALL), strict=True))
    program = patched(program, hunks.get(eager, ""))
    program = program.replace("runs/<run>", str(path))
    return program.replace("CartPole-v1", SHORT[eager])


# in the order of the guide's hunks
LINES = "ppo_masked", "ppo_lstm", "ppo_trxl", "ppo_continuous_action"


@pytest.mark.slow
def test_a_policy_plays_without_pytorch(exported, tmp_path):
    """By the guide's lines, with the returns of the same games here."""
    kinds = ["ppo", *LINES]
    programs = [deployed(eager, exported(eager)) for eager in kinds]
    ends = ["import sys", "assert 'torch' not in sys.modules and 'ppo_eval' not in sys.modules"]
    (tmp_path / "play.py").write_text("\n".join(["import doors", *programs, *ends]))
    done = subprocess.run(
        [sys.executable, tmp_path / "play.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    evaluation = load("ppo_eval")
    for eager, printed in zip(kinds, done.stdout.split(), strict=True):
        policy = evaluation.load(str(exported(eager)))
        game = evaluation.play(policy, 1, True, 27_000)
        assert float(printed) == pytest.approx(game.total, rel=1e-3), eager


@pytest.mark.slow
@pytest.mark.parametrize("eager", SHORT)
def test_games_are_scored_and_repeat(eager, runs, tmp_path, capsys, monkeypatch):
    """The same command gives the same games, to the last digit."""
    results, limit = [], {"max_num_frames_per_episode": 2000}  # nobody may serve after a lost life
    monkeypatch.setattr(gym, "make_vec", partial(gym.make_vec, **limit))
    ways = [[], [], ["--seed", 2], ["--deterministic"]]
    for flags in ways:
        run_dir = shutil.copytree(runs[eager], tmp_path / str(len(results)))
        assert evaluate(monkeypatch, run_dir, "--episodes", 3, *flags) is None
        result = json.loads((run_dir / "eval.json").read_text())
        assert result["env_id"] == SHORT[eager] and result["global_step"] == 48
        assert len(result["returns"]) == len(result["lengths"]) == 3
        assert result["mean"] == pytest.approx(np.mean(result["returns"]))
        assert result["std"] == pytest.approx(np.std(result["returns"]))
        assert result["median"] == np.median(result["returns"])
        table = capsys.readouterr().out.splitlines()
        assert table[0] == f"plays: {run_dir / 'script.py'}" and result["script"] == table[0][7:]
        assert len(table) == 7 and f"mean {result['mean']:.2f}" in table[-1]
        for i, (total, length) in enumerate(zip(result["returns"], result["lengths"], strict=True)):
            assert table[3 + i].split() == [str(i + 1), f"{total:.2f}", str(length)]
        results.append((result["returns"], result["lengths"]))
    assert results[0] == results[1]
    assert all(result != results[0] for result in results[2:])
    if "atari" in eager:  # five lives each, not one; a lost one serves again, without an action
        assert min(results[0][1]) > 100 and max(results[-1][1]) < 5000


def test_a_film_of_a_grid(tmp_path):
    """MinAtar renders ten by ten numbers of 0 to 1: squares of 20 pixels, in its colours."""
    run = run_main("ppo_pixels", *TINY, runs_dir=tmp_path)
    policy = load("ppo_eval").load(run.run_dir)
    game = load("ppo_eval").Game(policy, 1, film=True)
    frame = game.frame()
    assert frame.shape == (200, 200, 3) and frame.dtype == np.uint8
    shown = np.rint(255 * game.envs.render()[0]).astype(np.uint8)
    assert np.array_equal(frame[::20, ::20], shown) and frame.max() > 100


def alone(env_id, seed, actions):
    """Return and length of a game by its actions in an environment of its own, where it has ended
    (on Atari with the last life), and how many episodes ended before."""
    if env_id == "CartPole-v1":
        env = gym.make(env_id)
        env.reset(seed=seed)
    elif env_id.startswith("ALE/"):
        options = {"life_loss_info": True, "reward_clipping": False}
        env = gym.make_vec(env_id, 1, repeat_action_probability=0.0, **options)
        env.reset(seed=np.array([seed]))
    else:
        options = {"episodic_life": True} if env_id == "Breakout-v5" else {}
        env = envpool.make(env_id, env_type="gym", num_envs=1, seed=[seed], **options)
        env.reset()
    total = length = ends = 0
    while True:
        action = actions[length] if env_id == "CartPole-v1" else actions[length][None]
        _, reward, terminated, truncated, info = env.step(action)
        total, length = total + float(np.sum(reward)), length + 1
        over = info["lives"] == 0 if "lives" in info else terminated
        if over or truncated:
            return total, length, ends
        ends += int(np.sum(terminated))


@pytest.mark.slow
@pytest.mark.parametrize(
    "eager", ["ppo", "ppo_atari", "ppo_atari_envpool", "ppo_continuous_action_envpool"]
)
def test_each_return_is_of_one_game(eager, runs):
    """Each is scored as its actions are in an environment of its own."""
    evaluation = load("ppo_eval")
    policy, seeds = evaluation.load(str(runs[eager])), [*range(3, 9)]
    games = [evaluation.play(policy, seed, False, 27_000) for seed in seeds]
    assert len({len(game.actions) for game in games}) > 2
    for seed, game in zip(seeds, games, strict=True):
        actions = [action[0] for action in game.actions]
        total, length, lost = alone(policy.args.env_id, seed, actions)
        assert (game.seed, game.total, len(game.actions)) == (seed, total, length)
        assert lost == (4 if "atari" in eager else 0), "autoreset steps in between"


@pytest.mark.slow
def test_a_memory_ends_with_a_life(tmp_path):
    """As in training, where the network is told of it: its actions are those of the game."""
    lasting = "4 * hidden_size), std=1.0)", "4 * hidden_size), std=6.0)"
    run, run_dir = train("ppo_atari_envpool_lstm", tmp_path, SHARP, lasting, flags=["--seed", 3])
    evaluation = load("ppo_eval")
    game = evaluation.play(evaluation.load(str(run_dir)), 5, False, 27_000)
    envs = run.make_envs(run.args, np.array([5]))
    obs, _ = envs.reset()
    torch.manual_seed(5)
    state, done, lives = torch.zeros(2, 1, 128), 0.0, 0
    for action in game.actions:
        with torch.no_grad():
            probs, _, state = run.agent(torch.from_numpy(obs), torch.tensor([done]), state)
        assert probs.sample().tolist() == action.tolist()
        obs, _, terminated, truncated, _ = envs.step(action)
        done = float((terminated | truncated).item())
        lives += done
    assert lives == 5


def test_no_game_of_training_is_scored(runs, tmp_path, monkeypatch):
    """Seeds as they reach EnvPool, where every game is over at once: of training, of evaluation."""
    seeds = []

    def make(env_id, seed, **options):
        seeds.append(seed)
        ones, obs = np.ones(len(seed)), np.zeros((len(seed), 4, 84, 84), np.uint8)
        info = {"lives": ones, "terminated": ones, "reward": 7 * ones}
        step = obs, ones, ones > 0, ones > 1, info
        game = SimpleNamespace(reset=lambda: (obs, info), step=lambda actions: step)
        game.close, game.single_action_space = lambda: None, gym.spaces.Discrete(4)
        game.unwrapped, game.async_reset = game, None
        game.single_observation_space = gym.spaces.Box(0, 255, obs.shape[1:], np.uint8)
        return game

    monkeypatch.setattr(envpool, "make", make)
    for count in (4, 64):
        flags = [*TINY, "--num-envs", count, "--num-steps", 2, "--total-timesteps", 2 * count]
        run_main("ppo_atari_envpool", *flags, runs_dir=tmp_path / str(count))
    run_dir = shutil.copytree(runs["ppo_atari_envpool"], tmp_path / "run")
    assert evaluate(monkeypatch, run_dir) is None
    assert {total for total, _ in scores(run_dir)} == {7.0}, "raw rewards"
    few, many, (nobody,), *games = seeds  # one is made for its spaces alone
    scored = {seed for (seed,) in games}
    assert nobody == 0
    whole = np.random.SeedSequence([1, 0]).generate_state(64)  # 32 bits, as Gymnasium gets them
    assert many[:4] == few and many == (whole >> 1).tolist() and len(scored) == 20
    assert not scored & {*many, *whole.tolist()}


def test_discrete_actions_are_drawn_or_likeliest(runs):
    policy = load("ppo_eval").load(str(runs["ppo"]))
    policy.agent.actor[-1].weight.mul_(50.0)  # probabilities far from equal
    obs = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    logits = policy.agent.actor(torch.from_numpy(obs))
    likeliest = policy.act_rows(obs)
    state = torch.get_rng_state()
    drawn = torch.tensor(np.array([policy.act_rows(obs, None, False) for _ in range(3000)]))
    assert torch.equal(torch.get_rng_state(), state), "others' numbers are left alone"
    assert likeliest.tolist() == logits.argmax(-1).tolist()
    shares = torch.nn.functional.one_hot(drawn, logits.shape[1]).float().mean(0)
    torch.testing.assert_close(shares, logits.softmax(-1), atol=0.04, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("eager", "game"),
    [
        ("ppo", "best"),
        ("ppo_atari", "first"),
        ("ppo_atari_envpool", "best"),
        ("ppo_continuous_action", "first"),
        ("ppo_continuous_action_envpool", "best"),
        ("ppo_continuous_action_warp", "first"),
    ],
)
def test_video(eager, game, runs, tmp_path, monkeypatch, capsys):
    run_dir = shutil.copytree(runs[eager], tmp_path / "run")
    flags = ["--episodes", 3, "--capture-video", "--video-game", game]
    if "continuous" in eager:  # MuJoCo takes its renderer when it is imported
        done = run_script(EVAL, run_dir, *flags, cwd=tmp_path, gpu=True)
        if "nothing renders" in done.stderr:
            pytest.skip("needs libegl1")
        assert done.returncode == 0, done.stderr
        printed = done.stdout
    else:
        assert evaluate(monkeypatch, run_dir, *flags) is None
        printed = capsys.readouterr().out
    result = json.loads((run_dir / "eval.json").read_text())
    number = int(np.argmax(result["returns"])) if game == "best" else 0
    said = f"game {number + 1}, return {result['returns'][number]:.2f}"
    frames = [*imageio.get_reader(run_dir / "video.mp4").iter_data()]
    assert printed.splitlines()[-1].endswith(f"{said}, {len(frames)} frames")
    assert len(frames) == result["lengths"][number] + 1
    colours = np.abs(np.diff(frames[0].astype(int), axis=-1)).max()
    assert colours > 40, "true colour, not grey"
    assert any((a != b).any() for a, b in zip(frames, frames[5:], strict=False))


def test_no_renderer_names_the_package(runs, tmp_path):
    run_dir = shutil.copytree(runs["ppo_continuous_action"], tmp_path / "run")
    flags = [run_dir, "--episodes", 1, "--capture-video"]
    env = {"MUJOCO_GL": "osmesa", "PYOPENGL_PLATFORM": ""}
    done = run_script(EVAL, *flags, cwd=tmp_path, env=env, gpu=True)
    if done.returncode == 0:
        pytest.skip("libosmesa6 is installed")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    line = done.stderr.splitlines()[-1]
    assert "nothing renders Hopper-v4" in line and "libegl1" in line and "libosmesa6" in line
    assert len(json.loads((run_dir / "eval.json").read_text())["returns"]) == 1
    assert not (run_dir / "video.mp4").exists()


def test_what_cannot_be_scored_is_refused(runs, tmp_path):
    """With one message and status 2; nothing is written."""
    evaluation, good = load("ppo_eval"), checkpoint_of(runs["ppo_continuous_action"])
    known = "no checkpoint that can be read"
    done = run_script(EVAL, tmp_path, cwd=tmp_path, gpu=True)
    message = said(done.stderr)
    assert done.returncode == 2 and known in message and "No such file" in message
    assert "Traceback" not in done.stderr and not done.stdout and not [*tmp_path.iterdir()]

    bad = tmp_path / "checkpoint.pt"

    def refused(message, content):
        torch.save(content, bad)
        with pytest.raises(evaluation.CannotPlay, match=message):
            evaluation.load(str(tmp_path))

    refused("has no script.py, and there is no .*dqn", {**good, "format": "dqn 1"})
    refused("has no script.py, and there is no", {**good, "format": "../tests/conftest"})
    for content in ({"model": 1}, [1, 2], {**good, "args": {}}, {**good, "agent": None}):
        refused(known, content)
    refused(known, {**good, "agent": random.Random(1)})
    refused("the checkpoint has none", {k: v for k, v in good.items() if k != "obs_rms"})
    for written in ("ppo_continuous_action", "ppo_continuous_action 2"):  # of old runs
        torch.save({**good, "format": written}, bad)
        assert evaluation.load(str(tmp_path)).checkpoint["global_step"] == 48
    for flags in ({"episodes": 0}, {"max_steps": 0}, {"seed": -1}):
        with pytest.raises(ValueError, match="give 1 or more"):
            evaluation.Args(run=str(tmp_path), **flags)
    bad.write_bytes(bad.read_bytes()[:-5000])
    with pytest.raises(evaluation.CannotPlay, match=known):
        evaluation.load(str(tmp_path))


@pytest.mark.parametrize("change", ["agent.scale = 1.0 / iteration", "agent.scale *= 0.9"])
def test_an_attribute_that_main_sets_is_refused(change, tmp_path):
    """A checkpoint does not have it, so that another policy would play; a buffer it has."""

    def fork(text):
        text = text.replace("# Rollout\n", f"# Rollout\n        {change}\n")
        text = text.replace(
            "        self.critic = nn", "        self.scale = 1.0\n        self.critic = nn"
        )
        assert text.count(".scale") == 2
        return text

    flags = "--num-envs 2 --num-steps 8 --num-minibatches 2 --total-timesteps 16".split()
    ppo_eval = importlib.import_module("ppo_eval")
    run = run_main("ppo", *flags, runs_dir=tmp_path, edit=fork)
    with pytest.raises(ppo_eval.CannotPlay, match="sets agent.scale"):
        ppo_eval.load(run.run_dir)


def test_what_acts_otherwise_is_told(runs, tmp_path):
    """Another network than agent is refused; another act() is said not to be called; a buffer that
    act() fills is in the checkpoint, and plays."""
    ppo_eval = importlib.import_module("ppo_eval")
    other = "            action = act({}, obs[step])\n"

    def by_another(text):
        assert text.count(other.format("agent")) == 1
        text = text.replace(other.format("agent"), other.format("early"))
        return text.replace("# Rollout\n", "# Rollout\n        early = agent\n")

    def counted(text):
        text = text.replace(
            "        self.critic = nn",
            '        self.register_buffer("calls", torch.tensor(0))\n        self.critic = nn',
        )
        old = "    probs = agent.policy(obs)\n    return probs.sample()\n"
        assert text.count(old) == 1
        return text.replace(old, "    agent.calls += 1\n" + old)

    run = run_main("ppo", *TINY, runs_dir=tmp_path / "other", edit=by_another)
    with pytest.raises(ppo_eval.CannotPlay, match="acts by the network of early"):
        ppo_eval.load(run.run_dir)
    run = run_main("ppo", *TINY, runs_dir=tmp_path / "counted", edit=counted)
    policy = ppo_eval.load(run.run_dir)
    assert policy.agent.calls == run.agent.calls > 0 and "not called" in policy.note
    for eager in runs:
        assert "not called" not in ppo_eval.load(runs[eager]).note


@pytest.mark.parametrize(
    ("place", "change"),
    [
        ("            next_obs, reward,", "            action = torch.tanh(action)\n"),
        ("            next_obs, reward,", "            action *= 0.5\n"),
        ("            next_obs, reward,", "            action[:] = torch.tanh(action)\n"),
        (
            "            next_obs, reward,",
            "            action = torch.tanh(act(agent, obs[step]))\n",
        ),
        ("            obs[step + 1] = ", "            next_obs = np.tanh(next_obs)\n"),
        ("            valid[step] = ", "            obs[step + 1] = obs[step + 1].clamp(-1, 1)\n"),
        ("            valid[step] = ", "            obs[step + 1] *= 0.5\n"),
    ],
)
def test_what_main_does_to_actions_and_observations_is_refused(place, change, tmp_path):
    """Under a name that is read: the evaluation would play without it."""

    def fork(text):
        assert text.count(place) == 1
        return text.replace(place, change + place)

    ppo_eval = importlib.import_module("ppo_eval")
    run = run_main("ppo_continuous_action", *TINY, runs_dir=tmp_path, edit=fork)
    with pytest.raises(ppo_eval.CannotPlay, match="put it into make_envs or Agent"):
        ppo_eval.load(run.run_dir)


def test_names_of_the_loss_are_its_own(tmp_path):
    """What main sends is not read from a function that has a name of the same kind."""

    def fork(text):
        old = "    pg_loss2 = -advantages * ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)\n"
        assert text.count(old) == 1
        new = old.replace("pg_loss2 = -advantages *", "clipped =")
        return text.replace(old, f"{new}    pg_loss2 = -advantages * clipped\n")

    ppo_eval = importlib.import_module("ppo_eval")
    assert not ppo_eval.load(run_main("ppo", *TINY, runs_dir=tmp_path, edit=fork).run_dir).clips
