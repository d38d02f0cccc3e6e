"""Recipes: commands that train a task in minutes on one CPU core, from ppo/recipes.toml.

./run.sh recipe                             # all of them, with returns and minutes
./run.sh recipe LunarLander-v3 --seed 2     # runs one; further flags win
python benchmarks/recipe.py LunarLander-v3  # its command, as ./run.sh takes it
"""

import difflib
import shlex
import sys
from pathlib import Path

from fork import IDEAS, apply
from lib.pairs import versions
from lib.recipes import command, recipes
from lib.records import RESULTS
from lib.runs import records_of
from lib.stats import values
from lib.tables import runs_of, took


def table() -> str:
    """A line a recipe: what its seeds scored by the most likely actions, and in how long."""
    records = records_of(RESULTS / "learning.jsonl")
    lines = [f"{'recipe':32}{'returns of seeds':>18}{'minutes':>9}  script"]
    for name, recipe in recipes().items():
        same = runs_of(records, recipe)
        returns = [found["mean"] for found in values(same, "eval_deterministic")]
        scored = "not measured"
        if returns:
            form = "{:,.0f}" if max(map(abs, returns)) >= 100 else "{:,.1f}"
            scored = f"{form} to {form}".format(min(returns), max(returns))
        lines.append(f"{name:32}{scored:>18}{took(same):>9}  {recipe['script']}")
    return "\n".join(lines)


def patched(recipe: dict, stem: Path) -> str:
    """Writes both versions with the recipe's patch, and returns where they are."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    for source in versions(recipe["script"]):
        path = stem.with_name(source.name.replace(recipe["script"], stem.name))
        path.write_text(source.read_text())
        apply(IDEAS / f"{recipe['patch']}.patch", path, path.name)
    return str(stem)


def main() -> int:
    name, known = " ".join(sys.argv[1:]), recipes()
    if len(sys.argv) == 1:
        print(table())
        return 0
    if name in ("-h", "--help"):
        print(__doc__.strip())
        return 0
    near = difflib.get_close_matches(name, known, 3, 0.4) or known
    if name in known:
        recipe, stem = known[name], Path("runs", "recipes", name)
        pair = patched(recipe, stem) if "patch" in recipe else ""
        print(shlex.join(command(recipe, pair).split()))
        return 0
    print(f"no recipe '{name}'; the nearest: {', '.join(near)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
