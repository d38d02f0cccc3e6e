"""The scripts as commands: alone in an empty folder, their flags, their outputs, bad input."""

import ast
import json
import os
import re
import shutil
import sys
import tomllib

import gymnasium as gym
import numpy as np
import pytest
from helpers import FAST, PPO, SCRIPTS, TINY, load, run_main, run_script, scalars, spaces

import torch

SUMMARY = (
    "script args seed device mode global_step sps startup_s phase_s mean_return episodes versions "
    "cpu cores gpu"
).split()
MODES = [(name, []) for name in SCRIPTS] + [
    pytest.param(name, flags, marks=pytest.mark.slow)
    for name in FAST
    for flags in (["--compile"], ["--cudagraphs"], ["--compile", "--cudagraphs"])
]


@pytest.mark.parametrize(("name", "flags"), MODES)
def test_alone_in_an_empty_folder(name, flags, tmp_path):
    """Copied elsewhere, a script trains, in each mode, and leaves curves and a summary."""
    script = shutil.copy(PPO / f"{name}.py", tmp_path / "mine.py")
    done = run_script(script, *TINY, *flags, "--measure-burnin", 1, "--no-cuda", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    mode = "compile" if "--compile" in flags else "eager"
    assert done.stdout.splitlines()[0].startswith(f"{mode} on cpu")
    without = [line for line in done.stderr.splitlines() if "needs a CUDA device" in line]
    assert len(without) == flags.count("--cudagraphs")
    (run_dir,) = (tmp_path / "runs").iterdir()
    summary = json.loads((run_dir / "summary.json").read_text())
    assert list(summary) == SUMMARY
    assert (summary["script"], summary["mode"], summary["global_step"]) == ("mine", mode, 48)
    assert summary["sps"] > 0 and summary["startup_s"] > 0 and summary["gpu"] is None
    assert set(summary["phase_s"]) == {"rollout", "advantages", "update", "log"}
    assert all(seconds > 0 for seconds in summary["phase_s"].values())
    curves = scalars(run_dir)
    assert {tag for tag in curves if tag.startswith("losses/")} == {
        f"losses/{loss}" for loss in (*load(name).LOSSES, "explained_variance")
    }
    assert [step for step, _ in curves["charts/learning_rate"]] == [16, 32, 48]
    assert [step for step, _ in curves["charts/SPS"]] == [32, 48]


@pytest.mark.parametrize("name", [*SCRIPTS, "ppo_eval"])
def test_pep723_names_the_imports(name):
    text = (PPO / f"{name}.py").read_text()
    block = re.search(r"^# /// script\n((?:#.*\n)+?)# ///$", text, re.MULTILINE).group(1)
    lines = [line.removeprefix("#").removeprefix(" ") for line in block.splitlines()]
    metadata = tomllib.loads("\n".join(lines))
    declared = {re.match(r"[\w-]+", spec).group() for spec in metadata["dependencies"]}
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
    if name == "ppo_eval":
        used.discard("mujoco")  # which gymnasium[mujoco] brings
    assert declared == used
    assert metadata["requires-python"] == ">=3.11"


BAD = [  # flags, the flag that the message must name, a part of the hint
    ("--num-envs 0", "--num-envs 0", "1 or more"),
    ("--num-envs -3", "--num-envs -3", "1 or more"),
    ("--num-steps 0", "--num-steps 0", "1 or more"),
    ("--checkpoint-interval -1", "--checkpoint-interval -1", "0 or more"),
    ("--resume nowhere", "--resume nowhere", "No such file"),
    ("--num-minibatches 0", "--num-minibatches 0", "1 or more"),
    ("--update-epochs 0", "--update-epochs 0", "1 or more"),
    ("--total-timesteps 0", "--total-timesteps 0", "1 or more"),
    ("--learning-rate 0", "--learning-rate 0.0", "above 0"),
    ("--learning-rate -1e-3", "--learning-rate -0.001", "above 0"),
    ("--learning-rate nan", "--learning-rate nan", "above 0"),
    ("--learning-rate inf", "--learning-rate inf", "finite"),
    ("--clip-coef 0", "--clip-coef 0.0", "above 0"),
    ("--max-grad-norm -1", "--max-grad-norm -1.0", "above 0"),
    ("--ent-coef -0.1", "--ent-coef -0.1", "0 or"),
    ("--vf-coef nan", "--vf-coef nan", "0 or"),
    ("--target-kl 0", "--target-kl 0.0", "None"),
    ("--measure-burnin -1", "--measure-burnin -1", "0 or more"),
    ("--gamma 1.01", "--gamma 1.01", "from 0 to 1"),
    ("--gae-lambda -0.5", "--gae-lambda -0.5", "from 0 to 1"),
    ("--seed -1", "--seed -1", "from 0 to"),
]
BAD_ATARI = [
    ("--env-id Breakot-v5", "--env-id Breakot-v5", "Breakout-v5"),
    ("--env-id HalfCheetah-v4", "--env-id HalfCheetah-v4", "discrete actions"),
    ("--env-id CartPole-v1", "--env-id CartPole-v1", "4x84x84"),
    ("--num-minibatches 3", "--num-minibatches 3", "divisor of 8 envs x 128 steps = 1024"),
    ("--num-minibatches 1024", "--num-minibatches 1024", "2 rows"),
    ("--total-timesteps 1023", "--total-timesteps 1023", "1024 rows"),
]
BAD_CONTINUOUS = [
    ("--env-id HalfCheeta-v4", "--env-id HalfCheeta-v4", "HalfCheetah-v4"),
    ("--env-id HalfCheetah-v99", "--env-id HalfCheetah-v99", "HalfCheetah-v"),
    ("--env-id CartPole-v1", "--env-id CartPole-v1", "continuous actions"),
    ("--env-id ImageOnly-v0", "--env-id ImageOnly-v0", "a vector of numbers"),
    ("--env-id Unbounded-v0", "--env-id Unbounded-v0", "bounded actions"),
    ("--env-id not/an/id", "--env-id not/an/id", "Gymnasium"),
    ("--num-minibatches 3", "--num-minibatches 3", "divisor of 1 envs x 2048 steps = 2048"),
    ("--num-minibatches 2048", "--num-minibatches 2048", "2 rows"),
    ("--total-timesteps 2047", "--total-timesteps 2047", "2048 rows"),
]
CASES = [
    (name, *case)
    for name in SCRIPTS
    for case in BAD + (BAD_ATARI if "atari" in name else BAD_CONTINUOUS)
]


class OddSpaces(gym.Env):
    """An environment that is never stepped, with an image to see or no bounds to act in."""

    def __init__(self, obs_shape, bound):
        self.observation_space = gym.spaces.Box(0, 255, obs_shape, np.uint8)
        self.action_space = gym.spaces.Box(-bound, bound, (2,))


gym.register("ImageOnly-v0", lambda: OddSpaces((96, 96, 3), 1.0))
gym.register("Unbounded-v0", lambda: OddSpaces((3,), np.inf))


@pytest.mark.parametrize(
    ("name", "flags", "named", "hint"), CASES, ids=[" ".join(c[:2]) for c in CASES]
)
def test_bad_input(name, flags, named, hint, tmp_path, capfd):
    with pytest.raises(SystemExit) as stop:
        run_main(name, *flags.split(), runs_dir=tmp_path / "runs")
    assert stop.value.code == 2
    (error,) = capfd.readouterr().err.splitlines()
    assert error.startswith(f"error: {named}: ") and hint in error
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", [name for name in SCRIPTS if "continuous" in name])
def test_without_mujoco(name, tmp_path):
    """A process in which mujoco cannot be imported is told which package to install."""
    (tmp_path / "mujoco.py").write_text("raise ImportError('no mujoco here')")
    done = run_script(PPO / f"{name}.py", cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 2
    (error,) = done.stderr.splitlines()
    assert error.startswith("error: --env-id HalfCheetah-v4: ") and "gymnasium[mujoco]" in error
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", SCRIPTS)
def test_runs_dir_that_cannot_be_written(name, tmp_path, capfd):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SystemExit) as stop:
        run_main(name, *TINY, runs_dir=tmp_path / "file" / "runs")
    assert stop.value.code == 2
    (error,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error")]
    assert error.startswith(f"error: --runs-dir {tmp_path / 'file' / 'runs'}: ")


@pytest.mark.parametrize("name", SCRIPTS)
def test_track_without_package_or_key(name, tmp_path, capfd, monkeypatch):
    for key in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for hint in ("wandb login", "pip install wandb"):
        if hint == "pip install wandb":
            monkeypatch.setitem(sys.modules, "wandb", None)
            monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(SystemExit) as stop:
            run_main(name, *TINY, "--track", runs_dir=tmp_path / "runs")
        assert stop.value.code == 2
        errors = [x for x in capfd.readouterr().err.splitlines() if x.startswith("error")]
        assert len(errors) == 1 and errors[0].startswith("error: --track") and hint in errors[0]
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_bad_input_as_a_process(name, tmp_path):
    """Exit status, one line and no traceback, as a shell sees them; tyro reports the rest."""
    for flags, status in ((["--num-envs", "0"], 2), (["--no-such-flag"], 2), (["--seed", "x"], 2)):
        done = run_script(PPO / f"{name}.py", *flags, cwd=tmp_path)
        assert done.returncode == status and "Traceback" not in done.stderr
        assert flags[0].removeprefix("--no-") in done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_target_kl_stops_between_epochs(name, tmp_path):
    """At an unreachable target every epoch runs; at a tiny one the second is the last."""
    flags = "--num-envs 2 --num-steps 16 --num-minibatches 2 --total-timesteps 32".split()
    flags += "--learning-rate 0.01 --no-anneal-lr --update-epochs 4".split()
    for target, epochs in (("1e9", 4), ("1e-9", None), ("None", 4)):
        run = run_main(name, *flags, "--target-kl", target, runs_dir=tmp_path)
        if epochs is None:
            kls = [float(epoch[:, 4].mean()) for epoch in run.losses]
            assert len(kls) < 4 and kls[-1] > 1e-9 and all(kl <= 1e-9 for kl in kls[:-1])
        else:
            assert len(run.losses) == epochs


OTHERS = [  # by flags alone: other actions, other lengths, several environments
    ("atari", ["--env-id", "Pong-v5"]),
    ("continuous", ["--env-id", "Hopper-v4"]),
    ("continuous", ["--env-id", "Walker2d-v5"]),
    ("continuous", ["--env-id", "Pendulum-v1", "--num-envs", 8]),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_other_environments(name, tmp_path):
    for i, (kind, flags) in enumerate(OTHERS):
        if kind in name:
            run = run_main(
                name, *TINY, *flags, "--total-timesteps", 128, runs_dir=tmp_path / str(i)
            )
            assert run.global_step == 128 and all(map(np.isfinite, run.metrics[:7]))
            (run_dir,) = (tmp_path / str(i)).iterdir()
            assert run_dir.name.startswith(f"{flags[1]}__{name}__1__")


@pytest.mark.parametrize("name", SCRIPTS)
def test_checkpoint(name, tmp_path):
    """The last weights, in a file of tensors and plain values, make the same network again."""
    run = run_main(name, *TINY, runs_dir=tmp_path)
    (run_dir,) = tmp_path.iterdir()
    checkpoint = torch.load(run_dir / "checkpoint.pt", weights_only=True)
    agent = load(name).Agent(spaces(name))
    agent.load_state_dict(checkpoint["agent"])
    for trained, loaded in zip(run.agent.parameters(), agent.parameters(), strict=True):
        assert torch.equal(trained, loaded)
    assert checkpoint["args"]["env_id"] == run.args.env_id and checkpoint["global_step"] == 48
    if "continuous" in name:
        assert checkpoint["normalizer"]["obs"]["mean"].tolist() == run.normalizer.obs.mean.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_track_offline(name, tmp_path):
    """wandb takes the run without a network and stays inside the run's folder."""
    env = {"WANDB_MODE": "offline", "HOME": str(tmp_path / "home")}
    done = run_script(PPO / f"{name}.py", *TINY, "--track", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert list((run_dir / "wandb").glob("offline-run-*/*.wandb"))
