"""The data-parallel pair: several ranks compute what one process would, and end together."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial

import envpool
import pytest
import ranks
from helpers import PPO, ROOT, load, random_storage, run_main, scalars
from test_reference import ScriptedGames

import torch
import torch._dynamo

EAGER, FAST = "ppo_atari_envpool_multigpu", "ppo_atari_envpool_multigpu_torchcompile"
SMALL = "--num-envs 4 --num-steps 8 --num-minibatches 2 --update-epochs 2 --no-cuda".split()


def torchrun(count, script, *flags, cwd, before=()):
    """A started torchrun with `count` processes, of a script or of what `before` names."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", count, *before, script, *flags]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / x) for x in ("tests", "ppo"))}
    env |= {"OMP_NUM_THREADS": "1"}
    with open(cwd / "out", "w") as out, open(cwd / "err", "w") as err:
        return subprocess.Popen([*map(str, command)], cwd=cwd, env=env, stdout=out, stderr=err)


def ended(process, cwd, timeout=300):
    """Status, standard output and errors of a torchrun."""
    status = process.wait(timeout)
    return status, (cwd / "out").read_text(), (cwd / "err").read_text()


def apart(a, b):
    """|a - b| / |b|."""
    return float((a.double() - b.double()).norm() / b.double().norm())


def one_process(count):
    """Losses, gradients and parameters after each epoch by the parent, with all ranks' rows."""
    module = load("ppo_atari_envpool")
    batch, advantages, b_inds = ranks.rows(count)
    T, N = advantages.shape
    batch = {key: field.flatten(0, 1) for key, field in batch.items() if key != "weights"}
    batch["advantages"] = advantages.flatten().float()
    agent, optimizer = ranks.learner(module)
    gradients = partial(module.compute_gradients, agent, module.Args(), batch)
    mine = [x.flatten() for x in torch.arange(T * N).view(T, N).chunk(count, dim=1)]
    for orders in zip(*b_inds, strict=True):
        order = torch.cat([rows[x] for rows, x in zip(mine, orders, strict=True)], dim=1)
        losses = module.update(gradients, optimizer, order)
        yield losses, ranks.flat(agent, lambda p: p.grad), ranks.flat(agent, lambda p: p)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [(EAGER, 2), (FAST, 4)])
def test_ranks_compute_what_one_process_does(name, count, tmp_path):
    """Nine updates in three epochs on gloo, one minibatch without a valid row on one rank."""
    process = torchrun(count, ROOT / "tests" / "ranks.py", name, tmp_path / "x", cwd=tmp_path)
    status, _, err = ended(process, tmp_path)
    assert status == 0, err
    everyone = torch.load(tmp_path / "x", weights_only=True)
    for other in everyone[1:]:
        for a, b in zip(everyone[0], other, strict=True):
            assert all(map(torch.equal, a, b)), "the ranks have the same weights"
    start = ranks.flat(ranks.learner(load(EAGER))[0], lambda p: p)
    for found, expected in zip(everyone[0], one_process(count), strict=True):
        assert apart(found[0], expected[0]) < 1e-6, "losses"
        assert apart(found[1], expected[1]) < 1e-6, "gradients"
        assert apart(found[2] - start, expected[2] - start) < 1e-5, "parameters, of their way"
        assert expected[0][:, 5].max() > 0.01, "ratios are clipped"


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


def test_what_does_not_divide_is_refused(monkeypatch):
    module = load(EAGER)
    monkeypatch.setattr(module, "W", 2)
    assert module.Args(num_envs=6).batch_size == 768
    with pytest.raises(ValueError, match="--num-envs 3: give a multiple of 2"):
        module.Args(num_envs=3)
    with pytest.raises(ValueError, match="--num-minibatches 2: no divisor below .* 10 / 2 ranks"):
        module.Args(num_envs=2, num_steps=5, num_minibatches=2)


def test_more_processes_than_gpus(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(SystemExit) as stop:
        run_main(EAGER, runs_dir=tmp_path / "runs", gpu=True)
    assert stop.value.code == 2 and not (tmp_path / "runs").exists()
    assert "argument --cuda: 2 processes need as many GPUs" in capsys.readouterr().err


@pytest.mark.slow
def test_bad_input_is_said_once(tmp_path):
    """By one rank, and none is left."""
    script = PPO / f"{EAGER}.py"
    status, _, err = ended(torchrun(2, script, "--num-envs", 3, cwd=tmp_path), tmp_path)
    assert status != 0 and err.count("--num-envs 3: give a multiple of 2") == 1
    other = f'exec "{sys.executable}" "{script}" {" ".join(SMALL)} --seed $RANK'
    process = torchrun(2, "bash", "-c", other, cwd=tmp_path, before=["--no-python"])
    status, _, err = ended(process, tmp_path)
    assert status != 0 and err.count("the ranks were not given the same arguments") == 1
    assert not (tmp_path / "runs").exists()


def checkpoint(folder):
    (path,) = folder.glob("runs/*/checkpoint.pt")
    return torch.load(path, weights_only=True)


def start(folder, *flags):
    """Two ranks that train on, from when there is a checkpoint of theirs.

    Their games last 5 steps; rank 1 adds 1000 to a game's return, which tells whose it is.
    """
    script = folder / f"{EAGER}.py"
    text = (PPO / script.name).read_text()
    for old, new in (
        ('"num_threads": CORES', '"num_threads": CORES, "max_episode_steps": 5'),
        ("float(episode_returns[i])", "float(episode_returns[i]) + 1000 * RANK"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    script.write_text(text)
    saved = [*folder.glob("runs/*/checkpoint.pt")]
    before = checkpoint(folder)["global_step"] if saved else 0
    flags = [*flags, "--total-timesteps", 10**7, "--checkpoint-interval", 1]
    process = torchrun(2, script, *SMALL, *flags, cwd=folder)
    deadline = time.monotonic() + 300
    while not [*folder.glob("runs/*/*.pt")] or checkpoint(folder)["global_step"] <= before:
        assert process.poll() is None and time.monotonic() < deadline, (folder / "err").read_text()
        time.sleep(0.1)
    return process


@pytest.mark.slow
def test_ranks_end_together(tmp_path):
    """SIGTERM to torchrun; other ranks go on, of which one is killed; one process goes on."""
    process = start(tmp_path)
    process.send_signal(signal.SIGTERM)
    status, out, err = ended(process, tmp_path)
    assert status != 0 and "Traceback (most recent call last)" not in err.split("torch/distr")[0]
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert f"--resume {run_dir.relative_to(tmp_path)}" in out
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["global_step"] == checkpoint(tmp_path)["global_step"] > 0

    process = start(tmp_path, "--resume", run_dir)
    children = f"/proc/{process.pid}/task/{process.pid}/children"
    (second,) = (
        pid
        for pid in map(int, open(children).read().split())
        if b"LOCAL_RANK=1" in open(f"/proc/{pid}/environ", "rb").read().split(b"\0")
    )
    os.kill(second, signal.SIGKILL)
    killed = time.monotonic()
    status, _, err = ended(process, tmp_path)
    assert status != 0 and time.monotonic() - killed < 60
    assert "Signal 9 (SIGKILL)" in err, "torchrun names what has happened"
    done = checkpoint(tmp_path)
    assert {value >= 1000 for value in done["episodic_returns"]} == {False, True}, "of both ranks"
    run = run_main(
        EAGER, "--resume", run_dir, "--total-timesteps", done["global_step"] + 32, runs_dir="unused"
    )
    assert run.first_iteration == done["global_step"] // 32 + 1 == run.iteration
    assert run.episodic_returns[: len(done["episodic_returns"])] == done["episodic_returns"]


def test_one_graph_with_its_collective():
    """Loss, backward, all_reduce and clipping are traced into one graph."""
    module = load(FAST)
    storage, *_ = random_storage(FAST, 4, 2)
    batch = {key: rows[:-1].flatten(0, 1) for key, rows in storage.items()}
    agent, _ = ranks.learner(module)
    args = module.Args(norm_adv=False)
    expected = module.compute_gradients(agent, args, batch, torch.arange(8))
    one = ranks.flat(agent, lambda p: p.grad)
    agent.zero_grad()
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        gradients = torch.compile(module.compute_gradients, backend="aot_eager", fullgraph=True)
        losses = gradients(agent, args, batch, torch.arange(8))
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
    assert apart(ranks.flat(agent, lambda p: p.grad), one) < 1e-6
