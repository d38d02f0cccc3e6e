"""Recipes, ppo/recipes.toml: their commands, and the runs that show what they come to."""

import tomllib

from lib.choose import MACHINE, learned
from lib.records import ROOT

PATH = ROOT / "ppo" / "recipes.toml"
REPORTED = range(1, 6)  # seeds; those that choose a recipe begin at 101


def recipes() -> dict[str, dict]:
    """{name: script, flags, total_timesteps, trials, and env_id where it is not the name}."""
    return {
        name: {"env_id": name} | recipe for name, recipe in tomllib.loads(PATH.read_text()).items()
    }


def variant(recipe: dict) -> str:
    """As learning.py takes it: 'NAME_torchcompile:compile --flag value'."""
    return f"{recipe['script']}_torchcompile:compile {recipe['flags']}".strip()


def words(recipe: dict) -> list[str]:
    """A recipe's command, as run.sh takes it."""
    command = f"{recipe['script']}_torchcompile --compile --no-cuda --env-id {recipe['env_id']} "
    return f"{command}--total-timesteps {recipe['total_timesteps']} {recipe['flags']}".split()


def runs(records: list[dict], recipe: dict) -> list[dict]:
    """Finished runs of a recipe by the seeds that are reported, of the newest one's machine."""
    asked = variant(recipe), recipe["env_id"], recipe["total_timesteps"]
    fields = "variant", "env_id", "total_timesteps"
    found = [r for same in learned(records) for r in same if not r["cut"]]
    found = [r for r in found if tuple(r[x] for x in fields) == asked and r["seed"] in REPORTED]
    last = max(found, key=lambda r: r["date"], default=None)
    return [r for r in found if all(r[x] == last[x] for x in MACHINE)]
