"""What the scripts learn: variants x environments x seeds, and how far the two versions are apart.

    python benchmarks/learning.py                           # the continuous pair, 1M steps, 3 seeds
    python benchmarks/learning.py --env-ids Pong-v5 --seeds 1 --total-timesteps 2000000 \\
        --variants ppo_atari_envpool_torchcompile:compile
    python benchmarks/learning.py --variants sb3:ppo --env-ids CartPole-v1 --peer CleanRL='python \\
        ../peers/cleanrl_ppo.py --env-id {env_id} --seed {seed} --total-timesteps {total_timesteps}'
    python benchmarks/learning.py --recipes LunarLander-v3 --seeds 1 2 3 4 5 --eval-games 20
    python benchmarks/learning.py --summary                 # what the records say, and no run

A run that has a record is not run again. Each adds a line to results/learning.jsonl: all of its
summary.json, the command, the commit, and its curve, `curve`, a list of some 200 points
(environment steps, seconds since the start of the process, mean return of the games that ended
since the last point). With --until STEPS a run that is to take --total-timesteps is ended by
SIGTERM once it has got there: its schedule is that of the whole run. With --runs-dir FOLDER and
--minutes M a long run is made in stretches: the same command again goes on with what is in FOLDER,
and a record says how far the run has got; the last one of a run counts. With --eval-games N what a
run has learned plays N games by ppo_eval, `eval`, and N by the most likely actions,
`eval_deterministic`; `seconds` leaves that out. --recipes takes variant, environment and steps from
ppo/recipes.toml.

A peer runs to its end, within --minutes. Its curve is made from the lines that it prints and the
seconds at which they come: `global_step=N, episodic_return=X` for each game, and `SPS: x` after
each iteration; `pair` is what it is compared with, the pair of the last of --variants. `zoo:NAME`
is Stable-Baselines3 with the flags that its zoo has for a task (peers/zoo.py), beside NAME.

Each run compiles with an empty cache. As many runs at once as there are cores have one each,
`cores` is then 1; fewer or more share all of them, so that their seconds are longer than those of a
run alone.
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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import numpy as np
from lib.recipes import recipes, variant
from lib.records import (
    RESULTS,
    SPS,
    Failure,
    append,
    as_of_today,
    commit,
    machine,
    matches,
    now,
    pair,
    peer,
    python,
    read,
    run_process,
    scalars,
    settings,
    shown,
    split_variant,
    startup_s,
    timed_lines,
    warn,
)
from lib.tables import learning_table
from tqdm import tqdm

BOTH = ["ppo_continuous_action", "ppo_continuous_action_torchcompile:compile"]
MUJOCO = ["HalfCheetah-v4", "Hopper-v4", "Walker2d-v4"]
POINTS = 200  # of a curve, about
PLAYED = re.compile(r"deterministic: mean (\S+), std (\S+), (\d+) episodes")
EPISODE = re.compile(r"global_step=(\d+), episodic_return=\[?([-+\d.e]+)")


def key(record: dict) -> tuple:
    """What makes two runs the same run."""
    fields = ("env_id", "seed", "total_timesteps", "until", "cpu", "cores", "gpu")
    return as_of_today(record), record.get("pair"), *(record[field] for field in fields)


def points(episodes: list[tuple], total_timesteps: int) -> list[list[float]]:
    """A curve, points (steps, seconds, mean return), from games (step, seconds, return)."""
    width, found = total_timesteps / POINTS, []
    for _, ended in itertools.groupby(episodes, lambda episode: int((episode[0] - 1) // width)):
        steps, seconds, returns = zip(*ended, strict=True)
        found.append([steps[-1], round(seconds[-1], 1), round(float(np.mean(returns)), 3)])
    return found


def curve(run_dir: Path, start: float, total_timesteps: int) -> list[list[float]]:
    """A run's curve from its TensorBoard events; of what lies between two games a minute at most
    counts, as between two stretches of a run."""
    episodes = scalars(run_dir, "charts/episodic_return")
    gaps = np.diff([start, *(episode.wall_time for episode in episodes)])
    gaps[1:] = gaps[1:].clip(0, 60)
    seconds = gaps.cumsum().tolist()
    found = [(e.step, at, e.value) for e, at in zip(episodes, seconds, strict=True)]
    return points(found, total_timesteps)


def reached(run_dir: Path) -> int:
    """The last step that a run has written to its curves."""
    found = scalars(run_dir, "charts/learning_rate")
    return found[-1].step if found else 0


def outcome(folder: Path, start: float, total_timesteps: int) -> tuple[Path, dict, list]:
    """Of the one run in a folder: its own folder, its summary, its curve since `start`."""
    if not (found := [*folder.glob("*/summary.json")]):
        raise Failure("ended in its first iteration: give it more --minutes")
    (path,) = found
    return path.parent, json.loads(path.read_text()), curve(path.parent, start, total_timesteps)


def every_run(jobs: list[tuple[dict, Callable]], at_once: int, pinned: bool) -> list[str]:
    """Calls what is to be done for each job, so many at once, on a core each if pinned, under a
    bar. Returns a line for each that failed, and says it at once."""
    cores, failed = sorted(os.sched_getaffinity(0)), []

    def pin():  # a thread's processes have its cores
        if pinned:
            os.sched_setaffinity(0, {cores.pop()})

    pool = ThreadPoolExecutor(at_once, initializer=pin)
    with tqdm(total=len(jobs), unit="run") as progress:
        futures = {pool.submit(work): job for job, work in jobs}
        try:
            for future in as_completed(futures):
                job, failure = futures[future], future.exception()
                if failure is not None:
                    failed.append(f"{job['variant']} {job['env_id']} seed {job['seed']}: {failure}")
                    warn(failed[-1])
                progress.update()
        finally:
            pool.shutdown(cancel_futures=True)
    return failed


def peer_command(job: dict, peers: dict[str, str], of_pair: str) -> list[str] | None:
    """The command of a job whose variant is a peer, with `pair` and `command` put into the job;
    None for one of ours. Failure if there is no such variant."""
    if job["variant"] in peers:
        _, words, command = peer(peers[job["variant"]], **job)
        job |= {"pair": of_pair, "command": command}
        return words
    system, found, name = job["variant"].partition(":")
    if not found or system not in ("sb3", "zoo"):
        split_variant(job["variant"])
        return None
    split_variant(name)
    flags = ["--env-id", job["env_id"], "--seed", job["seed"]]
    flags += ["--total-timesteps", job["total_timesteps"]]
    flags = [name, *flags] if system == "sb3" else flags
    script = f"benchmarks/peers/{system}.py"
    job |= {"variant": system, "pair": name, "command": shown(script, *flags)}
    return python(script, *flags)


def learn_peer(job: dict, words: list[str], path: Path, minutes: float) -> None:
    """Runs a peer to its end, and appends the record of what it printed."""
    with tempfile.TemporaryDirectory() as cache:
        start = time.time()
        env = settings(job["pair"], {"TORCHINDUCTOR_CACHE_DIR": cache})
        lines = timed_lines(words, env, limit=60 * minutes)
        found = {"date": now(), "seconds": round(time.time() - start, 1)}
    episodes = [(int(match[1]), at, float(match[2])) for at, match in matches(EPISODE, lines)]
    speeds = [(at, float(match[1])) for at, match in matches(SPS, lines)]
    found |= {"startup_s": speeds[0][0], "sps": speeds[-1][1]} if speeds else {"sps": None}
    found |= {"episodes": len(episodes), "global_step": episodes[-1][0] if episodes else 0}
    found["mean_return"] = float(np.mean([e[2] for e in episodes[-100:]])) if episodes else None
    for _, match in matches(PLAYED, lines):  # after the training, whose seconds count
        mean, std, games = map(float, match.groups())
        found["eval_deterministic"] = {"mean": mean, "std": std, "episodes": int(games)}
        found["seconds"] = round(speeds[-1][0], 1)
    append(path, {**job, **found, "curve": points(episodes, job["total_timesteps"])})


def learn(job: dict, words, path: Path, minutes, runs_dir: Path | None, eval_games: int) -> None:
    """Runs one job, a peer's if it has a command of its own, to its end, or for so many minutes,
    lets what it learned play so many games, and appends its record."""
    if words is not None:
        return learn_peer(job, words, path, minutes)
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
        if earlier:  # by the first stretch's file, events.out.tfevents.<seconds>.<host>...
            start = min(float(x.name.split(".")[3]) for x in Path(*earlier).glob("events.*"))
        script = f"ppo/{name}.py"
        env = settings(name, {"TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "cache")})
        run_process(python(script, *flags, *where), env, tick=tick)
        run_dir, summary, learned = outcome(Path(folder), start, job["total_timesteps"])
        seconds = learned[-1][1] if earlier else round(time.time() - began, 1)  # of all stretches
        played = {"seconds": seconds, "startup_s": startup_s(run_dir, start)}
        if eval_games:
            try:
                for field, way in (("eval", []), ("eval_deterministic", ["--deterministic"])):
                    flags_of_eval = ["--episodes", eval_games, *way]
                    run_process(python("ppo/ppo_eval.py", run_dir, *flags_of_eval))
                    found = json.loads((run_dir / "eval.json").read_text())
                    played[field] = {name: found[name] for name in ("mean", "std", "episodes")}
            except Failure as failure:  # what was learned has its record all the same
                warn(f"{job['variant']} {job['env_id']} seed {job['seed']}: ppo_eval: {failure}")
    command = shown(script, *flags)
    measured = {"date": now(), "command": command, "curve": learned, **played}
    if runs_dir is not None:
        measured["run"] = run_dir.name
        rollout = summary["args"]["num_envs"] * summary["args"]["num_steps"]
        if summary["global_step"] + rollout <= (job["until"] or job["total_timesteps"]):
            measured["until"] = summary["global_step"]
    append(path, {**summary, **job, **measured})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    names = "NAME or NAME:flag+flag, sb3:NAME or zoo:NAME; by default the continuous pair"
    add("--variants", nargs="+", help=names)
    add("--env-ids", nargs="+", help=f"by default {' '.join(MUJOCO)}")
    add("--total-timesteps", type=int, help="1,000,000 by default")
    add("--recipes", nargs="+", choices=recipes(), metavar="NAME", help="train recipes instead")
    add("--seeds", nargs="+", type=int, default=[1, 2, 3])
    add("--until", type=int, help="steps after which to end a run; schedules stay")
    add("--runs-dir", type=Path, help="keep runs there, and go on with them")
    add("--minutes", type=float, default=math.inf, help="of each run; --runs-dir goes on with it")
    add("--eval-games", type=int, default=0, help="ppo_eval plays so many at a run's end")
    add("--peer", action="append", default=[], metavar="NAME=COMMAND")
    add("--jobs", type=int, help="runs at once; as many as cores, or 1 if a variant is Atari's")
    add("--results", type=Path, default=RESULTS, help="folder of the records")
    add("--summary", action="store_true", help="print what the records say, and run nothing")
    args = parser.parse_args()
    given = [x for x in (args.variants, args.env_ids, args.total_timesteps) if x is not None]
    if args.recipes and given:
        parser.error("--recipes have variants, environments and steps of their own")
    args.variants = args.variants or BOTH
    args.env_ids = args.env_ids or MUJOCO
    if args.total_timesteps is None:
        args.total_timesteps = 1_000_000
    path = args.results / "learning.jsonl"
    done, failed = {key(r) for r in read(path)}, 0
    common = {"until": args.until, "commit": commit()}
    common |= machine() | {"session_command": shlex.join(["python", *sys.argv])}
    peers = {text.partition("=")[0]: text for text in args.peer}
    every = itertools.product(args.env_ids, [*args.variants, *peers], [args.total_timesteps])
    if args.recipes:
        chosen = [recipes()[name] for name in args.recipes]
        every = [(x["env_id"], variant(x), x["total_timesteps"]) for x in chosen]
    tasks = list(every)
    cores = sorted(os.sched_getaffinity(0))
    at_once = args.jobs or (1 if any("atari" in x for _, x, _ in tasks) else len(cores))
    common["jobs"], pinned = at_once, at_once == len(cores)
    common["cores"] = 1 if pinned else len(cores)
    jobs, recorded = [], 0
    for seed, (env_id, name, steps) in itertools.product(args.seeds, tasks):
        job = {"variant": name, "env_id": env_id, "seed": seed, "total_timesteps": steps, **common}
        try:
            words = peer_command(job, peers, pair(re.sub("^(sb3|zoo):", "", args.variants[-1])))
        except Failure as failure:
            if (seed, env_id) == (args.seeds[0], tasks[0][0]):
                warn(f"{name}: {failure}")
                failed += 1
            continue
        if key(job) in done:
            recorded += 1
        elif not args.summary:
            jobs.append((job, words))
    warn(f"{len(jobs)} runs to do, {recorded} with a record")

    more = (path, args.minutes, args.runs_dir, args.eval_games)
    jobs = [(job, partial(learn, job, words, *more)) for job, words in jobs]
    failed += len(every_run(jobs, at_once, pinned))
    print(learning_table(read(path)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
