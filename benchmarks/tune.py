"""Searches for hyper-parameters with Optuna: those of a script on an environment of yours.

    ./run.sh tune --script ppo_torchcompile:compile --env-id LunarLander-v3 --jobs 2
    PYTHONPATH=examples ./run.sh tune --script ppo --env-id my_envs:HiddenCartPole-v1

A trial trains once with each of --seeds, and scores the mean return that the run's summary has.
suggest() has the flags that are searched; the others keep their defaults. The study is kept in
runs/tune, and the same command goes on with it, while script and environment are the same code. At
the end stands the command of the best trial. Judge it by other seeds: those that chose it flatter
it.
"""

import argparse
import re
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import optuna
from compare import side
from lib.records import Failure, append, catch_signals, constants, machine, shown, warn
from lib.runs import judged, train

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--script", required=True, help="NAME, NAME:flag+flag or a path, as compare takes it")
    add("--env-id", required=True, help="task")
    add("--total-timesteps", type=int, help="of a run; the script's own by default")
    add("--trials", type=int, default=30, help="of this call")
    add("--seeds", nargs="+", type=int, default=[101], help="of a trial's runs")
    add("--jobs", type=int, default=1, help="trials at once, as many as cores or fewer")
    args = parser.parse_args()
    words = re.sub(r"[^\w.-]+", "_", "__".join(map(str, (args.script, args.env_id, *args.seeds))))
    try:
        one = side(args.script, [])
        fixed = [*one.flags, "--no-cuda"]
        own = constants(one.script.read_text())
        steps = own["total_timesteps"] if args.total_timesteps is None else args.total_timesteps
        if steps < max(ROLLOUTS):
            parser.error(f"give {max(ROLLOUTS)} or more --total-timesteps")
        catch_signals()
        # does the script take the environment?
        train(one.job(args.env_id, 1, own["num_envs"] * own["num_steps"]) | {"flags": fixed}, one)
    except Failure as failure:
        parser.error(str(failure))
    folder = Path("runs", "tune", f"{words}__{steps}__{one.code(args.env_id)}")
    folder.mkdir(parents=True, exist_ok=True)
    one.keep(folder / "scripts")
    path, more = folder / "runs.jsonl", machine()

    def objective(trial):
        returns, flags = [], flags_of(suggest(trial, one.script.stem))
        try:
            for seed in args.seeds:
                job = more | one.job(args.env_id, seed, steps) | {"flags": [*fixed, *flags]}
                record = job | train(job, one)
                append(path, record)
                if said := judged([record])[1]:
                    raise Failure(said[0])
                returns.append(record["mean_return"])
        except Failure as failure:
            warn(f"trial {trial.number}: {failure}")
            raise optuna.TrialPruned from None
        except KeyboardInterrupt:  # Optuna would print where it was
            study.stop()
            raise optuna.TrialPruned from None
        return float(np.mean(returns))

    journal = optuna.storages.journal.JournalFileBackend(str(folder / "study.log"))
    study = optuna.create_study(
        storage=optuna.storages.JournalStorage(journal),
        study_name="tune",
        direction="maximize",
        load_if_exists=True,
    )
    with suppress(KeyboardInterrupt):  # what was tried is kept
        study.optimize(objective, n_trials=args.trials, n_jobs=args.jobs)
    try:
        best = study.best_trial
    except ValueError:
        warn(f"no trial got to its end; they are in {folder}")
        return 1
    complete = study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE])
    print(f"best of {len(complete)} trials: {best.value:.2f}, mean over seeds {args.seeds}")
    found = flags_of(suggest(optuna.trial.FixedTrial(best.params), one.script.stem))
    found = [*fixed, *found, "--env-id", args.env_id, "--total-timesteps", str(steps)]
    print(shown([sys.executable, str(one.script), *found]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
