"""Whether two scripts compute the same: runs in this process, curves and weights side by side.

The tests hold the pairs of ppo/ to it, and check.py a pair of anyone's.
"""

import runpy
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

# a short run's flags
ITERATIONS = 8
SMALL = "--num-envs 4 --num-steps 8 --num-minibatches 2".split()
SIZES = ["--total-timesteps", ITERATIONS * 32, "--update-epochs", 2, "--learning-rate", 2**-9]
# --compile rounds differently, and training amplifies it: bounds of the first two updates' losses,
# over the largest value of a curve. tests/test_parity.py has what was seen
VECTORS, PIXELS = 3e-4, 1e-3


def run_main(path: Path, *flags, runs_dir, edit: Callable | None = None, gpu=False):
    """Runs a script's main in this process, its text edited on request; returns its variables.

    On the CPU unless gpu; the signal handlers that main sets are taken back.
    """
    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    argv, sys.argv = sys.argv, [path.stem, *map(str, flags), "--runs-dir", str(runs_dir)]
    sys.argv += [] if gpu else ["--no-cuda"]
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
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def curves(run: SimpleNamespace) -> dict[str, list[tuple[int, float]]]:
    """Those of a run that run_main has made, without clock times."""
    found = scalars(run.run_dir)
    found.pop("charts/SPS", None)
    return found


def assert_the_same(one: dict, two: dict, eager_run, fast_run) -> None:
    """Curves, weights and the last rollout's rows, to the last bit."""
    assert fast_run.mode == "eager"
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


def in_numpy(run) -> bool:
    """Whether NumPy acts at the end of a run of main."""
    return getattr(run.act, "in_numpy", vars(run).get("numpy_acting", False))
