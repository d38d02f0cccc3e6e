"""What the scripts learn: variants x environments x seeds, and how far siblings are apart.

    python benchmarks/learning.py                           # the continuous pair, 1M steps, 3 seeds
    python benchmarks/learning.py --env-ids Pong-v5 --seeds 1 --total-timesteps 2000000 \\
        --variants ppo_atari_envpool_torchcompile:compile
    python benchmarks/learning.py --summary                 # what the records say, and no run

A run that has a record is not run again. Each adds a line to results/learning.jsonl: all of its
summary.json, the command, the commit, and its curve, `curve`, a list of at most 200 points
(environment steps, seconds since the start of the process, mean return of the games that ended
since the last point). With --until STEPS a run that is to take --total-timesteps is ended by
SIGTERM once it has got there: its schedule is that of the whole run. With --runs-dir FOLDER and
--minutes M a long run is made in stretches: the same command again goes on with what is in FOLDER,
and a record says how far the run has got; the last one of a run counts. With --eval-games N what a
run has learned plays N games by ppo_eval, `eval`; `seconds` leaves that out. Runs share the
machine, so that their seconds are longer than those of a run alone.
"""

import argparse
import itertools
import json
import math
import os
import re
import shlex
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import numpy as np
from measured import learning_table
from records import (
    RESULTS,
    Failure,
    append,
    as_of_today,
    commit,
    machine,
    now,
    python,
    read,
    run_process,
    scalars,
    shown,
    split_variant,
    startup_s,
    warn,
)
from tqdm import tqdm

POINTS = 200  # of a curve, at most


def key(record: dict) -> tuple:
    """What makes two runs the same run."""
    fields = ("env_id", "seed", "total_timesteps", "until", "cpu", "cores", "gpu")
    return as_of_today(record), *(record[field] for field in fields)


def curve(run_dir: Path, start: float, total_timesteps: int) -> list[list[float]]:
    """Points (steps, seconds, mean return) from a run's TensorBoard events; of what lies between
    two games a minute at most counts, as between two stretches of a run."""
    episodes = scalars(run_dir, "charts/episodic_return")
    gaps = np.diff([start, *(episode.wall_time for episode in episodes)])
    gaps[1:] = gaps[1:].clip(0, 60)
    seconds = {e.step: float(at) for e, at in zip(episodes, gaps.cumsum(), strict=True)}
    width = total_timesteps / POINTS
    points = []
    for _, ended in itertools.groupby(episodes, lambda e: int((e.step - 1) // width)):
        ended = list(ended)
        points.append(
            [
                ended[-1].step,
                round(seconds[ended[-1].step], 1),
                round(float(np.mean([e.value for e in ended])), 3),
            ]
        )
    return points


def reached(run_dir: Path) -> int:
    """The last step that a run has written to its curves."""
    found = scalars(run_dir, "charts/learning_rate")
    return found[-1].step if found else 0


def learn(job: dict, path: Path, runs_dir: Path | None, minutes: float, eval_games: int) -> None:
    """Runs one job to its end, or for so many minutes, lets what it learned play so many games, and
    appends its record."""
    name, flags = split_variant(job["variant"])
    flags += ["--env-id", job["env_id"], "--seed", job["seed"]]
    flags += ["--total-timesteps", job["total_timesteps"]]
    with tempfile.TemporaryDirectory() as folder:
        if runs_dir is not None:
            words = (job["variant"], job["env_id"], str(job["seed"]), str(job["total_timesteps"]))
            folder = runs_dir / re.sub(r"[^\w.-]+", "_", "__".join(words))
            folder.mkdir(parents=True, exist_ok=True)
        earlier = [str(found.parent) for found in Path(folder).glob("*/checkpoint.pt")]
        where = ["--resume", *earlier] if earlier else ["--runs-dir", folder]
        looked = [0.0]

        def tick(process):
            """Ends the run when its time is over or it has got to --until; looks twice a minute."""
            if time.time() - began < 60 * minutes:
                if job["until"] is None or time.time() - looked[0] < 30:
                    return False
                looked[0] = time.time()
                if not any(reached(run) >= job["until"] for run in Path(folder).iterdir()):
                    return False
            process.send_signal(signal.SIGTERM)
            return True

        start = began = time.time()
        script = f"ppo/{name}.py"
        run_process(python(script, *flags, *where), tick=tick)
        (run_dir,) = (found.parent for found in Path(folder).glob("*/summary.json"))
        summary = json.loads((run_dir / "summary.json").read_text())
        if earlier:  # by the first stretch's file, events.out.tfevents.<seconds>.<host>...
            start = min(float(path.name.split(".")[3]) for path in run_dir.glob("events.*"))
        points = curve(run_dir, start, job["total_timesteps"])
        played = {"seconds": round(time.time() - began, 1), "startup_s": startup_s(run_dir, start)}
        if eval_games:
            try:
                run_process(python("ppo/ppo_eval.py", run_dir, "--episodes", eval_games))
                found = json.loads((run_dir / "eval.json").read_text())
                played["eval"] = {name: found[name] for name in ("mean", "std", "episodes")}
            except Failure as failure:  # what was learned has its record all the same
                warn(f"{job['variant']} {job['env_id']} seed {job['seed']}: ppo_eval: {failure}")
    command = shown(script, *flags)
    measured = {"date": now(), "command": command, "curve": points, **played}
    if runs_dir is not None:
        measured["run"] = run_dir.name
        rollout = summary["args"]["num_envs"] * summary["args"]["num_steps"]
        if summary["global_step"] + rollout <= (job["until"] or job["total_timesteps"]):
            measured["until"] = summary["global_step"]
    append(path, {**summary, **job, **measured})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    pair = ["ppo_continuous_action", "ppo_continuous_action_torchcompile:compile"]
    add("--variants", nargs="+", default=pair, help="NAME or NAME:flag+flag")
    add("--env-ids", nargs="+", default=["HalfCheetah-v4", "Hopper-v4", "Walker2d-v4"])
    add("--seeds", nargs="+", type=int, default=[1, 2, 3])
    add("--total-timesteps", type=int, default=1_000_000)
    add("--until", type=int, help="end each run there; its schedule is that of all its steps")
    add("--runs-dir", type=Path, help="keep the runs there, and go on with those that are there")
    add("--minutes", type=float, default=math.inf, help="of each run; --runs-dir goes on with it")
    add("--eval-games", type=int, default=0, help="ppo_eval plays so many at a run's end")
    add("--jobs", type=int, help="runs at once; a core each, or 1 if a variant is Atari's")
    add("--results", type=Path, default=RESULTS, help="folder of the records")
    add("--summary", action="store_true", help="print what the records say, and run nothing")
    args = parser.parse_args()
    path = args.results / "learning.jsonl"
    done, failed = {key(r) for r in read(path)}, 0
    common = {"total_timesteps": args.total_timesteps, "until": args.until, "commit": commit()}
    common |= machine() | {"session_command": shlex.join(["python", *sys.argv])}
    jobs, recorded = [], 0
    for seed, env_id, variant in itertools.product(args.seeds, args.env_ids, args.variants):
        try:
            split_variant(variant)
        except Failure as failure:
            if (seed, env_id) == (args.seeds[0], args.env_ids[0]):
                warn(f"{variant}: {failure}")
                failed += 1
            continue
        job = {"variant": variant, "env_id": env_id, "seed": seed, **common}
        if key(job) in done:
            recorded += 1
        elif not args.summary:
            jobs.append(job)
    cores = len(os.sched_getaffinity(0))
    at_once = args.jobs or (1 if any("atari" in job["variant"] for job in jobs) else cores)
    warn(f"{len(jobs)} runs to do, {recorded} with a record")
    for job in jobs:
        job["jobs"] = at_once
    pool = ThreadPoolExecutor(at_once)
    with tqdm(total=len(jobs), unit="run") as progress:
        more = (path, args.runs_dir, args.minutes, args.eval_games)
        futures = {pool.submit(learn, job, *more): job for job in jobs}
        try:
            for future in as_completed(futures):
                job, failure = futures[future], future.exception()
                if failure is not None:
                    warn(f"{job['variant']} {job['env_id']} seed {job['seed']}: {failure}")
                    failed += 1
                progress.update()
        finally:
            pool.shutdown(cancel_futures=True)
    print(learning_table(read(path)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
