"""What a script does on a GPU, on a simulated one of lib/device.py: the same bits as on a CPU, and
its loop waits where it says `sync` and nowhere else. A real one tells more: test_capture.py.
"""

import copy
import json
from functools import partial

import numpy as np
import pytest
from helpers import MARKED, PPO, run_main, task
from lib import parity
from lib.device import OnDevice, simulated
from test_capture import loop_lines

import tensordict.nn
import torch
import torch.nn as nn
import torch.nn.functional as F

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a real GPU is here")
SHORT = (
    "--num-envs 2 --num-steps 4 --num-minibatches 2 --update-epochs 2 --total-timesteps 24".split()
)
# sync, but not in these runs: with --target-kl alone, or where environments are restarted
ELSEWHERE = "target_kl", "first_obs"
# eager versions whose lines the fast ones have otherwise, one of each
REWRITTEN = "ppo_atari_envpool", "ppo_atari_envpool_lstm", "ppo_continuous_action_warp"


def run(name, *flags, runs_dir, gpu=False):
    """A script's main."""
    flags = [*SHORT, *flags]
    if task(name) == "warp":  # whose physics asks for a real GPU
        flags += ["--env-id", "worlds:Worlds"]
    if "rnd" in name:
        flags += ["--num-iterations-obs-norm-init", 1]
    return run_main(name, *flags, runs_dir=runs_dir, gpu=gpu)


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


@pytest.mark.parametrize(("eager", "fast"), MARKED)
def test_a_run_on_a_device(eager, fast, tmp_path):
    """Of the fast version with its graphs: what the eager one does on a CPU. The eager one's lines
    are in it (test_pair); its own rollouts wait as they say, too."""
    here = run(eager, runs_dir=tmp_path / "cpu")
    for name, flags in ((eager, []), (fast, ["--cudagraphs"])):
        if name == eager and eager not in REWRITTEN:
            continue
        with simulated(name) as device:
            there = run(name, *flags, runs_dir=tmp_path / name, gpu=True)
            if hasattr(there, "run_step"):  # these lines wait without a graph of acting alone
                run(name, runs_dir=tmp_path / "called", gpu=True)
        assert_equal(here, there)
        assert_memory_is_shared(there)
        assert bool(device.replays) == (name == fast)
        lines = [""] + (PPO / f"{name}.py").read_text().splitlines()
        said = {n for n, line in enumerate(lines) if "sync" in line.partition("#")[2]}
        loop = loop_lines(name).keys()
        waits = [numbers for numbers in device.waits if numbers and numbers[-1] in loop]
        for numbers in waits:
            assert said.intersection(numbers), [lines[n].strip() for n in numbers]
        for n in said.intersection(loop).difference(*waits):
            assert any(words in lines[n] for words in ELSEWHERE), lines[n].strip()


def assert_memory_is_shared(run):
    """What graphs read keeps its address: minibatches are taken from the storage itself, and the
    agent that acts in a graph has the weights of the one that learns, without gradients."""
    for key in run.storage.keys() & run.batch.keys():
        assert run.batch[key].data_ptr() == run.storage[key].data_ptr()
    if hasattr(run, "agent_inference"):
        networks = run.agent, run.agent_inference
        for trained, used in zip(*(x.parameters() for x in networks), strict=True):
            assert trained is not used and used.grad is None
            assert trained.data_ptr() == used.data_ptr()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo_trxl", "ppo_continuous_action_envpool_torchcompile"])
def test_resumed_on_a_device(name, tmp_path):
    """As it would be on the CPU; and a run from either goes on with the other."""

    def resume(folder, gpu=False):
        (run_dir,) = (tmp_path / folder).iterdir()
        flags = "--total-timesteps", 48, "--resume", run_dir
        return run(name, *flags, runs_dir="unused", gpu=gpu)

    graphs = ["--cudagraphs"] * ("torchcompile" in name)
    for folder in ("cpu", "cpu_to_device"):
        run(name, *graphs, runs_dir=tmp_path / folder)
    with simulated(name):
        for folder in ("device", "device_to_cpu"):
            run(name, *graphs, runs_dir=tmp_path / folder, gpu=True)
        there = resume("device", gpu=True)
        resume("cpu_to_device", gpu=True)
    assert_equal(resume("cpu"), there)
    resume("device_to_cpu")
    for summary in tmp_path.glob("*/*/summary.json"):
        assert json.loads(summary.read_text())["global_step"] == 48


# What one might write, as a function of x (4, 4), symmetric, on the device. What is made before is
# a call that is returned


def within(x, device):
    with torch.device(device):
        layer, more = nn.Linear(4, 4), torch.zeros(4) + torch.tensor([1.0, 2.0, 3.0, 4.0])
    return lambda: layer(x) + more


def orthogonal(x, device):
    layers = [nn.Linear(4, size).to(device) for size in (2, 6)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight)
    return lambda: torch.cat([layer(x) for layer in layers], -1)


def learned(x, device, loss=lambda y: y.square().mean()):
    layers = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ELU(), nn.Linear(8, 1)).to(device)
    lr = torch.tensor(1e-3, device=device)
    on_a_gpu = device.type == "cuda"
    adam = torch.optim.Adam(layers.parameters(), lr=lr, fused=True, capturable=on_a_gpu)

    def call():
        loss(layers(x)).backward()
        nn.utils.clip_grad_norm_(layers.parameters(), 0.5, foreach=False)
        adam.step()
        return torch.cat([p.flatten() for p in layers.parameters()])

    return call


def average(x, device):
    layer = nn.Linear(4, 4).to(device)
    kept = copy.deepcopy(layer)

    @torch.no_grad()
    def call():
        for a, b in zip(kept.parameters(), layer.parameters(), strict=True):
            a.lerp_(2 * b, 0.1)
        return kept(x)

    return call


def masked(x, device):
    x = x.clone()
    x[x < 0.1] = 0.0
    return x.masked_fill(x > 1, 1.0)


def in_place(x, device):
    return x.clone().unsqueeze_(1).squeeze_(1)[:, :2].clone().t_() @ x


def named(x, device):
    about = torch.cuda.get_device_properties(0), torch.cuda.get_device_name()
    assert about[0].name == about[1] and torch.cuda.get_device_capability() >= (7, 0)
    assert torch.cuda.device_count() == 1 and about[0].total_memory > 0
    return x * about[0].multi_processor_count


def timed(x, device):
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record()
    y = x @ x
    ended.record()
    ended.synchronize()
    assert begun.elapsed_time(ended) >= 0
    return y


def fetched(x, device, waits=lambda: torch.cuda.synchronize()):
    host = torch.zeros(x.shape, pin_memory=True)
    host.copy_(x, non_blocking=True)
    waits()
    return torch.from_numpy(host.numpy() + 1)


def by_event(x, device):
    event = torch.cuda.Event()
    return fetched(x, device, lambda: (event.record(), event.synchronize()))


def given(x, device):
    host = torch.arange(4.0).pin_memory()
    assert host.is_pinned() and not torch.arange(4.0).is_pinned()
    return lambda: x + host.to(device, non_blocking=True)


def drawn(x, device, of=None):
    generator = torch.Generator(device if of is None else of).manual_seed(3)
    return lambda: x + torch.randn(4, device=device, generator=generator)


def chosen(x, device):
    rows = torch.randperm(4, device=device)
    actions = x.argmax(-1)
    return x[rows].gather(1, actions[:, None]) + x.sort(-1)[0][:, :2] + x[:, actions].std()


def noisy(x, device):
    noise = torch.empty_like(x).exponential_() + torch.rand(4, device=device) + torch.randn_like(x)
    return F.dropout(x + noise.bernoulli_(0.5), 0.1)


def layer(kind, *sizes, inputs=lambda x: (x,)):
    def edit(x, device):
        made = kind(*sizes).to(device)
        return lambda: made(*inputs(x))

    return edit


HOST, NUMPY, UNWAITED = "cuda:0 and on cpu", "to numpy", "read before its copy"
OWN = "cannot hold a generator"
FINE = {
    "a layer made there": lambda x, device: nn.Linear(4, 3, device=device)(x),
    "made within the device": within,
    "orthogonal after .to": orthogonal,
    "a step of Adam": learned,
    "a moving average": average,
    "masks": masked,
    "other shapes in place": in_place,
    "rows and choices": chosen,
    "noise": noisy,
    "batch normalisation": layer(nn.BatchNorm1d, 4),
    "attention": layer(nn.TransformerEncoderLayer, 4, 2, 8),
    "a GRU": layer(nn.GRUCell, 4, 4, inputs=lambda x: (x, x)),
    "a CNN": layer(nn.Conv2d, 1, 2, 2, inputs=lambda x: (x[None, None],)),
    "what a GPU is called": named,
    "from pinned memory": given,
    "a quantile": lambda x, _: torch.quantile(x, 0.9) + x.quantile(0.5, dim=1),
    "a number of the host's": lambda x, _: x * torch.tensor(2.0) + 1,
    "one_hot of a size": lambda x, _: F.one_hot(x.argmax(-1), 4) @ x.long(),
    "a new tensor": lambda x, _: x.new_zeros(4) + torch.full((4,), 2.0, device=x.device),
    "inv_ex": lambda x, _: torch.linalg.inv_ex(x)[0],
    "rows repeated": lambda x, _: x.repeat_interleave(2, 0),
}
WAITS = {  # so that no graph can hold it
    "item": lambda x, _: x * x.mean().item(),
    "if": lambda x, _: x if x.sum() > 0 else -x,
    "tolist": lambda x, _: x + sum(x[0].tolist()),
    "cpu": lambda x, _: x.cpu() + 1,
    "numpy by force": lambda x, _: torch.from_numpy(x.numpy(force=True)),
    "to the device": lambda x, device: x + torch.arange(4.0).to(device),
    "as_tensor": lambda x, device: x + torch.as_tensor(np.ones(4), device=device),
    "real rows": lambda x, _: x[x > 0.2].mean(),
    "nonzero": lambda x, _: (x > 0.2).nonzero().float(),
    "unique": lambda x, _: torch.unique(x.round()),
    "allclose": lambda x, _: x * torch.allclose(x, x),
    "one_hot of any size": lambda x, _: F.one_hot(x.argmax(-1)).sum(),
    "a distribution that checks": lambda x, _: torch.distributions.Normal(x, 1.0).log_prob(x),
    "inv": lambda x, _: torch.linalg.inv(x),
    "cholesky": lambda x, _: torch.linalg.cholesky(x),
    "eigh": lambda x, _: torch.linalg.eigh(x)[0],
    "pinv": lambda x, _: torch.linalg.pinv(x),
    "svd": lambda x, _: torch.linalg.svdvals(x),
    "an event": timed,
    "a copy, waited for": fetched,
    "a copy and its event": by_event,
    "a loss that is read": lambda x, device: learned(
        x, device, lambda y: y.mean() * y.detach().max().item()
    ),
}
EDITS = {name: (edit, "fine") for name, edit in FINE.items()}
EDITS |= {name: (edit, "waits") for name, edit in WAITS.items()}
EDITS |= {  # what is said of it
    "a copy, not waited for": (lambda x, device: fetched(x, device, lambda: None), UNWAITED),
    "to the host, not waited for": (lambda x, _: x.to("cpu", non_blocking=True)[0] + 1, UNWAITED),
    "a tensor of the host's": (lambda x, _: x + torch.zeros(4), HOST),
    "a layer of the host's": (lambda x, _: nn.Linear(4, 4)(x), HOST),
    "an index of the host's rows": (lambda x, _: torch.ones(4)[x.argmax(-1)] + x, HOST),
    "numpy": (lambda x, _: x + x.detach().numpy().sum(), NUMPY),
    "NumPy's functions": (lambda x, _: x + np.asarray(x).sum(), NUMPY),
    "a generator of the host's": (lambda x, device: drawn(x, device, "cpu"), "cannot draw"),
    "a generator of its own": (drawn, OWN),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit(edit):
    """Does on the device what it does on a CPU, waits there or is refused; and in a graph."""
    function, verdict = EDITS[edit]
    torch.manual_seed(1)
    seen = torch.rand(4, 4)
    seen = seen @ seen.T + torch.eye(4)

    def run(device, graph=False):
        x = seen.to(device)
        torch.manual_seed(2)
        made = function(x, device)
        call = made if callable(made) else partial(function, x, device)
        call = tensordict.nn.CudaGraphModule(call, warmup=1) if graph else call
        waits.clear()
        torch.manual_seed(2)
        found, waited = call(), bool(waits)
        return found.detach().cpu(), waited

    cuda, waits = torch.device("cuda"), set()
    with simulated("test_device") as device:
        waits = device.waits
        if verdict not in ("fine", "waits", OWN):
            for graph in (False, True):
                with pytest.raises((RuntimeError, TypeError), match=f"{verdict}|a CUDA graph"):
                    run(cuda, graph)
            return
        found, waited = run(cuda)
        assert waited == (verdict == "waits")
        if verdict == "fine":
            again, waited = run(cuda, graph=True)
            assert not waited and again.shape == found.shape
        else:
            with pytest.raises(RuntimeError, match=OWN if verdict == OWN else "a CUDA graph can"):
                run(cuda, graph=True)
    if function not in (named, timed, fetched, by_event, given):  # which ask for a GPU
        torch.testing.assert_close(found, run(torch.device("cpu"))[0])


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


def test_a_replay_is_waited_for():
    """What a graph copies to the host is there after a wait; and a shape changes once, in place."""
    with simulated("test_device") as device:
        x = torch.arange(6.0, device="cuda").view(2, 3)
        host = torch.zeros(3, 2, pin_memory=True)

        def function():
            y = x.clone()
            host.copy_(y.t_().add_(1), non_blocking=True)

        graph = tensordict.nn.CudaGraphModule(function, warmup=1)
        for call in range(3):
            graph()
            with pytest.raises(RuntimeError, match=UNWAITED):
                host.numpy()
            torch.cuda.current_stream().synchronize()
            assert np.array_equal(host.numpy(), np.arange(6).reshape(2, 3).T + 1 + 10 * call)
            x += 10
        assert device.replays == 2


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
