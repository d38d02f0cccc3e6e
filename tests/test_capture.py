"""`act` and `train_epoch` can be captured in CUDA graphs, and the graphs do what the calls do.

Without a GPU: on tensors that hold no data, so that a read by the host or a shape that depends on
data raises; and main's code around the graphs, with the functions called in place of the graphs.
With a GPU, main itself: captured against called, what is compiled anew, and where the loop waits.
"""

import linecache
import re
import shutil
import sys
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers import (
    FAST,
    PAIRS,
    PPO,
    TINY,
    agent,
    insert,
    kind,
    load,
    memory,
    random_storage,
    run_main,
    seen,
    spaces,
    task,
)

import torch
from tensordict import from_module
from tensordict.nn import CudaGraphModule
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.distributions import Normal
from torch.utils._pytree import tree_leaves

T, N = 8, 4
LR = 2**-9  # as a float32 tensor the same number, three quarters, a half and a quarter of it too
GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
CUDA = pytest.param("cuda", marks=GPU)
ATARI = "ppo_atari_envpool_torchcompile"
# what others have the text of
KINDS = ["ppo", "ppo_lstm", "ppo_trxl", "ppo_continuous_action"]
KINDS += ["ppo_atari_envpool", "ppo_atari_envpool_lstm"]
KINDS = [f"{name}_torchcompile" for name in KINDS]


# On tensors without data


def empty_storage(name, device="cpu"):
    fields, *_ = random_storage(name, T, N)
    return {key: torch.zeros_like(rows, device=device) for key, rows in fields.items()}


def call_act(name, network, storage, device="cpu"):
    """Actions for row 0 of the storage, by a call as in main."""
    module, row = load(name), {key: rows[0] for key, rows in storage.items()}
    if "lstm" in name:
        return module.act(network, row, *memory(name, T, N, device)[1])[0]
    if kind(name) == "atari" or "trxl" in name:
        return module.act(network, row)
    return module.act(network, *seen(name, row))


def batch_of(name, storage):
    """What a minibatch is taken from: rows, with an LSTM whole environments."""
    if "lstm" in name:
        return {key: rows[:T] for key, rows in storage.items()}
    return {key: rows[:T].flatten(0, 1) for key, rows in storage.items()}


@pytest.mark.parametrize("name", FAST)
def test_no_host_read_and_no_dynamic_shape(name, monkeypatch):
    """FakeTensorMode: shapes without data, the optimizer's step included."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda x: None)  # there is one rank
    module, like = load(name), empty_storage(name)
    with FakeTensorMode():
        storage = {key: torch.zeros(rows.shape, dtype=rows.dtype) for key, rows in like.items()}
        network = agent(name)
        assert call_act(name, network, storage).shape[0] == N
        adam = partial(torch.optim.Adam, fused=True, capturable=True)
        optimizer = adam(network.parameters(), lr=torch.tensor(1e-3))
        batch = batch_of(name, storage)
        args = module.Args(num_envs=N, num_steps=T, num_minibatches=2)
        b_inds = torch.zeros((2, N // 2 if "lstm" in name else T * N // 2), dtype=torch.int64)
        for _ in range(2):
            state = memory(name, T, N)[1]
            losses = module.train_epoch(network, optimizer, batch, *state, args, b_inds)
            assert losses.shape == (2, len(module.LOSSES))
        learned = [p for p in network.parameters() if p.requires_grad]
        assert all(p.grad.shape == p.shape for p in learned)


@pytest.mark.parametrize("name", FAST)
def test_no_copy_to_the_host(name, monkeypatch):
    """On the meta device, from which nothing can be copied: all but the optimizer's step."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda x: None)  # there is one rank
    module, storage = load(name), empty_storage(name, "meta")
    network = agent(name).to("meta")
    assert call_act(name, network, storage, "meta").device.type == "meta"
    mb_inds = torch.zeros(3, dtype=torch.int64, device="meta")
    batch, state = batch_of(name, storage), memory(name, T, N, "meta")[1]
    losses = module.compute_gradients(network, batch, *state, module.Args(), mb_inds)
    assert losses.device.type == "meta" and losses.shape == (len(module.LOSSES),)


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
    flags, edit = (["--cudagraphs"], on_a_cpu) if "atari" in name else ([], None)
    run = run_main(name, *TINY, *flags, runs_dir=tmp_path, edit=edit)
    for key in run.storage.keys() & run.batch.keys():
        assert run.batch[key].data_ptr() == run.storage[key].data_ptr()
    if "atari" in name:
        pairs = zip(run.agent.parameters(), run.agent_inference.parameters(), strict=True)
        for trained, used in pairs:
            assert trained is not used and used.grad is None
            assert trained.data_ptr() == used.data_ptr() and torch.equal(trained, used)


def loop_lines(name):
    """{number: line} of a script's loop, from its rollout to its log phase."""
    lines = (PPO / f"{name}.py").read_text().splitlines()
    first, last = lines.index("        # Rollout"), lines.index("        # Log")
    return {i + 1: lines[i] for i in range(first, last)}


@pytest.mark.parametrize("name", [eager for eager, _ in PAIRS])
def test_what_fetches_says_sync(name):
    """In the loop, each line that copies between host and device by name has its comment. In fast
    versions, which copy within the host's memory too, a GPU tells."""
    calls = ".cpu() .tolist() .item() from_numpy( .to(device) load_state_dict( .copy_(".split()
    found = [line for line in loop_lines(name).values() if any(call in line for call in calls)]
    assert len(found) >= 4
    for line in found:
        assert "sync" in line.partition("#")[2], line


# Main, watched


def fill(name, storage, seed):
    """Other random rows, in place, as main leaves them for an update near the policy that acted."""
    steps, envs = storage["values"].shape
    fields, *_ = random_storage(name, steps - 1, envs, seed, storage)
    rng = torch.Generator().manual_seed(seed)
    for key in ("advantages", "returns"):
        fields[key] = torch.randn((steps, envs), generator=rng)
    if kind(name) == "continuous":
        fields["logprobs"] += 1.4 + Normal(0, 1).log_prob(fields["actions"]).sum(-1)
    fields.pop("window", None)  # a view of memory
    for key, rows in fields.items():
        storage[key].copy_(rows)


def begins(main):
    """In iteration 3 nothing may be compiled anew: two calls compile all there is to compile. The
    checkpoint of iteration 3 is copied, to be resumed from."""
    main.setdefault("kept", [])
    main["target_kl"] = None
    main["stepped"] = []
    if main["iteration"] == 2 and main["args"].exp_name.endswith("torchcompile"):
        torch.compiler.set_stance("fail_on_recompile")
    run_dir = Path(main["run_dir"])
    if main["iteration"] == 4 and run_dir.parent.name == "whole":
        shutil.copytree(run_dir, run_dir.parent.parent / "half")


def has_stepped(main):
    """What the environments were told and what came back, as numbers on the host."""
    main["stepped"].append((main["action"].cpu().clone(), np.copy(main["next_obs"])))


def has_played(main):
    """The rows of the storage are what was seen, done and thought likely."""
    storage, steps = main["storage"], main["T"]
    actions = torch.stack([action for action, _ in main["stepped"]])
    assert torch.equal(storage["actions"][:steps].cpu(), actions)
    if main.get("replays"):
        assert main["next_row"].item() == steps
    if main["obs"] is not storage["obs"]:  # acting in NumPy, on a GPU
        assert torch.equal(main["obs"], storage["obs"].cpu())
    if storage["obs"].dtype == torch.uint8:
        told = torch.from_numpy(np.stack([next_obs for _, next_obs in main["stepped"]]))
        assert torch.equal(storage["obs"][1 : steps + 1].cpu(), told)
    elif "initial_lstm_state" not in main and "window" not in storage:
        return  # log-probabilities and values are still to come
    bound = 1e-3 if main.get("mode", "eager") in ("eager", "cudagraphs") else 1e-2
    bound = 1e-1 if "bfloat16" in main.get("mode", "eager") else bound
    state = [main["initial_lstm_state"]] if "initial_lstm_state" in main else []
    if main.get("numpy_acting"):  # in float32, not in TF32
        torch.set_float32_matmul_precision("highest")
    for step in range(steps):
        row = {key: rows[step] for key, rows in storage.items()}
        with torch.no_grad():
            given = [row["dones"]] if state else seen(main["args"].exp_name, row)[1:]
            probs, values, *after = main["agent"](row["obs"], *given, *state)
            state = after if state else []
            logprobs = probs.log_prob(row["actions"])
        torch.testing.assert_close(row["values"], values, rtol=bound, atol=bound)
        torch.testing.assert_close(row["logprobs"], logprobs, rtol=bound, atol=bound)
    torch.set_float32_matmul_precision("high")


def will_learn(main):
    """Rows that no run has influenced, a seed of their own for the permutations, and an update that
    ends after its first epoch (iteration 5) or by no means (iteration 6)."""
    iteration, storage = main["iteration"], main["storage"]
    fill(main["args"].exp_name, storage, seed=iteration)
    if "initial_lstm_state" in main:
        main["initial_lstm_state"].zero_()
    if "window" in storage:
        main["memory"][: main["L"]] = 0
    main["advantages"] = storage["advantages"][:-1].double().cpu().numpy()  # read with ranks
    main["target_kl"] = {5: 1e-12, 6: 1e12}.get(iteration)
    torch.manual_seed(iteration)


def has_learned(main):
    parameters = torch.cat([p.detach().flatten() for p in main["agent"].parameters()])
    main["kept"].append((torch.cat(main["losses"]).cpu(), parameters.cpu()))


HOOKS = {
    "# Rollout": "begins",
    "rewards[step] = ": "has_stepped",
    "# Advantages": "has_played",
    "# Update": "will_learn",
    "losses = torch.cat(losses)": "has_learned",
}


def watched(text, hooks=HOOKS):
    """A script whose main shows itself to these functions, before lines that begin like this."""
    for opens, hook in hooks.items():
        (line,) = [x.strip() for x in text.splitlines() if x.strip().startswith(opens)]
        quiet = f"__import__('test_capture').quietly('{hook}', globals())"
        text = insert(line, quiet)(text)
    # a flag that changes ends the replays
    text, count = re.subn(
        r"args\.target_kl( is not None and .*)args\.target_kl", r"target_kl\1target_kl", text
    )
    assert count == 1
    return text


def quietly(hook, main):
    """What a hook waits for is not the script's."""
    before = torch.cuda.get_sync_debug_mode() if torch.cuda.is_available() else 0
    if before:
        torch.cuda.set_sync_debug_mode("default")
    globals()[hook](main)
    if before:
        torch.cuda.set_sync_debug_mode(before)


def called(text):
    """A script that calls what it would capture."""
    text, count = re.subn(r"CudaGraphModule\((.+), warmup=3\)", r"\1", text)
    assert count == 1 + ("run_step = " in text) + ("rollout_replayed = " in text)
    return text


def on_a_cpu(text):
    """A script that takes the way of its CUDA graphs on a CPU, by calls."""
    text, count = re.subn(r"( cudagraphs = args\.cudagraphs) and .*", r"\1", called(text))
    assert count == 1
    text = text.replace(".pin_memory()", "")
    return text.replace("torch.cuda.current_stream().synchronize()", "pass")


def watch(name, *flags, runs_dir, edits=(), hooks=HOOKS, gpu=True):
    """A script's main, watched; its variables, and what of its loop waited: the lines of the script
    that were being run, those of functions first."""
    waited = set()
    if task(name) == "warp":  # a step is not in main
        hooks = {
            at: hook for at, hook in hooks.items() if hook not in ("has_stepped", "has_played")
        }

    def edit(text):
        for change in edits:
            text = change(text)
        return watched(text, hooks)

    def note(message, category, filename, lineno, file=None, line=None):
        assert "without a CUDA graph" not in str(message)
        if "called a synchronizing" in str(message):
            frame, lines = sys._getframe(), []
            while frame is not None:
                if Path(frame.f_code.co_filename).stem == name:
                    lines += [linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()]
                frame = frame.f_back
            waited.add("\n".join(lines))

    torch.compiler.reset()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = note
            run = run_main(name, *flags, runs_dir=runs_dir, edit=edit, gpu=gpu)
    finally:
        torch.compiler.set_stance("default")
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("default")
    return run, waited


def gradient_steps(run):
    (count,) = {float(state["step"]) for state in run.optimizer.state.values()}
    return int(count)


def assert_kept_is_equal(one, two, last=None):
    """Losses and parameters of each update, to the last bit."""
    kept = (one.kept[-last:], two.kept[-last:]) if last else (one.kept, two.kept)
    for i, (a, b) in enumerate(zip(*kept, strict=True)):
        assert a[0].isfinite().all()
        for what, x, y in zip(("losses", "parameters"), a, b, strict=True):
            assert torch.equal(x, y), f"{what} of update {i}"


def assert_resumes(name, whole, gpu, folder, edits=()):
    """Iterations 4 to 6 from a checkpoint equal those that followed in place, on the same rows."""
    resumed, _ = watch(name, "--resume", folder / "half", runs_dir="unused", edits=edits, gpu=gpu)
    assert (whole.first_iteration, resumed.first_iteration) == (1, 4)
    assert_kept_is_equal(whole, resumed, last=3)
    for key in ("agent", "adam", "rng"):
        found, expected = (tree_leaves(run.state[key]) for run in (resumed, whole))
        assert len(found) == len(expected) > 0
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), key
    assert gradient_steps(resumed) == gradient_steps(whole)


SIX = [*TINY[:-1], 96, "--checkpoint-interval", 3]
MODES = [(name, ["--cudagraphs"]) for name in FAST]
MODES += [(name, ["--cudagraphs", "--compile"]) for name in FAST]
MODES += [(ATARI, ["--cudagraphs", "--compile", "--bfloat16"])]


def by_mode(value):
    return "".join(value) if isinstance(value, list) else None


@pytest.mark.parametrize(
    ("name", "flags"), [pytest.param(*mode, marks=GPU) for mode in MODES], ids=by_mode
)
def test_captured_equals_called(name, flags, tmp_path):
    """Six iterations of main with CUDA graphs and with calls in their place, on the same new rows
    at new rates: equal bit for bit. Nothing is compiled anew from the second iteration on, in which
    the first epoch is captured; the loop waits where it says so; target_kl stops an update; and a
    run that is resumed, whose first three epochs are no replays, equals the one that went on.
    """
    waits = insert("# Rollout", 'iteration == 3 and torch.cuda.set_sync_debug_mode("warn")')
    quiet = insert("# Log", 'torch.cuda.set_sync_debug_mode("default")')
    whole, waited = watch(name, *SIX, *flags, runs_dir=tmp_path / "whole", edits=[waits, quiet])
    assert set(whole.mode.split("+")) == {flag.strip("-") for flag in flags}
    plain, _ = watch(name, *SIX, *flags, runs_dir=tmp_path / "plain", edits=[called])
    assert_kept_is_equal(plain, whole)
    assert len({float(losses[0, 1]) for losses, _ in whole.kept}) == 6, "rows are read anew"
    assert [len(losses) for losses, _ in whole.kept] == [4, 4, 4, 4, 2, 4], "target_kl"
    assert gradient_steps(whole) == 22
    assert getattr(whole, "replays", True), "steps to the end"
    lr = whole.optimizer.param_groups[0]["lr"]
    assert isinstance(lr, torch.Tensor) and lr.device.type == "cuda"
    assert float(lr) == pytest.approx(whole.args.learning_rate / 6)
    assert_waits(waited)
    if "--compile" not in flags:
        assert_resumes(name, whole, True, tmp_path)


def assert_waits(waited):
    assert waited, "the actions are fetched, at least"
    for lines in waited:
        assert any("sync" in line.partition("#")[2] for line in lines.split("\n")), lines


WITHOUT = [(eager, []) for eager, _ in PAIRS]
WITHOUT += [("ppo_torchcompile", ["--compile"]), (ATARI, ["--compile"])]


@pytest.mark.parametrize(
    ("name", "flags"), [pytest.param(*mode, marks=GPU) for mode in WITHOUT], ids=by_mode
)
def test_waits_only_where_it_says(name, flags, tmp_path):
    """PyTorch's own report of each call that waits for the GPU, without graphs."""
    waits = insert("# Rollout", 'iteration == 3 and torch.cuda.set_sync_debug_mode("warn")')
    quiet = insert("# Log", 'torch.cuda.set_sync_debug_mode("default")')
    run, waited = watch(name, *TINY, *flags, runs_dir=tmp_path, edits=[waits, quiet])
    assert run.device.type == "cuda" and getattr(run, "mode", "eager") == (
        "compile" if flags else "eager"
    )
    assert_waits(waited)


@pytest.mark.parametrize(("eager", "fast"), PAIRS)
def test_the_way_of_the_graphs_on_a_cpu(eager, fast, tmp_path):
    """Main with all that --cudagraphs asks for, but for the graphs: the eager script, bit for bit.

    Its rollouts are its own here, through to the end; learning rates are such as float32 holds.
    """
    hooks = {key: hook for key, hook in HOOKS.items() if hook != "will_learn"}
    flags = [*TINY[:-1], 64, "--learning-rate", LR]
    flags += (
        ["--env-id", "worlds:Worlds"] if task(eager) == "warp" else []
    )  # Warp needs a GPU's streams
    one, _ = watch(eager, *flags, runs_dir=tmp_path / "eager", hooks=hooks, gpu=False)
    flags += [
        "--cudagraphs",
        *(["--no-numpy-acting"] if kind(eager) != "atari" and "warp" not in eager else []),
    ]
    edits = [on_a_cpu]
    two, _ = watch(fast, *flags, runs_dir=tmp_path / "fast", edits=edits, hooks=hooks, gpu=False)
    assert two.mode == "cudagraphs" and isinstance(
        two.optimizer.param_groups[0]["lr"], torch.Tensor
    )
    assert_kept_is_equal(one, two)
    for key, rows in one.storage.items():
        assert torch.equal(rows, two.storage[key]), key


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_resumed_learner_on_a_cpu(name, tmp_path):
    """The way of the graphs, with calls in their place: resumed in iteration 4."""
    flags, edits = [*SIX, "--cudagraphs"], [on_a_cpu]
    whole, _ = watch(name, *flags, runs_dir=tmp_path / "whole", edits=edits, gpu=False)
    assert [len(losses) for losses, _ in whole.kept] == [4, 4, 4, 4, 2, 4]
    assert_resumes(name, whole, False, tmp_path, edits)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_nothing_is_compiled_anew_on_a_cpu(name, tmp_path):
    """From the second iteration on. Without Inductor's kernels, which take seconds; what is traced
    anew is the same."""

    def traced(text):
        text, count = re.subn(r"= torch\.compile\((\w+)\)", r"= torch.compile(\1, **TRACED)", text)
        assert count >= 1
        return text.replace("@dataclass\n", 'TRACED = {"backend": "aot_eager"}\n\n\n@dataclass\n')

    run, _ = watch(name, *TINY, "--compile", runs_dir=tmp_path, edits=[traced], gpu=False)
    assert run.mode == "compile" and len(run.kept) == 3
    if "compute_gradients" in vars(run) and hasattr(run.compute_gradients, "get_compiler_config"):
        with torch.compiler.set_stance("fail_on_recompile"):  # a check that can fail
            with pytest.raises(RuntimeError, match="fail_on_recompile"):
                run.compute_gradients(run.agent, run.batch, run.args, run.b_inds[0, 1:])


# Acting in one launch


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_replays_sample_and_write_their_row(device):
    """Each launch takes the observation from the host, draws other actions and fills the next row.

    Log-probabilities and values are those of the network at the actions that were drawn; weights
    that change are read anew.
    """
    name, cuda = ATARI, device == "cuda"
    module, games = load(name), 256 if cuda else 64
    torch.manual_seed(0)
    agent = module.Agent(spaces(name)).to(device)
    agent.actor.weight.data.mul_(100.0)  # probabilities far from equal
    actor = module.Agent(spaces(name)).to(device)
    from_module(agent).data.to_module(actor)
    storage = {
        "obs": torch.zeros((T + 1, games, 4, 84, 84), dtype=torch.uint8, device=device),
        "actions": torch.full((T + 1, games), -1, device=device),
        "logprobs": torch.zeros((T + 1, games), device=device),
        "values": torch.zeros((T + 1, games), device=device),
    }
    buffers = {key: rows[T].clone() for key, rows in storage.items()}
    next_row = torch.zeros(1, dtype=torch.int64, device=device)
    obs_host = torch.zeros((games, 4, 84, 84), dtype=torch.uint8)
    action_host = torch.zeros(games, dtype=torch.int64)
    if cuda:
        obs_host, action_host = obs_host.pin_memory(), action_host.pin_memory()
    static = actor, storage, buffers, next_row, obs_host, action_host
    run_step = partial(module.act_captured, *static)
    if cuda:
        run_step = CudaGraphModule(lambda: module.act_captured(*static), warmup=3)
    told = []
    for step in range(T):
        if step != T - 1:  # the last two launches see the same
            obs_host.random_(generator=torch.Generator().manual_seed(step))
        if step == T // 2:
            agent.critic.weight.data.mul_(-2)
            agent.actor.bias.data[1] += 1.0
        run_step()
        if cuda:
            torch.cuda.current_stream().synchronize()
        told.append(action_host.clone())
        assert next_row.item() == step + 1
        assert torch.equal(storage["obs"][step].cpu(), obs_host)
        with torch.no_grad():
            probs, values = agent(storage["obs"][step])
        logprobs = probs.log_prob(storage["actions"][step])
        torch.testing.assert_close(storage["values"][step], values, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(storage["logprobs"][step], logprobs, rtol=1e-4, atol=1e-4)
    told = torch.stack(told)
    assert torch.equal(storage["actions"].cpu()[:T], told)
    assert (storage["actions"][T] == -1).all() and (storage["values"][T] == 0).all()
    assert (told[T - 2] != told[T - 1]).float().mean() > 0.1, "two replays"
    with torch.no_grad():
        frequencies = torch.stack([agent(rows)[0].probs for rows in storage["obs"][T // 2 : T]])
    expected = frequencies.mean((0, 1)).cpu()
    assert expected.max() - expected.min() > 0.1
    found = told[T // 2 :].flatten().bincount(minlength=4) / (games * (T - T // 2))
    torch.testing.assert_close(found, expected, rtol=0, atol=0.05 if cuda else 0.1)
