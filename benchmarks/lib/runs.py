"""Training over seeds: the engine of which learning.py, compare.py and tune.py are views.

A job is a dictionary of what makes a run that run, KEY, and more that is put down. Its record is
the job and what came of it, a line of a file. The last record of a key counts, and what has one is
not run again.
"""

import itertools
import json
import math
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np
from lib import records
from tqdm import tqdm

KEY = ("code", "flags", "env_id", "seed", "total_timesteps")
POINTS = 100  # of a curve, about
# as other systems are made to print them
SPS = re.compile(r"SPS: ([\d.]+)")
EPISODE = re.compile(r"global_step=(\d+), episodic_return=\[?([-+\d.einfa]+)")


@dataclass
class Side:
    """What is trained: a script with flags, or another system."""

    name: str  # `variant` of its records
    script: Path  # of another system the one that it stands beside
    flags: list[str] = field(default_factory=list)
    command: str = ""  # another system's, with {env_id}, {seed} and {total_timesteps}
    more: dict = field(default_factory=dict)  # of its records
    copy: Path | None = None  # what runs: the script, or what it was when keep() was called

    def __post_init__(self):
        self.copy = self.copy or self.script

    def keep(self, folder: Path) -> None:
        """Copies the script."""
        text = self.script.read_bytes()
        self.copy = folder / sha256(text).hexdigest()[:10] / self.script.name
        self.copy.parent.mkdir(parents=True, exist_ok=True)
        self.copy.write_bytes(text)

    def code(self, env_id: str) -> str:
        return records.code_of(self.copy, self.script.parent, env_id)

    def job(self, env_id: str, seed: int, total_timesteps: int) -> dict:
        code = f"{self.name}, {self.script.stem}" if self.command else self.code(env_id)
        found = {"variant": self.name, "code": code, "flags": self.flags, "env_id": env_id}
        return found | {"seed": seed, "total_timesteps": total_timesteps} | self.more


def peer(text: str, script: Path) -> Side:
    """The other system of --peer NAME='COMMAND', beside a script; Failure without a command."""
    name, _, command = text.partition("=")
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    if not words:
        raise records.Failure(f"--peer {text}: give NAME='COMMAND'")
    return Side(name, script, [], command, {"pair": script.stem})


def key(record: dict) -> str:
    """What makes two runs one. Records from before code was put down have their name for it."""
    code = record.get("code") or [record["variant"], record.get("pair")]
    return json.dumps([code, *(record.get(name) for name in KEY[1:])])


def complete(record: dict) -> bool:
    """Whether a run has taken all of its steps."""
    return record.get("complete", True)


def records_of(path: Path) -> list[dict]:
    """The records of a file, the last one of each key."""
    return [*{key(record): record for record in records.read(path)}.values()]


def judged(records: list[dict]) -> tuple[list[dict], list[str]]:
    """The records whose mean return is a number, and a line for each of the others."""
    good, lines = [], []
    for record in records:
        mean = record["mean_return"]
        if mean is not None and math.isfinite(mean):
            good.append(record)
        else:
            said = "no episode has ended" if mean is None else f"its mean return is {mean}"
            lines.append(f"{called(record)}: {said}")
    return good, lines


def called(job: dict) -> str:
    """A run in a few words."""
    return f"{job['variant']} {job['env_id']} seed {job['seed']}"


def every(path: Path, jobs: list[tuple[dict, Side]], work: Callable, at_once: int) -> list[str]:
    """Makes the records of all jobs by work(job, side), so many at once, under a bar; on a core
    each if they are as many as cores. Returns a line for each that failed, and says it at once."""
    jobs = [*{key(job): (job, side) for job, side in jobs}.values()]
    done = {key(record) for record in records_of(path) if complete(record)}
    left = [(job, side) for job, side in jobs if key(job) not in done]
    records.warn(f"{len(left)} runs to do, {len(jobs) - len(left)} with a record in {path}")
    cores, failed = sorted(os.sched_getaffinity(0)), []
    pinned = at_once == len(cores)

    def once(job, side):
        records.append(path, {**job, **work(job, side)})

    def pin():  # a thread's processes have its core
        if pinned:
            os.sched_setaffinity(0, {cores.pop()})

    pool = ThreadPoolExecutor(at_once, initializer=pin)
    with tqdm(total=len(left), unit="run", disable=not left) as progress:
        futures = {pool.submit(once, *one): one[0] for one in left}
        try:
            for future in as_completed(futures):
                if failure := future.exception():
                    failed.append(f"{called(futures[future])}: {failure}")
                    records.warn(failed[-1])
                progress.update()
        finally:
            pool.shutdown(cancel_futures=True)
    return failed


def about(at_once: int) -> dict:
    """What all records of a command have: it, the machine, the commit, how many runs at once."""
    found = {**records.machine(), "commit": records.commit(), "jobs": at_once}
    found["session_command"] = shlex.join(["python", *sys.argv])
    return found | ({"cores": 1} if at_once == found["cores"] else {})


def points(episodes: list[tuple], total_timesteps: int) -> list[list[float]]:
    """A curve, points (steps, seconds, mean return), from games (step, seconds, return)."""
    width, found = total_timesteps / POINTS, []
    for _, ended in itertools.groupby(episodes, lambda episode: int((episode[0] - 1) // width)):
        steps, seconds, returns = zip(*ended, strict=True)
        found.append([steps[-1], round(float(seconds[-1]), 1), round(float(np.mean(returns)), 3)])
    return found


def train(job: dict, side: Side, runs=None, limit=None, cache=None) -> dict:
    """What comes of a job: its run's summary, curve and seconds.

    runs: a folder, else a temporary one; a run that is in it is gone on with. limit: seconds after
    which the run is asked to save and end. cache: a folder; nothing that was compiled outside it is
    used. Failure if what the script imports was changed meanwhile.
    """
    if side.command:
        return train_peer(job, side, limit, cache)
    with tempfile.TemporaryDirectory() as place:
        words = "__".join(str(job[x]) for x in ("variant", *KEY) if x != "flags")
        name = re.sub(r"[^\w.-]+", "_", words)
        if len(name) > 200:  # as with --env-kwargs; a file's name has at most 255 bytes
            name = f"{name[:150]}__{sha256(words.encode()).hexdigest()[:10]}"
        folder = Path(runs or place, name)
        folder.mkdir(parents=True, exist_ok=True)
        earlier = [str(found.parent) for found in folder.glob("*/checkpoint.pt")]
        flags = [*job["flags"], "--env-id", job["env_id"], "--seed", str(job["seed"])]
        flags += ["--total-timesteps", str(job["total_timesteps"])]
        where = ["--resume", *earlier] if earlier else ["--runs-dir", str(folder)]
        beside = [str(side.script.parent), os.environ.get("PYTHONPATH", "")]
        env = {"PYTHONPATH": os.pathsep.join(filter(None, beside))}
        env |= records.cold(cache) if cache else {}
        began = time.time()
        records.run_process([sys.executable, str(side.copy), *flags, *where], env, limit)
        if side.code(job["env_id"]) != job["code"]:
            raise records.Failure("what it imports was changed while it ran")
        if not (found := [*folder.glob("*/summary.json")]):
            raise records.Failure("it has left no summary")
        run_dir, start, seconds = found[0].parent, began, time.time() - began
        if earlier:  # by the first stretch's file, events.out.tfevents.<seconds>.<host>...
            start = min(float(x.name.split(".")[3]) for x in run_dir.glob("events.*"))
        curves = records.events(run_dir)
        ended = curves.get("charts/episodic_return", [])
        gaps = np.diff([start, *(x.wall_time for x in ended)])
        gaps[1:] = gaps[1:].clip(0, 60)  # between two games, or two stretches, a minute at most
        games = [(x.step, at, x.value) for x, at in zip(ended, gaps.cumsum(), strict=True)]
        learned = points(games, job["total_timesteps"])
        if earlier and learned:
            seconds = learned[-1][1]  # of all stretches
        found = json.loads(found[0].read_text())
        found |= {"date": records.now(), "seconds": round(seconds, 1), "run": run_dir.name}
        found["command"] = records.shown([sys.executable, str(side.script), *flags])
        first = curves["charts/learning_rate"][0].wall_time
        return found | {"startup_s": first - start, "curve": learned}


def train_peer(job: dict, side: Side, limit, cache) -> dict:
    """The same of another system, from what it prints and when: `global_step=N,
    episodic_return=X` after each game, and `SPS: x` after each iteration."""
    command = side.command
    for name, value in job.items():
        command = command.replace(f"{{{name}}}", str(value))
    words, start = shlex.split(command), time.time()
    if "".join(words[1:2]).startswith("benchmarks/"):
        words[:2] = records.python(words[1])
    lines = records.timed_lines(words, records.cold(cache) if cache else None, limit)
    found = {"date": records.now(), "seconds": round(time.time() - start, 1)}
    games, speeds = [], []
    for at, line in lines:
        games += [(int(x[1]), at, float(x[2])) for x in EPISODE.finditer(line)]
        speeds += [(at, float(x[1])) for x in SPS.finditer(line)]
    found |= {"command": command, "complete": True, "sps": None}
    if speeds:
        found |= {"startup_s": speeds[0][0], "sps": speeds[-1][1]}
    found |= {"episodes": len(games), "global_step": games[-1][0] if games else 0}
    found["mean_return"] = float(np.mean([x for *_, x in games[-100:]])) if games else None
    return found | {"curve": points(games, job["total_timesteps"])}


def played(run_dir: Path, games: int) -> dict:
    """What ppo_eval comes to with a run: sampled actions, `eval`, and the most likely ones."""
    found = {}
    for name, way in (("eval", []), ("eval_deterministic", ["--deterministic"])):
        records.run_process(records.python("ppo/ppo_eval.py", run_dir, "--episodes", games, *way))
        scores = json.loads((run_dir / "eval.json").read_text())
        found[name] = {x: scores[x] for x in ("mean", "std", "episodes")}
    return found
