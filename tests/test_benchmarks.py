"""The benchmarks: no record is lost, what fails leaves the rest alone, tables come from records."""

import ast
import importlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import ablation
import async_envs
import gradients
import imageio.v2 as imageio
import multigpu
import numpy as np
import picture
import pytest
import report
import simulators
import throughput
import untrained
from helpers import PAIRS, PPO, ROOT, SCRIPTS, TINY, run_main, run_script
from lib import choose, pairs, plots, records, stats, tables
from lib.phases import clocked
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from peers import cleanrl_leanrl
from PIL import Image

import torch
from torch import nn


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


def test_what_a_fault_does_is_told_by_runs_that_finish():
    common = {"cpu": "P", "cores": 1, "gpu": None, "date": "2026-01-02", "fault": "nan"}
    ours = [common | {"system": "ours", "finished": True, "return": x} for x in (-10.0, -20.0)]
    said = "ValueError: nan in 'actor'"
    others = [common | {"system": "x", "finished": False, "return": None, "said": said}] * 2
    others.append(common | {"system": "x", "finished": True, "return": -3.0})
    row = tables.faults_table(ours + others).splitlines()[2]
    assert row == "| nan | -15, 2 of 2 | -3, 1 of 3 (ValueError) |" and not tables.faults_table([])


@pytest.mark.slow
def test_slow_steps_are_timed_apart_and_not(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(async_envs, "CASES", {("ppo", 1): 1})
    flags = ["async_envs.py", "--scripts", "ppo", "--rounds", "1", "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", flags)
    assert async_envs.main() == 0
    found = records.read(tmp_path / "async_envs.jsonl")
    ran = [(r["system"], r["async"]) for r in found if r["sps"] > 0]
    ways = [("eager", False), ("eager", True), ("fast", True), ("sb3", False), ("sb3", True)]
    assert ran == ways
    assert "| 1 ms, `ppo` |" in tables.async_table(found)
    capsys.readouterr()


@pytest.mark.slow
def test_a_policy_is_played_in_both_simulators(tmp_path, monkeypatch, capsys):
    flags = [*TINY, "--env-id", "CartPole-v1"]
    run = run_main("ppo_envpool", *flags, runs_dir=tmp_path)
    words = ["simulators.py", run.run_dir, "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    assert simulators.main() == 0
    one, two = records.read(tmp_path / "simulators.jsonl")
    assert (one["simulator"], two["simulator"]) == ("EnvPool", "Gymnasium")
    assert one["mean"] != two["mean"] and one["episodes"] == two["episodes"] == 100
    assert "| `CartPole-v1` | 1 |" in tables.simulators_table([one, two])
    capsys.readouterr()


@pytest.mark.slow
def test_a_policy_beside_who_stands_still(tmp_path, monkeypatch, capsys):
    flags = [*TINY, "--env-id", "HalfCheetah-v4"]
    run = run_main("ppo_continuous_action_envpool", *flags, runs_dir=tmp_path)
    path = tmp_path / "untrained.jsonl"
    words = ["untrained.py", run.run_dir, "--games", "2", "--records", str(path)]
    monkeypatch.setattr(sys, "argv", words)
    assert untrained.main() == 0
    found = {r["who"]: r for r in records.read(path)}
    assert [*found] == ["policy", "still", "random"]
    for record in found.values():  # HalfCheetah's reward is the sum of its terms
        assert record["lengths"] == [1000, 1000] and len(record["terms"]) == 2
        mean = np.mean(record["returns"]) / 1000
        np.testing.assert_allclose(sum(record["terms"].values()), mean, atol=2e-4)
    assert found["still"]["terms"]["reward_ctrl"] == 0 > found["random"]["terms"]["reward_ctrl"]
    assert "still: return" in capsys.readouterr().out
    found["policy"]["terms"]["reward_tracking_x"] = 0.456  # as a robot's
    row = cells(tables.untrained_table([*found.values()]).splitlines()[2])
    done = f"{run.global_step / 1e6:g}M"
    assert row[:3] == ["HalfCheetah-v4", done, "1"] and row[-1] == "2"
    mean, std = np.mean(found["policy"]["returns"]), np.std(found["policy"]["returns"])
    assert row[3] == f"{mean:.1f} ± {std:.1f}, 1000 steps (0.46)"
    assert row[5].endswith(", 1000 steps")
    for record in found.values():
        record["args"]["total_timesteps"] = 4_000_000
    assert cells(tables.untrained_table([*found.values()]).splitlines()[2])[1] == "0.0M of 4M"
    monkeypatch.setattr(sys, "argv", ["untrained.py", str(tmp_path)])
    assert untrained.main() == 2 and "no checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize("name", SCRIPTS)
def test_variants(name):
    assert records.split_variant(name) == (name, [])
    assert records.split_variant(f"{name}:no-cuda+track") == (name, ["--no-cuda", "--track"])
    more = f"{name}:track --gamma 0.9"
    assert records.split_variant(more) == (name, ["--track", "--gamma", "0.9"])
    assert records.pair(more) == records.pair(name)
    assert choose.label(more) == f"`{name} --track --gamma 0.9`"
    with pytest.raises(records.Failure, match="no mode 'turbo'; it has .*cuda"):
        records.split_variant(f"{name}:turbo")
    with pytest.raises(records.Failure, match=f"no script 'x{name}'; there are .*{name}"):
        records.split_variant(f"x{name}")
    assert records.defaults(name)["num_steps"] in (32, 64, 128, 2048)


EAGER, FAST = "ppo_continuous_action", "ppo_continuous_action_torchcompile"
HOPPER = f"`{EAGER}`, Hopper-v4"


def session(variant, sps, **more):
    """Records of a case, one a round, as throughput.py and ablation.py append them."""
    fields = {"variant": variant, "pair": EAGER, "num_envs": 1, "startup_s": 2.0, "commit": "c"}
    fields |= {"session": "2026-01-02T03", "date": "2026-01-02T03", "session_command": "python x"}
    fields |= {"cpu": "P", "cores": 2, "gpu": None, "versions": {"torch": "1"}, "global_step": 6144}
    fields["args"] = {"num_envs": 1, "num_steps": 1024, "measure_burnin": 3, "env_id": "X-v1"}
    fields["phase_s"] = {"rollout": 0.3, "advantages": 0.006, "update": 0.6, "log": 0.0}
    return [{**fields, "round": i, "sps": value, **more} for i, value in enumerate(sps, 1)]


def test_a_fingerprint_is_of_code_alone():
    text = '"""A."""\nx = f(1, None)  # b\n\n\ndef g(y):\n    """C."""\n    return y + 1\n'
    other = "# d\nx = f(\n    1,\n    None,\n)\ndef g(y):\n    # e\n    return (y + 1)\n"
    assert records.fingerprint(text) == records.fingerprint(other) == "a55b829e1d"
    for old, new in (("y + 1", "y - 1"), ("None", "False"), ("1,", "1.0,"), ("g(y)", "g(y, z)")):
        assert records.fingerprint(other.replace(old, new)) != records.fingerprint(other), old


def test_speeds_are_of_todays_scripts():
    """A session counts with both scripts as they are now, and then its peers do too; where there is
    none, with both as they were in the newest."""
    codes = {name: records.code(name) for name in (EAGER, FAST)}
    full = [r for name in codes for r in session(name, [1.0] * 2, code=codes[name])]
    full += session("simulator", [8.0]) + session("CleanRL", [2.0]) + session("sb3", [2.0])
    old = [r | {"session": "1", "code": "x"} if r["variant"] == FAST else r for r in full]
    old = [r | {"session": "1"} for r in old]
    half = [r | {"session": "2"} for r in full if r["variant"] != FAST]
    assert choose.of_today(old + full + half) == full
    older = [r | {"session": "0", "code": "y"} if r["variant"] == FAST else r for r in old]
    older = [r | {"session": "0"} for r in older]
    assert choose.of_today(half + old + older) == old
    more = session(f"{FAST}:compile", [3.0], code="x")  # of the same session, edited meanwhile
    assert choose.of_today(full + more) == []
    assert choose.of_today(session(EAGER, [1.0]) + session(FAST, [1.0])) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_clock_is_put_into_each_script(name):
    """Lines are added, 12 in all, and none is changed."""
    text = (PPO / f"{name}.py").read_text()
    found = clocked(text)
    ast.parse(found)
    rest = iter(found.splitlines())
    assert all(line in rest for line in text.splitlines()), "in their order"
    assert len(found.splitlines()) == len(text.splitlines()) + 12


def test_a_clock_counts_what_is_measured(tmp_path):
    """The iterations after the burn-in, and what they compute is the same."""
    flags = [*TINY, "--total-timesteps", 96, "--measure-burnin", 2]
    plain = run_main("ppo", *flags, runs_dir=tmp_path / "plain")
    run = run_main("ppo", *flags, runs_dir=tmp_path / "clocked", edit=clocked)
    for a, b in zip(plain.agent.parameters(), run.agent.parameters(), strict=True):
        assert a.equal(b)
    found = json.loads(Path(run.run_dir, "summary.json").read_text())
    assert tuple(found["phase_s"]) == choose.PHASES and min(found["phase_s"].values()) > 0
    assert sum(found["phase_s"].values()) < time.time() - run.start_time
    ms = [stats.phase_ms([found], phase) for phase in choose.PHASES]
    assert sum(ms) == pytest.approx(1000 * sum(found["phase_s"].values()) / 4)
    with pytest.raises(ValueError, match="# Update"):
        clocked((PPO / "ppo.py").read_text().replace("# Update", "# Train"))


def test_what_benchmarks_start_lets_idle_threads_sleep(monkeypatch):
    """As run.sh does, whatever the caller has set; a case may ask for something else."""
    monkeypatch.setenv("GOMP_SPINCOUNT", "9")
    command = [sys.executable, "-c", "import os; print(os.environ['GOMP_SPINCOUNT'])"]
    assert records.run_process(command) == "1000\n"
    assert records.run_process(command, ablation.SPIN) == "300000\n"


@pytest.mark.parametrize(("given", "found"), [(None, "1000"), ("9", "9")])
def test_run_sh_lets_idle_threads_sleep(given, found, tmp_path):
    """Of all scripts, unless the caller says something else."""
    text = "import os, sys\nif sys.orig_argv[-1] == '--asked':\n"
    text += "    os.write(1, os.environ['GOMP_SPINCOUNT'].encode())\n    os._exit(0)\n"
    (tmp_path / "sitecustomize.py").write_text(text)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    env.pop("GOMP_SPINCOUNT", None)
    env |= {"GOMP_SPINCOUNT": given} if given else {}
    command = [ROOT / "run.sh", "ppo", "--asked"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.stdout == found, done.stderr


def test_a_failure_is_named_not_a_bar():
    """What stands before the last line of a progress bar, and a whole message of tyro's."""
    bar = "  0%|          | 0/20 [00:00<?, ?game/s]"
    code = f"import sys; sys.exit('{bar}\\rwhat went wrong\\n{bar}\\n\\n')"
    with pytest.raises(records.Failure, match="^status 1: what went wrong$"):
        records.run_process([sys.executable, "-c", code])
    with pytest.raises(records.Failure, match="no output"):
        records.run_process([sys.executable, "-c", "raise SystemExit(3)"])


def cells(row):
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_p_is_the_share_of_deals():
    """Of the 20 deals of six numbers to two sides, the given one and its mirror are as far apart;
    where there are too many to count, some of them tell the same but for chance."""
    assert stats.permutation_p([1, 2, 3], [4, 5, 6]) == 0.1
    assert stats.permutation_p([1, 5], [2, 3, 4]) == 1.0, "means are equal"
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, 10), rng.normal(0.8, 1, 10)
    counted = stats.permutation_p(a, b)
    with mock.patch.object(stats, "comb", lambda n, k: 10**6):
        drawn = stats.permutation_p(a, b)
    assert counted != drawn and abs(counted - drawn) < 0.01 and 0.01 < counted < 0.5


def test_a_change_over_several_tasks():
    """Relative to each task's mean; one task is as its own permutation test has it, two that agree
    leave less to chance, two that do not agree leave all."""
    up, down = ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]), ([40.0, 50.0, 60.0], [-25.0, -15.0, -35.0])
    change, low, high, p = stats.across([up])
    assert change == 1.5 and low < change < high and p == pytest.approx(0.1, abs=0.01)
    assert stats.across([up, up])[3] < 0.02
    change, _, _, p = stats.across([up, down])
    assert change == 0.0 and p == 1.0


def test_what_an_idea_is_worth():
    """A gain on one task beyond chance, noise on the other; what has no patch does not count."""
    about = {"cpu": "C", "cores": 1, "gpu": None, "date": "2026-11-28T00:00:00Z", "code": "x"}

    def runs(idea, env_id, mean, speed=100.0, seeds=10):
        each = ({"seed": seed, "mean_return": mean + seed % 5} for seed in range(seeds))
        return [about | r | {"idea": idea, "env_id": env_id, "sps": speed} for r in each]

    records = [*runs("none", "A-v0", 10, seeds=12), *runs("none", "B-v0", 100)]
    records += [*runs("spo", "A-v0", 20, 50.0), *runs("spo", "B-v0", 100, 50.0)]
    records += [*runs("elu", "B-v0", 99), *runs("no_such", "A-v0", 90)]
    rows = [line.split(" | ") for line in tables.effects_table(records).splitlines()[2:4]]
    assert [row[0][2:10] for row in rows] == ["[`spo`](", "[`elu`]("]
    assert rows[0][2] == "0.50" and rows[0][4] == "A-v0 +10 |"
    assert rows[0][3].startswith("**+4") and rows[0][3].endswith("**, < 0.001 (2)")
    assert rows[1][3].startswith("-1% [") and rows[1][3].endswith(" (1)") and rows[1][4] == " |"
    assert "**+10 [+9 to +11]**, < 0.001" in tables.effects_by_task(records)


def test_ratios_are_of_the_same_round():
    found = session("simulator", [8000.0, 800.0, 80.0]) + session(EAGER, [2000.0, 100.0, 10.0])
    found += session(f"{FAST}:compile", [3000.0, 200.0, 40.0])
    found[-3] |= {"startup_s": 20.0, "cold_cache": True}
    simulator, eager, fast = map(cells, tables.cases_table(found).splitlines()[2:])
    ms = "100.0 + 2.0 + 200.0 + 0.0"
    name = f"`{FAST} --compile`"
    assert fast == [name, "200", "40 to 3,000", "0.38", "2.00", "20.0 / 2.0", ms]
    assert simulator[:2] == ["simulator alone", "800"] and eager[3:6] == ["0.12", "1.00", "2.0"]


def test_ablation_is_held_against_all_on():
    found = session("simulator", [800.0] * 3) + session(EAGER, [100.0] * 3, group="", label="eager")
    found += session(f"{FAST}:compile", [200.0] * 3, group="", label="fast file, all on")
    found += session(FAST, [150.0] * 3, group="off", label="without x")
    for variant, name in ((EAGER, "eager file"), (f"{FAST}:compile", "fast file, all on")):
        found += session(variant, [50.0] * 3, group="two", label=name)  # no base for the others
    table = tables.cases_table(found).splitlines()
    assert "of all on" in table[0] and "| **one taken away** |" in table
    (row,) = [cells(row) for row in table if "without x" in row]
    assert row[1:5] == ["150", "150 to 150", "0.75", "1.50"]


def test_floors_table():
    """1,024 steps: 128 ms of simulator; 10 and 100 million operations each, at 10**11 or 10**12."""
    rates = {"float32": 1e11, "bfloat16": 1e12}
    floor = {"flops_acting": 1e7, "flops_learning": 1e8, "bus_bytes": 10**6}
    floor |= {"flops_per_s": {"cpu": rates, "cuda": rates}, "bus_bytes_per_s": 1e10}
    found = session("simulator", [8000.0] * 3, **floor)
    found += session(EAGER, [500.0] * 3, device="cpu", group="", label="eager file")
    args = found[-1]["args"] | {"bfloat16": True}
    found += session(f"{EAGER}:x", [500.0] * 3, device="cuda", args=args, group="", label="x")
    found += session(EAGER, [500.0] * 3, device="cpu", group="on", label="y")
    _, _, on_cpu, on_gpu = tables.floors_table(found).splitlines()
    assert on_cpu.endswith("| 100.0 | 128.0 | 102.4 | 0.0 | 200.0 | 1024.0 | 100 | 500 | 0.61 |")
    assert on_gpu.endswith("| 100.0 | 128.0 | 10.2 | 102.4 | 200.0 | 102.4 | 1,000 | 500 | 0.17 |")
    assert tables.floors_table([r for r in found if "flops_acting" not in r]) == ""


def test_ranks_are_held_against_the_parent_in_the_same_mode():
    found = session(EAGER, [100.0] * 3, ranks=0) + session(f"{FAST}:compile", [200.0] * 3, ranks=0)
    found += session(f"x{EAGER}", [150.0] * 3, ranks=2, all_reduce_share=0.08)
    found += session(f"x{FAST}:compile", [500.0, 400.0, 100.0], ranks=2)
    rows = [cells(row) for row in tables.ranks_table(found).splitlines()[2:]]
    assert [row[1] for row in rows] == ["parent", "parent", "2", "2"]
    assert rows[2][2:6] == ["150", "150 to 150", "1.50", "8%"]
    assert rows[3][2:6] == ["400", "100 to 500", "2.00", ""]


def test_data_parallel_cases():
    """As many games in all, then as many a rank; only the eager ranks are clocked."""
    cases = multigpu.cases_of(12, 2, "compile")
    found = [(case.num_envs, case.extra["ranks"]) for case in cases]
    assert found[::2] == found[1::2] == [(8, 0), (8, 1), (8, 2), (16, 0), (16, 2)]
    for case in cases:
        clocked = case.extra["ranks"] > 0 and "torchcompile" not in case.variant
        assert ("--timed" in case.command) == clocked and "--timed" not in case.shown
        assert case.shown.startswith("torchrun" if case.extra["ranks"] else "python")


@pytest.mark.slow
def test_all_reduce_is_timed(tmp_path):
    name = "ppo_atari_envpool_multigpu.py"
    script = tmp_path / name
    script.write_text(clocked((PPO / name).read_text()))
    flags = ["--timed", script, *TINY, "--measure-burnin", 1]
    done = run_script(ROOT / "benchmarks" / "multigpu.py", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("runs/*/summary.json")
    assert 0 < json.loads(path.read_text())["all_reduce_share"] < 1


def test_what_stands_side_by_side_is_of_one_sitting():
    """A machine's sessions of two days, the newest of each pair, on the script's own environments;
    of all such sets the one of most pairs, of these the newest."""
    other = {"pair": "ppo", "num_envs": 4}
    day = "2026-01-03T"
    found = session("ppo", [1.0], session="2026-01-02T08", **other)
    found += session("ppo", [2.0], session="2026-01-02T09", **other)
    found += session(EAGER, [3.0], num_envs=8)
    found += session(EAGER, [4.0], session=f"{day}08", game="Hopper-v4")
    found += session(EAGER, [5.0], session=f"{day}08")
    shown = [[r["sps"] for r in same] for same in choose.sitting(found)]
    assert shown == [[2.0], [5.0]]
    found += session(EAGER, [6.0], session="2026-01-04T10") + session(
        EAGER, [7.0], session="2027-01-01"
    )
    assert [[r["sps"] for r in same] for same in choose.sitting(found)] == shown
    found += session("ppo", [8.0], session="2026-01-04T01", cores=1, **other)
    found += session(EAGER, [9.0], session="2026-01-04T01", cores=1)
    assert [[r["sps"] for r in same] for same in choose.sitting(found)] == [[8.0], [9.0]]
    assert choose.sitting([]) == []


def test_speeds_of_all_systems():
    """Each mode's best; ratios within a round; whose speed differs is named."""
    found = session("CleanRL", [123.4]) + session("LeanRL", [900.0]) + session("sb3", [55.5])
    found += session(EAGER, [100.0, 200.0, 400.0]) + session(FAST, [999.0] * 3)
    modes = {"compile": 300.0, "compile+cudagraphs": 600.0, "compile+bfloat16": 500.0}
    for mode, sps in modes.items():
        found += session(f"{FAST}:{mode}", [sps] * 3)
    text = tables.speeds([found])
    header, _, *rows, _, how = text.splitlines()
    assert cells(header)[2:] == ["steps/s", "times eager", "of the simulator", "1M steps, minutes"]
    assert [cells(row)[1:4] for row in rows] == [
        ["eager version", "200", "1.00"],
        ["fast version", "600", "3.00"],
        ["fast version, bfloat16", "500", "2.50"],
        ["Stable-Baselines3", "56", "0.56"],
        ["CleanRL", "123", "1.23"],
        ["LeanRL", "900", "9.00"],
    ]
    text = "*P, 2 cores, 2026-01-02; medians of 3 interleaved rounds; "
    assert how == f"{text}steps/s of eager version of `{EAGER}` 100 to 400.*"
    assert "--compile` makes 3 times the steps per second" in tables.speedup([found])
    rival = session("LeanRL --compile", [250.0] * 3, pair=EAGER)
    text = f"Beside LeanRL with `--compile`, ours makes 2.4 times as many on `{EAGER}`."
    assert tables.speedup([found + rival]).endswith(text)
    lstm = [r | {"pair": "ppo_lstm"} for r in found + session("sb3", [150.0] * 3)]
    text = "`ppo_lstm` makes 3 times as many, as its LSTM reads all rows in one call: 4 times those"
    assert text in tables.speedup([found, lstm])
    many = [r | {"pair": choose.MANY} for r in found]  # CleanRL has no script of that name
    assert "CleanRL" not in tables.speeds([many]) and "LeanRL" not in tables.speeds([many])
    assert tables.speedup([session(EAGER, [1.0])]) == ""
    cold = [r | {"startup_s": 20.0, "cold_cache": r["round"] == 1} for r in found]
    cold = [r | {"startup_s": 5.0} if r["variant"] == EAGER else r for r in cold]
    cold = [r | {"startup_s": 9.0} if not r["cold_cache"] else r for r in cold]
    (row,) = tables.break_even([cold]).splitlines()[2:]
    assert cells(row) == [f"`{EAGER}`", "11", "0.0033M", "0", "0M"], "at 200 and 600 steps/s"
    minutes = [cells(row)[5] for row in tables.speeds([cold]).splitlines()[2:5]]
    assert minutes == ["83", "28", "34"], "20 + 1,667 s: start-up with an empty cache"
    alone = session("simulator", [100.0, 130.0])
    assert f"differed between rounds of `{EAGER}` by 30%; " in tables.speeds([found + alone])
    assert "LeanRL --compile | 321 |" in tables.speeds(
        [found + session("LeanRL --compile", [321.0])]
    )


def test_which_script():
    """Of the newest machine's runs that took all steps, the median minutes; no words on no runs."""
    script = "ppo_torchcompile:compile"
    more = {"env_id": "CartPole-v1", "total_timesteps": 500_000, "jobs": 1}
    found = learning(script, 100, 200, 300, **more, seconds=90.0, date="2026-02-01")
    found += learning(script, 900, **more, seconds=900.0, date="2026-01-01", cores=1)
    found += learning(script, 900, **more | {"until": 4}) + learning("ppo", 900, **more)
    rows = [cells(row) for row in tables.which(found).splitlines()]
    assert rows[2][:2] == ["[`ppo`](ppo/SCRIPTS.md#ppo)", pairs.PAIRS["ppo"].purpose]
    assert rows[2][2:] == ["CartPole-v1, 0.5M steps", "200 ± 100 (3 seeds)", "1.5, 2 cores"]
    assert [row[2:] for row in rows[3:]] == [["not measured", "", ""]] * (len(rows) - 3)
    assert {name for name, _ in PAIRS} == set(pairs.PAIRS)


def test_a_session_says_its_gain():
    found = session("simulator", [800.0] * 3) + session(EAGER, [100.0] * 3, group="", label="eager")
    found += session(f"{FAST}:compile", [200.0] * 3, group="", label="all on")
    found += session(f"{FAST}:compile", [20.0] * 3, group="two", label="all on")
    says = "`--compile` runs 2.0 times as fast as eager, at 0.25 of the simulator's speed"
    assert tables.gain(found) == f"{says}."
    found += session(f"{FAST}:x", [190.0] * 3, group="off", label="without x")
    found += session(f"{FAST}:y", [150.0] * 3, group="off", label="without y")
    assert tables.gain(found) == f"{says}; without y: 0.75 of that."
    assert tables.gain(session(EAGER, [1.0])) == ""


@pytest.mark.parametrize("cuda", [False, True])
@pytest.mark.parametrize("pair", pairs.TIMED)
def test_ablation_cases(pair, cuda):
    """Each has flags that its script has, and no two of a group measure the same."""
    cases = ablation.cases_of(pair, cuda)
    for _, _, variant, _ in cases:
        assert records.pair(records.split_variant(variant)[0]) == pair
    assert len({(group, variant, str(env)) for group, _, variant, env in cases}) == len(cases)
    assert any("cudagraphs" in variant for _, _, variant, _ in cases) == cuda


def learning(variant, *returns, **more):
    fields = {"variant": variant, "env_id": "Hopper-v4", "total_timesteps": 9, "until": None}
    fields |= {"cpu": "P", "cores": 2, "gpu": None, "date": "2026-01-02", "commit": "c", **more}
    fields["global_step"] = fields["until"] or fields["total_timesteps"]
    curve = [[1, 0.5, 1.0], [9, 2.0, 3.0]]
    return [
        {**fields, "seed": i, "mean_return": value, "curve": curve}
        for i, value in enumerate(returns)
    ]


def test_a_run_is_named_with_the_flags_that_it_would_need_today():
    """Of hyper-parameters alone; what the variant says itself is not said twice."""
    args = {"seed": 9, "env_id": "X-v1", "learning_rate": 3e-4, "norm_adv": True, "gamma": 0.9}
    (run,) = learning(f"{FAST}:compile+no-norm-adv --gamma 0.9", 1, args=args | {"norm_adv": False})
    assert records.as_of_today(run) == run["variant"]
    run["args"] |= {"learning_rate": 1e-2, "anneal_lr": False, "cleanrl_semantics": True}
    more = " --learning-rate 0.01 --no-anneal-lr --cleanrl-semantics"
    assert records.as_of_today(run) == run["variant"] + more
    runs = learning(f"{FAST}:compile", 5, 5, args={"gamma": 0.9}) + learning(f"{FAST}:compile", 7)
    assert [choose.tuned(run) for run in runs] == [True, True, False]


def test_siblings_are_compared():
    """A test needs 5 seeds each: with 3 and 3 its p cannot fall below 0.1."""

    def apart(a, b):
        table = tables.learning_table(learning(EAGER, *a) + learning(f"{FAST}:compile", *b))
        eager, fast = (cells(row)[-1] for row in table.splitlines()[2:])
        assert eager == ""
        return fast

    assert apart([1, 2, 3], [11, 12, 13]) == "+10.0 [+8.7 to +11.3]"
    far = apart([1, 2, 3, 4, 5], [11, 12, 13, 14, 15])
    assert far.startswith("+10.0 [") and float(far[-5:]) == pytest.approx(2 / 252, abs=2e-3)
    assert float(apart([1, 2, 3, 4, 5], [5, 4, 3, 2, 1])[-5:]) == 1
    assert apart([1], [2]) == ""


def test_runs_that_were_cut_are_of_one_row():
    """Wherever each seed was ended, asked for or not; beside no sibling."""
    found = learning(EAGER, 1, 2, until=4)
    for at, run in zip((4, 5, 7), learning(f"{FAST}:compile", 4, 5, 9, until=4), strict=True):
        found.append(run | {"global_step": at, "until": 4 if at < 6 else at, "run": str(at)})
    eager, fast = map(cells, tables.learning_table(found).splitlines()[2:])
    assert eager[1:4:2] == ["4 of 9", "1.5 ± 0.7 (2 seeds)"]
    assert fast[1:4:2] == ["4 to 7 of 9", "6.0 ± 2.6 (3 seeds)"] and fast[-1] == ""
    assert len(tables.returns(found).splitlines()) == 2, "returns are of finished runs alone"


@pytest.mark.parametrize("name", ["ppo", "ppo_lstm", "ppo_trxl", "ppo_rnd", "ppo_atari_envpool"])
def test_a_wrong_gradient_is_seen(name, monkeypatch):
    """Eager gradients err by float32's roundings, without a bias; so do a fast script's, compiled
    by nothing. Those that are 1% too long err by 1%, all of it along the gradient."""
    few = ["--num-envs", "2", "--num-steps", "16", "--num-minibatches", "2", "--update-epochs", "2"]
    few += ["--total-timesteps", "64", "--no-cuda"]
    monkeypatch.setattr(torch, "compile", lambda function: function)
    found = gradients.gradient_errors(name, few)
    assert found["minibatches"] == 8
    assert 1e-9 < found["errors"][0] < 1e-5 and 1e-9 < found["errors"][1] < 1e-5
    assert max(map(abs, found["along"])) < 1e-5
    along = nn.utils.clip_grad_norm_

    def longer(parameters, *more, **named):
        norm = along(parameters := list(parameters), *more, **named)
        for parameter in parameters:
            if parameter.grad is not None and parameter.grad.dtype == torch.float32:
                parameter.grad *= 1.01
        return norm

    assert found["flipped"] == [0, 0]
    monkeypatch.setattr(nn.utils, "clip_grad_norm_", longer)
    assert gradients.gradient_errors(name, few)["flipped"] == [8, 8]
    monkeypatch.setattr(gradients, "FLIPPED", 1.0)
    found = gradients.gradient_errors(name, few)
    for field in ("errors", "along", "largest"):
        assert found[field] == pytest.approx([0.01, 0.01], rel=0.02), field


@pytest.mark.parametrize("name", pairs.TIMED)
def test_scripts_are_probed(name, tmp_path):
    """Where gradients.py looks into them."""
    gradients.edited(f"{name}_torchcompile", *gradients.PROBE, tmp_path)
    assert gradients.MOVED in gradients.edited(name, *gradients.MOVE, tmp_path).read_text()


def test_returns_of_all_systems():
    """By default flags, in as many steps as CleanRL's; of most runs, then the newest."""
    million = {"total_timesteps": 1_000_000}
    found = learning(EAGER, 1, 2, 3, **million) + learning(f"{FAST}:compile", 5, 5, **million)
    found += learning(f"{FAST}:compile --gamma 0.9", *range(9), **million)
    found += learning(f"{FAST}:compile+no-norm-adv", *range(9), **million)
    found += learning(FAST, *range(9), **million) + learning(EAGER, *range(9))
    found += learning(EAGER, *range(9), until=4, **million)
    found += learning(EAGER, *range(9), env_id="MountainCar-v0", total_timesteps=500_000)
    found += learning("CleanRL", *range(9), pair=EAGER, **million)
    found += learning("sb3", *range(3), pair=EAGER, **million)
    found += learning(EAGER, 8, run="x", **million)[:1]  # seed 0 again: the last one counts

    def rows(found):
        return [cells(row) for row in tables.returns(found).splitlines()[2:]]

    eager = ["Hopper-v4", f"`{EAGER}`, eager", "4.3 ± 3.2", "3", "P, 2026-01-02"]
    assert rows(found)[:3] == [
        eager,
        ["Hopper-v4", "CleanRL", "4.0 ± 2.7", "9", "P, 2026-01-02"],
        ["Hopper-v4", "Stable-Baselines3", "1.0 ± 1.0", "3", "P, 2026-01-02"],
    ]
    assert rows(found)[3][2:] == ["2,383 ± 272", "3", ""] and len(rows(found)) == 4
    elsewhere = learning(EAGER, *[200.0] * 3, cpu="Q", **million | {"date": "2026-01-03"})
    assert rows(found + elsewhere)[0][2:] == ["200 ± 0", "3", "Q, 2026-01-03"]
    elsewhere = learning(EAGER, *[300.0] * 8, cpu="R", **million | {"date": "2026-01-01"})
    assert rows(found + elsewhere)[0][2:] == ["300 ± 0", "8", "R, 2026-01-01"]
    again = learning("CleanRL", 14.0, pair=EAGER, **million)  # seed 0 once more
    assert rows(found + again)[1][2:4] == ["5.0 ± 4.1", "10"], "each run counts"
    assert "| CleanRL | 5.0 ± 4.1 (10 runs of 9 seeds) |" in tables.learning_table(found + again)
    parallel = learning("sb3", *[9.0] * 4, pair=choose.MANY, **million)
    assert [row[1:4] for row in rows(found + parallel)[2:4]] == [
        ["Stable-Baselines3", "1.0 ± 1.0", "3"],
        ["Stable-Baselines3, 64 environments", "9.0 ± 0.0", "4"],
    ]


def test_seeds_as_one_curve():
    """Means since the last point, a line over points without an episode; seconds at equal steps."""
    runs = learning(EAGER, *range(8), total_timesteps=400)
    for i, run in enumerate(runs):
        run["curve"] = [[50, 1, i], [100, i, i + 2.0], [300, 20.0, i + 9.0], [400, 40.0, 5.0]]
    steps, seconds, mean, std = stats.seeds_as_one(runs, points=4)
    assert steps.tolist() == [100, 200, 300, 400]
    assert seconds.tolist() == [3.5, 11.75, 20, 40]
    assert mean.tolist() == [4.5, 8.5, 12.5, 5]
    assert std.tolist() == [6**0.5, 6**0.5, 6**0.5, 0]


def test_what_more_cores_bring():
    """Medians by cores and environments, the simulator's beside them."""
    found = [
        run | {"cores": cores, "num_envs": envs, "session": f"2026-01-0{day}"}
        for day, (cores, times) in enumerate([(1, 1.0), (2, 2.0), (1, 3.0), (2, 4.0)], 1)
        for envs in (8, 32)
        for variant, sps in (("simulator", 90.0), (f"{FAST}:compile", 10.0))
        for run in session(variant, [sps * times * envs])
    ]
    header, _, *rows = tables.scaling_table(found).splitlines()
    assert cells(header)[2:4] == ["steps/s, 1 core", "simulator, 1 core"]
    assert cells(rows[0]) == [f"`{EAGER}`", "8", "160", "1,440", "240", "2,160"]
    assert cells(rows[1])[:3] == [f"`{EAGER}`", "32", "640"]
    assert "medians of 2 runs" in rows[-1] and tables.scaling_table([]) == ""


def test_what_each_optimisation_adds():
    """A step at a time, over the eager version and over the step above it."""
    found = session(EAGER, [100.0] * 3, group="", label="eager file")
    found += session(f"{FAST}:a", [130.0] * 3, group="on", label="compile")
    found += session(f"{FAST}:compile", [260.0] * 3, group="", label="fast file, all on")
    found += session(f"{FAST}:b", [110.0] * 3, group="off", label="without acting in NumPy")
    name = "ppo_atari_envpool"
    for label, sps, group in (
        ("eager file", 100.0, ""),
        ("fast file, all on", 120.0, ""),
        ("fast file, all on", 60.0, "two"),
        (choose.NOT_KEPT, 80.0, "on"),
    ):
        found += session(name, [sps], pair=name, group=group, label=label)
    rows = [cells(row) for row in tables.ladder(found).splitlines()[2:-2]]
    assert rows == [
        [f"`{EAGER}`", "eager version", "100", "1.00", ""],
        [f"`{EAGER}`", "+ compiled gradients", "130", "1.30", "1.30"],
        [f"`{EAGER}`", "+ acting in NumPy", "260", "2.60", "2.00"],
        [f"`{name}`", "without kept memory (the fast file, all off)", "80", "0.80", ""],
        [f"`{name}`", "eager version", "100", "1.00", "1.25"],
        [f"`{name}`", "+ observations in NHWC", "120", "1.20", "1.20"],
    ]


def test_how_far_two_versions_are_apart():
    """With enough seeds of both, on one kind of processor, after as many steps as CleanRL's."""
    more = {"total_timesteps": 1_000_000}
    found = learning(EAGER, *[8.0, 9.0] * 5, **more) + learning(f"{FAST}:compile", 1, 2, 3, **more)
    header = 2
    assert len(tables.apart(found).splitlines()) == header, "three seeds are too few"
    found += learning(f"{FAST}:compile", *[1.0, 2.0] * 4, **more)
    found += learning("CleanRL", *range(9), pair=EAGER, **more)
    (row,) = tables.apart(found).splitlines()[header:]
    env_id, script, difference, p, seeds = cells(row)
    assert (env_id, script, seeds) == ("Hopper-v4", f"`{EAGER}`", "10 and 8")
    assert re.fullmatch(r"-7 \[-[78] to -[67]\]", difference) and float(p) < 0.01
    elsewhere = [r | {"cpu": "Q"} if r["variant"] == EAGER else r for r in found]
    assert len(tables.apart(elsewhere).splitlines()) == header


def test_what_one_default_of_the_parent_does():
    """Runs by one flag of ppo's, lowest first, beside the plain ones on the same seeds."""
    fast, task = "ppo_lstm_torchcompile:compile", {"env_id": "CartPole-v1"}
    task["total_timesteps"] = records.defaults("ppo_lstm")["total_timesteps"]
    found = learning(fast, *range(100, 105), 900.0, **task)
    for flags, returns in (
        ("--norm-adv", range(200, 205)),
        ("--num-envs 4", range(100, 105)),
        ("--learning-rate 0.002", [1.0]),
        ("--norm-adv --num-envs 4", [2.0]),
    ):
        found += learning(f"{fast} {flags}", *returns, **task)
    found += learning("sb3:norm-adv", 3.0, pair="ppo_lstm", **task)
    found += learning(f"{fast} --gamma 0.99", 4.0, **task | {"env_id": "Acrobot-v1"})
    one, two = [cells(row) for row in tables.one_flag(found).splitlines()[2:]]
    assert one == ["`--num-envs 4`", "102 ± 2", "5", "1.00"]
    assert two[:3] == ["`--norm-adv`", "202 ± 2", "5"] and float(two[3]) < 0.02


def test_a_target_is_met_by_a_mean_of_a_twentieth_of_the_run():
    """One good point does not; a run that never gets there counts as later than all others."""
    more = {"env_id": "Walker2d-v4", "total_timesteps": 1_000_000}
    found = learning(FAST, 1, 2, 3, jobs=1, **more)
    for run, last in zip(found, (5000.0, 4600.0, 4400.0), strict=True):
        points = ((100_000, 3000.0), (120_000, 4500.0), (140_000, last), (300_000, 0.0))
        run["curve"] = [[steps, steps / 1000, value] for steps, value in points]
    shared = learning(FAST, 4, jobs=2, **more) + learning(FAST, 4, jobs=1, **more | {"cores": 1})
    rows = tables.target_table(found + shared).splitlines()[2:]
    where = [f"`{FAST}`", "Walker2d-v4, P, 2 cores", "1,000,000", "4,000"]
    assert [cells(row) for row in rows] == [[*where, "140", "0: 140, 1: 140, 2: not reached", ""]]
    (run,) = learning(FAST, 3, jobs=1, eval={"mean": 4000.5, "std": 10.0, "episodes": 9}, **more)
    run["curve"] = found[0]["curve"]
    (row,) = tables.target_table([run]).splitlines()[2:]
    assert cells(row)[-1] == "0: 4,000.50 ± 10.00 (9 episodes)"


def test_agents_side_by_side(tmp_path, monkeypatch, capsys):
    """The first second of films with speeds of their own, words from the records; who has no film
    plays."""
    for name, fps, count, size in (("a", 50, 100, (64, 96)), ("b", 20, 10, (64, 128))):
        (tmp_path / name).mkdir()
        with imageio.get_writer(tmp_path / name / "video.mp4", fps=fps) as writer:
            for i in range(count):
                writer.append_data(np.full((*size, 3), 2 * i, np.uint8))
        more = {"run": name, "script": "ppo_x", "seconds": 90.0, "eval": {"mean": 7.0}}
        records.append(tmp_path / "learning.jsonl", learning("ppo_x", 1.0, **more)[0])
    played = []
    monkeypatch.setattr(picture, "run_process", played.append)
    out, runs = tmp_path / "agents.webp", [str(tmp_path / name) for name in "ab"]
    argv = ["picture.py", *runs, "--out", str(out), "--seconds", "1", "--height", "50"]
    argv += ["--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", argv)
    assert picture.main() == 0 and not played, capsys.readouterr()
    record = learning("ppo_x", 1.0, **more | {"eval": {"mean": 1234.5}})[0]
    assert picture.words(record) == "Hopper-v4: 1,234\nppo_x\n1.5 minutes, 2 cores"
    with Image.open(out) as found:
        assert found.info["loop"] == 0 and found.height == 50 + picture.LABEL
        words = picture.words(record).splitlines()[-1]  # wider than both films
        wide = round(picture.ImageFont.load_default(13).getlength(words))
        assert wide > 100 and found.width == 2 * wide + picture.GAP
        grey = np.asarray(found.convert("L"))
        assert grey[50:, :wide].min() < 60 and grey[50:, -wide:].min() < 60
        shown = (grey[:50] < 60).any(0)  # in their middle, on white
        assert 75 + 100 - 9 < shown.sum() < 75 + 100 + 9 and not shown[[0, wide - 1, -1]].any()
        lengths = [
            (found.seek(i), found.load(), found.info["duration"]) for i in range(found.n_frames)
        ]
    assert sum(ms for *_, ms in lengths) == 1000, "images that hardly differ are one that stays"
    monkeypatch.setattr(
        sys, "argv", [*argv, "--beside", str(out), "--out", f"{tmp_path}/four.webp"]
    )
    assert picture.main() == 0
    with Image.open(out) as two, Image.open(tmp_path / "four.webp") as four:
        assert four.size == (2 * two.width + picture.GAP, two.height)
        one, both = (np.asarray(x.convert("L")).astype(float) for x in (two, four))
        assert abs(both[:, : two.width] - both[:, -two.width :]).mean() < 3 < one.std()
    monkeypatch.setattr(sys, "argv", argv)
    for run, steps in zip(
        runs, ([2.5 * i for i in range(20)], [*range(10), *[9] * 10]), strict=True
    ):
        images = picture.film(Path(run), seconds=1, height=50)
        shown = [np.asarray(image).mean() / 2 for image in images]
        assert shown == pytest.approx(steps, abs=2)
    (tmp_path / "a" / "video.mp4").rename(tmp_path / "a" / "x.mp4")
    monkeypatch.setattr(picture, "film", lambda *_: [Image.new("RGB", (9, 9))])
    assert picture.main() == 0
    assert [words[2] for words in played] == runs[:1] and "best" in played[0]
    monkeypatch.setattr(sys, "argv", ["picture.py", "nope", *argv[3:]])
    assert picture.main() == 2
    assert capsys.readouterr().err.strip().endswith("nope: no record with --eval-games")


def test_tree_counts_changed_lines(tmp_path, monkeypatch):
    """A child whose parent has no file is a root; a script without a sibling has no number."""
    texts = {"a": "1\n2\n3\n\n4\n", "a_torchcompile": "1\n2 # fast\n3\n\n\n\n4\n5\n\n6\n"}
    texts |= {"b": "1\n3\n4\n", "c": "0\n", "d": "0\n"}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    found = report.changes(tmp_path / "a.py", tmp_path / "a_torchcompile.py")
    assert found == [["-2", "+2 # fast"], ["+5", "+6"]]
    tree = {"a": (None, "A"), "b": ("a", "B"), "c": ("b", "C"), "d": ("x", "D"), "e": ("a", "E")}
    tree = {name: pairs.Pair(*about) for name, about in tree.items()}
    monkeypatch.setattr(report, "PAIRS", tree)
    lines = [line[2:-2].split(" | ") for line in report.tree(tmp_path).splitlines()[2:]]
    assert lines == [
        ["`a`", "", "[4 (2)](diffs/a_torchcompile.diff)", "A"],
        ["`└─\xa0b`", "[1 (1)](diffs/a_to_b.diff)", "", "B"],
        ["`\xa0\xa0\xa0└─\xa0c`", "[4 (1)](diffs/b_to_c.diff)", "", "C"],
        ["`d`", "", "", "D"],
    ]
    shown = report.diffs(tmp_path)
    assert [path.name for path in shown] == ["a_torchcompile.diff", "a_to_b.diff", "b_to_c.diff"]
    fast = shown[tmp_path / "diffs/a_torchcompile.diff"]
    assert fast.startswith("--- a/ppo/a.py\n+++ b/ppo/a_torchcompile.py\n@@ -1,5 +1,")


def test_pages_and_plots(tmp_path):
    speeds = [
        r for name in (EAGER, FAST) for r in session(name, [2e3] * 3, code=records.code(name))
    ]
    for record in session("simulator", [8000.0] * 3) + speeds + session("sb3", [1e3] * 3):
        records.append(tmp_path / "throughput.jsonl", record)
    for record in learning(EAGER, 1, 2) + learning(EAGER, 3, env_id="X-v1"):
        records.append(tmp_path / "learning.jsonl", {**record, "versions": {"torch": "1"}})
    text = "a\n<!-- throughput -->\nold\n<!-- /throughput -->\nb\n"
    text += "<!-- lower_bound -->\n<!-- /lower_bound -->"
    found = report.parts(tmp_path)
    text = report.filled(text, found)
    assert text.startswith("a\n<!-- throughput -->\n`ppo_cont") and "\nold" not in text
    assert "| 2,000 |" in text and "\n<!-- /throughput -->\nb\n<!-- lower_bound -->\n*There" in text
    assert "*no GPU, P, 2 cores; 2026-01-02; commit c; torch 1; medians of 3" in text
    assert report.filled(text, found) == text
    plots.write(tmp_path)
    assert {path.name for path in tmp_path.glob("*.png")} == {"speed.png"}
    more = {"env_id": "Walker2d-v4", "total_timesteps": 1_000_000, "cores": 1}
    for variant in (EAGER, f"{FAST}:compile"):
        for record in learning(variant, *range(choose.ENOUGH), **more):
            records.append(tmp_path / "learning.jsonl", {**record, "versions": {"torch": "1"}})
    plots.write(tmp_path)
    names = {"speed.png", "learning.png"}
    assert {path.name for path in tmp_path.glob("*.png")} == names


def test_no_plot_cuts_its_words():
    """What is written lies within the figure; factors beside bars, and legends, overlap nothing."""
    found = session("CleanRL", [9.0]) + session("LeanRL", [90.0]) + session("sb3", [110.0])
    found += session(EAGER, [100.0]) + session(f"{FAST}:compile+bfloat16", [330.0])
    found += session(f"{FAST}:compile", [220.0]) + session("LeanRL --compile", [150.0])
    figures = [plots.plot_speed(found)]
    more = {"cpu": "Intel(R) Xeon(R) Processor @ 2.50GHz", "seconds": 60.0}
    found = [
        run
        for task, lines in ((pairs.PAIRS[x], y) for x, y in choose.IDEAS.items())
        for i, (pair, variant) in enumerate(lines.values())
        for run in learning(variant, *range(5 + 5 * i), env_id=task.env_id, pair=pair,
                            total_timesteps=task.steps, **more)
    ]  # fmt: skip
    figures += [plots.plot_ideas(found)]
    more |= {"total_timesteps": 1_000_000}
    found = [
        run
        for env_id in ("HalfCheetah-v4", "Walker2d-v4")
        for variant in (EAGER, f"{FAST}:compile")
        for run in learning(variant, *range(5), env_id=env_id, cores=1, **more)
    ]
    figures += [plots.plot_learning(found)]
    for figure in figures:
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        words = [x for x in figure.findobj(Text) if re.search("[a-z]", x.get_text())]
        words = [x for x in words if x.get_visible()]  # an axis has labels on both sides
        boxes = [x.get_window_extent(canvas.get_renderer()) for x in words]
        for word, box in zip(words, boxes, strict=True):
            assert box.x0 >= 0 and box.x1 <= figure.bbox.x1, word.get_text()
            assert box.y0 >= 0 and box.y1 <= figure.bbox.y1, word.get_text()
        for (i, one), (k, two) in itertools.combinations(enumerate(boxes), 2):
            assert not one.overlaps(two), (words[i].get_text(), words[k].get_text())


def benchmark(name, *flags):
    """A benchmark's main, in this process: its status and what it prints."""
    argv, out, err = [f"{name}.py", *map(str, flags)], io.StringIO(), io.StringIO()
    with mock.patch("sys.argv", argv), redirect_stdout(out), redirect_stderr(err):
        try:
            status = importlib.import_module(name).main()
        except SystemExit as ended:
            status = ended.code
    return SimpleNamespace(returncode=status, stdout=out.getvalue(), stderr=err.getvalue())


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rounds_go_on_without_what_fails(tmp_path, capsys):
    """All cases in turn, twice; what has failed is named, once, and run no more."""
    codes = {"one": "print('sps 1')", "silent": "1", "broken": "nope", "two": "print('sps 2')"}
    cases = [
        throughput.Case(
            name, EAGER, 8, [sys.executable, "-c", code], code, sps_regex=re.compile(r"sps (\d+)")
        )
        for name, code in codes.items()
    ]
    session, failed = throughput.run_rounds(cases, 2, tmp_path / "x.jsonl", limit=60)
    errors = capsys.readouterr().err
    assert failed == 2 and errors.count("silent (--num-envs 8): no figure for") == 1
    assert errors.count("broken (--num-envs 8): ") == errors.count("NameError") == 1
    found = lines_of(tmp_path / "x.jsonl")
    assert [(r["round"], r["variant"], r["sps"]) for r in found] == [
        (i, name, sps) for i in (1, 2) for name, sps in (("one", 1), ("two", 2))
    ]
    assert {r["session"] for r in found} == {session}
    assert [r["cold_cache"] for r in found] == [True, True, False, False]


def test_throughput_of_no_script(tmp_path):
    done = benchmark("throughput", "--variants", "nope", "--results", tmp_path)
    assert done.returncode == 1 and "no script 'nope'" in done.stderr
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_throughput(tmp_path):
    eager = "ppo_continuous_action_envpool"
    peer = f"""counts={sys.executable} -c "print('SPS: 17')" """
    flags = ["--variants", eager, f"{eager}:turbo", f"sb3:{eager}", "--num-envs", 8]
    flags += ["--rounds", 1, "--iterations", 4, "--peer", peer, "--peer-sps", r"SPS: (\d+)"]
    done = benchmark("throughput", *flags, "--results", tmp_path)
    assert done.returncode == 1 and "no mode 'turbo'" in done.stderr
    found = lines_of(tmp_path / "throughput.jsonl")
    assert [r["variant"] for r in found] == ["simulator", eager, "sb3", "counts"]
    assert found[3]["sps"] == 17 and found[2]["sps"] > 0 and found[1]["global_step"] == 4 * 8 * 64
    assert 0 < found[1]["sps"] < found[0]["sps"] == found[1]["simulator_sps"]
    assert found[1]["code"] == records.code(eager) and "code" not in found[0]
    assert 0.5 < found[1]["startup_s"], "it imports PyTorch"
    # 17-64-64-6 and 17-64-64-1: 2 operations a weight; the gradient of the input is not needed
    weights, first = 2 * (17 * 64 + 64 * 64) + 64 * 6 + 64, 2 * 17 * 64
    assert found[0]["flops_acting"] == 2 * weights
    assert found[0]["flops_learning"] == 5 * (6 * weights - 2 * first)
    assert found[1]["command"].startswith(f"python ppo/{eager}.py --num-envs 8")
    assert "| counts | 17 |" in done.stdout


@pytest.mark.parametrize("part", ["1", "2", "3", "4", "5", "6"])
def test_gpu_parts_ask_for_what_there_is(part, tmp_path):
    """By a python3 that says what it was asked: scripts, variants and flags exist."""
    python3 = tmp_path / "python3"
    python3.write_text("#!/bin/sh\nprintf 'ASKED'; printf '\\t%s' \"$@\"; echo\n")
    python3.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PEERS": "../peers"}
    command = ["bash", ROOT / "benchmarks" / "gpu.sh", part, tmp_path / "results"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    if part == "6":
        assert done.returncode == 2 and done.stderr.startswith("usage:")
        return
    assert done.returncode == 0 and (tmp_path / "results").is_dir()
    asked = [line.split("\t")[1:] for line in done.stdout.splitlines() if line.startswith("ASKED")]
    lines = [words for words in asked if words[0].startswith("benchmarks/")]
    assert lines
    for script, *words in lines:
        text = (ROOT / script).read_text()
        for word in words:
            if "kernels" in script and word.startswith("--"):
                assert word.strip("-").replace("-", "_") in records.defaults(words[0])
            elif word.startswith("--"):
                assert f'"{word}"' in text
            elif word.startswith("ppo_"):
                records.split_variant(word)


@pytest.mark.slow
def test_learning_runs_each_run_once(tmp_path):
    flags = ["--env-ids", "Pendulum-v1", "Nope-v1", "--seeds", "1", "--total-timesteps", "8192"]
    flags += ["--variants", "ppo_continuous_action", "nope", "--results", tmp_path]
    done = benchmark("learning", *flags, "--eval-games", 2)
    assert done.returncode == 1
    assert "no script 'nope'" in done.stderr and "`Nope` doesn't exist" in done.stderr
    (record,) = lines_of(tmp_path / "learning.jsonl")
    assert record["env_id"] == "Pendulum-v1" and record["args"]["total_timesteps"] == 8192
    assert record["eval"]["episodes"] == 2 and record["eval"]["mean"] < 0
    assert 0.5 < record["startup_s"] < record["seconds"]
    # 40 games of 200 steps, with a reset row between them
    steps, seconds, returns = zip(*record["curve"], strict=True)
    assert list(steps) == sorted(steps) and steps[-1] == 8039 and min(seconds) > 0
    assert record["mean_return"] == pytest.approx(sum(returns) / len(returns), abs=1e-3)
    done = benchmark("learning", *flags[:2], *flags[3:])  # without Nope-v1
    assert "0 runs to do, 1 with a record" in done.stderr and "no script 'nope'" in done.stderr
    assert lines_of(tmp_path / "learning.jsonl") == [record]
    done = benchmark("learning", "--summary", "--results", tmp_path)
    assert done.returncode == 0 and "| 8,192 | `ppo_continuous_action` |" in done.stdout


@pytest.mark.slow
def test_learning_in_stretches(tmp_path, monkeypatch):
    """Two commands, one run: the second goes on with it, and its record is the one that counts.

    Neither goes on with a run that died before its first checkpoint. By a clock on which a
    stretch's minutes are over as soon as the run has got further.
    """
    runs, before, reached = tmp_path / "runs", 0, importlib.import_module("learning").reached

    def clock():
        return time.time() + 3600 * any(reached(run) > before for run in runs.glob("*/*"))

    monkeypatch.setattr("learning.time", SimpleNamespace(time=clock))
    flags = ["--env-ids", "Pendulum-v1", "--seeds", "1", "--total-timesteps", 10**6]
    flags += ["--variants", EAGER, "--results", tmp_path, "--runs-dir", runs]
    (runs / f"{EAGER}__Pendulum-v1__1__1000000" / "dead").mkdir(parents=True)
    for _ in range(2):
        assert benchmark("learning", *flags, "--minutes", 30).returncode == 0
        before = lines_of(tmp_path / "learning.jsonl")[-1]["until"]
    first, second = lines_of(tmp_path / "learning.jsonl")
    assert 0 < first["until"] == first["global_step"] < second["until"] == second["global_step"]
    assert first["run"] == second["run"]
    assert choose.learned([first, second]) == [[{**second, "pair": EAGER, "cut": True}]]
    steps, seconds, _ = zip(*second["curve"], strict=True)
    assert steps[-1] > first["until"] and list(seconds) == sorted(seconds)
    assert second["seconds"] == seconds[-1], "of both stretches"


def test_two_at_once(tmp_path):
    """Each waits for the other, so that neither ends alone; the mean of their figures is kept."""
    wait = """
import os, pathlib, sys, time
pathlib.Path(sys.argv[1], str(os.getpid())).touch()
while len(os.listdir(sys.argv[1])) < 2:
    time.sleep(0.01)
print("sps", 10 + 20 * (str(os.getpid()) == min(os.listdir(sys.argv[1]))))
"""
    command = [sys.executable, "-c", wait, str(tmp_path)]
    case = throughput.Case(
        "peer", "ppo_atari_envpool", 8, command, "", None, {}, re.compile(r"sps (\d+)"), at_once=2
    )
    assert throughput.measure(case, {}, limit=60)["sps"] == 20.0


FAKE_PEER = """
import os, sys, time
assert len(os.sched_getaffinity(0)) == 1 and sys.argv[1:] == ["X-v1", "3", "1000"]
for step in range(5, 1001, 5):
    print(f"global_step={step}, episodic_return=[{-step / 2}]")
    if step % 500 == 0:
        print(f"SPS: {step}.5")
        time.sleep(1 if step == 500 else 0)
"""


def test_a_peer_has_a_curve(tmp_path):
    """From what it prints and when; beside its pair, once, and on a core of its own."""
    script = tmp_path / "peer.py"
    script.write_text(FAKE_PEER)
    command = f"'{sys.executable}' {script} {{env_id}} {{seed}} {{total_timesteps}}"
    flags = ["--variants", "sb3:nope", "--peer", f"Fake --fast={command}", "--env-ids", "X-v1"]
    flags += ["--seeds", 3, "--total-timesteps", 1000, "--results", tmp_path]
    flags += ["--jobs", len(os.sched_getaffinity(0))]
    done = benchmark("learning", *flags)
    assert done.returncode == 1 and "no script 'nope'" in done.stderr
    (record,) = lines_of(tmp_path / "learning.jsonl")
    assert (record["variant"], record["pair"], record["cores"]) == ("Fake --fast", "nope", 1)
    assert record["command"].endswith("peer.py X-v1 3 1000") and record["until"] is None
    assert (record["sps"], record["episodes"], record["global_step"]) == (1000.5, 200, 1000)
    assert record["mean_return"] == -sum(range(505, 1001, 5)) / 2 / 100
    steps, seconds, returns = zip(*record["curve"], strict=True)
    assert steps == tuple(range(5, 1001, 5)) and returns == tuple(-step / 2 for step in steps)
    assert 0 <= seconds[0] <= seconds[99] < seconds[100] <= seconds[199] <= record["seconds"]
    assert seconds[99] - 0.1 < record["startup_s"] < seconds[100] + 0.1
    assert "0 runs to do, 1 with a record" in benchmark("learning", *flags).stderr
    assert "| Fake --fast | -376 (1 seed) |" in done.stdout


def test_peers_are_edited_or_not_at_all(tmp_path):
    """A place or a file that is missing: one line, status 2, and nothing is written."""
    for name, edits in cleanrl_leanrl.FILES.items():
        path = tmp_path / "theirs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(old for old, _, _ in edits))
    out = tmp_path / "out"
    flags = ["--cleanrl", tmp_path / "theirs", "--leanrl", tmp_path / "theirs", "--out", out]
    path.write_text(path.read_text().replace("import wandb", "import other"))
    for wrong, said in ((flags, "import wandb"), (["--cleanrl", tmp_path, *flags[4:]], "ppo.py")):
        done = benchmark("peers.cleanrl_leanrl", *wrong)
        assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1
        assert not out.exists()
    assert "is it of commit 8dbb6336b7?" in benchmark("peers.cleanrl_leanrl", *flags).stderr
    done = benchmark("peers.cleanrl_leanrl", *flags[:2], *flags[4:])
    assert done.returncode == 0 and len(done.stdout.splitlines()) == len(list(out.iterdir())) == 5
    for name, edits in cleanrl_leanrl.FILES.items():
        if name.startswith("cleanrl"):
            text = (out / f"cleanrl_{name.partition('/')[2]}").read_text()
            assert all(new in text for _, new, _ in edits)
