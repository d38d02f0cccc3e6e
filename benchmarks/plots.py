"""The pictures of the pages, from the records; python benchmarks/report.py writes them."""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from measured import (
    BFLOAT16,
    CLEANRL,
    COMPILE,
    EAGER,
    ENOUGH,
    LEANRL,
    MANY,
    MINUTES,
    SB3,
    SEEDS,
    columns,
    learned,
    machine,
    minutes,
    of_today,
    on_front,
    plain,
    ratio,
    rounds,
    seeds_as_one,
    sitting,
    sps,
    when,
)
from records import read

# Okabe and Ito's colours, told apart by colour-blind readers too
ORANGE, SKY, GREEN, BLUE, RED, GREY = "#E69F00 #56B4E9 #009E73 #0072B2 #D55E00 #666666".split()
COLOURS = {EAGER: ORANGE, COMPILE: BLUE, BFLOAT16: GREEN}
BARS = {COMPILE: (BLUE, -0.17), BFLOAT16: (SKY, 0.03)}  # colour, height in the row
MARKS = {  # of the peers: shape, colour, filled, height in the row
    LEANRL: ("^", RED, False, 0.19),
    f"{LEANRL} --compile": ("^", RED, True, 0.19),
    CLEANRL: ("o", ORANGE, True, 0.3),
    SB3: ("D", GREY, True, 0.41),
}
LINES = dict(zip(MINUTES, (BLUE, SKY, RED, ORANGE, GREY), strict=True))
matplotlib.rcParams.update({"font.size": 11, "axes.titlesize": 11, "axes.titlelocation": "left"})
matplotlib.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})


def figure(width: float, height: float, note: str) -> Figure:
    """So many inches, with a note under it; half a page's width are six."""
    fig = Figure(figsize=(width, height), dpi=160, layout="constrained")
    fig.supxlabel(note, fontsize=9, color=GREY)
    return fig


def legend(fig: Figure, named: dict, columns: int) -> Figure:
    """The figure with {name: what it looks like} above all panels."""
    names = [name.strip("`") if name != LEANRL else f"{LEANRL} eager" for name in named]
    look = {"frameon": False, "fontsize": 10, "handlelength": 1.3, "columnspacing": 1.3}
    fig.legend(named.values(), names, loc="outside upper center", ncols=columns, **look)
    return fig


def band(ax, x, mean, std, colour: str):
    """A line, and one standard deviation to each side."""
    ax.fill_between(x, mean - std, mean + std, color=colour, alpha=0.15, lw=0)
    return ax.plot(x, mean, color=colour)[0]


def plot_speed(records: list[dict]) -> Figure | None:
    """Steps/s of the fast scripts and of peers over the eager sibling's, a row a pair."""
    sessions = sitting(records)
    shown = [r for same in sessions for r in same]
    if not shown:
        return None
    note = f"{machine(shown[0])}, {when(shown)}; medians of the ratios within each of "
    note += f"{rounds(shown)}\ninterleaved rounds; CleanRL and LeanRL by their own defaults"
    fig = figure(6, 1.6 + len(sessions), note)
    ax = fig.add_subplot(xlabel="steps per second, times the eager script's")
    named = {}
    for y, same in enumerate(sessions):
        found = columns(same, sps)
        gains = {name: ratio(runs, found[EAGER][0]) for name, (runs, _) in found.items()}
        gains = {name: gain for name, gain in gains.items() if gain}
        for name, (colour, at) in BARS.items():
            if name in gains:
                named[name] = ax.barh(y + at, gains[name], 0.18, color=colour)
                label = f" {gains[name]:.1f} times {found[name][1]}"
                ax.text(gains[name], y + at, label, va="center")
        for name, (shape, colour, filled, at) in MARKS.items():
            if name in gains:
                look = {"color": colour, "mfc": colour if filled else "white", "ls": "", "ms": 7}
                named[name] = ax.plot(gains[name], y + at, shape, zorder=3, **look)[0]
        args = next(r["args"] for r in same if "args" in r)
        many = f"{args['num_envs']} env{'s' * (args['num_envs'] > 1)}"
        many += " (CleanRL, LeanRL: 1)" if same[0]["pair"] == MANY else ""
        title = f" {same[0]['pair']}: {args['env_id']}, {many}"
        box = {"color": "white", "pad": 1}  # eager's line stops at the words
        words = ax.text(0.01, y - 0.37, title, va="center", fontsize=10, bbox=box)
        words.set_in_layout(False)  # a long title may reach into the margin, and narrows no axes
        ax.axhline(y + 0.5, color="#DDDDDD", lw=1)
    ax.axvline(1, color="black", lw=1)
    ax.text(1, -0.54, "eager", ha="center")
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.set_ylim(len(sessions) - 0.5, -0.5)
    ax.set_xlim(0, 1.2 * ax.get_xlim()[1])  # room for the factors
    order = [name for name in (*BARS, *MARKS) if name in named]
    return legend(fig, {name: named[name] for name in order}, 3)


def plot_minutes(records: list[dict]) -> Figure | None:
    """Returns over minutes since the process began, a panel an environment, a line a method."""
    found = minutes(records)
    shown = [r for methods in found.values() for runs in methods.values() for r in runs]
    if not shown:
        return None
    counts = {len(runs) for methods in found.values() for runs in methods.values()}
    bands, alone = counts - {1}, "; without one, 1 seed" * (1 in counts)
    note = "At the dot 1M steps are done. A line without a band is one seed.\n"
    if bands:
        seeds = " or ".join(map(str, sorted(bands)))
        note = f"Band: one standard deviation of {seeds} seeds{alone}. Dot: 1M steps.\n"
    note += f"Compiling counts. {machine(shown[0])} a run, {when(shown)}"
    fig, named = figure(6, 1.6 + 2 * len(found), note), {}
    for i, (env_id, methods) in enumerate(found.items(), 1):
        ax = fig.add_subplot(len(found), 1, i, title=env_id, ylabel="return of an episode")
        for name, runs in reversed(methods.items()):  # ours on top
            _, seconds, mean, std = seeds_as_one(runs)
            named[name] = band(ax, seconds / 60, mean, std, LINES[name])
            ax.plot(seconds[-1] / 60, mean[-1], "o", color=LINES[name])
        ax.set_xlim(left=0)
    ax.set_xlabel("minutes since the start of the process")
    return legend(fig, {name: named[name] for name in MINUTES if name in named}, 2)


def plot_learning(records: list[dict], front: bool) -> Figure | None:
    """Returns over steps by default flags, and of the front page's runs by others, a panel a pair,
    environment and schedule, of the machine with most runs: those with ENOUGH seeds of both
    siblings if front, else the others."""
    cases, seeds = {}, {}
    recipes = [[r for r in same if on_front(r) and not plain([r])] for same in learned(records)]
    for same in sorted([*learned(plain(records)), *filter(None, recipes)], key=len):
        task = same[0]["pair"], same[0]["env_id"], same[0]["total_timesteps"]
        cases[task] = {name: runs for name, (runs, _) in columns(same, len).items()}
        seeds[task] = min(len(cases[task].get(name, [])) for name in (EAGER, COMPILE))
    chosen = sorted(task for task in cases if (seeds[task] >= ENOUGH) == front)
    if not chosen:
        return None
    note = f"Mean and one standard deviation over seeds; of fewer than {SEEDS} a line each"
    note += "\nPong of 1.8 million steps: by the front page's recipe" * any(recipes)
    if front:
        counts = sorted({seeds[task] for task in chosen})
        note = f"Mean and one standard deviation over {' or '.join(map(str, counts))} seeds"
    rows = -(-len(chosen) // 3)
    fig, named = figure(9, 1.0 + 2.5 * rows, note), {}
    for i, task in enumerate(chosen, 1):
        ax = fig.add_subplot(rows, 3, i, xlabel="million steps")
        ax.set_title(f"{task[1]}\n{task[0]}", fontsize=9)
        for name, runs in cases[task].items():
            colour = COLOURS.get(name, GREY)
            if len(runs) >= SEEDS:
                steps, _, mean, std = seeds_as_one(runs)
                named[name] = band(ax, steps / 1e6, mean, std, colour)
            else:
                for steps, _, found in (np.transpose(r["curve"]) for r in runs if r["curve"]):
                    named[name] = ax.plot(steps / 1e6, found, color=colour, lw=0.8)[0]
    fig.axes[0].set_ylabel("return of an episode")
    order = [name for name in COLOURS if name in named]
    return legend(fig, {name: named[name] for name in (*order, *named)}, 3)


def write(folder: Path) -> None:
    """The plots that there are records for."""
    speeds, learning = of_today(read(folder / "throughput.jsonl")), read(folder / "learning.jsonl")
    for name, fig in {
        "speed": plot_speed(speeds),
        "minutes": plot_minutes(learning),
        "learning": plot_learning(learning, front=True),
        "learning_more": plot_learning(learning, front=False),
    }.items():
        if fig:
            fig.savefig(folder / f"{name}.png")
