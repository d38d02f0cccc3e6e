"""A pair under another name, in a folder of one's own, with patches: both files, or none.

    ./run.sh fork ppo_continuous_action ~/idea/my_ppo
    ./run.sh fork ppo_continuous_action ~/idea/my_ppo --patch rpo ~/idea/mine.patch

writes ~/idea/my_ppo.py and ~/idea/my_ppo_torchcompile.py. A patch is one of ppo/ideas by its name,
or what `git diff` makes of the eager version. `git apply` has to take it on both files, with the
lines around a hunk as they are. Several are merged, if they change other lines or add lines to the
same place; else it says which collide, and where.

    ./run.sh fork ppo_continuous_action ~/idea/my_ppo --edited

writes the fast version alone, from ~/idea/my_ppo.py as you have edited it since. A folder in place
of ~/idea/my_ppo keeps the pair's name.

What the policy sees and does goes into make_envs, Agent, act, and everything follows; what you put
into main is training.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from lib.pairs import PAIRS, versions
from lib.records import ROOT, Failure

IDEAS = ROOT / "ppo" / "ideas"
CONFLICT = re.compile(  # of git merge-file --diff3: one side's lines, those before, the other's
    r"<{7} .*\n((?:.*\n)*?)\|{7} .*\n((?:.*\n)*?)={7}\n((?:.*\n)*?)>{7} .*\n"
)
HEADER = re.compile(r"^--- .*\n\+\+\+ .*\n(?=@@ )", re.MULTILINE)  # of a patch to one file


class Misfit(Failure):
    """A patch that one of the files does not take."""


def apply(patch: Path, path: Path, shown: str) -> None:
    """Applies a patch to a file, whatever name the patch has for it; Misfit names the hunks that do
    not fit, and calls the file what is shown."""
    text = patch.read_text()
    heads = list(HEADER.finditer(text))
    if len(heads) != 1:
        raise Failure(f"{near(patch)} changes {len(heads)} files; make it by git diff ppo/NAME.py")
    body = text[heads[0].end() :]
    hunks = re.findall(r"^@@ .*$", body, re.MULTILINE)
    body = f"--- a/{path.name}\n+++ b/{path.name}\n{body}"
    # in no repository: within one, git apply leaves out what is not below its folder
    env = os.environ | {"LC_ALL": "C", "GIT_CEILING_DIRECTORIES": str(path.parents[1].resolve())}
    words = ["git", "apply", "--whitespace=nowarn", "--reject", "--verbose", "-"]
    piped = {"input": body, "capture_output": True, "text": True}
    done = subprocess.run(words, cwd=path.parent, env=env, **piped)
    if done.returncode == 0:
        return
    failed = [int(n) for n in re.findall(r"Rejected hunk #(\d+)", done.stderr)]
    said = "; ".join(f"hunk {n} of {len(hunks)}, '{hunks[n - 1]}'" for n in failed)
    raise Misfit(f"{near(patch)} does not fit {shown}: {said or done.stderr.strip()}")


def three_ways(mine: str, base: str, other: str, beside: bool = False) -> str:
    """What two texts have made of a base, by git merge-file; where both add lines, mine are first,
    and a blank line may go. ValueError has the first line that both change; with `beside`, mine may
    add lines beside it."""

    def settled(found: re.Match) -> str:
        ours, common, theirs = found.groups()
        if not common:
            return ours + theirs
        if not common.strip() and not (ours.strip() and theirs.strip()):
            return ours if ours.strip() else theirs
        lines = re.escape(common)  # whole ones: with another indentation it is another line
        if not beside or len(re.findall(f"(?m)^(?={lines})", ours)) != 1:
            raise ValueError((common.strip() or ours.strip()).splitlines()[0].strip())
        return re.sub(f"(?m)^{lines}", lambda _: theirs, ours)

    with tempfile.TemporaryDirectory() as place:
        for name, text in (("mine", mine), ("base", base), ("other", other)):
            Path(place, name).write_text(text)
        words = ["git", "merge-file", "-p", "--diff3", "mine", "base", "other"]
        done = subprocess.run(words, cwd=place, capture_output=True, text=True)
    if done.returncode > 127:  # below, the number of conflicts
        raise Failure(done.stderr.strip())
    return CONFLICT.sub(settled, done.stdout)


def family(path: Path) -> str:
    """The pair of ppo/ whose checkpoints a script's are, by its FORMAT; empty where it has none."""
    found = re.search(r'(?m)^FORMAT = "(\w+)', path.read_text())
    return found[1] if found else ""


def origin(path: Path) -> Path:
    """The file of ppo/ that a fork began as; the file itself where that is none."""
    fast = "_torchcompile" * path.stem.endswith("_torchcompile")
    base = ROOT / "ppo" / f"{family(path)}{fast}.py"
    return base if base.is_file() and path.parent != base.parent else path


def merged(patch: Path, path: Path, before: str) -> str:
    """The text of a file, which edits or patches have changed from `before`, with this patch too;
    Failure names the first line that both change."""
    mine = path.read_text()
    path.write_text(before)
    apply(patch, path, path.name)
    try:
        return three_ways(mine, before, path.read_text())
    except ValueError as line:
        said = f"{near(patch)} collides with an edit or a patch before it: both change '{line}'"
        raise Failure(said) from None


def idea(given: str) -> Path:
    """The patch that a name in ppo/ideas or a path stands for; Failure names the ideas."""
    for path in (Path(given).expanduser(), IDEAS / f"{given}.patch"):
        if path.is_file():
            return path
    names = " ".join(sorted(patch.stem for patch in IDEAS.glob("*.patch")))
    raise Failure(f"no patch '{given}'; ppo/ideas has {names}")


def heading(patch: Path) -> dict[str, str]:
    """What a patch of ppo/ideas says at its head: Source, Fits, Off, Flags."""
    head = re.sub(r"(?m)^# ?", "", patch.read_text().partition("\n--- ")[0])
    found = re.findall(r"(?ms)^(Source|Fits|Off|Flags): (.+?)(?=^\w+: |\Z)", head)
    return {name: " ".join(text.split()) for name, text in found}


def fits(patch: Path, name: str) -> bool:
    """Whether a patch names a pair of ppo/, or leaves it open."""
    words = re.findall(r"\w+", heading(patch).get("Fits", "every"))
    return name not in PAIRS or (name in words) != (words[0] == "every")


def near(path: Path) -> str:
    """A path as it is typed here: from this folder on, or whole."""
    path, here = path.resolve(), Path.cwd().resolve()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def door() -> str:
    """run.sh, as it is typed here."""
    run = near(ROOT / "run.sh")
    return run if "/" in run else f"./{run}"


def new_pair(given: str, name: str) -> list[Path]:
    """Both files of a path; in a folder, which ends with / or is there, they are called `name`."""
    path = Path(given).expanduser()
    if given.endswith("/") or (path.is_dir() and not Path(f"{path}.py").exists()):
        path = path / name
    stem = path.name.removesuffix(".py").removesuffix("_torchcompile")
    return [path.with_name(f"{stem}.py"), path.with_name(f"{stem}_torchcompile.py")]


def follow(sources: list[Path], mine: list[Path], patches: list[str]) -> str:
    """Writes the fast version of an edited eager one, and returns what to say. That before, whose
    own edits are dropped, is kept with a ~."""
    eager, fast = mine
    if patches:
        raise Failure("--edited takes the edits of PATH.py alone, no --patch")
    if (began := family(eager)) not in ("", family(sources[0])):
        raise Failure(f"{near(eager)} is a fork of {began}, not of {sources[0].stem}")
    texts = [path.read_text() for path in (sources[1], sources[0], eager)]
    try:
        text = three_ways(*texts, beside=True)  # nearly all hunks of a fast version only add
    except ValueError as line:
        said = f"{near(eager)} changes '{line}', as {near(sources[1])} does: change both by hand"
        raise Failure(said) from None
    kept = ""
    if fast.exists() and fast.read_text() != text:
        before = fast.replace(fast.with_name(f"{fast.name}~"))
        kept = f"; the one before is {near(before)}"
    fast.write_text(text)
    return (
        f"{near(fast)} has the edits of {near(eager)}{kept}. Next:\n"
        f"  check    {door()} check {near(eager)} --compile"
    )


def begin(name: str, sources: list[Path], mine: list[Path], patches: list[Path]) -> str:
    """Writes a new pair with all patches in it, and returns what to say."""
    for patch in patches:
        if sources[0].parent == ROOT / "ppo" and not fits(patch, sources[0].stem):
            said = heading(patch)["Fits"].rstrip(".")
            raise Failure(f"{near(patch)} is not for {sources[0].stem}. It fits {said}")
    for path in mine:
        if path.exists():
            raise Failure(f"{near(path)} is there already, and stays as it is")
    texts = {}
    with tempfile.TemporaryDirectory() as place:
        for source, path in zip(sources, mine, strict=True):
            copy = Path(place, "files", path.name)
            copy.parent.mkdir(exist_ok=True)
            copy.write_text(source.read_text())
            before = origin(source).read_text()
            for patch in patches:
                text = copy.read_text()
                try:
                    apply(patch, copy, near(source))
                except Misfit:
                    if text == before:
                        raise
                    copy.write_text(text)  # hunks that fit were applied
                    copy.write_text(merged(patch, copy, before))
            texts[path] = copy.read_text()
    mine[0].parent.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        path.write_text(text)
    run, (eager, fast), source = door(), map(near, mine), near(sources[0])
    more = "".join(f" {heading(patch)['Flags']}" for patch in patches if "Flags" in heading(patch))
    if re.search(r"\w:\w", more):  # an environment of examples/
        run = f"PYTHONPATH={near(ROOT / 'examples')} {run}"
    lines = [
        ("train", f"{run} {eager}{more}"),
        ("", f"{run} {fast} --compile{more}"),
        ("diff", f"diff -u {source} {eager}"),
        ("", f"diff -u {eager} {fast}"),
        ("edit", f"{eager}, then {door()} fork {name} {eager} --edited"),
        ("check", f"{run} check {eager} --compile{more}"),
    ]
    if not more:  # else the original refuses the environment that these flags name
        lines.append(("compare", f"{run} compare {source} {eager}"))
    said = [f"  {what:9}{line}" for what, line in lines]
    return "\n".join([f"{eager} and {fast} are written. Next:", *said])


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("run.sh fork", description=__doc__, formatter_class=form)
    parser.add_argument("name", metavar="NAME", help="of a pair in ppo/, or a path")
    parser.add_argument("path", metavar="PATH", help="of the new pair, or a folder for it")
    parser.add_argument("--patch", nargs="+", action="extend", default=[], help="names or files")
    parser.add_argument("--edited", action="store_true", help="PATH.py is there: its fast version")
    args = parser.parse_args()
    try:
        sources = versions(args.name)
        mine = new_pair(args.path, sources[0].stem)
        if args.edited:
            said = follow(sources, mine, args.patch)
        else:
            said = begin(args.name, sources, mine, [*map(idea, args.patch)])
    except (Failure, OSError) as failure:
        print(f"run.sh fork: {failure}. Nothing was written.", file=sys.stderr)
        if isinstance(failure, Misfit):
            print(
                "To merge it: fork without it, edit that, and fork with --edited", file=sys.stderr
            )
        return 2
    print(said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
