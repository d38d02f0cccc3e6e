"""Whether two scripts compute the same: runs in this process, curves and weights side by side.

The tests hold the pairs of ppo/ to it, and check.py a pair of anyone's.
"""

import contextlib
import copy
import re
import runpy
import signal
import sys
import tempfile
import tokenize
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from lib.records import Failure, events

import torch
import torch.distributed as dist
from torch._dynamo import external_utils, symbolic_convert
from torch._dynamo.backends.registry import lookup_backend

# a short run's flags
ITERATIONS = 8
SMALL = "--num-envs 4 --num-steps 8 --num-minibatches 2".split()
SIZES = ["--total-timesteps", ITERATIONS * 32, "--update-epochs", 2, "--learning-rate", 2**-9]
# --compile rounds differently, and training amplifies it: bounds of the first two updates' losses,
# over the largest value of a curve. tests/test_parity.py has what was seen
VECTORS, PIXELS = 3e-4, 1e-3
# how lines of main begin that a good run need not reach
ENDS = ("raise ", "break", "sys.exit(", "print(")


def run_main(path: Path, *flags, runs_dir, edit: Callable | None = None, gpu=False):
    """Runs a script's main in this process, its text edited on request; returns its variables.

    On the CPU unless gpu; the signal handlers that main sets are taken back.
    """
    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    argv, sys.argv = sys.argv, [path.stem, *map(str, flags), "--runs-dir", str(runs_dir)]
    sys.argv += [] if gpu else ["--no-cuda"]
    # Dynamo keeps the first main of a process: it would look for this one's classes there
    if cached := getattr(symbolic_convert, "_import_module", None):
        cached.cache_clear()
    vars(external_utils).pop("__import___main__", None)
    try:
        with tempfile.TemporaryDirectory() as folder:
            if edit is not None:
                text, path = edit(path.read_text()), Path(folder) / path.name
                path.write_text(text)
            return SimpleNamespace(**runpy.run_path(str(path), run_name="__main__"))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        sys.argv = argv
        for signum, handler in handlers.items():
            signal.signal(signum, handler)


def scalars(run_dir) -> dict[str, list[tuple[int, float]]]:
    """The TensorBoard curves of a run: {tag: [(step, value), ...]}."""
    return {tag: [(x.step, x.value) for x in found] for tag, found in events(run_dir).items()}


def curves(run: SimpleNamespace) -> dict[str, list[tuple[int, float]]]:
    """Those of a run that run_main has made, without clock times."""
    found = scalars(run.run_dir)
    found.pop("charts/SPS", None)
    return found


def assert_the_same(one: dict, two: dict, eager_run, fast_run) -> None:
    """Curves, weights and the last rollout's rows, to the last bit."""
    assert not fast_run.args.compile
    assert one.keys() == two.keys(), f"curves of one alone: {sorted(one.keys() ^ two.keys())}"
    for tag, points in one.items():
        assert len(points) == len(two[tag]), f"{tag}: {len(points)} and {len(two[tag])} points"
        for (step, a), (_, b) in zip(points, two[tag], strict=True):
            assert a == b or (a != a and b != b), f"{tag} at step {step}: {a:.9g} and {b:.9g}"
        assert [step for step, _ in points] == [step for step, _ in two[tag]], tag
    states = [run.agent.state_dict() for run in (eager_run, fast_run)]
    for what, a, b in (("weights", *states), ("storage", eager_run.storage, fast_run.storage)):
        assert a.keys() == b.keys(), f"{what} of one alone: {sorted(a.keys() ^ b.keys())}"
        for key, rows in a.items():
            assert torch.equal(rows, b[key]), f"{what}: {key}"


def differences(one: dict, two: dict, tag: str) -> list[float]:
    """|a - b| of a curve's points, relative to the curve's largest value.

    Both KLs are means of terms as large as a log ratio that cancel; their rounding does not. They
    are taken relative to a tenth of the log ratios' root mean square.
    """
    assert [step for step, _ in one[tag]] == [step for step, _ in two[tag]], tag
    scale = max((abs(value) for _, value in one[tag] if value == value), default=0.0) or 1.0
    if tag.endswith("approx_kl"):  # about logratio^2 / 2
        scale = max(2 * kl for _, kl in one["losses/approx_kl"]) ** 0.5 / 10
    pairs = [(a, b) for (_, a), (_, b) in zip(one[tag], two[tag], strict=True)]
    return [0.0 if a != a and b != b else abs(a - b) / scale for a, b in pairs]  # nan: no variance


def assert_close(one: dict, two: dict, first: int, bound: float, later=None) -> float:
    """The first so many points of each loss within a bound, all within `later` if it is given;
    returns the largest difference of the first."""
    largest = 0.0
    for tag in (tag for tag in one if tag.startswith("losses/")):
        found = differences(one, two, tag)
        assert max(found[:first]) < bound, f"{tag} differs by {max(found[:first]):.1g} of its size"
        assert later is None or max(found) < later, f"{tag} differs by {max(found):.1g} of its size"
        largest = max(largest, *found[:first])
    return largest


def tensors(x, name=""):
    """Those in a checkpoint, or in a part of one, each with where it is."""
    if isinstance(x, torch.Tensor):
        yield name, x
    elif isinstance(x, dict | list | tuple):
        for key, part in x.items() if isinstance(x, dict) else enumerate(x):
            yield from tensors(part, f"{name} {key}")


def states(variables: dict) -> dict[str, dict]:
    """Copies of what modules and optimizers have learned, by their names and their tensors'."""
    found = {}
    for name, x in variables.items():
        if isinstance(x, torch.nn.Module | torch.optim.Optimizer):
            of = x.state_dict() if isinstance(x, torch.nn.Module) else x.state_dict()["state"]
            found[name] = dict(tensors(copy.deepcopy(of)))
    return found


class Main:
    """Watches main of a script: which of its lines run; states as the first rollout begins."""

    def __init__(self, path: Path):
        self.path, self.ran, self.begun = str(path), set(), None
        with tokenize.open(path) as file:  # as Python reads it: another coding, or a mark before it
            self.text = file.read()
        self.lines = [line.strip() for line in self.text.splitlines()]

    def at(self, text: str) -> int | float:
        """The number of the first line that begins so; infinite without one."""
        found = [i for i, line in enumerate(self.lines, 1) if line.startswith(text)]
        return found[0] if found else float("inf")

    @contextlib.contextmanager
    def watched(self, rollouts: float = float("inf")):
        """To the end, or until so many have begun: to watch takes a multiple of the time."""
        after = [i for i, line in enumerate(self.lines, 1) if line and line[0] != "#"]
        first = next((i for i in after if i > self.at("# Rollout")), None)

        def note(frame, event, arg):
            nonlocal rollouts
            if frame.f_lineno == first:
                if self.begun is None and rollouts == float("inf"):
                    self.begun = states(frame.f_globals)
                rollouts -= 1
                if rollouts < 1:
                    sys.settrace(None)
                    return None
            self.ran.add(frame.f_lineno)
            return note

        def called(frame, event, arg):
            code = frame.f_code
            return note if (code.co_filename, code.co_name) == (self.path, "<module>") else None

        before, self.begun = sys.gettrace(), None
        sys.settrace(called)
        try:
            yield
        finally:
            sys.settrace(before)

    def missed(self) -> list[int]:
        """The numbers of its lines that have not run."""
        code = compile(self.text, self.path, "exec")
        numbers = {x for *_, x in code.co_lines() if x and x > self.at("if __name__")} - self.ran
        return sorted(x for x in numbers if not self.lines[x - 1].startswith(ENDS))

    def left_out(self) -> str:
        """These in words."""
        return ", ".join(map(str, self.missed()))


@contextlib.contextmanager
def counted(default="inductor"):
    """Counts the graphs of each torch.compile, {its number and name: graphs}; what Dynamo would
    leave to Python raises with its cause."""
    graphs, compiler = {}, torch.compile

    def compile(function=None, *, backend=default, mode=None, options=None, **more):
        if function is None:
            return partial(compile, backend=backend, **more)
        of = getattr(function, "__self__", None)  # of a module's .compile()
        name = type(of).__name__ if of is not None else getattr(function, "__name__", "a module")
        key = f"{len(graphs) + 1}: {name}"
        graphs[key] = 0

        def counting(graph, inputs):
            graphs[key] += 1
            return lookup_backend(backend)(graph, inputs)

        return compiler(function, backend=counting, **more | {"fullgraph": True})

    torch.compile = compile
    try:
        # what is compiled so often is compiled anew in each update
        with torch._dynamo.config.patch(recompile_limit=4):
            yield graphs
    finally:
        torch.compile = compiler


def located(error: Exception, path: Path) -> Failure:
    """What went wrong, with the line of the script that was being run, or traced by Dynamo."""
    traced = re.findall(rf'File ".*{re.escape(path.name)}", line (\d+)', str(error))
    frames = traceback.extract_tb(error.__traceback__)
    at = [x.lineno for x in frames if Path(x.filename).name == path.name]
    lines = [x.strip() for x in str(error).splitlines() if x.strip()]
    said = " ".join(lines[:1] + [x for x in lines[1:2] if x.startswith(("Explanation:", "- "))])
    if not isinstance(error, RuntimeError):
        said = f"{type(error).__name__}: {said}"
    if "returned non-Tensor" in said:
        said += "; of a number of NumPy's, as spaces have them, make an int"
    if isinstance(error, torch._dynamo.exc.FailOnRecompileLimitHit):
        reason = torch._dynamo.utils.get_compilation_metrics()[-1].recompile_reason or ""
        said = "compiled anew again and again, for " + reason.partition("#")[0].strip()
    return Failure(f"{path.name}:{(traced or at or ['?'])[-1]}: {said}")
