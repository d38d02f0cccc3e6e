"""What public reports found on other people's machines: consoles that go away, simulators that blow
up or fail to close, two runs at once, values that were silently wrong."""

import json
import logging
import os
import pty
import re
import runpy
import select
import signal
import subprocess
import sys
import termios
import time
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from helpers import PPO, ROOT, TINY, insert, load, run_main, run_script, said, scalars
from test_life import checkpoint_of, sigterm_in

import torch

LONG = [*TINY[:-1], str(10**8), "--checkpoint-interval", "1000000"]
VECTORS = ["ppo", "ppo_lstm_torchcompile", "ppo_continuous_action", "ppo_torchcompile"]


def finished(folder):
    """The only run's summary."""
    (path,) = folder.glob("runs/*/summary.json")
    return json.loads(path.read_text())


# 1. The console goes away


def piped(folder, *flags, **options):
    """ppo as a process whose output goes into a pipe, and the end from which it is read."""
    read, write = os.pipe()
    command = [sys.executable, str(PPO / "ppo.py"), *map(str, flags), "--no-cuda"]
    options |= {"cwd": folder, "stdout": write, "stderr": write, "start_new_session": True}
    process = subprocess.Popen(command, **options)
    os.close(write)
    return process, read


def read_until(fd, text):
    found = b""
    while text not in found:
        assert select.select([fd], [], [], 60)[0], found
        found += os.read(fd, 1000) or pytest.fail(f"{found}")
    return found


@pytest.mark.slow
def test_ctrl_c_takes_the_reader_too(tmp_path):
    """`2>&1 | tee log` and Ctrl+C: tee is gone first; the run is saved all the same."""
    process, fd = piped(tmp_path, *LONG)
    read_until(fd, b"mean return")
    os.close(fd)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 128 + signal.SIGINT
    assert finished(tmp_path)["global_step"] == checkpoint_of(tmp_path / "runs")["global_step"] > 0


@pytest.mark.slow
def test_a_reader_that_has_enough(tmp_path):
    """`2>&1 | head -c 100`, and a standard error that is closed from the start."""
    process, fd = piped(tmp_path, *TINY[:-1], 4000)
    os.read(fd, 100)
    os.close(fd)
    assert process.wait(60) == 0 and finished(tmp_path)["global_step"] == 4000
    for closed in ("2>&-", ">&- 2>&-"):
        folder = tmp_path / closed
        folder.mkdir()
        command = f"exec {sys.executable} {PPO / 'ppo.py'} {' '.join(TINY)} --no-cuda {closed}"
        assert subprocess.run(["bash", "-c", command], cwd=folder, timeout=60).returncode == 0
        assert finished(folder)["complete"]


@pytest.mark.slow
@pytest.mark.parametrize("nohup", [True, False])
def test_the_terminal_closes(nohup, tmp_path):
    """Under nohup the run goes on, and is stopped by SIGTERM; else SIGHUP stops it."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))

    def setup():
        os.setsid()
        os.close(os.open(os.ttyname(1), os.O_RDWR))  # the terminal is this session's
        signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)

    command = [sys.executable, str(PPO / "ppo.py"), *LONG, "--no-cuda"]
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    process = subprocess.Popen(command, cwd=tmp_path, preexec_fn=setup, **streams)
    os.close(theirs)
    read_until(ours, b"mean return")
    os.close(ours)
    if nohup:
        time.sleep(3)
        assert process.poll() is None, "three seconds later it still trains"
        process.send_signal(signal.SIGTERM)
    signum = signal.SIGTERM if nohup else signal.SIGHUP
    assert process.wait(60) == 128 + signum
    assert finished(tmp_path)["global_step"] == checkpoint_of(tmp_path / "runs")["global_step"] > 0


def test_help_in_any_locale(tmp_path):
    env = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = run_script(PPO / "ppo.py", "--help", cwd=tmp_path, env=env)
    assert done.returncode == 0 and "--cleanrl-semantics" in done.stdout


# 2. Numbers that are not finite


class BlowsUp(gym.Env):
    """Ends after 3 steps with an observation of nan and inf; or says nan where nothing ends.

    where: "end", "middle", "reward"; of the second environment alone, if there are more.
    """

    made = 0
    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, where, continuous):
        self.where, self.t, self.bad = where, 0, BlowsUp.made % 2 == 1
        BlowsUp.made += 1
        if continuous:
            self.action_space = gym.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.ones(3, np.float32), {}

    def step(self, action):
        self.t += 1
        obs, ends = np.full(3, self.t, np.float32), self.t == 3
        if self.bad and (ends if self.where == "end" else self.t == 2 and self.where == "middle"):
            obs = np.array([np.nan, np.inf, 1.0], np.float32)
        reward = np.nan if self.bad and self.where == "reward" and self.t == 2 else 1.0
        return obs, reward, ends, False, {}


for where in ("end", "middle", "reward"):
    for continuous in (False, True):
        gym.register(f"{where}{continuous}-v0", lambda w=where, c=continuous: BlowsUp(w, c))


@pytest.mark.parametrize("name", VECTORS)
def test_a_simulator_that_blew_up(name, tmp_path, capsys):
    """What ends in nan is learned from; nan anywhere else ends the run, and is said where."""
    of = "True" if "continuous" in name else "False"
    BlowsUp.made = 0
    run = run_main(name, *TINY, "--env-id", f"end{of}-v0", runs_dir=tmp_path)
    assert run.summary["complete"] and run.storage["obs"].isfinite().all()
    assert all(value.isfinite().all() for value in run.agent.state_dict().values())
    assert run.host_terminations.sum() > 2
    for where, what in (("middle", "an observation of environment 1 in step 2"),
                        ("reward", "a reward of environment 1 in step 1")):  # fmt: skip
        BlowsUp.made = 0
        with pytest.raises(SystemExit) as ended:
            run_main(name, *TINY, "--env-id", f"{where}{of}-v0", runs_dir=tmp_path)
        assert ended.value.code == 3
        last = capsys.readouterr().err.splitlines()[-1]
        line = f"error: iteration 1 gave a loss that is not finite, by {what} of the rollout"
        assert last == line


# 3. Results before closing, and whatever else ends a run


class Fails(gym.Env):
    """CartPole whose close raises."""

    def __new__(cls):
        env = gym.make("CartPole-v1").unwrapped
        env.close = lambda: 1 / 0
        return env


gym.register("Fails-v0", Fails)


def test_environments_that_fail_to_close(tmp_path, capsys, monkeypatch):
    """The results are there, those of an evaluation too."""
    with pytest.raises(ZeroDivisionError):
        run_main("ppo", *TINY, "--env-id", "Fails-v0", runs_dir=tmp_path / "runs")
    assert finished(tmp_path)["complete"] and "mean return" in capsys.readouterr().out
    (run_dir,) = (tmp_path / "runs").iterdir()
    monkeypatch.setattr("sys.argv", ["x", str(run_dir), "--episodes", "2"])
    runpy.run_path(str(PPO / "ppo_eval.py"), run_name="__main__")
    assert "mean" in capsys.readouterr().out and (run_dir / "eval.json").exists()


@pytest.mark.slow
def test_an_error_in_the_loop(tmp_path):
    """Comes through; the bar is closed by then, and the last line says how to go on."""
    broken = insert(
        "# Rollout",
        """
if iteration == 3:
    tqdm.__del__ = lambda bar: bar.disable or os.write(2, b"a bar is open")
    raise EOFError("a simulator in another process is gone")
""",
    )
    script = tmp_path / "mine and yours.py"
    script.write_text(broken((PPO / "ppo.py").read_text()))
    done = run_script(script, *TINY, "--checkpoint-interval", 1, cwd=tmp_path)
    assert done.returncode == 1 and "EOFError: a simulator" in done.stderr
    assert "a bar is open" not in done.stderr
    (run_dir,) = (tmp_path / "runs").iterdir()
    last = done.stderr.splitlines()[-1]
    command = f"{sys.executable} '{script}' --resume 'runs/{run_dir.name}'"
    assert last == f"to go on from the last checkpoint: {command}"
    assert [step for step, _ in scalars(run_dir)["losses/entropy"]] == [16, 32]


def test_handlers_are_put_back(tmp_path):
    signals = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    before = {signum: signal.getsignal(signum) for signum in signals}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup, which these tests may run, ignored
    argv, sys.argv = sys.argv, ["ppo.py", *TINY, "--no-cuda", "--runs-dir", str(tmp_path)]
    streams = sys.stdout, sys.stderr
    try:
        runpy.run_path(str(PPO / "ppo.py"), run_name="__main__")
        after = {signum: signal.getsignal(signum) for signum in before}
    finally:
        sys.argv, (sys.stdout, sys.stderr) = argv, streams
        sys.excepthook = sys.__excepthook__
        for signum, handler in before.items():
            signal.signal(signum, handler)
    assert after == {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }


# 4. Two runs, one folder


def test_two_runs_have_two_folders(tmp_path, monkeypatch):
    """Process number 1 of two containers in the same second."""
    monkeypatch.setattr(time, "strftime", lambda text: "261125-120000")
    runs = [run_main("ppo", *TINY, runs_dir=tmp_path) for _ in range(2)]
    assert len({run.run_dir for run in runs}) == len([*tmp_path.iterdir()]) == 2


def test_two_that_go_on_share_no_file(tmp_path, monkeypatch):
    """What one writes, the other does not put in place."""
    script, names = load("ppo"), []
    monkeypatch.setattr(torch, "save", lambda state, file: names.append(file.name))
    for _ in range(2):
        script.save_checkpoint(tmp_path, {})
    assert len(set(names)) == 2 and [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


# 5. and 6. What was silently wrong


class Odd(gym.Env):
    """CartPole's shapes; what is odd about it is said."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (4,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, **odd):
        self.__dict__ |= odd

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action):
        return np.zeros(4, np.float32), 1.0, False, False, {}


def old_step(action):
    return np.zeros(4, np.float32), 1.0, False, {}


def old_reset():
    return np.zeros(4, np.float32)


class Silent(gym.spaces.Box):
    """A space that says nothing about why it is refused, as Minigrid's."""

    @property
    def shape(self):
        raise NotImplementedError


gym.register("Integers-v0", lambda: Odd(action_space=gym.spaces.Box(0, 5, (2,), np.int64)))
gym.register("OldStep-v0", lambda: Odd(step=old_step))
gym.register("OldReset-v0", lambda: Odd(reset=old_reset))
gym.register("Silent-v0", lambda: Odd(observation_space=Silent(-1.0, 1.0, (4,))))
gym.register("Endless-v0", lambda: Odd())
gym.register("Three-v0", lambda: Odd(action_space=gym.spaces.Discrete(3)))


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("ppo_continuous_action", "--env-id Integers-v0", "bounded actions, not"),
        ("ppo", "--env-id OldStep-v0", "argument --env-id: OldStep-v0: not enough values"),
        ("ppo_lstm", "--env-id OldReset-v0", "argument --env-id: OldReset-v0: "),
        ("ppo", "--env-id Silent-v0", "argument --env-id: Silent-v0: NotImplementedError"),
        ("ppo", f"--seed {2**64}", f"--seed {2**64}: give 0 to 2**64 - 1"),
    ],
)
def test_what_is_no_environment(name, flags, message, tmp_path, capsys):
    """One message and status 2, before there is a run."""
    with pytest.raises(SystemExit) as ended:
        run_main(name, *flags.split(), runs_dir=tmp_path / "runs")
    assert ended.value.code == 2 and message in said(capsys.readouterr().err)
    assert not (tmp_path / "runs").exists()


def test_what_only_a_critic_may_see(tmp_path, capsys, monkeypatch):
    import envpool

    box = gym.spaces.Box(-1.0, 1.0, (3,))
    spaces = gym.spaces.Dict(actor=box, critic=box)
    fake = SimpleNamespace(single_observation_space=spaces, single_action_space=box)
    monkeypatch.setattr(envpool, "make", lambda *args, **options: fake)
    with pytest.raises(SystemExit) as ended:
        run_main("ppo_continuous_action_envpool", runs_dir=tmp_path)
    assert ended.value.code == 2 and "must not see" in said(capsys.readouterr().err)


def test_another_runs_format_under_python_o(tmp_path):
    """Not by an assertion, which -O leaves out."""
    run_main("ppo", *TINY, runs_dir=tmp_path / "runs")
    (run_dir,) = (tmp_path / "runs").iterdir()
    before = (run_dir / "checkpoint.pt").read_bytes()
    command = [sys.executable, "-O", str(PPO / "ppo_lstm.py"), "--resume", str(run_dir)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "no checkpoint of ppo_lstm" in done.stderr
    assert (run_dir / "checkpoint.pt").read_bytes() == before


def evaluate(run_dir, *flags, monkeypatch, capsys):
    """Status and output of ppo_eval."""
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["ppo_eval.py", str(run_dir), *map(str, flags)])
    try:
        runpy.run_path(str(PPO / "ppo_eval.py"), run_name="__main__")
        status = 0
    except SystemExit as ended:
        status = ended.code
    return status, capsys.readouterr()


def test_games_that_never_end(tmp_path, monkeypatch, capsys):
    """Are cut, and it is said; other actions, other spaces, unknown environments are refused."""
    run_main("ppo", *TINY, "--env-id", "Endless-v0", runs_dir=tmp_path)
    (run_dir,) = tmp_path.iterdir()
    more = {"monkeypatch": monkeypatch, "capsys": capsys}
    status, printed = evaluate(run_dir, "--episodes", 2, "--max-steps", 50, **more)
    assert status == 0 and "2 of 2 games were cut after 50 steps" in printed.out
    result = json.loads((run_dir / "eval.json").read_text())
    assert result["cut"] == 2 and result["returns"] == [50.0, 50.0]
    status, printed = evaluate(
        run_dir, "--episodes", 1, "--max-steps", 5, "--capture-video", **more
    )
    assert "nothing renders Endless-v0" in str(status) and "Traceback" not in printed.err
    good = torch.load(run_dir / "checkpoint.pt", weights_only=True)
    for env_id, message in (
        ("Three-v0", "it has 3 actions, and the agent knows 2"),
        ("Acrobot-v1", "it has 3 actions"),
        ("Nowhere-v0", "Nowhere"),
    ):
        torch.save({**good, "args": {**good["args"], "env_id": env_id}}, run_dir / "checkpoint.pt")
        status, printed = evaluate(run_dir, **more)
        assert status == 2 and message in printed.err and printed.err.count("\n") <= 2, env_id
        assert "argument run: " in printed.err


def test_resumed_with_other_spaces(tmp_path, capsys):
    """Refused in one line; another environment with the same spaces, a curriculum, is taken."""
    run_main("ppo", *TINY, "--env-id", "Endless-v0", runs_dir=tmp_path)
    (run_dir,) = tmp_path.iterdir()
    more = ["--total-timesteps", 96, "--env-id"]
    run = run_main("ppo", "--resume", run_dir, *more, "CartPole-v1", runs_dir="unused")
    assert run.global_step == 96
    with pytest.raises(SystemExit) as ended:
        more[1] = 192
        run_main("ppo", "--resume", run_dir, *more, "Acrobot-v1", runs_dir="unused")
    err = capsys.readouterr().err
    assert ended.value.code == 2 and f"argument --resume: {run_dir}: " in err and "size" in err
    assert "Traceback" not in err


# 7. Files, shells, platforms


def test_weights_and_biases_takes_any_name(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **x: calls.append(x)))
    script = load("ppo")
    script.track(script.Args(), str(tmp_path / "my_envs:Mine-v0__try #2__1__261125-1200-1"))
    assert re.fullmatch(r"[\w.-]+", calls[0]["id"]) and "Mine-v0" in calls[0]["id"]


def test_json_has_no_inf_and_no_nan(tmp_path):
    run_main("ppo", *TINY, "--clip-coef", "inf", runs_dir=tmp_path / "runs")

    def refuse(name):
        raise AssertionError(name)

    (path,) = tmp_path.glob("runs/*/summary.json")
    summary = json.loads(path.read_text(), parse_constant=refuse)
    assert summary["args"]["clip_coef"] == "inf"


def test_home_is_a_folder(tmp_path, monkeypatch, capsys):
    """--runs-dir=~/x and --resume=~/x mean what a shell makes of them without =."""
    monkeypatch.setenv("HOME", str(tmp_path / "my home"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        run_main("ppo", *TINY, runs_dir="~/x", edit=sigterm_in(2))
    (run_dir,) = (tmp_path / "my home" / "x").iterdir()
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.endswith(f"--resume '{run_dir}'"), "quoted"
    run = run_main("ppo", f"--resume=~/x/{run_dir.name}", runs_dir="unused")
    assert run.summary["complete"]


@pytest.mark.parametrize("name", ["ppo_atari_envpool_multigpu"])
def test_other_systems(name, monkeypatch):
    """Without a signal's name, without sched_getaffinity, as on macOS and Windows."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.delattr(signal, "SIGHUP")
    script = runpy.run_path(str(PPO / f"{name}.py"), run_name="other")
    assert script["CORES"] == os.cpu_count()
    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        script["catch_signals"]([])
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)


GRAPHS = """
import weakref
class CudaGraphModule:
    def __init__(self, module, warmup):
        self.module, self.itself = module, self  # a cycle, as the real one has
        weakref.finalize(self, os.write, 1, b"graph gone\\n").atexit = False
    def __call__(self, *args):
        return self.module(*args)
atexit.register(os.write, 1, b"exit goes on\\n")
"""


@pytest.mark.slow
@pytest.mark.envpool
@pytest.mark.parametrize("error", [False, True])
def test_graphs_go_before_the_ranks_part(error, tmp_path):
    """On a CPU, with modules that capture nothing: they are gone before what was registered first
    runs at exit, at a run's end and after an error."""
    script = "ppo_atari_envpool_multigpu_torchcompile"
    text = (PPO / f"{script}.py").read_text()
    text = text.replace("from tensordict.nn import CudaGraphModule\n", GRAPHS)
    text = text.replace('if "cudagraphs" in modes:', "if True:")
    if error:
        text = insert("# Advantages", "raise ValueError")(text)
    path = tmp_path / "script.py"
    path.write_text(text)
    flags = [*TINY, "--env-id", "Pong-v5"]
    done = run_script(path, *flags, cwd=tmp_path)
    assert done.returncode == error, done.stderr
    lines = [line for line in done.stdout.splitlines() if line in ("graph gone", "exit goes on")]
    assert lines == ["graph gone"] * 2 + ["exit goes on"]


@pytest.mark.slow
def test_no_line_about_each_capture():
    """tensordict's logger, once a fast script is imported."""
    code = "import ppo_torchcompile; from tensordict.utils import logger; print(logger.level)"
    env = {key: value for key, value in os.environ.items() if key != "TD_LOGGING_LEVEL"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=PPO, env=env, capture_output=True, text=True)
    assert int(done.stdout) >= logging.WARNING


def test_run_sh_by_a_link(tmp_path):
    link = tmp_path / "ppo-run"
    link.symlink_to(ROOT / "run.sh")
    done = subprocess.run([link, "nothing"], capture_output=True, text=True)
    assert done.returncode == 2 and "there are: ppo " in done.stderr


def test_run_sh_says_that_a_blank_stops_compiling(tmp_path):
    """PyTorch issue 191010."""
    clone = tmp_path / "a clone"
    (clone / "ppo").mkdir(parents=True)
    for path in ("run.sh", "ppo/ppo.py"):
        (clone / path).write_text((ROOT / path).read_text())
    command = ["bash", str(clone / "run.sh"), "ppo", "--compile"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHON": "/bin/false"})
    assert "blank" in done.stderr.splitlines()[0] and "191010" in done.stderr
