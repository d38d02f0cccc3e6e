"""What a second process brings: the data-parallel script with 1 and 2 ranks, beside its parent.

    python benchmarks/multigpu.py                    # 3 interleaved rounds on this machine

With as many games as one process has, and with as many for each rank. Each run adds a line to
results/multigpu.jsonl, with the share of the time after burn-in that rank 0 spent in all_reduce:
there it also waits for the other rank. Only the eager script's calls can be timed so.
"""

import argparse
import itertools
import json
import os
import runpy
import sys
import time
from pathlib import Path

from lib.records import RESULTS, ROOT, read
from lib.tables import blocks, ranks_table
from throughput import ITERATIONS, run_rounds, variant_case

import torch
import torch.distributed as dist

PARENT, SCRIPT = "ppo_atari_envpool", "ppo_atari_envpool_multigpu"


def timed(script: str, flags: list[str]) -> None:
    """Runs a script with a clock in its loop as a rank; rank 0 adds all_reduce_share to its
    summary.json."""
    calls, all_reduce = [], dist.all_reduce

    def clocked(*args, **kwargs):
        if args[0].is_cuda:
            torch.cuda.synchronize()
        start = time.time()
        all_reduce(*args, **kwargs)
        if args[0].is_cuda:
            torch.cuda.synchronize()
        calls.append((start, time.time() - start))

    dist.all_reduce = clocked
    sys.argv = [script, *flags]
    run = runpy.run_path(script, run_name="__main__")
    if int(os.environ.get("RANK", 0)) == 0:
        path = Path(run["run_dir"]) / "summary.json"
        summary = json.loads(path.read_text())
        seconds = sum(summary["phase_s"].values())
        inside = sum(s for start, s in calls if start > run["start_time"])  # after the burn-in
        path.write_text(json.dumps(summary | {"all_reduce_share": inside / seconds}))


def cases_of(iterations: int, ranks: int, mode: str) -> list:
    """The parent, one rank and several with 8 games in all, and with 8 games a rank."""
    cases = []
    for num_envs in dict.fromkeys((8, 8 * ranks)):
        counts = (0, 1, ranks) if num_envs == 8 else (0, ranks)
        for count, fast in itertools.product(dict.fromkeys(counts), (False, True)):
            name = SCRIPT if count else PARENT
            variant = f"{name}_torchcompile:{mode}" if fast else name
            case = variant_case(variant, num_envs, iterations, extra={"ranks": count})
            case.pair = SCRIPT
            if count:
                launch = ["--standalone", "--nproc-per-node", str(count)]
                case.shown = case.shown.replace("python", " ".join(["torchrun", *launch]), 1)
                interpreter, *script = case.command
                clock = [] if fast else [str(ROOT / "benchmarks" / "multigpu.py"), "--timed"]
                launch = ["-m", "torch.distributed.run", *launch]
                case.command = [interpreter, *launch, *clock, *script]
            cases.append(case)
    return cases


def main() -> int:
    if sys.argv[1:2] == ["--timed"]:
        timed(sys.argv[2], sys.argv[3:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--rounds", type=int, default=3, help="interleaved rounds")
    add("--iterations", type=int, default=ITERATIONS, help="of a run, 3 of them burn-in")
    add("--results", type=Path, default=RESULTS, help="folder of the records")
    args = parser.parse_args()
    if args.iterations < 4 or args.rounds < 1:
        parser.error("give 4 iterations or more, 3 of them are burn-in, and 1 round or more")
    path = args.results / "multigpu.jsonl"
    gpus = torch.cuda.device_count()
    mode = "compile+cudagraphs" if gpus else "compile"
    cases = cases_of(args.iterations, gpus or 2, mode)
    session, failed = run_rounds(cases, args.rounds, path, limit=3600)
    records = [r for r in read(path) if r.get("session") == session]
    print(f"\n{blocks(records, ranks_table)}\n\nrecords: {path}, session {session}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
