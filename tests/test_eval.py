"""ppo_eval: whole games of the policy that trained, scored the same way twice, filmed, exported."""

import copy
import json
import random
import re
import runpy
from ctypes.util import find_library
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import doors
import envpool
import gymnasium as gym
import helpers
import imageio.v2 as imageio
import numpy as np
import onnxruntime
import pytest
from helpers import PPO, TINY, load, run_main, run_script

import torch

EVAL = PPO / "ppo_eval.py"
SHARP = "std=0.01", "std=3.0"  # first policies are nearly uniform; so that a wrong one is seen
ppo_eval = load("ppo_eval")


def edited(changes, text):
    """A script's text with these replaced."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


def train(name, runs_dir, *changes, flags=()):
    """Trains a fork of a script; its variables."""
    return run_main(name, *TINY, *flags, runs_dir=runs_dir, edit=partial(edited, changes))


def make(run, args, seed):
    """One environment of a script's, not yet reset, and what its reset takes."""
    args = copy.copy(args)
    args.num_envs = 1
    if "seeds" in run.make_envs.__code__.co_varnames:
        return run.make_envs(args, np.array([seed])), {}
    return run.make_envs(args, *[torch.device("cpu")] * ("warp" in run.FORMAT)), {"seed": seed}


def untrained(name, folder, *changes, returns=(), envs=None, **args):
    """The folder of a run that has learned nothing: a script's first weights."""
    path = folder / "script.py"
    folder.mkdir(exist_ok=True)
    path.write_text(edited(changes, (PPO / f"{name}.py").read_text()))
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
    monkeypatch.syspath_prepend(run_dir)  # so that its own path is forgotten, too
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    try:
        helpers.evaluate(run_dir, *flags)
    except SystemExit as ended:
        return ended.code


def scores(run_dir):
    """Returns and lengths of eval.json."""
    result = json.loads((run_dir / "eval.json").read_text())
    return [*zip(result["returns"], result["lengths"], strict=True)]


def seeds_of(episodes):
    """Of the games that are played."""
    drawn = np.random.SeedSequence(1, spawn_key=(1,)).generate_state(episodes)
    return (drawn >> 1).tolist()


def as_trained(run, seed):
    """Return and length of a game by what main left in memory; written without ppo_eval."""
    envs, seeded = make(run, run.args, seed)
    obs, _ = envs.reset(**seeded)
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


def most_likely(probs):
    return probs.logits.argmax(-1) if hasattr(probs, "logits") else probs.mean


def check(run, monkeypatch, episodes=3):
    """ppo_eval's scores are those of the games as_trained, sampled and by most likely actions."""
    run_dir = Path(run.run_dir)
    for way in ([], ["--deterministic"]):
        assert evaluate(monkeypatch, run_dir, "--episodes", episodes, *way) is None
        with pytest.MonkeyPatch.context() as patch:
            kind = vars(run).get("Gaussian") or run.Categorical
            if way:
                patch.setattr(kind, "sample", most_likely)
            expected = [as_trained(run, seed) for seed in seeds_of(episodes)]
        assert len({*expected}) > 1, "a game that is always the same shows nothing"
        near = partial(pytest.approx, rel=1e-9)  # a return is a sum in float64
        assert scores(run_dir) == [(near(total), length) for total, length in expected]


RUNS = {
    "ppo": [],
    "ppo_continuous_action_envpool": ["--env-id", "Hopper-v4"],
    "ppo_masked": ["--env-id", "Doors-v0"],
    "ppo_lstm_torchcompile": ["--hide", 0, 3],
    "ppo_trxl": [],
    "ppo_continuous_action": ["--env-id", "Hopper-v4"],
    "ppo_continuous_action_lstm": ["--env-id", "Hopper-v4", "--hide", 0],
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_played_as_it_trained(name, tmp_path, monkeypatch):
    """With its memory, its mask, the entries that it did not see, its statistics as they were at
    the end, and actions that are clipped."""
    check(train(name, tmp_path, SHARP, flags=RUNS[name]), monkeypatch)


PYTORCH = """class Categorical(torch.distributions.Categorical):
    def __init__(self, logits):
        super().__init__(logits=logits, validate_args=False)


class Agent("""
TURNED = "gym.wrappers.TransformObservation(env, lambda x: 9 * x[::-1].copy(), obs_space)"
OWN = [  # make_envs, Agent and act; names of main
    ("env if vector else gym.wrappers.FlattenObservation(env)", TURNED),
    ("class Agent(", PYTORCH),
    ("agent.policy(obs).sample()", "(agent.policy(obs).sample() + args.seed) % 2"),
    ("Categorical(self.actor(obs))", "Categorical(self.actor(obs.to(device)))"),
]


def test_a_fork_is_played_as_it_trained(tmp_path, monkeypatch):
    """A sensor turned, PyTorch's distributions, an act of its own that reads args."""
    check(train("ppo", tmp_path, *OWN, SHARP), monkeypatch)


EXPORTED = {
    "ppo": ("CartPole-v1", ["obs"], ["logits"]),
    "ppo_lstm": ("CartPole-v1", ["obs", "lstm_state"], ["logits", "next_lstm_state"]),
    "ppo_continuous_action": ("Hopper-v4", ["obs"], ["mean", "std"]),
    "ppo_pixels": ("my_pixels:Reach-v0", ["obs"], ["logits"]),
}


def program(name):
    """The guide's program that plays a file, with the guide's diff for a policy of this kind."""
    text = (PPO / "USING.md").read_text()
    (found,) = re.findall(
        r"```python\n(import gymnasium as gym\nimport onnx.+?)```", text, re.DOTALL
    )
    diffs = re.findall(r"```diff\n(.+?)```", text, re.DOTALL)
    diffs = dict(zip(("ppo_lstm", "ppo_continuous_action"), diffs, strict=True))
    for part in re.findall(r"(?m)(?:^[ -].*\n)+(?:^\+.*\n)+", diffs.get(name, "")):
        lines = part.splitlines(keepends=True)
        old, new = ("".join(x[1:] for x in lines if x[0] != sign) for sign in "+-")
        assert found.count(old) == 1, old
        found = found.replace(old, new)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTED)
def test_a_policy_as_a_file(name, tmp_path):
    """Any number of rows in, what the script gives out; it plays the script's games, whatever
    becomes of the weights, and says nothing of this machine. The guide's program plays it, too."""
    env_id, inputs, outputs = EXPORTED[name]
    sharp = [SHARP] if name != "ppo_pixels" else []
    run_dir = untrained(name, tmp_path, *sharp, env_id=env_id)
    agent = torch.load(run_dir / "checkpoint.pt")["agent"]
    if "obs_rms.mean" in agent:  # statistics that are of something
        agent["obs_rms.mean"].normal_(), agent["obs_rms.var"].uniform_(0.1, 4.0)
    script, policy = (ppo_eval.load(changed(run_dir, agent=agent)) for _ in range(2))
    ppo_eval.export(policy, run_dir / "policy.onnx")
    content = (run_dir / "policy.onnx").read_bytes()
    assert b"ppo_eval" not in content and b"script.py" not in content
    session = onnxruntime.InferenceSession(content)
    assert [x.name for x in session.get_inputs()] == inputs
    assert [x.name for x in session.get_outputs()] == outputs
    if name != "ppo_pixels":
        text, played = program(name).replace("runs/<run>", str(run_dir)), {}
        exec(text.replace("CartPole-v1", env_id), played)
        assert played["over"] and np.isfinite(played["total"])
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "seed"), [("ALE/Breakout-v5", 3), ("MsPacman-v5", 3), ("MsPacman-v5", 4)]
)
def test_a_game_of_atari_is_whole(env_id, seed, tmp_path):
    """As its actions are in an environment of its own: to the last life, with raw rewards, and the
    autoreset steps in between."""
    name = "ppo_atari" if env_id.startswith("ALE") else "ppo_atari_envpool"
    policy = ppo_eval.load(untrained(name, tmp_path, env_id=env_id))
    game = ppo_eval.play(policy, seed, False, 27_000)
    if name == "ppo_atari":
        env = gym.make_vec(env_id, 1, repeat_action_probability=0.0, reward_clipping=False)
        env.reset(seed=game.seed)
    else:
        env = envpool.make(env_id, "gym", num_envs=1, seed=[game.seed], episodic_life=True)
        env.reset()
    total, steps = 0.0, iter(map(env.step, game.actions))
    for _, reward, _, truncated, info in steps:
        total += float(reward[0])
        if info["lives"] == 0 or truncated:
            break
    else:
        pytest.fail("it is cut")
    assert game.total == total and [*steps] == []


@pytest.mark.slow
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
        probs, _, state = policy.agent(torch.from_numpy(obs), state)
        assert probs.sample().tolist() == action.tolist()
        state = state * (1 - done)
        obs, _, terminated, truncated, _ = envs.step(action)
        done = float((terminated | truncated).item())
        lives += done
    assert lives == 5


def test_no_game_of_training_is_scored(tmp_path, monkeypatch):
    """By the seeds that reach the simulator."""
    seeds, real = [], envpool.make

    def pool(*args, seed, **options):
        seeds.append(seed)
        return real(*args, seed=seed, **options)

    monkeypatch.setattr(envpool, "make", pool)
    run = train("ppo_envpool", tmp_path, flags=["--env-id", "CartPole-v1"])
    assert evaluate(monkeypatch, Path(run.run_dir), "--episodes", 20) is None
    trained, (nobody,), *games = seeds  # one is made for its spaces alone
    whole = np.random.SeedSequence([1, 0]).generate_state(64)  # 32 bits, as Gymnasium gets them
    assert trained == (whole[:2] >> 1).tolist() and nobody == 0
    assert [seed for (seed,) in games] == seeds_of(20)
    assert not {*seeds_of(20)} & {*(whole >> 1).tolist(), *whole.tolist()}


def test_what_is_told(tmp_path, monkeypatch, capsys):
    """The same command gives the same games; beside their mean stands that of training's last 100
    episodes, and a warning where it is outside of all these."""
    results = []
    for flags in ([], [], ["--seed", 2], ["--deterministic"], ["--max-steps", 5]):
        low, high = (900, 901) if results else (0, 99)  # 9e9 before are none of the last 100
        trained = [9e9] * 50 + [*range(low, high + 1)] * (50 if results else 1)
        run_dir = untrained("ppo", tmp_path, SHARP, returns=trained)
        assert evaluate(monkeypatch, run_dir, "--episodes", 3, *flags) is None
        result = json.loads((run_dir / "eval.json").read_text())
        table = capsys.readouterr().out.splitlines()
        assert table[0] == f"plays: {run_dir}/script.py" and result["script"] == table[0][7:]
        for i, (total, length) in enumerate(scores(run_dir), 1):
            assert table[2 + i].split() == [str(i), f"{total:.2f}", str(length)]
        found = {name: getattr(np, name)(result["returns"]) for name in ("mean", "std", "median")}
        assert {name: result[name] for name in found} == pytest.approx(found)
        assert table[6] == "mean {mean:.2f}, std {std:.2f}, median {median:.2f}".format(**found)
        assert ("3 of 3 games were cut after 5 steps" in table[7]) == ("--max-steps" in flags)
        told = f"training: mean {(low + high) / 2:.2f}, {low:.2f} to {high:.2f}, last 100 episodes"
        assert told in table[-2:] and result["training_mean"] == (low + high) / 2
        near = low <= found["mean"] <= high or "--deterministic" in flags
        assert (told == table[-1]) == near
        assert told == table[-1] or table[-1].startswith("warning: outside that")
        results.append(scores(run_dir))
    assert results[0] == results[1] and all(x != results[0] for x in results[2:])


class Won(gym.Wrapper):
    """Says that it is won where the cart is on the right."""

    ends = []

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        won = obs[0] > 0  # np.bool_
        self.ends += [won] * (terminated or truncated)
        told = {"is_success": won or None} if won or len(self.ends) % 2 else {}
        return obs, reward, terminated, truncated, info | told


def test_success_is_told(tmp_path, monkeypatch, capsys):
    """The share of games at whose end info says so; some that are lost say nothing."""
    gym.register("Won-v0", lambda: Won(gym.make("CartPole-v1")))
    run_dir = untrained("ppo", tmp_path, env_id="Won-v0")
    assert evaluate(monkeypatch, run_dir, "--episodes", 10) is None
    share = np.mean(Won.ends)
    assert len(Won.ends) == 10 and 0 < share < 1
    assert json.loads((run_dir / "eval.json").read_text())["success"] == share
    assert f", success {share:.0%}" in capsys.readouterr().out


REFUSED = {
    "a syntax error": ("class Agent(", "class Agent((", "SyntaxError: "),
    "no Agent": ("class Agent", "class Policy", "has no attribute 'Agent'"),
    "another package": ("import tyro", "import tyro, beside", "No module named 'beside' (or --scr"),
    "more for Agent": ("self, envs", "self, envs, task", "argument: 'task'"),
    "more for act": ("act(agent, obs)", "act(agent, obs, task)", "argument: 'task'"),
    "more for make_envs": ("make_envs(args)", "make_envs(args, level)", "argument: 'level'"),
    "weights": ("64", "32", "size mismatch for critic.0.weight"),
    "no environment": ("gym.make(args.env_id", 'gym.make("Nowhere-v0"', "Nowhere"),
    "an end": ("LOSSES =", "sys.exit(); LOSSES =", "SystemExit"),
    "a draw of its own": ("agent.policy(obs)", "Categorical(agent.actor(obs))", "act samples from"),
    "a file that differs": ("self.actor(obs)", "self.actor(obs) * int(obs.shape[0])", "rror: "),
    "version 0.2": (None, {"adam": {0: {}}}, "a run of version 0.2; score it by that version's"),
    "another file": (None, {"agent": random.Random(1)}, "Weights only load failed"),
}


SLOW = [pytest.mark.slow]  # it is exported
REASONS = [pytest.param(x, marks=SLOW * ("file that" in x)) for x in REFUSED]


@pytest.mark.parametrize("what", REASONS)
def test_a_run_that_cannot_play(what, tmp_path, monkeypatch, capsys):
    """One line says why, with status 2; nothing is written, and no other script plays."""
    old, new, message = REFUSED[what]
    path = untrained("ppo", tmp_path) / "script.py"
    path.write_text(edited([(old, new)] if old else [], path.read_text()))
    changed(tmp_path, **({} if old else new))
    capsys.readouterr()
    flags = ["--onnx"] if "file that" in what else []
    assert evaluate(monkeypatch, tmp_path, "--episodes", 1, "--deterministic", *flags) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "error: argument run: " in line and message in line
    assert {path.name for path in tmp_path.iterdir()} <= {"checkpoint.pt", "script.py"}


def test_what_lies_beside_a_script(tmp_path, monkeypatch):
    """Is found where --script names the file; a coding line and a byte order mark are Python's."""
    run_dir = untrained("ppo", tmp_path / "run")
    text = (run_dir / "script.py").read_text().replace("import tyro", "import tyro, lies_beside")
    (tmp_path / "mine.py").write_bytes(b"\xef\xbb\xbf# coding: utf-8\n" + text.encode())
    (tmp_path / "lies_beside.py").touch()
    assert evaluate(monkeypatch, run_dir, "--script", tmp_path / "mine.py") is None
    assert len(scores(run_dir)) == 20


class Seen(doors.Still):
    """Three steps. What is seen, of any form, is drawn by NumPy's, Python's, PyTorch's numbers."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, space, render_mode=None, heights=(32, 32)):
        self.observation_space, self.render_mode, self.heights = space, render_mode, heights

    def look(self):
        drawn = [random.random(), np.random.random(), torch.rand(()).item()]
        self.observation_space.seed(int(1e9 * sum(drawn)))
        return self.observation_space.sample()

    def step(self, action):
        self.t += 1
        return self.look(), float(action) + random.random(), self.t == 3, False, {}

    def render(self):
        return np.full((self.heights[self.t // 2], 16, 3), [0, 80 * self.t, 9], np.uint8)


BOX, THREE = gym.spaces.Box(-1.0, 1.0, (2,), np.float32), gym.spaces.Discrete(3, start=1)
FORMS = [BOX, THREE, gym.spaces.Dict({"b": BOX, "a": THREE}), gym.spaces.Tuple([THREE, BOX])]
for number, form in enumerate(FORMS):
    gym.register(f"Seen{number}-v0", partial(Seen, form))
gym.register("Grows-v0", partial(Seen, BOX, heights=(32, 48)))
gym.register("Blind-v0", lambda: type("Blind", (Seen,), {"metadata": {}})(BOX))


@pytest.mark.parametrize("env_id", ["Seen0-v0", "Seen1-v0", "Seen2-v0", "Seen3-v0", "Pendulum-v1"])
def test_a_policy_acts_in_a_program_of_ones_own(env_id, tmp_path):
    """On what an environment shows, as ppo_eval plays it, whatever was played before; its actions
    are within bounds."""
    name = "ppo_continuous_action" if env_id == "Pendulum-v1" else "ppo"
    sharp = "std=0.01", "std=99.0"
    policy = ppo_eval.load(untrained(name, tmp_path, sharp, env_id=env_id))
    games = [ppo_eval.play(policy, seed, True, 999).total for seed in (7, 8, 7)]
    assert games[0] == games[2] != games[1]
    env, total, over = gym.make(env_id), 0.0, False
    for start in (random.seed, np.random.seed, torch.manual_seed):
        start(7)
    obs, _ = env.reset(seed=7)
    policy.reset()
    while not over:
        action = policy.act(obs)
        assert env.action_space.contains(action)
        obs, reward, terminated, truncated, _ = env.step(action)
        total, over = total + float(reward), terminated or truncated
    assert total == pytest.approx(games[0])


needs_egl = pytest.mark.skipif(find_library("EGL") is None, reason="needs libegl1")
FILMS = [  # PettingZoo's are in test_pettingzoo.py
    ("ppo", "Seen0-v0", 30),
    ("ppo_atari", "ALE/Breakout-v5", 15),
    ("ppo_atari_envpool", "Breakout-v5", 15),
    ("ppo_pixels", "MinAtar/Breakout-v1", 30),
    pytest.param("ppo_continuous_action_envpool", "Hopper-v4", 50, marks=needs_egl),
    pytest.param("ppo_continuous_action", "Hopper-v4", 125, marks=needs_egl),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "env_id", "fps"), FILMS)
def test_a_film(name, env_id, fps, tmp_path, monkeypatch, capfd):
    """Of the best game, in colours: a frame before it, and one after each step. EnvPool's MuJoCo in
    a process, as it takes its renderer when it is first used."""
    run_dir = untrained(name, tmp_path, env_id=env_id)
    flags = ["--episodes", 2, "--max-steps", 9, "--capture-video", "--video-game", "best"]
    if "action_envpool" in name:
        print(run_script(EVAL, run_dir, *flags, cwd=tmp_path, gpu=True).stdout)
    else:
        assert evaluate(monkeypatch, run_dir, *flags) is None
    number = int(np.argmax([total for total, _ in scores(run_dir)]))
    total, length = scores(run_dir)[number]
    film = imageio.get_reader(run_dir / "video.mp4")
    frames = [*film.iter_data()]
    told = f"game {number + 1}, return {total:.2f}, {length + 1} frames"
    assert f"{run_dir}/video.mp4: {told}\n" in capfd.readouterr().out
    assert len(frames) == length + 1 and film.get_meta_data()["fps"] == fps
    assert any((a != b).any() for a, b in zip(frames, frames[1:], strict=False))
    assert np.abs(np.diff(frames[2].astype(int), axis=-1)).max() > 40


UNSEEN = {"Blind-v0": "it has no render_mode rgb_array", "Grows-v0": "All images in a movie"}


@pytest.mark.parametrize("env_id", UNSEEN)
def test_what_makes_no_film(env_id, tmp_path, monkeypatch):
    """One line says so; the scores are there."""
    run_dir = untrained("ppo", tmp_path, env_id=env_id)
    ended = evaluate(monkeypatch, run_dir, "--episodes", 2, "--capture-video")
    assert ended.startswith(f"--capture-video: nothing renders {env_id}: ")
    assert UNSEEN[env_id] in ended and "\n" not in ended and len(scores(run_dir)) == 2


@pytest.mark.slow
def test_tasks_of_the_device(tmp_path, monkeypatch, capsys):
    """Gymnasium's stands in for one of TASKS, which is said; a class of one's own plays itself."""
    name, envs = "ppo_continuous_action_warp", gym.make_vec("HalfCheetah-v5", 1)
    run_dir = untrained(name, tmp_path / "task", envs=envs, env_id="HalfCheetah-v5")
    assert evaluate(monkeypatch, run_dir, "--episodes", 1, "--max-steps", 5) is None
    line = capsys.readouterr().out.splitlines()[0]
    assert line == f"plays: {run_dir}/script.py; Gymnasium's task stands in for MuJoCo Warp's"
    game, total = ppo_eval.play(ppo_eval.load(run_dir), 3, False, 30), 0.0
    envs.reset(seed=3)
    for action in game.actions:
        total += envs.step(action.clip(-1, 1))[1][0]
    assert total == game.total and max(np.abs(x).max() for x in game.actions) > 1
    policy = ppo_eval.load(untrained(name, tmp_path / "own", env_id="my_warp_env:Pendulum"))
    games = [ppo_eval.play(policy, seed, False, 999) for seed in (1, 2, 1)]
    assert {len(game.actions) for game in games} == {200}
    assert games[0].total == games[2].total != games[1].total
