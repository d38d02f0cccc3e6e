"""Fills the pages from the records and the scripts: no table, tree or plot is typed by hand.

    python benchmarks/report.py             # fills the marked parts of both pages, makes the plots
    python benchmarks/report.py --check     # changes nothing; status 1 if a page is out of date

A part stands between `<!-- NAME -->` and `<!-- /NAME -->` in README.md or benchmarks/README.md,
and shows the newest session of each pair, machine and number of environments: speeds of the scripts
as they are now alone, returns of all that learn as they do now (same_losses.py).
"""

import argparse
import subprocess
import sys
from pathlib import Path

import matplotlib
import measured
import numpy as np
from matplotlib.figure import Figure
from measured import (
    COLUMNS,
    SB3,
    SIMULATOR,
    columns,
    groups,
    learned,
    machine,
    newest,
    of_today,
    sps,
    values,
)
from records import RESULTS, ROOT, as_of_today, part, read

TREE = {  # script: (parent or None, what it is); one without a file is not shown
    "ppo": (None, "CartPole and other small problems: the file to read first"),
    "ppo_continuous_action": (
        "ppo",
        "MuJoCo on Gymnasium: a Gaussian policy, running normalisation",
    ),
    "ppo_continuous_action_envpool": (
        "ppo_continuous_action",
        "MuJoCo on EnvPool, many environments at once",
    ),
    "ppo_atari_envpool": (None, "Atari: a CNN, uint8 pixels, lives"),
    "ppo_atari_envpool_multigpu": ("ppo_atari_envpool", "one process a device, torchrun"),
}
# Okabe and Ito's colours, told apart by colour-blind readers too; a peer's bar is grey
COLOURS = {"eager": "#E69F00", measured.COMPILE: "#0072B2", measured.BFLOAT16: "#009E73"}
MINUTES = {"ppo_continuous_action": "#E69F00", "ppo_continuous_action_envpool": "#0072B2"}
matplotlib.rcParams.update({"font.size": 8, "axes.titlesize": 9, "axes.titlelocation": "left"})
matplotlib.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})


def changes(one: Path, two: Path) -> list[list[str]]:
    """The hunks of `diff -U0 -B`, each the list of its added and removed lines, blank ones out."""
    diff = subprocess.run(["diff", "-U0", "-B", one, two], capture_output=True, text=True)
    if diff.returncode > 1:
        raise FileNotFoundError(diff.stderr)
    hunks: list[list[str]] = []
    for line in diff.stdout.splitlines()[2:]:
        if line.startswith("@@"):
            hunks.append([])
        elif line[1:].strip() and line[0] in "+-":
            hunks[-1].append(line)
    return hunks


def tree(folder: Path = ROOT / "ppo") -> str:
    """The scripts, a child under its parent, with changed lines (hunks) down and sideways."""
    files = {path.stem: path for path in folder.glob("*.py")}
    parents = {name: above if above in files else None for name, (above, _) in TREE.items()}
    rows = [("changed lines (hunks)", "from parent", "to fast", "")]

    def edge(one, two):
        if one not in files or two not in files:
            return "-"
        hunks = changes(files[one], files[two])
        return f"{sum(map(len, hunks))} ({len(hunks)})"

    def grow(parent, margin):
        names = [name for name in TREE if name in files and parents[name] == parent]
        for name in names:
            branch, below = ("└─ ", "   ") if name == names[-1] else ("├─ ", "│  ")
            branch, below = (margin + branch, margin + below) if parent else ("", "")
            edges = edge(parent, name), edge(name, f"{name}_torchcompile")
            rows.append((branch + name, *edges, TREE[name][1]))
            grow(name, below)

    grow(None, "")
    width = max(len(name) for name, *_ in rows)
    lines = [f"{name:{width}}  {down:>11}  {aside:>9}  {what}" for name, down, aside, what in rows]
    return "```\n" + "\n".join(line.rstrip() for line in lines) + "\n```"


def panels(titles: list[str], height: float) -> Figure:
    """A figure with two panels a row."""
    rows = (len(titles) + 1) // 2
    fig = Figure(figsize=(9, height * rows), dpi=150, layout="constrained")
    for i, title in enumerate(titles, 1):
        fig.add_subplot(rows, 2, i, title=title)
    return fig


def plot_speed(records: list[dict]) -> Figure:
    """Steps/s, a panel a pair, each of the machine that measured it last."""
    pairs = sorted(groups(records, "pair").items())
    fig = panels([name for (name,), _ in pairs], 2.4)
    for ax, ((title,), runs) in zip(fig.axes, pairs, strict=True):
        last = machine(max(runs, key=lambda r: r["session"]))
        same = next(same for same in newest(runs) if machine(same[0]) == last)  # its smallest N
        found = columns(same, sps)
        if SIMULATOR in found:
            title += f": simulator alone {sps(found[SIMULATOR][0]):,.0f} steps/s"
        ax.set_title(title)
        ax.set_xlabel(f"environment steps per second, {last}")
        names = [name for name in COLUMNS[1:] if name in found]
        for y, (runs, _) in enumerate(found[name] for name in names):
            ax.barh(y, sps(runs), color=COLOURS.get(names[y], "#999999"))
            ax.plot(values(runs), [y] * len(runs), "|", color="black")
            ax.text(max(values(runs)), y, f"  {sps(runs):,.0f}", va="center")
        labels = [f"{name} {found[name][1]}".replace(SB3, "SB3") for name in names]
        ax.set_yticks(range(len(names)), [label.replace("`", "").strip() for label in labels])
        ax.invert_yaxis()
        ax.margins(x=0.18)
    return fig


def plot_learning(records: list[dict]) -> Figure:
    """Returns of each seed by default flags, from ENOUGH seeds on of all as one, a panel a pair,
    environment and schedule, each of the machine that learned it last."""
    runs = [r for same in learned(records) for r in same if not part(r["variant"])[2]]
    envs = groups(runs, "pair", "env_id", "total_timesteps")
    fig = panels([f"{env_id}, {name}" for name, env_id, _ in envs], 2.2)
    for ax, same in zip(fig.axes, envs.values(), strict=True):
        ax.set_ylabel("return of a game")
        last = machine(max(same, key=lambda r: r["date"]))
        ax.set_xlabel(f"environment steps, millions; {last}")
        for name, (runs, _) in columns([r for r in same if machine(r) == last], len).items():
            style = {"color": COLOURS.get(name, "#999999"), "lw": 0.8}
            if len(runs) >= measured.ENOUGH:
                steps, mean, low, high = measured.middle_curve(runs)
                ax.plot(steps / 1e6, mean, color=style["color"])
                ax.fill_between(steps / 1e6, low, high, color=style["color"], alpha=0.25, lw=0)
            else:
                for steps, _, found in (np.transpose(r["curve"]) for r in runs if r["curve"]):
                    ax.plot(steps / 1e6, found, **style)
            ax.plot([], [], label=name.strip("`"), **style)
        ax.legend(frameon=False)
    return fig


def plot_minutes(records: list[dict]) -> Figure:
    """Returns over minutes; dotted, what CleanRL has published. A panel an environment that one
    machine learned with one environment and with many, in as many steps, --compile alone; and one
    of Pong by flags of its own, each run with two cores to itself."""
    runs = [r for same in learned(records) for r in same]
    compiled = [r for r in runs if r["variant"] in (f"{x}_torchcompile:compile" for x in MINUTES)]
    found = []  # (runs of a panel, {label: (runs, colour)})
    for same in groups(compiled, "env_id", "total_timesteps", *measured.MACHINE).values():
        pairs = {name: ([r for r in same if r["pair"] == name], MINUTES[name]) for name in MINUTES}
        found += [(same, pairs)] if all(of_pair for of_pair, _ in pairs.values()) else []
    alone = measured.alone([r for r in records if r["env_id"] == "Pong-v5"])
    pong = [r for same in learned(alone) for r in same if part(r["variant"])[2]]
    for same in groups(pong, *measured.MACHINE).values():
        ways = columns(same, len).items()
        found.append((same, {name: (of_way, COLOURS.get(name)) for name, (of_way, _) in ways}))
    fig = panels([f"{same[0]['env_id']}, {machine(same[0])}" for same, _ in found], 2.4)
    for ax, (same, lines) in zip(fig.axes, found, strict=True):
        ax.set_xlabel("minutes since the start of the process")
        ax.set_ylabel("return of a game")
        for name, (of_line, colour) in lines.items():
            for run in (r for r in of_line if r["curve"]):
                _, seconds, returns = np.transpose(run["curve"])
                ax.plot(seconds / 60, returns, color=colour, lw=0.8)
            ax.plot([], [], label=name.strip("`"), color=colour)
        if same[0]["env_id"] in measured.PUBLISHED:
            mean, _, steps = measured.PUBLISHED[same[0]["env_id"]]
            ax.axhline(mean, color="black", ls=":", label=f"CleanRL after {steps / 1e6:g}M steps")
        ax.legend(frameon=False)
    return fig


def plot(folder: Path) -> None:
    """Writes the plots that there are records for."""
    if records := of_today(read(folder / "throughput.jsonl")):
        plot_speed(records).savefig(folder / "speed.png")
    if records := read(folder / "learning.jsonl"):
        plot_learning(records).savefig(folder / "learning.png")
        if (minutes := plot_minutes(records)).axes:
            minutes.savefig(folder / "minutes.png")


def tables(folder: Path) -> dict[str, str]:
    """Each marked part's text."""
    names = ("throughput", "ablation", "multigpu")
    learning = read(folder / "learning.jsonl")
    throughput, ablation, multigpu = (of_today(read(folder / f"{x}.jsonl")) for x in names)
    how = "mean return of the last 100 games, ± standard deviation over seeds; each run's command "
    how += "and versions: `results/learning.jsonl`"
    returns = {}
    for name, has_flags in (("learning", False), ("trials", True)):
        found = [r for r in learning if bool(part(as_of_today(r))[2]) == has_flags]
        table = found and f"{measured.learning_table(found)}\n\n*{measured.place(found)}; {how}.*"
        returns[name] = table
    return {
        "speed": throughput and measured.speed(throughput),
        "plot": "![Steps per second of each script and its peers](benchmarks/results/speed.png)",
        "returns": learning and measured.returns(learning),
        "tree": tree(),
        "throughput": measured.blocks(throughput, measured.cases_table),
        "ablation": measured.blocks(ablation, measured.cases_table),
        "floors": measured.blocks(ablation, measured.floors_table),
        "multigpu": measured.blocks(multigpu, measured.ranks_table),
        "target": learning and measured.target_table(learning),
        "scaling": learning and measured.scaling_table(learning),
        **returns,
    }


def filled(text: str, found: dict[str, str]) -> str:
    """The text with each marked part replaced."""
    for name, inside in found.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if begin in text:
            head, _, rest = text.partition(begin)
            text = f"{head}{begin}\n{inside or '*No records yet.*'}\n{end}{rest.partition(end)[2]}"
    return text


def pages(folder: Path) -> dict[Path, str]:
    """Each page as the records have it now."""
    found = tables(folder)
    paths = (ROOT / "README.md", ROOT / "benchmarks" / "README.md")
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
        plot(args.results)
    return int(args.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
