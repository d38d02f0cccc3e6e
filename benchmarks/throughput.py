r"""Steps per second, side by side: variants, the simulator alone, Stable-Baselines3 and others.

    python benchmarks/throughput.py                                  # the pairs, 5 rounds
    python benchmarks/throughput.py --quick                          # 1 short round: a few minutes
    python benchmarks/throughput.py --variants ppo_atari_envpool \
        --peer CleanRL='python ../peers/cleanrl_ppo_atari_envpool.py --num-envs {num_envs}'

Each round runs every case once, each in a process of its own. Each run adds a line to
results/throughput.jsonl, or gpu.jsonl where there is a GPU. A peer prints `SPS: x` after each
iteration, as the copies do that peers/cleanrl_leanrl.py makes; of several pairs peers stand beside
the first.
"""

import argparse
import shlex
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from learning import side_of
from lib import records
from lib.pairs import PAIRS
from lib.runs import Side, peer, train
from lib.tables import sessions, speeds
from tqdm import tqdm

ITERATIONS = 12  # of a run, 3 of them burn-in
SIMULATOR = "python benchmarks/lib/simulator.py {} --env-id {{env_id}} --num-envs {{num_envs}}"


def cases_of(
    name: str, variants: list[str], num_envs: int, iterations: int, place: Path
) -> list[tuple[dict, Side]]:
    """Jobs on the environments of the pair `name`: the simulator's first, then the variants'."""
    script, own = records.ROOT / "ppo" / f"{name}.py", records.defaults(name)
    sides = [Side("simulator", script, [], SIMULATOR.format(name))]
    for side in (side_of(variant, place) for variant in variants):
        more = ["--num-envs", str(num_envs)]
        side.flags = side.flags + more
        side.command += f" {shlex.join(more)}" if side.command else ""
        sides.append(side)
    steps = iterations * num_envs * own["num_steps"]
    more = {"pair": name, "num_envs": num_envs}
    return [(side.job(own["env_id"], 1, steps) | more, side) for side in sides]


def run_rounds(cases: list, rounds: int, path: Path, limit: float) -> tuple[str, int]:
    """Runs all cases, (job, side), `rounds` times in turn, and appends their records.

    A case that fails, or takes more than `limit` seconds, is left out from then on. Each case has a
    cache of compiled code to itself, empty in the first round: its start-up then is a cold one.
    Returns the session's name and the number of failures.
    """
    session, failed = records.now(), set()
    common = {"session": session, "commit": records.commit(), **records.machine()}
    common["session_command"] = shlex.join(["python", *sys.argv])
    with tqdm(total=rounds * len(cases), unit="run") as progress, TemporaryDirectory() as caches:
        for number in range(1, rounds + 1):
            for i, (job, side) in enumerate(cases):
                progress.set_description(f"round {number}: {side.name}")
                try:
                    if i not in failed:
                        found = train(job, side, limit=limit, cache=f"{caches}/{i}")
                        if found["sps"] is None or not found["complete"]:
                            raise records.Failure("no speed: more --iterations, or --timeout")
                        del found["curve"]
                        if side.name == "simulator":  # it says its speed in the end
                            del found["startup_s"]
                        more = {"round": number, "cold_cache": number == 1, **common}
                        records.append(path, job | more | found)
                except records.Failure as failure:
                    records.warn(f"{side.name} (--num-envs {job['num_envs']}): {failure}")
                    failed.add(i)
                progress.update()
    return session, len(failed)


def of_all_pairs() -> list[str]:
    """The variants that are measured by default."""
    how, found = "compile+cudagraphs" if records.machine()["gpu"] else "compile", []
    for name in (name for name in PAIRS if "multigpu" not in name):
        found += [name, f"{name}_torchcompile:{how}"]
        if not name.endswith(("rnd", "trxl", "warp")):  # which it does not have
            found += [f"sb3:{name}"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--variants", nargs="+", help="NAME or NAME:flag+flag, or sb3:NAME; all by default")
    add("--num-envs", nargs="+", type=int, help="by default what the script has")
    add("--rounds", type=int, help="5 by default")
    add("--iterations", type=int, help=f"of a run, 3 of them burn-in; {ITERATIONS} by default")
    add("--timeout", type=float, default=3600, help="seconds until a run counts as failed")
    add("--peer", action="append", default=[], metavar="NAME=COMMAND", help="another system")
    add("--quick", action="store_true", help="1 round of 6 iterations, not among the results")
    add("--results", type=Path, help="folder of the records")
    args = parser.parse_args()
    iterations = args.iterations or (6 if args.quick else ITERATIONS)
    rounds = args.rounds or (1 if args.quick else 5)
    results = args.results or (Path("runs") / "bench" if args.quick else records.RESULTS)
    variants, cases = args.variants or of_all_pairs(), []
    path = results / ("gpu.jsonl" if records.machine()["gpu"] else "throughput.jsonl")
    with TemporaryDirectory() as place:
        try:
            names = [records.pair(variant.removeprefix("sb3:")) for variant in variants]
            for name in dict.fromkeys(names):
                same = [v for v, of in zip(variants, names, strict=True) if of == name]
                records.split_variant(name)
                for n in args.num_envs or [records.defaults(name)["num_envs"]]:
                    cases += cases_of(name, same, n, iterations, Path(place))
                    for text in args.peer * (name == names[0]):
                        side = peer(text, cases[-1][1].script)
                        cases.append((cases[-1][0] | {"variant": side.name}, side))
        except records.Failure as failure:
            parser.error(str(failure))
        records.catch_signals()
        try:
            session, broken = run_rounds(cases, rounds, path, args.timeout)
        except KeyboardInterrupt:
            records.warn(f"stopped; records: {path}")
            return 130
    if found := [r for r in records.read(path) if r.get("session") == session]:
        print(f"\n{speeds(sessions(found))}\n\nrecords: {path}, session {session}")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
