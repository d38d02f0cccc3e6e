"""How exact the gradients are, eager and compiled: of the same minibatches, held to float64.

    python benchmarks/gradients.py                            # all pairs, a minute or two each
    python benchmarks/gradients.py --pairs ppo ppo_lstm --iterations 8

A fast script runs with --compile on the CPU. For each of its minibatches the eager script computes
the gradient too, from the same weights and rows, in float32 and in float64. Two numbers a
minibatch: the error's norm over that of the gradient in float64, and the error's part along that
gradient, over the same norm, which is 0 on average where rounding has no bias. Where a row lies on
the edge of a clip, a rounding decides whether it has a gradient, and the minibatch errs by far
more: those beyond FLIPPED are counted, and are in no other number.

Then three runs with one seed: the eager script, the fast one with --compile, and the eager script
with each first weight moved to the next float32. How far are the last two from the first one at
their ends: the norm of the difference of all weights over that of the weights? Each pair adds a
line to results/gradients.jsonl.
"""

import argparse
import contextlib
import copy
import os
import re
import runpy
import shlex
import sys
import tempfile
from pathlib import Path
from unittest import mock

from lib.pairs import TIMED
from lib.records import (
    RESULTS,
    ROOT,
    append,
    code,
    commit,
    defaults,
    machine,
    now,
    read,
    run_process,
    warn,
)
from lib.tables import gradients_table
from tqdm import tqdm

import torch

PROBE = (
    "",
    "train_epoch = probed(train_epoch, eager, found)\n\n\n",
    'if __name__ == "__main__":\n',
)
FLIPPED = 1e-4
MOVED = """\
    for parameter in agent.parameters():
        parameter.data = parameter.data.nextafter(torch.tensor(torch.inf))
"""
MOVE = (r"    agent = Agent\(.*\)\.to\(device\)\n", MOVED, "")


def edited(name: str, after: str, lines: str, before: str, folder: str) -> Path:
    """A copy of a script with lines put in after one line, a pattern, and before another."""
    text = (ROOT / "ppo" / f"{name}.py").read_text()
    text, found = re.subn(f"(?m)^({after})({before})", lambda at: at[1] + lines + at[2], text)
    if found != 1:
        raise ValueError(f"{found} times in {name}: {after or before}")
    path = Path(folder, f"{name}.py")
    path.write_text(text)
    return path


def double(x):
    """Of a tensor, or a dictionary of them, what is float32 in float64."""
    if isinstance(x, dict):
        return {key: double(value) for key, value in x.items()}
    return x.double() if torch.is_tensor(x) and x.is_floating_point() else x


def flat(agent) -> torch.Tensor:
    """An agent's gradient as one vector of float64."""
    found = [p.grad for p in agent.parameters() if p.grad is not None]
    return torch.cat([grad.detach().double().flatten() for grad in found])


def probed(train_epoch, eager: dict, found: list):
    """train_epoch, a step at a time: adds of each minibatch the errors of eager and of compiled
    gradients to `found`, as (norm, part along the gradient) each."""

    copies: list = []  # the eager script's agents, in float32 and in float64

    def gradient(at, more, mb_inds):
        """The eager script's, by one of the copies."""
        copies[at].zero_grad()
        with torch.random.fork_rng(devices=[]):
            eager["compute_gradients"](copies[at], *more, mb_inds)
        return flat(copies[at])

    def step_by_step(agent, optimizer, *more):
        *more, b_inds = more
        if not copies:
            main = train_epoch.__globals__
            takes = eager["Agent"].__init__.__code__.co_argcount - 1  # envs, and in ppo_trxl args
            with torch.random.fork_rng(devices=[]):
                copies.append(eager["Agent"](*(main["envs"], main["args"])[:takes]))
            copies.append(copy.deepcopy(copies[0]).double())
        losses = []
        for mb_inds in b_inds:
            for one in copies:
                one.load_state_dict(agent.state_dict())
            rounded = gradient(0, more, mb_inds)
            with mock.patch.object(torch.Tensor, "float", torch.Tensor.double):  # pixels, a count
                truth = gradient(1, [double(x) for x in more], mb_inds)
            losses.append(train_epoch(agent, optimizer, *more, mb_inds[None]))
            errors = [(grad - truth) / truth.norm() for grad in (rounded, flat(agent))]
            along = truth / truth.norm()
            found.append([(float(e.norm()), float(e @ along)) for e in errors])
        return torch.cat(losses)

    return step_by_step


def gradient_errors(name: str, flags: list[str]) -> dict:
    """Of eager and of compiled gradients: how many minibatches are beyond FLIPPED, and of the
    others the median and the largest of the errors' norms, and the mean of their parts along the
    gradient with its standard error."""
    found: list = []
    eager = runpy.run_path(str(ROOT / "ppo" / f"{name}.py"))
    start = {"probed": probed, "eager": eager, "found": found}
    with tempfile.TemporaryDirectory() as folder:
        script = edited(f"{name}_torchcompile", *PROBE, folder)
        argv, sys.argv = sys.argv, [script.name, "--compile", *flags, "--runs-dir", folder]
        try:
            with open(os.devnull, "w") as nothing, contextlib.redirect_stderr(nothing):
                runpy.run_path(str(script), start, "__main__")
        finally:
            sys.argv = argv
    errors = torch.tensor(found)  # (minibatches, eager and compiled, 2)
    result: dict = {"minibatches": len(found)}
    for side in errors.unbind(1):
        norms, along = side[side[:, 0] <= FLIPPED].T
        numbers = {
            "flipped": len(side) - len(norms),
            "errors": float(norms.median()),
            "largest": max(norms.tolist(), default=float("nan")),
            "along": float(along.mean()),
            "along_se": float(along.std() / len(along) ** 0.5),
        }
        for field, value in numbers.items():
            result.setdefault(field, []).append(value)
    return result


def weights(script: Path, flags: list[str]) -> torch.Tensor:
    """All weights at a run's end, as one vector."""
    with tempfile.TemporaryDirectory() as folder:
        run_process([sys.executable, str(script), *flags, "--runs-dir", folder])
        (path,) = Path(folder).glob("*/checkpoint.pt")
        found = torch.load(path, weights_only=True)["agent"].values()
    return torch.cat([value.double().flatten() for value in found])


def departures(name: str, flags: list[str]) -> dict:
    """How far the compiled run, and the eager one that began a rounding apart, are from the eager
    one at the end."""
    ppo = ROOT / "ppo"
    with tempfile.TemporaryDirectory() as folder:
        moved = edited(name, *MOVE, folder)
        start = weights(ppo / f"{name}.py", flags)
        compiled = weights(ppo / f"{name}_torchcompile.py", ["--compile", *flags])
        apart = weights(moved, flags)
    far = [float((other - start).norm() / start.norm()) for other in (compiled, apart)]
    return {"departures": far}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--pairs", nargs="+", choices=TIMED, default=TIMED, metavar="NAME", help="by default all")
    add("--iterations", type=int, default=4, help="whose minibatches are looked at; 4 by default")
    add("--departure", type=int, default=20, help="iterations of the three runs; 20 by default")
    add("--results", type=Path, default=RESULTS, help="folder of the records")
    args, path, failed = parser.parse_args(), None, 0
    path = args.results / "gradients.jsonl"
    for name in tqdm(args.pairs, unit="pair"):
        rows = defaults(name)["num_envs"] * defaults(name)["num_steps"]
        short = ["--no-cuda", "--total-timesteps", str(args.iterations * rows)]
        long = ["--no-cuda", "--total-timesteps", str(args.departure * rows)]
        record = {"pair": name, "date": now(), "commit": commit(), **machine()}
        record |= {"code": [code(name), code(f"{name}_torchcompile")]}
        record |= {"session_command": shlex.join(["python", *sys.argv])}
        record |= {"iterations": args.iterations, "departure_iterations": args.departure}
        try:
            append(path, {**record, **gradient_errors(name, short), **departures(name, long)})
        except Exception as error:  # the other pairs have theirs
            warn(f"{name}: {error}")
            failed += 1
    print(gradients_table(read(path)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
