"""What an idea is worth: returns with a patch of ppo/ideas and without, on the same seeds.

    python benchmarks/ideas.py                         # ten seeds of every idea that fits: hours
    python benchmarks/ideas.py --ideas rpo spo --env-ids Hopper-v4 --seeds 301 302

Forks the fast version of --pair with each patch, as `./run.sh fork` does, and trains it beside the
version without (`none`), a run a core, in turn. A run adds a line to results/ideas.jsonl, so that
the same command goes on where it was interrupted; an idea is the same while its patched text is.
"""

import argparse
import sys
import tempfile
import time
from functools import partial
from itertools import product
from pathlib import Path

from fork import IDEAS, Misfit, apply
from learning import every_run, outcome
from lib.records import (
    RESULTS,
    ROOT,
    Failure,
    append,
    fingerprint,
    machine,
    now,
    read,
    run_process,
    settings,
    startup_s,
    warn,
)

SAME = ("idea", "code", "env_id", "seed", "total_timesteps", "flags")
KEPT = ("sps", "mean_return", "episodes", "complete")  # of a run's summary


def patched(pair: str, idea: str, folder: Path) -> Path:
    """The fast version of a pair with an idea, in that folder; Misfit if it does not fit."""
    path = folder / idea / f"{pair}_torchcompile.py"
    path.parent.mkdir()
    path.write_text((ROOT / "ppo" / path.name).read_text())
    if idea != "none":
        apply(IDEAS / f"{idea}.patch", path, path.name)
    return path


def flags_of(idea: str) -> list[str]:
    """Those that a patch's header asks for."""
    head = "" if idea == "none" else (IDEAS / f"{idea}.patch").read_text()
    lines = [line.removeprefix("# Flags: ") for line in head.splitlines() if "# Flags: " in line]
    return lines[0].split() if lines else []


def train(job: dict, path: Path, records: Path) -> None:
    """Runs a job to its end, and appends its record."""
    words = [sys.executable, path, *job["flags"], "--env-id", job["env_id"], "--seed", job["seed"]]
    words += ["--total-timesteps", job["total_timesteps"], "--checkpoint-interval", 10**6]
    with tempfile.TemporaryDirectory() as place:
        start = time.time()
        run_process([*map(str, words), "--runs-dir", place], settings(""))
        seconds = round(time.time() - start, 1)
        run_dir, summary, _ = outcome(Path(place), start, job["total_timesteps"])
        measured = {"date": now(), "seconds": seconds, "startup_s": startup_s(run_dir, start)}
    append(records, {**{name: summary[name] for name in KEPT}, **job, **measured})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--ideas", nargs="+", help="names of patches; by default all that fit")
    add("--pair", default="ppo_continuous_action_envpool", help="whose fast version trains")
    add(
        "--env-ids", nargs="+", default=["HalfCheetah-v4", "Hopper-v4", "Walker2d-v4"], help="tasks"
    )
    add("--total-timesteps", type=int, default=1_000_000, help="of each run")
    add("--seeds", nargs="+", type=int, default=[*range(301, 311)], help="of each idea")
    add("--jobs", type=int, default=1, help="runs at once, a core each")
    add("--records", type=Path, default=RESULTS / "ideas.jsonl", help="the file, gone on with")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        paths = {}
        try:
            names = args.ideas or sorted(patch.stem for patch in IDEAS.glob("*.patch"))
            for idea in ["none", *names]:
                try:
                    paths[idea] = patched(args.pair, idea, Path(place))
                except Misfit:
                    if args.ideas:
                        raise
        except (Failure, OSError) as failure:
            print(f"ideas.py: {failure}", file=sys.stderr)
            return 2
        about = machine() | {"cores": 1, "pair": args.pair}
        done = {tuple(map(str, (r[name] for name in SAME))) for r in read(args.records)}
        jobs = []
        for seed, env_id, (idea, path) in product(args.seeds, args.env_ids, paths.items()):
            job = {"idea": idea, "code": fingerprint(path.read_text()), "env_id": env_id}
            job |= {"seed": seed, "total_timesteps": args.total_timesteps}
            job |= {"flags": ["--compile", *flags_of(idea)], **about}
            if tuple(str(job[name]) for name in SAME) not in done:
                work = partial(train, job, path, args.records)
                jobs.append((job | {"variant": idea}, work))
        warn(f"{len(jobs)} runs to do; records: {args.records}")
        try:
            return int(bool(jobs and every_run(jobs, args.jobs, True)))
        except KeyboardInterrupt:
            warn("stopped; the same command goes on")
            return 130


if __name__ == "__main__":
    sys.exit(main())
