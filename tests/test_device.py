"""What a script does on a GPU, on a simulated one of lib/device.py: the same bits as on a CPU, and
its loop waits where it says `sync` and nowhere else. A real one tells more: test_capture.py.
"""

import json

import numpy as np
import pytest
from helpers import PPO, SCRIPTS, TINY, run_main, task
from lib import parity
from lib.device import OnDevice, simulated
from test_capture import loop_lines, on_a_cpu

import tensordict.nn
import torch

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a real GPU is here")
# sync, but not in these runs: with --target-kl alone, or where environments are restarted
ELSEWHERE = "target_kl", "first_obs"


def run(name, *flags, runs_dir, gpu=False, graphs=True):
    """A script's main; that of a fast one takes the way of its graphs, by calls."""
    fast = graphs and name.endswith("_torchcompile")
    flags = [*TINY, *flags, *["--cudagraphs"] * fast]
    if task(name) == "warp":  # whose physics asks for a real GPU
        flags += ["--env-id", "worlds:Worlds"]
    edit = on_a_cpu if fast and not gpu else None
    return run_main(name, *flags, runs_dir=runs_dir, gpu=gpu, edit=edit)


def assert_equal(here, there):
    """Curves, weights and the last rollout, of a run on the CPU and of one on the device."""
    assert (here.device.type, there.device.type) == ("cpu", "cuda")
    one, two = parity.curves(here), parity.curves(there)
    assert one.keys() == two.keys()
    for tag, points in one.items():
        np.testing.assert_array_equal(points, two[tag], tag)
    weights = here.agent.state_dict(), there.agent.state_dict()
    for a, b in (weights, (here.storage, there.storage)):
        assert a.keys() == b.keys()
        for key, rows in a.items():
            assert isinstance(b[key], OnDevice), key
            assert torch.equal(rows, b[key].data_on_device), key
    assert parity.in_numpy(here) == parity.in_numpy(there)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_run_on_a_device(name, tmp_path):
    with simulated(name) as device:
        there = run(name, runs_dir=tmp_path / "device", gpu=True)
        if vars(there).get("replays"):
            run(name, runs_dir=tmp_path / "called", gpu=True, graphs=False)
    assert_equal(run(name, runs_dir=tmp_path / "cpu"), there)
    assert bool(device.replays) == name.endswith("_torchcompile")
    lines = [""] + (PPO / f"{name}.py").read_text().splitlines()
    said = {n for n, line in enumerate(lines) if "sync" in line.partition("#")[2]}
    loop = loop_lines(name).keys()
    waits = [numbers for numbers in device.waits if numbers and numbers[-1] in loop]
    for numbers in waits:
        assert said.intersection(numbers), [lines[n].strip() for n in numbers]
    for n in said.intersection(loop).difference(*waits):
        assert any(words in lines[n] for words in ELSEWHERE), lines[n].strip()


@pytest.mark.parametrize("name", ["ppo_lstm", "ppo_continuous_action_envpool_torchcompile"])
def test_resumed_on_a_device(name, tmp_path):
    """As it would be on the CPU; and a run from either goes on with the other."""

    def resume(folder, gpu=False):
        (run_dir,) = (tmp_path / folder).iterdir()
        flags = "--total-timesteps", 96, "--resume", run_dir
        return run(name, *flags, runs_dir="unused", gpu=gpu)

    for folder in ("cpu", "cpu_to_device"):
        run(name, runs_dir=tmp_path / folder)
    with simulated(name):
        for folder in ("device", "device_to_cpu"):
            run(name, runs_dir=tmp_path / folder, gpu=True)
        there = resume("device", gpu=True)
        resume("cpu_to_device", gpu=True)
    assert_equal(resume("cpu"), there)
    resume("device_to_cpu")
    for summary in tmp_path.glob("*/*/summary.json"):
        assert json.loads(summary.read_text())["global_step"] == 96


def test_what_the_device_refuses():
    with simulated("test_device") as device:
        x, mask = torch.arange(4.0, device=torch.device("cuda")), torch.ones(4, dtype=torch.bool)
        assert x.is_cuda and (x + 1).is_cuda and not x.cpu().is_cuda
        assert x.new_zeros(2).is_cuda and torch.zeros_like(x).is_cuda and x[:2].is_cuda
        for refused in (lambda: x + torch.ones(4), lambda: torch.ones(4).add_(x)):
            with pytest.raises(RuntimeError, match="cuda:0 and on cpu"):
                refused()
        for refused in (x.numpy, lambda: np.asarray(x), lambda: torch.ones(4)[x.long()]):
            with pytest.raises((TypeError, RuntimeError)):
                refused()
        zero_one = np.arange(2.0)
        made = [torch.as_tensor(zero_one, device=torch.device("cuda:0")), x.new_tensor([0, 1])]
        made += [torch.tensor([0, 1], device="cuda"), torch.from_numpy(zero_one).cuda()]
        made += [torch.as_tensor(x[:2]), torch.as_tensor(torch.arange(2), device=x.device)]
        for tensor in made:
            assert isinstance(tensor, OnDevice) and tensor.tolist() == [0, 1]
        device.waits.clear()
        x[x < 0] = 0.0
        y = x * 2 + torch.tensor(1.0)  # a number may come from the host
        y[:2] = y[2:]
        y.copy_(torch.ones(4), non_blocking=True)
        assert not device.waits
        reads = (
            lambda: x.cpu(),
            lambda: float(x[0]),
            lambda: x.tolist(),
            lambda: bool(x[0] > 0),
            lambda: y.copy_(torch.ones(4)),
            lambda: x[mask],
            lambda: x[x > 0],
            lambda: torch.equal(x, y),
        )
        for read in reads:
            read()
            assert device.waits
            device.waits.clear()
        with pytest.raises(RuntimeError, match="a CUDA graph cannot hold this"):
            tensordict.nn.CudaGraphModule(lambda: x.sum().item(), warmup=1)()


def test_what_a_graph_keeps():
    """From its third call on the numbers of that, but no tensor's content."""
    with simulated("test_device") as device:
        kept, x = [1.0], torch.zeros(2, device=torch.device("cuda"))
        fresh = torch.ones(2, device=torch.device("cuda"))
        graph = tensordict.nn.CudaGraphModule(lambda y: x.add_(y * kept[0]) + fresh, warmup=3)
        found = []
        for number in (1, 10, 100, 1000, 10000):
            kept[0] = number
            fresh.fill_(number / 1000)
            found.append(graph(torch.ones(2, device=x.device) * (2 if number == 10000 else 1)))
        told = [row.tolist()[0] for row in found]
        assert told == pytest.approx([1.001, 11.01, 111.1, 212, 421])
        assert device.replays == 2 and x.tolist() == [411, 411]


CHANGES = {  # in the fourth call of x.add_(y * kept[0]) + other, and what is said of it
    "number": (lambda main: main.update(kept=[7.0]), "would keep 1.0 in place of 7.0"),
    "tensor": (
        lambda main: main.update(other=main["other"] + 1),
        "keep another tensor in aten.add",
    ),
    "operation": (lambda main: main.update(more=True), "aten.mul.Tensor in place of aten.neg"),
    "end": (lambda main: main.update(less=True), "would go on with aten.add.Tensor"),
    "more": (lambda main: main.update(last=True), "nothing in place of aten.neg"),
    "content": (lambda main: main["other"].fill_(3), None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_graph_is_compared_with_calls(change):
    changes, said = CHANGES[change]
    with simulated("test_device", compares=True) as device:
        cuda = torch.device("cuda")
        main = {"kept": [1.0], "other": torch.ones(2, device=cuda)}
        main |= dict.fromkeys(("more", "less", "last"), False)
        x, y = torch.zeros(2, device=cuda), torch.ones(2, device=cuda)

        def function(y):
            if main["more"]:
                return -x
            z = x.add_(y * main["kept"][0])
            z = z if main["less"] else z + main["other"]
            return -z if main["last"] else z

        graph = tensordict.nn.CudaGraphModule(function, warmup=3)
        for _ in range(4):
            graph(y)
        changes(main)
        if said:
            with pytest.raises(RuntimeError, match=said):
                graph(y)
        else:
            assert graph(y).tolist() == [8, 8] and device.replays == 2
