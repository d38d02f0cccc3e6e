r"""What the scripts learn: variants x environments x seeds, one record a run.

    python benchmarks/learning.py                           # the continuous pair, 1M steps, 3 seeds
    python benchmarks/learning.py --variants sb3:ppo --env-ids CartPole-v1 --peer CleanRL='python \
        ../peers/cleanrl_ppo.py --env-id {env_id} --seed {seed} --total-timesteps {total_timesteps}'
    python benchmarks/learning.py --recipes LunarLander-v3 --seeds 1 2 3 4 5 --eval-games 20
    python benchmarks/learning.py --ideas rpo spo --seeds 301 302   # with these patches and without

A run that has a record is not run again, while its script's code is the same. Records are in
results/learning.jsonl, with --ideas in ideas.jsonl. With --runs-dir FOLDER and --minutes M a long
run is made in stretches: the same command again goes on with what is in FOLDER. A peer stands
beside the pair of the last of --variants.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from fork import IDEAS, apply, heading
from lib.recipes import recipes, variant
from lib.records import RESULTS, ROOT, Failure, catch_signals, pair, split_variant, warn
from lib.runs import Side, about, called, every, peer, played, records_of, train
from lib.tables import effects_table, runs_table

BOTH = ["ppo_continuous_action", "ppo_continuous_action_torchcompile:compile"]
MANY = ["ppo_continuous_action_envpool_torchcompile:compile"]
MUJOCO = ["HalfCheetah-v4", "Hopper-v4", "Walker2d-v4"]
SB3 = "python benchmarks/peers/sb3.py {} --env-id {{env_id}} --seed {{seed}} "
SB3 += "--total-timesteps {{total_timesteps}}"


def side_of(name: str, folder: Path) -> Side:
    """A variant, or sb3:NAME; Failure if there is none."""
    script, flags = split_variant(name.removeprefix("sb3:"))
    path = ROOT / "ppo" / f"{script}.py"
    if name.startswith("sb3:"):
        return Side("sb3", path, [], SB3.format(script), {"pair": script})
    side = Side(name, path, flags)
    side.keep(folder)
    return side


def patched(name: str, idea: str, folder: Path) -> Side:
    """A variant with an idea, or with `none`; Misfit if it does not fit."""
    side = side_of(name, folder)
    side.more = {"idea": idea}
    if idea != "none":
        side.copy = folder / idea / side.copy.name
        side.copy.parent.mkdir(exist_ok=True)
        side.copy.write_bytes(side.script.read_bytes())
        apply(IDEAS / f"{idea}.patch", side.copy, side.copy.name)
        side.flags = side.flags + heading(IDEAS / f"{idea}.patch").get("Flags", "").split()
    return side


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--variants", nargs="+", help="NAME or NAME:flag+flag, or sb3:NAME; by default a pair's")
    add("--env-ids", nargs="+", help=f"by default {' '.join(MUJOCO)}")
    add("--total-timesteps", type=int, help="1,000,000 by default")
    add("--recipes", nargs="+", choices=recipes(), metavar="NAME", help="train recipes instead")
    add("--ideas", nargs="+", metavar="NAME", help="patches of ppo/ideas, beside none")
    add("--seeds", nargs="+", type=int, default=[1, 2, 3])
    add("--runs-dir", type=Path, help="keep runs there, and go on with them")
    add("--minutes", type=float, help="of each run; --runs-dir goes on with it")
    add("--eval-games", type=int, default=0, help="ppo_eval plays so many at a run's end")
    add("--peer", action="append", default=[], metavar="NAME=COMMAND")
    add("--jobs", type=int, help="runs at once; by default as many as cores")
    add("--results", type=Path, default=RESULTS, help="folder of the records")
    args = parser.parse_args()
    given = [args.variants, args.env_ids, args.total_timesteps]
    if args.recipes and given != [None] * 3:
        parser.error("--recipes have variants, environments and steps of their own")
    variants = args.variants or (MANY if args.ideas else BOTH)
    steps = args.total_timesteps or 1_000_000
    path = args.results / ("ideas.jsonl" if args.ideas else "learning.jsonl")
    tasks = [(env_id, name, steps) for env_id in args.env_ids or MUJOCO for name in variants]
    chosen = {variant(x): x for x in (recipes()[name] for name in args.recipes or [])}
    if chosen:
        tasks = [(x["env_id"], name, x["total_timesteps"]) for name, x in chosen.items()]
    at_once = args.jobs or len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as place:
        beside = ROOT / "ppo" / f"{pair(variants[-1].removeprefix('sb3:'))}.py"
        sides = {}
        try:
            for name in {name for _, name, _ in tasks}:
                ideas = ["none", *args.ideas] if args.ideas else []
                ideas += [chosen[name]["patch"]] if "patch" in chosen.get(name, {}) else []
                mine = [patched(name, idea, Path(place)) for idea in ideas]
                sides[name] = mine or [side_of(name, Path(place))]
            for text in args.peer:
                other = peer(text, beside)
                sides[other.name] = [other]
                tasks += [(env_id, other.name, steps) for env_id in args.env_ids or MUJOCO]
        except Failure as failure:
            parser.error(str(failure))
        more = about(at_once)
        jobs = [
            (more | side.job(env_id, seed, steps), side)
            for seed in args.seeds
            for env_id, name, steps in tasks
            for side in sides[name]
        ]

        def work(job, side):
            with tempfile.TemporaryDirectory() as runs, tempfile.TemporaryDirectory() as cache:
                folder = args.runs_dir or Path(runs)
                cold = cache if args.recipes else None  # their seconds are a first run's
                found = train(job, side, folder, args.minutes and 60 * args.minutes, cold)
                if args.eval_games and not side.command:
                    try:
                        (run_dir,) = folder.glob(f"*/{found['run']}")
                        found |= played(run_dir, args.eval_games)
                    except Failure as failure:  # what was learned has its record all the same
                        warn(f"{called(job)}: ppo_eval: {failure}")
            return found

        catch_signals()
        try:
            failed = every(path, jobs, work, at_once)
        except KeyboardInterrupt:
            warn("stopped; the same command goes on")
            return 130
    print(runs_table(records_of(path)))
    if args.ideas:
        print(f"\n{effects_table(records_of(path))}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
