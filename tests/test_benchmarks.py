"""The commands of benchmarks/: no record is lost or counts twice, what fails leaves the rest alone,
what is started ends with what has started it, tables come from records."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import compare
import learning
import numpy as np
import pytest
import report
import throughput
from helpers import PAIRS, PPO, ROOT, command, ended, wait_for
from lib import pairs, plots, records, runs, stats, tables

EAGER, FAST = "ppo_continuous_action", "ppo_continuous_action_torchcompile"


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def cells(row):
    return [cell.strip() for cell in row.strip("|").split("|")]


# Records


def test_a_broken_last_line_loses_no_record(tmp_path, capsys):
    path = tmp_path / "sub" / "x.jsonl"
    assert records.read(path) == []
    records.append(path, {"a": 1})
    with open(path, "a") as file:
        file.write('{"a": 2, "b"')  # killed in the middle
    assert records.read(path) == [{"a": 1}]
    assert "line 2" in capsys.readouterr().err
    records.append(path, {"a": 3})
    records.append(path, {"a": 4})
    assert records.read(path) == [{"a": 1}, {"a": 3}, {"a": 4}]
    assert path.read_text().splitlines()[1] == '{"a": 2, "b"'


def job(seed, **more):
    """A job of the engine's."""
    found = {"variant": "ppo", "code": "c", "flags": [], "env_id": "X-v1", "seed": seed}
    return found | {"total_timesteps": 9} | more


def test_a_record_counts_once_however_it_got_there(tmp_path):
    """Two files that were joined; the last record of a key counts. A run that was cut is gone on
    with, one that is complete is not made again."""
    path, made = tmp_path / "runs.jsonl", []
    lines = [job(seed, mean_return=1.0, complete=True, date=day) for day in "ab" for seed in (1, 2)]
    lines.append(job(3, mean_return=1.0, complete=False, date="a"))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [(r["seed"], r["date"]) for r in runs.records_of(path)] == [(1, "b"), (2, "b"), (3, "a")]

    def work(job, side):
        made.append(job["seed"])
        return {"mean_return": 2.0, "complete": True, "date": "c"}

    jobs = [(job(seed), None) for seed in (1, 2, 3, 4, 4)]
    assert runs.every(path, jobs, work, 1) == [] and made == [3, 4]
    assert [r["date"] for r in runs.records_of(path)] == ["b", "b", "c", "c"]
    # from before code was put down, and of other systems: by their names
    old = [
        {k: v for k, v in job(1, variant=name).items() if k != "code"} for name in ("ppo", "sb3")
    ]
    assert len({runs.key(record) for record in [*old, old[1] | {"pair": "ppo"}]}) == 3


def test_what_a_script_imports_belongs_to_its_code(tmp_path, monkeypatch):
    """Beside it, on PYTHONPATH, and the environment's module; no library, nor a folder of logs that
    is called as one."""
    texts = {
        "idea/mine.py": "import os, numpy, torch, wandb\nimport nets.wide\nfrom tools import x\n",
        "idea/nets/__init__.py": "",
        "idea/nets/wide.py": "size = 1\n",
        "idea/wandb/run.py": "z = 1\n",
        "path/tools.py": "from more import x\n",
        "path/more.py": "x = 1\n",
        "path/my_env.py": "y = 1\n",
        "copies/mine.py": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    script, beside = tmp_path / "idea/mine.py", tmp_path / "idea"

    def codes(script=script):
        ids = "CartPole-v1", "my_env:X-v0"
        return [records.code_of(script, beside, env_id) for env_id in ids]

    plain, named = codes()
    assert plain != named != records.fingerprint(script.read_text()) != plain
    for name, differ in (
        ("idea/nets/wide.py", (True, True)),
        ("path/more.py", (True, True)),
        ("path/my_env.py", (False, True)),
        ("idea/wandb/run.py", (False, False)),
    ):
        (tmp_path / name).write_text(texts[name].replace("1", "2"))
        found = codes()
        assert (found[0] != plain, found[1] != named) == differ, name
        (tmp_path / name).write_text(texts[name])
    # its name is a path where a copy runs
    assert codes(Path(shutil.copy(script, tmp_path / "copies"))) == [plain, named]
    (tmp_path / "path/my_env.py").write_text("print 'of another Python'\n")
    assert codes()[1] not in (named, plain)
    assert records.code_of(PPO / "ppo.py", PPO) == records.code("ppo")


def test_a_fingerprint_is_of_code_alone():
    text = '"""A."""\nx = f(1, None)  # b\n\n\ndef g(y):\n    """C."""\n    return y + 1\n'
    other = "# d\nx = f(\n    1,\n    None,\n)\ndef g(y):\n    # e\n    return (y + 1)\n"
    assert records.fingerprint(text) == records.fingerprint(other) == "a55b829e1d"
    for old, new in (("y + 1", "y - 1"), ("None", "False"), ("1,", "1.0,"), ("g(y)", "g(y, z)")):
        assert records.fingerprint(other.replace(old, new)) != records.fingerprint(other), old


def test_variants():
    assert records.split_variant("ppo") == ("ppo", [])
    assert records.split_variant("ppo:no-cuda+track") == ("ppo", ["--no-cuda", "--track"])
    more = "ppo_torchcompile:track --gamma 0.9"
    assert records.split_variant(more)[1] == ["--track", "--gamma", "0.9"]
    assert records.pair(more) == "ppo"


# Processes


def test_what_is_started_inherits(monkeypatch, tmp_path):
    """No setting of threads; from a cold start no kernels, and no precompiled header, which lies in
    the temporary folder."""
    monkeypatch.setenv("GOMP_SPINCOUNT", "9")
    names = "GOMP_SPINCOUNT", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR"
    code = f"import os; print(*(os.environ.get(name) for name in {names}))"
    said = records.run_process([sys.executable, "-c", code], records.cold(tmp_path))
    spins, *places = said.split()
    assert spins != "9" and all(Path(x).is_relative_to(tmp_path) for x in places)


# a training process that has started another one
CHILD = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.HOW)
other = subprocess.Popen(["sleep", "600"])
open(PIDS + ".new", "w").write(f"{os.getpid()} {other.pid}")
os.rename(PIDS + ".new", PIDS)
time.sleep(600)
"""
# The engine's views


def learned(variant, *returns, **more):
    """Records of runs, seeds from 0 on."""
    fields = {"variant": variant, "env_id": "Hopper-v4", "total_timesteps": 1_000_000}
    fields |= {"cpu": "P", "cores": 2, "gpu": None, "date": "2026-12-01", "commit": "c"}
    fields |= {"curve": [[1, 0.5, 1.0], [999_000, 2.0, 3.0]], "seconds": 90.0}
    fields |= {"global_step": 9, "complete": True, "args": {"env_kwargs": "{}"}, **more}
    return [{**fields, "seed": i, "mean_return": x} for i, x in enumerate(returns)]


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """compare.py on runs that take no time: returns by (variant, seed), or what they fail with."""
    returns = {}

    def train(job, side):
        found = returns.get((job["variant"], job["seed"]), float(job["seed"]))
        if isinstance(found, Exception):
            raise found
        more = {"mean_return": found, "curve": [[9, 1.0, found]] if found else [], "sps": 5}
        return more | {"complete": True, "date": "2026-01-02"}

    monkeypatch.setattr(compare, "train", train)
    monkeypatch.setattr(compare, "about", lambda at_once: {})
    words = ["ppo", "ppo --ent-coef 0.02", "--seeds", 4, "--folder", tmp_path / "f", "--jobs", 1]
    return SimpleNamespace(returns=returns, words=words, path=tmp_path / "f/runs.jsonl")


def test_what_is_no_score_is_named_and_the_others_count(fake):
    """A mean return of nan or inf, no episode, a seed that fails on one side alone."""
    other = "ppo --ent-coef 0.02"
    fake.returns |= {("ppo", 1): float("nan"), ("ppo", 2): None, (other, 3): float("-inf")}
    fake.returns[other, 4] = records.Failure("no such seed")
    done = command("compare", *fake.words)
    assert done.returncode == 1, done.stderr
    assert "| `ppo` | 2 | 3.50 ± 0.71 |" in done.stdout and f"| `{other}` | 2 | 1.50" in done.stdout
    for line in (
        "- ppo CartPole-v1 seed 1: its mean return is nan",
        "- ppo CartPole-v1 seed 2: no episode has ended",
        f"- {other} CartPole-v1 seed 3: its mean return is -inf",
        f"- {other} CartPole-v1 seed 4: no such seed",
    ):
        assert done.stdout.count(line) == 1, line
    assert (fake.path.parent / "curves.png").exists() and len(lines_of(fake.path)) == 7
    del fake.returns[other, 4]  # it alone is tried again
    done = command("compare", *fake.words)
    assert "1 runs to do, 7 with a record" in done.stderr and f"| `{other}` | 3 |" in done.stdout
    fake.returns |= {(name, seed): None for name in ("ppo", other) for seed in range(9)}
    fake.path.unlink()
    done = command("compare", *fake.words)  # not one that counts
    assert done.returncode == 1 and "| `ppo` | 0 |" in done.stdout and "minus" not in done.stdout


TERM = signal.SIGTERM


@pytest.mark.slow
@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGHUP], [TERM], [TERM, TERM]])
def test_a_signal_to_compare_ends_its_training(signals, tmp_path):
    """The process of the run, and what that has started; a second one kills what does not listen.
    No record is written."""
    script = tmp_path / "mine.py"
    how = "SIG_IGN" if signals[1:] else "SIG_DFL"
    text = CHILD.replace("HOW", how).replace("PIDS", repr(f"{tmp_path}/pids"))
    args = "class Args:\n    env_id: str = 'X'\n    seed: int = 1\n    total_timesteps: int = 9\n"
    script.write_text(f"{args}    runs_dir: str = 'runs'\n    x: int = 1\n{text}")
    words = [sys.executable, ROOT / "benchmarks/compare.py", script, f"{script} --x 2"]
    words += ["--seeds", "1", "--jobs", "1", "--folder", tmp_path / "f"]
    main = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    wait_for((tmp_path / "pids").exists)
    for kind in signals:
        main.send_signal(kind)
        time.sleep(0.7)
    assert main.wait(30) == 128 + signals[0]
    wait_for(lambda: all(map(ended, (tmp_path / "pids").read_text().split())), 10)
    assert not (tmp_path / "f/runs.jsonl").exists()


@pytest.mark.slow
def test_learning_in_stretches(tmp_path, monkeypatch):
    """Two commands, one run: the second goes on with it, and its record is the one that counts.

    Neither goes on with a run that died before its first checkpoint. A stretch's time is over as
    soon as the run has got further.
    """
    folder, before = tmp_path / "runs", 0

    def ended(process, limit):
        def further():
            steps = [records.events(x).get("charts/learning_rate") for x in folder.glob("*/*")]
            return any(x[-1].step > before for x in steps if x)

        if limit == 1800:
            wait_for(further)
            return None
        return process.wait(limit)

    monkeypatch.setattr(records, "ended", ended)
    flags = ["--env-ids", "Pendulum-v1", "--seeds", "1", "--total-timesteps", 10**6]
    flags += ["--variants", EAGER, "--results", tmp_path, "--runs-dir", folder, "--minutes", 30]
    (folder / f"{EAGER}__{records.code(EAGER)}__Pendulum-v1__1__1000000" / "dead").mkdir(
        parents=True
    )
    for _ in range(2):
        assert command("learning", *flags).returncode == 0
        before = lines_of(tmp_path / "learning.jsonl")[-1]["global_step"]
    first, second = lines_of(tmp_path / "learning.jsonl")
    assert 0 < first["global_step"] < second["global_step"] and not second["complete"]
    assert first["run"] == second["run"]
    assert runs.records_of(tmp_path / "learning.jsonl") == [second]
    assert tables.learned([second]) == [], "it is not complete"
    steps, seconds, _ = zip(*second["curve"], strict=True)
    assert steps[-1] > first["global_step"] and list(seconds) == sorted(seconds)
    assert second["seconds"] == seconds[-1], "of both stretches"


def test_an_idea_is_trained_beside_the_script_without(tmp_path, monkeypatch):
    def train(job, side, *args, **more):
        args = records.constants(side.copy.read_text())
        return {"args": args, "mean_return": 1.0, "date": "2026"}

    monkeypatch.setattr(learning, "train", train)
    flags = ["--variants", EAGER, "--env-ids", "Pendulum-v1", "--seeds", 1, "--results", tmp_path]
    done = command("learning", *flags, "--ideas", "rpo")
    assert done.returncode == 0, done.stderr
    found = {r["idea"]: r for r in lines_of(tmp_path / "ideas.jsonl")}
    assert found["none"]["code"] == records.code(EAGER) != found["rpo"]["code"]
    assert found["rpo"]["args"]["rpo_alpha"] == 0.5 and "rpo_alpha" not in found["none"]["args"]
    assert "0 runs to do, 2 with a record" in command("learning", *flags, "--ideas", "rpo").stderr
    done = command("learning", *flags, "--ideas", "multidiscrete")
    assert done.returncode == 2 and "multidiscrete.patch does not fit" in done.stderr


def test_what_a_run_imports_may_not_change_meanwhile(tmp_path, monkeypatch):
    """The script itself may: what runs is a copy."""
    script, module = tmp_path / "mine.py", tmp_path / "tool.py"
    script.write_text("import tool\n")
    module.write_text("x = 1\n")
    side = runs.Side("mine", script)
    side.keep(tmp_path / "copies")
    one = side.job("X-v1", 1, 9)

    def edits(path, text):
        def run_process(command, env, limit):
            assert command[1] == str(side.copy) and env["PYTHONPATH"].startswith(str(tmp_path))
            path.write_text(text)

        return run_process

    monkeypatch.setattr(records, "run_process", edits(script, "import tool, os\n"))
    with pytest.raises(records.Failure, match="no summary"):  # it has left nothing
        runs.train(one, side)
    monkeypatch.setattr(records, "run_process", edits(module, "x = 2\n"))
    with pytest.raises(records.Failure, match="changed while it ran"):
        runs.train(one, side)


FAKE_PEER = """
import os, sys, time
assert len(os.sched_getaffinity(0)) == 1 and sys.argv[1:] == ["X-v1", "3", "1000"]
for step in range(5, 1001, 5):
    print(f"global_step={step}, episodic_return=[{-step / 2}]")
    if step % 500 == 0:
        print(f"SPS: {step}.5")
        time.sleep(1 if step == 500 else 0)
"""


def test_a_peer_has_a_curve(tmp_path, monkeypatch):
    """From what it prints and when; beside its pair, once, and on a core of its own. What fails
    leaves it alone."""

    def train(job, side, *args):
        if side.command:
            return runs.train(job, side, *args)
        raise records.Failure("no")

    monkeypatch.setattr(learning, "train", train)
    script = tmp_path / "peer.py"
    script.write_text(FAKE_PEER)
    peer = f"'{sys.executable}' {script} {{env_id}} {{seed}} {{total_timesteps}}"
    flags = ["--variants", "sb3:nope", "--peer", f"Fake --fast={peer}", "--env-ids", "X-v1"]
    flags += ["--seeds", 3, "--total-timesteps", 1000, "--results", tmp_path]
    flags += ["--jobs", len(os.sched_getaffinity(0))]
    done = command("learning", *flags)
    assert done.returncode == 2 and "no script 'nope'" in done.stderr
    flags[1] = "ppo"
    done = command("learning", *flags)
    assert done.returncode == 1 and "ppo X-v1 seed 3: no\n" in done.stderr
    (record,) = lines_of(tmp_path / "learning.jsonl")
    assert (record["variant"], record["pair"], record["cores"]) == ("Fake --fast", "ppo", 1)
    assert record["command"].endswith("peer.py X-v1 3 1000")
    assert (record["sps"], record["episodes"], record["global_step"]) == (1000.5, 200, 1000)
    assert record["mean_return"] == -sum(range(505, 1001, 5)) / 2 / 100
    steps, seconds, returns = zip(*record["curve"], strict=True)
    assert steps == tuple(range(10, 1001, 10)) and returns[0] == (-2.5 - 5) / 2
    assert 0 <= seconds[0] <= seconds[49] < seconds[50] <= seconds[99] <= record["seconds"]
    assert seconds[49] - 0.1 < record["startup_s"] < seconds[50] + 0.1
    assert "1 runs to do, 1 with a record" in command("learning", *flags).stderr
    assert "| Fake --fast, as `ppo` | 1,000 | -376 (1) |" in done.stdout


# Steps per second


def test_rounds_go_on_without_what_fails(tmp_path, capsys):
    """All cases in turn, twice; what has failed is named, once, and run no more."""
    codes = {"one": "print('SPS: 1')", "silent": "1", "broken": "nope", "two": "print('SPS: 2')"}
    commands = [f"{name}={sys.executable} -c {shlex.quote(code)}" for name, code in codes.items()]
    sides = [runs.peer(text, PPO / f"{EAGER}.py") for text in commands]
    cases = [(side.job("X-v1", 1, 9) | {"num_envs": 8}, side) for side in sides]
    session, failed = throughput.run_rounds(cases, 2, tmp_path / "x.jsonl", limit=60)
    errors = capsys.readouterr().err
    assert failed == 2 and errors.count("silent (--num-envs 8): no speed: ") == 1
    assert errors.count("broken (--num-envs 8): ") == errors.count("NameError") == 1
    names = "session", "round", "variant", "sps", "cold_cache"
    assert [tuple(r[name] for name in names) for r in lines_of(tmp_path / "x.jsonl")] == [
        (session, i, name, sps, i == 1) for i in (1, 2) for name, sps in (("one", 1), ("two", 2))
    ]


@pytest.mark.slow
def test_throughput(tmp_path):
    eager = "ppo_continuous_action_envpool"
    peer = f"""counts={sys.executable} -c "print('SPS: 17')" """
    flags = ["--num-envs", 8, "--rounds", 1, "--iterations", 4, "--results", tmp_path]
    done = command("throughput", *flags, "--variants", eager, f"{eager}:turbo")
    assert done.returncode == 2 and "no mode 'turbo'" in done.stderr and not [*tmp_path.iterdir()]
    done = command("throughput", *flags, "--variants", eager, f"sb3:{eager}", "--peer", peer)
    assert done.returncode == 0, done.stderr
    found = lines_of(tmp_path / "throughput.jsonl")
    assert [r["variant"] for r in found] == ["simulator", eager, "sb3", "counts"]
    assert found[3]["sps"] == 17 and found[2]["sps"] > 0 and found[1]["global_step"] == 4 * 8 * 64
    assert 0 < found[1]["sps"] < found[0]["sps"] and "startup_s" not in found[0]
    assert found[1]["code"] == records.code(eager)
    assert "have changed since" not in done.stdout
    assert 0.5 < found[1]["startup_s"], "it imports PyTorch"
    assert found[1]["command"].startswith(f"python ppo/{eager}.py --num-envs 8")
    assert "| counts | 17 |" in done.stdout and "| simulator alone |" in done.stdout


@pytest.mark.parametrize("part", "1234")
def test_gpu_parts_ask_for_what_there_is(part, tmp_path):
    """By a python3 that says what it was asked: scripts, variants and flags exist."""
    python3 = tmp_path / "python3"
    python3.write_text("#!/bin/sh\nprintf 'ASKED'; printf '\\t%s' \"$@\"; echo\n")
    python3.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PEERS": "../peers"}
    words = ["bash", ROOT / "benchmarks" / "gpu.sh", part, tmp_path / "results"]
    said = subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout
    asked = [line.split("\t") for line in re.findall("(?m)^ASKED\t(benchmarks/.+)$", said)]
    assert asked and (tmp_path / "results").is_dir()
    for script, *words in asked:
        text = (ROOT / script).read_text()
        assert all(f'"{word}"' in text for word in words if word.startswith("--"))
        for word in words:
            if word.startswith("ppo"):
                records.split_variant(word)


def session(variant, sps, **more):
    """Records of a case, one a round, as throughput.py appends them."""
    fields = {"variant": variant, "pair": EAGER, "num_envs": 1, "startup_s": 2.0, "commit": "c"}
    fields |= {"session": "2026-01-02T03", "date": "2026-01-02T03", "global_step": 6144}
    fields |= {"cpu": "P", "cores": 2, "gpu": None, "versions": {"torch": "1"}, "cold_cache": True}
    return [{**fields, "round": i, "sps": value, **more} for i, value in enumerate(sps, 1)]


def test_speeds():
    """Medians; ratios are of the same round; the newest session of each pair, on the script's own
    environments, and whose code is not today's is said."""
    found = session("simulator", [8000.0, 800.0, 80.0], startup_s=None)
    found += session(EAGER, [2000.0, 100.0, 10.0], code=records.code(EAGER))
    found += session(f"{FAST}:compile", [3000.0, 200.0, 40.0], code="x", startup_s=20.0)
    found += session("CleanRL", [123.4])
    old = [r | {"session": "2025", "sps": 1.0} for r in found]
    half = [r | {"session": "2027"} for r in found if r["variant"] != EAGER]
    more = [r | {"session": "2028", "num_envs": 8} for r in found]
    (shown,) = tables.newest(old + found + half + more)
    assert shown == found and tables.newest([]) == []
    text = tables.speeds([shown])
    assert [cells(row)[1:] for row in text.splitlines()[2:6]] == [
        ["simulator alone", "800", "8.00", "1.00", "", "80 to 8,000", ""],
        ["eager version", "100", "1.00", "0.12", "167", "10 to 2,000", "2.0"],
        ["fast version", "200", "2.00", "0.38", "84", "40 to 3,000", "20.0"],
        ["CleanRL", "123", "0.06", "0.02", "135", "123 to 123", "2.0"],
    ]
    said = "Medians of 3 rounds; P, 2 cores; 2026-01-02; some scripts have changed since"
    assert text.endswith(f"*{said}.*")
    row = cells(tables.beside([shown], task=True).splitlines()[2])
    assert row == ["HalfCheetah-v4 (1)", "200 (0.38)", "100 (0.12)", "123 (0.02)", "800"]
    for variant, said in (
        (f"{FAST}:compile+bfloat16 --x 1", "fast version, bfloat16 --x 1"),
        (f"{FAST}:cudagraphs", "fast version, not compiled"),
        (FAST, "fast version, no flags"),
        (f"{EAGER}:no-cuda", "eager version, no-cuda"),
    ):
        assert tables.system({"variant": variant, "pair": EAGER}) == said


# Returns


def test_p_is_the_share_of_deals():
    """Of the 20 deals of six numbers to two sides, the given one and its mirror are as far apart;
    where there are too many to count, some of them tell the same but for chance."""
    assert stats.permutation_p([1, 2, 3], [4, 5, 6]) == 0.1
    assert stats.permutation_p([1, 5], [2, 3, 4]) == 1.0, "means are equal"
    a, b = [*range(10)], [*range(3, 13)]
    assert stats.permutation_p(a, b) == pytest.approx(0.0489, abs=0.005)  # all 184,756 counted


def test_a_change_over_several_tasks():
    """Relative to each task's mean; one task is as its own permutation test has it, two that agree
    leave less to chance, two that do not agree leave all."""
    up, down = ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]), ([40.0, 50.0, 60.0], [-25.0, -15.0, -35.0])
    change, low, high, p = stats.across([up])
    assert change == 1.5 and low < change < high and p == pytest.approx(0.1, abs=0.01)
    assert stats.across([up, up])[3] < 0.02
    change, _, _, p = stats.across([up, down])
    assert change == 0.0 and p == 1.0
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_curves():
    """Seeds as one: means since the last point, a line over points without an episode. A score is
    met by a mean of a twentieth of the run, not by one good point."""
    found = learned(EAGER, *range(8), total_timesteps=400)
    for i, run in enumerate(found):
        run["curve"] = [[50, 1, i], [100, i, i + 2.0], [300, 20.0, i + 9.0], [400, 40.0, 5.0]]
    steps, mean, std = stats.seeds_as_one(found, points=4)
    assert steps.tolist() == [100, 200, 300, 400]
    assert mean.tolist() == [4.5, 8.5, 12.5, 5]
    assert std.tolist() == [6**0.5, 6**0.5, 6**0.5, 0]
    (run,) = learned(FAST, 1)
    points = ((100_000, 3000.0), (120_000, 4500.0), (140_000, 5000.0), (300_000, 0.0))
    run["curve"] = [[steps, steps / 1000, value] for steps, value in points]
    assert stats.seconds_to(4000, run) == 140 and stats.seconds_to(5000, run) == np.inf


def test_returns_of_all_systems():
    """By default flags, complete runs in as many steps as CleanRL's, the last of a seed; what was
    computed before 0.3 where there are no others."""
    found = learned(EAGER, *[8.0, 9.0] * 5) + learned(f"{FAST}:compile", *[1.0, 2.0] * 4)
    found += learned(f"{FAST}:compile --gamma 0.9", *range(9)) + learned(FAST, *range(9))
    found += learned(f"{FAST}:compile+no-norm-adv", *range(9))
    found += learned(EAGER, *range(9), total_timesteps=9, date="2027")
    found += learned(EAGER, *range(9), complete=False, date="2027")
    found += learned("CleanRL", 1, 2, pair=EAGER) + learned("sb3", *range(3), pair=EAGER)
    many = "ppo_continuous_action_envpool_torchcompile:compile"
    found += learned(many, *range(9), before="0.3")
    found += [r | {"before": "0.3", "seed": 99} for r in learned(EAGER, 500.0)]
    found += learned(EAGER, 18.0, date="2027") + learned(EAGER, float("nan"), date="2028")
    one, many = [cells(row) for row in tables.returns(found).splitlines()[2:-2]]
    assert one[:3] == [f"`{EAGER}`, Hopper-v4", "1.5 ± 0.5 (8)", "9.5 ± 3.0 (10)"]
    assert re.fullmatch(r"-8 \[-1\d to -7\], p = 0.000", one[3])
    assert one[4] == "Stable-Baselines3 1.0 ± 1.0 (3), published 2,383 ± 272 (3)"
    before = "4.0 ± 2.7 (9), before 0.3"
    assert many == ["`ppo_continuous_action_envpool`, Hopper-v4", before, "", "", ""]
    table = tables.runs_table(found)
    assert f"| Hopper-v4 | `{FAST}:compile` | 1,000,000 | 1.5 ± 0.5 (8) | 1.5 |" in table
    assert "seed 0: its mean return is nan\n" in table
    assert table.endswith("seed 8: 8 after 9 steps, not all")
    (axes,) = plots.learning(found).axes
    assert axes.get_title("left") == f"Hopper-v4, 1M steps\n{EAGER}" and len(axes.lines) == 2
    (axes,) = plots.minutes(found).axes
    ends = {line.get_label(): line.get_xydata()[-1].tolist() for line in axes.lines}
    names = ["fast version (64)", "fast version (1)", "eager version (1)", "CleanRL (1)"]
    assert [*ends] == [*names, "Stable-Baselines3 (1)"] and ends["CleanRL (1)"] == [1 / 30, 3.0]


def test_what_an_idea_is_worth():
    """A gain on one task beyond chance, noise on the other."""

    def of(idea, env_id, mean, sps=100.0, seeds=10):
        each = [mean + seed % 5 for seed in range(seeds)]
        return learned(f"{FAST}:compile", *each, idea=idea, env_id=env_id, sps=sps, code=idea)

    found = [*of("none", "A-v0", 10, seeds=12), *of("none", "B-v0", 100)]
    found += [*of("spo", "A-v0", 20, 50.0), *of("spo", "B-v0", 100, 50.0)]
    found += of("elu", "B-v0", 99)
    spo, elu = [cells(row) for row in tables.effects_table(found).splitlines()[2:4]]
    assert spo[0] == "[`spo`](spo.patch)" and spo[3:] == ["< 0.001", "0.50", "A-v0 +10; B-v0 +0"]
    assert re.fullmatch(r"\*\*\+4\d% \[\+3\d% to \+4\d%\]\*\*", spo[2])
    assert elu[0] == "[`elu`](elu.patch)" and elu[2].startswith("-1% [") and elu[5] == "B-v0 -1"
    assert tables.effects_table(found[:12]) == ""


# Pages, pictures, and the rest


def test_tree_counts_changed_lines(tmp_path, monkeypatch):
    """Each script under its parent; what ppo/diffs/ has is a link."""
    texts = {"a": "1\n2\n3\n\n4\n", "a_torchcompile": "1\n2 # fast\n3\n\n\n\n4\n5\n\n6\n"}
    texts |= dict.fromkeys(("b", "b_torchcompile"), "1\n3\n4\n")
    texts |= dict.fromkeys(("c", "c_torchcompile"), "0\n")
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    tree = {"a": (None, "A"), "b": ("a", "B"), "c": ("b", "C")}
    monkeypatch.setattr(report, "PAIRS", {name: pairs.Pair(*about) for name, about in tree.items()})
    monkeypatch.setattr(report, "DIFFS", [("a", "a_torchcompile"), ("a", "b")])
    assert [line[2:-2].split(" | ") for line in report.tree(tmp_path).splitlines()[2:]] == [
        ["`a`", "", "[4 (2)](diffs/a_torchcompile.diff)", "A"],
        ["`└─\xa0b`", "[1 (1)](diffs/a_to_b.diff)", "0 (0)", "B"],
        ["`\xa0\xa0\xa0└─\xa0c`", "4 (1)", "0 (0)", "C"],
    ]
    shown = report.diffs(tmp_path)
    assert [path.name for path in shown] == ["a_torchcompile.diff", "a_to_b.diff"]
    fast = shown[tmp_path / "diffs/a_torchcompile.diff"]
    assert fast.startswith("--- a/ppo/a.py\n+++ b/ppo/a_torchcompile.py\n@@ -1,5 +1,")
    assert {name for name, _ in PAIRS} == set(pairs.PAIRS)
