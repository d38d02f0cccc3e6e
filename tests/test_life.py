"""The life of a run: checkpoints, going on with one, signals, bad numbers, a full disk."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial

import doors
import envpool
import gymnasium as gym
import pytest
import worlds
from helpers import (
    IN_TURN,
    PAIRS,
    PPO,
    TINY,
    checkpoint_of,
    insert,
    load,
    run_main,
    scalars,
    summary_of,
    task,
    text_of,
    wait_for,
)

import torch

classic = "gymnasium.envs.classic_control"
gym.register("Short-v0", f"{classic}:PendulumEnv", max_episode_steps=5)
gym.register("ShortDoors-v0", doors.Doors, max_episode_steps=5)
gym.register("ShortImages-v0", doors.Images, max_episode_steps=5)
gym.register("ShortPole-v0", f"{classic}:CartPoleEnv", max_episode_steps=5)
SHORT = {
    "atari": [],
    "ale": [],
    "pixels": ["--env-id", "ShortImages-v0"],
    "many": ["--env-id", "Pendulum-v1"],
    "continuous": ["--env-id", "Short-v0"],
    "small": ["--env-id", "CartPole-v1"],
    "masked": ["--env-id", "ShortDoors-v0"],
    "warp": ["--env-id", "worlds:Worlds"],
    "together": ["--env-id", "meadow", "--env-kwargs", '{"limit": 5}'],
    "": ["--env-id", "ShortPole-v0"],
}


# one of each text of the last phase, as test_pair has it, and one with a memory
LIVES = [
    "ppo",
    "ppo_lstm_torchcompile",
    "ppo_continuous_action_warp_torchcompile",
    "ppo_atari_envpool_multigpu_torchcompile",
]


@pytest.fixture(autouse=True)
def short_games(monkeypatch):
    """EnvPool's and ALE's games of 5 steps at most, like the pendulum's of Gymnasium."""
    monkeypatch.setattr(envpool, "make", partial(envpool.make, max_episode_steps=5))
    make_vec = partial(gym.make_vec, frameskip=8, max_num_frames_per_episode=36)
    monkeypatch.setattr(gym, "make_vec", make_vec)
    monkeypatch.setattr(worlds.Worlds, "max_episode_steps", 5)


def small(name):
    """Flags of a run that takes a second or less."""
    return [*TINY, *SHORT[task(name)]]


def signal_in(iteration, signum=signal.SIGTERM):
    return insert("# Advantages", f"if iteration == {iteration}: os.kill(os.getpid(), {signum})")


# the lines of main that begin games: what cannot be saved begins anew in a run that goes on
GAMES = """seeds|envs|next_obs.*|obs\\[T\\]|dones|dones\\[T\\]|lives|frames|running_\\w+|discounted|
lstm_state|trxl_state = .*|signals|restarts""".replace("\n", "")
GAMES = re.compile(rf"^    (?:{GAMES}) = .*|^    if args.stagger:\n(?:        .*\n)+", re.M)


def new_games(name, iteration):
    """An edit: new games from there on, as a run that goes on has them."""
    main = text_of(name).partition("if __name__")[2].partition("    for iteration in range")[0]
    lines = "\n".join(x.strip("\n") for x in GAMES.findall(main))
    return insert(
        "# Rollout", f"if iteration == {iteration}:\n    first_iteration = iteration\n{lines}"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_TURN)
def test_resumed_run_is_bit_exact(name, tmp_path):
    """A signal in iteration 2, then 3 and 4 by both versions: as if nothing had happened.

    Nothing of what is compared is touched: new games are all that the uninterrupted run is given,
    which goes on after a checkpoint in each iteration. What has ended is not run again, and stays.
    """
    signum = (signal.SIGINT, signal.SIGTERM)[IN_TURN.index(name) % 2]
    flags = [*small(name), "--total-timesteps", 64, "--checkpoint-interval", 1]
    run_main(name, *flags, runs_dir=tmp_path / "whole", edit=new_games(name, 3))
    whole = checkpoint_of(tmp_path / "whole")
    curves = scalars(*(tmp_path / "whole").iterdir())
    curves.pop("charts/SPS", None)
    with pytest.raises(SystemExit) as ended:
        run_main(name, *flags, runs_dir=tmp_path / "halves", edit=signal_in(2, signum))
    assert ended.value.code == 128 + signum
    half, summary = checkpoint_of(tmp_path / "halves"), summary_of(tmp_path / "halves")
    assert half["global_step"] == 32 and not torch.equal(*(x["rng"]["cpu"] for x in (half, whole)))
    assert summary["global_step"] == 32 and not summary["complete"]

    (run_dir,) = (tmp_path / "halves").iterdir()
    for sibling in next(pair for pair in PAIRS if name in pair):
        copy = shutil.copytree(run_dir, tmp_path / sibling / run_dir.name)
        (events,) = copy.glob("events.*")  # read in the order of names: second, process, number
        events.rename(copy / "events.out.tfevents.0")
        run = run_main(sibling, "--resume", copy, runs_dir="unused")
        resumed = checkpoint_of(tmp_path / sibling)
        one, two = ({k: x[k] for k in x.keys() - {"args", "format"}} for x in (resumed, whole))
        torch.testing.assert_close(one, two, rtol=0, atol=0)
        found = scalars(copy)
        assert found == curves and run.summary["episodes"] > 5
        assert run.optimizer.param_groups[0]["lr"] == run.args.learning_rate / 4
        assert run.summary["complete"] and run.summary["script"] == sibling
        assert_ended(sibling, copy, 64)


def assert_ended(name, run_dir, steps):
    """It is not run again: one line, status 1, and nothing is written."""
    before = {path.name: path.read_bytes() for path in run_dir.iterdir()}
    with pytest.raises(SystemExit) as ended:
        run_main(name, "--resume", run_dir, runs_dir="unused")
    assert ended.value.code == f"{steps} steps are done already: give a larger --total-timesteps"
    assert {path.name: path.read_bytes() for path in run_dir.iterdir()} == before
    assert not os.path.exists("unused")


def test_arguments_are_saved_and_can_be_changed(tmp_path):
    """48 steps done and 112 asked for, in rollouts of 32: one more, as two would be too many; in
    another environment with the same spaces, as in a curriculum."""
    name = "ppo_continuous_action"
    run_main(name, *small(name), "--seed", 7, "--ent-coef", 0.25, runs_dir=tmp_path)
    (run_dir,) = tmp_path.iterdir()
    flags = "--total-timesteps 112 --num-envs 4 --ent-coef 0 --env-id Pendulum-v1".split()
    run = run_main(name, "--resume", run_dir, *flags, runs_dir="unused")
    assert (run.args.seed, run.args.ent_coef, run.args.num_steps, run.N) == (7, 0, 8, 4)
    assert run.args.env_id == "Pendulum-v1"
    assert [run.first_iteration, run.iteration, run.global_step] == [3, 3, 80]
    assert run.summary["args"] == checkpoint_of(tmp_path)["args"]


def test_on_another_kind_of_device_it_draws_anew(tmp_path):
    """A GPU's random state is of no use on a CPU; the first rollout's draws are not repeated."""
    first = run_main("ppo", *small("ppo"), "--total-timesteps", 16, runs_dir=tmp_path)
    state = checkpoint_of(tmp_path)
    torch.save(state | {"rng": {"cuda": state["rng"]["cpu"]}}, f"{first.run_dir}/checkpoint.pt")
    flags = "--resume", first.run_dir, "--total-timesteps", 32
    assert not torch.equal(run_main("ppo", *flags, runs_dir="unused").b_inds, first.b_inds)


@pytest.mark.parametrize(
    ("name", "other"),
    [("ppo_masked", "ppo"), ("ppo_continuous_action", "ppo_continuous_action_envpool")],
)
def test_a_run_of_another_script_is_left(name, other, tmp_path):
    """One line, and nothing is written; the fast version of its own script goes on with it."""
    run_main(name, *small(name), runs_dir=tmp_path)
    (run_dir,) = tmp_path.iterdir()
    before = {path.name: path.read_bytes() for path in run_dir.iterdir()}
    more = ["--resume", run_dir, "--total-timesteps", 64]
    with pytest.raises(SystemExit) as ended:
        run_main(other, *more, runs_dir="unused")
    mine, its = load(name).FORMAT, load(other).FORMAT
    assert ended.value.code == f"{run_dir} is a run of {mine}, not of {its}"
    assert {path.name: path.read_bytes() for path in run_dir.iterdir()} == before
    run = run_main(f"{name}_torchcompile", *more, runs_dir="unused")
    assert run.global_step == 64
    assert (run_dir / "script.py").read_text() == (PPO / f"{name}_torchcompile.py").read_text()


# Signals


def test_a_signal_in_the_last_iteration(tmp_path):
    """The run is complete: status 0."""
    name = "ppo_continuous_action"
    run = run_main(name, *small(name), runs_dir=tmp_path, edit=signal_in(3))
    assert run.stop_signals == [15] and checkpoint_of(tmp_path)["global_step"] == 48
    assert run.summary["complete"]


def start(name, *flags, cwd, until):
    """A script as a process that runs on, from when that has come; it prints to a file."""
    words = [*map(str, (sys.executable, PPO / f"{name}.py", *flags, "--no-cuda"))]
    hears = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # tests that `&` began do not
    with open(cwd / "err", "w") as err:
        process = subprocess.Popen(words, cwd=cwd, stdout=err, stderr=err, preexec_fn=hears)
    wait_for(lambda: until() or process.poll() is not None, 300)
    assert process.poll() is None, (cwd / "err").read_text()
    return process


def printed(cwd, text):
    """Whether it stands in what a process has printed so far."""
    return lambda: text in (cwd / "err").read_text()


@pytest.mark.slow
def test_killed_and_interrupted(tmp_path, capsys):
    """kill -9 while it writes checkpoints, --resume, SIGTERM, --resume to the end."""
    first = [*TINY, "--checkpoint-interval", 1, "--total-timesteps", 10**7]
    process = start("ppo", *first, cwd=tmp_path, until=lambda: [*tmp_path.glob("runs/*/*.pt")])
    process.kill()
    process.wait()
    (run_dir,) = (tmp_path / "runs").iterdir()
    done = checkpoint_of(tmp_path / "runs")["global_step"]
    (run_dir / "checkpoint.tmp").write_bytes(b"half of it")

    def moved():  # past the first iteration's checkpoint, after which signals are caught
        return checkpoint_of(tmp_path / "runs")["global_step"] > done + 16 > 16

    process = start("ppo", "--resume", run_dir, cwd=tmp_path, until=moved)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 128 + signal.SIGTERM, (tmp_path / "err").read_text()
    done = checkpoint_of(tmp_path / "runs")["global_step"]
    assert summary_of(tmp_path / "runs")["global_step"] == done

    time.sleep(1)  # TensorBoard orders a run's files by their second, then by process
    run_main("ppo", "--resume", run_dir, "--total-timesteps", done + 64, runs_dir="unused")
    assert [*(tmp_path / "runs").iterdir()] == [run_dir]
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{run_dir}: mean return ")
    assert checkpoint_of(tmp_path / "runs")["global_step"] == done + 64
    assert {path.name for path in run_dir.glob("checkpoint*")} == {"checkpoint.pt"}
    steps = [step for step, _ in scalars(run_dir)["charts/learning_rate"]]
    assert steps == list(range(16, done + 65, 16))


LONG = ["--env-id", "Pendulum-v1", "--num-steps"]


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_there_is_anything_to_save(signum, tmp_path):
    """In the first rollout, of a million steps: it ends the run at once."""
    flags, until = [*LONG, 10**6], printed(tmp_path, "step/s")
    process = start("ppo_continuous_action", *flags, cwd=tmp_path, until=until)
    process.send_signal(signum)
    try:
        assert process.wait(5) == -signum
    finally:
        process.kill()
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert {path.name.split(".")[0] for path in run_dir.iterdir()} == {"events"}


@pytest.mark.slow
def test_a_second_signal_ends_at_once(tmp_path):
    """In the second of two rollouts, which is long."""
    edit = insert("# Rollout", 'if iteration == 2: os.write(2, b"second"); time.sleep(100)')
    script = tmp_path / "script.py"
    script.write_text(edit((PPO / "ppo_continuous_action.py").read_text()))
    process = start(script.with_suffix(""), *LONG, 64, cwd=tmp_path, until=lambda: True)
    wait_for(printed(tmp_path, "second"))
    process.send_signal(signal.SIGINT)
    wait_for(printed(tmp_path, "stopping after this iteration"))
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(5) == -signal.SIGINT and not printed(tmp_path, "Traceback")()


@pytest.mark.slow
def test_a_console_that_is_gone(tmp_path):
    """Ctrl+C ends `tee` as well as the script: what was learned is saved all the same."""
    flags = [*TINY, "--num-steps", 1024]  # long enough for the bar to be drawn after the signal
    words = map(str, [sys.executable, PPO / "ppo.py", *flags, "--no-cuda"])
    line = f"{' '.join(words)} --total-timesteps 10000000 2>&1 | tee log"
    shell = subprocess.Popen(line, shell=True, cwd=tmp_path, start_new_session=True)
    log, runs = tmp_path / "log", tmp_path / "runs"
    wait_for(lambda: log.exists() and "mean return" in log.read_text())
    os.killpg(shell.pid, signal.SIGINT)
    shell.wait(30)
    wait_for(lambda: [*runs.glob("*/summary.json")], 30)
    assert 0 < summary_of(runs)["global_step"] == checkpoint_of(runs)["global_step"]


# What goes wrong


POISON = "if iteration == 3: storage['returns'][2] = torch.inf"
FULL = 'if iteration == 3: os.symlink("/dev/full", f"{run_dir}/checkpoint.tmp")'
WRONG = {  # where, what happens, what is raised
    "numbers": ("# Update", POISON, "in iteration 3 .*value_loss.* are .*(inf|nan)"),
    "disk": ("# Log", FULL, None),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", LIVES)
def test_the_checkpoint_from_before_is_whole(name, wrong, tmp_path):
    """Where numbers are not finite, which names iteration and losses, or it cannot be written."""
    *edit, said = WRONG[wrong]
    kinds = (OSError, RuntimeError) if wrong == "disk" else FloatingPointError
    flags = [*small(name), "--checkpoint-interval", 1]
    with pytest.raises(kinds, match=said):
        run_main(name, *flags, runs_dir=tmp_path, edit=insert(*edit))
    checkpoint = checkpoint_of(tmp_path)
    assert checkpoint["global_step"] == 32
    assert all(value.isfinite().all() for value in checkpoint["agent"].values())
    assert not [*tmp_path.glob("*/summary.json")]
