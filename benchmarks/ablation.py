"""What each optimisation buys: one taken away from the fast file, one added to the eager way.

    python benchmarks/ablation.py --rounds 3                       # the pairs
    python benchmarks/ablation.py --pairs ppo_continuous_action

Switched by the fast file's own flags; by GOMP_SPINCOUNT, which run.sh sets (300000 is what OpenMP
does when it is not set; as it matters where runs share cores, two at once are measured too); and by
glibc's thresholds, which run.sh sets for the Atari scripts. Interleaved rounds as in throughput.py;
each run adds a line to results/ablation.jsonl, with start-up seconds and the seconds in each phase.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from lib.pairs import TIMED
from lib.records import KEPT_MEMORY, RESULTS, defaults, machine, read
from lib.tables import blocks, cases_table
from throughput import ITERATIONS, Case, helper_case, run_rounds, variant_case

SPIN = {"GOMP_SPINCOUNT": "300000"}
NOT_KEPT = dict.fromkeys(KEPT_MEMORY)


def cases_of(name: str, cuda: bool) -> list[tuple[str, str, str, dict]]:
    """(group, label, variant, environment) of each case of a pair: by the fast version's flags."""
    eager, fast = name, f"{name}_torchcompile"
    flags = defaults(fast)
    graphs = "+cudagraphs" if cuda else ""
    full = f"{fast}:compile{graphs}"
    frames = "channels_last" in flags
    without = "without compile" + " and channels-last" * frames
    cases = [("", "eager file", eager, {}), ("", "fast file, all on", full, {})]
    if frames:
        cases += [
            ("off", "without channels-last", f"{full}+no-channels-last", {}),
            ("off", "without kept memory", full, NOT_KEPT),
            ("off", "without sleeping threads", full, SPIN),
            ("", "all on, and bfloat16", f"{full}+bfloat16", {}),
            ("two", "fast file, all on", full, {}),
            ("two", "without sleeping threads", full, SPIN),
            ("on", "nothing but the file's other differences", fast, NOT_KEPT),
            ("on", "kept memory", fast, {}),
        ]
        if cuda:  # on a CPU, compiling with NHWC alone is all on: eager versions keep memory too
            cases += [
                ("on", "compile", f"{fast}:compile+no-channels-last", {}),
                ("on", "compile with channels-last", f"{fast}:compile", {}),
                ("on", "CUDA graphs", f"{fast}:cudagraphs", {}),
            ]
    elif "physics_graph" in flags:
        graph = "rollout" if cuda else "physics"
        cases += [("off", f"without the {graph}'s graph", f"{full}+no-{graph}-graph", {})]
        cases += [("on", "compile", f"{fast}:compile+no-physics-graph", {})]
        if cuda:
            cases += [("on", "CUDA graphs", f"{fast}:cudagraphs", {})]
    elif "bfloat16" in flags:  # pixels with a memory
        cases += [
            ("off", "without kept memory", full, NOT_KEPT),
            ("", "all on, and bfloat16", f"{full}+bfloat16", {}),
            ("on", "nothing but the file's other differences", fast, NOT_KEPT),
        ]
    elif "numpy_acting" in flags:
        cases += [
            ("off", "without acting in NumPy", f"{full}+no-numpy-acting", {}),
            ("on", "compile", f"{fast}:compile+no-numpy-acting", {}),
        ]
        if cuda:
            cases += [("on", "CUDA graphs", f"{fast}:cudagraphs+no-numpy-acting", {})]
    if cuda:
        cases += [
            ("off", without, f"{fast}:cudagraphs", {}),
            ("off", "without CUDA graphs", f"{fast}:compile", {}),
        ]
    elif frames:
        cases += [("off", without, fast, {})]
    if "fused_lstm" in flags:
        cases += [("off", "without the fused LSTM", f"{full}+no-fused-lstm", {})]
    return cases


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--pairs", nargs="+", choices=TIMED, default=TIMED, help="by default all that are timed")
    add("--rounds", type=int, default=3, help="interleaved rounds")
    add("--iterations", type=int, default=ITERATIONS, help="of a run, 3 of them burn-in")
    add("--timeout", type=float, default=3600, help="seconds until a run counts as failed")
    add("--results", type=Path, default=RESULTS, help="folder of the records")
    args = parser.parse_args()
    if args.iterations < 4 or args.rounds < 1:
        parser.error("give 4 iterations or more, 3 of them are burn-in, and 1 round or more")
    cuda = machine()["gpu"] is not None
    cases: list[Case] = []
    for name in args.pairs:
        num_envs = defaults(name)["num_envs"]
        common = (name, num_envs, args.iterations, None)
        cases.append(helper_case("simulator", "benchmarks/lib/lower_bound.py", *common))
        for group, label, variant, env in cases_of(name, cuda):
            extra = {"group": group, "label": label}
            case = variant_case(variant, num_envs, args.iterations, env=env, extra=extra)
            cases.append(replace(case, at_once=2 if group == "two" else 1))
    path = args.results / "ablation.jsonl"
    session, failed = run_rounds(cases, args.rounds, path, args.timeout)
    records = [r for r in read(path) if r.get("session") == session]
    print(f"\n{blocks(records, cases_table)}\n\nrecords: {path}, session {session}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
