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
import onnxruntime
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


def likeliest(run, patch):
    """Has the distributions of a run sample their modes."""
    for name in ("Categorical", "Gaussian"):
        if kind := vars(run).get(name):
            patch.setattr(kind, "sample", lambda x: x.mode() if callable(x.mode) else x.mode)


def check(run, run_dir, monkeypatch, episodes=4):
    """ppo_eval's scores are those of the games as_trained, sampled and by most likely actions."""
    for way in ([], ["--deterministic"]):
        assert evaluate(monkeypatch, run_dir, "--episodes", episodes, *way) is None
        with pytest.MonkeyPatch.context() as patch:
            if way:
                likeliest(run, patch)
            expected = [as_trained(run, seed) for seed in seeds_of(episodes)]
        assert len({*expected}) > 1, "a game that is always the same shows nothing"
        assert scores(run_dir) == [(pytest.approx(total), length) for total, length in expected]


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
    the end, and actions that are clipped."""
    run, run_dir = train(name, tmp_path, SHARP, flags=RUNS[name])
    check(run, run_dir, monkeypatch)


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
        ("agent.policy(obs).sample()", "(agent.policy(obs).sample() + args.seed) % 2"),
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
    policy, played = ppo_eval.load(run_dir), []  # a game is the same, whatever was played before
    for flag in ([], ["--deterministic"]):
        assert evaluate(monkeypatch, run_dir, "--episodes", 3, *flag) is None
        game = ppo_eval.play(policy, seeds_of(3)[2], bool(flag), 999)
        assert scores(run_dir)[2] == (game.total, len(game.actions))
        played.append(scores(run_dir))
    assert played[0] != played[1]


EXPORTED = {
    "ppo": (["obs"], ["logits"], {}),
    "ppo_lstm": (["obs", "lstm_state"], ["logits", "next_lstm_state"], {}),
    "ppo_trxl": (["obs", "window", "ages"], ["logits", "next_window", "next_ages"], {}),
    "ppo_continuous_action": (["obs"], ["mean", "std"], {"env_id": "Hopper-v4"}),
    "ppo_pixels": (["obs"], ["logits"], {"env_id": "my_pixels:Reach-v0"}),
}


@pytest.mark.parametrize("name", EXPORTED)
def test_a_policy_as_a_file(name, tmp_path):
    """Any number of rows in, what the script gives out; it plays the script's games, whatever
    becomes of the weights, and says nothing of this machine."""
    inputs, outputs, args = EXPORTED[name]
    run_dir = untrained(name, tmp_path, *([SHARP] if name != "ppo_pixels" else []), **args)
    agent = torch.load(run_dir / "checkpoint.pt")["agent"]
    if "obs_rms.mean" in agent:  # statistics that are of something
        agent["obs_rms.mean"].normal_(), agent["obs_rms.var"].uniform_(0.1, 4.0)
    script, policy = (ppo_eval.load(changed(run_dir, agent=agent)) for _ in range(2))
    ppo_eval.export(policy, run_dir / "policy.onnx")
    text = (run_dir / "policy.onnx").read_bytes()
    assert b"ppo_eval" not in text and b"script.py" not in text
    session = onnxruntime.InferenceSession(text)
    assert [x.name for x in session.get_inputs()] == inputs
    assert [x.name for x in session.get_outputs()] == outputs
    shown = ppo_eval.Game(script, 1, {}).obs
    for rows in (1, 7):
        script.reset(rows=rows)
        obs = np.random.default_rng(rows).normal(scale=9.0, size=(rows, *shown.shape[1:]))
        fed = [torch.from_numpy(obs.astype(shown.dtype))]
        fed += [(9 * torch.rand(x.shape)).to(x) for x in script.state]
        found = session.run(None, dict(zip(inputs, (x.numpy() for x in fed), strict=True)))
        for x, expected in zip(found, script(fed), strict=True):
            np.testing.assert_allclose(x, expected.numpy(), rtol=0, atol=1e-4)
    for weights in policy.agent.parameters():
        weights.zero_()
    for deterministic in (False, True):
        one, two = (ppo_eval.play(x, 3, deterministic, 60) for x in (script, policy))
        assert one.total == pytest.approx(two.total, rel=1e-3)
        assert len(one.actions) == len(two.actions) > 5


BRANCHES = "self.actor(obs)", "self.actor(obs if obs.sum() > 0 else -obs)"
COUNTS = "self.actor(obs)", "self.actor(obs) * int(obs.shape[0])"


@pytest.mark.parametrize("change", [BRANCHES, COUNTS])
def test_what_no_file_can_hold(change, tmp_path, monkeypatch, capsys):
    """One line says so, and there is no file and no score."""
    run_dir = untrained("ppo", tmp_path, change)
    capsys.readouterr()
    assert evaluate(monkeypatch, run_dir, "--episodes", 1, "--onnx") == 2
    assert "error: argument run: " in capsys.readouterr().err.splitlines()[-1]
    assert not {"policy.onnx", "eval.json"} & {path.name for path in run_dir.iterdir()}


def alone(env_id, game):
    """Return and length of a game by its actions in an environment of its own, where it has ended
    with the last life, and how many lives were lost before."""
    if env_id.startswith("ALE/"):
        options = {"life_loss_info": True, "reward_clipping": False}
        env = gym.make_vec(env_id, 1, repeat_action_probability=0.0, **options)
        env.reset(seed=np.array([game.seed]))
    else:
        env = envpool.make(env_id, "gym", num_envs=1, seed=[game.seed], episodic_life=True)
        env.reset()
    total = length = ends = 0
    while True:
        _, reward, terminated, truncated, info = env.step(game.actions[length])
        total, length = total + float(np.sum(reward)), length + 1
        if info["lives"] == 0 or truncated:
            return total, length, ends
        ends += int(np.sum(terminated))


@pytest.mark.parametrize("name", ["ppo_atari", "ppo_atari_envpool"])
def test_a_game_of_atari_is_whole(name, tmp_path):
    """To its last life, with raw rewards, however often autoreset steps come in between."""
    env_id = {"ppo_atari": "ALE/Breakout-v5", "ppo_atari_envpool": "Breakout-v5"}[name]
    policy = ppo_eval.load(untrained(name, tmp_path, env_id=env_id))
    games = [ppo_eval.play(policy, seed, False, 27_000) for seed in (3, 4, 5)]
    assert len({len(game.actions) for game in games}) > 1
    for game in games:
        assert (game.total, len(game.actions), 4) == alone(env_id, game)


def test_a_memory_ends_with_a_life(tmp_path):
    """As in training, where act is told of it."""
    lasting = "4 * hidden_size), std=1.0)", "4 * hidden_size), std=6.0)"
    policy = ppo_eval.load(untrained("ppo_atari_envpool_lstm", tmp_path, SHARP, lasting))
    game = ppo_eval.play(policy, 5, False, 27_000)
    envs = policy.script.make_envs(policy.args, np.array([5]))
    obs, _ = envs.reset()
    torch.manual_seed(5)
    state, done, lives = policy.agent.initial_state(1), 0.0, 0
    for action in game.actions:
        probs, _, state = policy.agent(torch.from_numpy(obs), state * (1 - done))
        assert probs.sample().tolist() == action.tolist()
        state, done = state * (1 - done), 0.0
        obs, _, terminated, truncated, _ = envs.step(action)
        done = float((terminated | truncated).item())
        lives += done
    assert lives == 5


def test_no_game_of_training_is_scored(tmp_path, monkeypatch):
    """By the seeds that reach the simulator."""
    seeds, real = [], envpool.make

    def make(*args, seed, **options):
        seeds.append(seed)
        return real(*args, seed=seed, **options)

    monkeypatch.setattr(envpool, "make", make)
    run, run_dir = train("ppo_envpool", tmp_path, flags=["--env-id", "CartPole-v1"])
    assert evaluate(monkeypatch, run_dir, "--episodes", 20) is None
    trained, (nobody,), *games = seeds  # one is made for its spaces alone
    whole = np.random.SeedSequence([1, 0]).generate_state(64)  # 32 bits, as Gymnasium gets them
    assert trained == (whole[:2] >> 1).tolist() and nobody == 0
    assert [seed for (seed,) in games] == seeds_of(20)
    assert not {*seeds_of(20)} & {*(whole >> 1).tolist(), *whole.tolist()}
