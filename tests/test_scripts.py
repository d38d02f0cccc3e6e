"""The scripts as commands: alone in an empty folder, their flags, their outputs, bad input."""

import ast
import json
import re
import shutil
import sys
import tomllib
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import envpool
import gymnasium as gym
import numpy as np
import pytest
from helpers import (
    FAST,
    IN_TURN,
    PPO,
    ROOT,
    SCRIPTS,
    TINY,
    agent,
    kind,
    load,
    run_main,
    run_script,
    said,
    scalars,
    task,
)
from lib import parity
from lib.parity import assert_the_same
from test_parity import pairs

import torch

SUMMARY = "script args device global_step complete sps mean_return episodes"
CHECKPOINT = "format args global_step episodic_returns agent adam rng"


@pairs
def test_what_a_run_leaves(eager, fast, tmp_path, capsys):
    """Curves, a summary, a checkpoint from which the same network can be made; in the environment
    itself and by default both versions compute the same, to the last bit."""
    runs = []
    for name, flags in ((eager, []), (fast, ["--cudagraphs"])):
        flags = [*TINY, *flags, "--measure-burnin", 1]
        runs.append(run_main(name, *flags, runs_dir=tmp_path / name))
        check_what_is_left(name, runs[-1], tmp_path / name, capsys.readouterr().out.splitlines())
    assert_the_same(*map(parity.curves, runs), *runs)


def check_what_is_left(name, run, folder, printed):
    rows = 8 * run.args.num_envs  # environment steps in an iteration
    expected = ["--cudagraphs needs a CUDA device: running without", "mode: eager"]
    expected = expected if name in FAST else []
    expected.append(f"{name} on cpu: {run.args.env_id}, {run.args.num_envs} envs x 8 steps")
    if task(name) == "warp":
        cache = run.wp.config.kernel_cache_dir
        expected.append(f"kernels: compiled once, for about a minute, into {cache}")
    assert printed[:-1] == expected
    (run_dir,) = folder.iterdir()
    assert printed[-1] == f"{run_dir}: {run.score}, {run.sps} steps/s"
    assert re.fullmatch(rf"[\w.]+[-_]v\d__{name}__1__\d{{6}}-\d{{6}}-\d+", run_dir.name)
    assert (run_dir / "script.py").read_bytes() == (PPO / f"{name}.py").read_bytes()
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary.pop("mode", "eager") == "eager" and list(summary) == SUMMARY.split()
    assert (summary["script"], summary["global_step"]) == (name, 3 * rows)
    assert summary["complete"] and isinstance(summary["sps"], int) and summary["sps"] > 0
    curves = scalars(run_dir)
    assert {tag for tag in curves if tag.startswith("losses/")} == {
        f"losses/{loss}" for loss in (*load(name).LOSSES, "explained_variance")
    }
    lr = load(name).Args.learning_rate
    expected = [(rows, lr), (2 * rows, lr * 2 / 3), (3 * rows, lr / 3)]
    np.testing.assert_allclose(curves["charts/learning_rate"], expected, rtol=1e-6)
    assert [step for step, _ in curves["charts/SPS"]] == [2 * rows, 3 * rows]

    checkpoint = torch.load(run_dir / "checkpoint.pt", weights_only=True)
    statistics = {"return_rms"} if "continuous" in name else set()
    if "rnd" in name:
        statistics = {"bonus_rms", "bonus_sums"}
    of_envs = {"envs"} if "warp" in name else set()  # their state, of those that have one
    assert checkpoint.keys() == set(CHECKPOINT.split()) | statistics | of_envs
    network = agent(name, run.envs, run.args)
    network.load_state_dict(checkpoint["agent"])
    for trained, loaded in zip(run.agent.parameters(), network.parameters(), strict=True):
        assert torch.equal(trained, loaded)
    assert checkpoint["args"] == summary["args"] and checkpoint["global_step"] == 3 * rows
    assert list(checkpoint["rng"]) == ["cpu"]
    learn = [key for key, x in run.agent.named_parameters() if x.requires_grad]
    steps = {float(checkpoint["adam"][key]["step"]) for key in learn}
    assert steps == {3 * 2 * 2}, "iterations, epochs and minibatches"
    if statistics:
        assert torch.equal(checkpoint["agent"]["obs_rms.var"], run.agent.obs_rms.var)
        least = run.N * 20 if "continuous" in name else 1
        assert least < checkpoint["agent"]["obs_rms.count"], "of transitions in three rollouts"


@pytest.mark.slow
@pytest.mark.parametrize("name", FAST)
def test_what_is_compiled_is_compiled_whole(name, tmp_path):
    """A graph for each torch.compile, of which nothing is left to Python; without kernels."""
    torch.compiler.reset()
    with parity.counted("eager") as graphs:
        run = run_main(name, *TINY, "--compile", "--total-timesteps", 32, runs_dir=tmp_path)
    text = (PPO / f"{name}.py").read_text()
    assert run.mode == run.summary["mode"] == "compile"
    assert len(graphs) == text.count("= torch.compile(") + text.count(".compile()\n") > 0
    assert all(graphs.values()), graphs


def test_alone_in_an_empty_folder(tmp_path):
    """Copied elsewhere, a script trains; that others import nothing from here, test_pair shows."""
    script = shutil.copy(PPO / "ppo.py", tmp_path / "mine.py")
    done = run_script(script, *TINY, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert run_dir.name.startswith("CartPole-v1__mine__1__")
    assert json.loads((run_dir / "summary.json").read_text())["script"] == "mine"


def without(text, name):
    """The text of a script without a function and without its one call, which is a line."""
    (function,) = [x for x in ast.parse(text).body if getattr(x, "name", "") == name]
    lines = text.splitlines()
    left = "\n".join([*lines[: function.lineno - 1], *lines[function.end_lineno :]])
    left, count = re.subn(rf"^( +){name}\(.*\)$", r"\1pass", left, flags=re.MULTILINE)
    assert count == 1 and f"{name}(" not in left
    return left


@pytest.mark.parametrize("name", ["ppo", "ppo_pettingzoo"])
def test_a_fork_drops_what_is_not_ppo(name, tmp_path):
    """Checkpoint and signals, each function with its one call: the copy trains."""

    def fork(text):
        for function in ("save_checkpoint", "catch_signals"):
            text = without(text, function)
        return text

    run = run_main(name, *TINY, runs_dir=tmp_path, edit=fork)
    assert run.summary["complete"] and run.global_step == 48
    assert {path.name.partition(".")[0] for path in Path(run.run_dir).iterdir()} == {
        "events",
        "summary",
    }


@pytest.mark.parametrize("name", [*SCRIPTS, "ppo_eval"])
def test_pep723_names_the_imports(name):
    text = (PPO / f"{name}.py").read_text()
    block = re.search(r"^# /// script\n((?:#.*\n)+?)# ///$", text, re.MULTILINE).group(1)
    lines = [line.removeprefix("#").removeprefix(" ") for line in block.splitlines()]
    metadata = tomllib.loads("\n".join(lines))
    declared = {}
    for spec in metadata["dependencies"]:
        declared.setdefault(re.match(r"[\w-]+", spec).group(), []).append(spec)
    imported = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module)
    if "torch.utils.tensorboard" in imported:
        imported.add("tensorboard")
    used = {module.split(".")[0] for module in imported} - sys.stdlib_module_names
    used = {{"warp": "warp-lang"}.get(module, module.replace("_", "-")) for module in used}
    if "imageio" in used:
        used.add("imageio-ffmpeg")  # which writes its videos
    if imported & {"importlib", "importlib.util"} and "warp-lang" not in used:  # PettingZoo's games
        used |= {"pettingzoo", "mpe2"}
    if "onnxruntime" in imported:
        used |= {"onnx", "onnxscript"}  # which PyTorch writes its files with
    if name == "ppo_eval":  # executes the others
        used |= {"ale-py", "envpool", "minatar", "tensorboard"}
    assert declared.keys() == used
    assert metadata["requires-python"] == ">=3.11"

    def extras(spec):
        return {extra for found in re.findall(r"\[(.*)\]", spec) for extra in found.split(",")}

    def version(spec):
        return re.sub(r"\[.*\]", "", spec)

    asked = {}
    kinds = ("", "-pettingzoo", "-warp", "-onnx")
    files = [ROOT / "requirements" / f"requirements{x}.txt" for x in kinds]
    for line in "".join(file.read_text() for file in files).splitlines():
        if not line.startswith("#"):
            asked.setdefault(re.match(r"[\w-]+", line).group(), []).append(line)
    for package, specs in declared.items():
        versions = {version(spec.partition(";")[0]) for spec in (*specs, *asked.get(package, []))}
        assert len(versions) == 1, versions
        assert set().union(*map(extras, specs)) <= set().union(*map(extras, asked.get(package, [])))


@pytest.mark.parametrize("name", [name for name in SCRIPTS if "envpool" not in name])
def test_no_script_without_envpool_is_linux_only(name):
    """By the names that it takes from the modules that differ from system to system."""
    text, found = (PPO / f"{name}.py").read_text(), {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.setdefault(node.value.id, set()).add(node.attr)
    assert found["os"] <= {"path", "environ", "getpid", "replace", "write", "makedirs"}
    assert found["signal"] <= {"signal", "SIGINT", "SIGTERM", "SIG_DFL"}
    assert found["time"] <= {"time", "strftime"}
    assert not {"fcntl", "resource", "posix", "pwd"} & found.keys()


@pytest.mark.parametrize("name", IN_TURN)
def test_two_checks_of_the_flags(name, tmp_path, capsys, monkeypatch):
    """A rollout in equal minibatches and one rollout at least: tyro's message and status 2."""
    monkeypatch.chdir(tmp_path)
    # with a memory a minibatch is whole environments; one of a single row would never learn
    alone = "--seed x" if "lstm" in name else "--num-minibatches 32"
    for flags, message in (
        ("--num-envs 4 --num-steps 8 --num-minibatches 3", "--num-minibatches"),
        (f"--num-envs 4 --num-steps 8 {alone}", alone.split()[0]),
        ("--num-envs 4 --num-steps 16 --total-timesteps 63", "--total-timesteps must be at least"),
        ("--seed x", "--seed"),
        ("--no-such-flag", "--no-such-flag"),
    ):
        with pytest.raises(SystemExit) as stop:
            run_main(name, *flags.split(), runs_dir="runs")
        assert stop.value.code == 2, flags
        assert message in said(capsys.readouterr().err), flags
    assert not [*tmp_path.iterdir()]


class Odd(gym.Env):
    """An environment of these spaces, which does nothing."""

    def __init__(self, obs_shape, action_space):
        self.observation_space = gym.spaces.Box(-1.0, 1.0, obs_shape)
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape, np.float32), {}


Box = gym.spaces.Box
gym.register("Board-v0", lambda: Odd((3, 3), gym.spaces.Discrete(2)))
gym.register("Several-v0", lambda: Odd((3,), gym.spaces.MultiDiscrete([2, 3])))
gym.register("FromOne-v0", lambda: Odd((3,), gym.spaces.Discrete(2, start=1)))
gym.register("Matrix-v0", lambda: Odd((3,), Box(-1.0, 1.0, (2, 2))))
gym.register("Whole-v0", lambda: Odd((3,), Box(0, 2, (2,), np.int64)))
gym.register("Unbounded-v0", lambda: Odd((3,), Box(-np.inf, np.inf, (2,))))
WOLF = ["--env-id", "meadow", "--env-kwargs"]
REFUSED = [  # script, flags, a word of the error
    ("ppo", ["--env-id", "CartPol-v1"], "CartPole"),
    ("ppo", ["--env-id", "Pendulum-v1"], "(Box: ppo_continuous_action; MultiDisc"),
    ("ppo", ["--env-id", "Board-v0"], "too many values to unpack"),
    ("ppo", ["--env-id", "Several-v0"], "must be Discrete"),
    ("ppo", ["--env-id", "FromOne-v0"], "must be Discrete"),
    ("ppo_continuous_action", ["--env-id", "CartPole-v1"], "of floats (Discrete: ppo)"),
    ("ppo_continuous_action", ["--env-id", "Unbounded-v0"], "must be a bounded Box"),
    ("ppo_continuous_action", ["--env-id", "Whole-v0"], "must be a bounded Box"),
    ("ppo_continuous_action", ["--env-id", "Matrix-v0"], "too many values to unpack"),
    ("ppo_continuous_action_envpool", ["--env-id", "CartPole-v1"], "(Discrete: ppo_envpool)"),
    ("ppo_continuous_action_envpool", ["--env-id", "CarRacing-v3"], "has pixels"),
    (
        "ppo_continuous_action_envpool",
        ["--env-id", "Go1JoystickFlatTerrain-v1"],
        "must not see {'privileged_state'}",
    ),
    ("ppo_pixels", ["--env-id", "CartPole-v1"], "must be an image of uint8 or bool"),
    ("ppo_pixels", ["--env-id", "Board-v0"], "must be an image of uint8 or bool"),
    ("ppo_pixels", ["--env-id", "CarRacing-v3"], "must be Discrete"),
    ("ppo_masked", ["--env-id", "CliffWalking-v1"], "0 of 2 environments gave"),
    ("ppo_rnd", ["--env-id", "CarRacing-v3"], "has pixels: see ppo_pixels.py"),
    ("ppo_lstm", ["--hide", 4], "index 4 is out of bounds"),
    ("ppo_trxl", ["--hide", 4], "index 4 is out of bounds"),
    ("ppo_continuous_action_lstm", ["--hide", 3], "index 3 is out of bounds"),
    ("ppo_pettingzoo", [*WOLF, '{"wolf": "observation_space"}'], "sheep_0 has "),
    ("ppo_pettingzoo", [*WOLF, '{"wolf": "action_space"}'], "sheep_2 has Box"),
    ("ppo_pettingzoo", ["--env-kwargs", '{"continuous_actions": true}'], "must be Discrete"),
    ("ppo_pettingzoo", ["--env-id", "pettingzoo.butterfly.cooperative_pong_v6"], "has pixels"),
]


@pytest.mark.parametrize(("name", "flags", "word"), REFUSED)
def test_environments_that_do_not_fit(name, flags, word, tmp_path):
    """Raise by themselves or by an assertion, and leave no folder behind."""
    with pytest.raises(Exception, match=re.escape(word)):
        run_main(name, *TINY, *flags, runs_dir=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


class Camera(gym.Env):
    """Says as much as a dictionary of ten numbers, eight of them uint8; an image beside them, in a
    dictionary within, or nothing but one. All actions are possible."""

    possible_agents = agents = ("one",)

    def __init__(self, image, continuous=False):
        numbers = {"bytes": Box(0, 255, (8,), np.uint8), "speed": Box(-1.0, 1.0, (2,))}
        pixels = Box(0, 255, (6, 6, 3), np.uint8)
        self.seen = {
            None: gym.spaces.Dict(numbers),
            "beside": gym.spaces.Dict({**numbers, "image": pixels}),
            "within": gym.spaces.Dict({**numbers, "eyes": gym.spaces.Dict({"left": pixels})}),
            "alone": pixels,
        }[image]
        self.done = Box(-1.0, 1.0, (2,)) if continuous else gym.spaces.Discrete(3)
        self.observation_space, self.action_space = self.seen, self.done
        self.info = {"action_mask": np.ones(3, np.int8)}

    def reset(self, *, seed=None, options=None):
        return self.seen.sample(), self.info

    def step(self, action):
        return self.seen.sample(), 0.0, False, False, self.info


class ParallelCamera(Camera):
    """The same, with PettingZoo's dictionaries, of one agent."""

    def __init__(self, image):
        super().__init__(image)
        self.observation_space, self.action_space = lambda x: self.seen, lambda x: self.done

    def reset(self, **kwargs):
        return {"one": super().reset()[0]}, {}

    def step(self, actions):
        return tuple({"one": x} for x in super().step(actions))


@pytest.mark.parametrize("name", [x for x in SCRIPTS if kind(x) != "atari" and "warp" not in x])
def test_images_in_a_dictionary(name, tmp_path, monkeypatch):
    """Are refused as alone: they would be joined to the numbers as 0 to 255. Without them the
    dictionary is trained on."""
    make = gym.vector.SyncVectorEnv

    def envpool_make(env_id, env_type, num_envs, seed):
        envs = make([lambda: gym.make(env_id, disable_env_checker=True)] * num_envs)
        envs.spec = SimpleNamespace(config=SimpleNamespace(max_episode_steps=3))
        return envs

    monkeypatch.setattr(envpool, "make", envpool_make)
    continuous = kind(name) == "continuous"
    for image in (None, "beside", "within", "alone"):
        env_id, folder = f"Camera-{image}-v0", tmp_path / str(image)
        spec = gym.envs.registration.EnvSpec(env_id, partial(Camera, image, continuous))
        module = SimpleNamespace(parallel_env=partial(ParallelCamera, image))
        monkeypatch.setitem(gym.registry, env_id, spec)
        monkeypatch.setitem(sys.modules, env_id, module)
        if image is None:
            run = run_main(name, *TINY, "--env-id", env_id, runs_dir=folder)
            masks = 3 * ("masked" in name)  # behind what is seen
            assert run.storage["obs"].shape[2:] == (10 + masks,)
            continue
        with pytest.raises(AssertionError, match="has pixels"):
            run_main(name, *TINY, "--env-id", env_id, runs_dir=folder)
        assert not folder.exists()


@pytest.mark.parametrize("name", ["ppo", "ppo_atari_envpool_multigpu", "ppo_lstm_torchcompile"])
def test_target_kl_stops_between_epochs(name, tmp_path):
    """At an unreachable target every epoch runs; at a tiny one none after the first above it."""
    flags = "--num-envs 2 --num-steps 8 --num-minibatches 2 --total-timesteps 16".split()
    flags += "--learning-rate 0.01 --no-anneal-lr --update-epochs 4".split()

    def keep(text):
        line = "losses = torch.cat(losses).mean(0)"
        assert text.count(line) == 1
        return text.replace(line, f"epochs = losses; {line}")

    for target in (1e9, 1e-9):
        more = ["--target-kl", target]
        run = run_main(name, *flags, *more, runs_dir=tmp_path / str(target), edit=keep)
        kls = [float(epoch[:, run.LOSSES.index("approx_kl")].mean()) for epoch in run.epochs]
        assert all(kl <= target for kl in kls[:-1])
        assert len(kls) == 4 if target > 1 else len(kls) < 4 and kls[-1] > target


OTHERS = [  # by flags alone: other actions, other lengths, several environments
    ("atari", ["--env-id", "Pong-v5"]),
    ("ale", ["--env-id", "Pong-v5"]),
    ("ale", ["--env-id", "ALE/Tetris-v5", "--repeat-action-probability", 0.25]),
    ("pixels", ["--env-id", "my_pixels:Reach-v0"]),  # 40 x 40 x 3
    ("pixels", ["--env-id", "my_pixels:CarRacing4-v0", "--num-envs", 1]),  # 4 x 48 x 48
    ("pixels", ["--env-id", "my_pixels:FastCarRacing4-v0"]),  # EnvPool's, one by one
    ("pixels", ["--env-id", "MinAtar/Seaquest-v1", "--num-steps", 9, "--total-timesteps", 54]),
    ("", ["--env-id", "Acrobot-v1"]),
    ("", ["--env-id", "MountainCar-v0", "--num-envs", 1]),
    ("", ["--env-id", "CliffWalking-v1"]),  # its observation is a number: one of 48
    ("small", ["--env-id", "Taxi-v3"]),  # its observation is a number: one of 500
    ("small", ["--env-id", "Acrobot-v1", "--num-envs", 33, "--total-timesteps", 528]),
    ("masked", ["--num-envs", 1]),
    ("together", ["--env-kwargs", '{"N": 5, "max_cycles": 7}']),
    ("together", ["--env-id", "pettingzoo.butterfly.knights_archers_zombies_v11"]),
    ("many", ["--env-id", "CheetahRun-v1"]),  # its observations are a dictionary
    ("many", ["--env-id", "Ant-v5", "--num-envs", 33, "--total-timesteps", 528]),
    ("many", ["--env-id", "BipedalWalker-v3", "--num-envs", 1]),
    ("many", ["--env-id", "Pendulum-v1", "--num-steps", 300, "--total-timesteps", 1200]),
    ("warp", ["--env-id", "Swimmer-v5", "--num-envs", 1]),
    ("warp", ["--env-id", "my_warp_env:Pendulum", "--num-envs", 8, "--total-timesteps", 128]),
    ("continuous", ["--env-id", "Hopper-v4"]),
    ("continuous", ["--env-id", "Walker2d-v5"]),
    ("continuous", ["--env-id", "Pendulum-v1", "--num-envs", 8, "--total-timesteps", 128]),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_TURN)
def test_other_environments(name, tmp_path):
    for i, (of, flags) in enumerate(OTHERS):
        if of == task(name):
            one = ["--num-minibatches", 1] if "lstm" in name else []  # of whole environments
            run = run_main(name, *TINY, *one, *flags, runs_dir=tmp_path / str(i))
            assert run.global_step == run.args.total_timesteps
            assert all(map(np.isfinite, run.losses))
            (run_dir,) = (tmp_path / str(i)).iterdir()
            env_id = re.sub("[/:]", "_", run.args.env_id)
            assert run_dir.name.startswith(f"{env_id}__{name}__1__")


@pytest.mark.slow
def test_track_offline(tmp_path):
    """wandb takes the run without a network, under its folder's name."""
    env = {"WANDB_MODE": "offline", "HOME": str(tmp_path / "home")}
    flags = [*TINY, "--env-id", "Pendulum-v1", "--track"]
    done = run_script(PPO / "ppo_continuous_action.py", *flags, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert [*tmp_path.glob(f"wandb/offline-run-*/run-{run_dir.name}.wandb")]
