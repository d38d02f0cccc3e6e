"""The life of a run: checkpoints, going on with one, signals, bad numbers, a full disk."""

import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial

import doors
import envpool
import gymnasium as gym
import numpy as np
import pytest
from helpers import (
    FAST,
    IN_TURN,
    ONE_PROCESS,
    PAIRS,
    PPO,
    TINY,
    insert,
    run_main,
    run_script,
    scalars,
    task,
)

import torch

classic = "gymnasium.envs.classic_control"
gym.register("Short-v0", f"{classic}:PendulumEnv", max_episode_steps=5)
gym.register("ShortDoors-v0", doors.Doors, max_episode_steps=5)
gym.register("ShortPole-v0", f"{classic}:CartPoleEnv", max_episode_steps=5)
SHORT = {
    "atari": [],
    "ale": [],
    "many": ["--env-id", "Pendulum-v1"],
    "continuous": ["--env-id", "Short-v0"],
    "masked": ["--env-id", "ShortDoors-v0"],
    "together": ["--env-id", "meadow", "--env-kwargs", '{"limit": 5}'],
    "": ["--env-id", "ShortPole-v0"],
}


@pytest.fixture(autouse=True)
def short_games(monkeypatch):
    """EnvPool's and ALE's games of 5 steps at most, like the pendulum's of Gymnasium."""
    monkeypatch.setattr(envpool, "make", partial(envpool.make, max_episode_steps=5))
    make_vec = partial(gym.make_vec, frameskip=8, max_num_frames_per_episode=36)
    monkeypatch.setattr(gym, "make_vec", make_vec)


def small(name):
    """Flags of a run that takes a second or less."""
    return [*TINY, *SHORT[task(name)]]


def checkpoint_of(folder):
    (path,) = folder.glob("*/checkpoint.pt")
    return torch.load(path, weights_only=True)


def assert_equal(a, b, where=""):
    """Two nests of tensors and plain values are the same, to the last bit."""
    assert type(a) is type(b), where
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_equal(a[key], b[key], f"{where}[{key!r}]")
    else:
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, where


def sigterm_in(iteration):
    return insert("# Advantages", f"if iteration == {iteration}: os.kill(os.getpid(), 15)")


NEW_GAMES = {  # what cannot be saved, the games, begins anew as in a run that goes on
    "atari": """
if iteration == 3:
    envs = make_envs(args, global_step)
    next_obs, info = envs.reset()
    obs[T] = torch.from_numpy(next_obs)
    lives, episode_returns, episode_lengths = info["lives"], np.zeros(N), np.zeros(N)
    host[:] = 0
""",
    "ale": """
if iteration == 3:
    seeds = np.random.SeedSequence([args.seed, global_step]).generate_state(N) >> 1
    next_obs, info = envs.reset(seed=seeds)
    obs[T] = torch.from_numpy(next_obs)
    frames, episode_returns, episode_lengths = info["episode_frame_number"], *np.zeros((2, N))
    host[:] = 0
""",
    "many": """
if iteration == 3:
    envs = make_envs(args, global_step)
    next_obs, _ = envs.reset()
    obs_rms.update(next_obs)
    obs[T] = torch.from_numpy(obs_rms.scale(next_obs - obs_rms.mean))
    episode_returns, episode_lengths, discounted = np.zeros((3, N))
    first_iteration, restarts = 3, restarts - first_iteration + 3
    host[:] = 0
""",
    "continuous": """
if iteration == 3:
    seeds = np.random.SeedSequence([args.seed, global_step]).generate_state(N).tolist()
    next_obs, _ = envs.reset(seed=seeds)
    obs_rms.update(next_obs)
    obs[T] = torch.from_numpy(obs_rms.scale(next_obs - obs_rms.mean))
    episode_returns, episode_lengths, discounted = np.zeros((3, N))
    host[:] = 0
""",
    "masked": """
if iteration == 3:
    seeds = np.random.SeedSequence([args.seed, global_step]).generate_state(N).tolist()
    next_obs, info = envs.reset(seed=seeds)
    obs[T], masks[T] = torch.from_numpy(next_obs), action_masks(envs, info)
    episode_returns, episode_lengths = np.zeros((2, N))
    host[:] = 0
""",
    "together": """
if iteration == 3:
    seeds = np.random.SeedSequence([args.seed, global_step]).generate_state(E).tolist()
    next_obs, absent = envs.reset(seed=seeds)
    obs[T] = torch.from_numpy(next_obs)
    episode_returns, episode_lengths = np.zeros((2, N))
    host[:] = 0
    host_dones[T] = absent
""",
    "": """
if iteration == 3:
    seeds = np.random.SeedSequence([args.seed, global_step]).generate_state(N).tolist()
    next_obs, _ = envs.reset(seed=seeds)
    obs[T] = torch.from_numpy(next_obs)
    episode_returns, episode_lengths = np.zeros((2, N))
    host[:] = 0
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_TURN)
def test_resumed_run_is_bit_exact(name, tmp_path, capsys):
    """SIGTERM in iteration 2, then 3 and 4 by both siblings: as if nothing had happened.

    Nothing of what is compared is touched: new games are all that the uninterrupted run is given.
    """
    flags = [*small(name), "--total-timesteps", 64]
    forget = "    ends[T], lstm_states[T] = 0, 0\n" if "lstm" in name else ""
    new_games = insert("# Rollout", NEW_GAMES[task(name)] + forget)
    run_main(name, *flags, runs_dir=tmp_path / "whole", edit=new_games)
    whole = checkpoint_of(tmp_path / "whole")
    curves = scalars(*(tmp_path / "whole").iterdir())
    del curves["charts/SPS"]
    with pytest.raises(SystemExit) as ended:
        run_main(name, *flags, runs_dir=tmp_path / "halves", edit=sigterm_in(2))
    assert ended.value.code == 143
    (run_dir,) = (tmp_path / "halves").iterdir()
    line = capsys.readouterr().out.splitlines()[-1]
    if name in ONE_PROCESS:
        assert line.startswith(f"to go on: {sys.executable} ") and f"{name}.py --resume" in line
    assert line.startswith("to go on: ") and line.endswith(f" --resume {run_dir}")
    half = checkpoint_of(tmp_path / "halves")
    assert half["global_step"] == 32 and not torch.equal(*(x["rng"]["cpu"] for x in (half, whole)))
    assert json.loads((run_dir / "summary.json").read_text())["global_step"] == 32

    for sibling in next(pair for pair in PAIRS if name in pair):
        copy = shutil.copytree(run_dir, tmp_path / sibling / run_dir.name)
        (events,) = copy.glob("events.*")  # read in the order of names: second, process, number
        events.rename(copy / "events.out.tfevents.0")
        run = run_main(sibling, "--resume", copy, runs_dir="unused")
        resumed = checkpoint_of(tmp_path / sibling)
        kept = whole.keys() - {"args"}
        assert_equal({k: resumed[k] for k in kept}, {k: whole[k] for k in kept}, sibling)
        found = scalars(copy)
        assert found == curves and len(found["charts/episodic_return"]) > 5
        lr = run.optimizer.param_groups[0]["lr"]
        assert isinstance(lr, torch.Tensor) == (sibling in FAST)
        assert lr == np.float32(run.args.learning_rate / 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_TURN)
def test_what_cannot_be_resumed_is_refused(name, tmp_path, capsys):
    """With status 2 and one message; what was there stays as it was."""
    run_main(name, *small(name), "--seed", 7, "--ent-coef", 0.25, runs_dir=tmp_path)
    (run_dir,) = tmp_path.iterdir()
    good = torch.load(run_dir / "checkpoint.pt", weights_only=True)
    files = sorted(os.listdir(run_dir))

    def refused(*flags):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run_main(name, "--resume", *flags, runs_dir="unused")
        assert ended.value.code == 2 and not os.path.exists("unused")
        program, _, message = capsys.readouterr().err.partition(": error: argument ")
        assert program == f"{name}.py", "no usage, which would be of --resume alone"
        assert message.count("\n") == 1 and message.endswith("\n")
        return message

    assert "--total-timesteps: the run has done 48, give 64 or more" in refused(run_dir)
    for nowhere in (tmp_path, tmp_path / "nothing"):
        assert f"in {nowhere} (FileNotFoundError" in refused(nowhere)
    assert "NotADirectory" in refused(run_dir / "checkpoint.pt")
    bad = tmp_path / "bad"
    bad.mkdir()
    whole = (run_dir / "checkpoint.pt").read_bytes()
    for damaged in (whole[:-1000], whole[: len(whole) // 2], b"", b"hello"):
        (bad / "checkpoint.pt").write_bytes(damaged)
        assert f"--resume: no checkpoint of {good['format']} in {bad}" in refused(bad)
    some = slice(1 if "atari" in name else None)  # a file of 20 MB each
    foreign = [{**good, "format": "ppo 1"}, {"model": 1}, [1, 2], random.Random(1)]
    for content in foreign[some]:
        torch.save(content, bad / "checkpoint.pt")
        assert f"--resume: no checkpoint of {good['format']} in {bad}" in refused(bad)

    def without(nest, key):
        return {k: v for k, v in nest.items() if k != key}

    key, weights = next(item for item in good["agent"].items() if "weight" in item[0])
    odd = [{**good, "agent": without(good["agent"], key)}, without(good, "adam")]
    odd += [{**good, "agent": {**good["agent"], key: weights[:, :-1]}}, without(good, "agent")]
    odd += [without(good, "obs_rms")] * ("obs_rms" in good)
    for content in odd[some]:
        torch.save(content, bad / "checkpoint.pt")
        with pytest.raises((KeyError, SystemExit)):  # which name what is missing or too large
            run_main(name, "--resume", bad, "--total-timesteps", 64, runs_dir="unused")
    torch.save({**good, "args": {**good["args"], "num_envs": 0}}, bad / "checkpoint.pt")
    assert "ValueError('--num-envs 0: give above 0')" in refused(bad)
    for key in ("args", "global_step")[some]:
        torch.save(without(good, key), bad / "checkpoint.pt")
        assert f"KeyError('{key}')" in refused(bad, "--total-timesteps", 64)
    assert os.listdir(bad) == ["checkpoint.pt"] and sorted(os.listdir(run_dir)) == files


def test_arguments_are_saved_and_can_be_changed(tmp_path):
    name = "ppo_continuous_action"
    run_main(name, *small(name), "--seed", 7, "--ent-coef", 0.25, runs_dir=tmp_path)
    (run_dir,) = tmp_path.iterdir()
    flags = ["--total-timesteps", 112, "--num-envs", 4, "--ent-coef", 0]
    run = run_main(name, "--resume", run_dir, *flags, runs_dir="unused")
    assert (run.args.seed, run.args.ent_coef, run.args.num_steps, run.N) == (7, 0, 8, 4)
    assert [run.first_iteration, run.iteration, run.global_step] == [2, 3, 112]
    assert run.summary["args"] == checkpoint_of(tmp_path)["args"]


def wait_for(process, until, cwd):
    """Goes on when that has come, and not if the process ends before."""
    deadline = time.monotonic() + 300
    while not until():
        assert process.poll() is None and time.monotonic() < deadline, (cwd / "err").read_text()
        time.sleep(0.05)


def start(name, *flags, cwd, until, **options):
    """A script as a process that runs on, from when that has come; it prints to two files."""
    command = [sys.executable, PPO / f"{name}.py", *flags, "--no-cuda"]
    with open(cwd / "out", "w") as out, open(cwd / "err", "w") as err:
        options |= {"cwd": cwd, "stdout": out, "stderr": err}
        process = subprocess.Popen(list(map(str, command)), **options)
    wait_for(process, until, cwd)
    return process


def printed(cwd, text):
    """Whether it stands in what a process has printed on stderr so far."""
    return lambda: text in (cwd / "err").read_text()


@pytest.mark.slow
def test_killed_interrupted_and_done(tmp_path):
    """kill -9 and --resume, SIGTERM, then the command that it printed."""
    name = "ppo"
    first = [*TINY, "--checkpoint-interval", 1, "--total-timesteps", 10**7]
    process = start(name, *first, cwd=tmp_path, until=lambda: [*tmp_path.glob("runs/*/*.pt")])
    time.sleep(random.random() / 2)
    process.kill()
    process.wait()
    (run_dir,) = (tmp_path / "runs").iterdir()
    (run_dir / "checkpoint.1-2.tmp").write_bytes(b"half of it")
    done = checkpoint_of(tmp_path / "runs")["global_step"]

    def moved():
        return checkpoint_of(tmp_path / "runs")["global_step"] > done > 0

    process = start(name, "--resume", run_dir, cwd=tmp_path, until=moved)
    time.sleep(random.random() / 2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 128 + signal.SIGTERM, (tmp_path / "err").read_text()
    line = (tmp_path / "out").read_text().splitlines()[-1]
    assert line == f"to go on: {sys.executable} {PPO / name}.py --resume {run_dir}"
    done = checkpoint_of(tmp_path / "runs")["global_step"]
    assert json.loads((run_dir / "summary.json").read_text())["global_step"] == done

    command = [*line.removeprefix("to go on: ").split(), "--total-timesteps", str(done + 64)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert [*(tmp_path / "runs").iterdir()] == [run_dir]
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["global_step"] == checkpoint_of(tmp_path / "runs")["global_step"] == done + 64
    left = {path.name for path in run_dir.glob("checkpoint.*") if path.suffix != ".tmp"}
    assert left == {"checkpoint.pt"}, "beside what was half written when the run was killed"
    steps = [step for step, _ in scalars(run_dir)["charts/learning_rate"]]
    assert steps == list(range(16, done + 65, 16))


@pytest.mark.slow
def test_a_second_signal_ends_at_once(tmp_path):
    """In a rollout of a million steps."""
    flags = ["--env-id", "Pendulum-v1", "--num-steps", 10**6]
    name, until = "ppo_continuous_action", printed(tmp_path, "step/s")
    process = start(name, *flags, cwd=tmp_path, until=until)
    process.send_signal(signal.SIGINT)
    wait_for(process, printed(tmp_path, "stopping after this iteration"), tmp_path)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(5) == -signal.SIGINT and not printed(tmp_path, "Traceback")()


def test_a_signal_in_the_last_iteration(tmp_path, capsys):
    """The run is complete: there is nothing to go on with."""
    name = "ppo_continuous_action"
    run = run_main(name, *small(name), runs_dir=tmp_path, edit=sigterm_in(3))
    assert run.stop_signals == [15] and checkpoint_of(tmp_path)["global_step"] == 48
    assert "to go on" not in capsys.readouterr().out


@pytest.mark.parametrize("name", IN_TURN)
def test_a_signal_while_the_bar_is_drawn(name, tmp_path, monkeypatch):
    """In the midst of a write to standard error, in which no other write can begin."""

    class Terminal(io.RawIOBase):
        def writable(self):
            return True

        def write(self, data):
            if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
                signal.raise_signal(signal.SIGTERM)
            return len(data)

    with io.TextIOWrapper(io.BufferedWriter(Terminal()), line_buffering=True) as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        draw = insert("# Advantages", "progress.refresh()")
        with pytest.raises(SystemExit) as ended:
            run_main(name, *small(name), runs_dir=tmp_path, edit=draw)
        monkeypatch.undo()
    assert ended.value.code == 143 and checkpoint_of(tmp_path)["global_step"] == 16


@pytest.mark.parametrize("name", IN_TURN)
def test_bad_numbers_stop_the_run(name, tmp_path, capsys):
    """With status 3, and with the checkpoint from before."""
    poison = insert("# Update", "if iteration == 3: storage['returns'][2] = torch.inf")
    with pytest.raises(SystemExit) as ended:
        run_main(name, *small(name), "--checkpoint-interval", 1, runs_dir=tmp_path, edit=poison)
    assert ended.value.code == 3
    last = capsys.readouterr().err.splitlines()[-1]
    said = "error: iteration 3 gave a loss that is not finite, by "
    assert last == f"{said}the network, or too large a number: observations and rewards are finite"
    checkpoint = checkpoint_of(tmp_path)
    assert checkpoint["global_step"] == 32
    assert all(value.isfinite().all() for value in checkpoint["agent"].values())
    (run_dir,) = tmp_path.iterdir()
    assert json.loads((run_dir / "summary.json").read_text())["global_step"] == 48
    assert [step for step, _ in scalars(run_dir)["losses/entropy"]] == [16, 32, 48]


@pytest.mark.parametrize("name", IN_TURN)
def test_a_checkpoint_that_cannot_be_written(name, tmp_path, monkeypatch):
    """The system's error comes through, and the checkpoint from before is whole."""
    full = insert(
        "# Log", 'if iteration == 3: os.symlink("/dev/full", f"{run_dir}/checkpoint.1-2.tmp")'
    )
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(time, "time_ns", lambda: 2)
    with pytest.raises(OSError, match="No space left on device"):
        run_main(name, *small(name), "--checkpoint-interval", 1, runs_dir=tmp_path, edit=full)
    assert checkpoint_of(tmp_path)["global_step"] == 32


@pytest.mark.slow
def test_a_full_disk(tmp_path):
    """A file system of 400 KB that fills up in iteration 3: curves and checkpoint fail."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        fill = f"""
if iteration == 3:
    os.system("head -c 1000000 /dev/zero > {disk}/fill")
"""
        script = tmp_path / "script.py"
        script.write_text(insert("# Rollout", fill)((PPO / "ppo_continuous_action.py").read_text()))
        flags = [*TINY, "--env-id", "Pendulum-v1", "--runs-dir", disk, "--checkpoint-interval", 1]
        ended = run_script(script, *flags, cwd=tmp_path)
        assert ended.returncode == 1 and "No space left on device" in ended.stderr
        assert checkpoint_of(disk)["global_step"] == 32
    finally:
        subprocess.run(["umount", disk], check=True)
