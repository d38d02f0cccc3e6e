"""Searches for hyper-parameters with Optuna: those of a script on an environment of yours.

    ./run.sh tune --script ppo_torchcompile:compile --env-id LunarLander-v3 --jobs 2
    PYTHONPATH=examples ./run.sh tune --script ppo --env-id my_envs:HiddenCartPole-v1

A trial trains once with each of --seeds, and scores the mean return that the run's summary has. It
ends early if what ended in the tenth of the run before a quarter, a half or three quarters of its
steps is below the median of what earlier trials had there. suggest() has the flags that are
searched; the others keep their defaults. The study is kept in runs/tune, and the same command goes
on with it. At the end stands the command of the best trial. Judge it by other seeds: those that
chose it flatter it.
"""

import argparse
import json
import re
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import optuna
from lib import records

TAG = "charts/episodic_return"
ROLLOUTS = [512, 1024, 2048, 4096]  # steps of all environments


def suggest(trial, script: str) -> dict:
    """A trial's hyper-parameters by their flags' names; minibatches divide as the script asks."""
    choose = trial.suggest_categorical
    many = [16, 32, 64, 128] if "envpool" in script else [1, 4, 8, 16, 32]
    found = {"num_envs": choose("num_envs", many)}
    found["num_steps"] = choose("steps of a rollout", ROLLOUTS) // found["num_envs"]
    found["num_minibatches"] = choose("num_minibatches", [1, 2, 4, 8, 16, 32])
    if "lstm" in script:  # whole environments
        found["num_minibatches"] = min(found["num_minibatches"], found["num_envs"])
    found["update_epochs"] = choose("update_epochs", [3, 5, 10, 20])
    rate = trial.suggest_float("learning_rate", 1e-4, 5e-3, log=True)
    found["learning_rate"] = float(f"{rate:.2g}")
    found["gamma"] = choose("gamma", [0.9, 0.95, 0.98, 0.99, 0.995, 0.999])
    found["gae_lambda"] = choose("gae_lambda", [0.8, 0.9, 0.95, 0.98, 1.0])
    found["clip_coef"] = choose("clip_coef", [0.1, 0.2, 0.3])
    found["clip_vloss"] = choose("clip_vloss", [True, False])
    found["ent_coef"] = choose("ent_coef", [0.0, 0.001, 0.01])
    return found


def flags_of(found: dict) -> list[str]:
    """{"num_envs": 8, "clip_vloss": False} -> ["--num-envs", "8", "--no-clip-vloss"]."""
    flags = []
    for name, value in found.items():
        word = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{word}" if value else f"--no-{word}")
        else:
            flags += [f"--{word}", str(value)]
    return flags


def train(name: str, flags: list[str], steps: int, stop) -> float | None:
    """The return of a run's last episodes; None if stop(quarter, return), asked about the first
    quarters of the run, ended it. Failure if the script fails."""
    with tempfile.TemporaryDirectory() as folder:
        looked, quarter, stopped = time.monotonic(), 1, False

        def episodes():
            return [x for run in Path(folder).iterdir() for x in records.scalars(run, TAG)]

        def mean_until(found, step):
            """Of the tenth of the run before a step, as a point may be an episode or an iteration's
            mean; of the last point where none is in it."""
            before = [x for x in found if x.step <= step]  # the same in all runs
            recent = [x for x in before if x.step > step - steps / 10] or before[-1:]
            return float(np.mean([x.value for x in recent])) if recent else None

        def tick(process):
            nonlocal looked, quarter, stopped
            if time.monotonic() - looked < 10:
                return stopped
            looked, found = time.monotonic(), episodes()
            while found and not stopped and quarter < 4 and found[-1].step > quarter * steps / 4:
                value = mean_until(found, quarter * steps / 4)
                if value is not None:
                    stopped = stop(quarter, value)
                quarter += 1
            if stopped:
                process.send_signal(signal.SIGTERM)
            return stopped

        command = records.python(f"ppo/{name}.py", *flags, "--total-timesteps", steps)
        records.run_process([*command, "--runs-dir", folder], records.settings(name), tick=tick)
        if stopped:
            return None
        (summary,) = Path(folder).glob("*/summary.json")
        score = json.loads(summary.read_text())["mean_return"]
        if score is None:
            raise records.Failure("no episode has ended")
        return score


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--script", required=True, help="NAME or NAME:flag+flag, as in learning.py")
    add("--env-id", required=True, help="task")
    add("--total-timesteps", type=int, help="of a run; the script's own by default")
    add("--trials", type=int, default=30, help="of this call")
    add("--seeds", nargs="+", type=int, default=[101], help="of a trial's runs")
    add("--jobs", type=int, default=1, help="trials at once, as many as cores or fewer")
    args = parser.parse_args()
    try:
        name, mode = records.split_variant(args.script)
        steps = args.total_timesteps
        if steps is None:
            steps = records.defaults(name)["total_timesteps"]
        if args.trials < 1 or args.jobs < 1 or steps < max(ROLLOUTS):
            least = f"1 or more --trials and --jobs, and {max(ROLLOUTS)} or more --total-timesteps"
            parser.error(f"give {least}")
        fixed = [*mode, "--no-cuda", "--env-id", args.env_id]
        one = records.defaults(name)["num_envs"] * records.defaults(name)["num_steps"]  # rollout
        with tempfile.TemporaryDirectory() as folder:  # does the script take the environment?
            flags = [*fixed[len(mode) :], "--total-timesteps", one, "--runs-dir", folder]
            records.run_process(records.python(f"ppo/{name}.py", *flags))
    except records.Failure as failure:
        parser.error(str(failure))

    def objective(trial):
        returns, flags = [], flags_of(suggest(trial, name))
        try:
            for i, seed in enumerate(args.seeds):

                def stop(quarter, value, i=i):
                    trial.report(float(np.mean([*returns, value])), 4 * i + quarter)
                    return trial.should_prune()

                value = train(name, [*fixed, *flags, "--seed", seed], steps, stop)
                if value is None:
                    raise optuna.TrialPruned
                returns.append(value)
        except records.Failure as failure:
            records.warn(f"trial {trial.number}: {failure}")
            raise optuna.TrialPruned from None
        except KeyboardInterrupt:  # Optuna would print where it was
            study.stop()
            raise optuna.TrialPruned from None
        return float(np.mean(returns))

    words = map(str, (args.script, args.env_id, steps, *args.seeds))
    path = Path("runs", "tune", re.sub(r"[^\w.-]+", "_", "__".join(words)) + ".log")
    path.parent.mkdir(parents=True, exist_ok=True)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    pruner = optuna.pruners.MedianPruner(n_startup_trials=4)
    study = optuna.create_study(
        storage=storage, pruner=pruner, study_name="tune", direction="maximize", load_if_exists=True
    )
    with suppress(KeyboardInterrupt):  # what was tried is kept
        study.optimize(objective, n_trials=args.trials, n_jobs=args.jobs)
    try:
        best = study.best_trial
    except ValueError:
        records.warn(f"no trial got to its end; they are in {path}")
        return 1
    complete = study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE])
    print(f"best of {len(complete)} trials: {best.value:.2f}, mean over seeds {args.seeds}")
    found = suggest(optuna.trial.FixedTrial(best.params), name)
    print(records.shown(f"ppo/{name}.py", *fixed, *flags_of(found), "--total-timesteps", steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
