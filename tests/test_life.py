"""The life of a run: checkpoints, going on with one, interrupts, bad numbers, a full disk."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest
from helpers import FAST, PAIRS, PPO, SCRIPTS, TINY, load, run_main, run_script, scalars

import torch

EXACT = ["--learning-rate", 2**-12, "--no-anneal-lr"]  # what float32 holds exactly
SMALL = {  # quick to start, with a rollout of a second or less
    "ppo_atari_envpool": TINY,
    "ppo_continuous_action": [*TINY, "--env-id", "Pendulum-v1"],
}


def small(name):
    return SMALL[name.removesuffix("_torchcompile")]


def interrupt_at(iteration):
    """Edits a script so that SIGTERM comes in this iteration's rollout."""

    def edit(text):
        line = "        act(steps[T])" if "act(steps[T])" in text else "        act(T)"
        line = line if line in text else "        evaluate()"
        assert text.count(line) == 1
        kill = f"        if iteration == {iteration}:\n            os.kill(os.getpid(), 15)\n"
        return text.replace(line, kill + line)

    return edit


def same_batch_in(iteration):
    """Edits a script so that this iteration learns from the same rows in every run."""

    def edit(text):
        (mark,) = [line for line in text.splitlines() if line == "        # Update"]
        fill = f"""        if iteration == {iteration}:
            rng = torch.Generator().manual_seed(5)
            for key, rows in sorted(storage.items()):
                new = torch.rand(rows.shape, generator=rng) * (3 if key == "actions" else 1)
                rows.copy_(new.ceil() if key == "valid" else new)
"""
        return text.replace(mark, fill + mark)

    return edit


def checkpoint_of(folder):
    (path,) = folder.glob("*/checkpoint.pt")
    return torch.load(path, weights_only=True)


def equal(a, b):
    """Whether two nests of tensors and plain values are the same, to the last bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("name", SCRIPTS)
def test_resumed_learner_is_bit_exact(name, tmp_path, capsys):
    """SIGTERM in iteration 3, then iteration 4 by both siblings: as if nothing had happened."""
    flags = [*small(name), *EXACT, "--total-timesteps", 64]
    run_main(name, *flags, runs_dir=tmp_path / "whole", edit=same_batch_in(4))
    whole = checkpoint_of(tmp_path / "whole")
    with pytest.raises(SystemExit) as ended:
        run_main(name, *flags, runs_dir=tmp_path / "halves", edit=interrupt_at(3))
    assert ended.value.code == 143
    (run_dir,) = (tmp_path / "halves").iterdir()
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("to go on: ") and line.endswith(f" --resume {run_dir}")
    assert checkpoint_of(tmp_path / "halves")["global_step"] == 48
    assert json.loads((run_dir / "summary.json").read_text())["global_step"] == 48

    (pair,) = [pair for pair in PAIRS if name in pair]
    for i, sibling in enumerate(pair):
        copy = tmp_path / str(i) / run_dir.name
        shutil.copytree(run_dir, copy)
        run_main(sibling, "--resume", copy, runs_dir="unused", edit=same_batch_in(4))
        resumed = checkpoint_of(tmp_path / str(i))
        assert (resumed["iteration"], resumed["global_step"]) == (4, 64)
        assert equal(resumed["agent"], whole["agent"]), sibling
        assert equal(resumed["optimizer"]["state"], whole["optimizer"]["state"]), sibling
        assert equal(resumed["random"], whole["random"]), sibling
        if i == 0:
            assert not equal(checkpoint_of(tmp_path / "halves")["agent"], resumed["agent"])


@pytest.mark.slow
@pytest.mark.parametrize("name", FAST)
def test_eager_goes_on_with_compiled_and_back(name, tmp_path):
    """Memory layouts and settings are each file's own; weights and moments are the checkpoint's."""
    eager = name.removesuffix("_torchcompile")
    run_main(name, *small(name), "--compile", runs_dir=tmp_path)
    (run_dir,) = tmp_path.iterdir()
    before = checkpoint_of(tmp_path)
    for script, flags, total in ((eager, [], 64), (name, ["--compile"], 80)):

        def edit(text):
            return text.replace("    for iteration in range(", "    loaded = {}\n" + look(), 1)

        def look():
            return (
                '    loaded["agent"] = {k: v.clone() for k, v in agent.state_dict().items()}\n'
                '    loaded["moments"] = [(p, m["exp_avg"]) for p, m in optimizer.state.items()]\n'
                "    for iteration in range("
            )

        run = run_main(
            script, "--resume", run_dir, "--total-timesteps", total, *flags,
            runs_dir="unused", edit=edit,
        )  # fmt: skip
        assert equal(run.loaded["agent"], before["agent"])
        for i, (parameter, moment) in enumerate(run.loaded["moments"]):
            assert moment.stride() == parameter.stride(), i
        before = checkpoint_of(tmp_path)
        assert before["global_step"] == total and before["args"]["total_timesteps"] == total
    lr = run.optimizer.param_groups[0]["lr"]
    assert isinstance(lr, torch.Tensor)


def read_args(name, *flags, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name, *map(str, flags)])
    return load(name).read_args()


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_cannot_be_resumed_is_refused(name, tmp_path, capsys, monkeypatch):
    module = load(name)
    run_main(name, *small(name), "--seed", 7, "--ent-coef", 0.25, runs_dir=tmp_path)
    (run_dir,) = tmp_path.iterdir()
    path = run_dir / "checkpoint.pt"
    good = torch.load(path, weights_only=True)

    def refused(*flags):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            read_args(name, *flags, monkeypatch=monkeypatch)
        assert ended.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    args, checkpoint = read_args(
        name, "--resume", run_dir, "--total-timesteps", 96, monkeypatch=monkeypatch
    )
    assert (args.seed, args.ent_coef, args.total_timesteps, args.num_envs) == (7, 0.25, 96, 2)
    assert checkpoint["iteration"] == 3
    args, _ = read_args(
        name, "--resume", path, "--total-timesteps", 96, "--ent-coef", 0, monkeypatch=monkeypatch
    )
    assert args.ent_coef == 0
    other = shutil.copy(path, run_dir / "other.pt")
    assert "call it checkpoint.pt" in refused("--resume", other, "--total-timesteps", 96)
    assert "--total-timesteps 48: give more: the run has done 48" in refused("--resume", run_dir)
    more = ["--resume", run_dir, "--total-timesteps", 960]
    for flag, value in (
        ("--num-envs", 4), ("--num-steps", 16), ("--num-minibatches", 4), ("--seed", 8),
        ("--env-id", "Other-v1"),
    ):  # fmt: skip
        assert refused(*more, flag, value).startswith(
            f"error: {flag} {value}: the run to resume has"
        )

    assert "No such file" in refused("--resume", tmp_path / "nothing")
    assert "No such file" in refused("--resume", tmp_path)
    bad = tmp_path / "bad.pt"
    for content, words in (
        (path.read_bytes()[:-1000], "not a whole checkpoint"),
        (path.read_bytes()[: path.stat().st_size // 2], "not a whole checkpoint"),
        (b"", "not a whole checkpoint"),
        (b"hello", "not a whole checkpoint"),
    ):
        bad.write_bytes(content)
        assert words in refused("--resume", bad)
    other = "continuous_action" if "atari" in name else "atari_envpool"
    for content, words in (
        ({**good, "format": 2}, "of format 2, this script reads 1"),
        ({**good, "pair": f"ppo_{other}"}, f"a checkpoint of ppo_{other}, not of {module.PAIR}"),
        ({"model": 1}, "a checkpoint of something else"),
        ([1, 2], "a checkpoint of something else"),
        ({**good, "agent": random.Random(1)}, "holds more than plain values"),
    ):
        torch.save(content, bad)
        assert words in refused("--resume", bad)


def test_a_checkpoint_is_whole_at_any_moment(tmp_path):
    """kill -9 at 100 random moments of a process that does nothing but write checkpoints."""
    module = load(SCRIPTS[0])
    path = tmp_path / "checkpoint.pt"
    rng = random.Random(1)
    newest = 0
    for _ in range(100):
        ready, started = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                number = newest
                while True:
                    number += 1
                    content = {"number": number, "weights": torch.full((100_000,), number)}
                    torch.save(content, tmp_path / "new")
                    module.replace_file(str(path), (tmp_path / "new").read_bytes())
                    os.write(started, b"x")
            finally:
                os._exit(1)
        os.read(ready, 1)  # one is written
        time.sleep(rng.random() * 0.03)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(started)
        written = newest + 1
        while os.read(ready, 1):
            written += 1
        os.close(ready)
        found = torch.load(path, weights_only=True)
        assert found["number"] in (written, written + 1)  # killed between rename and report
        assert (found["weights"] == found["number"]).all()
        newest = found["number"]
    assert newest > 100


def start(name, *flags, cwd):
    """A script as a process that runs on; returns it when its first checkpoint is there."""
    command = [sys.executable, PPO / f"{name}.py", *small(name), "--total-timesteps", 10**7]
    command += ["--checkpoint-interval", 3, "--no-cuda", *flags]
    process = subprocess.Popen(
        list(map(str, command)), cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 300
    while not list(cwd.glob("runs/*/checkpoint.pt")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    return process


KILLED = [(name, [], signal.SIGTERM) for name in SCRIPTS]
KILLED += [(name, ["--compile", "--cudagraphs"], signal.SIGINT) for name in FAST]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "flags", "signum"), KILLED)
def test_interrupted_and_resumed(name, flags, signum, tmp_path):
    process = start(name, *flags, cwd=tmp_path)
    time.sleep(random.random())
    process.send_signal(signum)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + signum, err
    (run_dir,) = (tmp_path / "runs").iterdir()
    line = out.splitlines()[-1]
    assert line.startswith(f"to go on: {sys.executable} ") and line.endswith(f"runs/{run_dir.name}")
    checkpoint = checkpoint_of(tmp_path / "runs")
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["global_step"] == checkpoint["global_step"] > 0
    total = checkpoint["global_step"] + 64
    command = [*line.removeprefix("to go on: ").split(), "--total-timesteps", str(total)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [run_dir.name]
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["global_step"] == checkpoint_of(tmp_path / "runs")["global_step"] == total
    assert summary["mode"] == ("compile" if flags else "eager")
    assert not list(run_dir.glob("*.tmp"))
    steps = [step for step, _ in scalars(run_dir)["charts/learning_rate"]]
    assert steps == list(range(16, total + 1, 16))


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS[::2])
def test_curves_have_no_double_point_after_kill_9(name, tmp_path):
    process = start(name, cwd=tmp_path)
    checkpoint = checkpoint_of(tmp_path / "runs")
    time.sleep(1.5)  # points that the checkpoint does not know
    process.kill()
    process.communicate()
    (run_dir,) = (tmp_path / "runs").iterdir()
    checkpoint = checkpoint_of(tmp_path / "runs")
    (run_dir / "checkpoint.pt.tmp").write_bytes(b"stale")
    total = checkpoint["global_step"] + 160
    flags = ["--resume", run_dir, "--total-timesteps", total]
    done = run_script(PPO / f"{name}.py", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not list(run_dir.glob("*.tmp"))
    for tag, points in scalars(run_dir).items():
        steps = [step for step, _ in points]
        if tag in ("charts/learning_rate", "losses/entropy"):
            assert steps == list(range(16, total + 1, 16)), tag
        assert steps == sorted(steps) and steps[-1] <= total, tag


@pytest.mark.slow
def test_a_second_signal_ends_at_once(tmp_path):
    name = "ppo_continuous_action"
    flags = ["--env-id", "Pendulum-v1", "--num-steps", 10**7, "--total-timesteps", 10**7]
    process = subprocess.Popen(
        [sys.executable, PPO / f"{name}.py", *map(str, flags)],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not list(tmp_path.glob("runs/*/events*")):
        time.sleep(0.1)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    time.sleep(2)
    assert process.poll() is None  # a rollout of ten million steps goes on
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=5)
    assert process.returncode == -signal.SIGINT and "once more: at once" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("name", SCRIPTS)
def test_bad_numbers_stop_the_run(name, tmp_path, capsys):
    def edit(text):
        mark = "        # Update\n"
        poison = "        if iteration == 3:\n            storage['returns'][2] = torch.inf\n"
        return text.replace(mark, poison + mark)

    flags = [*small(name), "--checkpoint-interval", 1]
    with pytest.raises(SystemExit) as ended:
        run_main(name, *flags, runs_dir=tmp_path, edit=edit)
    assert ended.value.code == 3
    last = capsys.readouterr().err.splitlines()[-1]
    (run_dir,) = tmp_path.iterdir()
    assert last.startswith("error: losses/") and "in iteration 3, step 48" in last
    assert str(run_dir / "checkpoint.pt") in last
    assert checkpoint_of(tmp_path)["iteration"] == 2
    assert all(value.isfinite().all() for value in checkpoint_of(tmp_path)["agent"].values())
    assert json.loads((run_dir / "summary.json").read_text())["global_step"] == 48
    assert [step for step, _ in scalars(run_dir)["losses/entropy"]] == [16, 32, 48]


@pytest.mark.parametrize("name", SCRIPTS[::2])
def test_a_learning_rate_that_explodes(name, tmp_path):
    flags = [*small(name), "--learning-rate", 1e30]
    done = run_script(PPO / f"{name}.py", *flags, cwd=tmp_path)
    assert done.returncode == 3 and "checkpoint: none was written" in done.stderr
    assert not list(tmp_path.glob("runs/*/checkpoint.pt*"))


def test_a_full_disk(tmp_path):
    """A file system of 400 KB that fills up after the first checkpoint, and has room again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    try:

        def edit(text):
            mark = "        # Rollout\n"
            fill = f"""        if iteration == 3:
            try:
                open({str(disk / "fill")!r}, "wb").write(bytes(10**6))
            except OSError:
                pass
        if iteration == 16:
            os.remove({str(disk / "fill")!r})
            writer.retry_time = 0
"""
            return text.replace(mark, fill + mark)

        script = tmp_path / "script.py"
        script.write_text(edit((PPO / "ppo_continuous_action.py").read_text()))
        flags = ["--env-id", "Pendulum-v1", "--num-steps", 256, "--checkpoint-interval", 2]
        flags += ["--runs-dir", disk, "--update-epochs", 1]
        done = run_script(script, *flags, "--total-timesteps", 15 * 256, cwd=tmp_path)
        warnings = [line for line in done.stderr.splitlines() if "No space left" in line]
        assert done.returncode == 1 and "the end of this run is not saved" in done.stderr
        assert sum("checkpoint.pt" in line for line in warnings) == 1
        assert sum("summary.json" in line for line in warnings) == 1
        assert sum("curves have a gap" in line for line in warnings) == 1
        assert len(warnings) == 3 and "Traceback" not in done.stderr
        assert checkpoint_of(disk)["iteration"] == 2
        for path in disk.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

        done = run_script(script, *flags, "--total-timesteps", 20 * 256, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("No space left") == 2
        assert checkpoint_of(disk)["iteration"] == 20
        (run_dir,) = disk.glob("Pendulum*")
        steps = [step for step, _ in scalars(run_dir)["losses/entropy"]]
        assert steps[-5:] == [256 * i for i in range(16, 21)] and 256 in steps
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_log_on_a_full_disk_and_a_closed_pipe(tmp_path):
    """Neither a stderr that takes nothing nor a terminal that is gone ends a run."""
    flags = [*small("ppo_continuous_action"), "--checkpoint-interval", 1, "--runs-dir"]
    command = [sys.executable, str(PPO / "ppo_continuous_action.py"), *map(str, flags)]
    with open("/dev/full", "w") as full:
        subprocess.run([*command, tmp_path / "full"], stderr=full)
    assert checkpoint_of(tmp_path / "full")["global_step"] == 48
    process = subprocess.Popen([*command, tmp_path / "closed"], stderr=subprocess.PIPE)
    process.stderr.close()
    process.wait(120)
    assert checkpoint_of(tmp_path / "closed")["global_step"] == 48


def test_a_signal_in_the_last_iteration(tmp_path):
    """The run is complete: there is nothing to go on with."""
    name = "ppo_continuous_action"
    run = run_main(name, *small(name), runs_dir=tmp_path, edit=interrupt_at(3))
    assert run.stop_signals == [15] and checkpoint_of(tmp_path)["global_step"] == 48


def test_a_file_that_may_not_grow(tmp_path):
    """A limit of 64 KiB a file: no checkpoint, and training goes on to its end."""
    flags = [*small("ppo_continuous_action"), "--checkpoint-interval", 1]
    command = [sys.executable, PPO / "ppo_continuous_action.py", *map(str, flags)]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16)),
    )  # fmt: skip
    assert done.returncode == 1 and done.stderr.count("File too large") == 1
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert not list(run_dir.glob("checkpoint*"))
    assert json.loads((run_dir / "summary.json").read_text())["global_step"] == 48


@pytest.mark.slow
def test_wandb_without_a_network(tmp_path):
    """A key, and a server that nobody reaches: the run goes on, and wandb keeps it offline."""
    env = {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9"}
    env |= {"HOME": str(tmp_path / "home"), "WANDB_MODE": "online"}
    name = "ppo_continuous_action"
    done = run_script(PPO / f"{name}.py", *small(name), "--track", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert "warning: wandb goes on offline" in done.stderr and "Traceback" not in done.stderr
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert list((run_dir / "wandb").glob("offline-run-*/*.wandb"))
    assert checkpoint_of(tmp_path / "runs")["wandb_id"]
