"""Whether a pair is one: what tests hold the pairs of ppo/ to, of any eager file and its fast one.

    ./run.sh check ~/idea/my_ppo.py                          # under a minute for a copy of ppo
    ./run.sh check ~/idea/my_ppo.py --compile --env-id Acrobot-v1

runs both versions on the CPU, a few short rollouts of episodes of at most 20 steps, and holds what
they computed side by side: losses, returns and weights to the last bit without speed flags; with
--compile the first two updates' losses within a tolerance, and a graph for each torch.compile; each
resumed from the other's checkpoint; on a simulated GPU, whose tensors the host cannot read; scored
by ppo_eval. Other flags go to both. A line a check; status 1 if one fails. Lines of main that have
not run are named in the end: of these it knows nothing.
"""

import argparse
import contextlib
import importlib
import io
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import patch

from lib.device import simulated
from lib.pairs import changes, versions
from lib.parity import (
    ITERATIONS,
    PIXELS,
    SIZES,
    SMALL,
    VECTORS,
    Main,
    assert_close,
    assert_the_same,
    counted,
    curves,
    located,
    run_main,
    states,
    tensors,
)
from lib.records import Failure, python, run_process

import torch
import torch._inductor.config

LIMIT = 20  # steps of an episode, so that some end by themselves and some are cut
MORE = 3 * 32  # steps of a run that goes on with one
TIMED = 3000  # steps of a run whose speed is measured, at least
BACKEND = "inductor"  # of torch.compile


@contextlib.contextmanager
def short_episodes():
    """Gymnasium's and EnvPool's environments end after LIMIT steps."""
    with contextlib.ExitStack() as stack:
        for name in ("gymnasium", "envpool"):
            with contextlib.suppress(ImportError):
                module = importlib.import_module(name)
                make = partial(module.make, max_episode_steps=LIMIT)
                stack.enter_context(patch.object(module, "make", make))
        yield


@contextlib.contextmanager
def quiet():
    """What Python prints meanwhile goes to a text, which this returns."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        yield text


class Pair:
    """An eager and a fast file, their runs and what was found."""

    def __init__(self, eager: Path, fast: Path, flags: list[str], folder: Path):
        self.eager, self.fast, self.flags, self.folder = eager, fast, flags, folder
        self.runs, self.curves, self.failed = {}, {}, 0
        self.mains = {path: Main(path) for path in (eager, fast)}
        text = self.mains[eager].text
        self.bound = PIXELS if "nn.Conv2d" in text else VECTORS
        self.saves = ["--checkpoint-interval", 3] * ("checkpoint_interval: int" in text)

    def train(self, path: Path, *flags, name: str, gpu=False, watch=float("inf")):
        """A run by small sizes and these flags; what it prints is shown if it ends the process."""
        flags = [*SMALL, *SIZES, *self.saves, *self.flags, *flags]
        with quiet() as printed:
            try:
                with self.mains[path].watched(watch):
                    return run_main(path, *flags, runs_dir=self.folder / name, gpu=gpu)
            except SystemExit as stop:
                end = stop
                said = printed.getvalue().strip()
            except Exception as error:
                raise located(error, path) from error
        if not self.runs and end.code == 2:  # the flags are none of the script's
            print(said, file=sys.stderr)
            raise SystemExit(2)
        raise Failure(f"{path.name}: {end}")

    def say(self, what: str, check: Callable[[], str]) -> None:
        """A line of the table: what a check saw, or what it fails with."""
        try:
            seen, result = check(), "ok"
        except Exception as error:
            seen, result = (str(error).strip().splitlines() or [""])[0], "FAIL"
            if not isinstance(error, AssertionError | Failure):
                seen = f"{type(error).__name__}: {seen}"
            self.failed += 1
        print(f"{what:14}{result:6}{seen}", flush=True)

    def same(self) -> str:
        """Without speed flags: losses, returns, weights and rows."""
        for path in (self.eager, self.fast):
            self.runs[path] = self.train(path, name=path.stem)
            self.curves[path] = curves(self.runs[path])
        one, two = self.curves.values()
        assert_the_same(one, two, *self.runs.values())
        ended = len(one.get("charts/episodic_return", []))
        numbers = sum(x.numel() for x in self.runs[self.eager].agent.parameters())
        said = f"{len(one)} curves of {ITERATIONS} updates, {ended} episodes, {numbers:,} weights: "
        return said + "to the last bit"

    def compiled(self) -> str:
        """The first two updates' losses, and a graph for each torch.compile."""
        torch._inductor.config.fallback_random = True  # noise in a loss as the eager version's
        torch.compiler.reset()
        with counted(BACKEND) as graphs:
            run = self.train(self.fast, "--compile", name="compiled", watch=1)
        assert graphs, f"{self.fast.name}: --compile compiles nothing"
        for name, count in graphs.items():
            assert count, f"{self.fast.name}: torch.compile number {name} made no graph"
        found = assert_close(self.curves[self.eager], curves(run), 2, self.bound)
        near = f"losses of two updates within {found:.1g} of their size (bound {self.bound:g})"
        return f"{near}; {', '.join(name.partition(': ')[2] for name in graphs)} compiled whole"

    def resumed(self) -> str:
        """Each version goes on with the other's run. What main has trained, modules and optimizers,
        is in the checkpoint, and as the first rollout begins it is what it was."""
        runs, found = {self.eager: self.fast, self.fast: self.eager}, []
        for path, other in runs.items():
            kept, trained = Path(self.runs[other].run_dir), states(vars(self.runs[other]))
            saved = torch.load(kept / "checkpoint.pt", "cpu", weights_only=True)
            there = [x for _, x in tensors(saved)]
            for name, rows in trained.items():
                large = [x for x in rows.values() if x.numel() > 1]
                held = [any(a.shape == b.shape and a.equal(b) for a in there) for b in large]
                assert all(held), f"{other.name}: the checkpoint lacks what is in {name}"
            copied, step = self.folder / f"{path.stem}-copy", saved["global_step"]
            shutil.copytree(kept, copied)
            flags = ["--resume", copied, "--total-timesteps", step + MORE]
            run = self.train(path, *flags, name="resumed")
            assert step < run.global_step <= step + MORE, (
                f"{path.name}: {step} to {run.global_step} steps"
            )
            begun = self.mains[path].begun or {}
            for name in trained.keys() & begun.keys():
                for key, rows in trained[name].items():
                    same = key in begun[name] and torch.equal(rows, begun[name][key])
                    assert same, f"{path.name}: {name}{key} is not what was saved"
            found.append(run)
        assert_the_same(*map(curves, found), *found)
        names = f"{', '.join(sorted(begun))} as saved" if begun else "no '# Rollout' to begin with"
        return f"each from the other's step {step} to {run.global_step}, {names}; the same bits"

    def simulated(self, path: Path, *flags, name: str, compares=False):
        """Curves of a run on a simulated GPU, and that; what it refuses, with its line."""
        with simulated(path.stem, compares) as device:
            return curves(self.train(path, *flags, name=f"gpu-{name}", gpu=True, watch=2)), device

    def on_a_gpu(self) -> str:
        """On a simulated one: the eager version's first two updates have the losses of the CPU; the
        fast one's CUDA graphs can be captured, and their replays do what the calls would."""
        try:
            eager, _ = self.simulated(self.eager, name="eager")
        except Failure as end:
            if "Warp finds no GPU" in str(end):
                return f"not simulated: {end}"
            raise
        near = assert_close(self.curves[self.eager], eager, 2, self.bound)
        graphs = ["--cudagraphs"] * ("cudagraphs: bool" in self.mains[self.fast].text)
        called, _ = self.simulated(self.fast, *graphs, name="called", compares=True)
        replayed, device = self.simulated(self.fast, *graphs, name="replayed")
        assert device.replays or not graphs, f"{self.fast.name}: --cudagraphs replays no graph"
        for tag, points in called.items():
            for (step, a), (_, b) in zip(points, replayed[tag], strict=True):
                said = f"{tag} at step {step}: {b:.9g} by replays, {a:.9g} by calls"
                assert a == b or (a != a and b != b), f"{self.fast.name}: {said}"
        replays = f"{device.replays} replays equal calls"
        return f"simulated: eager losses within {near:.1g} of their size; {replays}"

    def scored(self) -> str:
        """By ppo_eval, in a process, both versions' runs."""
        found = []
        for path, run in self.runs.items():
            flags = ["--script", path, "--episodes", 2, "--max-steps", 200]
            said = run_process(python("ppo/ppo_eval.py", run.run_dir, *flags))
            means = re.findall(r"mean:? (-?[\d.,]*\d)", said)
            assert means, f"{path.stem}: it prints no mean"
            found.append(f"{path.stem} {means[0]}")
        return f"means of 2 episodes: {', '.join(found)}"

    def speed(self, *flags) -> str:
        """Steps/s of both, the fast version with these flags, by the script's own sizes: the best
        of two short runs in turn, as what else the machine does slows them."""
        sizes = self.runs[self.eager].tyro.cli(self.runs[self.eager].Args, args=self.flags)
        rollouts = max(3, -(-TIMED // sizes.batch_size))
        more = ["--measure-burnin", 1, "--total-timesteps", rollouts * sizes.batch_size]
        best = {self.eager: 0, self.fast: 0}
        for i, path in enumerate(2 * list(best)):
            given = [*self.flags, *(flags if path == self.fast else ()), *more]
            with quiet():
                run = run_main(path, *given, runs_dir=self.folder / f"speed-{i}")
            best[path] = max(best[path], run.sps)
        eager, fast = best.values()
        said = f"eager {eager:,} steps/s, {' '.join(['fast', *flags])} {fast:,}: {fast / eager:.2f}"
        return f"{said} times ({sizes.num_envs} envs x {sizes.num_steps} steps)"


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("run.sh check", description=__doc__, formatter_class=form)
    parser.add_argument("path", metavar="PATH", help="of either version, or a NAME of ppo/")
    parser.add_argument("--compile", action="store_true", help="compile the fast version, too")
    args, flags = parser.parse_known_args()
    try:
        eager, fast = versions(args.path)
    except Failure as failure:
        print(f"run.sh check: {failure}", file=sys.stderr)
        return 2
    sys.path.insert(0, str(eager.parent))  # where it would be run from
    hunks = changes(eager, fast)
    with tempfile.TemporaryDirectory() as folder:
        pair = Pair(eager, fast, flags, Path(folder))
        with short_episodes():
            pair.say("same losses", pair.same)
            if fast not in pair.runs:  # nothing to go on with
                return 1
            if args.compile:
                pair.say("--compile", pair.compiled)
            pair.say("--resume", pair.resumed)
            pair.say("a GPU", pair.on_a_gpu)
        pair.say("ppo_eval", pair.scored)
        rewritten = sum(line[0] == "-" for hunk in hunks for line in hunk)
        lines = f"{sum(map(len, hunks))} changed lines in {len(hunks)} hunks"
        pair.say("diff", lambda: f"{lines}, {rewritten} of them eager lines that fast rewrites")
        pair.say("speed", lambda: pair.speed(*["--compile"] * args.compile))
        for path, watched in pair.mains.items():
            if lines := watched.left_out():
                print(f"{'not run':20}{path.name}: {lines}")
    return int(pair.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
