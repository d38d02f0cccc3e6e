"""`act` and `train_epoch` can be captured in a CUDA graph.

Without a GPU: on tensors that hold no data, so that a read by the host or a shape that depends on
data raises. With one: the replayed graphs against the same calls made without. Where only the graph
needs a GPU, the slow tests run the rest on a CPU.
"""

import re
import warnings
from functools import partial
from types import SimpleNamespace

import pytest
from helpers import (
    FAST,
    ONE_PROCESS,
    PPO,
    SCRIPTS,
    TINY,
    insert,
    kind,
    load,
    memory,
    random_storage,
    run_main,
    spaces,
)

import torch
from tensordict import TensorDict, from_module
from tensordict.nn import CudaGraphModule
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.distributions import Normal
from torch.utils._pytree import tree_leaves

T, N = 8, 4
GRAPHS = ["--compile", "--cudagraphs"]
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])
CPU = pytest.param("cpu", marks=pytest.mark.slow)


def executables(name, module, storage, noise, device, graphed=False, bfloat16=False):
    """agent, optimizer, act and update as main binds them."""
    fast = name in FAST
    agent = actor = module.Agent(spaces(name), device=device)
    if backend := getattr(module, "network_too", None):
        agent.network.compile(backend=backend)
    if fast and "atari" in name:
        actor = module.Agent(spaces(name), device="meta")
        from_module(agent).data.to_module(actor)
    if bfloat16:
        for network in (agent.network, actor.network):
            network.forward = torch.autocast(device, torch.bfloat16)(network.forward)
            network.register_forward_hook(lambda module, inputs, hidden: hidden.float())
    lr = torch.tensor(2.5e-4, device=device) if fast else 2.5e-4
    capturable = fast and device == "cuda"
    optimizer = torch.optim.Adam(
        agent.parameters(), lr=lr, eps=1e-5, fused=True, capturable=capturable
    )
    args = module.Args(num_envs=N, num_steps=T, num_minibatches=2)
    states, initial_state = memory(name, T, N, device)
    batch = batch_of(name, storage).to_dict()
    gradients = partial(module.compute_gradients, agent, args, batch, *initial_state)
    act = partial(module.act, actor, storage, *states, noise)
    update = partial(module.train_epoch, gradients, optimizer)
    if graphed:
        update = CudaGraphModule(update, warmup=3)
        act = CudaGraphModule(act, warmup=3) if "atari" in name else act
    return agent, optimizer, act, update


@pytest.fixture
def compiled(monkeypatch):
    """Compiles what main compiles: a script's name -> as much of it as executables needs."""
    torch.compiler.reset()

    def compile_(name, device, backend="inductor"):
        module, text = load(name), (PPO / f"{name}.py").read_text()
        names = re.findall(r"torch\.compile\((\w+)\)", text)
        new = {key: torch.compile(getattr(module, key), backend=backend) for key in names}
        if "lstm" in name:  # compute_gradients, as it is, calls what is compiled
            monkeypatch.setattr(module, "ppo_loss", new["ppo_loss"])
            monkeypatch.setattr(module.LSTM, "fused", device == "cpu")
        else:
            assert "compute_gradients" in new
        new["network_too"] = backend * ("agent.network.compile()" in text)
        return SimpleNamespace(**{**vars(module), **new})

    with torch._dynamo.config.patch(trace_autograd_ops=True):
        yield compile_


def batch_of(name, storage):
    """What a minibatch is taken from: rows, with an LSTM whole environments."""
    return storage[:T] if "lstm" in name else storage[:T].flatten()


def row(name, step, device):
    """A row's index as main passes it to act: on Atari, where acting is captured, a tensor."""
    return torch.arange(T + 1, device=device).split(1)[step] if "atari" in name else step


def random_noise(name, envs, device):
    shape = spaces(name).single_action_space.shape or (spaces(name).single_action_space.n,)
    return torch.empty((T + 1, envs, *shape), device=device).exponential_()


def empty_storage(name, device, channels_last=False):
    fields, *_ = random_storage(name, T, N)
    fields = {key: torch.zeros_like(rows, device=device) for key, rows in fields.items()}
    if channels_last and "atari" in name:
        rows = fields["obs"].flatten(0, 1).to(memory_format=torch.channels_last)
        fields["obs"] = rows.unflatten(0, (T + 1, N))
    return TensorDict(fields, batch_size=(T + 1, N))


def fill(name, storage, seed):
    """Other random rows, in place, as main leaves them for an update near the policy that acted."""
    fields, *_ = random_storage(name, storage.shape[0] - 1, storage.shape[1], seed, storage)
    rng = torch.Generator().manual_seed(seed)
    for key in ("advantages", "returns"):
        fields[key] = torch.randn(storage.shape, generator=rng)
    if kind(name) == "continuous":
        fields["logprobs"] += 1.4 + Normal(0, 1).log_prob(fields["actions"]).sum(-1)
    for key, rows in fields.items():
        storage[key].copy_(rows)


def random_b_inds(name, rng, device):
    size = N if "lstm" in name else T * N
    return torch.randperm(size, generator=rng).view(2, -1).to(device)


@pytest.mark.parametrize("name", FAST)
def test_no_host_read_and_no_dynamic_shape(name, monkeypatch):
    """FakeTensorMode: shapes without data, the optimizer's step included."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda x: None)  # there is one rank
    with FakeTensorMode():
        storage, noise = empty_storage(name, "cpu"), random_noise(name, N, "cpu")
        agent, _, act, update = executables(name, load(name), storage, noise, "cpu")
        assert act(row(name, 0, "cpu")).shape[0] == N
        for _ in range(2):
            b_inds = torch.zeros_like(random_b_inds(name, None, "cpu"))
            assert update(b_inds).shape == (2, 7)
        assert all(p.grad.shape == p.shape for p in agent.parameters())


@pytest.mark.parametrize("name", FAST)
def test_no_copy_to_the_host(name, monkeypatch):
    """On the meta device, from which nothing can be copied: all but the optimizer's step."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda x: None)  # there is one rank
    storage, noise = empty_storage(name, "meta"), random_noise(name, N, "meta")
    module = load(name)
    agent = module.Agent(spaces(name), device="meta")
    states, initial_state = memory(name, T, N, "meta")
    step = row(name, 0, "meta")
    assert module.act(agent, storage, *states, noise, step).device.type == "meta"
    batch, mb_inds = batch_of(name, storage), torch.zeros(3, dtype=torch.int64, device="meta")
    losses = module.compute_gradients(agent, module.Args(), batch, *initial_state, mb_inds)
    assert losses.device.type == "meta" and losses.shape == (7,)


def test_the_checks_can_fail():
    with FakeTensorMode():
        x = torch.ones(4)
        with pytest.raises(DataDependentOutputException):
            x.sum().item()
        with pytest.raises(DynamicOutputShapeException):
            x[x > 0]
    with pytest.raises(NotImplementedError):
        torch.ones(4, device="meta").cpu()


@pytest.mark.parametrize("name", FAST)
def test_storage_and_weights_are_shared(name, tmp_path):
    """What graphs read keeps its address: batch is a view, on Atari both agents are one memory."""
    run = run_main(name, *TINY, runs_dir=tmp_path)
    for key in run.storage.keys():
        assert run.batch[key].data_ptr() == run.storage[key].data_ptr()
    if "atari" in name:
        pairs = zip(run.agent.parameters(), run.agent_inference.parameters(), strict=True)
        for trained, used in pairs:
            assert trained is not used and used.grad is None
            assert trained.data_ptr() == used.data_ptr() and torch.equal(trained, used)


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("compiles", [False, True])
def test_replay_equals_eager(name, compiles, device, compiled, monkeypatch):
    """Six epochs on new rows at new rates, three of them replays: captured as without, bit for bit.

    Not under use_deterministic_algorithms: its index_put sorts, and cannot be captured.
    """
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    module, results = compiled(name, device) if compiles else load(name), []
    for graphed in (False, device == "cuda"):
        torch.manual_seed(0)
        rng = torch.Generator().manual_seed(0)
        storage, noise = empty_storage(name, device, compiles), random_noise(name, N, device)
        agent, optimizer, _, update = executables(name, module, storage, noise, device, graphed)
        results.append([])
        for epoch in range(6):
            fill(name, storage, seed=epoch)
            optimizer.param_groups[0]["lr"].fill_(1e-3 / (1 + epoch))
            losses = update(random_b_inds(name, rng, device))  # (2, 7)
            results[-1] += [losses, torch.cat([p.detach().flatten() for p in agent.parameters()])]
            assert (losses[:, :5] != 0).all() and losses.isfinite().all()
        assert {float(state["step"]) for state in optimizer.state.values()} == {12.0}
    for i, (plain, captured) in enumerate(zip(*results, strict=True)):
        assert torch.equal(plain, captured), ("losses", "parameters")[i % 2] + f" of epoch {i // 2}"
    assert len({float(losses[0, 1]) for losses in results[1][::2]}) == 6, "rows are read anew"


@pytest.mark.parametrize("device", [CUDA])  # on a CPU test_parity compiles it, in main
@pytest.mark.parametrize("bfloat16", [False, True])
def test_compiled_act_in_nhwc(bfloat16, device, compiled):
    """Captured as without, bit for bit, and near to the plain act in NCHW and float32."""
    name, results = "ppo_atari_envpool_torchcompile", []
    new, fast = compiled(name, device), device == "cuda"
    for module, graphed in ((load(name), False), (new, False), (new, fast)):
        torch.manual_seed(0)
        plain = module is not new
        storage, noise = empty_storage(name, device, not plain), random_noise(name, N, device)
        fill(name, storage, seed=0)
        half = bfloat16 and not plain
        agent, _, act, _ = executables(name, module, storage, noise, device, graphed, half)
        agent.actor.weight.data.mul_(100.0)  # probabilities far from equal
        actions = torch.stack([act(row(name, step, device)) for step in range(T + 1)])
        assert torch.equal(actions, storage["actions"])
        results.append([storage["values"], storage["logprobs"], actions])
    for plain, captured in zip(results[1], results[2], strict=True):
        assert torch.equal(plain, captured)
    (values, logprobs, actions), (found_values, found_logprobs, found) = results[:2]
    same = found == actions  # where two are as likely, the last digit decides
    assert same.float().mean() > 0.9 and values.std() > 0.01 and logprobs.std() > 0.1
    torch.testing.assert_close(found_values, values, rtol=0.02, atol=0.02)
    torch.testing.assert_close(found_logprobs[same], logprobs[same], rtol=0.02, atol=0.02)
    assert (not torch.equal(found_values, values)) or not bfloat16


@pytest.mark.parametrize("device", [CPU, CUDA])
@pytest.mark.parametrize("name", [name for name in ONE_PROCESS if name in FAST])
def test_no_recompile_when_captured(name, device, compiled):
    """Two calls compile all there is to compile: the third captures, and compiling cannot be.

    On a CPU without Inductor's kernels, which take seconds; what is traced anew is the same.
    """
    backend = "inductor" if device == "cuda" else "aot_eager"
    module, rng = compiled(name, device, backend), torch.Generator().manual_seed(0)
    for graphed in (False, True)[: 1 + (device == "cuda")]:
        storage, noise = empty_storage(name, device, True), random_noise(name, N, device)
        _, optimizer, act, update = executables(name, module, storage, noise, device, graphed)
        for call in range(8):
            with torch.compiler.set_stance("fail_on_recompile" if call > 1 else "default"):
                fill(name, storage, seed=call)
                optimizer.param_groups[0]["lr"].fill_(1e-3 / (1 + call))
                act(row(name, call, device))
                update(random_b_inds(name, rng, device))
        if not graphed:  # a check that can fail
            with torch.compiler.set_stance("fail_on_recompile"):
                with pytest.raises(RuntimeError, match="fail_on_recompile"):
                    update(random_b_inds(name, rng, device)[:, 1:])


def gradient_steps(run):
    (count,) = {float(state["step"]) for state in run.optimizer.state.values()}
    return int(count)


@pytest.mark.parametrize("device", [CPU, CUDA])
@pytest.mark.parametrize("name", FAST)
def test_resumed_learner_under_graphs(name, device, tmp_path):
    """Iterations 4 to 6 from a checkpoint equal those that follow in place, on the same rows.

    The first three epochs after a checkpoint are no replays; kernels are the same.
    """
    gpu, half = device == "cuda", tmp_path / "half"
    flags = [*TINY, "--total-timesteps", 96, "--checkpoint-interval", 3, *(GRAPHS if gpu else [])]
    # what an update reads, besides the storage: an LSTM's first state, with ranks the advantages
    lines = f"""
if iteration > 3:
    __import__('test_capture').fill({name!r}, storage, seed=iteration)
    for state in gradients.args[3:]:
        state.zero_()
    advantages = storage["advantages"][:T].double()
"""
    rows = insert("# Update", lines)
    copy = f"if iteration == 4: __import__('shutil').copytree(run_dir, {str(half)!r})"
    keep = insert("# Rollout", copy)
    whole = run_main(
        name, *flags, runs_dir=tmp_path / "whole", edit=lambda text: keep(rows(text)), gpu=gpu
    )
    resumed = run_main(name, "--resume", half, runs_dir="unused", edit=rows, gpu=gpu)
    assert (whole.first_iteration, resumed.first_iteration) == (1, 4)
    assert whole.mode == resumed.mode == ("compile+cudagraphs" if gpu else "eager")
    for key in ("agent", "adam", "rng"):
        found, expected = (tree_leaves(run.state[key]) for run in (resumed, whole))
        assert len(found) == len(expected) > 0
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), key
    assert gradient_steps(resumed) == 6 * 2 * 2
    lr = resumed.optimizer.param_groups[0]["lr"]
    assert isinstance(lr, torch.Tensor) and lr.device.type == device
    assert float(lr) == pytest.approx(resumed.args.learning_rate / 6)


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize("name", FAST)
def test_target_kl_under_graphs(name, device, tmp_path):
    """An update ends after one epoch or goes through both, replayed or not."""
    gpu = device == "cuda"
    flags = [*TINY, "--total-timesteps", 96, "--learning-rate", 0.01, *(GRAPHS if gpu else [])]
    for target_kl, epochs in ((1e-12, 1), (1e12, 2)):
        run = run_main(name, *flags, "--target-kl", target_kl, runs_dir=tmp_path, gpu=gpu)
        assert gradient_steps(run) == 6 * epochs * 2 and len(run.losses) == epochs


def loop_lines(name):
    """{number: line} of a script's loop, from its rollout to its log phase."""
    lines = (PPO / f"{name}.py").read_text().splitlines()
    first, last = lines.index("        # Rollout"), lines.index("        # Log")
    return {i + 1: lines[i] for i in range(first, last)}


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_fetches_says_sync(name):
    """In the loop, each line that copies between host and device by name has its comment."""
    calls = ".cpu() .tolist() .item() from_numpy( .to(device) load_state_dict( .copy_(".split()
    found = [line for line in loop_lines(name).values() if any(call in line for call in calls)]
    assert len(found) >= 4
    for line in found:
        assert "sync" in line.partition("#")[2], line


@pytest.mark.gpu
@NO_GPU
@pytest.mark.parametrize("name", SCRIPTS)
def test_synchronises_only_where_it_says(name, tmp_path):
    """PyTorch's own report of each line of the loop that waits for the GPU."""
    flags = GRAPHS if name in FAST else []
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run_main(name, *TINY, *flags, runs_dir=tmp_path, gpu=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    loop = loop_lines(name)
    waits = [w for w in caught if "synchroniz" in str(w.message)]
    found = {w.lineno for w in waits if w.filename == str(PPO / f"{name}.py")} & loop.keys()
    assert found, "the actions are fetched, at least"
    for number in found:
        assert "sync" in loop[number].partition("#")[2], loop[number]


MODES = [(name, "eager") for name in SCRIPTS]
MODES += [(name, mode) for name in FAST for mode in ("compile", "cudagraphs")]


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize(("name", "mode"), MODES)
def test_act_and_update_never_wait(name, mode, device, compiled):
    """Once they are warm, no call within waits for the GPU."""
    module = load(name) if mode == "eager" else compiled(name, device)
    rng = torch.Generator()
    storage, noise = empty_storage(name, device), random_noise(name, N, device)
    fill(name, storage, seed=0)
    graphed = mode == "cudagraphs"
    _, _, act, update = executables(name, module, storage, noise, device, graphed)
    steps, b_inds = [row(name, step, device) for step in range(T)], random_b_inds(name, rng, device)
    for _ in range(3):
        act(steps[0])
        update(b_inds)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in steps:
            act(step)
            update(b_inds)
        with pytest.raises(RuntimeError, match="synchroniz"):
            noise.sum().item()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("name", ["ppo_atari_envpool_torchcompile"])
def test_replays_sample_and_write_their_row(name, device):
    """Two replays on the same observations draw different actions and fill different rows."""
    games = 256
    fields = {
        "obs": torch.zeros((T + 1, games, 4, 84, 84), dtype=torch.uint8, device=device),
        "actions": torch.full((T + 1, games), -1, device=device),
        "logprobs": torch.zeros((T + 1, games), device=device),
        "values": torch.zeros((T + 1, games), device=device),
    }
    storage, noise = TensorDict(fields, (T + 1, games)), random_noise(name, games, device)
    _, _, act, _ = executables(name, load(name), storage, noise, device, device == "cuda")
    actions = [act(row(name, step, device)) for step in range(T + 1)]
    for step in range(T + 1):
        assert torch.equal(storage["actions"][step], actions[step])
    assert not torch.equal(actions[4], actions[5]), "two replays"
    frequencies = torch.cat(actions).bincount(minlength=4) / (games * (T + 1))
    torch.testing.assert_close(frequencies, torch.full_like(frequencies, 0.25), rtol=0, atol=0.04)
    before = act(row(name, 0, device))
    noise.exponential_()
    assert not torch.equal(act(row(name, 0, device)), before), "the noise is read anew"
