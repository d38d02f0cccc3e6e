"""Fills the pages from the records and the scripts: tables, the tree, pictures, ppo/diffs/.

    python benchmarks/report.py                  # fills the marked parts, writes pictures and diffs
    python benchmarks/report.py --check          # changes nothing; status 1 if one is out of date
    python benchmarks/report.py --records FILE   # prints what a file of records says, run by run

A part stands between `<!-- NAME -->` and `<!-- /NAME -->` in one of PAGES.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

from lib import plots, tables
from lib.pairs import PAIRS, changes
from lib.records import RESULTS, ROOT, read
from lib.runs import records_of

PAGES = "README.md benchmarks/README.md ppo/README.md ppo/SCRIPTS.md ppo/ideas/README.md".split()
MARK = re.compile(r"<!-- (\w+) -->\n.*?<!-- /\1 -->", re.DOTALL)
NONE = "*There are no records.*"
SHOWN = "ppo ppo_continuous_action ppo_atari_envpool ppo_lstm ppo_continuous_action_warp".split()
FRONT = "ppo ppo_continuous_action ppo_continuous_action_envpool ppo_atari_envpool".split()
# what ppo/diffs/ has; any other is `diff -u`
DIFFS = [(name, f"{name}_torchcompile") for name in SHOWN]
DIFFS += [("ppo", name) for name in ("ppo_continuous_action", "ppo_lstm", "ppo_masked")]


def diff_name(one: str | None, two: str) -> str:
    """The file in ppo/diffs/ that has the diff of two scripts."""
    return f"{two}.diff" if two == f"{one}_torchcompile" else f"{one}_to_{two}.diff"


def tree(folder: Path = ROOT / "ppo") -> str:
    """The scripts, each under what it is derived from, with changed lines (hunks) of both diffs;
    those that ppo/diffs/ has are links."""
    rows = []

    def edge(one, two):
        if one is None:
            return ""
        found = changes(folder / f"{one}.py", folder / f"{two}.py")
        said = f"{sum(map(len, found))} ({len(found)})"
        return f"[{said}](diffs/{diff_name(one, two)})" if (one, two) in DIFFS else said

    def grow(parent, margin):
        names = [name for name in PAIRS if PAIRS[name].parent == parent]
        for name in names:
            branch, below = ("└─ ", "   ") if name == names[-1] else ("├─ ", "│  ")
            branch, below = (margin + branch, margin + below) if parent else ("", "")
            # blanks at a cell's beginning are cut, these are not
            branch = branch.replace(" ", "\N{NO-BREAK SPACE}")
            edges = [edge(PAIRS[name].parent, name), edge(name, f"{name}_torchcompile")]
            rows.append([f"`{branch}{name}`", *edges, PAIRS[name].purpose])
            grow(name, below)

    grow(None, "")
    lines = [
        "| script | from its parent | to its fast version | for |",
        "| --- | --: | --: | --- |",
    ]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def diffs(folder: Path = ROOT / "ppo") -> dict[Path, str]:
    """Each file of ppo/diffs/ and its text, as the scripts are now."""
    found = {}
    for one, two in DIFFS:
        paths = [folder / f"{name}.py" for name in (one, two)]
        labels = [f"--label={x}/ppo/{path.name}" for x, path in zip("ab", paths, strict=True)]
        done = subprocess.run(["diff", "-u", *labels, *paths], capture_output=True, text=True)
        found[folder / "diffs" / diff_name(one, two)] = done.stdout
    return found


def whole_diff() -> str:
    """What the front page shows: all that makes ppo.py fast."""
    paths = [ROOT / "ppo" / f"{name}.py" for name in ("ppo", "ppo_torchcompile")]
    done = subprocess.run(["diff", "-U1", *paths], capture_output=True, text=True)
    return "```diff\n" + "\n".join(done.stdout.splitlines()[2:]) + "\n```"


def parts(folder: Path) -> dict[str, str]:
    """Each marked part's text."""
    learning, gpu = records_of(folder / "learning.jsonl"), read(folder / "gpu.jsonl")
    together = tables.newest(read(folder / "throughput.jsonl"))
    epyc = read(folder / "epyc.jsonl")
    return {
        "diff": whole_diff(),
        "front": together
        and tables.beside([same for same in together if same[0]["pair"] in FRONT], task=True),
        "speeds": together and tables.beside(together),
        "epyc": epyc and tables.beside(tables.sessions(epyc)),
        "gpu": gpu and tables.beside(tables.sessions(gpu)),
        "returns": learning and tables.returns(learning),
        "recipes": tables.recipe_table(learning),
        "tree": tree(),
        "effects": tables.effects_table(records_of(folder / "ideas.jsonl")),
    }


def filled(text: str, found: dict[str, str]) -> str:
    """The text with each marked part that there is replaced."""

    def fill(mark: re.Match) -> str:
        return f"<!-- {mark[1]} -->\n{found[mark[1]] or NONE}\n<!-- /{mark[1]} -->"

    return MARK.sub(fill, text)


def stale(folder: Path) -> dict[Path, str]:
    """Pages and diffs that are not as records and scripts have them now, as they should be."""
    found = parts(folder)
    wanted = {ROOT / page: filled((ROOT / page).read_text(), found) for page in PAGES} | diffs()
    texts = {path: path.read_text() if path.exists() else None for path in wanted}
    return {path: text for path, text in wanted.items() if text != texts[path]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--records", type=Path, help="print what this file says, and write nothing")
    args = parser.parse_args()
    if args.records:
        records = read(args.records)
        try:
            if all({"session", "pair", "round"} <= r.keys() for r in records):
                print(tables.speeds(tables.sessions(records)))
            else:
                print(tables.runs_table(records_of(args.records)))
        except KeyError as error:
            parser.error(f"{args.records} holds neither speeds nor runs: no {error}")
        return 0
    (ROOT / "ppo" / "diffs").mkdir(exist_ok=True)
    found = stale(RESULTS)
    for path, text in found.items():
        print(f"{path.relative_to(ROOT)} {'is out of date' if args.check else 'is written'}")
        if not args.check:
            path.write_text(text)
    if not args.check:
        for figure in (plots.learning, plots.minutes):
            name = figure.__name__
            figure(records_of(RESULTS / f"{name}.jsonl")).savefig(RESULTS / f"{name}.png")
    return int(args.check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
