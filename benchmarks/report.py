"""Fills the pages from the records and the scripts: tables, the tree and plots.

    python benchmarks/report.py             # fills the marked parts of the pages, makes the plots
    python benchmarks/report.py --check     # changes nothing; status 1 if a page is out of date

A part stands between `<!-- NAME -->` and `<!-- /NAME -->` in one of PAGES, and shows the
newest session of each pair, machine and number of environments: speeds of the scripts as they are
now, or as they were when last measured, with their commit named; returns of all that learn as they
do now (same_losses.py).
"""

import argparse
import sys
from pathlib import Path

from lib import plots, tables
from lib.choose import of_today, sitting, tuned
from lib.pairs import PAIRS, changes
from lib.records import RESULTS, ROOT, read

PAGES = ("README.md", "ppo/README.md", "benchmarks/README.md", "benchmarks/results/LOG.md")
NONE = "*No records of today's code; those of older code are in `results/`.*"


def edges(name: str, folder: Path = ROOT / "ppo") -> list[str]:
    """Changed lines (hunks) from a script's parent to it, and from it to its fast version."""
    pairs = (PAIRS[name].parent, name), (name, f"{name}_torchcompile")
    files = [[folder / f"{script}.py" for script in pair] for pair in pairs]
    found = [changes(*pair) if all(path.exists() for path in pair) else [] for pair in files]
    return [f"{sum(map(len, hunks))} ({len(hunks)})" if hunks else "-" for hunks in found]


def tree(folder: Path = ROOT / "ppo") -> str:
    """The scripts, each under what it is derived from, with changed lines (hunks) both ways."""
    files = {path.stem for path in folder.glob("*.py")}
    parents = {name: x.parent if x.parent in files else None for name, x in PAIRS.items()}
    rows = [("changed lines (hunks)", "from parent", "to fast", "")]

    def grow(parent, margin):
        names = [name for name in PAIRS if name in files and parents[name] == parent]
        for name in names:
            branch, below = ("└─ ", "   ") if name == names[-1] else ("├─ ", "│  ")
            branch, below = (margin + branch, margin + below) if parent else ("", "")
            rows.append((branch + name, *edges(name, folder), PAIRS[name].purpose))
            grow(name, below)

    grow(None, "")
    width = max(len(name) for name, *_ in rows)
    lines = [f"{name:{width}}  {down:>11}  {aside:>9}  {what}" for name, down, aside, what in rows]
    return "```\n" + "\n".join(line.rstrip() for line in lines) + "\n```"


def parts(folder: Path) -> dict[str, str]:
    """Each marked part's text."""
    names = ("throughput", "ablation", "multigpu")
    learning = read(folder / "learning.jsonl")
    throughput, ablation, multigpu = (of_today(read(folder / f"{x}.jsonl")) for x in names)
    together, gpu = sitting(throughput), read(folder / "gpu.jsonl")
    how = "mean return of the last 100 episodes, ± standard deviation over seeds; commands and "
    how += "versions: `learning.jsonl`"
    returns = {}
    for name, has_flags in (("learning", False), ("trials", True)):
        found = [r for r in learning if tuned(r) == has_flags]
        table = found and f"{tables.learning_table(found)}\n\n*{tables.place(found)}; {how}.*"
        returns[name] = table
    claim, _, thesis = tables.thesis(learning).partition("\n\n")
    return {
        "claim": claim,
        "thesis": thesis,
        "commands": learning and tables.thesis_commands(learning),
        "speedup": together and tables.speedup(together),
        "break_even": together and tables.break_even(together),
        "devices": gpu and tables.devices(gpu, together),
        "small": gpu and tables.small(gpu),
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the records")
    args = parser.parse_args()
    stale = {page: text for page, text in pages(args.results).items() if page.read_text() != text}
    for page, text in stale.items():
        print(f"{page.relative_to(ROOT)} {'is out of date' if args.check else 'is written'}")
        if not args.check:
            page.write_text(text)
    if not args.check:
        plots.write(args.results)
    return int(args.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
