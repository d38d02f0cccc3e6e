"""The benchmarks: no record is lost, what fails leaves the rest alone, tables come from records."""

import json
import re
import subprocess
import sys

import ablation
import pytest
import records
import report
import throughput
from helpers import ROOT, SCRIPTS


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


@pytest.mark.parametrize("name", SCRIPTS)
def test_variants(name):
    assert records.split_variant(name) == (name, [])
    assert records.split_variant(f"{name}:no-cuda+track") == (name, ["--no-cuda", "--track"])
    with pytest.raises(records.Failure, match="no mode 'turbo'; it has .*cuda"):
        records.split_variant(f"{name}:turbo")
    with pytest.raises(records.Failure, match=f"no script 'x{name}'; there are .*{name}"):
        records.split_variant(f"x{name}")
    assert records.default(name, "num_steps") in (128, 2048)


def session(variant, sps, **more):
    """Records of three rounds of a case, as throughput.py and ablation.py append them."""
    fields = {"variant": variant, "pair": "ppo_continuous_action", "num_envs": 1, "startup_s": 2.0}
    fields |= {"session": "2026-01-02T03:04:05Z", "session_command": "python x.py", "commit": "c"}
    fields |= {"cpu": "P", "cores": 2, "gpu": None, "versions": {"torch": "1"}, "global_step": 6144}
    fields["args"] = {"num_envs": 1, "num_steps": 1024, "measure_burnin": 3}
    fields["phase_s"] = {"rollout": 0.3, "advantages": 0.006, "update": 0.6, "log": 0.0}
    return [{**fields, "round": i, "sps": value, **more} for i, value in enumerate(sps, 1)]


def test_ratios_are_of_the_same_round(tmp_path):
    eager = "ppo_continuous_action"
    found = session("simulator", [8000.0, 800.0, 80.0])
    found += session(eager, [2000.0, 100.0, 10.0])
    found += session(f"{eager}_torchcompile:compile", [3000.0, 200.0, 40.0])
    simulator, slow, fast = report.throughput_table(found).splitlines()[2:]
    cells = [cell.strip() for cell in fast.strip("|").split("|")]
    assert cells == [
        f"`{eager}_torchcompile --compile`",
        "1",
        "200",
        "40 to 3,000",
        "0.38",
        "2.00",
        "2.0",
        "3",
    ]
    assert "| 800 |" in simulator and "| 0.12 | 1.00 |" in slow
    for record in found:
        records.append(tmp_path / "throughput.jsonl", record)
    text = report.filled(
        "a\n<!-- throughput -->\nold\n<!-- /throughput -->\nb", report.tables(tmp_path, True)
    )
    assert "old" not in text and fast in text and text.endswith("<!-- /throughput -->\nb")
    assert "No GPU; P, 2 cores visible; torch 1; 2026-01-02, commit c; medians of 3" in text
    assert report.filled(text, report.tables(tmp_path, True)) == text


def test_floors_table():
    """1,024 steps: 128 ms of simulator; 10 and 100 million operations each, at 10**11 or 10**12."""
    eager = "ppo_continuous_action"
    rates = {"cpu": {"float32": 1e11, "bfloat16": 1e12}}
    floor = {"flops_acting": 1e7, "flops_learning": 1e8, "flops_per_s": rates}
    floor |= {"bus_bytes": 100, "bus_bytes_per_s": None}
    found = session("simulator", [8000.0] * 3, **floor)
    found += session(eager, [500.0] * 3, device="cpu", group="", label="eager file")
    args = found[-1]["args"] | {"bfloat16": True}
    found += session(f"{eager}:x", [500.0] * 3, device="cpu", args=args, group="", label="x")
    found += session(eager, [500.0] * 3, device="cpu", group="on", label="y")
    _, _, in_float32, in_bfloat16 = report.floors_table(found).splitlines()
    floors = "100.0 | 128.0 + 102.4 | 200.0 | 1024.0 | 5.12 | 500 | 816 | 0.61"
    assert in_float32 == f"| eager file | {floors} |"
    floors = "100.0 | 128.0 + 10.2 | 200.0 | 102.4 | 0.51 | 500 | 4,255 | 0.12"
    assert in_bfloat16 == f"| x | {floors} |"
    assert "10.00 million operations to act and 100.00 million to learn" in report.rates(found)
    assert report.floors_table([r for r in found if "flops_acting" not in r]) == ""


def test_ablation_table():
    eager = "ppo_continuous_action"
    found = session(eager, [100.0] * 3, group="", label="eager file")
    found += session(
        f"{eager}_torchcompile:compile", [200.0] * 3, group="", label="fast file, all on"
    )
    found += session(f"{eager}_torchcompile", [150.0] * 3, group="off", label="without x")
    table = report.ablation_table(found).splitlines()
    assert table[-1] == "| without x | 150 | 1.50 | 0.75 | 2.0 | 100.0 | 2.0 | 200.0 | 0.0 |"


@pytest.mark.parametrize("cuda", [False, True])
@pytest.mark.parametrize("pair", ["ppo_atari_envpool", "ppo_continuous_action"])
def test_ablation_cases(pair, cuda):
    """Each has flags that its script has, and no two of a group measure the same."""
    cases = ablation.cases_of(pair, cuda)
    for _, _, variant, _ in cases:
        assert records.pair(records.split_variant(variant)[0]) == pair
    assert len({(group, variant, str(env)) for group, _, variant, env in cases}) == len(cases)
    assert any("cudagraphs" in variant for _, _, variant, _ in cases) == cuda


def test_siblings_differ_by_more_than_seeds_do():
    def runs(*returns):
        return {seed: {"mean_return": value} for seed, value in enumerate(returns)}

    pair = ("ppo_continuous_action", "ppo_continuous_action_torchcompile:compile")
    apart = (runs(1, 2, 3, 4), runs(11, 12, 13, 14))
    (note,) = report.pair_notes(dict(zip(pair, apart, strict=True)))
    assert "+10.0" in note and "p = 0.03: they differ by more than" in note
    (note,) = report.pair_notes(dict(zip(pair, (runs(1, 2, 3), runs(11, 12, 13)), strict=True)))
    assert "p = 0.10: 3 and 3 seeds do not tell them apart" in note
    (note,) = report.pair_notes(dict(zip(pair, (runs(1, 9, 20), runs(2, 11, 13)), strict=True)))
    assert "do not tell them apart" in note
    assert report.pair_notes(dict(zip(pair, (runs(1), runs(2)), strict=True))) == []


def test_plots(tmp_path):
    eager = "ppo_continuous_action"
    found = session("simulator", [8000.0] * 3) + session(eager, [2000.0] * 3)
    found += [{**r, "num_envs": 2} for r in found]
    for record in found:
        records.append(tmp_path / "throughput.jsonl", record)
    fields = {"env_id": "X-v1", "total_timesteps": 9, "until": None, "mean_return": 2.0}
    fields |= {"cpu": "P", "cores": 2, "gpu": None}
    for seed in (1, 2):
        run = {"variant": eager, "seed": seed, "curve": [[1, 0.5, 1.0], [9, 2.0, 3.0]], **fields}
        records.append(tmp_path / "learning.jsonl", run)
    names = {path.name for path in report.plot(tmp_path)}
    assert names == {
        "throughput_ppo_continuous_action_p-2-cores.png",
        "scaling_ppo_continuous_action_p-2-cores.png",
        "phases_ppo_continuous_action_p-2-cores.png",
        "learning_X-v1_p-2-cores.png",
    }
    assert all((tmp_path / name).stat().st_size > 5000 for name in names)


def benchmark(name, *flags):
    command = [sys.executable, ROOT / "benchmarks" / f"{name}.py", *map(str, flags)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600)


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_throughput_goes_on_without_what_fails(tmp_path):
    eager = "ppo_continuous_action"
    python = sys.executable
    flags = ["--variants", eager, f"{eager}:turbo", f"sb3:{eager}", "--rounds", "2"]
    flags += ["--iterations", "4"]
    flags += ["--peer", f"""counts={python} -c "print('SPS: 17')" """, "--peer-sps", r"SPS: (\d+)"]
    flags += ["--peer", f"silent={python} -c 1", "--peer-sps", r"SPS: (\d+)"]
    flags += ["--peer", f"broken={python} -c nope", "--peer-sps", r"SPS: (\d+)"]
    done = benchmark("throughput", *flags, "--results", tmp_path)
    assert done.returncode == 1
    assert (
        "no mode 'turbo'" in done.stderr
        and "silent" in done.stderr
        and "no figure for" in done.stderr
    )
    assert "NameError" in done.stderr and done.stderr.count("NameError") == 1
    found = lines_of(tmp_path / "throughput.jsonl")
    assert [(r["round"], r["variant"]) for r in found] == [
        (i, name) for i in (1, 2) for name in ("simulator", eager, "sb3", "counts")
    ]
    assert found[3]["sps"] == 17 and found[2]["sps"] > 0 and found[1]["global_step"] == 4 * 2048
    assert 0 < found[1]["sps"] < found[0]["sps"] == found[1]["simulator_sps"]
    # 17-64-64-6 and 17-64-64-1: 2 operations a weight; the gradient of the input is not needed
    weights, first = 2 * (17 * 64 + 64 * 64) + 64 * 6 + 64, 2 * 17 * 64
    assert found[0]["flops_acting"] == 2 * weights
    assert found[0]["flops_learning"] == 10 * (6 * weights - 2 * first)
    assert found[1]["command"].startswith(f"python ppo/{eager}.py --num-envs 1")
    assert "| counts | 1 | 17 |" in done.stdout

    done = benchmark("throughput", "--variants", "nope", "--results", tmp_path)
    assert done.returncode == 1 and "no script 'nope'" in done.stderr
    flags = ["--variants", eager, "--env-id", "Nope-v1", "--rounds", "1", "--results", tmp_path]
    done = benchmark("throughput", *flags)
    assert done.returncode == 1 and "not in Gymnasium" in done.stderr
    assert lines_of(tmp_path / "throughput.jsonl") == found


@pytest.mark.slow
def test_learning_runs_each_run_once(tmp_path):
    flags = ["--env-ids", "Pendulum-v1", "Nope-v1", "--seeds", "1", "--total-timesteps", "8192"]
    flags += ["--variants", "ppo_continuous_action", "nope", "--results", tmp_path]
    done = benchmark("learning", *flags)
    assert done.returncode == 1
    assert "no script 'nope'" in done.stderr and "not in Gymnasium" in done.stderr
    (record,) = lines_of(tmp_path / "learning.jsonl")
    assert record["env_id"] == "Pendulum-v1" and record["args"]["total_timesteps"] == 8192
    # 40 games of 200 steps, with a reset row between them
    steps, seconds, returns = zip(*record["curve"], strict=True)
    assert list(steps) == sorted(steps) and steps[-1] == 8039 and min(seconds) > 0
    assert record["mean_return"] == pytest.approx(sum(returns) / len(returns), abs=1e-3)
    done = benchmark("learning", *flags[:2], *flags[3:])  # without Nope-v1
    assert "0 runs to do, 1 with a record" in done.stderr and "no script 'nope'" in done.stderr
    assert lines_of(tmp_path / "learning.jsonl") == [record]
    done = benchmark("learning", "--summary", "--results", tmp_path)
    assert (
        done.returncode == 0 and "| Pendulum-v1 | 8,192 | `ppo_continuous_action` |" in done.stdout
    )


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
    assert throughput.measure(case, {}, limit=60) == {"sps": 20.0}
