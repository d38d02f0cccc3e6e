"""Pictures of returns: over steps, of the pages and of compare.py, and over minutes."""

import matplotlib
import numpy as np
from lib.records import defaults
from lib.stats import groups, seeds_as_one
from lib.tables import EAGER, ENOUGH, FAST, NAMES, learned, note, of_one_version, version
from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by colour-blind readers too
ORANGE, BLUE, GREY = "#E69F00 #0072B2 #666666".split()
COLOURS = {FAST: BLUE, EAGER: ORANGE, "LeanRL --compile": "#CC79A7", "CleanRL": "#009E73"}
COLOURS["sb3"] = GREY
matplotlib.rcParams.update({"font.size": 11, "axes.titlesize": 11, "axes.titlelocation": "left"})
matplotlib.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
SMALL = {"fontsize": 8, "color": GREY}


def panels(found: dict[str, dict[str, list[dict]]], said: str) -> Figure | None:
    """Returns over environment steps, mean and one standard deviation over seeds: a panel a task,
    {title: {name of a line: its runs}}, three in a row. None without a curve."""
    found = {title: lines for title, lines in found.items() if any(lines.values())}
    if not found:
        return None
    columns, rows = min(3, len(found)), -(-len(found) // 3)
    fig = Figure(figsize=(max(5, 3.3 * columns), 1 + 2.6 * rows), dpi=160, layout="constrained")
    fig.supxlabel(f"Mean and one standard deviation over seeds. {said}", **SMALL)
    named = {}
    for i, (title, lines) in enumerate(found.items(), 1):
        ax = fig.add_subplot(rows, columns, i, xlabel="million steps")
        ax.set_title(title, fontsize=9)
        for (name, runs), colour in zip(lines.items(), (ORANGE, BLUE), strict=True):
            if runs := [r for r in runs if r["curve"]]:
                steps, mean, std = seeds_as_one(runs)
                ax.fill_between(steps / 1e6, mean - std, mean + std, color=colour, alpha=0.15, lw=0)
                (named[name],) = ax.plot(steps / 1e6, mean, color=colour)
    fig.axes[0].set_ylabel("return of an episode")
    look = {"frameon": False, "fontsize": 10, "ncols": 2}
    fig.legend(named.values(), named, loc="outside upper center", **look)
    return fig


def learning(records: list[dict]) -> Figure | None:
    """That of the pages: both versions by default flags, a panel a pair and task with ENOUGH seeds
    of both by one version."""
    found, shown = {}, []
    for (name, env_id, steps), same in groups(
        learned(records), "pair", "env_id", "total_timesteps"
    ).items():
        names = {"eager version": name, "fast version": f"{name}_torchcompile:compile"}
        lines = {
            said: of_one_version([r for r in same if r["variant"] == x])
            for said, x in names.items()
        }
        old, *others = {version(runs) for runs in lines.values()}
        if min(map(len, lines.values())) >= ENOUGH and not others:
            found[f"{env_id}, {steps / 1e6:g}M steps{old}\n{name}"] = lines
            shown += same
    return panels(found, note(shown).strip("*")) if found else None


def minutes(records: list[dict]) -> Figure:
    """Returns over minutes since a run's start: all systems on one task, a run each."""
    fig = Figure(figsize=(7.2, 3.4), dpi=160, layout="constrained")
    ax = fig.add_subplot(xlabel="minutes", ylabel="return of an episode")
    found = {(r["pair"], r["variant"]): r for r in learned(records)}
    for system, colour in COLOURS.items():
        for of, ls in (("ppo_continuous_action_envpool", "--"), ("ppo_continuous_action", "-")):
            name = {FAST: f"{of}_torchcompile:compile", EAGER: of}.get(system, system)
            if run := found.get((of, name)):
                _, seconds, returns = np.transpose(run["curve"])
                said = f"{NAMES.get(system, system)} ({defaults(of)['num_envs']})"
                ax.plot(seconds / 60, returns, color=colour, ls=ls, label=said)
    fig.legend(frameon=False, fontsize=9, loc="outside right upper", title="(environments)")
    task = {f"{r['env_id']}, {r['total_timesteps'] / 1e6:g}M steps" for r in records}
    fig.supxlabel(f"{', '.join(task)}, a run each. {note(records).strip('*')}", **SMALL)
    return fig
