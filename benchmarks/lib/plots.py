"""Pictures of returns over steps: that of the pages, and that of compare.py."""

import matplotlib
from lib.stats import groups, seeds_as_one
from lib.tables import ENOUGH, learned, note, of_one_version, version
from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by colour-blind readers too
ORANGE, BLUE, GREY = "#E69F00 #0072B2 #666666".split()
matplotlib.rcParams.update({"font.size": 11, "axes.titlesize": 11, "axes.titlelocation": "left"})
matplotlib.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})


def panels(found: dict[str, dict[str, list[dict]]], said: str) -> Figure | None:
    """Returns over environment steps, mean and one standard deviation over seeds: a panel a task,
    {title: {name of a line: its runs}}, three in a row. None without a curve."""
    found = {title: lines for title, lines in found.items() if any(lines.values())}
    if not found:
        return None
    columns, rows = min(3, len(found)), -(-len(found) // 3)
    fig = Figure(figsize=(max(5, 3.3 * columns), 1 + 2.6 * rows), dpi=160, layout="constrained")
    fig.supxlabel(f"Mean and one standard deviation over seeds. {said}", fontsize=8, color=GREY)
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
