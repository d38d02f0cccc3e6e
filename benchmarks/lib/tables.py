"""What the records say, as Markdown tables; which records a page shows, and under which names."""

import math
import re
from statistics import median

import numpy as np
from lib.pairs import PAIRS
from lib.recipes import recipes, variant
from lib.records import ROOT, SCRIPTS, code, defaults, pair, part
from lib.runs import called, complete, judged
from lib.stats import (
    across,
    bootstrap,
    difference,
    groups,
    holm,
    iqm,
    mean_std,
    permutation_p,
    rounds,
    seconds_to,
    spread,
    sps,
    times,
    values,
)

# docs.cleanrl.dev/rl-algorithms/ppo/: mean and standard deviation over 3 seeds, steps
PUBLISHED = {
    "CartPole-v1": (490.04, 6.12, 500_000),
    "Acrobot-v1": (-86.36, 1.32, 500_000),
    "HalfCheetah-v4": (1442.64, 46.03, 1_000_000),
    "Walker2d-v4": (2287.95, 571.78, 1_000_000),
    "Hopper-v4": (2382.86, 271.74, 1_000_000),
}
NAMES = {"simulator": "simulator alone", "sb3": "Stable-Baselines3"}
FAST, EAGER, SIMULATOR = "fast version", "eager version", NAMES["simulator"]
SEEDS, ENOUGH = 3, 5  # of a row at least; of a permutation test, each side


def rows_of(header: list[str], rows: list[list[str]], text: int = 1) -> str:
    """A Markdown table, its first columns text, the others numbers and to the right."""
    rule = [*["---"] * text, *["--:"] * (len(header) - text)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows])


def cores(n: int) -> str:
    """1 core, 2 cores."""
    return f"{n} core{'s' if n > 1 else ''}"


def minutes(seconds: float) -> str:
    """With two digits, or as many as a whole number has."""
    return f"{seconds / 60:.2g}" if seconds < 6000 else f"{seconds / 60:,.0f}"


def machine(record: dict) -> str:
    """A machine's short name."""
    cpu = re.sub(r"\((R|TM)\)| (CPU|Processor|@.*)", "", record["cpu"])
    return (record["gpu"] or cpu).removesuffix(" 80GB HBM3") + f", {cores(record['cores'])}"


def note(records: list[dict], what: str = "") -> str:
    """What stands below a table: machines, days, and whether scripts have changed since."""
    days = {r["date"][:10] for r in records}
    machines = dict.fromkeys(map(machine, records))
    found = [*machines, " to ".join(sorted({min(days), max(days)}))]
    timed = [(r, part(r["variant"])[0]) for r in records if "session" in r]
    timed = [(r, name) for r, name in timed if name in SCRIPTS]
    found += ["some scripts have changed since"] * any(r.get("code") != code(x) for r, x in timed)
    said = "; ".join(filter(None, [what, *found]))
    return f"*{said[:1].upper()}{said[1:]}.*"


# Steps per second


def system(record: dict) -> str:
    """What a record of throughput.py is called beside others of its pair."""
    name, mode, more = part(record["variant"])
    if not name.startswith("ppo"):
        return NAMES.get(record["variant"], record["variant"])
    flags = {*(mode.split("+") if mode else [])} - {"compile", "cudagraphs"}
    fast = name.endswith("_torchcompile") and ("compile" in mode or "cudagraphs" in mode)
    said = FAST if fast else "fast version, no flags" if "_torchcompile" in name else EAGER
    if fast and "compile" not in mode:
        said += ", not compiled"
    return ", ".join([said, *sorted(flags)]) + "".join(f" {word}" for word in more)


def sessions(records: list[dict]) -> list[list[dict]]:
    """What was measured side by side, in the pairs' order, the newest last."""
    found = groups(records, "pair", "num_envs", "session").values()
    order = {name: i for i, name in enumerate(PAIRS)}
    return sorted(
        found, key=lambda same: (order[same[0]["pair"]], same[0]["num_envs"], same[0]["session"])
    )


def newest(records: list[dict]) -> list[list[dict]]:
    """Of each pair the newest session with both versions, on the script's own environments."""
    found = {}
    for same in sessions(records):
        name, own = same[0]["pair"], defaults(same[0]["pair"])["num_envs"]
        if same[0]["num_envs"] == own and {EAGER, FAST} <= {system(r) for r in same}:
            found[name] = same
    return [*found.values()]


def beside(shown: list[list[dict]], task: bool = False) -> str:
    """Steps/s, a row a session, by its script or its task, a column a system."""
    rows, runs = [], [r for same in shown for r in same]
    columns = [FAST, EAGER, "LeanRL --compile", "CleanRL", NAMES["sb3"], SIMULATOR]
    for same in shown:
        name, num_envs = same[0]["pair"], same[0]["num_envs"]
        what = defaults(name)["env_id"] if task else f"`{name}`"
        row = [f"{what} ({num_envs})" + f", {machine(same[0])}" * bool(same[0]["gpu"])]
        alone = [r for r in same if system(r) == SIMULATOR]
        for of in columns:
            mine = [r for r in same if system(r).removesuffix(" --cudagraphs") == of]
            share = f" ({times(mine, alone)})" if alone and of != SIMULATOR else ""
            row.append(f"{float(f'{sps(mine):.3g}'):,.0f}{share}" if mine else "")
        rows += [row] * any(row[1:3])
    header = ["task (environments)" if task else "script (environments)", *columns]
    used = [i for i, column in enumerate(zip(*rows, strict=True)) if any(column)]
    header, *rows = [[row[i] for i in used] for row in [header, *rows]]
    what = "steps/s (share of the simulator's); medians of "
    return f"{rows_of(header, rows)}\n\n{note(runs, f'{what}{rounds(runs)} rounds')}"


def speeds(shown: list[list[dict]]) -> str:
    """Steps/s in full, a row a system: ratios within a round, spread and start-up."""
    rows, runs = [], [r for same in shown for r in same]
    for same in shown:
        systems = groups([r | {"system": system(r)} for r in same], "system")
        systems = {name: runs for (name,), runs in systems.items()}
        eager, alone = systems.get(EAGER, []), systems.get(SIMULATOR, [])
        for name, mine in systems.items():
            waits = groups(sorted(mine, key=lambda r: not r.get("cold_cache")), "cold_cache")
            waits = [median(x) for x in (values(y, "startup_s") for y in waits.values()) if x]
            row = [f"`{same[0]['pair']}` ({same[0]['num_envs']})", name]
            row += [f"{float(f'{sps(mine):.3g}'):,.0f}", times(mine, eager), times(mine, alone)]
            row += [minutes(waits[0] + 1e6 / sps(mine)) if waits else ""]
            row += [f"{min(values(mine)):,.0f} to {max(values(mine)):,.0f}"]
            rows.append([*row, " / ".join(f"{x:.1f}" for x in waits)])
    header = ["script (environments)", "system", "steps/s", "times eager", "of the simulator"]
    header += ["1M steps, minutes", "least to most", "start-up, cold / warm, s"]
    return f"{rows_of(header, rows, text=2)}\n\n{note(runs, f'medians of {rounds(runs)} rounds')}"


# Returns


def learned(records: list[dict]) -> list[dict]:
    """Complete runs whose mean return is a number, the last of each variant, task and seed."""
    found = {}
    for r in sorted(judged(records)[0], key=lambda r: r["date"]):
        of = {"pair": r.get("pair") or pair(r["variant"])}
        task = r.get("idea") or "", r["env_id"], r["total_timesteps"], r["seed"]
        if complete(r):
            found[r["variant"], of["pair"], *task] = r | of
    return [found[x] for x in sorted(found)]


def of_one_version(runs: list[dict]) -> list[dict]:
    """Without those of `before`, a version that computed something else, if there are newer."""
    return [r for r in runs if "before" not in r] or runs


def version(runs: list[dict]) -> str:
    """', before 0.3', or nothing."""
    return "".join(f", before {x}" for x in {r["before"] for r in runs if "before" in r})


def runs_table(records: list[dict]) -> str:
    """Of all runs: a row a task and script."""
    rows, names = [], ("env_id", "total_timesteps", "pair", "variant", "idea")
    for (env_id, steps, of, name, idea), runs in groups(learned(records), *names).items():
        each = ", ".join(f"{r['seed']}: {r['mean_return']:,.1f}" for r in runs)
        told = f"`{name}`" + f" --patch {idea}" * bool(idea)
        told = told if name.startswith("ppo") else f"{NAMES.get(name, name)}, as `{of}`"
        rows.append([env_id, told, f"{steps:,}", score(runs), took(runs), each])
    header = ["task", "script", "steps", "return (seeds)", "minutes", "each seed"]
    lines = judged(records)[1]
    for r in (r for r in records if not complete(r)):
        lines.append(f"{called(r)}: {r['mean_return']} after {r['global_step']:,} steps, not all")
    return rows_of(header, rows, text=2) + "".join(f"\n- {line}" for line in lines)


def took(runs: list[dict]) -> str:
    """Median minutes."""
    found = values(runs, "seconds")
    return minutes(median(found)) if found else ""


def score(runs: list[dict]) -> str:
    """Mean return ± standard deviation, and the number of seeds."""
    return f"{spread(*mean_std(runs))} ({len(runs)})" if runs else ""


def returns(records: list[dict]) -> str:
    """Returns after as many steps as CleanRL has published, by default flags: a row a script and
    task, with by how much the fast version ends above the eager one, and other systems."""
    rows, shown, found = [], [], learned(records)
    for env_id, (mean, std, steps) in PUBLISHED.items():
        same = [r for r in found if (r["env_id"], r["total_timesteps"]) == (env_id, steps)]
        for (of,), runs in sorted(groups(same, "pair").items()):
            systems = {x: y for (x,), y in groups(runs, "variant").items() if len(y) >= SEEDS}
            fast, eager = (systems.pop(x, []) for x in (f"{of}_torchcompile:compile", of))
            fast, eager = map(of_one_version, (fast, eager))
            others = {NAMES.get(x, x): y for x, y in systems.items() if not x.startswith("ppo")}
            told, apart = [f"{name} {score(y)}" for name, y in others.items()], ""
            if "envpool" not in of:
                told.append(f"published {spread(mean, std)} (3)")
            if min(len(eager), len(fast)) >= ENOUGH and version(fast) == version(eager):
                a, b = (values(x, "mean_return") for x in (eager, fast))
                low, high = bootstrap(difference, a, b)
                apart = f"{difference(a, b):+,.0f} [{low:+,.0f} to {high:+,.0f}]"
                apart += f", p = {permutation_p(a, b):.3f}"
            if fast or eager:
                own = [f"{score(x)}{version(x)}" for x in (fast, eager)]
                rows.append([f"`{of}`, {env_id}", *own, apart, ", ".join(told)])
                shown += [r for y in (fast, eager, *others.values()) for r in y]
    header = ["script, task", FAST, EAGER, "fast minus eager [95%], p", "others"]
    return f"{rows_of(header, rows)}\n\n{note(shown)}"


def runs_of(records: list[dict], recipe: dict) -> list[dict]:
    """Runs of a recipe with seeds 1 to 5 that had a core to themselves and were played, of the
    newest one's machine."""
    asked = variant(recipe), recipe["env_id"], recipe["total_timesteps"], 1, recipe.get("patch")
    names = "variant", "env_id", "total_timesteps", "cores", "idea"
    found = [r for r in learned(records) if tuple(r.get(x) for x in names) == asked]
    found = [r for r in found if r["seed"] in range(1, 6) and "eval_deterministic" in r]
    last = max(found, key=lambda r: r["date"], default=None)
    return [r for r in found if machine(r) == machine(last)]


def recipe_table(records: list[dict]) -> str:
    """What recipes come to: interquartile mean over seeds of a run's mean score by the most likely
    actions, with its interval, the least and the most; the zoo's score; minutes; and the median
    seconds after which the return in training first got to the recipe's score."""
    rows, shown = [], []
    for name, recipe in recipes().items():
        same = runs_of(records, recipe)
        shown += same
        scored, ends, minutes, soon, zoo = "not measured", "", "", "", ""
        if same:
            scores = [r["eval_deterministic"]["mean"] for r in same]
            form = "{:,.0f}" if max(map(abs, scores)) >= 100 else "{:,.1f}"
            scored = f"{form} [{form}, {form}] ({len(same)})".format(*iqm(scores))
            scored += version(same)
            ends = f"{form} to {form}".format(min(scores), max(scores))
            minutes = f"{took(same)} ({recipe['total_timesteps'] / 1e6:g}M)"
            seconds = median(seconds_to(recipe["score"], r) for r in same)
            soon = f"in {seconds:.0f} s" if seconds < math.inf else "not reached"
            soon = f"{recipe['score']:,} {soon}"
        if "zoo" in recipe:
            value, steps, env_id = (recipe["zoo"][x] for x in ("return", "steps", "env_id"))
            old = f", {env_id.rpartition('-')[2]}" * (env_id != recipe["env_id"])
            zoo = f"{value:,} ({steps / 1e6:g}M{old})"
        rows.append([f"`{name}`", scored, ends, zoo, minutes, soon])
    header = ["task", "return [95%] (seeds)", "least to most", "zoo's (steps)"]
    table = rows_of([*header, "minutes (steps)", "seconds to a score"], rows)
    return f"{table}\n\n{note(shown)}" if shown else table


# Ideas


def effects(records: list[dict]) -> dict[tuple[str, str], list[dict]]:
    """Runs by (idea, task) without further flags, "none" being the script without: of each the
    newest text that was run, with the seeds that both have."""
    newest = {}
    plain = [r for r in judged(records)[0] if not part(r["variant"])[2]]
    for record in sorted(plain, key=lambda r: r["date"]):
        texts = newest.setdefault((record.get("idea", "none"), record["env_id"]), {})
        texts.setdefault(record["code"], {})[record["seed"]] = record
    newest = {task: [*texts.values()][-1] for task, texts in newest.items()}
    shown = {}
    for (idea, env_id), runs in newest.items():
        beside = newest.get(("none", env_id), {})
        runs = [r for seed, r in runs.items() if seed in beside]
        if len(runs) >= SEEDS:
            shown[idea, env_id] = runs
    return shown


def effects_table(records: list[dict]) -> str:
    """What each patch of ppo/ideas changes: the mean over its tasks, and each task; the largest
    gain first."""
    found, rows = effects(records), []
    sides = {
        idea: {
            env_id: [values(found[x, env_id], "mean_return") for x in ("none", idea)]
            for of, env_id in found
            if of == idea
        }
        for idea in sorted({idea for idea, _ in found} - {"none"})
    }
    if not sides:
        return ""
    overall = {idea: across([*tasks.values()]) for idea, tasks in sides.items()}
    sure = dict(zip(overall, holm([x[3] for x in overall.values()]), strict=True))
    for idea, (change, low, high, p) in sorted(overall.items(), key=lambda x: -x[1][0]):
        ways = [[values(found[y, x]) for y in (idea, "none")] for x in sides[idea]]
        speed = [np.median(a) / np.median(b) for a, b in ways if a and b]
        cell = f"{change:+.0%} [{low:+.0%} to {high:+.0%}]"
        cell = f"**{cell}**" if sure[idea] < 0.05 else cell
        each = [f"{x} {difference(a, b):+,.0f}" for x, (a, b) in sides[idea].items()]
        text = (ROOT / "ppo" / "ideas" / f"{idea}.patch").read_text()
        lines = re.findall(r"(?m)^[+-]", text[text.index("\n@@") :])
        row = [f"[`{idea}`]({idea}.patch)", str(len(lines)), cell]
        row += ["< 0.001" if p < 0.0005 else f"{p:.3f}"]
        rows.append([*row, f"{np.mean(speed):.2f}" if speed else "", "; ".join(each)])
    runs = [r for same in found.values() for r in same]
    most = max(map(len, found.values()))
    what = f"{most} seeds each; bold where p is below 0.05 after Holm's correction for {len(rows)}"
    header = ["idea", "lines", "mean change [95%]", "p", "steps/s", "change of the return, by task"]
    return f"{rows_of(header, rows)}\n\n{note(runs, f'{what} ideas')}"
