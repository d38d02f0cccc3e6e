"""Searches for hyper-parameters with Optuna: those of a script on an environment of yours.

    python benchmarks/tune.py --script ppo_torchcompile:compile --env-id LunarLander-v3 --jobs 2
    PYTHONPATH=examples python benchmarks/tune.py --script ppo --env-id my_envs:HiddenCartPole-v1

A trial trains once with each of --seeds; its score is the mean return of the last 100 episodes.
It is ended where it is worse than the median of earlier trials, after a quarter, half or three
quarters of a run. The study is kept in runs/tune, and the same command goes on with it. At the end
stands the command of the best trial. Judge it on other seeds: those that chose it flatter it.
"""

import argparse
import os
import queue
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from lib.records import (
    Failure,
    defaults,
    python,
    run_process,
    scalars,
    settings,
    shown,
    split_variant,
    warn,
)

TAG, LAST = "charts/episodic_return", 100  # episodes of a return, as in the scripts


def suggest(trial, script: str) -> dict:
    """A trial's hyper-parameters by their flags' names; minibatches divide as the script asks."""
    choose = trial.suggest_categorical
    found = {"num_envs": choose("num_envs", [1, 4, 8, 16, 32, 64])}
    found["num_steps"] = choose("steps of a rollout", [512, 1024, 2048, 4096]) // found["num_envs"]
    found["num_minibatches"] = choose("num_minibatches", [1, 2, 4, 8, 16, 32])
    if "lstm" in script:  # whole environments
        found["num_minibatches"] = min(found["num_minibatches"], found["num_envs"])
    found["update_epochs"] = choose("update_epochs", [3, 5, 10, 20])
    rate = trial.suggest_float("learning_rate", 1e-4, 5e-3, log=True)
    found["learning_rate"] = float(f"{rate:.2g}")
    found["gamma"] = choose("gamma", [0.9, 0.95, 0.98, 0.99, 0.995, 0.999])
    found["gae_lambda"] = choose("gae_lambda", [0.8, 0.9, 0.95, 0.98, 1.0])
    found["clip_coef"] = choose("clip_coef", [0.1, 0.2, 0.3])
    found["ent_coef"] = choose("ent_coef", [0.0, 0.001, 0.01, 0.05])
    return found


def flags_of(found: dict) -> list[str]:
    """{"num_envs": 8} -> ["--num-envs", "8"]."""
    return [x for name, value in found.items() for x in (f"--{name.replace('_', '-')}", str(value))]


def train(name: str, flags: list[str], steps: int, stop) -> float | None:
    """The return of a run's last episodes. None if stop(quarter, return) ended it: the quarter that
    it has reached, and its return there. Failure if the script fails."""
    with tempfile.TemporaryDirectory() as folder:
        looked, quarter, stopped = time.monotonic(), 1, False

        def last_return():
            episodes = [x for run in Path(folder).iterdir() for x in scalars(run, TAG)]
            if not episodes:
                return 0, None
            return episodes[-1].step, float(np.mean([x.value for x in episodes[-LAST:]]))

        def tick(process):
            nonlocal looked, quarter, stopped
            if quarter == 4 or time.monotonic() - looked < 10:
                return False
            looked, (step, value) = time.monotonic(), last_return()
            if step >= quarter * steps / 4:
                stopped, quarter = stop(quarter, value), quarter + 1
                if stopped:
                    process.send_signal(signal.SIGTERM)
            return stopped

        command = python(f"ppo/{name}.py", *flags, "--total-timesteps", steps)
        run_process([*command, "--runs-dir", folder], settings(name), tick=tick)
        value = last_return()[1]
        if value is None:
            raise Failure("no episode has ended")
        return None if stopped else value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--script", required=True, help="NAME or NAME:flag+flag, as in learning.py")
    add("--env-id", required=True)
    add("--total-timesteps", type=int, help="of a run; the script's own by default")
    add("--trials", type=int, default=30, help="of this call")
    add("--seeds", nargs="+", type=int, default=[101], help="of a trial's runs")
    add("--jobs", type=int, default=1, help="trials at once, each with a core of its own")
    args = parser.parse_args()
    try:
        import optuna
    except ImportError:
        parser.error("needs Optuna: pip install -r requirements/requirements-bench.txt")
    free = sorted(os.sched_getaffinity(0))
    if not 0 < args.jobs <= len(free):
        parser.error(f"--jobs {args.jobs}: give 1 to {len(free)}, the cores")
    cores = queue.SimpleQueue()
    for core in free[: args.jobs]:
        cores.put(core)
    try:
        name, mode = split_variant(args.script)
        steps = args.total_timesteps or defaults(name)["total_timesteps"]
        fixed = [*mode, "--no-cuda", "--env-id", args.env_id]
        with tempfile.TemporaryDirectory() as folder:  # does the script take the environment?
            rollout = defaults(name)["num_envs"] * defaults(name)["num_steps"]
            flags = ["--total-timesteps", rollout, "--runs-dir", folder]
            run_process(python(f"ppo/{name}.py", *fixed, *flags))
    except Failure as failure:
        parser.error(str(failure))

    def objective(trial):
        returns, core = [], cores.get()
        os.sched_setaffinity(0, {core})  # of this thread, and of the processes that it starts
        try:
            for i, seed in enumerate(args.seeds):

                def stop(quarter, value, i=i):
                    trial.report(float(np.mean([*returns, value])), 4 * i + quarter)
                    return trial.should_prune()

                flags = [*fixed, *flags_of(suggest(trial, name)), "--seed", seed]
                value = train(name, flags, steps, stop)
                if value is None:
                    raise optuna.TrialPruned
                returns.append(value)
        except Failure as failure:
            warn(f"trial {trial.number}: {failure}")
            raise optuna.TrialPruned from None
        finally:
            cores.put(core)
        return float(np.mean(returns))

    path = f"{args.script}__{args.env_id}__{steps}.log".replace("/", "_").replace(":", "_")
    path = Path("runs") / "tune" / path
    path.parent.mkdir(parents=True, exist_ok=True)
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    study = optuna.create_study(
        storage=optuna.storages.JournalStorage(backend),
        study_name="tune",
        direction="maximize",
        load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
    )
    study.optimize(objective, n_trials=args.trials, n_jobs=args.jobs)
    best = study.best_trial
    print(f"best of {len(study.trials)} trials: {best.value:.2f}, mean over seeds {args.seeds}")
    found = suggest(optuna.trial.FixedTrial(best.params), name)
    print(shown(f"ppo/{name}.py", *fixed, *flags_of(found), "--total-timesteps", steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
