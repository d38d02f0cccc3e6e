"""The commands for a fork: fork itself, check and compare."""

import json
import re
import runpy
import shutil
import subprocess
import sys
from functools import partial

import check
import pytest
from fork import three_ways
from helpers import PPO, ROOT, command
from lib.records import Failure

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


def fork(*words):
    """Runs it as run.sh does; its status, and what it says."""
    words = [sys.executable, ROOT / "benchmarks/fork.py", *map(str, words)]
    return subprocess.run(words, capture_output=True, text=True)


def refused(said, *words):
    """In one line."""
    done = fork(*words)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert not done.stdout and "Traceback" not in done.stderr
    return done.stderr


def test_fork(tmp_path, monkeypatch):
    """Both files, the change in each, and what to type next; a second time nothing is touched."""
    monkeypatch.chdir(ROOT)
    (tmp_path / "a.patch").write_text(PATCH)
    done = fork("ppo", tmp_path / "idea/mine.py", "--patch", tmp_path / "a.patch")
    assert done.returncode == 0, done.stderr
    for name, source in (("mine", "ppo"), ("mine_torchcompile", "ppo_torchcompile")):
        lines = (tmp_path / f"idea/{name}.py").read_text().splitlines()
        before = (PPO / f"{source}.py").read_text().splitlines()
        assert "    v_loss = 2 * v_loss" in lines
        assert [line for line in lines if line != "    v_loss = 2 * v_loss"] == before
    for words in ("./run.sh", "diff -u", "./run.sh check", "./run.sh compare"):
        assert f" {words} " in done.stdout, words
    done = fork("ppo", tmp_path / "other", "--patch", "multidiscrete")
    assert "check " in done.stdout and "compare " not in done.stdout  # ppo has no such actions
    texts = {path: path.read_text() for path in (tmp_path / "idea").iterdir()}
    refused("there already", "ppo", tmp_path / "idea/mine")
    assert {path: path.read_text() for path in (tmp_path / "idea").iterdir()} == texts


def test_all_or_nothing(tmp_path):
    """Which patch, which file, which hunk, the way on; and no file, not even a folder."""
    two = PATCH + PATCH.replace("ppo.py", "ppo_rnd.py")
    for name, text, said in (
        ("half", HALF, r"half.patch does not fit \S*ppo/ppo_torchcompile.py: hunk 1 of 2,"),
        ("two", two, "two.patch changes 2 files"),
    ):
        (tmp_path / f"{name}.patch").write_text(text)
        words = ["ppo", tmp_path / "idea/mine", "--patch", tmp_path / f"{name}.patch"]
        found = refused("Nothing was written", *words)
        assert re.search(said, found) and ("--edited" in found) == ("does not fit" in said)
        assert "hunk 2" not in found
    for said, *words in (
        ("half a pair", "ppo_eval", tmp_path / "idea/mine"),
        ("no patch 'none'; ppo/ideas has a", "ppo", tmp_path / "idea/mine", "--patch", "none"),
        ("rpo.patch is not for ppo. It fits", "ppo", tmp_path / "idea/mine", "--patch", "rpo"),
    ):
        refused(said, *words)
    assert not (tmp_path / "idea").exists()


def test_ideas_together(tmp_path):
    """By their names: two that each add a flag to one place are merged, in both files; two that
    change the same line are refused with it."""
    done = fork("ppo", tmp_path / "both", "--patch", "kl_adaptive", "dual_clip")
    assert done.returncode == 0, done.stderr
    for name in ("both.py", "both_torchcompile.py"):
        args = runpy.run_path(str(tmp_path / name), run_name="both")["Args"]()
        assert (args.desired_kl, args.dual_clip) == (0.01, 3.0)
        text = (tmp_path / name).read_text()
        assert "torch.min(pg_loss, bound)" in text and "lr.clamp_" in text
    found = refused("spo.patch collides", "ppo", tmp_path / "x", "--patch", "dual_clip", "spo")
    assert "both change 'pg_loss2 = -advantages * ratio.clamp(" in found
    assert sorted(path.name for path in tmp_path.iterdir()) == ["both.py", "both_torchcompile.py"]


def test_edited(tmp_path):
    """A fast version follows its eager one: lines where no patch fits, and one beside which it has
    added lines; a second time nothing changes. What stood there is kept."""
    fork("ppo", tmp_path / "mine")
    eager, fast = tmp_path / "mine.py", tmp_path / "mine_torchcompile.py"
    before = fast.read_text()
    text = HALF.replace("ppo/ppo.py", "mine.py")
    subprocess.run(["git", "apply", "-"], input=text, cwd=tmp_path, text=True, check=True)
    waits = "measure_burnin: int = 3", "measure_burnin: int = 4"
    eager.write_text(eager.read_text().replace(*waits))
    for again in range(2):
        done = fork("ppo", eager, "--edited")
        assert done.returncode == 0 and "has the edits of" in done.stdout, done.stderr
        assert ("the one before" in done.stdout) != again
        added = [line[1:] for line in HALF.splitlines() if line.startswith("+ ")]
        lines = fast.read_text().splitlines()
        assert len(added) == 2 and all(lines.count(line) == 1 for line in added)
        left = "\n".join(line for line in lines if line not in added) + "\n"
        assert left == before.replace(*waits) != before
        assert fast.with_name(f"{fast.name}~").read_text() == before
    fast.write_text(f"{before}# by hand\n")
    done = fork("ppo", eager, "--edited")
    assert "the one before" in done.stdout
    assert fast.with_name(f"{fast.name}~").read_text() == f"{before}# by hand\n"
    words = [sys.executable, "-u", ROOT / "benchmarks/fork.py", "ppo", eager, "--edited"]
    with open("/dev/full", "w") as full:  # what cannot be said has been done
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
    assert "No space left" in done.stderr and "Nothing was written" not in done.stderr
    fast.unlink()  # as of a file that was copied alone
    assert fork("ppo", eager, "--edited").returncode == 0
    assert fast.read_text().splitlines() == lines


def test_a_fork_knows_its_origin(tmp_path):
    """Another pair's fast version is refused its edits; and it takes a patch beside them."""
    assert fork("ppo", tmp_path / "mine").returncode == 0
    eager, fast = tmp_path / "mine.py", tmp_path / "mine_torchcompile.py"
    line = "    pg_loss = masked_mean(torch.max(pg_loss1, pg_loss2), valid)\n"
    assert line in (text := eager.read_text())
    eager.write_text(text.replace("# policy loss, -L_clip", "# mine"))
    assert fork("ppo", eager, "--edited").returncode == 0
    assert fork(eager, eager, "--edited").returncode == 0
    before = fast.read_text()
    refused("mine.py is a fork of ppo, not of ppo_lstm", "ppo_lstm", eager, "--edited")
    assert fast.read_text() == before
    done = fork(eager, tmp_path / "next", "--patch", "dual_clip")
    assert done.returncode == 0, done.stderr
    for name in ("next.py", "next_torchcompile.py"):
        text = (tmp_path / name).read_text()
        assert "# mine" in text and "torch.min(pg_loss, bound)" in text
    eager.write_text(eager.read_text().replace(line, line.replace("max", "min")))
    refused("both change 'pg_loss = ", eager, tmp_path / "x", "--patch", "dual_clip")


def test_a_folder_keeps_the_name(tmp_path, monkeypatch):
    """One that is there, or that ends with /."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    for path in ("there", "new/sub/"):
        done = fork("ppo", path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / path / "ppo.py").read_bytes() == (PPO / "ppo.py").read_bytes()
        assert (tmp_path / path / "ppo_torchcompile.py").exists()
    assert fork("ppo", "there/", "--edited").returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"there", "new"}


def test_a_line_is_found_by_its_indentation():
    """Where a side has added the same text further in, above the line that the other changes; where
    it has moved the line, nothing is guessed."""
    assert three_ways("if x:\n  b\nb\n", "b\n", "B\n", beside=True) == "if x:\n  b\nB\n"
    for mine, beside in (("if x:\n  b\n", True), ("b\nb\n", True), ("a\nb\n", False)):
        with pytest.raises(ValueError, match="^b$"):
            three_ways(mine, "b\n", "B\n", beside=beside)
    assert three_ways("a\nb\n", "a\n\nb\n", "a\n\nX\nb\n") == "a\n\nX\nb\n", "a blank line went"
    assert three_ways("a\n\nX\nb\n", "a\n\nb\n", "a\nb\n") == "a\n\nX\nb\n"
    with pytest.raises(ValueError, match="^Y$"):  # a name, where the line itself is blank
        three_ways("a\nY\nb\n", "a\n\nb\n", "a\nX\nb\n")
    with pytest.raises(Failure, match="binary"):  # git's own error, no empty file
        three_ways("a\0", "b\0", "c\0")


def test_what_does_not_follow(tmp_path):
    """A line that the fast version rewrites is named, and nothing is written."""
    name = "ppo_atari_envpool"
    assert fork(name, tmp_path / "mine").returncode == 0
    eager, fast = tmp_path / "mine.py", tmp_path / "mine_torchcompile.py"
    before, text = fast.read_text(), eager.read_text()
    stored = "            obs[step + 1] = torch.from_numpy(next_obs)  # sync\n"
    for old, new in (  # the fast version has both with another indentation
        ("value = act(agent, obs[step])\n", "value = act(average, obs[step])\n"),
        (stored, f"            next_obs = 255 - next_obs\n{stored}"),
    ):
        assert text.count(old) == 1
        eager.write_text(text.replace(old, new))
        refused("change both by hand", name, eager, "--edited")
    refused("no --patch", "ppo", tmp_path / "none", "--edited", "--patch", "spo")
    assert "Nothing was written" in refused("none.py", "ppo", tmp_path / "none", "--edited")
    assert fast.read_text() == before and len([*tmp_path.iterdir()]) == 2


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A fork of ppo as it is."""
    folder = tmp_path_factory.mktemp("idea")
    assert fork("ppo", folder / "mine").returncode == 0
    return folder / "mine.py"


@pytest.mark.slow
def test_check(pair, monkeypatch):
    """All of a good pair; no C++ is written here, as test_parity does."""
    monkeypatch.setattr(check, "BACKEND", "eager")
    monkeypatch.setattr(check, "TIMED", 1)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # its speed
    done = command("check", pair, "--compile", "--env-id", "Acrobot-v1")
    found = re.findall(r"^(\S+(?: \w+)?) +(ok|FAIL) +.+$", done.stdout, re.MULTILINE)
    wanted = ["same losses", "--compile", "--resume", "a GPU", "ppo_eval", "diff", "speed"]
    assert found == [(name, "ok") for name in wanted], done.stdout
    assert done.returncode == 0 and not done.stderr


def test_check_says_what_it_cannot_check(pair, tmp_path):
    """Half a pair, and flags that there are not: a message, status 2."""
    shutil.copy(pair, tmp_path)
    done = command("check", tmp_path / "mine.py")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and not done.stdout
    assert "mine_torchcompile.py" in done.stderr
    done = command("check", pair, "--no-such-flag")
    assert done.returncode == 2 and "--no-such-flag" in done.stderr and not done.stdout


@pytest.mark.slow
def test_compare(pair, tmp_path):
    """A seed of each, in processes; the same code is not compared."""
    mine = tmp_path / "mine.py"
    mine.write_text(pair.read_text())
    words = ["ppo", mine, "--seeds", 1, "--total-timesteps", 256, "--folder", tmp_path / "compare"]
    words += ["--", "--num-envs", 1, "--num-steps", 64, "--no-cuda", "--ent-coef", 0.02]
    done = command("compare", *words)
    assert done.returncode == 2 and "the same code" in done.stderr
    mine.write_text(pair.read_text().replace("gamma: float = 0.99 ", "gamma: float = 0.9 "))
    done = command("compare", *words)
    assert done.returncode == 0 and "2 runs to do, 0 with" in done.stderr, done.stderr
    for row in ("| `ppo` | 1 | ", "| `mine` | 1 | "):
        assert row in done.stdout, done.stdout
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
def test_what_cannot_be_compared(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = command("compare", *words)
    assert done.returncode == 2 and said in done.stderr and not done.stdout
    assert not [*tmp_path.iterdir()]
