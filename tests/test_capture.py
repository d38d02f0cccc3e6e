"""CUDA graphs do what the calls do. With a GPU: main captured against main called, what is compiled
anew, and where the loop waits. Without one, test_device simulates it; here main takes the way of
its graphs, with the functions called in their place.
"""

import linecache
import re
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from helpers import FAST, PAIRS, PPO, TINY, insert, kind, run_main, task

import torch
from torch.distributions import Normal
from torch.utils._pytree import tree_leaves

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
ATARI = "ppo_atari_envpool_torchcompile"
# one of each network, of which others have the text
KINDS = ["ppo", "ppo_lstm", "ppo_trxl", "ppo_rnd", "ppo_continuous_action"]
KINDS += ["ppo_atari_envpool", "ppo_atari_envpool_lstm"]
KINDS = [f"{name}_torchcompile" for name in KINDS]


def loop_lines(name):
    """{number: line} of a script's loop, from its rollout to its log phase."""
    lines = (PPO / f"{name}.py").read_text().splitlines()
    first, last = lines.index("        # Rollout"), lines.index("        # Log")
    return {i + 1: lines[i] for i in range(first, last)}


# Main, watched


def fill(name, main, seed):
    """Other random rows, in place, as main leaves them for an update near the policy that acted,
    and what else a rollout has left."""
    storage, rng = main["storage"], torch.Generator().manual_seed(seed)
    choices = int(getattr(main["envs"].single_action_space, "n", 0))
    fields = {key: torch.randn(rows.shape, generator=rng) for key, rows in storage.items()}
    for key, high in {"obs": 256, "actions": choices, "ages": 99}.items():
        if key in storage and not storage[key].is_floating_point():
            fields[key] = torch.randint(high, storage[key].shape, generator=rng)
    dones = (torch.rand(fields["values"].shape, generator=rng) < 0.2).float()
    continuous = kind(name) == "continuous"
    likely = Normal(0, 1).log_prob(fields["actions"]).sum(-1) if continuous else -np.log(choices)
    fields["logprobs"] = likely + 0.1 * fields["logprobs"]
    weights = (1 - dones) / (1 - dones).sum().clamp(min=1)
    trains = (fields["int_values"] < -0.7).float() if "trains" in fields else None
    flags = {"dones": dones, "valid": 1 - dones, "weights": weights, "trains": trains}
    fields |= {key: x for key, x in flags.items() if key in fields}
    if "masked" in name:  # what was done was possible; at an end nothing is
        possible = fields["obs"][..., -choices:] > 0
        possible |= torch.nn.functional.one_hot(fields["actions"], choices).bool()
        fields["obs"][..., -choices:] = possible & (dones == 0).unsqueeze(-1)
    if fields.pop("window", None) is not None:  # a view of it
        main["memory"].copy_(torch.randn(main["memory"].shape, generator=rng))
    if "initial_lstm_state" in main:
        main["initial_lstm_state"].zero_()
    for name, buffer in main["agent"].named_buffers():  # statistics of what was played
        buffer.fill_(0.0 if name.endswith("mean") else 1.0)
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
    storage, steps, agent = main["storage"], main["T"], main["agent"]
    actions = torch.stack([action for action, _ in main["stepped"]])
    assert torch.equal(storage["actions"][:steps].cpu(), actions)
    assert actions.unique(dim=0).shape[0] > 1, "a replay draws anew"
    told = torch.from_numpy(np.stack([next_obs for _, next_obs in main["stepped"]]))
    assert torch.equal(storage["obs"][1 : steps + 1].cpu(), told.to(storage["obs"].dtype))
    if "next_row" in main:
        assert main["next_row"].item() == steps
    if storage["obs"].dtype != torch.uint8 and not {"dones", "ages"} & storage.keys():
        return  # log-probabilities and values are still to come
    bound = 1e-2 if getattr(main["args"], "compile", False) else 1e-3
    bound = 1e-1 if getattr(main["args"], "bfloat16", False) else bound
    state = main.get("initial_lstm_state")
    for step in range(steps):
        row = {key: rows[step] for key, rows in storage.items()}
        memory = (
            [state] if "dones" in row else [row[key] for key in ("window", "ages") if key in row]
        )
        with torch.no_grad():
            probs, values, *after = agent(row["obs"], *memory)
        if "dones" in row:
            state = after[0] * (1 - row["dones"]).unsqueeze(1)
        logprobs = probs.log_prob(row["actions"])
        torch.testing.assert_close(row["values"], values, rtol=bound, atol=bound)
        torch.testing.assert_close(row["logprobs"], logprobs, rtol=bound, atol=bound)


def will_learn(main):
    """Rows that no run has influenced, a seed of their own for the permutations, and an update that
    ends after its first epoch (iteration 5) or by no means (iteration 6)."""
    iteration, storage = main["iteration"], main["storage"]
    fill(main["args"].exp_name, main, seed=iteration)
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
    assert count == 1
    return text


def on_a_cpu(text):
    """A script that takes the way of its CUDA graphs on a CPU, by calls."""
    text, count = re.subn(r"( cudagraphs = args\.cudagraphs) and .*", r"\1", called(text))
    assert count == 1
    text = text.replace(".pin_memory()", "")
    return text.replace("torch.cuda.current_stream().synchronize()", "pass")


def watch(name, *flags, runs_dir, edits=(), gpu=True):
    """A script's main, watched; its variables, and what of its loop waited: the lines of the script
    that were being run, those of functions first."""
    waited, hooks = set(), HOOKS
    if task(name) == "warp":  # a step is not in main
        hooks = {at: x for at, x in HOOKS.items() if x not in ("has_stepped", "has_played")}

    def edit(text):
        for change in edits:
            text = change(text)
        return watched(text, hooks)

    def note(message, category, filename, lineno, file=None, line=None):
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
    (count,) = {float(state["step"]) for state in run.optimizer.state.values() if state}
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
    names = {name for name, x in whole.agent.named_parameters() if x.requires_grad}
    assert {name for name, moments in whole.state["adam"].items() if moments} == names
    for key in ("agent", "adam", "rng"):
        found, expected = (tree_leaves(run.state[key]) for run in (resumed, whole))
        assert len(found) == len(expected) > 0
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), key
    assert gradient_steps(resumed) == gradient_steps(whole)


SIX = [*TINY[:-1], 96, "--checkpoint-interval", 3]
MODES = [(name, ["--cudagraphs"]) for name in FAST]
MODES += [(name, ["--cudagraphs", "--compile"]) for name in KINDS]
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
    assert whole.cudagraphs
    plain, _ = watch(name, *SIX, *flags, runs_dir=tmp_path / "plain", edits=[called])
    assert_kept_is_equal(plain, whole)
    assert len({float(losses[0, 1]) for losses, _ in whole.kept}) == 6, "rows are read anew"
    assert [len(losses) for losses, _ in whole.kept] == [4, 4, 4, 4, 2, 4], "target_kl"
    assert gradient_steps(whole) == 22
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


WITHOUT = [(eager, []) for eager, _ in PAIRS] + [(x, ["--compile"]) for x in (KINDS[0], ATARI)]


@pytest.mark.parametrize(
    ("name", "flags"), [pytest.param(*mode, marks=GPU) for mode in WITHOUT], ids=by_mode
)
def test_waits_only_where_it_says(name, flags, tmp_path):
    """PyTorch's own report of each call that waits for the GPU, without graphs."""
    waits = insert("# Rollout", 'iteration == 3 and torch.cuda.set_sync_debug_mode("warn")')
    quiet = insert("# Log", 'torch.cuda.set_sync_debug_mode("default")')
    run, waited = watch(name, *TINY, *flags, runs_dir=tmp_path, edits=[waits, quiet])
    assert run.device.type == "cuda" and not getattr(run, "cudagraphs", False)
    assert_waits(waited)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo_continuous_action", "ppo_trxl", "ppo_atari_envpool_lstm"])
def test_resumed_learner_on_a_cpu(name, tmp_path):
    """The way of the graphs, with calls in their place: resumed in iteration 4; with statistics,
    with a window, with a captured step that has a memory."""
    name = f"{name}_torchcompile"
    flags, edits = [*SIX, "--cudagraphs"], [on_a_cpu]
    whole, _ = watch(name, *flags, runs_dir=tmp_path / "whole", edits=edits, gpu=False)
    assert whole.cudagraphs
    assert [len(losses) for losses, _ in whole.kept] == [4, 4, 4, 4, 2, 4]
    assert_resumes(name, whole, False, tmp_path, edits)
