"""Recipes and the search for hyper-parameters: commands that scripts take, tables that count."""

import json
import shlex
import subprocess
from unittest import mock

import envpool
import gymnasium as gym
import learning
import optuna
import pytest
import tune
import tyro
from fork import IDEAS, fits
from helpers import ROOT, command, load, said
from lib import recipes, records, runs, tables

ALL = recipes.recipes()
TINY = {"script": "ppo", "env_id": "CartPole-v1", "total_timesteps": 1024, "flags": "--gamma 0.9"}
TINY |= {"score": 300, "eager": True}


@pytest.mark.parametrize("name", ALL)
def test_a_script_takes_a_recipe(name):
    """Its flags parse, and its environment is one that the script can have."""
    about = ALL[name]
    script, *flags = recipes.command(about).split()
    args = tyro.cli(load(script).Args, args=flags)
    assert "patch" not in about or fits(IDEAS / f"{about['patch']}.patch", about["script"])
    assert getattr(args, "compile", False) != about.get("eager", False) and not args.cuda
    assert args.env_id == about["env_id"] and args.total_timesteps == about["total_timesteps"]
    assert records.split_variant(recipes.variant(about))[0] == script
    ids = envpool.list_all_envs() if "envpool" in script else gym.registry
    assert args.env_id in ids


def test_recipes_are_listed_and_the_nearest_is_named():
    done = command("recipe")
    assert not done.returncode and all(name in done.stdout for name in ALL)
    done = command("recipe", "LunarLander-v2")
    assert done.returncode == 2 and not done.stdout and len(done.stderr.splitlines()) == 1
    assert "LunarLander-v3" in done.stderr and "Taxi" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CartPole-v1", "Go1-walks"])
def test_run_sh_prints_a_recipe_and_runs_it(name, tmp_path):
    """Further flags win; the printed command is the recipe's, and of its patch's pair."""
    more = ["--total-timesteps", "1024", "--num-steps", "16", "--runs-dir", str(tmp_path)]
    more += ["--no-compile"] * (name == "Go1-walks")
    words = [ROOT / "run.sh", "recipe", name, *more]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    pair = f"runs/recipes/{name}" if "patch" in ALL[name] else ""
    shown = shlex.join(recipes.command(ALL[name], pair).split())
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"./run.sh {shown} {' '.join(more)}"
    (summary,) = tmp_path.glob("*/summary.json")
    assert json.loads(summary.read_text())["global_step"] == 1024


def run(seed, score, **more):
    """A record of TINY, as learning.py appends it."""
    fields = {"variant": recipes.variant(TINY), "env_id": "CartPole-v1", "total_timesteps": 1024}
    fields |= {"cpu": "P", "cores": 1, "gpu": None, "commit": "c", "seed": seed, "flags": []}
    fields |= {"global_step": 1024, "date": f"2026-01-02T00:0{seed % 10}", "seconds": 90.0}
    fields |= {"eval": {"mean": score - 1}, "eval_deterministic": {"mean": score}, **more}
    return fields | {"mean_return": 0.0, "curve": [[512, 30.0, 1.0], [1024, 90.0, score]]}


def test_what_recipes_come_to(monkeypatch):
    """Reported seeds alone, that had a core to themselves, of the newest machine."""
    zoo = {"return": 242, "steps": 1_000_000, "env_id": "CartPole-v0"}
    shown = {"Tiny": TINY | {"zoo": zoo}, "B": ALL["Taxi-v4"]}
    monkeypatch.setattr(tables, "recipes", lambda: shown)
    found = [run(2, 9.0, cores=2), run(3, 9.0, complete=False), run(4, 9.0, cpu="old", date="2025")]
    found += [run(seed, 100.0 * seed) for seed in (1, 2, 3, 4, 5, 6)]
    found += [run(101, 9.0), run(1, 9.0, variant="ppo_torchcompile:compile")]
    table, _, caption = tables.recipe_table(found).rpartition("\n\n")
    row, other = table.splitlines()[2:]
    text = "| `Tiny` | 300 [133, 467] (5) | 100 to 500 | 242 (1M, v0) | 1.5 (0.001024M) | "
    assert row == f"{text}300 in 90 s |" and other == "| `B` | not measured |  |  |  |  |"
    assert caption == "*P, 1 core; 2026-01-02.*"
    found = [r | {"before": "0.3"} for r in found]
    assert "[133, 467] (5), before 0.3 |" in tables.recipe_table(found)
    missed = tables.recipe_table([r for r in found if r["seed"] != 5])
    assert "| 300 not reached |" in missed, "by two of four"


@pytest.mark.slow
def test_a_recipe_is_learned_and_played_both_ways(tmp_path, monkeypatch):
    monkeypatch.setattr(learning, "recipes", lambda: {"Tiny": TINY})
    flags = ["--recipes", "Tiny", "--seeds", 1, "--eval-games", 2, "--results", tmp_path]
    assert command("learning", *flags).returncode == 0
    (record,) = records.read(tmp_path / "learning.jsonl")
    assert record["args"]["gamma"] == 0.9 and record["global_step"] == 1024
    assert record["eval"]["episodes"] == record["eval_deterministic"]["episodes"] == 2
    assert record["eval"] != record["eval_deterministic"]
    assert record["code"] == records.code("ppo") and 0.5 < record["startup_s"] < record["seconds"]
    steps, seconds, _ = zip(*record["curve"], strict=True)
    assert list(steps) == sorted(steps) and 1000 < steps[-1] <= 1024 and min(seconds) > 0
    assert "0 runs to do, 1 with a record" in command("learning", *flags).stderr
    for flag in ("--variants", "--env-ids", "--total-timesteps"):
        done = command("learning", *flags, flag, 7)
        assert done.returncode == 2 and "of their own" in done.stderr


@pytest.mark.parametrize("script", ["ppo", "ppo_lstm", "ppo_continuous_action_envpool"])
def test_a_search_space_is_one_of_flags(script):
    """All that may be drawn is taken by the script."""
    study = optuna.create_study()
    for seed in range(40):
        study.sampler = optuna.samplers.RandomSampler(seed)
        flags = tune.flags_of(tune.suggest(study.ask(), script))
        tyro.cli(load(script).Args, args=flags)
    assert len(flags) in (19, 20) and "--learning-rate" in flags


ASKED = ["--script", "ppo", "--env-id", "CartPole-v1"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder for studies, in which nothing is done about signals."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tune, "catch_signals", lambda: None)


def test_what_a_script_refuses_ends_before_a_trial(here, tmp_path):
    for flags, words in (
        (["--env-id", "Pendulum-v1"], "must be Discrete"),
        (["--script", "nope"], "no script 'nope'"),
        (["--total-timesteps", 4095], "4096 or more --total-timesteps"),
    ):
        done = command("tune", *ASKED, *flags)
        assert done.returncode == 2 and words in said(done.stderr), flags
    assert not list(tmp_path.iterdir())


def learned(outcomes):
    """In place of a run: what tune reads of it. An exception is raised."""
    found = [x if isinstance(x, BaseException) else {"mean_return": x} for x in outcomes]
    return mock.Mock(side_effect=[{"mean_return": 0.0}, *found])


@pytest.mark.parametrize("outcomes", [[KeyboardInterrupt()], [5.0, KeyboardInterrupt()]])
def test_ctrl_c_ends_a_study_without_a_traceback(outcomes, here, monkeypatch):
    """In its first trial, or its second: then the best is told."""
    monkeypatch.setattr(tune, "train", learned(outcomes))
    done = command("tune", *ASKED, "--trials", 9)
    assert done.returncode == (len(outcomes) == 1) and "Traceback" not in done.stderr
    assert ("best of 1 trials: 5.00" in done.stdout) == (len(outcomes) == 2)


def test_a_study_goes_on(here, monkeypatch):
    """The second call adds a trial to the first one's, and prints a command that can be run; what
    fails, or ends without an episode, is none."""
    for outcomes, words in (
        ([1.0, 3.0], "best of 2 trials: 3.00"),
        ([records.Failure("no"), None], "best of 2 trials: 3.00"),
        ([2.0], "best of 3 trials: 3.00"),
    ):
        monkeypatch.setattr(tune, "train", learned(outcomes))
        done = command("tune", *ASKED, "--total-timesteps", 4096, "--trials", len(outcomes))
        assert done.returncode == 0 and words in done.stdout and tune.train.call_count > 1
    python, script, *words = done.stdout.splitlines()[-1].split()
    assert (python, script) == ("python", "ppo/ppo.py")
    assert tyro.cli(load("ppo").Args, args=words).total_timesteps == 4096


@pytest.mark.slow
def test_a_trial_is_a_run(here, tmp_path):
    """In a process: its return is that of the summary, and it has a record."""
    done = command("tune", *ASKED, "--total-timesteps", 4096, "--trials", 1)
    (record,) = runs.records_of(next(tmp_path.glob("runs/tune/*/runs.jsonl")))
    assert done.returncode == 0 and record["global_step"] <= 4096 and record["seed"] == 101
    assert f"best of 1 trials: {record['mean_return']:.2f}" in done.stdout
