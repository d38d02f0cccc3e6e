"""Steps per second, side by side: variants, the simulator alone, Stable-Baselines3 and other peers.

    python benchmarks/throughput.py                                  # the pairs, 5 rounds
    python benchmarks/throughput.py --quick                          # 1 short round: a few minutes
    python benchmarks/throughput.py --num-envs 8 16 32 64 128 \\
        --variants ppo_atari_envpool ppo_atari_envpool_torchcompile:compile+cudagraphs
    python benchmarks/throughput.py --variants ppo_atari_envpool --peer-sps 'SPS: (\\d+)' \\
        --peer CleanRL='python ../cleanrl/cleanrl/ppo_atari_envpool.py --total-timesteps 12288'

Interleaved: each round runs every case once, each in a process of its own, so that what else the
machine does falls on all of them. Each run adds a line to results/throughput.jsonl: all of its
summary.json, the seconds from the process's start to the end of its first iteration, those in each
phase of the measured iterations (what runs is a copy of the script with a clock in its loop), the
round, the command, the commit, a fingerprint of the script's code, and the steps/s of the simulator
alone in that round. A peer's figure is what the last match of --peer-sps in its output holds,
start-up included if that is how it counts; the first match, after its first iteration if that is
when it says so, ends its start-up; {num_envs} in its command is the number of environments. Of
several pairs peers are compared with the first.
"""

import argparse
import json
import os
import re
import shlex
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from lib.pairs import TIMED
from lib.phases import clocked
from lib.records import (
    RESULTS,
    ROOT,
    SPS,
    Failure,
    append,
    code,
    commit,
    defaults,
    machine,
    matches,
    now,
    pair,
    peer,
    python,
    read,
    run_process,
    settings,
    shown,
    split_variant,
    startup_s,
    timed_lines,
    warn,
)
from lib.tables import blocks, cases_table
from tqdm import tqdm

ITERATIONS = 12  # of a run, 3 of them burn-in


@dataclass
class Case:
    """One row of a comparison."""

    variant: str
    """a variant of a script, or 'simulator', 'sb3' or a peer's name"""
    pair: str
    """the eager script that it is compared with"""
    num_envs: int
    command: list[str]
    shown: str
    """the command as it is put down"""
    env_id: str | None = None
    """None is the script's own"""
    env: dict = field(default_factory=dict)
    """environment variables that it sets, beside those of settings()"""
    sps_regex: re.Pattern | None = None
    """how a peer's figure is found in its output"""
    extra: dict = field(default_factory=dict)
    """more to put down"""
    at_once: int = 1
    """so many runs of it side by side; steps/s is their mean, all else the first one's"""
    script: Path | None = None
    """a script of ours, which leaves a summary.json in a folder given by --runs-dir"""


def variant_case(variant, num_envs, iterations, env_id=None, env=None, extra=None) -> Case:
    """A script's case; Failure if there is no such variant."""
    name, flags = split_variant(variant)
    steps = iterations * num_envs * defaults(name)["num_steps"]
    flags += ["--num-envs", num_envs, "--total-timesteps", steps]
    flags += ["--env-id", env_id] if env_id else []
    script = f"ppo/{name}.py"
    return Case(
        variant,
        pair(variant),
        num_envs,
        python(script, *flags),
        shown(script, *flags),
        env_id,
        env or {},
        extra={"code": code(name), **(extra or {})},
        script=ROOT / script,
    )


def helper_case(variant, script, name, num_envs, iterations, env_id) -> Case:
    """The simulator's or SB3's case on the environments of the pair `name`."""
    flags = [name, "--num-envs", num_envs] + (["--env-id", env_id] if env_id else [])
    if variant == "sb3":
        flags += ["--total-timesteps", iterations * num_envs * defaults(name)["num_steps"]]
    case = Case(variant, name, num_envs, python(script, *flags), shown(script, *flags), env_id)
    case.sps_regex = SPS if variant == "sb3" else None
    return case


def measure(case: Case, env: dict, limit: float) -> dict:
    """Runs a case once: what its summary or its output says, `sps` at least."""
    if case.at_once > 1:
        one = replace(case, at_once=1)
        with ThreadPoolExecutor(case.at_once) as pool:
            results = list(pool.map(lambda _: measure(one, env, limit), range(case.at_once)))
        return results[0] | {"sps": statistics.mean(result["sps"] for result in results)}
    if case.script is not None:
        with TemporaryDirectory() as folder:
            copy, runs_dir = Path(folder, case.script.name), Path(folder, "runs")
            copy.write_text(clocked(case.script.read_text()))
            command = [str(copy) if x == str(case.script) else x for x in case.command]
            start = time.time()
            run_process([*command, "--runs-dir", str(runs_dir)], env, limit=limit)
            (run_dir,) = runs_dir.iterdir()
            result = json.loads((run_dir / "summary.json").read_text())
            if result["sps"] is None:
                raise Failure("too short a run for a speed: give more --iterations")
            return result | {"startup_s": startup_s(run_dir, start)}
    lines = timed_lines(case.command, env, limit=limit)
    if case.sps_regex is None:
        return json.loads(lines[-1][1])
    try:
        found = [(at, match[1]) for at, match in matches(case.sps_regex, lines)]
        return {"sps": float(found[-1][1]), "startup_s": found[0][0]}
    except (IndexError, TypeError, ValueError):
        raise Failure(f"no figure for '{case.sps_regex.pattern}' in its output") from None


def run_rounds(cases: list[Case], rounds: int, path: Path, limit: float) -> tuple[str, int]:
    """Runs all cases, `rounds` times in turn, and appends their records.

    A case that fails, or takes more than `limit` seconds, is left out from then on. Each case has a
    cache of compiled code to itself, empty in the first round: its start-up then is a cold one.
    Returns the session's name and the number of failures.
    """
    session, failed = now(), set()
    common = {"session": session, "commit": commit(), **machine()}
    common["session_command"] = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}"])
    common["session_command"] += "".join(f" {shlex.quote(word)}" for word in sys.argv[1:])
    with tqdm(total=rounds * len(cases), unit="run") as progress, TemporaryDirectory() as caches:
        for number in range(1, rounds + 1):
            simulator = {}
            for i, case in enumerate(cases):
                progress.set_description(f"round {number}: {case.variant}")
                where = (case.pair, case.num_envs)
                try:
                    if i not in failed:
                        cache = {"TORCHINDUCTOR_CACHE_DIR": os.path.join(caches, str(i))}
                        result = measure(case, cache | settings(case.pair, case.env), limit)
                        if case.variant == "simulator":
                            simulator[where] = result["sps"]
                        record = {"variant": case.variant, "pair": case.pair, "round": number}
                        record |= {
                            "num_envs": case.num_envs,
                            "at_once": case.at_once,
                            "game": case.env_id,
                        }
                        record |= {"date": now(), "cold_cache": number == 1, **case.extra}
                        env = settings(case.pair, case.env)
                        command = " ".join([*map("=".join, env.items()), case.shown])
                        record |= {"command": command, "env": env, **common, **result}
                        record |= {"simulator_sps": simulator.get(where)}
                        append(path, record)
                except (Failure, OSError, ValueError) as failure:
                    warn(f"{case.variant} (--num-envs {case.num_envs}): {failure}")
                    failed.add(i)
                progress.update()
    return session, len(failed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--variants", nargs="+", help="NAME or NAME:flag+flag, or sb3:NAME; all by default")
    add("--num-envs", nargs="+", type=int, help="by default what the script has")
    add("--env-id", help="by default what the script has")
    add("--rounds", type=int, help="5 by default")
    add("--iterations", type=int, help=f"of a run, 3 of them burn-in; {ITERATIONS} by default")
    add("--timeout", type=float, default=3600, help="seconds until a run counts as failed")
    add("--peer", action="append", default=[], metavar="NAME=COMMAND", help="another system")
    add("--peer-sps", action="append", default=[], metavar="REGEX", help="one, or one a peer")
    add("--quick", action="store_true", help="1 round of 6 iterations, not among the results")
    add("--results", type=Path, help="folder of the records")
    args = parser.parse_args()
    failed = 0
    iterations = args.iterations or (6 if args.quick else ITERATIONS)
    rounds = args.rounds or (1 if args.quick else 5)
    results = args.results or (Path("runs") / "bench" if args.quick else RESULTS)
    try:
        regexes = [re.compile(regex) for regex in args.peer_sps]
    except re.error as error:
        parser.error(f"--peer-sps: {error}")
    if iterations < 4 or rounds < 1:
        parser.error("give 4 iterations or more, 3 of them are burn-in, and 1 round or more")
    if args.peer and len(args.peer_sps) not in (1, len(args.peer)):
        parser.error("give --peer-sps once, or once for each --peer")
    variants = args.variants
    if variants is None:
        cuda = machine()["gpu"] is not None
        graphs = "+cudagraphs" if cuda else ""
        variants = []
        for name in TIMED:
            fast = f"{name}_torchcompile"
            variants += [name, fast, f"{fast}:compile{graphs}"]
            if name == "ppo_atari_envpool":
                variants += [f"{fast}:compile{graphs}+bfloat16"]
            elif cuda:  # networks this small may be as fast without
                variants += [f"{name}:no-cuda", f"{fast}:compile+no-cuda"]
            variants += [f"sb3:{name}"]
    pairs = list(dict.fromkeys(pair(v.removeprefix("sb3:")) for v in variants))
    cases = []
    for name in pairs:
        try:
            split_variant(name)
        except Failure as failure:
            warn(str(failure))
            failed += 1
            continue
        for num_envs in args.num_envs or [defaults(name)["num_envs"]]:
            common = (name, num_envs, iterations, args.env_id)
            cases.append(helper_case("simulator", "benchmarks/lib/lower_bound.py", *common))
            for variant in variants:
                if pair(variant.removeprefix("sb3:")) != name:
                    continue
                try:
                    if variant.startswith("sb3:"):
                        cases.append(helper_case("sb3", "benchmarks/peers/sb3.py", *common))
                    else:
                        cases.append(variant_case(variant, num_envs, iterations, args.env_id))
                except Failure as failure:
                    warn(f"{variant}: {failure}")
                    failed += 1
            for i, text in enumerate(args.peer * (name == pairs[0])):
                try:
                    peer_name, words, command = peer(text, num_envs=num_envs)
                except Failure as failure:
                    parser.error(str(failure))
                case = Case(peer_name, name, num_envs, words, command, args.env_id)
                case.sps_regex = regexes[i if len(regexes) > 1 else 0]
                cases.append(case)
    path = results / "throughput.jsonl"
    session, broken = run_rounds(cases, rounds, path, args.timeout)
    records = [r for r in read(path) if r.get("session") == session]
    print(f"\n{blocks(records, cases_table)}\n\nrecords: {path}, session {session}")
    return 1 if failed or broken else 0


if __name__ == "__main__":
    sys.exit(main())
