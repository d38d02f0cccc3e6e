"""Steps per second, side by side: variants, the simulator alone, Stable-Baselines3 and others.

    python benchmarks/throughput.py                                  # the pairs, 5 rounds
    python benchmarks/throughput.py --quick                          # 1 short round: a few minutes
    python benchmarks/throughput.py --num-envs 8 16 32 64 128 \\
        --variants ppo_atari_envpool ppo_atari_envpool_torchcompile:compile+cudagraphs
    python benchmarks/throughput.py --variants ppo_atari_envpool \\
        --peer CleanRL='python ../peers/cleanrl_ppo_atari_envpool.py --num-envs {num_envs}'
    python benchmarks/throughput.py --variants ppo_atari_envpool_multigpu --ranks 1 2

Interleaved: each round runs every case once, each in a process of its own, so that what else the
machine does falls on all of them. Each run adds a line to results/throughput.jsonl: all of its
summary.json, the seconds from the process's start to the end of its first iteration, those in each
phase of the measured iterations (what runs is a copy of the script with a clock in its loop), the
round, the command, the commit and a fingerprint of the script's code. In the first round nothing
that was compiled before is used. What an optimisation buys is told by a variant without it, such as
NAME_torchcompile:compile+no-channels-last. A peer prints `SPS: x` after each iteration, as the
copies do that peers/cleanrl_leanrl.py makes; {num_envs} in its command is the number of
environments. Of several pairs peers are compared with the first.
"""

import argparse
import json
import shlex
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from lib import records
from lib.pairs import PAIRS
from lib.phases import clocked
from lib.tables import sessions, speeds
from tqdm import tqdm

ITERATIONS = 12  # of a run, 3 of them burn-in


@dataclass
class Case:
    """One row of a comparison."""

    variant: str
    """a variant of a script, or 'simulator', 'sb3' or another system's name"""
    pair: str
    """the eager script that it is compared with"""
    num_envs: int
    env_id: str | None
    """None is the script's own"""
    command: list[str]
    script: Path | None = None
    """one of ours, which leaves a summary.json in a folder given by --runs-dir"""
    more: dict = field(default_factory=dict)
    """more to put down"""


def variant_case(variant: str, num_envs: int, iterations: int, env_id=None, ranks=0) -> Case:
    """A script's case, of so many processes; Failure if there is no such variant."""
    name, flags = records.split_variant(variant)
    flags += ["--env-id", env_id] if env_id else []
    flags += ["--num-envs", num_envs]
    flags += ["--total-timesteps", iterations * num_envs * records.defaults(name)["num_steps"]]
    command, more = records.python(f"ppo/{name}.py", *flags), {"code": records.code(name)}
    if ranks:
        launch = ["--standalone", "--nproc-per-node", str(ranks)]
        command[1:1], more["ranks"] = ["-m", "torch.distributed.run", *launch], ranks
    pair, script = records.pair(variant).removesuffix("_multigpu"), records.ROOT / f"ppo/{name}.py"
    return Case(variant, pair, num_envs, env_id, command, script=script, more=more)


def helper_case(variant: str, name: str, num_envs: int, iterations: int, env_id) -> Case:
    """The simulator's or SB3's case on the environments of the pair `name`."""
    flags = [name, "--num-envs", num_envs] + (["--env-id", env_id] if env_id else [])
    if variant == "sb3":
        flags += ["--total-timesteps", iterations * num_envs * records.defaults(name)["num_steps"]]
    script = "benchmarks/peers/sb3.py" if variant == "sb3" else "benchmarks/lib/simulator.py"
    return Case(variant, name, num_envs, env_id, records.python(script, *flags))


def measure(case: Case, env: dict, limit: float) -> dict:
    """Runs a case once: what its summary or its output says, `sps` at least."""
    if case.script is not None:
        with TemporaryDirectory() as folder:
            copy, runs_dir = Path(folder, case.script.name), Path(folder, "runs")
            copy.write_text(clocked(case.script.read_text()))
            command = [str(copy) if x == str(case.script) else x for x in case.command]
            start = time.time()
            records.run_process([*command, "--runs-dir", str(runs_dir)], env, limit=limit)
            (run_dir,) = runs_dir.iterdir()
            result = json.loads((run_dir / "summary.json").read_text())
            if result["sps"] is None:
                raise records.Failure("too short a run for a speed: give more --iterations")
            return result | {"startup_s": records.startup_s(run_dir, start)}
    lines = records.timed_lines(case.command, env, limit=limit)
    found = [(at, float(match[1])) for at, match in records.matches(records.SPS, lines)]
    if not found:
        raise records.Failure("no 'SPS: x' in its output")
    started = {} if case.variant == "simulator" else {"startup_s": found[0][0]}
    return {"sps": found[-1][1], **started}


def run_rounds(cases: list[Case], rounds: int, path: Path, limit: float) -> tuple[str, int]:
    """Runs all cases, `rounds` times in turn, and appends their records.

    A case that fails, or takes more than `limit` seconds, is left out from then on. Each case has a
    cache of compiled code to itself, empty in the first round: its start-up then is a cold one.
    Returns the session's name and the number of failures.
    """
    session, failed = records.now(), set()
    words = [f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]
    common = {"session": session, "commit": records.commit(), **records.machine()}
    common["session_command"] = shlex.join(["python", *words])
    with tqdm(total=rounds * len(cases), unit="run") as progress, TemporaryDirectory() as caches:
        for number in range(1, rounds + 1):
            for i, case in enumerate(cases):
                progress.set_description(f"round {number}: {case.variant}")
                try:
                    if i not in failed:
                        result = measure(case, records.cold(f"{caches}/{i}"), limit)
                        record = {"variant": case.variant, "pair": case.pair, "round": number}
                        record |= {"num_envs": case.num_envs, "game": case.env_id}
                        record |= {"cold_cache": number == 1, "date": records.now(), **common}
                        record |= {"command": records.shown(case.command), **case.more, **result}
                        records.append(path, record)
                except (records.Failure, OSError, ValueError) as failure:
                    records.warn(f"{case.variant} (--num-envs {case.num_envs}): {failure}")
                    failed.add(i)
                progress.update()
    return session, len(failed)


def of_all_pairs() -> list[str]:
    """The variants that are measured by default."""
    cuda, found = records.machine()["gpu"] is not None, []
    graphs = "+cudagraphs" if cuda else ""
    for name in (name for name in PAIRS if "multigpu" not in name):
        fast = f"{name}_torchcompile"
        found += [name, f"{fast}:compile{graphs}"]
        if name == "ppo_atari_envpool":
            found += [f"{fast}:compile{graphs}+bfloat16"]
        elif cuda:  # networks this small may be as fast without
            found += [f"{name}:no-cuda", f"{fast}:compile+no-cuda"]
        if not name.endswith(("rnd", "trxl", "warp")):  # which it does not have
            found += [f"sb3:{name}"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--variants", nargs="+", help="NAME or NAME:flag+flag, or sb3:NAME; all by default")
    add("--num-envs", nargs="+", type=int, help="by default what the script has")
    add("--env-id", help="by default what the script has")
    add("--ranks", nargs="+", type=int, default=[2], help="processes of a multigpu script")
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
    if iterations < 4 or rounds < 1:
        parser.error("give 4 iterations or more, 3 of them are burn-in, and 1 round or more")
    variants, cases, failed = args.variants or of_all_pairs(), [], 0
    names = [records.pair(v.removeprefix("sb3:")).removesuffix("_multigpu") for v in variants]
    for name in dict.fromkeys(names):
        try:
            records.split_variant(name)
        except records.Failure as failure:
            records.warn(str(failure))
            failed += 1
            continue
        for num_envs in args.num_envs or [records.defaults(name)["num_envs"]]:
            common = (name, num_envs, iterations, args.env_id)
            cases.append(helper_case("simulator", *common))
            for variant in (v for v, of in zip(variants, names, strict=True) if of == name):
                try:
                    if variant.startswith("sb3:"):
                        cases.append(helper_case("sb3", *common))
                        continue
                    for ranks in args.ranks if "multigpu" in variant else [0]:
                        cases.append(variant_case(variant, *common[1:], ranks))
                except records.Failure as failure:
                    records.warn(f"{variant}: {failure}")
                    failed += 1
            for text in args.peer * (name == names[0]):
                try:
                    peer_name, words, command = records.peer(text, num_envs=num_envs)
                except records.Failure as failure:
                    parser.error(str(failure))
                more = {"command": command}
                cases.append(Case(peer_name, name, num_envs, args.env_id, words, more=more))
    path = results / "throughput.jsonl"
    records.catch_signals()
    try:
        session, broken = run_rounds(cases, rounds, path, args.timeout)
    except KeyboardInterrupt:
        records.warn(f"stopped; records: {path}")
        return 130
    if found := [r for r in records.read(path) if r.get("session") == session]:
        print(f"\n{speeds(sessions(found), log=True)}\n\nrecords: {path}, session {session}")
    return int(bool(failed or broken))


if __name__ == "__main__":
    sys.exit(main())
