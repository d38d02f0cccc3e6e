"""Recipes, ppo/recipes.toml: their commands, and the runs that show what they come to."""

import tomllib

from lib.choose import MACHINE, learned
from lib.records import ROOT

PATH = ROOT / "ppo" / "recipes.toml"
CHOOSING, REPORTED, AGAIN = range(101, 104), range(1, 6), range(6, 8)  # seeds


def recipes() -> dict[str, dict]:
    """{name: script, env_id, total_timesteps, flags, score; zoo and eager where it has them}."""
    found = tomllib.loads(PATH.read_text())
    return {name: {"env_id": name} | recipe for name, recipe in found.items()}


def variant(recipe: dict) -> str:
    """As learning.py takes it: 'NAME_torchcompile:compile --flag value', or 'NAME --flag value'."""
    how = "" if recipe.get("eager") else "_torchcompile:compile"
    return f"{recipe['script']}{how} {recipe['flags']}".strip()


def command(recipe: dict) -> str:
    """What ./run.sh is given."""
    how = "" if recipe.get("eager") else "_torchcompile --compile"
    head = f"{recipe['script']}{how} --no-cuda --env-id {recipe['env_id']}"
    return f"{head} --total-timesteps {recipe['total_timesteps']} {recipe['flags']}".strip()


def runs_of(records: list[dict], recipe: dict, seeds=REPORTED) -> list[dict]:
    """Finished runs of a recipe that had a core to themselves, of the newest one's machine."""
    asked = variant(recipe), recipe["env_id"], recipe["total_timesteps"], 1, False
    fields = "variant", "env_id", "total_timesteps", "cores", "cut"
    every = [r for same in learned(records) for r in same if r["seed"] in seeds]
    found = [r for r in every if tuple(r[x] for x in fields) == asked]
    last = max(found, key=lambda r: r["date"], default=None)
    return [r for r in found if all(r[x] == last[x] for x in MACHINE)]


def trials_of(records: list[dict], recipe: dict) -> int:
    """How many sets of flags and steps were tried on the seeds that choose a recipe: those on
    record, and those of tune.py."""
    every = [r for same in learned(records) for r in same if r["seed"] in CHOOSING]
    asked = recipe["script"], recipe["env_id"]
    found = [r for r in every if (r["pair"], r["env_id"]) == asked]
    return len({(r["variant"], r["total_timesteps"]) for r in found}) + recipe.get("tuned", 0)
