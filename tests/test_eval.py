"""ppo_eval: whole games of the policy that trained, scored the same way twice, filmed, exported."""

import copy
import json
import random
import runpy
import sys
from dataclasses import asdict
from functools import partial
from types import SimpleNamespace

import doors  # noqa: F401, registers Doors-v0
import envpool
import gymnasium as gym
import imageio.v2 as imageio
import numpy as np
import pytest
from helpers import PPO, TINY, load, run_main, run_script

import torch

EVAL = PPO / "ppo_eval.py"
SHARP = "std=0.01", "std=3.0"  # first policies are nearly uniform; so that a wrong one is seen
ppo_eval = load("ppo_eval")


def edited(changes):
    """A function that replaces these texts in a script's."""

    def edit(text):
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        return text

    return edit


def train(name, runs_dir, *changes, flags=()):
    """Trains a fork of a script; its variables and its folder."""
    run = run_main(name, *TINY, *flags, runs_dir=runs_dir, edit=edited(changes))
    return run, *runs_dir.iterdir()


def make(run, args, seed):
    """One environment of a script's, and its first observation, in the script's own ways."""
    args = copy.copy(args)
    args.num_envs = 1
    if "seeds" in run.make_envs.__code__.co_varnames:
        envs = run.make_envs(args, np.array([seed]))
        return envs, envs.reset()[0]
    envs = run.make_envs(args, *[torch.device("cpu")] * ("warp" in run.FORMAT))
    return envs, envs.reset() if "warp" in run.FORMAT else envs.reset(seed=seed)[0]


def untrained(name, folder, *changes, returns=(), envs=None, **args):
    """The folder of a run that has learned nothing: a script's first weights."""
    path = folder / "script.py"
    folder.mkdir(exist_ok=True)
    path.write_text(edited(changes)((PPO / f"{name}.py").read_text()))
    script = SimpleNamespace(**runpy.run_path(str(path), run_name="drawn"))
    args = script.Args(**args)
    torch.manual_seed(1)
    agent = script.Agent(envs or make(script, args, 1)[0], *[args] * ("trxl" in name))
    checkpoint = {"format": script.FORMAT, "args": asdict(args), "global_step": 48}
    checkpoint |= {"agent": agent.state_dict(), "episodic_returns": [*map(float, returns)]}
    torch.save(checkpoint, folder / "checkpoint.pt")
    return folder


def changed(run_dir, **parts):
    """The same folder, with other parts of its checkpoint."""
    checkpoint = torch.load(run_dir / "checkpoint.pt", weights_only=True)
    torch.save(checkpoint | parts, run_dir / "checkpoint.pt")
    return run_dir


def evaluate(monkeypatch, run_dir, *flags):
    """Runs ppo_eval in this process; what it ends with, None if all is well."""
    monkeypatch.setattr("sys.argv", [*map(str, [EVAL, run_dir, *flags])])
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    try:
        runpy.run_path(str(EVAL), run_name="__main__")
    except SystemExit as ended:
        return ended.code


def scores(run_dir):
    """Returns and lengths of eval.json."""
    result = json.loads((run_dir / "eval.json").read_text())
    return [*zip(result["returns"], result["lengths"], strict=True)]


def seeds_of(episodes, seed=1):
    """Of the games that are played."""
    drawn = np.random.SeedSequence(seed, spawn_key=(1,)).generate_state(episodes)
    return (drawn >> 1).tolist()


def as_trained(run, seed):
    """Return and length of a game by what main left in memory; written without ppo_eval."""
    envs, obs = make(run, run.args, seed)
    noise = torch.Generator().manual_seed(seed).get_state()
    memory = hasattr(run.agent, "initial_state")
    more = (torch.zeros(1), run.agent.initial_state(1)) if memory else ()
    total, length, over = 0.0, 0, False
    while not over:
        with torch.random.fork_rng():
            torch.set_rng_state(noise)
            found = run.act(run.agent, torch.from_numpy(obs).float(), *more)
            noise = torch.get_rng_state()
        action, more = (found[0], (more[0], found[-1])) if memory else (found, ())
        obs, reward, terminated, truncated, _ = envs.step(action.numpy())
        total, length = total + float(reward[0]), length + 1
        over = bool(terminated[0] or truncated[0])
    return total, length


def check(run, run_dir, monkeypatch, *flags, episodes=4):
    """ppo_eval's scores are those of the games as_trained, sampled and by most likely actions."""
    near = 1e-3 if "--onnx" in flags else 1e-9  # simulators make more of other roundings
    for way in ([], ["--deterministic"]):
        assert evaluate(monkeypatch, run_dir, "--episodes", episodes, *way, *flags) is None
        with pytest.MonkeyPatch.context() as patch:
            for name in ("Categorical", "Gaussian", "Heads") if way else ():
                if kind := vars(run).get(name):
                    patch.setattr(
                        kind, "sample", lambda x: x.mode() if callable(x.mode) else x.mode
                    )
            expected = [as_trained(run, seed) for seed in seeds_of(episodes)]
        assert len({*expected}) > 1, "a game that is always the same shows nothing"
        for found, other in zip(scores(run_dir), expected, strict=True):
            assert found == (pytest.approx(other[0], rel=near), other[1])


RUNS = {
    "ppo": [],
    "ppo_envpool": ["--env-id", "CartPole-v1"],
    "ppo_masked": ["--env-id", "Doors-v0"],
    "ppo_lstm_torchcompile": ["--hide", 0, 3],
    "ppo_trxl": [],
    "ppo_continuous_action": ["--env-id", "Hopper-v4"],
    "ppo_continuous_action_lstm": ["--env-id", "Pendulum-v1", "--hide", 0],
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_played_as_it_trained(name, tmp_path, monkeypatch):
    """With its memory, its mask, the entries that it did not see, its statistics as they were at
    the end, and actions that are clipped; by the script, and by a file."""
    run, run_dir = train(name, tmp_path, SHARP, flags=RUNS[name])
    check(run, run_dir, monkeypatch)
    if name in ("ppo", "ppo_lstm_torchcompile", "ppo_continuous_action"):
        check(run, run_dir, monkeypatch, "--onnx")
        assert b"ppo_eval" not in (run_dir / "policy.onnx").read_bytes(), "no folder of here"


HEADS = '''class Heads:
    """A choice of 3 and one of 2, by logits of 5."""

    def __init__(self, logits):
        self.logits = logits

    def parts(self):
        return [Categorical(x) for x in self.logits.split([3, 2], -1)]

    def sample(self):
        return torch.stack([x.sample() for x in self.parts()], -1)

    def mode(self):
        return torch.stack([x.mode() for x in self.parts()], -1)

    def log_prob(self, actions):
        return sum(x.log_prob(actions[..., i]) for i, x in enumerate(self.parts()))

    def entropy(self):
        return sum(x.entropy() for x in self.parts())


class Agent('''
PYTORCH = """class Categorical(torch.distributions.Categorical):
    def __init__(self, logits):
        super().__init__(logits=logits, validate_args=False)


class Agent("""
TURNED = "gym.wrappers.TransformObservation(env, lambda x: 9 * x[::-1].copy(), obs_space)"
FORKS = {
    "a sensor turned": [
        ("env if obs_space.shape else gym.wrappers.FlattenObservation(env)", TURNED),
    ],
    "PyTorch's distributions": [("class Agent(", PYTORCH)],
    "its own act, and names of main": [
        ("return agent.policy(obs).sample()", "return (agent.policy(obs).sample() + args.seed) % 2"),
        ("Categorical(self.actor(obs))", "Categorical(self.actor(obs.to(device)))"),
    ],
    "two heads": [
        ("class Agent(", HEADS),
        ("envs.single_action_space.n", "5"),
        ("Categorical(self.actor(obs))", "Heads(self.actor(obs))"),
        ("    assert discrete,", "    assert not discrete,"),
        ("(T + 1, N), dtype=torch.int64", "(T + 1, N, 2), dtype=torch.int64"),
    ],
}


class Two(gym.Env):
    """Pays what two choices have to do with what is seen; the second one may end it. Random numbers
    are those of Python, NumPy and PyTorch."""

    observation_space = gym.spaces.Box(-9.0, 9.0, (4,), np.float32)
    action_space = gym.spaces.MultiDiscrete([3, 2])

    def reset(self, *, seed=None, options=None):
        return self.look(), {}

    def look(self):
        drawn = [random.gauss(0, 1), np.random.normal(), torch.randn(()).item(), random.random()]
        self.seen = np.array(drawn, np.float32)
        return self.seen

    def step(self, action):
        assert self.action_space.contains(action)
        reward = float(self.seen[action[0]] + self.seen[3] * action[1])
        over = bool(self.seen[3] < 0.02 + 0.1 * action[1])
        return self.look(), reward, over, False, {}


gym.register("Two-v0", Two)


@pytest.mark.parametrize("fork", FORKS)
def test_a_fork_is_played_as_it_trained(fork, tmp_path, monkeypatch):
    flags = ["--env-id", "Two-v0"] if fork == "two heads" else []
    run, run_dir = train("ppo", tmp_path, *FORKS[fork], SHARP, flags=flags)
    if fork != "two heads":
        return check(run, run_dir, monkeypatch)
    for way in ([], ["--deterministic"], ["--onnx"]):  # a game is the same whatever was before
        assert evaluate(monkeypatch, run_dir, "--episodes", 3, *way) is None
        together = scores(run_dir)
        policy = ppo_eval.load(run_dir)
        one = ppo_eval.play(policy, seeds_of(3)[2], bool(way[:1] == ["--deterministic"]), 99)
        assert together[2] == (pytest.approx(one.total, rel=1e-5), len(one.actions))
