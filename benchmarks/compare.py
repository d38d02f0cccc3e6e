"""Whether a change is better: two scripts, the same environments, seeds and steps, side by side.

    ./run.sh compare ppo ~/idea/my_ppo.py                      # 10 seeds of each on CartPole-v1
    ./run.sh compare ppo ~/idea/my_ppo.py --env-ids CartPole-v1 Acrobot-v1 --total-timesteps 100000
    ./run.sh compare ppo ppo_torchcompile:compile -- --num-envs 8      # flags for both come last
    ./run.sh compare ppo 'ppo --ent-coef 0.02'                         # one file, two sets of flags

The score of a run is its mean return, that of its last 100 episodes. A run adds a line to
FOLDER/runs.jsonl, so that the same command runs nothing twice, while a script's code is the same,
and that of what it imports beside it or from PYTHONPATH. What fails is tried again next time.
"""

import argparse
import os
import re
import sys
from itertools import product
from pathlib import Path

import numpy as np
from lib.pairs import script
from lib.plots import panels
from lib.records import Failure, catch_signals, constants, fields, part, warn
from lib.runs import Side, about, every, judged, key, records_of, train
from lib.stats import bootstrap, difference, iqm, permutation_p, values
from lib.tables import rows_of

# what a comparison gives each run, and its own flags for that
OWN = {"env_id": "--env-ids", "seed": "--seeds", "total_timesteps": "--total-timesteps"}
OWN |= {"runs_dir": "--folder"}


def side(given: str, common: list[str]) -> Side:
    """A side as it is given, NAME, PATH or either with flags; Failure if it cannot take them."""
    name, mode, more = (given, "", []) if Path(given).expanduser().is_file() else part(given)
    path = script(name)
    own = [*(f"--{flag}" for flag in mode.split("+") if flag), *more]
    known = fields(path.read_text())
    asked = [word.partition("=")[0] for word in (*own, *common) if re.match("--[a-z]", word)]
    asked = [word.removeprefix("--").replace("-", "_") for word in asked]
    have = known | {f"no_{word}": None for word in known}
    if taken := [OWN[word] for word in asked if word in OWN]:
        raise Failure(f"for both sides, before any --: {', '.join(taken)}")
    if missing := [word for word in (*OWN, *asked) if word not in have]:
        flags = ", ".join(f"--{word.replace('_', '-')}" for word in missing)
        raise Failure(f"{path.name} has no {flags}")
    return Side(" ".join([path.stem, *own]), path, [*own, *common])


def table(runs: dict[str, list[dict]]) -> str:
    """Of one environment: a row a script, and below it by how much they differ."""
    scores = {name: values(found, "mean_return") for name, found in runs.items()}
    largest = max((abs(x) for found in scores.values() for x in found), default=0.0)
    digits, rows = ",.0f" if largest >= 100 else ",.2f", []
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


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("run.sh compare", description=__doc__, formatter_class=form)
    add = parser.add_argument
    add("sides", nargs=2, metavar="SCRIPT", help="NAME or PATH; with flags, NAME:compile or so")
    add("--env-ids", nargs="+", help="A's default")
    add("--total-timesteps", type=int, help="A's default")
    add("--seeds", type=int, default=10, help="how many, from 1 on")
    add("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="runs at once; one a core")
    add("--folder", type=Path, default=Path("compare"), help="of the records and the picture")
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    args, common = parser.parse_args(words[:at]), words[at + 1 :]
    try:
        sides = [side(given, common) for given in args.sides]
        own = constants(sides[0].script.read_text())
        env_ids = [*dict.fromkeys(args.env_ids or [own["env_id"]])]
        steps = args.total_timesteps or own["total_timesteps"]
        if len({key(one.job(env_ids[0], 1, steps)) for one in sides}) == 1:
            raise Failure("both sides have the same code and the same flags")
    except Failure as failure:
        print(f"run.sh compare: {failure}", file=sys.stderr)
        return 2
    if sides[0].name == sides[1].name:  # of two folders
        for one in sides:
            one.name = " ".join([str(one.script), *one.name.split()[1:]])
    path, more, asked, jobs = args.folder / "runs.jsonl", about(args.jobs), {}, []
    for one in sides:
        one.keep(args.folder / "scripts")
    for seed, env_id, one in product(range(1, args.seeds + 1), env_ids, sides):
        jobs.append((more | one.job(env_id, seed, steps), one))
        asked[key(jobs[-1][0])] = one.name
    catch_signals()
    try:
        failed = every(path, jobs, train, args.jobs)
    except KeyboardInterrupt:
        warn("stopped; the same command goes on")
        return 130
    records, unsound = judged([r for r in records_of(path) if key(r) in asked])
    tasks = {env_id: {one.name: [] for one in sides} for env_id in env_ids}
    for record in records:
        tasks[record["env_id"]][asked[key(record)]].append(record)
    for env_id, runs in tasks.items():
        print(f"\n**{env_id}, {steps:,} steps**\n\n{table(runs)}")
    if unsound:
        print("\nNot counted:", *unsound, sep="\n- ")
    if failed:
        print("\nNot counted, and tried again by the same command:", *failed, sep="\n- ")
    if figure := panels(tasks, ""):
        figure.savefig(args.folder / "curves.png")
        print(f"\nrecords: {path}; curves: {args.folder / 'curves.png'}")
    return int(bool(failed or unsound))


if __name__ == "__main__":
    sys.exit(main())
