"""The scripts as commands: alone in an empty folder, their flags, their outputs, bad input."""

import ast
import json
import re
import shutil
import sys
import tomllib
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import test_parity
from helpers import (
    FAST,
    IN_TURN,
    PAIRS,
    PPO,
    ROOT,
    SCRIPTS,
    TINY,
    kind,
    load,
    run_main,
    run_script,
    said,
    scalars,
    task,
)

import torch

SUMMARY = "script args device mode global_step complete sps phase_s mean_return episodes"
CHECKPOINT = "format args global_step episodic_returns agent adam rng"
MODES = [(name, []) for name in SCRIPTS if name not in FAST]
MODES += [(name, ["--cudagraphs"]) for name in FAST]
COMPILED = ["--compile", "--cudagraphs", "--num-envs", 4, "--total-timesteps", 96]
MODES += [  # the others are compiled in test_parity
    pytest.param(fast, COMPILED, marks=pytest.mark.slow)
    for eager, fast in PAIRS
    if eager not in test_parity.COMPILED
]


@pytest.mark.parametrize(("name", "flags"), MODES)
def test_what_a_run_leaves(name, flags, tmp_path, capsys):
    """In each mode: curves, a summary, a checkpoint from which the same network can be made."""
    run = run_main(name, *TINY, *flags, "--measure-burnin", 1, runs_dir=tmp_path)
    rows = 8 * run.args.num_envs  # in an iteration
    captured, mode = capsys.readouterr(), "compile" if "--compile" in flags else "eager"
    hint = "running eagerly: --compile makes this script fast, with a GPU --cudagraphs as well\n"
    hint *= name in FAST and mode == "eager"
    assert captured.out.startswith(f"{hint}{mode} on cpu")
    warning = "--cudagraphs needs a CUDA device: running without\n"
    assert captured.err.count(warning) == flags.count("--cudagraphs")
    (run_dir,) = tmp_path.iterdir()
    assert re.fullmatch(rf"[\w.]+[-_]v\d__{name}__1__\d{{6}}-\d{{6}}-\d+", run_dir.name)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert list(summary) == SUMMARY.split()
    assert (summary["script"], summary["mode"], summary["global_step"]) == (name, mode, 3 * rows)
    assert list(summary["phase_s"]) == ["rollout", "advantages", "update", "log"]
    assert all(seconds > 0 for seconds in summary["phase_s"].values())
    assert summary["sps"] == pytest.approx(2 * rows / sum(summary["phase_s"].values()))
    curves = scalars(run_dir)
    assert {tag for tag in curves if tag.startswith("losses/")} == {
        f"losses/{loss}" for loss in (*load(name).LOSSES, "explained_variance")
    }
    lr = load(name).Args.learning_rate
    expected = [(rows, lr), (2 * rows, lr * 2 / 3), (3 * rows, lr / 3)]
    np.testing.assert_allclose(curves["charts/learning_rate"], expected, rtol=1e-6)
    assert [step for step, _ in curves["charts/SPS"]] == [2 * rows, 3 * rows]

    checkpoint = torch.load(run_dir / "checkpoint.pt", weights_only=True)
    statistics = {"obs_rms", "return_rms"} if "continuous" in name else set()
    assert checkpoint.keys() == set(CHECKPOINT.split()) | statistics
    agent = load(name).Agent(run.envs)
    agent.load_state_dict(checkpoint["agent"])
    for trained, loaded in zip(run.agent.parameters(), agent.parameters(), strict=True):
        assert torch.equal(trained, loaded)
    assert checkpoint["args"] == summary["args"] and checkpoint["global_step"] == 3 * rows
    steps = {float(state["step"]) for state in checkpoint["adam"].values()}
    assert steps == {3 * 2 * 2}, "iterations, epochs and minibatches"
    if statistics:
        mean, var, count = checkpoint["obs_rms"]
        assert mean == run.obs_rms.mean.tolist() and var == run.obs_rms.var.tolist()
        assert count == run.N * 25 + 1e-4, "an observation a step, and the first"


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
    lines = text.splitlines()
    (function,) = [x for x in ast.parse(text).body if getattr(x, "name", "") == name]
    (call,) = [i for i, line in enumerate(lines) if re.fullmatch(rf" +{name}\(.*\)", line)]
    header = lines[call - 1].rstrip().endswith(":")  # of an if that has nothing else in it
    gone = {*range(function.lineno - 1, function.end_lineno), call, call - header}
    left = "\n".join(line for i, line in enumerate(lines) if i not in gone)
    assert f"{name}(" not in left
    return left


@pytest.mark.parametrize("name", [eager for eager, _ in PAIRS])
def test_a_fork_drops_what_is_not_ppo(name, tmp_path):
    """Tracking, checkpoint and signals, each function with its one call: the copy trains."""

    def fork(text):
        for function in ("track", "save_checkpoint", "catch_signals"):
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
    used = {module.replace("_", "-") for module in used}
    if "imageio" in used:
        used.add("imageio-ffmpeg")  # which writes its videos
    if "importlib" in imported:  # environments by the names of their modules
        used |= {"pettingzoo", "mpe2"}
    assert declared.keys() == used
    assert metadata["requires-python"] == ">=3.11"

    def extras(spec):
        return {extra for found in re.findall(r"\[(.*)\]", spec) for extra in found.split(",")}

    def version(spec):
        return re.sub(r"\[.*\]", "", spec)

    asked = {}
    files = [ROOT / "requirements" / f"requirements{x}.txt" for x in ("", "-pettingzoo")]
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
    known = {"path", "environ", "getpid", "replace", "write", "makedirs", "devnull"}
    assert found["os"] <= known
    assert found["signal"] - {"SIGHUP"} <= {
        *("signal", "getsignal", "SIGINT", "SIGTERM", "SIG_DFL", "SIG_IGN", "default_int_handler")
    }
    assert found["time"] <= {"perf_counter", "strftime", "time_ns"}
    assert not {"fcntl", "resource", "posix", "pwd"} & found.keys()


BAD = [  # flags, what the message says, in parts
    ("--num-envs 0", "--num-envs 0: give above 0"),
    ("--num-envs -3", "--num-envs -3: give above 0"),
    ("--num-steps 0", "--num-steps 0: give above 0"),
    ("--checkpoint-interval -1", "--checkpoint-interval -1: give above 0"),
    ("--checkpoint-interval 0", "--checkpoint-interval 0: give above 0"),
    ("--resume nowhere", "argument --resume: no checkpoint of ppo"),
    ("--num-minibatches 0", "--num-minibatches 0: give above 0"),
    ("--update-epochs 0", "--update-epochs 0: give above 0"),
    ("--total-timesteps 0", "--total-timesteps 0: give num_envs * num_steps"),
    ("--learning-rate 0", "--learning-rate 0.0: give above 0"),
    ("--learning-rate -1e-3", "--learning-rate -0.001: give above 0"),
    ("--learning-rate nan", "--learning-rate nan: give above 0"),
    ("--learning-rate inf", "--learning-rate inf: give above 0, not inf"),
    ("--clip-coef 0", "--clip-coef 0.0: give above 0"),
    ("--max-grad-norm -1", "--max-grad-norm -1.0: give above 0"),
    ("--ent-coef -0.1", "--ent-coef -0.1: give 0 or more"),
    ("--vf-coef nan", "--vf-coef nan: give 0 or more"),
    ("--target-kl 0", "--target-kl 0.0: give above 0"),
    ("--measure-burnin -1", "--measure-burnin -1: give 0 or more"),
    ("--gamma 1.01", "--gamma 1.01: give 0 to 1"),
    ("--gae-lambda -0.5", "--gae-lambda -0.5: give 0 to 1"),
    ("--seed -1", "--seed -1: give 0 to 2**64 - 1"),
    ("--seed x", "--seed: invalid literal"),
    ("--no-such-flag", "--no-such-flag"),
]
BAD_ATARI = [
    ("--env-id Breakot-v5", "--env-id Breakot-v5: no Atari game; the nearest are Breakout-v5"),
    ("--env-id HalfCheetah-v4", "--env-id HalfCheetah-v4: no Atari game"),
    ("--env-id CartPole-v1", "--env-id CartPole-v1: no Atari game"),
    ("--env-id a:b:c", "--env-id a:b:c: no Atari game"),
    ("--num-minibatches 3", "3: no divisor below num_envs * num_steps = 1024"),
    ("--num-minibatches 1024", "1024: no divisor below num_envs * num_steps = 1024"),
    ("--total-timesteps 1023", "--total-timesteps 1023: give num_envs * num_steps = 1024"),
]
BAD_ALE = [
    ("--env-id Breakot-v5", "ALE/Breakot-v5: no Atari game; the nearest are ALE/Breakout-v5"),
    ("--env-id ALE/Warlords-v5", "--env-id ALE/Warlords-v5: no Atari game"),
    ("--env-id BreakoutNoFrameskip-v4", "no Atari game; the nearest are ALE/Breakout-v5"),
    ("--env-id a:b:c", "--env-id ALE/a:b:c: no Atari game"),
    ("--repeat-action-probability 1.5", "--repeat-action-probability 1.5: give 0 to 1"),
    *BAD_ATARI[-3:],
]
BAD_DISCRETE = [
    ("--env-id CartPol-v1", "argument --env-id: CartPol-v1: ", "CartPole"),
    ("--env-id CartPole-v99", "`v1`"),
    ("--env-id Pendulum-v1", "argument --env-id: Pendulum-v1: needs vectors and discrete actions"),
    ("--env-id ImageOnly-v0", "argument --env-id: ImageOnly-v0: needs vectors"),
    ("--env-id not/an/id", "argument --env-id: not/an/id: Malformed environment ID"),
    ("--env-id a:b:c", "argument --env-id: a:b:c: "),
    ("--num-minibatches 3", "3: no divisor below num_envs * num_steps = 512"),
    ("--num-minibatches 512", "512: no divisor below num_envs * num_steps = 512"),
    ("--total-timesteps 511", "--total-timesteps 511: give num_envs * num_steps = 512"),
]
BAD_MASKED = [
    (
        f"--env-id {env_id}",
        f'argument --env-id: {env_id}: no info["action_mask"] from environment 0',
    )
    for env_id in ("CartPole-v1", "CliffWalking-v1")
]
BAD_MASKED += [BAD_DISCRETE[0], *BAD_DISCRETE[2:]]
WOLF = '--env-id meadow --env-kwargs {"wolf":"%s"}'
BAD_TOGETHER = [
    ("--env-id mpe2.simple_sprea_v3", "mpe2.simple_sprea_v3: No module named"),
    (
        "--env-id json",
        "argument --env-id or --env-kwargs: json: module 'json' has no attribute 'parallel_env'",
    ),
    (
        "--env-id mpe2.simple_tag_v3",
        "simple_tag_v3: agents need the same observation_space: adversary_0 has Box(-inf, ",
        "agent_0 has Box(-inf, inf, (14,)",
    ),
    (WOLF % "observation_space", "meadow: agents need the same observation_space: sheep_0 has "),
    (WOLF % "action_space", "sheep_0 has Discrete(4), sheep_2 has Box"),
    ('--env-kwargs {"continuous_actions":true}', "simple_spread_v3: needs numbers"),
    ("--env-id pettingzoo.butterfly.cooperative_pong_v6", "needs numbers, not pixels"),
    ('--env-kwargs {"M":3}', "got an unexpected keyword argument 'M'"),
    (
        "--env-kwargs N=3",
        "argument --env-id or --env-kwargs: mpe2.simple_spread_v3: Expecting value",
    ),
    ("--env-kwargs [1]", "must be a mapping, not list"),
    ("--num-minibatches 3", "3: no divisor below num_envs * num_steps = 1024"),
    ("--num-minibatches 1024", "1024: no divisor below num_envs * num_steps = 1024"),
    ("--total-timesteps 1023", "--total-timesteps 1023: give num_envs * num_steps = 1024"),
]
BAD_CONTINUOUS = [
    ("--env-id HalfCheeta-v4", "argument --env-id: HalfCheeta-v4: ", "HalfCheetah"),
    ("--env-id HalfCheetah-v99", "`v4`"),
    ("--env-id CartPole-v1", "argument --env-id: CartPole-v1: needs vectors and bounded actions"),
    ("--env-id ImageOnly-v0", "argument --env-id: ImageOnly-v0: needs vectors"),
    ("--env-id Matrix-v0", "argument --env-id: Matrix-v0: needs vectors"),
    ("--env-id Unbounded-v0", "Unbounded-v0: needs vectors and bounded actions"),
    ("--env-id not/an/id", "argument --env-id: not/an/id: Malformed environment ID"),
    ("--env-id a:b:c", "argument --env-id: a:b:c: "),
    ("--env-id :Pendulum-v1", "argument --env-id: :Pendulum-v1: "),
    ("--num-minibatches 3", "3: no divisor below num_envs * num_steps = 2048"),
    ("--num-minibatches 2048", "2048: no divisor below num_envs * num_steps = 2048"),
    ("--total-timesteps 2047", "--total-timesteps 2047: give num_envs * num_steps = 2048"),
]
BAD_MANY = [
    (
        "--env-id HalfCheeta-v4",
        "HalfCheeta-v4: EnvPool has no such environment; the nearest are",
        "HalfCheetah-v4, HalfCheetah-v5",
    ),
    ("--env-id cheetah-run", "CheetahRun-v1"),
    ("--env-id CartPole-v1", "argument --env-id: CartPole-v1: needs vectors and bounded actions"),
    ("--env-id CarRacing-v3", "argument --env-id: CarRacing-v3: needs vectors and bounded actions"),
    ("--env-id Breakout-v5", "argument --env-id: Breakout-v5: needs vectors and bounded actions"),
    ("--env-id a:b:c", "argument --env-id: a:b:c: EnvPool has no such environment"),
    ("--num-minibatches 3", "3: no divisor below num_envs * num_steps = 4096"),
    ("--num-minibatches 4096", "4096: no divisor below num_envs * num_steps = 4096"),
    ("--total-timesteps 4095", "--total-timesteps 4095: give num_envs * num_steps = 4096"),
]
BAD_MEMORY = [
    ("--num-minibatches 3", "3: give a divisor of num_envs = 8"),
    ("--num-minibatches 16", "16: give a divisor of num_envs = 8"),
    ("--num-minibatches 1 --num-envs 1 --num-steps 1", "num_envs = 1, for 2 rows or more each"),
]
BAD_HIDDEN = [
    ("--hide 4", "argument --hide: (4,): index 4 is out of bounds"),
    ("--hide 0 1 2 3", "argument --env-id: CartPole-v1: needs vectors"),
    ("--hide x", "--hide", "arguments: ['x']"),
]
BAD_OF = {
    "atari": BAD_ATARI,
    "ale": BAD_ALE,
    "continuous": BAD_CONTINUOUS,
    "many": BAD_MANY,
    "masked": BAD_MASKED,
    "together": BAD_TOGETHER,
    "": BAD_DISCRETE,
}


class OddSpaces(gym.Env):
    """An environment that is never stepped, its spaces of these shapes, its actions within this."""

    def __init__(self, obs_shape, action_shape, bound):
        self.observation_space = gym.spaces.Box(0, 255, obs_shape, np.uint8)
        self.action_space = gym.spaces.Box(-bound, bound, action_shape)


gym.register("ImageOnly-v0", lambda: OddSpaces((96, 96, 3), (2,), 1.0))
gym.register("Matrix-v0", lambda: OddSpaces((3,), (2, 2), 1.0))
gym.register("Unbounded-v0", lambda: OddSpaces((3,), (2,), np.inf))


@pytest.mark.parametrize("name", IN_TURN)
def test_bad_input(name, tmp_path, capsys):
    """Status 2, one message that names the flag, no traceback, and no folder left behind."""
    bad = BAD + BAD_OF[task(name)]
    if "lstm" in name:
        bad = [case for case in bad if "512" not in case[-1] and "1024" not in case[-1]]
        bad += BAD_MEMORY + BAD_HIDDEN * (not kind(name))
    for flags, *messages in bad:
        few = ["--num-envs", 2] if "--env-id" in flags and task(name) == "many" else []
        with pytest.raises(SystemExit) as stop:
            run_main(name, *flags.split(), *few, runs_dir=tmp_path / "runs")
        assert stop.value.code == 2, flags
        err = said(capsys.readouterr().err)
        assert all(message in err for message in messages), flags
        assert "usage: " not in err, "which would be of --resume alone"
        assert not (tmp_path / "runs").exists(), flags


@pytest.mark.slow
def test_bad_input_as_a_process(tmp_path):
    """Status and message as a shell sees them; mujoco that is missing is a bad --env-id."""
    (tmp_path / "mujoco.py").write_text("raise ImportError('no mujoco here')")
    script, env = PPO / "ppo_continuous_action.py", {"PYTHONPATH": str(tmp_path)}
    for flags, message in ((["--num-envs", 0], "--num-envs 0"), ([], "gymnasium[mujoco]")):
        done = run_script(script, *flags, cwd=tmp_path, env=env)
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert message in said(done.stderr)
        assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", IN_TURN)
def test_target_kl_stops_between_epochs(name, tmp_path):
    """At an unreachable target every epoch runs; at a tiny one none after the first above it."""
    flags = "--num-envs 2 --num-steps 8 --num-minibatches 2 --total-timesteps 16".split()
    flags += "--learning-rate 0.01 --no-anneal-lr --update-epochs 4".split()
    for target in (1e9, 1e-9):
        run = run_main(name, *flags, "--target-kl", target, runs_dir=tmp_path)
        kls = [float(epoch[:, run.LOSSES.index("approx_kl")].mean()) for epoch in run.losses]
        assert all(kl <= target for kl in kls[:-1])
        assert len(kls) == 4 if target > 1 else len(kls) < 4 and kls[-1] > target


OTHERS = [  # by flags alone: other actions, other lengths, several environments
    ("atari", ["--env-id", "Pong-v5"]),
    ("ale", ["--env-id", "Pong-v5"]),
    ("ale", ["--env-id", "ALE/Tetris-v5", "--repeat-action-probability", 0.25]),
    ("", ["--env-id", "Acrobot-v1"]),
    ("", ["--env-id", "MountainCar-v0", "--num-envs", 1]),
    ("", ["--env-id", "CliffWalking-v1"]),  # its observation is a number: one of 48
    ("masked", ["--num-envs", 1]),
    ("together", ["--env-kwargs", '{"N": 5, "max_cycles": 7}']),
    ("together", ["--env-id", "pettingzoo.butterfly.knights_archers_zombies_v11"]),
    ("many", ["--env-id", "CheetahRun-v1"]),  # its observations are a dictionary
    ("many", ["--env-id", "Ant-v5", "--num-envs", 33, "--total-timesteps", 528]),
    ("many", ["--env-id", "BipedalWalker-v3", "--num-envs", 1]),
    ("many", ["--env-id", "Pendulum-v1", "--num-steps", 300, "--total-timesteps", 1200]),
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
            assert all(map(np.isfinite, run.metrics[:7]))
            (run_dir,) = (tmp_path / str(i)).iterdir()
            assert run_dir.name.startswith(f"{run.args.env_id.replace('/', '_')}__{name}__1__")


@pytest.mark.slow
def test_track_offline(tmp_path):
    """wandb takes the run without a network, under its folder's name."""
    env = {"WANDB_MODE": "offline", "HOME": str(tmp_path / "home")}
    flags = [*TINY, "--env-id", "Pendulum-v1", "--track"]
    done = run_script(PPO / "ppo_continuous_action.py", *flags, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert [*tmp_path.glob(f"wandb/offline-run-*/run-{run_dir.name}.wandb")]
