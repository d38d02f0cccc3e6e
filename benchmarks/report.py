"""Fills the pages from the records and the scripts: tables, the tree, plots; writes ppo/diffs/.

    python benchmarks/report.py             # fills the marked parts, makes the plots and the diffs
    python benchmarks/report.py --check     # changes nothing; status 1 if one is out of date

A part stands between `<!-- NAME -->` and `<!-- /NAME -->` in one of PAGES, and shows the
newest session of each pair, machine and number of environments: speeds of the scripts as they are
now, or as they were when last measured, with their commit named; returns of all that learn as they
do now (same_losses.py).
"""

import argparse
import subprocess
import sys
from pathlib import Path

from lib import plots, tables
from lib.choose import of_today, sitting, tuned
from lib.pairs import PAIRS, changes
from lib.records import RESULTS, ROOT, read

PAGES = ("README.md", "benchmarks/README.md", "benchmarks/results/LOG.md", "ppo/README.md")
PAGES += ("ppo/SCRIPTS.md", "ppo/USING.md", "ppo/ideas/README.md")
NONE = "*There are no records of today's code.*"


def edges(name: str, folder: Path = ROOT / "ppo") -> list[str]:
    """Changed lines (hunks) from a script's parent to it, and from it to its fast version."""
    files = [[folder / f"{script}.py" for script in pair] for pair in both(name)]
    found = [changes(*pair) if all(path.exists() for path in pair) else [] for pair in files]
    return [f"{sum(map(len, hunks))} ({len(hunks)})" if hunks else "-" for hunks in found]


def tree(folder: Path = ROOT / "ppo") -> str:
    """The scripts, each under what it is derived from, with changed lines (hunks) both ways, which
    are links to the diffs."""
    files = {path.stem for path in folder.glob("*.py")}
    parents = {name: x.parent if x.parent in files else None for name, x in PAIRS.items()}
    rows = []

    def grow(parent, margin):
        names = [name for name in PAIRS if name in files and parents[name] == parent]
        for name in names:
            branch, below = ("└─ ", "   ") if name == names[-1] else ("├─ ", "│  ")
            branch, below = (margin + branch, margin + below) if parent else ("", "")
            shown = zip(edges(name, folder), (diff_name(*pair) for pair in both(name)), strict=True)
            cells = [f"[{n}](diffs/{diff})" if n != "-" else "" for n, diff in shown]
            # blanks at a cell's beginning are cut, these are not
            branch = branch.replace(" ", "\N{NO-BREAK SPACE}")
            rows.append([f"`{branch}{name}`", *cells, PAIRS[name].purpose])
            grow(name, below)

    grow(None, "")
    lines = [
        "| script | from its parent | to its fast version | for |",
        "| --- | --: | --: | --- |",
    ]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def both(name: str) -> list[tuple[str | None, str]]:
    """The diffs that show a script: from its parent to it, and from it to its fast version."""
    return [(PAIRS[name].parent, name), (name, f"{name}_torchcompile")]


def diff_name(one: str | None, two: str) -> str:
    """The file in ppo/diffs/ that has the diff of two scripts."""
    return f"{two}.diff" if two == f"{one}_torchcompile" else f"{one}_to_{two}.diff"


def diffs(folder: Path = ROOT / "ppo") -> dict[Path, str]:
    """Each file of ppo/diffs/ and its text, as the scripts are now."""
    found = {}
    for one, two in (pair for name in PAIRS for pair in both(name)):
        paths = [folder / f"{name}.py" for name in (one, two)]
        if one and all(path.exists() for path in paths):
            labels = [f"--label={x}/ppo/{path.name}" for x, path in zip("ab", paths, strict=True)]
            done = subprocess.run(["diff", "-u", *labels, *paths], capture_output=True, text=True)
            found[folder / "diffs" / diff_name(one, two)] = done.stdout
    return found


def parts(folder: Path) -> dict[str, str]:
    """Each marked part's text."""
    names = ("throughput", "ablation", "multigpu")
    learning = read(folder / "learning.jsonl")
    throughput, ablation, multigpu = (of_today(read(folder / f"{x}.jsonl")) for x in names)
    together, gpu = sitting(throughput), read(folder / "gpu.jsonl")
    how = "mean return of the last 100 episodes, ± standard deviation over seeds; commands and "
    how += "versions: `learning.jsonl`"
    families = read(folder / "families.jsonl")
    returns = {}
    for name, has_flags in (("learning", False), ("trials", True)):
        found = [r for r in learning if tuned(r) == has_flags]
        table = found and f"{tables.learning_table(found)}\n\n*{tables.place(found)}; {how}.*"
        returns[name] = table
    return {
        "front": together and tables.front(together),
        "speedup": together and tables.speedup(together),
        "break_even": together and tables.break_even(together),
        "devices": gpu and tables.devices(gpu, together),
        "small": gpu and tables.small(gpu),
        "worlds": gpu and tables.worlds(gpu),
        "which": tables.which(learning),
        "speeds": together and tables.speeds(together),
        "returns": learning and tables.returns(learning),
        "apart": learning and tables.apart(learning),
        "one_flag": tables.one_flag(learning),
        "gradients": tables.gradients_table(read(folder / "gradients.jsonl")),
        "ladder": ablation and tables.ladder(ablation),
        "recipes": tables.recipe_table(learning),
        "recipes_log": tables.recipe_table(learning, log=True),
        "zoo": tables.zoo_table(learning),
        "recipe_commands": tables.recipe_commands(),
        "tree": tree(),
        "throughput": tables.blocks(throughput, tables.cases_table, tables.gain),
        "ablation": tables.blocks(ablation, tables.cases_table, tables.gain),
        "lower_bound": tables.blocks(ablation, tables.floors_table),
        "multigpu": tables.blocks(multigpu, tables.ranks_table),
        "ideas": tables.ideas_table(),
        "families": families and tables.families_table(families),
        "effects": tables.effects_table(read(folder / "ideas.jsonl")),
        "effects_by_task": tables.effects_by_task(read(folder / "ideas.jsonl")),
        "forks": tables.forks_table(read(folder / "ideas.jsonl")),
        "faults": tables.faults_table(read(folder / "faults.jsonl")),
        "simulators": tables.simulators_table(read(folder / "simulators.jsonl")),
        "async": tables.async_table(read(folder / "async_envs.jsonl")),
        "scaling": tables.scaling_table(read(folder / "scaling.jsonl")),
        "untrained": tables.untrained_table(read(folder / "untrained.jsonl")),
        "visits": tables.visits_table(read(folder / "first_visits.jsonl")),
        "target": learning and tables.target_table(learning),
        **returns,
    }


def filled(text: str, found: dict[str, str]) -> str:
    """The text with each marked part replaced."""
    for name, inside in found.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if begin in text:
            head, _, rest = text.partition(begin)
            text = f"{head}{begin}\n{inside or NONE}\n{end}{rest.partition(end)[2]}"
    return text


def pages(folder: Path) -> dict[Path, str]:
    """Each page as the records have it now."""
    found = parts(folder)
    paths = [ROOT / page for page in PAGES]
    return {path: filled(path.read_text(), found) for path in paths}


def stale(folder: Path) -> dict[Path, str | None]:
    """Pages and diffs that are not as records and scripts have them now, as they should be; None
    for a diff that should not be there."""
    wanted: dict[Path, str | None] = {**pages(folder), **diffs()}
    left = {path: None for path in (ROOT / "ppo" / "diffs").iterdir() if path not in wanted}
    texts = {path: path.read_text() if path.exists() else None for path in wanted | left}
    return {path: text for path, text in (wanted | left).items() if text != texts[path]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the records")
    args = parser.parse_args()
    (ROOT / "ppo" / "diffs").mkdir(exist_ok=True)
    found = stale(args.results)
    for path, text in found.items():
        print(f"{path.relative_to(ROOT)} {'is out of date' if args.check else 'is written'}")
        if args.check:
            continue
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
    if not args.check:
        plots.write(args.results)
    return int(args.check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
