"""`act` and `update` can be captured in a CUDA graph.

Without a GPU: on tensors that hold no data, so that a read by the host or a shape that depends on
data raises. With one: the replayed graphs against the same calls made eagerly.
"""

import copy
import warnings
from functools import partial
from types import SimpleNamespace

import pytest
from helpers import FAST, PPO, SCRIPTS, TINY, load, random_storage, run_main, spaces

import torch
from tensordict import TensorDict, from_module
from tensordict.nn import CudaGraphModule
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

T, N = 8, 4


def executables(name, module, storage, noise, device):
    """agent, optimizer, act and update as main binds them."""
    agent = module.Agent(spaces(name), device=device)
    agent_inference = module.Agent(spaces(name), device="meta")
    from_module(agent).data.to_module(agent_inference)
    optimizer = torch.optim.Adam(
        agent.parameters(),
        eps=1e-5,
        lr=torch.tensor(2.5e-4, device=device),
        fused=True,
        capturable=device == "cuda",
    )
    args = module.Args(num_envs=N, num_steps=T, num_minibatches=2)
    batch = storage[:T].flatten().to_dict()
    gradients = partial(module.compute_gradients, agent, args, batch)
    act = partial(module.act, agent_inference, storage, noise)
    return agent, optimizer, act, partial(module.update, gradients, optimizer)


def row(name, step, device):
    """A row's index as main passes it to act: on Atari, where acting is captured, a tensor."""
    return torch.full((1,), step, device=device) if "atari" in name else step


def random_noise(name, envs, device):
    shape = spaces(name).single_action_space.shape or (spaces(name).single_action_space.n,)
    return torch.empty((T + 1, envs, *shape), device=device).exponential_()


def empty_storage(name, device):
    fields, *_ = random_storage(name, T, N)
    fields = {key: torch.zeros_like(rows, device=device) for key, rows in fields.items()}
    return TensorDict(fields, batch_size=(T + 1, N))


@pytest.mark.parametrize("name", FAST)
def test_no_host_read_and_no_dynamic_shape(name):
    """FakeTensorMode: shapes without data, the optimizer's step included."""
    with FakeTensorMode():
        storage, noise = empty_storage(name, "cpu"), random_noise(name, N, "cpu")
        agent, _, act, update = executables(name, load(name), storage, noise, "cpu")
        assert act(row(name, 0, "cpu")).shape[0] == N
        for _ in range(2):
            assert update(torch.zeros((2, T * N // 2), dtype=torch.int64)).shape == (2, 7)
        assert all(p.grad.shape == p.shape for p in agent.parameters())


@pytest.mark.parametrize("name", FAST)
def test_no_copy_to_the_host(name):
    """On the meta device, from which nothing can be copied: all but the optimizer's step."""
    storage, noise = empty_storage(name, "meta"), random_noise(name, N, "meta")
    module = load(name)
    agent = module.Agent(spaces(name), device="meta")
    assert module.act(agent, storage, noise, row(name, 0, "meta")).device.type == "meta"
    batch, mb_inds = storage[:T].flatten(), torch.zeros(3, dtype=torch.int64, device="meta")
    losses = module.compute_gradients(agent, module.Args(), batch, mb_inds)
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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("compiled", [False, True])
def test_replay_equals_eager(name, compiled):
    """After 6 epochs, of which 3 are replays, parameters equal the eager ones."""
    module, cuda = load(name), "cuda"
    fields, *_ = random_storage(name, T, N)
    permutations = [torch.randperm(T * N).view(2, -1).to(cuda) for _ in range(6)]
    results = []
    for graphed in (False, True):
        torch.manual_seed(0)
        storage = TensorDict(copy.deepcopy(fields), batch_size=(T + 1, N)).to(cuda)
        noise = random_noise(name, N, cuda)
        used = module
        if graphed and compiled:
            compiled_gradients = torch.compile(module.compute_gradients)
            used = SimpleNamespace(**{**vars(module), "compute_gradients": compiled_gradients})
        agent, optimizer, _, update = executables(name, used, storage, noise, cuda)
        if graphed:
            update = CudaGraphModule(update, warmup=3)
        losses = []
        for epoch, b_inds in enumerate(permutations):
            optimizer.param_groups[0]["lr"].fill_(1e-3 / (1 + epoch))
            losses.append(update(b_inds))
        results.append((torch.cat(losses), torch.cat([p.flatten() for p in agent.parameters()])))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=2e-3, atol=2e-4)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=2e-3, atol=2e-4)


def loop_lines(name):
    """{number: line} of a script's loop, from its rollout to its log phase."""
    lines = (PPO / f"{name}.py").read_text().splitlines()
    first, last = lines.index("        # Rollout"), lines.index("        # Log")
    return {i + 1: lines[i] for i in range(first, last)}


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_fetches_says_sync(name):
    """In the loop, each line that copies between host and device by name has its comment."""
    calls = (".cpu()", ".tolist()", ".item()", "from_numpy(", ".to(device)", "load_state_dict(")
    found = [line for line in loop_lines(name).values() if any(call in line for call in calls)]
    assert len(found) >= 4
    for line in found:
        assert "sync" in line.partition("#")[2], line


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", SCRIPTS)
def test_synchronises_only_where_it_says(name, tmp_path):
    """PyTorch's own report of each line of the loop that waits for the GPU."""
    flags = ["--compile", "--cudagraphs"] if name in FAST else []
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run_main(name, *TINY, *flags, runs_dir=tmp_path)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    loop = loop_lines(name)
    waits = [w for w in caught if "synchroniz" in str(w.message)]
    found = {w.lineno for w in waits if w.filename == str(PPO / f"{name}.py")} & loop.keys()
    assert found, "the actions are fetched, at least"
    for number in found:
        assert "sync" in loop[number].partition("#")[2], loop[number]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["ppo_atari_envpool_torchcompile"])
def test_replays_sample_and_write_their_row(name):
    """Two replays on the same observations draw different actions and fill different rows."""
    module, cuda = load(name), "cuda"
    games = 256
    storage = TensorDict(
        {
            "obs": torch.zeros((T + 1, games, 4, 84, 84), dtype=torch.uint8, device=cuda),
            "actions": torch.full((T + 1, games), -1, device=cuda),
            "logprobs": torch.zeros((T + 1, games), device=cuda),
            "values": torch.zeros((T + 1, games), device=cuda),
        },
        batch_size=(T + 1, games),
    )
    noise = torch.empty((T + 1, games, 4), device=cuda).exponential_()
    _, _, act, _ = executables(name, module, storage, noise, cuda)
    act = CudaGraphModule(act, warmup=3)
    steps = torch.arange(T + 1, device=cuda).split(1)
    actions = [act(step) for step in steps]
    for step in range(T + 1):
        assert torch.equal(storage["actions"][step], actions[step])
    assert not torch.equal(actions[4], actions[5]), "two replays"
    frequencies = torch.cat(actions).bincount(minlength=4) / (games * (T + 1))
    torch.testing.assert_close(frequencies, torch.full_like(frequencies, 0.25), rtol=0, atol=0.04)
    before = act(steps[0])
    noise.exponential_()
    assert not torch.equal(act(steps[0]), before), "the noise is read anew"
