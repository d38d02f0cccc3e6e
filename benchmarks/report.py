"""Tables and plots from the records alone: nothing in them is typed by hand.

    python benchmarks/report.py             # writes the tables between their markers, and the plots
    python benchmarks/report.py --check     # changes nothing; status 1 if a table is out of date

A table stands between `<!-- NAME -->` and `<!-- /NAME -->` in README.md and benchmarks/README.md.
"""

import argparse
import itertools
import re
import statistics
import sys
from pathlib import Path

import numpy as np
from records import RESULTS, ROOT, read

CLEANRL = "https://docs.cleanrl.dev/rl-algorithms/ppo/"
# mean and standard deviation over 3 seeds: CleanRL's ppo_continuous_action at 1M steps, and its
# ppo_atari_envpool and ppo_atari (Pong) at 10M
PUBLISHED = {
    "HalfCheetah-v4": (1442.64, 46.03, 1_000_000, CLEANRL),
    "Walker2d-v4": (2287.95, 571.78, 1_000_000, CLEANRL),
    "Hopper-v4": (2382.86, 271.74, 1_000_000, CLEANRL),
    "Breakout-v5": (211.24, 151.84, 10_000_000, CLEANRL),
    "Pong-v5": (20.45, 0.09, 10_000_000, CLEANRL),
}
HERE = Path(__file__).resolve().parent
PHASES = ("rollout", "advantages", "update", "log")
# Okabe and Ito's colours, told apart by colour-blind readers too
ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PURPLE = (
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#F0E442",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
GREY = "#999999"


def bootstrap(a: list[float], b: list[float], n: int = 10_000) -> tuple[float, float]:
    """95% interval of mean(b) - mean(a), each resampled with replacement n times."""
    rng = np.random.default_rng(0)
    a_means = rng.choice(a, (n, len(a))).mean(1)
    b_means = rng.choice(b, (n, len(b))).mean(1)
    low, high = np.percentile(b_means - a_means, [2.5, 97.5])
    return float(low), float(high)


def published(env_id: str) -> str:
    """What others got, with the source; empty if it is not known."""
    if env_id not in PUBLISHED:
        return ""
    mean, std, steps, source = PUBLISHED[env_id]
    return f"[{mean:,} ± {std:,} at {steps // 1_000_000}M]({source})"


def permutation_p(a: list[float], b: list[float]) -> float:
    """Two-sided p of the difference of means: the share of all ways to deal the values to two sides
    of these sizes that differ as much. With 3 and 3 values it cannot be less than 0.1."""
    values, observed = np.array([*a, *b]), abs(np.mean(b) - np.mean(a))
    deals = list(itertools.islice(itertools.combinations(range(len(values)), len(a)), 200_000))
    sides = np.array([[i in deal for i in range(len(values))] for deal in map(set, deals)])
    differences = (values * ~sides).sum(1) / len(b) - (values * sides).sum(1) / len(a)
    return float((abs(differences) >= observed - 1e-9).mean())


def groups(records: list[dict], *fields: str) -> dict[tuple, list[dict]]:
    """Records by the values of these fields, in the order in which they first come."""
    found: dict[tuple, list[dict]] = {}
    for record in records:
        found.setdefault(tuple(record.get(f) for f in fields), []).append(record)
    return found


def machine_key(record: dict) -> tuple:
    """What makes two machines the same."""
    return record["cpu"], record["cores"], record["gpu"]


def label(variant: str) -> str:
    """A variant as a person would type it."""
    if variant in ("simulator", "sb3"):
        return {"simulator": "simulator alone", "sb3": "Stable-Baselines3"}[variant]
    name, _, mode = variant.partition(":")
    if not name.startswith("ppo_"):
        return name  # a peer's
    return "`" + " ".join([name, *(f"--{flag}" for flag in mode.split("+") if flag)]) + "`"


def median(records: list[dict], field: str = "sps") -> float:
    return statistics.median(r[field] for r in records)


def ratio(records: list[dict], base: list[dict]) -> float | None:
    """Median over rounds of steps/s over the base's in the same round; None without one."""
    base_sps = {r["round"]: r["sps"] for r in base}
    ratios = [r["sps"] / base_sps[r["round"]] for r in records if r["round"] in base_sps]
    return statistics.median(ratios) if ratios else None


def figure(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def startup(runs: list[dict]) -> str:
    """Median seconds with a warm cache; before it, where it is known, with an empty one."""
    if not runs[0].get("startup_s"):
        return ""
    cold = [r["startup_s"] for r in runs if r.get("cold_cache")]
    warm = [r["startup_s"] for r in runs if not r.get("cold_cache")]
    return " / ".join(f"{statistics.median(values):.1f}" for values in (cold, warm) if values)


def rows_of(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, numbers to the right."""
    rule = ["---", *["--:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows])


def throughput_table(records: list[dict]) -> str:
    """Of one session and one pair: steps/s of each case, with its share of the simulator."""
    rows = []
    for (num_envs,), same in groups(records, "num_envs").items():
        cases = groups(same, "variant")
        simulator, eager = cases.get(("simulator",), []), cases.get((same[0]["pair"],), [])
        for (variant,), runs in cases.items():
            sps = [r["sps"] for r in runs]
            rows.append(
                [
                    label(variant),
                    str(num_envs),
                    f"{median(runs):,.0f}",
                    f"{min(sps):,.0f} to {max(sps):,.0f}",
                    figure(ratio(runs, simulator), ".2f"),
                    "" if variant == "simulator" else figure(ratio(runs, eager), ".2f"),
                    startup(runs),
                    str(len(runs)),
                ]
            )
    header = ["", "environments", "steps/s", "least to most", "of the simulator", "of eager"]
    return rows_of([*header, "start-up, s", "runs"], rows)


def ablation_table(records: list[dict]) -> str:
    """Of one session and one pair: what each switch does to steps/s, start-up and the phases."""
    cases = groups([r for r in records if r["variant"] != "simulator"], "group", "label")
    eager, full = cases.get(("", "eager file"), []), cases.get(("", "fast file, all on"), [])
    rows = []
    titles = {"": None, "off": "**one taken away**", "on": "**one added**"}
    titles["two"] = "**two runs at once, each**"
    for group, title in titles.items():
        chosen = {key: runs for key, runs in cases.items() if key[0] == group}
        if chosen and title:
            rows.append([title] + [""] * (4 + len(PHASES)))
        for (_, name), runs in chosen.items():
            row = [name, f"{median(runs):,.0f}"]
            row += [figure(ratio(runs, base), ".2f") for base in (eager, full)]
            row += [startup(runs)]
            rows.append(row + [f"{phase_ms(runs, phase):.1f}" for phase in PHASES])
    header = ["", "steps/s", "of eager", "of all on", "start-up, s"]
    return rows_of(header + [f"{phase}, ms" for phase in PHASES], rows)


def floors_table(records: list[dict]) -> str:
    """Of one ablation and one pair: what the machine cannot do in less, beside what was measured.

    An iteration's simulator, arithmetic and bytes over the bus, in milliseconds, at the rates that
    the machine showed in the same session, one after the other.
    """
    found = [r for r in records if r["variant"] == "simulator" and "flops_acting" in r]
    rows = []
    for (group, name), runs in groups(records, "group", "label").items() if found else ():
        if group != "":
            continue
        args, device = runs[0]["args"], runs[0]["device"]
        steps = args["num_envs"] * args["num_steps"]
        dtype = "bfloat16" if args.get("bfloat16") else "float32"
        rate = statistics.median(r["flops_per_s"][device][dtype] for r in found)
        simulator = 1000 * steps / median(found)
        acting = 1000 * steps * found[0]["flops_acting"] / rate
        learning = 1000 * steps * found[0]["flops_learning"] / rate
        bus = 0.0
        if device == "cuda":
            bus_rate = statistics.median(r["bus_bytes_per_s"] for r in found)
            bus = 1000 * steps * found[0]["bus_bytes"] / bus_rate
        total = simulator + acting + bus + learning
        rollout, update = phase_ms(runs, "rollout"), phase_ms(runs, "update")
        rows.append(
            [
                name,
                f"{rollout:.1f}",
                f"{simulator:.1f} + {acting:.1f}" + (f" + {bus:.1f}" if bus else ""),
                f"{update:.1f}",
                f"{learning:.1f}",
                f"{learning / update:.2f}",
                f"{median(runs):,.0f}",
                f"{1000 * steps / total:,.0f}",
                f"{median(runs) * total / (1000 * steps):.2f}",
            ]
        )
    header = ["", "rollout, ms", "its floors, ms", "update, ms", "its floor, ms", "floor / update"]
    return rows_of([*header, "steps/s", "at the floors", "share"], rows) if rows else ""


def rates(records: list[dict]) -> str:
    """What an environment step needs, and the machine's best rates, of one session and one pair."""
    found = [r for r in records if "flops_acting" in r]
    r = found[0]
    best = [
        f"{statistics.median(x['flops_per_s'][device][dtype] for x in found) / 1e9:,.0f} billion "
        f"a second in {dtype} on the {device.upper().replace('CUDA', 'GPU')}"
        for device, dtypes in r["flops_per_s"].items()
        for dtype in dtypes
    ]
    bus = r["bus_bytes_per_s"]
    return (
        f"A step needs {r['flops_acting'] / 1e6:,.2f} million operations to act and "
        f"{r['flops_learning'] / 1e6:,.2f} million to learn; products of large matrices run at "
        f"{', '.join(best)}. Between host and device go {r['bus_bytes']:,} bytes a step"
        + (f", at {bus / 1e9:,.1f} GB/s." if bus else "; there is no GPU here.")
    )


def phase_ms(runs: list[dict], phase: str) -> float:
    """Median milliseconds of a phase in one iteration, after burn-in."""

    def one(run):
        args = run["args"]
        rollout = args["num_envs"] * args["num_steps"]
        iterations = run["global_step"] // rollout - args["measure_burnin"]
        return 1000 * run["phase_s"][phase] / iterations

    return statistics.median(one(run) for run in runs)


def caption(records: list[dict]) -> str:
    """Machine, versions, date, commit and command of a session."""
    r = records[0]
    rounds = max(x["round"] for x in records)
    versions = ", ".join(f"{name} {v}" for name, v in r["versions"].items())
    parts = [
        f"{r['gpu'] or 'No GPU'}; {r['cpu']}, {r['cores']} cores visible",
        versions,
        f"{r['session'][:10]}, commit {r['commit']}",
        f"medians of {rounds} interleaved round{'s' * (rounds > 1)}",
    ]
    return f"*{'; '.join(parts)}:* `{r['session_command']}`"


def sessions(records: list[dict], newest: bool) -> list[list[dict]]:
    """Sessions of one pair each, the newest first; with `newest`, the last of each comparison: of
    a machine, a pair, a game and numbers of environments."""
    found = list(groups(records, "session", "pair").values())[::-1]
    found.sort(key=lambda s: s[0]["session"], reverse=True)
    if not newest:
        return found
    first: dict[tuple, list[dict]] = {}
    for session in found:
        r = session[0]
        envs = tuple(sorted({x["num_envs"] for x in session}))
        first.setdefault((machine_key(r), r["pair"], r.get("game"), envs), session)
    return sorted(first.values(), key=lambda s: s[0]["pair"])


def session_blocks(records: list[dict], table, newest: bool, note=lambda session: "") -> str:
    blocks = []
    for session in sessions(records, newest):
        if found := table(session):
            parts = [f"`{session[0]['pair']}`", found, note(session), caption(session)]
            blocks.append("\n\n".join(part for part in parts if part))
    return "\n\n".join(blocks) or "*No records yet.*"


def runs_of(records: list[dict]) -> dict[tuple, dict[str, dict[int, dict]]]:
    """Learning runs: {(env_id, total_timesteps, until): {variant: {seed: record}}}."""
    found: dict[tuple, dict[str, dict[int, dict]]] = {}
    for r in records:
        if r["mean_return"] is not None:
            group = (r["env_id"], r["total_timesteps"], r["until"])
            found.setdefault(group, {}).setdefault(r["variant"], {})[r["seed"]] = r
    return {group: dict(sorted(variants.items())) for group, variants in found.items()}


def learning_table(records: list[dict]) -> str:
    """Mean and standard deviation over seeds of the last 100 games' mean return."""
    rows, notes = [], []
    for (env_id, total, until), variants in runs_of(records).items():
        steps = f"{total if until is None else until:,}"
        if until is not None:
            steps += f" of {total:,}"  # of the schedule
        known = published(env_id)
        for variant, runs in variants.items():
            returns = [r["mean_return"] for r in runs.values()]
            spread = f" ± {np.std(returns, ddof=1):,.1f}" if len(returns) > 1 else ""
            rows.append(
                [
                    env_id,
                    steps,
                    label(variant),
                    f"{np.mean(returns):,.1f}{spread}",
                    ", ".join(f"{s}: {r['mean_return']:,.1f}" for s, r in sorted(runs.items())),
                    known,
                ]
            )
        notes += [f"- {env_id}: {note}." for note in pair_notes(variants)]
    header = ["", "steps", "script", "return", "each seed", "CleanRL's"]
    table = rows_of(header, rows)
    return table + ("\n\n" + "\n".join(notes) if notes else "")


def pair_notes(variants: dict[str, dict[int, dict]]) -> list[str]:
    """Of siblings with 2 seeds or more each: do they differ by more than the seeds do?"""
    notes = []
    for eager in variants:
        for fast in variants:
            if fast.partition(":")[0] != f"{eager}_torchcompile":
                continue
            a, b = ([r["mean_return"] for r in variants[v].values()] for v in (eager, fast))
            if min(len(a), len(b)) < 2:
                continue
            low, high = bootstrap(a, b)
            p = permutation_p(a, b)
            verdict = "they differ by more than the seeds do"
            if p >= 0.05:
                verdict = f"{len(a)} and {len(b)} seeds do not tell them apart"
            notes.append(
                f"fast minus eager {np.mean(b) - np.mean(a):+,.1f}, 95% bootstrap interval "
                f"{low:+,.1f} to {high:+,.1f}, permutation test p = {p:.2f}: {verdict}"
            )
    return notes


def learning_block(records: list[dict]) -> str:
    """A table for each machine."""
    blocks = []
    for same in groups(records, "cpu", "cores", "gpu").values():
        if not runs_of(same):
            continue
        r = same[0]
        days = sorted({x["date"][:10] for x in same})
        parts = [
            f"{r['gpu'] or 'No GPU'}; {r['cpu']}, {r['cores']} cores visible",
            ", ".join(
                f"{name} {v}" for name, v in {**r["versions"], **same[-1]["versions"]}.items()
            ),
            days[0] + (f" to {days[-1]}" if len(days) > 1 else ""),
            "commit " + ", ".join(dict.fromkeys(x["commit"] for x in same)),
            "mean return of the last 100 games, ± standard deviation over seeds",
        ]
        commands = dict.fromkeys(x.get("session_command") for x in same)
        shown = ", ".join(f"`{command}`" for command in commands if command)
        note = f"*{'; '.join(parts)}.*" + (f" {shown}" if shown else "")
        blocks.append(f"{learning_table(same)}\n\n{note}")
    return "\n\n".join(blocks) or "*No records yet.*"


def images(folder: Path, pattern: str, page: Path) -> str:
    """Links to the plots, from a page in the folder `page`."""
    found = sorted(path for path in folder.glob(pattern) if path.is_relative_to(page))
    return "\n\n".join(f"![{p.stem.replace('_', ' ')}]({p.relative_to(page)})" for p in found)


def tables(folder: Path, newest: bool) -> dict[str, str]:
    """Each marker's text."""
    throughput, ablation = read(folder / "throughput.jsonl"), read(folder / "ablation.jsonl")
    return {
        "throughput": session_blocks(throughput, throughput_table, newest),
        "floors": session_blocks(ablation, floors_table, True, rates),
        "ablation": session_blocks(ablation, ablation_table, newest),
        "learning": learning_block(read(folder / "learning.jsonl")),
        "plots": images(
            folder, "throughput_*.png" if newest else "*.png", ROOT if newest else HERE
        ),
    }


def filled(text: str, found: dict[str, str]) -> str:
    """The text with each marked part replaced."""
    for name, table in found.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if begin in text:
            head, _, rest = text.partition(begin)
            _, _, tail = rest.partition(end)
            text = f"{head}{begin}\n{table}\n{end}{tail}"
    return text


def pages(folder: Path) -> dict[Path, str]:
    """Each page with its tables as the records have them now."""
    readme, benchmarks = ROOT / "README.md", ROOT / "benchmarks" / "README.md"
    return {
        readme: filled(readme.read_text(), tables(folder, newest=True)),
        benchmarks: filled(benchmarks.read_text(), tables(folder, newest=False)),
    }


def slug(record: dict) -> str:
    """A machine in a file's name."""
    name = record["gpu"] or f"{record['cpu']} {record['cores']} cores"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def plain(variant: str) -> str:
    return label(variant).strip("`")


def plot(folder: Path) -> list[Path]:
    """Writes all plots that there are records for."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "figure.dpi": 120,
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#dddddd",
            "axes.axisbelow": True,
        }
    )
    written = []

    def save(fig, name):
        path = folder / name
        fig.savefig(path, facecolor="white", metadata={"Software": None})
        plt.close(fig)
        written.append(path)

    def thousands(axis):
        axis.set_major_formatter(lambda value, _: f"{value:,.0f}")

    def where(record):
        return f"{record['gpu'] or 'no GPU'}, {record['cpu']}, {record['cores']} cores"

    throughput = read(folder / "throughput.jsonl")
    for session in sessions(throughput, newest=True):
        first = session[0]
        by_envs = groups(session, "num_envs")
        cases = groups(next(iter(by_envs.values())), "variant")
        simulator = cases.pop(("simulator",), None)
        names = [plain(v) for (v,) in cases]
        fig, ax = plt.subplots(figsize=(8, 1.4 + 0.42 * len(cases)), layout="constrained")
        for y, ((variant,), runs) in enumerate(cases.items()):
            colour = GREY if not variant.startswith("ppo_") else BLUE if ":" in variant else SKY
            ax.barh(y, median(runs), color=colour)
            ax.plot([r["sps"] for r in runs], [y] * len(runs), "|", color="black", ms=9)
            ax.annotate(
                f"{median(runs):,.0f}",
                (max(r["sps"] for r in runs), y),
                (5, 0),
                textcoords="offset points",
                va="center",
            )
        if simulator:
            ax.axvline(median(simulator), color=RED, ls="--")
            ax.set_title(
                f"{first['pair']}: dashed, the simulator alone, {median(simulator):,.0f} steps/s\n"
                f"{next(iter(by_envs))[0]} environments; {where(first)}; bars: medians",
                fontsize=9,
                loc="left",
            )
        ax.set_yticks(range(len(names)), names)
        ax.invert_yaxis()
        ax.grid(axis="y", visible=False)
        ax.set_xlabel("environment steps per second")
        thousands(ax.xaxis)
        ax.set_xlim(0)
        save(fig, f"throughput_{first['pair']}_{slug(first)}.png")

        if len(by_envs) > 1:
            fig, ax = plt.subplots(figsize=(7, 4), layout="constrained")
            colours = itertools.cycle((ORANGE, BLUE, GREEN, PURPLE, SKY, YELLOW, "black"))
            for (variant,), runs in groups(session, "variant").items():
                points = [(n, median(same)) for (n,), same in groups(runs, "num_envs").items()]
                style = {"ls": "--", "color": RED}
                if variant != "simulator":
                    style = {"marker": "o", "color": next(colours)}
                ax.plot(*zip(*sorted(points), strict=True), label=plain(variant), **style)
            ax.set_xscale("log", base=2)
            ax.set_xticks([n for (n,) in by_envs], [str(n) for (n,) in by_envs])
            ax.set_ylim(0)
            ax.set_xlabel("environments")
            ax.set_ylabel("environment steps per second")
            thousands(ax.yaxis)
            ax.set_title(where(first), fontsize=9, loc="left")
            ax.legend(frameon=False)
            save(fig, f"scaling_{first['pair']}_{slug(first)}.png")

        ours = {v: runs for (v,), runs in cases.items() if "phase_s" in runs[0]}
        if ours:
            fig, ax = plt.subplots(figsize=(8, 1.4 + 0.42 * len(ours)), layout="constrained")
            left = np.zeros(len(ours))
            for phase, colour in zip(PHASES, (SKY, YELLOW, BLUE, GREY), strict=True):
                ms = np.array([phase_ms(runs, phase) for runs in ours.values()])
                ax.barh(range(len(ours)), ms, left=left, color=colour, label=phase)
                left += ms
            ax.set_yticks(range(len(ours)), [plain(v) for v in ours])
            ax.invert_yaxis()
            ax.grid(axis="y", visible=False)
            rows = next(iter(ours.values()))[0]["args"]
            size = rows["num_envs"] * rows["num_steps"]
            ax.set_xlabel(f"milliseconds of an iteration ({size:,} environment steps)")
            fig.suptitle(f"{first['pair']}, {where(first)}", fontsize=9, x=0.01, ha="left")
            fig.legend(loc="outside lower center", ncols=len(PHASES), frameon=False)
            save(fig, f"phases_{first['pair']}_{slug(first)}.png")

    learning = read(folder / "learning.jsonl")
    for (env_id, *_), records in groups(learning, "env_id", "cpu", "cores", "gpu").items():
        found = runs_of(records)
        if not found:
            continue
        fig, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
        colours = itertools.cycle((ORANGE, BLUE, GREEN, PURPLE, SKY, "black"))
        for (_, total, until), variant, runs in (
            (group, variant, runs) for group, variants in found.items()
            for variant, runs in variants.items()
        ):  # fmt: skip
            colour = next(colours)
            for ax, column, unit in ((axes[0], 0, 1e6), (axes[1], 1, 60)):
                curves = [np.array(r["curve"]) for r in runs.values() if len(r["curve"]) > 1]
                for points in curves:
                    ax.plot(points[:, column] / unit, points[:, 2], color=colour, lw=0.7, alpha=0.6)
                if not curves:
                    continue
                last = min(points[-1, column] for points in curves)
                grid = np.linspace(max(p[0, column] for p in curves), last, 200)
                mean = np.mean([np.interp(grid, p[:, column], p[:, 2]) for p in curves], axis=0)
                text = f"{plain(variant)}, {len(curves)} seed{'s' * (len(curves) > 1)}"
                if len(found) > 1:
                    text += f", {(until or total) / 1e6:g}M steps"
                ax.plot(grid / unit, mean, color=colour, lw=2, label=text)
        axes[0].set_xlabel("environment steps, millions")
        axes[1].set_xlabel("wall-clock since the start of the process, minutes")
        axes[0].set_ylabel("return of a game")
        thousands(axes[0].yaxis)
        title = f"{env_id}, {where(records[0])}: thin, each seed; thick, their mean"
        fig.suptitle(title, fontsize=9, x=0.01, ha="left")
        handles, texts = axes[0].get_legend_handles_labels()
        fig.legend(handles, texts, loc="outside lower center", ncols=2, frameon=False)
        save(fig, f"learning_{env_id}_{slug(records[0])}.png")
    return written


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the records")
    args = parser.parse_args()
    plots = [] if args.check else plot(args.results)
    stale = {page: text for page, text in pages(args.results).items() if page.read_text() != text}
    if args.check:
        for page in stale:
            print(f"{page.relative_to(ROOT)} is not what the records say", file=sys.stderr)
        return 1 if stale else 0
    for page, text in stale.items():
        page.write_text(text)
    for path in [*stale, *plots]:
        print(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
