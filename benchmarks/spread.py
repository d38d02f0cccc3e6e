"""Spreads a change: a function or class that one script of ppo/ has changed, to all that share it.

    python benchmarks/spread.py ppo_loss       # written to every script that had the old text

Edit it in one script; the others have what it had at git HEAD. Nothing is written if it was changed
in two ways.
"""

import argparse
import ast
import subprocess
import sys

from lib.records import ROOT, SCRIPTS, Failure

PPO = ROOT / "ppo"
FILES = [f"{name}.py" for name in SCRIPTS]


def definitions(text: str) -> dict[str, str]:
    """The functions and classes of a script, {name: text}, with their decorators."""
    lines, found = text.splitlines(keepends=True), {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(x.lineno for x in node.decorator_list)])
            found[node.name] = "".join(lines[first - 1 : node.end_lineno])
    return found


def spread(name: str) -> list[str]:
    """Writes a changed definition to all scripts that have its old text; returns their names."""
    texts = {path: path.read_text() for path in map(PPO.joinpath, FILES)}
    now = {path: definitions(text).get(name) for path, text in texts.items()}
    edits, written = {}, []
    for path, new in now.items():
        git = ["git", "-C", PPO, "show", f"HEAD:./{path.name}"]
        before = subprocess.run(git, capture_output=True, text=True).stdout
        old = definitions(before).get(name)
        if old and new and old != new and edits.setdefault(old, new) != new:
            raise Failure(f"{name} was changed in two ways, one of them in {path.name}")
    if not edits:
        raise Failure(f"no script has another {name} than at HEAD")
    for path, mine in now.items():
        if mine in edits:
            path.write_text(texts[path].replace(mine, edits[mine], 1))
            written.append(path.stem)
    return written


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="+", metavar="NAME", help="of functions and classes")
    args = parser.parse_args()
    try:
        for name in args.names:
            print(f"{name} is written to: {' '.join(spread(name))}")
    except Failure as failure:
        print(f"spread.py: {failure}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
