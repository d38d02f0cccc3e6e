"""The data-parallel pair: several ranks compute what one process would, and end together."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import envpool
import numpy as np
import pytest
import ranks
from helpers import (
    PPO,
    TINY,
    checkpoint_of,
    insert,
    load,
    run_main,
    run_script,
    scalars,
    spaces,
    summary_of,
    wait_for,
)
from test_mutants import mutate
from test_reference import ScriptedGames

import torch
import torch.distributed as dist

EAGER, FAST = "ppo_atari_envpool_multigpu", "ppo_atari_envpool_multigpu_torchcompile"
ENDLESS = "--total-timesteps", 10**7, "--checkpoint-interval", 1
LOST = "Connection (closed|reset) by peer"  # what gloo says of a rank that is gone
SMALL = "--num-envs 4 --num-steps 8 --num-minibatches 2 --update-epochs 2 --no-cuda".split()


def torchrun(count, script, *flags, cwd, nodes=("--standalone",)):
    """A started torchrun with `count` processes."""
    command = [sys.executable, "-m", "torch.distributed.run", *nodes]
    command += ["--nproc-per-node", count, script, *flags]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    with open(cwd / "out", "w") as out, open(cwd / "err", "w") as err:
        return subprocess.Popen([*map(str, command)], cwd=cwd, env=env, stdout=out, stderr=err)


def finished(process, cwd, timeout=300):
    """Status, standard output and errors of a torchrun."""
    status = process.wait(timeout)
    return status, (cwd / "out").read_text(), (cwd / "err").read_text()


def apart(a, b):
    """|a - b| / |b|."""
    return float((a.double() - b.double()).norm() / b.double().norm())


def test_alone_it_is_its_parent(tmp_path, monkeypatch):
    """One process follows ppo_atari_envpool, through ends of all kinds; only rounding differs."""
    monkeypatch.setattr(envpool, "make", ScriptedGames)
    flags = "--num-envs 4 --num-steps 8 --num-minibatches 2 --total-timesteps 160".split()
    runs = [run_main(name, *flags, runs_dir=tmp_path) for name in ("ppo_atari_envpool", EAGER)]
    parent, alone = (scalars(run.run_dir) for run in runs)
    assert parent.keys() == alone.keys() and len(parent["charts/episodic_return"]) > 5
    for tag in parent.keys() - {"charts/SPS"}:
        for (step, value), (found_step, found) in zip(parent[tag], alone[tag], strict=True):
            assert (step, value) == (found_step, pytest.approx(found, rel=1e-3, abs=1e-5)), tag


@pytest.mark.parametrize("name", [EAGER, FAST])
@pytest.mark.parametrize(("gpu", "named"), [(False, "gloo"), (True, "cpu:gloo,cuda:nccl")])
def test_backends_are_named(name, gpu, named, tmp_path, monkeypatch):
    """Unnamed, PyTorch makes the group of the device that it finds, and no tensor of another can be
    gathered: on a machine with a GPU none of the CPU. Nothing is made here."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    init = mock.Mock(side_effect=[InterruptedError, None])
    with mock.patch.object(dist, "init_process_group", init), pytest.raises(InterruptedError):
        run_main(name, runs_dir=tmp_path, gpu=gpu)
    assert init.call_args_list[0].args == (named,)


@pytest.mark.parametrize("flags", [(), ("--num-envs", 3, "--num-minibatches", 6)])
def test_shares_that_are_not_equal(flags, tmp_path, monkeypatch):
    """Are refused by each rank before it meets the others: of games, of a minibatch's rows."""
    for variable, value in {"RANK": 1, "LOCAL_RANK": 1, "WORLD_SIZE": 3}.items():
        monkeypatch.setenv(variable, str(value))
    with pytest.raises(SystemExit) as stop:
        run_main(EAGER, *SMALL, *flags, runs_dir=tmp_path / "runs")
    assert "3 ranks must have equal shares of --num-envs" in stop.value.code  # a message: status 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_ranks_that_differ(tmp_path):
    """Are refused, by a message and without a run's folder."""
    flags = [*SMALL, "--seed", lambda rank: rank]
    processes = ranks.together(2, PPO / f"{EAGER}.py", *flags, cwd=tmp_path)
    status, _, err = ranks.ended(processes, tmp_path)
    assert status == [1, 1]
    assert err == ["the ranks have different arguments, checkpoints or devices\n"] * 2
    assert not (tmp_path / "runs").exists()


def checkpoint(folder):
    return checkpoint_of(folder / "runs")


def saved_step(folder):
    """That of the checkpoint, 0 if there is none."""
    return checkpoint(folder)["global_step"] if [*folder.glob("runs/*/*.pt")] else 0


def edited(folder, *changes):
    """A copy of the script whose games last 5 steps, with more of its text changed."""
    script = folder / f"{EAGER}.py"
    short = "seeds.tolist()}", 'seeds.tolist(), "max_episode_steps": 5}'
    script.write_text(mutate((PPO / script.name).read_text(), [short, *changes]))
    return script


def start(folder, launch, *flags):
    """Two ranks that train on, from when there are two checkpoints of theirs: both catch signals.

    Rank 1 adds 1000 to a game's return, which tells whose it is.
    """
    whose = "float(running_returns[i])", "float(running_returns[i]) + 1000 * RANK"
    script = edited(folder, whose)
    before = saved_step(folder)
    started = launch(2, script, *SMALL, *flags, *ENDLESS, cwd=folder)
    wait_for(lambda: saved_step(folder) > before + 32, 300)
    return started


@pytest.mark.slow
def test_ranks_end_together(tmp_path):
    """SIGTERM to one rank, which says all it knows to the others; SIGTERM to torchrun; kill -9 of a
    rank; then one process goes on."""

    def assert_stopped():
        (run_dir,), summary = (tmp_path / "runs").iterdir(), summary_of(tmp_path / "runs")
        assert summary["global_step"] == checkpoint(tmp_path)["global_step"] > 0
        assert not summary["complete"] and summary["args"]["total_timesteps"] == 10**7
        return run_dir

    processes = start(tmp_path, ranks.together)
    os.kill(processes[1].pid, signal.SIGTERM)
    status, out, err = ranks.ended(processes, tmp_path)
    assert status == [128 + signal.SIGTERM, 0] and "Traceback" not in "".join(err)
    assert len(out[0].splitlines()) == 2 and not out[1], "rank 0 prints for all"
    flags = ["--resume", assert_stopped().relative_to(tmp_path)]

    process = start(tmp_path, torchrun, *flags)
    process.terminate()
    status, out, err = finished(process, tmp_path)
    assert status != 0 and f'{EAGER}.py", line' not in err, "no traceback"
    assert len(out.splitlines()) == 2
    run_dir = assert_stopped()

    processes = start(tmp_path, ranks.together, *flags)
    processes[1].kill()
    status, _, err = ranks.ended(processes, tmp_path, timeout=60)
    assert status[0] not in (None, 0) and re.search(LOST, err[0]), err[0]
    done = checkpoint(tmp_path)
    assert {value >= 1000 for value in done["episodic_returns"]} == {False, True}, "of both ranks"
    more = ["--resume", run_dir, "--total-timesteps", done["global_step"] + 32]
    run = run_main(EAGER, *more, runs_dir="unused")
    assert run.first_iteration == done["global_step"] // 32 + 1 == run.iteration
    assert run.episodic_returns[: len(done["episodic_returns"])] == done["episodic_returns"]
    # three ranks, which have no equal shares of the old flags' games, but have of the new ones'
    more = [*more[:2], "--num-envs", 9, "--num-minibatches", 3]
    more += ["--total-timesteps", checkpoint(tmp_path)["global_step"] + 200, "--no-cuda"]
    processes = ranks.together(3, PPO / f"{EAGER}.py", *more, cwd=tmp_path)
    status, _, err = ranks.ended(processes, tmp_path)
    assert status == [0, 0, 0] and checkpoint(tmp_path)["args"]["num_envs"] == 9, err


# what three ranks keep of their first update, before these lines
KEEPS = {
    "# the same first weights on all ranks and machines, then random numbers of each one's own": """
agent.actor.weight.data.mul_(100.0 + RANK)
""",
    "# Update": """
def flat(of):
    return torch.cat([of(x).detach().flatten() for x in agent.parameters()])
kept = {"start": flat(lambda x: x), "epochs": [], "seeds": seeds.tolist()}
kept["rng"] = torch.get_rng_state()
""",
    "weigh(batch, raw_advantages, b_inds, args.norm_adv)": """
if RANK == W - 1 and not kept["epochs"]:
    batch["valid"][b_inds[0]] = 0.0
kept["epochs"].append([b_inds])
""",
    'approx_kl = losses[-1][:, LOSSES.index("approx_kl")].mean()': """
kept["epochs"][-1] += [losses[-1], flat(lambda x: x.grad), flat(lambda x: x)]
""",
    "# Checkpoint": """
kept |= {key: rows.clone() for key, rows in batch.items()}
kept |= {"advantages": raw_advantages.float(), "losses": losses, "was_valid": valid.tolist()}
torch.save(kept | {"explained": float(explained_var)}, f"rank{RANK}.pt")
""",
}


@pytest.mark.slow
def test_ranks_compute_what_one_process_does(tmp_path):
    """What three ranks drew and kept, taken together, makes the parent's update, to 1e-6: nine
    minibatches, the first of them without a valid row on one rank; and its losses.

    Later gradients differ by what rounding has done to the parameters. Ranks draw first weights of
    their own, and drop them for those of rank 0.
    """
    script = edited(tmp_path)
    for line, lines in KEEPS.items():
        script.write_text(insert(line, lines)(script.read_text()))
    flags = "--num-envs 9 --num-steps 8 --num-minibatches 3 --update-epochs 3 --no-cuda".split()
    flags += ["--total-timesteps", 72, "--clip-coef", 0.01]
    status, _, err = ranks.ended(ranks.together(3, script, *flags, cwd=tmp_path), tmp_path)
    assert status == [0] * 3, err
    kept = [torch.load(tmp_path / f"rank{i}.pt", weights_only=True) for i in range(3)]
    assert len({seed for one in kept for seed in one["seeds"]}) == 9
    for one, two in ((0, 1), (0, 2), (1, 2)):
        one, two = kept[one], kept[two]
        assert not torch.equal(one["rng"], two["rng"])
        assert torch.equal(one["start"], two["start"])
        assert one["losses"] == two["losses"] and one["explained"] == two["explained"]
        for (order, *found), (other, *same) in zip(one["epochs"], two["epochs"], strict=True):
            assert not torch.equal(order, other) and all(map(torch.equal, found, same))

    module = load("ppo_atari_envpool")
    names = "obs actions logprobs values returns valid advantages".split()
    batch = {name: torch.cat([one[name] for one in kept]) for name in names}
    last, (order, *_) = kept[-1]["valid"], kept[-1]["epochs"][0]
    assert 0 < batch["valid"].sum() < 72 and last.any() and not last[order[0]].any()
    agent, args, losses = module.Agent(spaces("atari")), module.Args(clip_coef=0.01), []
    torch.nn.utils.vector_to_parameters(kept[0]["start"].clone(), agent.parameters())
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5, fused=True)
    for epochs in zip(*(one["epochs"] for one in kept), strict=True):
        order = torch.cat([rows + 24 * i for i, (rows, *_) in enumerate(epochs)], dim=1)
        losses.append(module.train_epoch(agent, optimizer, batch, args, order))
        _, found, gradient, parameters = epochs[0]
        now = [torch.cat([x.grad.flatten() for x in agent.parameters()])]
        now.append(torch.nn.utils.parameters_to_vector(agent.parameters()).detach())
        assert apart(found, losses[-1]) < 1e-6 and apart(parameters, now[1]) < 1e-6
        assert apart(gradient, now[0]) < (1e-4 if losses[1:] else 1e-6)
        assert losses[-1][:, 5].max() > 0.01, "ratios are clipped"
    torch.testing.assert_close(torch.tensor(kept[0]["losses"]), torch.cat(losses).mean(0))
    way, expected = (x - kept[0]["start"] for x in (parameters, now[1]))
    assert apart(way, expected) < 1e-3, "of their way"
    valid = torch.cat([torch.tensor(one["was_valid"]).flatten() for one in kept])
    returns, values = (batch[key][valid].numpy() for key in ("returns", "values"))
    explained = 1 - np.var(returns - values) / np.var(returns)
    assert kept[0]["explained"] == pytest.approx(explained, rel=1e-4)


GRAPHS = """
import weakref
class CudaGraphModule:
    def __init__(self, module, warmup):
        self.module = module
        if "inputs" in module.__code__.co_varnames:
            weakref.finalize(self, os.write, 1, b"graph gone\\n").atexit = False
    def __call__(self, *args):
        return self.module(*args)
atexit.register(os.write, 1, b"exit goes on\\n")
def threads():
    names = [open(f"/proc/self/task/{x}/comm").read() for x in os.listdir("/proc/self/task")]
    os.write(1, f"{sum('gloo' in name for name in names) > 0} threads of gloo\\n".encode())
def destroy(function=dist.destroy_process_group):
    threads()
    os.write(1, b"group ends\\n")
    function()
    threads()
dist.destroy_process_group = destroy
"""


@pytest.mark.slow
@pytest.mark.parametrize("error", [False, True])
def test_the_graph_goes_before_the_group(error, tmp_path):
    """On a CPU, with a module that captures nothing: that of the epochs is gone before the group
    ends, and after an error before what was registered first runs at exit. No thread of gloo's is
    left when Python ends: one that frees a tensor then would abort the process."""
    text = (PPO / f"{FAST}.py").read_text()
    text, count = re.subn(r"( cudagraphs = args\.cudagraphs) and .*", r"\1", text)
    assert count == 1 and "from tensordict.nn import CudaGraphModule\n" in text
    text = text.replace("from tensordict.nn import CudaGraphModule\n", GRAPHS)
    text = text.replace(".pin_memory()", "")
    text = text.replace("torch.cuda.current_stream().synchronize()", "pass")
    if error:
        text = insert("# Advantages", "raise ValueError")(text)
    path = tmp_path / "script.py"
    path.write_text(text)
    done = run_script(path, *TINY, "--cudagraphs", "--env-id", "Pong-v5", cwd=tmp_path)
    assert done.returncode == error, done.stderr
    events = ["graph gone", "True threads of gloo", "group ends", "False threads of gloo"]
    events = [*events[: 1 if error else 4], "exit goes on"]
    assert [line for line in done.stdout.splitlines() if line in events] == events, done.stdout


@pytest.mark.slow
def test_two_machines(tmp_path):
    """A torchrun each, here on one machine. SIGTERM to the second ends both, with a checkpoint;
    nothing is written there. When it is killed, the other ends and says so."""
    a, b = folders = [tmp_path / "a", tmp_path / "b"]

    def begin(more):
        started = []
        for rank, folder in enumerate(folders):
            folder.mkdir(exist_ok=True)
            nodes = ["--nnodes", 2, "--node-rank", rank, "--master-addr", "127.0.0.1"]
            nodes += ["--master-port", 29501 + os.getpid() % 1000]
            words = [PPO / f"{EAGER}.py", *SMALL, *ENDLESS]
            started.append(torchrun(1, *words, cwd=folder, nodes=nodes))
        wait_for(lambda: saved_step(a) > more, 300)
        return started

    started = begin(0)
    started[1].terminate()
    ends = [finished(x, folder, 60) for x, folder in zip(started, folders, strict=True)]
    assert [status for status, *_ in ends] == [1, 1], ends
    assert "stopping after this iteration" in ends[1][2] and not (b / "runs").exists()
    assert not summary_of(a / "runs")["complete"]
    assert summary_of(a / "runs")["global_step"] == saved_step(a)

    shutil.rmtree(a / "runs")
    process, other = begin(32)
    for child in map(int, Path(f"/proc/{other.pid}/task/{other.pid}/children").read_text().split()):
        os.kill(child, signal.SIGKILL)
    other.kill()
    status, _, err = finished(process, a, 60)
    assert status != 0 and re.search(LOST, err), err
