"""What of EnvPool is trained here: each of its ids, by the script that takes it, or why none does.

    python benchmarks/families.py                 # all ids, some minutes; results/families.jsonl
    python benchmarks/families.py --families minigrid box2d     # those anew

An id is made by the scripts' own make_envs with two environments, reset and stepped three times by
random actions; a script takes it if that works, and if what comes out is finite and of one row for
each environment. ppo_pixels gets it through examples/envpool_pixels.py; Procgen needs Qt 5. An id
of the same engine, class and options as another is its alias, and left out.
A family runs in a process of its own, which goes on behind an id that ends it.
"""

import argparse
import importlib
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
from lib.records import RESULTS, ROOT, machine, now, read, warn
from tqdm import tqdm

SCRIPTS = ("ppo_envpool", "ppo_continuous_action_envpool", "ppo_pixels")
REASONS = {  # a pattern of the errors: what it says, in a few words
    r"counted from 0, not Box": "images, continuous actions",
    r"has pixels": "images",
    r"actions MultiDiscrete|actions Box\(.*?\), u?int\d+\)": "several choices at once",
    r"must not see": "what no sensor measures is among the observations",
    r"actions Box.*inf.* must be a bounded Box": "unbounded actions",
    r"rows of": "several players",
    r"system Qt 5": "Qt 5 is missing on the system",
    r"cannot open shared object|\.so": "a library is missing on the system",
    r"failed to open|does not exist": "its data is missing",
    r"ended with -11": "the process crashes",
}


def ids() -> dict[str, list[str]]:
    """Of each family, its ids without aliases."""
    registry = importlib.import_module("envpool.registration").registry
    found, seen = defaultdict(list), set()
    for name, (engine, kind, options) in registry.specs.items():
        which = engine, kind, json.dumps(options, sort_keys=True, default=str)
        if which not in seen:
            found[engine.removeprefix("envpool.").removeprefix("mujoco.")].append(name)
        seen.add(which)
    return dict(found)


def steps(script, env_id: str) -> None:
    """Makes an id and steps it; an exception says what is wrong."""
    seeds = np.array([1, 2])
    if script.__name__ == "ppo_pixels":
        many = {"env_id": f"envpool_pixels:EnvPool-{env_id}", "num_envs": len(seeds)}
        envs = script.make_envs(SimpleNamespace(**many))
        script.Agent(envs)
    else:
        envs = script.make_envs(SimpleNamespace(env_id=env_id), seeds)
    space, rng = envs.single_action_space, np.random.default_rng(0)
    obs, _ = envs.reset()
    for _ in range(3):
        if hasattr(space, "n"):
            actions = rng.integers(0, space.n, len(seeds))
        else:
            actions = rng.uniform(space.low, space.high, (len(seeds), *space.shape))
            actions = actions.astype(space.dtype)
        obs, reward, terminated, truncated, _ = envs.step(actions)
        for x in (reward, terminated, truncated):
            if np.shape(x) != (len(seeds),):
                raise ValueError(f"rows of {np.shape(x)} for {len(seeds)} environments")
        if len(obs) != len(seeds) or not np.isfinite(obs).all() or not np.isfinite(reward).all():
            raise ValueError(f"observations of shape {np.shape(obs)}, or not finite")


def look(family: str, done: int) -> None:
    """Prints a line for each id of a family, after the first so many."""
    sys.path[:0] = str(ROOT / "ppo"), str(ROOT / "examples")
    names = ("ppo_atari_envpool",) if family == "atari" else SCRIPTS
    for env_id in ids()[family][done:]:
        print(json.dumps({"begins": env_id}), flush=True)
        said = {"script": None, "why": None}
        for name in names:
            try:
                steps(importlib.import_module(name), env_id)
                said = {"script": name, "why": None}
                break
            except Exception as error:
                if "must be an image" not in str(error):  # that says nothing of a vector
                    said["why"] = f"{said['why'] or ''} {type(error).__name__}: {error}".strip()
        print(json.dumps({"env_id": env_id, "family": family, **said}), flush=True)


def reason(why: str) -> str:
    """Why no script takes an id, in a few words."""
    for pattern, words in REASONS.items():
        if re.search(pattern, why, re.DOTALL):
            return words
    return re.split(r"\s(?=\w+Error: )", why)[-1].splitlines()[0][:80]


def every(family: str, count: int, limit: float) -> list[dict]:
    """What a family's processes say of its ids."""
    found = []
    while len(found) < count:
        command = [sys.executable, Path(__file__).resolve(), "--look", family, str(len(found))]
        try:
            with TemporaryDirectory() as folder:  # VizDoom leaves a file where it runs
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=limit, cwd=folder
                )
            out, end = done.stdout, f"the process ended with {done.returncode}"
        except subprocess.TimeoutExpired as error:
            out, end = (error.stdout or b"").decode(), f"no answer in {limit:.0f} s"
        lines = [json.loads(line) for line in out.splitlines() if line.startswith('{"')]
        found += [line for line in lines if "env_id" in line]
        if len(found) < count:
            begun = lines[-1].get("begins", "?") if lines else "?"
            found.append({"env_id": begun, "family": family, "script": None, "why": end})
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--families", nargs="+", help="all by default")
    add("--look", nargs=2, metavar=("FAMILY", "DONE"), help=argparse.SUPPRESS)
    add("--limit", type=float, default=1800, help="seconds for a family's process")
    add("--results", type=Path, default=RESULTS, help="folder of the records")
    args = parser.parse_args()
    if args.look:
        look(args.look[0], int(args.look[1]))
        return 0
    known = ids()
    if unknown := {*(args.families or ())} - known.keys():
        parser.error(f"no family {min(unknown)}; there are {', '.join(sorted(known))}")
    families = args.families or sorted(known)
    lines = []
    for family in tqdm(families, unit="family"):
        lines += every(family, len(known[family]), args.limit)
    for line in lines:
        line["reason"] = None if line["script"] else reason(line["why"])
        line["why"] = None if line["script"] else line["why"].replace(f"{ROOT}/", "")[:300]
    about = {"date": now(), "versions": {"envpool": machine()["versions"]["envpool"]}}
    path = args.results / "families.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    found = [r for r in read(path) if r["family"] not in families]
    found = sorted(found + [line | about for line in lines], key=lambda r: r["family"])
    path.write_text("".join(json.dumps(r) + "\n" for r in found))
    for line in lines:
        if line["script"] is None:
            warn(f"{line['env_id']}: {line['reason']}")
    print(f"{len(lines)} ids: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
