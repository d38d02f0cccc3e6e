"""The pairs: one entry each, from which the tree is made, and the order of tables.

Also which files a pair has, one of ppo/ or anyone's, and what differs between two files.
"""

import subprocess
from pathlib import Path
from typing import NamedTuple

from lib.records import ROOT, Failure


class Pair(NamedTuple):
    """What the pages say of a pair that is not in its files."""

    parent: str | None  # the eager script that it is derived from
    purpose: str  # what it is for, in a few words


PAIRS = {
    "ppo": Pair(None, "CartPole and other small problems: read it first"),
    "ppo_envpool": Pair("ppo", "small problems on EnvPool, 64 at once: LunarLander"),
    "ppo_masked": Pair("ppo", "impossible actions are masked out"),
    "ppo_pettingzoo": Pair("ppo", "several agents that share one policy"),
    "ppo_lstm": Pair("ppo", "CartPole without velocities: an LSTM"),
    "ppo_trxl": Pair("ppo", "what was seen 40 steps ago: attention to earlier rows"),
    "ppo_rnd": Pair("ppo", "a bonus for what is new, where rewards are rare"),
    "ppo_continuous_action": Pair("ppo", "MuJoCo on Gymnasium: Gaussian actions, normalisation"),
    "ppo_continuous_action_envpool": Pair(
        "ppo_continuous_action", "MuJoCo on EnvPool: 64 environments in parallel"
    ),
    "ppo_continuous_action_lstm": Pair(
        "ppo_continuous_action", "Pendulum without its velocity: an LSTM"
    ),
    "ppo_continuous_action_warp": Pair(
        "ppo_continuous_action_envpool", "MuJoCo on the device, in MuJoCo Warp"
    ),
    "ppo_atari_envpool": Pair(None, "Atari on EnvPool: a CNN"),
    "ppo_atari": Pair("ppo_atari_envpool", "Atari on ALE's own simulator"),
    "ppo_pixels": Pair("ppo_atari", "images of one's own, one of n actions: MinAtar"),
    "ppo_atari_envpool_multigpu": Pair("ppo_atari_envpool", "Atari, one process per GPU"),
    "ppo_atari_envpool_lstm": Pair("ppo_atari_envpool", "Atari from single frames: an LSTM"),
}


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
