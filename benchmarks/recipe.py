"""Recipes: commands that solve a task in minutes on one CPU core, from ppo/recipes.toml.

./run.sh recipe                             # all of them, with return and minutes
./run.sh recipe LunarLander-v3 --seed 2     # one of them; further flags win
python benchmarks/recipe.py LunarLander-v3  # its command, as run.sh takes it
"""

import difflib
import sys

from lib.recipes import recipes, runs, words
from lib.records import RESULTS, read
from lib.stats import values

found = recipes()
if len(sys.argv) == 1:
    records = read(RESULTS / "learning.jsonl")
    print(f"{'recipe':28}{'return of 5 seeds':>20}{'minutes':>10}  script")
    for name, recipe in found.items():
        same = runs(records, recipe)
        returns, seconds = values(same, "mean_return"), values(same, "seconds")
        cells = [f"{min(returns):,.0f} to {max(returns):,.0f}"] if same else ["not measured"]
        cells += [f"{sorted(seconds)[len(seconds) // 2] / 60:.2g}" if same else ""]
        print(f"{name:28}{cells[0]:>20}{cells[1]:>10}  {recipe['script']}")
elif sys.argv[1] in found:
    print(*words(found[sys.argv[1]]))
else:
    near = difflib.get_close_matches(sys.argv[1], found, 3, 0.4) or [*found]
    print(f"no recipe '{sys.argv[1]}'; the nearest: {', '.join(near)}", file=sys.stderr)
    sys.exit(2)
