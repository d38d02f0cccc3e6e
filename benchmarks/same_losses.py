"""Whether scripts learn as they did at a commit: three iterations of both on the CPU, bit for bit.

python benchmarks/same_losses.py COMMIT ppo ppo_torchcompile:compile     # by today's defaults
"""

import argparse
import sys
import tempfile
from pathlib import Path

from lib.records import ROOT, Failure, defaults, run_process, scalars, split_variant

TAGS = "policy_loss value_loss entropy old_approx_kl approx_kl clipfrac explained_variance".split()
TAGS = ["charts/episodic_return", "losses/grad_norm", *(f"losses/{tag}" for tag in TAGS)]
parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("commit", help="with which the scripts of now are compared")
parser.add_argument("variants", nargs="+", help="NAME or NAME:flag+flag")
args, differ = parser.parse_args(), False
try:
    for variant in args.variants:
        name, flags = split_variant(variant)
        steps = 3 * defaults(name)["num_envs"] * defaults(name)["num_steps"]
        flags += ["--no-cuda", "--total-timesteps", str(steps), "--runs-dir"]
        new, curves = ROOT / "ppo" / f"{name}.py", []
        with tempfile.TemporaryDirectory() as folder:
            old = Path(folder) / new.name
            git = ["git", "-C", str(ROOT), "show", f"{args.commit}:ppo/{new.name}"]
            old.write_text(run_process(git))
            for script in (old, new):
                runs = Path(folder) / str(len(curves))
                run_process([sys.executable, str(script), *flags, str(runs)])
                (run,) = runs.iterdir()
                found = [(tag, event) for tag in TAGS for event in scalars(run, tag)]
                curves.append([(tag, event.step, event.value) for tag, event in found])
        differ |= curves[0] != curves[1]
        answer = "the same" if curves[0] == curves[1] else "not the same"
        print(f"{variant}: {len(curves[1])} values, {answer}", flush=True)
except Failure as failure:
    parser.error(str(failure))
sys.exit(differ)
