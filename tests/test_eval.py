"""ppo_eval: whole games with a trained agent, scored the same way twice, filmed frame by frame."""

import inspect
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
from gymnasium.spaces import Box
from helpers import (
    PAIRS,
    PPO,
    ROOT,
    TINY,
    agent,
    load,
    memory,
    patched,
    random_storage,
    run_main,
    run_script,
    said,
    seen,
    spaces,
    task,
)

import torch

EVAL = PPO / "ppo_eval.py"
GAMES = {  # that are short under an agent that has learned nothing, by task
    "atari": "Breakout-v5",
    "ale": "ALE/Breakout-v5",
    "continuous": "Hopper-v4",
    "many": "Hopper-v4",
    "warp": "Hopper-v5",
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
    return folder


def evaluate(monkeypatch, run_dir, *flags):
    """Runs ppo_eval in this process; what it says at its end, None if all is well."""
    monkeypatch.setattr("sys.argv", [*map(str, [EVAL, run_dir, *flags])])
    try:
        runpy.run_path(str(EVAL), run_name="__main__")
    except SystemExit as ended:
        return ended.code


def formats(name):
    """What a script writes as its checkpoints' format."""
    return re.findall(r'"format": "(.*?)"', (PPO / f"{name}.py").read_text())


@pytest.mark.parametrize("pair", PAIRS)
def test_the_network_is_the_agents(pair):
    """A player gives what Agent gives, for the weights of each pair; each script has its player."""
    sizes = {"trxl_memory_length": 4, "trxl_num_layers": 2} if "trxl" in pair[0] else {}
    network = agent(pair[0], args=load(pair[0]).Args(**sizes))
    rng = torch.Generator().manual_seed(1)
    for weights in network.parameters():  # none is 0, as biases are at first
        weights.data += 0.1 * torch.randn(weights.shape, generator=rng)
    args = {"env_id": "", "hide": None, "repeat_action_probability": 0.0, "env_kwargs": "{}"}
    weights = network.state_dict()
    checkpoint = {"args": args, "agent": weights, "obs_rms": [0.0, 1.0, 1.0]}
    players = load("ppo_eval").PLAYERS
    (written,) = formats(pair[0])
    assert formats(pair[1]) == [written] and players.keys() == set(SHORT)
    player = players[written](checkpoint, deterministic=False)
    storage = random_storage(pair[0], 5, 2)[0]
    obs = storage["obs"][0]  # (N, ...)
    with torch.no_grad():
        if "lstm" in pair[0]:  # with its memory, which ends hold apart
            storage["dones"][2] = torch.tensor([1, 0])
            rows, (state,) = storage["obs"].flatten(0, 1), memory(pair[0], 5, 2)[1]
            probs = network(rows, storage["dones"].flatten(), state)[0]
            head = probs.base_dist.loc if "continuous" in pair[0] else probs.logits
            expected = [head.unflatten(0, (6, 2))]
        elif "trxl" in pair[0]:  # rows of one episode, of which each sees five
            window, expected = torch.zeros(2, 4, 2, 64), []
            for t, obs in enumerate(storage["obs"]):
                probs, _, added = network(obs, window, torch.tensor([t, t]))
                window = torch.cat([window[:, 1:], added.unsqueeze(1)], 1)
                expected.append(probs.logits)
            expected = [torch.stack(expected)]
        else:
            rows = {key: rows[0] for key, rows in storage.items()}
            probs, *_ = network(*seen(pair[0], rows))
            if "continuous" in pair[0]:
                expected = probs.base_dist.loc, probs.base_dist.scale
            else:
                expected = [probs.logits]
    if "masked" in pair[0]:
        player.mask = storage["masks"][0]
    if "lstm" in pair[0]:
        player.lstm_state, found = state[0] if state.dim() == 4 else state, []
        policy, player.action_space = player.policy, spaces(pair[0]).single_action_space
        player.policy = lambda obs: found.extend(policy(obs)) or found[-len(player.outputs) :]
        for obs, done in zip(storage["obs"], storage["dones"].bool(), strict=True):
            player.done = done.numpy()
            player.act(obs.numpy(), [rng, rng])
        if "continuous" in pair[0]:
            found = [torch.stack(found[::2])]  # means and deviations alternate
        else:
            found = [torch.stack(found).log_softmax(-1)]
    elif "trxl" in pair[0]:
        player.window, player.ages = torch.zeros(2, 4, 2, 64), torch.zeros(2, dtype=torch.int64)
        found = [torch.stack([player.policy(obs)[0] for obs in storage["obs"]]).log_softmax(-1)]
    elif "continuous" in pair[0]:
        found = player.policy(obs)
    else:
        found = [player.policy(obs)[0].log_softmax(-1)]
    # attention divides the differences of rows by their size, and their rounding with them
    close = {"rtol": 1e-4, "atol": 1e-4} if "trxl" in pair[0] else {}
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, **close)


def test_one_text_of_the_masks():
    """In evaluation as in training."""
    names = "ppo_masked", "ppo_masked_torchcompile", "ppo_eval"
    assert len({inspect.getsource(load(name).action_masks) for name in names}) == 1


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
    assert lines[2].split() == ["1", word, "5"] and lines[-1].startswith(f"mean {word}, ")
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
    assert {path.name for path in run_dir.iterdir()} == {"checkpoint.pt", "eval.json", "video.mp4"}


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
    assert f"argument run: {env_id} needs what is not installed: " in line and package in line


def test_frozen_statistics_scale_as_in_training(tmp_path):
    """Observations are scaled by the mean and variance of training, which they do not move."""
    run = run_main(
        "ppo_continuous_action", "--env-id", "Hopper-v4", "--num-steps", 64,
        "--num-minibatches", 2, "--total-timesteps", 256, runs_dir=tmp_path,
    )  # fmt: skip
    (run_dir,) = tmp_path.iterdir()
    player = load("ppo_eval").Continuous(checkpoint_of(run_dir), deterministic=True)
    player.action_space = Box(-np.inf, np.inf, (3,))
    obs = np.random.default_rng(0).normal(size=(5, 11)) * [100] + 1
    scaled = np.clip((obs - run.obs_rms.mean) / np.sqrt(run.obs_rms.var + 1e-8), -10, 10)
    with torch.no_grad():
        expected = run.agent(torch.from_numpy(scaled.astype(np.float32)))[0].mean.numpy()
    for _ in range(2):
        np.testing.assert_array_equal(player.act(obs, []), expected)


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
    """Gives what the player gives, with its normalisation, its mask or its memory's state, for one
    row and for seven, of what the environment shows; and says nothing of this machine."""
    path = exported(eager) / "policy.onnx"
    player = load("ppo_eval").Args(run=str(path.parent)).player
    envs, first = player.reset([1, 2])
    shape = first.shape[1:] if "atari" in eager else first.shape[-1:]
    session, rng = onnxruntime.InferenceSession(path), np.random.default_rng(1)
    for rows in (1, 7):
        fed = {"obs": rng.normal(scale=3.0, size=(rows, *shape)).astype(first.dtype)}
        if "atari" in eager:
            fed["obs"] = rng.integers(0, 256, (rows, *shape), np.uint8)
        if "masked" in eager:
            fed["mask"] = rng.random((rows, 5)) < 0.5
        if "lstm" in eager:
            size = player.lstm_state.shape[-1]
            fed["lstm_state"] = rng.normal(size=(2, rows, size)).astype(np.float32)
        if "trxl" in eager:  # of games that began a while ago, or just now
            past = rows, *player.window.shape[1:]
            fed["window"] = rng.normal(size=past).astype(np.float32)
            fed["ages"] = rng.integers(0, 40, rows)
        for name in player.reads:
            setattr(player, name, torch.from_numpy(fed[name]))
        expected = dict(
            zip(player.outputs, player.policy(torch.from_numpy(fed["obs"])), strict=True)
        )
        expected |= {f"next_{name}": getattr(player, name) for name in player.keeps}
        assert [x.name for x in session.get_outputs()] == [*expected]
        for found, x in zip(session.run(None, fed), expected.values(), strict=True):
            np.testing.assert_allclose(found, x.numpy(), rtol=0, atol=1e-5)
            assert len(found) == rows or found.shape[1] == rows
    assert b"ppo_eval" not in path.read_bytes()


def onnx_of(network, path):
    """A player of several agents whose network is another, by what is exported of it."""
    evaluation = load("ppo_eval")
    checkpoint = {"args": {"env_id": "meadow", "env_kwargs": "{}"}, "agent": network}
    player = evaluation.SharedPolicy(checkpoint, deterministic=False)
    evaluation.Exported(player, str(path), SimpleNamespace(close=lambda: None))
    return player


def test_what_plays_is_the_file(tmp_path, capfd):
    """Of a fork with wider layers too; what becomes of the weights is all one to it. To write it
    says nothing."""
    rng = torch.Generator().manual_seed(1)
    shapes = {"0": (48, 3), "2": (40, 48), "4": (4, 40)}
    network = {f"actor.{x}.weight": torch.randn(y, generator=rng) for x, y in shapes.items()}
    network |= {f"actor.{x}.bias": torch.randn(y[0], generator=rng) for x, y in shapes.items()}
    player, obs = onnx_of(network, tmp_path / "policy.onnx"), torch.randn(2, 3, 3, generator=rng)
    expected = player.logits(obs)
    player.policy(obs)
    assert capfd.readouterr() == ("", "")
    for weights in network.values():
        weights.zero_()
    torch.testing.assert_close(player.policy(obs)[0], expected, rtol=0, atol=1e-5)


def test_a_network_that_cannot_be_traced(tmp_path, capsys, monkeypatch):
    """Of a fork: one line."""
    evaluation = load("ppo_eval")
    branch = lambda player, obs: obs if obs.sum() > 0 else -obs  # noqa: E731
    monkeypatch.setattr(evaluation.SharedPolicy, "logits", branch)
    with pytest.raises(SystemExit) as ended:
        onnx_of({}, tmp_path / "policy.onnx").policy(torch.randn(2, 3, 3))
    lines = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and len(lines) == 1 and "error: argument --onnx: " in lines[0]
    assert not [*tmp_path.iterdir()]


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
    guide = (PPO / "README.md").read_text()
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
    evaluation, bar = load("ppo_eval"), SimpleNamespace(update=lambda: None)
    for eager, printed in zip(kinds, done.stdout.split(), strict=True):
        args = evaluation.Args(run=str(exported(eager)), deterministic=True)
        (game,) = evaluation.play(args.player, [1], bar, args.max_steps)
        assert float(printed) == pytest.approx(game.total, rel=1e-3), eager


@pytest.mark.slow
@pytest.mark.parametrize("eager", SHORT)
def test_games_are_scored_and_repeat(eager, runs, tmp_path, capsys, monkeypatch):
    """The same command gives the same games, to the last digit."""
    results, limit = [], {"max_num_frames_per_episode": 2000}  # nobody may serve after a lost life
    monkeypatch.setattr(gym, "make_vec", partial(gym.make_vec, **limit))
    ways = [["--num-envs", 2], ["--num-envs", 2], ["--seed", 2], ["--deterministic"]]
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
        assert len(table) == 6 and f"mean {result['mean']:.2f}" in table[-1]
        for i, (total, length) in enumerate(zip(result["returns"], result["lengths"], strict=True)):
            assert table[2 + i].split() == [str(i + 1), f"{total:.2f}", str(length)]
        results.append((result["returns"], result["lengths"]))
    assert results[0] == results[1]
    assert all(result != results[0] for result in results[2:])
    if "atari" in eager:  # five lives each, not one; a lost one serves again, without an action
        assert min(results[0][1]) > 100 and max(results[-1][1]) < 5000


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
    """Of games side by side, which end one after the other, each is scored as it is alone."""
    evaluation = load("ppo_eval")
    player, seeds = evaluation.Args(run=str(runs[eager])).player, [*range(3, 11)]
    bar, most = SimpleNamespace(update=lambda: None), evaluation.Args.max_steps
    games = evaluation.play(player, seeds, bar, most)
    assert len({len(game.actions) for game in games}) > 2
    for seed, game in zip(seeds, games, strict=True):
        total, length, lost = alone(player.env_id, seed, game.actions)
        assert (game.seed, game.total, len(game.actions)) == (seed, total, length)
        assert lost == (4 if "atari" in eager else 0), "autoreset steps in between"


def test_no_game_of_training_is_scored(runs, tmp_path, monkeypatch):
    """Seeds as they reach EnvPool, where every game is over at once: of training, of evaluation."""
    seeds = []

    def make(env_id, seed, **options):
        seeds.append(seed)
        ones, obs = np.ones(len(seed)), np.zeros((len(seed), 4, 84, 84), np.uint8)
        info = {"lives": ones, "terminated": ones, "reward": ones}
        step = obs, ones, ones > 0, ones > 1, info
        game = SimpleNamespace(reset=lambda: (obs, info), step=lambda actions: step)
        game.close, game.single_action_space = lambda: None, gym.spaces.Discrete(4)
        return game

    monkeypatch.setattr(envpool, "make", make)
    for count in (4, 64):
        flags = [*TINY, "--num-envs", count, "--num-steps", 2, "--total-timesteps", 2 * count]
        run_main("ppo_atari_envpool", *flags, runs_dir=tmp_path / str(count))
    run_dir = shutil.copytree(runs["ppo_atari_envpool"], tmp_path / "run")
    assert evaluate(monkeypatch, run_dir) is None
    few, many, *batches = seeds
    scored = {seed for batch in batches for seed in batch}
    whole = np.random.SeedSequence([1, 0]).generate_state(64)  # 32 bits, as Gymnasium gets them
    assert many[:4] == few and many == (whole >> 1).tolist() and len(scored) == 20
    assert not scored & {*many, *whole.tolist()}


def test_discrete_actions_are_drawn_or_likeliest(runs):
    Atari, checkpoint = load("ppo_eval").Atari, checkpoint_of(runs["ppo_atari_envpool"])
    checkpoint["agent"]["actor.weight"].mul_(30.0)  # probabilities far from equal
    obs = random_storage("atari", 3, 4)[0]["obs"][0].numpy()  # (4, 4, 84, 84)
    likeliest = Atari(checkpoint, deterministic=True).act(obs, [])
    generators = [torch.Generator().manual_seed(i) for i in range(4)]
    player = Atari(checkpoint, deterministic=False)
    logits = player.logits(torch.from_numpy(obs))
    player.logits = lambda obs: logits
    drawn = torch.tensor(np.array([player.act(obs, generators) for _ in range(3000)]))
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
    Args, good = load("ppo_eval").Args, checkpoint_of(runs["ppo_continuous_action"])
    known = f"no checkpoint of {' or '.join(load('ppo_eval').PLAYERS)}"
    assert Args(run=str(runs["ppo_atari_envpool"])).player.env_id == "Breakout-v5"
    done = run_script(EVAL, tmp_path, cwd=tmp_path, gpu=True)
    message = said(done.stderr)
    assert done.returncode == 2 and known in message and "No such file" in message
    assert "Traceback" not in done.stderr and not done.stdout and not [*tmp_path.iterdir()]

    bad = tmp_path / "checkpoint.pt"
    contents = [{**good, "format": "dqn 1"}, {"model": 1}, [1, 2], {**good, "args": {}}]
    contents += [{k: v for k, v in good.items() if k != key} for key in ("agent", "obs_rms")]
    for content in [*contents, {**good, "agent": random.Random(1)}]:
        torch.save(content, bad)
        with pytest.raises(ValueError, match=known):
            Args(run=str(tmp_path))
    for written in ("ppo_continuous_action", "ppo_continuous_action 2"):  # of old runs
        torch.save({**good, "format": written}, bad)
        assert Args(run=str(tmp_path)).checkpoint["global_step"] == 48
    for flags in ({"episodes": 0}, {"num_envs": 0}, {"seed": -1}):
        with pytest.raises(ValueError, match="give 1 or more"):
            Args(run=str(tmp_path), **flags)
    bad.write_bytes(bad.read_bytes()[:-5000])
    with pytest.raises(ValueError, match=known):
        Args(run=str(tmp_path))
