"""The pictures of the pages, from the records; python benchmarks/report.py writes them."""

from pathlib import Path

import matplotlib
from lib.choose import (
    BFLOAT16,
    BONUSES,
    COMPILE,
    EAGER,
    EAGER_VERSION,
    ENOUGH,
    FAST_VERSION,
    SB3,
    bonuses,
    columns,
    effects,
    ideas,
    learned,
    of_today,
    plain,
    sitting,
)
from lib.recipes import recipes, runs_of
from lib.records import read
from lib.stats import bootstrap, curves, difference, ratio, rounds, seeds_as_one, sps, values
from lib.tables import machine, of_systems, when
from matplotlib.figure import Figure
from matplotlib.transforms import blended_transform_factory

# Okabe and Ito's colours, told apart by colour-blind readers too
ORANGE, SKY, GREEN, BLUE, RED, GREY = "#E69F00 #56B4E9 #009E73 #0072B2 #D55E00 #666666".split()
COLOURS = {EAGER: ORANGE, COMPILE: BLUE, BFLOAT16: GREEN}
OURS = {EAGER_VERSION: SKY, FAST_VERSION: BLUE, f"{FAST_VERSION}, bfloat16": BLUE}
matplotlib.rcParams.update({"font.size": 11, "axes.titlesize": 11, "axes.titlelocation": "left"})
matplotlib.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})


def figure(width: float, height: float, note: str) -> Figure:
    """So many inches, with a note under it; a page's width are ten."""
    fig = Figure(figsize=(width, height), dpi=160, layout="constrained")
    fig.supxlabel(note, fontsize=9, color=GREY)
    return fig


def legend(fig: Figure, named: dict, columns: int) -> Figure:
    """The figure with {name: what it looks like} above all panels."""
    names = [name.replace("`", "") for name in named]
    look = {"frameon": False, "fontsize": 10, "handlelength": 1.3, "columnspacing": 1.3}
    fig.legend(named.values(), names, loc="outside upper center", ncols=columns, **look)
    return fig


def band(ax, x, mean, std, colour: str):
    """A line, and one standard deviation to each side."""
    ax.fill_between(x, mean - std, mean + std, color=colour, alpha=0.15, lw=0)
    return ax.plot(x, mean, color=colour)[0]


def plot_speed(records: list[dict]) -> Figure | None:
    """Steps/s of every system over Stable-Baselines3's, a bar each, a block a pair; vectors in the
    left column, pixels in the right one."""
    sessions = [same for same in sitting(records) if SB3 in of_systems(same)]
    if not sessions:
        return None
    pixels = [same for same in sessions if "atari" in same[0]["pair"]]
    vectors = [same for same in sessions if same not in pixels]
    columns = [column for column in (vectors, pixels) if column]
    height = max(sum(len(of_systems(same)) + 1.6 for same in column) for column in columns)
    shown = [r for same in sessions for r in same]
    note = f"In brackets: steps/s. {machine(shown[0])}, {when(shown)}; medians of {rounds(shown)} "
    note += "interleaved rounds"
    fig = figure(5 * len(columns), 1.2 + 0.21 * height, note)
    axes = fig.subplots(1, len(columns), sharex=True, squeeze=False)[0]
    for left, (ax, column) in enumerate(zip(axes, columns, strict=True)):
        where = blended_transform_factory(fig.transFigure, ax.transData)  # from its left on
        y, ticks = 0.0, {}  # height: name of a bar
        for same in column:
            systems = of_systems(same)
            args = next(r["args"] for r in same if "args" in r)
            count = f"{args['num_envs']} env{'s' * (args['num_envs'] > 1)}"
            title = f"{same[0]['pair']}: {args['env_id']}, {count}"
            look = {"transform": where, "fontweight": "bold", "va": "center", "fontsize": 10}
            ax.text(left / len(columns) + 0.01, y, title, **look).set_in_layout(False)
            for name, runs in systems.items():
                y += 1
                ticks[y], gain = name, ratio(runs, systems[SB3])
                ax.barh(y, gain, 0.8, color=OURS.get(name, "#BBBBBB"))
                text = f" {gain:.2f}  ({float(f'{sps(runs):.3g}'):,.0f})"
                ax.text(gain, y, text, va="center", fontsize=9)
            y += 1.6
        ax.set_xlabel("speed, Stable-Baselines3 = 1")
        ax.set_yticks(list(ticks), list(ticks.values()), fontsize=9)
        ax.tick_params(axis="y", length=0)
        ax.set_ylim(height - 0.5, -0.8)
        ax.spines["left"].set_visible(False)
    axes[0].set_xlim(0, 1.24 * axes[0].get_xlim()[1])  # room for the figures
    return fig


def plot_ideas(records: list[dict]) -> Figure | None:
    """Returns over minutes of what an idea brings, a panel an environment, a line a method."""
    found = ideas(records)
    shown = [r for methods in found.values() for runs in methods.values() for r in runs]
    if not shown:
        return None
    seeds = " or ".join(map(str, sorted({len(x) for y in found.values() for x in y.values()})))
    note = f"Mean and one standard deviation over {seeds} seeds. Dot: the run's end.\n"
    note += f"Compile time is included. {machine(shown[0])} a run, {when(shown)}"
    fig = figure(6, 0.8 + 2.6 * len(found), note)
    for i, (env_id, methods) in enumerate(found.items(), 1):
        ax = fig.add_subplot(len(found), 1, i, title=env_id, ylabel="return of an episode")
        for name, runs in methods.items():
            colour = GREY if "SB3" in name else ORANGE if "without" in name else BLUE
            _, seconds, mean, std = seeds_as_one(runs)
            band(ax, seconds / 60, mean, std, colour).set_label(name)
            ax.plot(seconds[-1] / 60, mean[-1], "o", color=colour)
        ax.set_xlim(left=0)
        ax.legend(frameon=False, fontsize=9, loc="lower right")
    ax.set_xlabel("minutes since the start of the process")
    return fig


def plot_effects(records: list[dict]) -> Figure | None:
    """By how much the return with each patch of ppo/ideas differs from that without, over the
    latter, with its 95% interval: a panel a task."""
    found = effects(records)
    tasks = list(dict.fromkeys(env_id for _, env_id in found))

    def gain(idea):
        pairs = [(found["none", x], found[idea, x]) for x in tasks if (idea, x) in found]
        pairs = [[values(same, "mean_return") for same in pair] for pair in pairs]
        return sum(difference(a, b) * len(a) / abs(sum(a)) for a, b in pairs) / len(pairs)

    ideas = sorted({idea for idea, _ in found} - {"none"}, key=gain, reverse=True)
    if not ideas:
        return None
    shown = [r for same in found.values() for r in same]
    note = f"Difference of mean returns over the mean without, with its 95% interval, {when(shown)}"
    fig = figure(9, 1.2 + 0.3 * len(ideas), note)
    axes = fig.subplots(1, len(tasks), sharex=True, sharey=True, squeeze=False)[0]
    for ax, env_id in zip(axes, tasks, strict=True):
        plain = values(found["none", env_id], "mean_return")
        size = abs(sum(plain) / len(plain))
        for y, idea in enumerate(reversed(ideas)):
            if runs := found.get((idea, env_id)):
                with_it = values(runs, "mean_return")
                ends = bootstrap(difference, plain, with_it)
                ax.plot([x / size for x in ends], [y, y], color=BLUE, lw=1.5)
                ax.plot(difference(plain, with_it) / size, y, "o", color=BLUE, ms=4)
        ax.axvline(0, color=GREY, lw=0.8)
        ax.set_title(env_id, fontsize=9)
        ax.set_xticks([-0.5, 0, 0.5], ["-50%", "0", "+50%"], fontsize=8)
    axes[0].set_yticks(range(len(ideas)), reversed(ideas))
    return fig


def plot_visits(records: list[dict]) -> Figure | None:
    """Returns over steps with a bonus at first visits, at every visit and without one: a panel a
    task, a line a seed."""
    found = bonuses(records)
    tasks = list(dict.fromkeys(env_id for env_id, _ in found))
    if not tasks:
        return None
    colours = dict(zip(BONUSES, (BLUE, GREEN, ORANGE, GREY), strict=True))
    shown = [r for same in found.values() for r in same]
    fig, named = figure(9, 3, f"A line a seed. {machine(shown[0])} a run, {when(shown)}"), {}
    for ax, env_id in zip(fig.subplots(1, len(tasks)), tasks, strict=True):
        ax.set_title(env_id.rpartition(":")[2].removeprefix("OneHot-MiniGrid-"), fontsize=9)
        ax.set_xlabel("million steps")
        for kind, colour in colours.items():
            if (env_id, kind) not in found:
                continue
            steps, _, returns = curves(found[env_id, kind], 50)
            for line in returns:
                (named[kind],) = ax.plot(steps / 1e6, line, color=colour, lw=1)
    fig.axes[0].set_ylabel("return of an episode")
    return legend(fig, {f"a bonus: {kind}": named[kind] for kind in colours if kind in named}, 2)


def plot_recipes(records: list[dict]) -> Figure | None:
    """Returns over minutes of each recipe: mean, least and most over seeds; the zoo's score."""
    found = {name: (recipe, runs_of(records, recipe)) for name, recipe in recipes().items()}
    found = {name: (recipe, same) for name, (recipe, same) in found.items() if same}
    if not found:
        return None
    shown = [r for _, same in found.values() for r in same]
    counts = sorted({len(same) for _, same in found.values()})
    note = f"Line: mean over {' or '.join(map(str, counts))} seeds, actions sampled as in training."
    note += " Band: least to most.\nGrey: what RL Baselines3 Zoo's PPO scored, by the most likely"
    note += " actions, if it has the task.\nCompile time is included. "
    note += f"{machine(shown[0])} a run, {when(shown)}"
    rows = -(-len(found) // 2)
    fig = figure(7, 0.8 + 1.7 * rows, note)
    for i, (name, (recipe, same)) in enumerate(found.items(), 1):
        ax = fig.add_subplot(rows, 2, i, title=name)
        _, seconds, returns = curves(same, 50)
        ax.fill_between(seconds / 60, returns.min(0), returns.max(0), color=BLUE, alpha=0.2, lw=0)
        ax.plot(seconds / 60, returns.mean(0), color=BLUE)
        if "zoo" in recipe:
            ax.axhline(recipe["zoo"]["return"], color=GREY, lw=1)
        ax.set_xlim(left=0)
        if i % 2:
            ax.set_ylabel("return")
        if i > len(found) - 2:
            ax.set_xlabel("minutes")
    return fig


def plot_learning(records: list[dict]) -> Figure | None:
    """Returns over steps by default flags of both versions, a panel a pair, environment and
    schedule with ENOUGH seeds of both, of the machine with most runs."""
    cases, seeds = {}, {}
    for same in sorted(learned(plain(records)), key=len):
        task = same[0]["pair"], same[0]["env_id"], same[0]["total_timesteps"]
        cases[task] = {name: runs for name, (runs, _) in columns(same, len).items()}
        seeds[task] = min(len(cases[task].get(name, [])) for name in (EAGER, COMPILE))
    chosen = sorted(task for task in cases if seeds[task] >= ENOUGH)
    if not chosen:
        return None
    counts = sorted({seeds[task] for task in chosen})
    shown = [r for task in chosen for same in cases[task].values() for r in same]
    note = f"Mean and one standard deviation over {' or '.join(map(str, counts))} seeds, "
    note += when(shown)
    rows = -(-len(chosen) // 3)
    fig, named = figure(9, 1.0 + 2.5 * rows, note), {}
    names = {EAGER: EAGER_VERSION, COMPILE: f"{FAST_VERSION}, {COMPILE}"}
    for i, task in enumerate(chosen, 1):
        ax = fig.add_subplot(rows, 3, i, xlabel="million steps")
        runs = [r for same in cases[task].values() for r in same]
        ax.set_title(f"{task[1]}, {machine(runs[0]).partition(',')[0]}\n{task[0]}", fontsize=9)
        for column, name in names.items():
            steps, _, mean, std = seeds_as_one(cases[task][column])
            named[name] = band(ax, steps / 1e6, mean, std, COLOURS[column])
    fig.axes[0].set_ylabel("return of an episode")
    return legend(fig, named, 2)


def write(folder: Path) -> None:
    """The plots that there are records for."""
    speeds, learning = of_today(read(folder / "throughput.jsonl")), read(folder / "learning.jsonl")
    for name, fig in {
        "speed": plot_speed(speeds),
        "learning": plot_learning(learning),
        "ideas": plot_ideas(learning),
        "recipes": plot_recipes(learning),
        "effects": plot_effects(read(folder / "ideas.jsonl")),
        "visits": plot_visits(read(folder / "first_visits.jsonl")),
    }.items():
        if fig:
            fig.savefig(folder / f"{name}.png")
