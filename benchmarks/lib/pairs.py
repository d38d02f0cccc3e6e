"""The pairs: one entry each, from which tables, tree and the benchmarks' defaults are made.

Also which files a pair has, one of ppo/ or anyone's, and what differs between two files.
"""

import subprocess
from pathlib import Path
from typing import NamedTuple

from lib.records import ROOT, Failure

# Pong within an hour of two CPU cores: hyper-parameters of our own
PONG = "compile --bfloat16 --num-envs 16 --num-minibatches 16 --update-epochs 3 "
PONG += "--learning-rate 1e-3 --clip-coef 0.2 --no-clip-vloss --vf-coef 4"


class Pair(NamedTuple):
    """What the pages say of a pair that is not in its files."""

    parent: str | None
    """the eager script that it is derived from"""
    purpose: str
    """what it is for, in a few words"""
    env_id: str = ""
    """environment of the run that the front page shows; none if empty"""
    steps: int = 0
    """environment steps of that run"""
    mode: str = "compile"
    """flags of that run, as records.split_variant takes them"""


PAIRS = {
    "ppo": Pair(None, "CartPole and other small problems: read it first", "CartPole-v1", 500_000),
    "ppo_envpool": Pair(
        "ppo", "small problems on EnvPool, 64 at once: LunarLander", "LunarLander-v3", 1_500_000
    ),
    "ppo_masked": Pair("ppo", "impossible actions are masked out", "Taxi-v4", 500_000),
    "ppo_pettingzoo": Pair(
        "ppo", "several agents that share one policy", "mpe2.simple_spread_v3", 500_000
    ),
    "ppo_lstm": Pair("ppo", "CartPole without velocities: an LSTM", "CartPole-v1", 300_000),
    "ppo_trxl": Pair(
        "ppo",
        "what was seen 40 steps ago: attention to earlier rows",
        "tmaze:TMaze40-v0",
        150_000,
        "compile --trxl-memory-length 48 --ent-coef 0.01",
    ),
    "ppo_rnd": Pair(
        "ppo", "a bonus for what is new, where rewards are rare", "lock:Lock-v0", 200_000
    ),
    "ppo_continuous_action": Pair(
        "ppo",
        "MuJoCo on Gymnasium: Gaussian actions, normalisation",
        "HalfCheetah-v4",
        1_000_000,
    ),
    "ppo_continuous_action_envpool": Pair(
        "ppo_continuous_action",
        "MuJoCo on EnvPool: 64 environments in parallel",
        "HalfCheetah-v4",
        1_000_000,
    ),
    "ppo_continuous_action_lstm": Pair(
        "ppo_continuous_action",
        "Pendulum without its velocity: an LSTM",
        "Pendulum-v1",
        300_000,
    ),
    "ppo_continuous_action_warp": Pair(
        "ppo_continuous_action_envpool",
        "MuJoCo on the device, in MuJoCo Warp",
        "HalfCheetah-v5",
        1_000_000,
    ),
    "ppo_atari_envpool": Pair(None, "Atari on EnvPool: a CNN", "Pong-v5", 1_800_000, PONG),
    "ppo_atari": Pair(
        "ppo_atari_envpool", "Atari on ALE's own simulator", "ALE/Pong-v5", 1_800_000, PONG
    ),
    "ppo_pixels": Pair(
        "ppo_atari",
        "images of one's own, one of n actions: MinAtar",
        "MinAtar/Breakout-v1",
        1_000_000,
    ),
    "ppo_atari_envpool_multigpu": Pair("ppo_atari_envpool", "Atari, one process per GPU"),
    "ppo_atari_envpool_lstm": Pair(
        "ppo_atari_envpool",
        "Atari from single frames: an LSTM",
        "Pong-v5",
        1_800_000,
        PONG.replace("1e-3", "5e-4"),
    ),
}
TIMED = [name for name in PAIRS if "multigpu" not in name]  # that one has benchmarks/multigpu.py


def script(text: str) -> Path:
    """The file that NAME or a path stands for, with or without .py, as run.sh takes them; Failure
    if there is none."""
    given = Path(f"{text.removesuffix('.py')}.py").expanduser()
    for path in [given, ROOT / given] if "/" in text else [ROOT / "ppo" / given, given]:
        if path.is_file():
            return path.resolve()
    raise Failure(f"no script '{text}'")


def versions(text: str) -> tuple[Path, Path]:
    """The eager and the fast file of a pair, of which either is given; Failure without both."""
    given = script(text)
    eager = given.with_stem(given.stem.removesuffix("_torchcompile"))
    fast = eager.with_stem(f"{eager.stem}_torchcompile")
    for path in (eager, fast):
        if not path.is_file():
            raise Failure(f"'{text}' is half a pair: there is no {path}")
    return eager, fast


def changes(one: Path, two: Path) -> list[list[str]]:
    """The hunks of `diff -U0 -B`, each the list of its added and removed lines, blank ones out."""
    diff = subprocess.run(["diff", "-U0", "-B", one, two], capture_output=True, text=True)
    if diff.returncode > 1:
        raise FileNotFoundError(diff.stderr)
    hunks: list[list[str]] = []
    for line in diff.stdout.splitlines()[2:]:
        if line.startswith("@@"):
            hunks.append([])
        elif line[1:].strip() and line[0] in "+-":
            hunks[-1].append(line)
    return hunks
