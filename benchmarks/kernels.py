"""Where a script's device time goes: its kernels, what waits for the device, and peak memory.

    python benchmarks/kernels.py ppo_atari_envpool_torchcompile --compile --cudagraphs

Runs a script for a few iterations with the flags given. On a CUDA device it prints the kernels by
time, the lines that made the host wait (torch.cuda.set_sync_debug_mode) and the most memory that
was allocated; without one, the operations by CPU time. Prints only: no record.
"""

import collections
import os
import runpy
import sys
import tempfile
import warnings

from lib.records import ROOT, Failure, defaults, split_variant

import torch
from torch.profiler import ProfilerActivity, profile

ITERATIONS = 8  # compiling, capturing and their first replays included


def main() -> int:
    if {"-h", "--help"} & set(sys.argv[1:2]):
        print(__doc__)
        return 0
    try:
        name, _ = split_variant(sys.argv[1] if len(sys.argv) > 1 else "")
    except Failure as failure:
        print(failure, file=sys.stderr)
        return 2
    flags = sys.argv[2:]
    num_envs = defaults(name)["num_envs"]
    if "--num-envs" in flags:
        num_envs = int(flags[flags.index("--num-envs") + 1])
    steps = ITERATIONS * num_envs * defaults(name)["num_steps"]
    script = ROOT / "ppo" / f"{name}.py"
    cuda = torch.cuda.is_available()
    waits: collections.Counter = collections.Counter()

    def note(message, category, filename, lineno, file=None, line=None):
        if "synchroniz" in str(message):
            waits[f"{os.path.basename(filename)}, line {lineno}"] += 1

    warnings.showwarning = note
    warnings.simplefilter("always")
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * cuda
    with tempfile.TemporaryDirectory() as runs_dir:
        sys.argv = [str(script), *flags, "--total-timesteps", str(steps), "--runs-dir", runs_dir]
        if cuda:
            torch.cuda.set_sync_debug_mode("warn")
        with profile(activities=activities) as found:
            runpy.run_path(str(script), run_name="__main__")
        if cuda:
            torch.cuda.set_sync_debug_mode("default")
    by = "self_cuda_time_total" if cuda else "self_cpu_time_total"
    print(found.key_averages().table(sort_by=by, row_limit=20, max_name_column_width=70))
    if cuda:
        print(f"peak memory: {torch.cuda.max_memory_allocated() / 2**20:,.0f} MiB allocated")
        for place, times in waits.most_common(20):
            print(f"waits for the device {times:>6} times: {place}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
