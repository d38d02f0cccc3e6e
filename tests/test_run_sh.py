"""run.sh: what it installs and runs, by a python that tells what it is asked to do."""

import re
import subprocess

import pytest
from helpers import PPO, ROOT, SCRIPTS

STUB = '#!/bin/sh\n[ "$1" = -c ] && echo 7\necho {} "$@" >&2\n'  # 7 GPUs


def run_sh(root, *words, **more):
    command = ["bash", root / "run.sh", *map(str, words)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, **more)


def installed(done):
    """The files of requirements that a call has installed, here, whatever pip's settings say."""
    return re.findall(r"--target= -r \S+/requirements-(\w+)\.txt", done.stderr)


@pytest.fixture
def clone(tmp_path):
    """Where what all need is installed, and `gpu` is a GPU's device."""
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for name in ("python", "torchrun"):
        path = tmp_path / ".venv/bin" / name
        path.write_text(STUB.format(name))
        path.chmod(0o755)
    for folder in ("ppo", "requirements"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    text = (ROOT / "run.sh").read_text()
    (tmp_path / "run.sh").write_text(text.replace("/dev/nvidiactl", f"{tmp_path}/gpu"))
    ready = text[text.index("fingerprint()") : text.index("ready()")]
    stamp = f"root={tmp_path} venv={tmp_path}/.venv\n{ready}\nfingerprint requirements"
    stamp = subprocess.run(["bash", "-c", stamp], capture_output=True, check=True).stdout
    (tmp_path / ".venv/.requirements").write_bytes(stamp)
    return tmp_path


def test_what_there_is_and_is_not(tmp_path):
    """By a link to it, too."""
    done = run_sh(ROOT, "--help")
    assert done.returncode == 0 and all(name in done.stdout for name in SCRIPTS)
    (tmp_path / "run.sh").symlink_to(ROOT / "run.sh")
    for word in ("ppo_atari_envpol", "idea/none.py"):
        done = run_sh(tmp_path, word)
        assert done.returncode == 2 and not done.stdout and len(done.stderr.splitlines()) == 1
        assert f"no script '{word}'; there are: ppo " in done.stderr


RUNS = {  # of a script: what is installed, what runs it
    "ppo_pixels": ([], "python"),
    "ppo_pettingzoo": (["pettingzoo"], "python"),
    "ppo_continuous_action_warp_torchcompile": (["warp"], "python"),
    "ppo_atari_envpool_multigpu": ([], "torchrun --standalone --nproc-per-node 7"),
}


def test_a_path_is_run_as_its_text_needs(clone):
    """Not as its name does."""
    mine = clone / "idea/mine.py"
    mine.parent.mkdir()
    for name, (needs, runner) in RUNS.items():
        mine.write_text((PPO / f"{name}.py").read_text())
        for path in (mine, mine.with_suffix(""), "idea/mine.py"):
            done = run_sh(clone, path, "--seed", 3)
            said, _, found = done.stderr.splitlines()[-1].removesuffix(" --seed 3").rpartition(" ")
            assert said == runner and clone / found == mine
            assert installed(done) == (needs if path == mine else [])


COMMANDS = {
    "fork ppo mine": "benchmarks/fork.py ppo mine",
    "check mine.py --compile": "benchmarks/check.py mine.py --compile",
    "compare ppo mine.py": "benchmarks/compare.py ppo mine.py",
    "tune --trials 2": "benchmarks/tune.py --trials 2",
    "bench": "benchmarks/throughput.py --quick",
    "ppo_eval runs/x": "ppo/ppo_eval.py runs/x",
    "ppo_eval runs/x --follow": "benchmarks/follow.py runs/x --follow",
    "": "ppo/ppo_atari_envpool_torchcompile.py --compile --cudagraphs",
}


@pytest.mark.parametrize("words", COMMANDS)
def test_what_a_command_runs(words, clone):
    said = run_sh(clone, *words.split()).stderr.splitlines()[-1]
    assert said.replace(f"{clone}/", "") == f"python {COMMANDS[words]}"


def test_what_ppo_eval_needs_is_installed(clone):
    for words, needs in (
        (["runs/x"], []),
        (["runs/ppo_pettingzoo", "--onnx"], ["pettingzoo", "onnx"]),
        (["runs/x", "--onnx", "--episodes", 1], []),  # it is there
    ):
        assert installed(run_sh(clone, "ppo_eval", *words)) == needs


def test_a_small_network_stays_off_a_gpu(clone):
    """The eager version that it slows down, unless asked to; not what goes on with a run."""

    def given(*words):
        return run_sh(clone, *words).stderr.splitlines()[-1].partition(".py ")[2]

    assert given("ppo", "--seed", 3) == "--seed 3"
    (clone / "gpu").touch()
    assert given("ppo", "--seed", 3) == "--no-cuda --seed 3"
    for words in (["ppo", "--cuda"], ["ppo", "--resume", "x"], ["ppo_torchcompile", "--compile"]):
        assert given(*words) == " ".join(words[1:])
