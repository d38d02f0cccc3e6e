"""What several tests need: the scripts as modules, as processes, and as a main that has ended."""

import fcntl
import functools
import importlib
import io
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import gymnasium as gym
import numpy as np
import pytest
from lib import parity
from lib.parity import scalars as scalars

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parent.parent
PPO = ROOT / "ppo"
FAST = sorted(path.stem for path in PPO.glob("*_torchcompile.py"))
PAIRS = [(name.removesuffix("_torchcompile"), name) for name in FAST]
SCRIPTS = [name for pair in PAIRS for name in pair]
IN_TURN = [pair[i % 2] for i, pair in enumerate(PAIRS)]  # for what has one text in both siblings
MARKED = [  # images and MuJoCo Warp's kernels take seconds
    pytest.param(*pair, marks=[pytest.mark.slow] * bool(re.search("atari|pixels|warp", pair[0])))
    for pair in PAIRS
]
TINY = (
    "--num-envs 2 --num-steps 8 --num-minibatches 2 --update-epochs 2 --total-timesteps 48".split()
)


def text_of(name):
    return (PPO / f"{name}.py").read_text()


# NCCL for CUDA tensors, as in main; asked before a test patches torch.cuda.is_available
BACKEND = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


def alone():
    """A process group of this process alone, which functions with a collective in them need."""
    if not dist.is_initialized():
        dist.init_process_group(BACKEND, store=dist.HashStore(), rank=0, world_size=1)


def load(name):
    """A script as a module: its functions, without its main."""
    if "multigpu" in name:
        alone()
    return importlib.import_module(name)


@functools.cache
def compile_kernels(env_id, device="cpu"):
    """Those of a task of MuJoCo Warp's, for a device, by one worker of pytest-xdist; the others
    wait, and load them."""
    script = load("ppo_continuous_action_warp")
    folder = Path(script.wp.config.kernel_cache_dir)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        script.WarpVectorEnv(env_id, 2, torch.device(device)).reset()


def run_main(name, *flags, runs_dir, edit=None, gpu=False):
    """parity.run_main of a script in ppo/, beside a process group of the tests' own."""
    grouped = dist.is_initialized()
    if grouped:
        dist.destroy_process_group()
    try:
        return parity.run_main(PPO / f"{name}.py", *flags, runs_dir=runs_dir, edit=edit, gpu=gpu)
    finally:
        if grouped:
            alone()


def run_script(path, *flags, cwd, env=None, gpu=False, timeout=600):
    """Runs a script as a process, on the CPU unless gpu; `runs` is where it leaves its results."""
    flags = [*map(str, flags), *([] if gpu else ["--no-cuda"])]
    return subprocess.run(
        [sys.executable, str(path), *flags],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def checkpoint_of(folder):
    """What the one run in a folder has saved."""
    (path,) = folder.glob("*/checkpoint.pt")
    return torch.load(path, weights_only=True)


def summary_of(folder):
    (path,) = folder.glob("*/summary.json")
    return json.loads(path.read_text())


def evaluate(run_dir, *flags):
    """ppo_eval in this process."""
    path = PPO / "ppo_eval.py"
    with patch("sys.argv", [*map(str, [path, run_dir, *flags])]):
        runpy.run_path(str(path), run_name="__main__")


def command(name, *words):
    """A program of benchmarks/ as a command, in this process: its status and what it prints."""
    out, err, path = io.StringIO(), io.StringIO(), [*sys.path]
    kinds = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    handlers = [(kind, signal.getsignal(kind)) for kind in kinds]
    with patch("sys.argv", [name, *map(str, words)]), redirect_stdout(out), redirect_stderr(err):
        try:
            status = importlib.import_module(name).main()
        except SystemExit as stop:
            status = stop.code
        finally:
            sys.path[:] = path
            for kind, handler in handlers:
                signal.signal(kind, handler)
    return SimpleNamespace(returncode=status, stdout=out.getvalue(), stderr=err.getvalue())


def ended(pid):
    """Whether there is no such process any more, or a zombie at most."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    return True


def wait_for(what, seconds=60):
    """Goes on when that is so."""
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


def envpool_of_gymnasium(monkeypatch):
    """EnvPool's make then gives Gymnasium's environments of that name."""

    def make(env_id, env_type, num_envs, seed):
        envs = gym.vector.SyncVectorEnv(
            [lambda: gym.make(env_id, disable_env_checker=True)] * num_envs,
            autoreset_mode=gym.vector.AutoresetMode.NEXT_STEP,
        )
        envs.spec = SimpleNamespace(config=SimpleNamespace(max_episode_steps=3))
        return envs

    monkeypatch.setattr("envpool.make", make)


def insert(before, lines):
    """An edit for run_main: these lines, indented like it, before the one line of that text."""

    def edit(text):
        (at,) = [i for i, line in enumerate(text.splitlines()) if line.strip() == before]
        found = text.splitlines()
        margin = found[at][: -len(before)]
        return "\n".join([*found[:at], textwrap.indent(lines.strip("\n"), margin), *found[at:]])

    return edit


def said(err):
    """A message as one line: without the frame that tyro draws around it, its breaks as spaces."""
    return " ".join(re.sub("[╭╮╰╯│]|─+", " ", err).split())


class AtariSpaces:
    """As much of an Atari environment as Agent looks at."""

    single_action_space = gym.spaces.Discrete(4)
    single_observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)


def kind(name):
    """What sets scripts apart for a test: "atari" of images, "continuous", or "" for ppo itself."""
    if "pixels" in name:
        return "atari"
    return next((kind for kind in ("atari", "continuous") if kind in name), "")


def task(name):
    """Its kind, or "many" where EnvPool simulates MuJoCo, "small" where it does small problems,
    "ale" where ALE simulates itself, "warp" where MuJoCo Warp does, "pixels" where images are one's
    own, "masked" where environments say which actions are possible, "together" with several agents.
    """
    words = {"masked": "masked", "pettingzoo": "together", "warp": "warp", "pixels": "pixels"}
    for word, found in words.items():
        if word in name:
            return found
    if "envpool" in name:
        return "many" if "continuous" in name else kind(name) or "small"
    return "ale" if "atari" in name else kind(name)


def spaces(name):
    """As much of a script's environments as Agent looks at: Breakout, HalfCheetah or CartPole, an
    LSTM's single frames, masks behind what is seen."""
    found, continuous = AtariSpaces(), kind(name) == "continuous"
    if kind(name) == "atari":
        size = (1 if "lstm" in name else 4, 84, 84)
        found.single_observation_space = gym.spaces.Box(0, 255, size, np.uint8)
        return found
    size = 17 if continuous else 4 + 2 * ("masked" in name)
    found.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (size,))
    doings = gym.spaces.Box(-1.0, 1.0, (6,)), gym.spaces.Discrete(2)
    found.single_action_space = doings[not continuous]
    return found


def agent(name, envs, args):
    """A script's Agent, for these environments; with attention also by flags."""
    return load(name).Agent(envs, *[args] * ("trxl" in name))
