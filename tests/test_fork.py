"""What surrounds a fork: run.sh fork, a path in place of a name, check and compare."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import check
import compare
import fork as fork_module
import pytest
from helpers import PPO, ROOT

import torch

PATCH = """\
diff --git a/ppo/ppo.py b/ppo/ppo.py
index 8655271..ce37a75 100644
--- a/ppo/ppo.py
+++ b/ppo/ppo.py
@@ -210,3 +210,4 @@ def ppo_loss(newlogprob, entropy, newvalue, mb, args):
 
     entropy_loss = masked_mean(entropy, valid)
+    v_loss = 2 * v_loss
     loss = pg_loss - args.ent_coef * entropy_loss + args.vf_coef * v_loss
"""
# of its two hunks the fast version takes the second alone: before the first one's last lines it has
# lines of its own
HALF = """\
--- a/ppo/ppo.py
+++ b/ppo/ppo.py
@@ -368,5 +368,6 @@ if __name__ == "__main__":
     running_returns = np.zeros(N)
     running_lengths = np.zeros(N)
+    best_return = -np.inf
 
     run_dir, writer = open_run(args, global_step)
     total = args.num_iterations * args.batch_size
@@ -436,4 +437,5 @@ if __name__ == "__main__":
         recent = episodic_returns[-max(100, N) :]
         mean_return = float(np.mean(recent)) if recent else None
+        best_return = max(best_return, mean_return or -np.inf)
         score = f"mean return {mean_return:.2f}" if recent else "no episode has ended yet"
         progress.set_postfix_str(score, refresh=False)
"""


def tool(name, *words, cwd=ROOT, **env):
    """Runs one of benchmarks/, as run.sh does."""
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / f"{name}.py", *map(str, words)],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )


def fork(path, *patches):
    """A fork of ppo under this path; what the command says."""
    flags = ["--patch", *patches] if patches else []
    return tool("fork", "ppo", path, *flags)


@pytest.fixture
def here(monkeypatch, capfd):
    """As tool, in this process, which has imported what takes seconds."""

    def run(module, *words):
        monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, words)])
        monkeypatch.setattr(sys, "path", [*sys.path])
        try:
            status = module.main()
        except SystemExit as stop:
            status = stop.code
        return SimpleNamespace(returncode=status, **capfd.readouterr()._asdict())

    return run


def test_fork(tmp_path):
    """Both files, the change in each, and what to type next; a second time nothing is touched."""
    (tmp_path / "a.patch").write_text(PATCH)
    done = fork(tmp_path / "idea/mine.py", tmp_path / "a.patch")
    assert done.returncode == 0, done.stderr
    for name, source in (("mine", "ppo"), ("mine_torchcompile", "ppo_torchcompile")):
        lines = (tmp_path / f"idea/{name}.py").read_text().splitlines()
        before = (PPO / f"{source}.py").read_text().splitlines()
        assert "    v_loss = 2 * v_loss" in lines
        assert [line for line in lines if line != "    v_loss = 2 * v_loss"] == before
    for words in ("./run.sh", "diff -u", "./run.sh check", "./run.sh compare"):
        assert f" {words} " in done.stdout, words
    texts = {path: path.read_text() for path in (tmp_path / "idea").iterdir()}
    done = fork(tmp_path / "idea/mine")
    assert done.returncode == 2 and "there already" in done.stderr
    assert {path: path.read_text() for path in (tmp_path / "idea").iterdir()} == texts


def test_all_or_nothing(tmp_path):
    """Which patch, which file, which hunk, the way on; and no file, not even a folder."""
    (tmp_path / "a.patch").write_text(PATCH)
    (tmp_path / "half.patch").write_text(HALF)
    (tmp_path / "two.patch").write_text(PATCH + PATCH.replace("ppo.py", "ppo_rnd.py"))
    done = fork(tmp_path / "idea/mine", tmp_path / "half.patch")
    assert done.returncode == 2
    for word in ("half.patch", "ppo/ppo_torchcompile.py", "hunk 1 of 2", "--edited"):
        assert word in done.stderr
    assert "hunk 2" not in done.stderr
    done = fork(tmp_path / "idea/mine", tmp_path / "two.patch")
    assert done.returncode == 2 and "changes 2 files" in done.stderr
    done = tool("fork", "ppo_eval", tmp_path / "idea/mine")
    assert done.returncode == 2 and "half a pair" in done.stderr
    done = tool("fork", "ppo", tmp_path / "idea/mine", "--patch", tmp_path / "none.patch")
    assert done.returncode == 2 and "none.patch" in done.stderr
    assert not (tmp_path / "idea").exists()


def test_ideas_together(tmp_path):
    """By their names: two that each add a flag to one place are merged, in both files; two that
    change the same line are refused with it. So is a name that there is not."""
    done = fork(tmp_path / "both", "kl_adaptive", "dual_clip")
    assert done.returncode == 0, done.stderr
    for name in ("both.py", "both_torchcompile.py"):
        args = runpy.run_path(str(tmp_path / name), run_name="both")["Args"]()
        assert (args.desired_kl, args.dual_clip) == (0.01, 3.0)
        text = (tmp_path / name).read_text()
        assert "torch.min(pg_loss, bound)" in text and "lr.clamp_" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["both.py", "both_torchcompile.py"]
    done = fork(tmp_path / "two", "dual_clip", "spo")
    assert done.returncode == 2 and "spo.patch collides" in done.stderr
    assert "both change 'pg_loss2 = -advantages * ratio.clamp(" in done.stderr
    done = fork(tmp_path / "two", "nothing")
    assert done.returncode == 2 and "no patch 'nothing'; ppo/ideas has a" in done.stderr
    assert len([*tmp_path.iterdir()]) == 2


def test_edited(tmp_path):
    """A fast version follows its eager one: lines where no patch fits, and one beside which it has
    added lines; a second time nothing changes, and what stood there is kept."""
    fork(tmp_path / "mine")
    eager, fast = tmp_path / "mine.py", tmp_path / "mine_torchcompile.py"
    before = fast.read_text()
    text = HALF.replace("ppo/ppo.py", "mine.py")
    subprocess.run(["git", "apply", "-"], input=text, cwd=tmp_path, text=True, check=True)
    waits = "measure_burnin: int = 3", "measure_burnin: int = 4"
    eager.write_text(eager.read_text().replace(*waits))
    for _ in range(2):
        done = tool("fork", "ppo", eager, "--edited")
        assert done.returncode == 0 and "has the edits of" in done.stdout, done.stderr
        added = [line[1:] for line in HALF.splitlines() if line.startswith("+ ")]
        lines = fast.read_text().splitlines()
        assert len(added) == 2 and all(lines.count(line) == 1 for line in added)
        left = "\n".join(line for line in lines if line not in added) + "\n"
        assert left == before.replace(*waits) != before
        assert fast.with_name(f"{fast.name}~").read_text() == before
    fast.write_text(f"{before}# by hand\n")
    assert tool("fork", "ppo", eager, "--edited").returncode == 0
    assert fast.with_name(f"{fast.name}~1").read_text() == f"{before}# by hand\n"
    assert fast.with_name(f"{fast.name}~").read_text() == before
    fast.unlink()  # as of a file that was copied alone
    assert tool("fork", "ppo", eager, "--edited").returncode == 0
    assert fast.read_text().splitlines() == lines


def test_what_edited_drops_is_said(tmp_path):
    """Lines of the fast version before that are neither the eager one's nor the pair's."""
    fork(tmp_path / "mine")
    fast = tmp_path / "mine_torchcompile.py"
    fast.write_text(f"{fast.read_text()}print('by hand')\n")
    done = tool("fork", "ppo", tmp_path / "mine", "--edited")
    assert "of which 1 lines are dropped, the first 'print('by hand')'" in done.stdout
    done = tool("fork", "ppo", tmp_path / "mine", "--edited")
    assert "the one before" not in done.stdout, "nothing has changed"


def test_a_folder_keeps_the_name(tmp_path, monkeypatch):
    """One that is there, or that ends with /; . and .., and names of modules, are refused."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    for path in ("there", "new/sub/"):
        done = tool("fork", "ppo", path, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / path / "ppo.py").read_bytes() == (PPO / "ppo.py").read_bytes()
        assert (tmp_path / path / "ppo_torchcompile.py").exists()
    assert tool("fork", "ppo", "there/", "--edited", cwd=tmp_path).returncode == 0
    for path, said in (
        (".", "'.' is no name; ./ppo is one"),
        ("..", "'..' is no name; ../ppo is one"),
        ("typing", "typing.py would be imported in place of 'typing'"),
        ("x/torch.py", "torch.py would be imported in place of 'torch'"),
        (".py", "'.py' has no name"),
    ):
        done = tool("fork", "ppo", path, cwd=tmp_path)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and said in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"there", "new"}


def test_a_patch_of_any_encoding_and_anyones_settings(tmp_path):
    """Latin-1, a byte order mark, PowerShell's UTF-16; blanks at an end that git's settings would
    refuse, and line ends that they would change. Without lines of context it says why not."""
    text = (fork_module.IDEAS / "rpo.patch").read_text()
    assert "±" in text
    (tmp_path / "latin.patch").write_bytes(text.encode("latin-1"))
    (tmp_path / "mark.patch").write_bytes(text.encode("utf-8-sig"))
    (tmp_path / "power.patch").write_bytes(text.replace("\n", "\r\n").encode("utf-16"))
    (tmp_path / "blank.patch").write_text(text.replace("actions = mb", "actions = mb  ", 1))
    settings = "[apply]\nwhitespace = error-all\n[core]\nwhitespace = cr-at-eol\nautocrlf = true\n"
    (tmp_path / "settings").write_text(settings)
    env = {"GIT_CONFIG_GLOBAL": str(tmp_path / "settings"), "GIT_DIR": str(tmp_path)}
    found = {}
    for name in ("latin", "mark", "power"):
        words = ["ppo_continuous_action", tmp_path / name, "--patch", tmp_path / f"{name}.patch"]
        done = tool("fork", *words, **env)
        assert done.returncode == 0, done.stderr
        found[name] = (tmp_path / f"{name}_torchcompile.py").read_bytes()
    assert len({*found.values()}) == 1 and b"\r" not in found["mark"]
    blank = PATCH.replace("v_loss = 2 * v_loss", "v_loss = 2 * v_loss   ")
    (tmp_path / "a.patch").write_text(blank)
    done = tool("fork", "ppo", tmp_path / "a", "--patch", tmp_path / "a.patch", **env)
    assert done.returncode == 0, done.stderr
    assert "    v_loss = 2 * v_loss   \n" in (tmp_path / "a.py").read_text()
    hunk = "@@ -212,0 +213 @@ def ppo_loss(newlogprob, entropy, newvalue, mb, args):\n"
    bare = re.sub(r"(?s)^@@.*", f"{hunk}+    v_loss = 2 * v_loss\n", PATCH, flags=re.MULTILINE)
    (tmp_path / "bare.patch").write_text(bare)
    done = fork(tmp_path / "bare", tmp_path / "bare.patch")
    assert done.returncode == 2 and "make it without -U0" in done.stderr
    assert len(done.stderr.splitlines()) == 1 and not (tmp_path / "bare.py").exists()


def test_a_script_is_read_as_python_reads_it(tmp_path):
    """By its byte order mark, or its coding line, which the fast version keeps."""
    fork(tmp_path / "mine")
    eager, fast = tmp_path / "mine.py", tmp_path / "mine_torchcompile.py"
    before, text = fast.read_text(), eager.read_text()
    assert "±" in text
    eager.write_text(text, "utf-8-sig")
    done = tool("fork", "ppo", eager, "--edited")
    assert done.returncode == 0 and fast.read_text("utf-8") == before, done.stderr
    eager.write_text(text.replace("±", "±±"), "utf-8-sig")
    assert tool("fork", "ppo", eager, "--edited").returncode == 0
    assert "±±" in fast.read_text("utf-8")
    coding = "# -*- coding: latin-1 -*-\n"
    eager.write_text(coding + text, "latin-1")
    done = tool("fork", "ppo", eager, "--edited")
    assert done.returncode == 0, done.stderr
    assert fast.read_text("latin-1") == coding + before
    compile(fast.read_bytes(), fast, "exec")
    eager.write_text(text, "latin-1")  # and says nothing of it
    done = tool("fork", "ppo", eager, "--edited")
    assert done.returncode == 2 and "mine.py: " in done.stderr and "Traceback" not in done.stderr


def test_a_line_is_found_by_its_indentation():
    """Where a side has added the same text further in, above the line that the other changes; where
    it has moved the line, nothing is guessed."""
    merge = fork_module.three_ways
    assert merge("if x:\n  b\nb\n", "b\n", "B\n", beside=True) == "if x:\n  b\nB\n"
    for mine, beside in (("if x:\n  b\n", True), ("b\nb\n", True), ("a\nb\n", False)):
        with pytest.raises(ValueError, match="^b$"):
            merge(mine, "b\n", "B\n", beside=beside)
    assert merge("a\nb\n", "a\n\nb\n", "a\n\nX\nb\n") == "a\n\nX\nb\n", "a blank line went"
    assert merge("a\n\nX\nb\n", "a\n\nb\n", "a\nb\n") == "a\n\nX\nb\n"
    with pytest.raises(ValueError, match="^Y$"):  # a name, where the line itself is blank
        merge("a\nY\nb\n", "a\n\nb\n", "a\nX\nb\n")
    with pytest.raises(fork_module.Failure, match="binary"):  # git's own error, no empty file
        merge("a\0", "b\0", "c\0")


def test_what_does_not_follow(tmp_path):
    """A line that the fast version rewrites is named, and nothing is written."""
    name = "ppo_atari_envpool"
    assert tool("fork", name, tmp_path / "mine").returncode == 0
    eager, fast = tmp_path / "mine.py", tmp_path / "mine_torchcompile.py"
    before = fast.read_text()
    text = eager.read_text()
    stored = "            obs[step + 1] = torch.from_numpy(next_obs)  # sync\n"
    for old, new in (  # the fast version has both with another indentation
        ("value = act(agent, obs[step])\n", "value = act(average, obs[step])\n"),
        (stored, f"            next_obs = 255 - next_obs\n{stored}"),
    ):
        assert text.count(old) == 1
        eager.write_text(text.replace(old, new))
        done = tool("fork", name, eager, "--edited")
        assert done.returncode == 2 and "change both by hand" in done.stderr, done
    done = tool("fork", "ppo", eager, "--edited")
    assert done.returncode == 2 and "has the FORMAT of ppo_atari" in done.stderr, done
    assert fast.read_text() == before and len([*tmp_path.iterdir()]) == 2
    for words, said in ((["--patch", "spo"], "no --patch"), ([], "none.py")):
        done = tool("fork", "ppo", tmp_path / "none", "--edited", *words)
        assert done.returncode == 2 and said in done.stderr and "Nothing was written" in done.stderr


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A fork of ppo as it is."""
    folder = tmp_path_factory.mktemp("idea")
    assert fork(folder / "mine").returncode == 0
    return folder / "mine.py"


def table(done):
    """Of check's lines: {check: (result, what was seen)}."""
    lines = re.findall(r"^(\S+(?: \w+)?) +(ok|FAIL) +(.+)$", done.out, re.MULTILINE)
    return {name: (result, seen) for name, result, seen in lines}


@pytest.mark.slow
def test_check(pair, here, monkeypatch):
    """All of a good pair; no C++ is written here, as test_parity does."""
    monkeypatch.setattr(check, "BACKEND", "eager")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # its speed
    done = here(check, pair, "--compile", "--env-id", "Acrobot-v1")
    found = table(done)
    wanted = ["same losses", "--compile", "--resume", "a GPU", "ppo_eval", "diff", "speed"]
    assert list(found) == wanted and {result for result, _ in found.values()} == {"ok"}, done.out
    assert done.returncode == 0 and not done.err


def checked(old, new, pair, folder, names=("mine_torchcompile",)):
    """A pair to be checked, with that in place of a line of these files."""
    for name in ("mine", "mine_torchcompile"):
        text = pair.with_stem(name).read_text()
        assert text.count(old) == 1
        (folder / f"{name}.py").write_text(text.replace(old, new) if name in names else text)
    return check.Pair(folder / "mine.py", folder / "mine_torchcompile.py", [], folder)


BREAKS = {  # a line of the fast version, what stands there instead, what sees it and says
    "loss": ("v_loss = 0.5 * masked_mean", "v_loss = 0.4 * masked_mean", "same", "losses/"),
    "resume": (
        '"agent": agent.state_dict()',
        '"agent": {key: 0 * x for key, x in agent.state_dict().items()}',
        "resumed",
        "lacks what is in agent",
    ),
    "average": (
        "episodic_returns = []",
        "early, episodic_returns = __import__('copy').deepcopy(agent), []",
        "resumed",
        "lacks what is in early",
    ),
    "flag": ("gamma: float = 0.99", "gamme: float = 0.99", "same", "gamma"),
    "capture": (
        "    loss.backward()",
        "    loss.item()\n    loss.backward()",
        "on_a_gpu",
        "a CUDA graph cannot hold",
    ),
}


@pytest.mark.parametrize("broken", BREAKS)
def test_check_sees_a_broken_pair(broken, pair, tmp_path, capfd):
    old, new, sees, said = BREAKS[broken]
    one = checked(old, new, pair, tmp_path)
    if sees != "same":
        one.same()
    one.say("it", getattr(one, sees))
    out = capfd.readouterr().out
    assert one.failed == 1 and re.search(f"^it +FAIL +.*{said}", out, re.MULTILINE), out


CLIP = "ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)"
ON_A_GPU = {  # a line of both versions, what stands there instead, the result and what is said
    "host": ("self.actor(obs)", "self.actor(obs + torch.zeros(4))", "FAIL", "cuda:0 and on cpu"),
    "numpy": ("] = reward\n", "] = reward + 0 * obs[0].numpy().sum()\n", "FAIL", "to numpy"),
    "number": (CLIP, CLIP.replace("coef", "coef * frac"), "FAIL", "keep 0.825 in place of 0.85"),
    "wait": (
        "] = reward\n",
        "] = reward + 0 * float(obs[0, 0, 0])\n",
        "ok",
        "waits without `sync`",
    ),
}


@pytest.mark.parametrize("edit", ON_A_GPU)
def test_check_sees_what_a_gpu_would_refuse(edit, pair, tmp_path):
    """And in which line, where a CPU does it."""
    old, new, result, said = ON_A_GPU[edit]
    one = checked(old, new, pair, tmp_path, ("mine", "mine_torchcompile"))
    name = "mine_torchcompile" if edit == "number" else "mine"  # the first to see it
    at = pair.with_stem(name).read_text().partition(old)[0].count("\n") + 1
    one.same()
    if result == "FAIL":
        with pytest.raises(check.Failure, match=rf"{name}.py:{at}: .*{said}"):
            one.on_a_gpu()
    else:
        assert f"{said}: mine.py:{at}, " in one.on_a_gpu()


def test_check_says_what_it_cannot_check(pair, tmp_path, here):
    """Half a pair, and flags that there are not: a message, status 2."""
    shutil.copy(pair, tmp_path)
    done = here(check, tmp_path / "mine.py")
    assert done.returncode == 2 and len(done.err.splitlines()) == 1 and not done.out
    assert "mine_torchcompile.py" in done.err
    done = here(check, pair, "--no-such-flag")
    assert done.returncode == 2 and "--no-such-flag" in done.err and not done.out


@pytest.mark.slow
def test_compare(pair, tmp_path, here):
    """A seed of each, in processes; the same code is not compared."""
    mine = tmp_path / "mine.py"
    mine.write_text(pair.read_text())
    words = ["ppo", mine, "--seeds", 1, "--total-timesteps", 256, "--folder", tmp_path / "compare"]
    words += ["--", "--num-envs", 1, "--num-steps", 64, "--no-cuda", "--ent-coef", 0.02]
    done = here(compare, *words)
    assert done.returncode == 2 and "the same code" in done.err
    mine.write_text(pair.read_text().replace("gamma: float = 0.99 ", "gamma: float = 0.9 "))
    done = here(compare, *words)
    assert done.returncode == 0 and "2 runs to do, 0 with" in done.err, done.err
    for row in ("| `ppo` | 1 | ", "| `mine` | 1 | "):
        assert row in done.out, done.out
    path = tmp_path / "compare/runs.jsonl"
    runs = [json.loads(line)["args"] for line in path.read_text().splitlines()]
    assert {(run["gamma"], run["ent_coef"]) for run in runs} == {(0.99, 0.02), (0.9, 0.02)}
    assert (tmp_path / "compare/curves.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ppo"], "required"),
        (["ppo", "ppo_eval"], "ppo_eval.py has no --env-id"),
        (["ppo", "ppo_torchcompile", "--", "--compile"], "ppo.py has no --compile"),
        (["ppo", "ppo:no-such"], "ppo.py has no --no-such"),
        (["ppo", "nowhere/ppo"], "no script 'nowhere/ppo'"),
        (["ppo", "ppo --ent-coef 0", "--", "--env-id", "X"], "before any --: --env-ids"),
        (["ppo", "ppo --seed=3"], "before any --: --seeds"),
    ],
)
def test_what_cannot_be_compared(words, said, tmp_path, here, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = here(compare, *words)
    assert done.returncode == 2 and said in done.err and not done.out
    assert not [*tmp_path.iterdir()]


def stub(folder, script):
    """run.sh beside a python that tells what it is asked to do, as if all were installed but for
    what some scripts need; the fork `script` of that text in folder."""
    for name in ("python", "torchrun"):
        path = folder / ".venv/bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho {name} ${{MALLOC_TRIM_THRESHOLD_:+kept}} "$@" >&2\n')
        path.chmod(0o755)
    (folder / "ppo").mkdir()
    (folder / "requirements").symlink_to(ROOT / "requirements")
    text = (ROOT / "run.sh").read_text()
    ready = text[text.index("fingerprint()") : text.index("ready()")]
    stamp = f"root={folder} venv={folder}/.venv\n{ready}\nfingerprint requirements"
    stamp = subprocess.run(["bash", "-c", stamp], capture_output=True, check=True).stdout
    (folder / ".venv/.requirements").write_bytes(stamp)
    (folder / "run.sh").write_text(text)
    (folder / "idea").mkdir()
    (folder / "idea/mine.py").write_text(script)
    return folder / "idea/mine.py"


@pytest.mark.parametrize(
    ("name", "needs", "runner"),
    [
        ("ppo", [], "python"),
        ("ppo_pettingzoo", ["pettingzoo"], "python"),
        ("ppo_continuous_action_envpool", [], "python"),
        ("ppo_continuous_action_warp_torchcompile", ["warp"], "python"),
        ("ppo_atari", [], "python"),
        ("ppo_atari_envpool_multigpu", [], "torchrun"),
    ],
    ids=["plain", "agents", "pool", "device", "ale", "processes"],
)
def test_run_sh_takes_a_path(name, needs, runner, tmp_path):
    """And decides by the text of the file, not by its name, what to install and how to run it."""
    mine = stub(tmp_path, (PPO / f"{name}.py").read_text())

    def call(*words):
        command = ["bash", tmp_path / "run.sh", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    for path in (mine, mine.with_suffix(""), "idea/mine.py"):
        done = call(path, "--seed", "3")
        said = done.stderr.splitlines()[-1].split()
        assert said[0] == runner and said[-2:] == ["--seed", "3"]
        assert tmp_path / said[-3] == mine
        if path == mine:
            assert re.findall(r"-r \S+/requirements-(\w+)\.txt", done.stderr) == needs
    assert "kept" not in said or "atari" in name
    done = call("idea/none.py")
    assert done.returncode == 2 and "idea/none.py" in done.stderr


def test_run_sh_keeps_small_networks_off_a_gpu(tmp_path):
    """The eager versions that it slows down, unless asked to; not those that go on with a run."""
    stub(tmp_path, "")
    text = (tmp_path / "run.sh").read_text()
    (tmp_path / "run.sh").write_text(text.replace("/dev/nvidiactl", str(tmp_path / "gpu")))
    for name in ("ppo", "ppo_torchcompile"):
        (tmp_path / f"ppo/{name}.py").touch()

    def given(*words):
        command = ["bash", tmp_path / "run.sh", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stderr.splitlines()[-1].partition(".py ")[2]

    assert given("ppo", "--seed", "3") == "--seed 3"
    (tmp_path / "gpu").touch()
    assert given("ppo", "--seed", "3") == "--no-cuda --seed 3"
    for words in (["ppo", "--cuda"], ["ppo", "--resume", "x"], ["ppo_torchcompile", "--compile"]):
        assert given(*words) == " ".join(words[1:])
