"""Recipes, ppo/recipes.toml, and their commands."""

import tomllib

from lib.records import ROOT

PATH = ROOT / "ppo" / "recipes.toml"


def recipes() -> dict[str, dict]:
    """{name: script, env_id, total_timesteps, flags, score; zoo, eager, patch if it has them}."""
    found = tomllib.loads(PATH.read_text())
    return {name: {"env_id": name} | recipe for name, recipe in found.items()}


def variant(recipe: dict) -> str:
    """As learning.py takes it: 'NAME_torchcompile:compile --flag value', or 'NAME --flag value'."""
    how = "" if recipe.get("eager") else "_torchcompile:compile"
    return f"{recipe['script']}{how} {recipe['flags']}".strip()


def command(recipe: dict, pair: str = "") -> str:
    """What ./run.sh is given; pair: where the script stands with the recipe's patch."""
    how = "" if recipe.get("eager") else "_torchcompile --compile"
    head = f"{pair or recipe['script']}{how} --no-cuda --env-id {recipe['env_id']}"
    return f"{head} --total-timesteps {recipe['total_timesteps']} {recipe['flags']}".strip()
