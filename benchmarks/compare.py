"""Whether a change is better: two scripts, the same environments, seeds and steps, side by side.

    ./run.sh compare ppo ~/idea/my_ppo.py                      # 10 seeds of each on CartPole-v1
    ./run.sh compare ppo ~/idea/my_ppo.py --env-ids CartPole-v1 Acrobot-v1 --total-timesteps 100000
    ./run.sh compare ppo ppo_torchcompile:compile -- --num-envs 8      # flags for both come last
    ./run.sh compare ppo 'ppo --ent-coef 0.02'                         # one file, two sets of flags

Runs as many at once as there are cores, each on one of them. The score of a run is its mean return,
that of its last 100 episodes. A run adds a line to FOLDER/runs.jsonl, so that the same command,
interrupted or not, runs nothing twice; a script counts as the same while its code is. What fails is
shown, does not count, and is tried again next time. Environment and steps are by default A's own.
"""

import argparse
import json
import math
import os
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from learning import every_run, outcome
from lib.pairs import script
from lib.plots import BLUE, ORANGE, band, figure, legend
from lib.records import (
    Failure,
    append,
    constants,
    fields,
    fingerprint,
    machine,
    now,
    part,
    read,
    run_process,
    settings,
    startup_s,
    warn,
)
from lib.stats import bootstrap, difference, iqm, permutation_p, seeds_as_one, values
from lib.tables import rows_of

# what a comparison gives each run, and its own flags for that
OWN = {"env_id": "--env-ids", "seed": "--seeds", "total_timesteps": "--total-timesteps"}
OWN |= {"runs_dir": "--folder"}
SAME = ("code", "env_id", "seed", "total_timesteps", "flags")  # of two runs that are one


@dataclass
class Side:
    """A script with its flags, as it was when the comparison began."""

    name: str
    path: Path
    flags: list[str]
    text: str

    @property
    def code(self) -> str:
        return fingerprint(self.text)


def side(given: str, common: list[str]) -> Side:
    """A side as it is given, NAME, PATH or either with flags; Failure if it cannot take them."""
    name, mode, more = (given, "", []) if Path(given).expanduser().is_file() else part(given)
    path = script(name)
    own = [*(f"--{flag}" for flag in mode.split("+") if flag), *more]
    text = path.read_text()
    try:
        known = fields(text)
    except (Failure, SyntaxError) as failure:
        raise Failure(f"{path.name}: {failure}") from None
    asked = [word.partition("=")[0] for word in (*own, *common) if re.match("--[a-z]", word)]
    asked = [word.removeprefix("--").replace("-", "_") for word in asked]
    have = known | {f"no_{word}": None for word in known}
    if taken := [OWN[word] for word in asked if word in OWN]:
        raise Failure(f"for both sides, before any --: {', '.join(taken)}")
    if missing := [word for word in (*OWN, *asked) if word not in have]:
        flags = ", ".join(f"--{word.replace('_', '-')}" for word in missing)
        raise Failure(f"{path.name} has no {flags}")
    return Side(" ".join([path.stem, *own]), path, own, text)


def key(record: dict) -> str:
    """What makes two runs the same run."""
    return json.dumps([record[field] for field in SAME])


def train(job: dict, one: Side, folder: Path) -> None:
    """Runs a job to its end, and appends its record."""
    kept = folder / "scripts" / one.code / one.path.name  # one may be edited meanwhile
    words = [sys.executable, kept, *job["flags"], "--env-id", job["env_id"], "--seed", job["seed"]]
    words += ["--total-timesteps", job["total_timesteps"]]
    paths = [str(one.path.parent), os.environ.get("PYTHONPATH", "")]
    env = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    env |= settings("atari" if "nn.Conv2d" in one.text else "")  # pixels: freed memory is kept
    with tempfile.TemporaryDirectory() as place:
        start = time.time()
        run_process([*map(str, words), "--runs-dir", place], env)
        seconds = round(time.time() - start, 1)
        run_dir, summary, curve = outcome(Path(place), start, job["total_timesteps"])
        measured = {"date": now(), "seconds": seconds, "startup_s": startup_s(run_dir, start)}
    append(folder / "runs.jsonl", {**summary, **job, **measured, "curve": curve})


def form(numbers: list[float]) -> str:
    """With as many digits as numbers of this size need: three of the largest."""
    largest = max((abs(x) for x in numbers), default=0.0) or 1.0
    return f",.{max(0, 2 - math.floor(math.log10(largest)))}f"


def table(runs: dict[str, list[dict]]) -> str:
    """Of one environment: a row a script, and below it by how much they differ."""
    scores = {name: values(found, "mean_return") for name, found in runs.items()}
    digits, rows = form([x for found in scores.values() for x in found]), []
    for name, found in scores.items():
        row = [f"`{name}`", str(len(found)), "", "", ""]
        if found:
            row[2] = f"{np.mean(found):{digits}}"
        if len(found) > 1:
            row[2] += f" ± {np.std(found, ddof=1):{digits}}"
            middle, low, high = iqm(found)
            row[3] = f"{middle:{digits}} [{low:{digits}} to {high:{digits}}]"
        if speeds := values(runs[name], "sps"):
            row[4] = f"{np.median(speeds):,.0f}"
        rows.append(row)
    header = ["script", "seeds", "mean ± standard deviation", "interquartile mean [95%]", "steps/s"]
    said, (a, b) = rows_of(header, rows), scores.values()
    if min(len(a), len(b)) > 1:
        low, high = bootstrap(difference, a, b)
        one, two = (f"`{name}`" for name in scores)
        apart = f"{difference(a, b):+{digits}} [95%: {low:+{digits}} to {high:+{digits}}]"
        said += f"\n\n{two} minus {one}: {apart}, p = {permutation_p(a, b):.3f} (permutation test)"
    return said


def picture(found: dict[str, dict[str, list[dict]]], path: Path) -> None:
    """Returns over environment steps, mean and standard deviation, a panel an environment."""
    found = {env_id: runs for env_id, runs in found.items() if any(runs.values())}
    if not found:
        return
    note = "Mean and one standard deviation over seeds"
    fig, named = figure(max(5.0, 4.0 * len(found)), 3.8, note), {}
    for i, (env_id, sides) in enumerate(found.items(), 1):
        ax = fig.add_subplot(1, len(found), i, title=env_id, xlabel="environment steps")
        for (name, runs), colour in zip(sides.items(), (ORANGE, BLUE), strict=True):
            if runs := [r for r in runs if r["curve"]]:
                steps, _, mean, std = seeds_as_one(runs)
                named[name] = band(ax, steps, mean, std, colour)
    fig.axes[0].set_ylabel("return of an episode")
    legend(fig, named, 2).savefig(path)


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("run.sh compare", description=__doc__, formatter_class=form)
    add = parser.add_argument
    add("sides", nargs=2, metavar="SCRIPT", help="NAME or PATH; with flags, NAME:compile or so")
    add("--env-ids", nargs="+", help="A's default")
    add("--total-timesteps", type=int, help="A's default")
    add("--seeds", type=int, default=10, help="how many, from 1 on")
    add("--jobs", type=int, help="runs at once; by default one a core")
    add("--folder", type=Path, default=Path("compare"), help="of the records and the picture")
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    args, common = parser.parse_args(words[:at]), words[at + 1 :]
    try:
        sides = [side(given, common) for given in args.sides]
        if (sides[0].code, sides[0].flags) == (sides[1].code, sides[1].flags):
            raise Failure("both sides have the same code and the same flags")
    except Failure as failure:
        print(f"run.sh compare: {failure}", file=sys.stderr)
        return 2
    if sides[0].name == sides[1].name:  # of two folders
        for one in sides:
            one.name = " ".join([str(one.path), *one.flags])
    own, path = constants(sides[0].text), args.folder / "runs.jsonl"
    env_ids, steps = args.env_ids or [own["env_id"]], args.total_timesteps or own["total_timesteps"]
    for one in sides:
        kept = args.folder / "scripts" / one.code / one.path.name
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(one.text)
    cores = len(os.sched_getaffinity(0))
    at_once, about = args.jobs or cores, machine()
    if at_once <= cores:
        about["cores"] = 1
    done = {key(record) for record in read(path)}
    jobs, asked = [], {}
    for seed, env_id, one in product(range(1, args.seeds + 1), env_ids, sides):
        job = {"variant": one.name, "code": one.code, "env_id": env_id, "seed": seed}
        job |= {"total_timesteps": steps, "flags": [*one.flags, *common], **about}
        asked[key(job)] = one.name
        if key(job) not in done:
            jobs.append((job, partial(train, job, one, args.folder)))
    warn(f"{len(jobs)} runs to do, {len(asked) - len(jobs)} with a record in {path}")
    try:
        failed = every_run(jobs, at_once, at_once <= cores) if jobs else []
    except KeyboardInterrupt:
        warn("stopped; the same command goes on")
        return 130
    records = [r for r in read(path) if key(r) in asked]
    panels = {env_id: {one.name: [] for one in sides} for env_id in env_ids}
    for record in records:
        panels[record["env_id"]][asked[key(record)]].append(record)
    for env_id, runs in panels.items():
        print(f"\n**{env_id}, {steps:,} steps**\n\n{table(runs)}")
    if failed:
        print("\nNot counted, and tried again by the same command:", *failed, sep="\n- ")
    if records:
        picture(panels, args.folder / "curves.png")
        print(f"\nrecords: {path}; curves: {args.folder / 'curves.png'}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
