"""What the records say: cases side by side and returns over seeds, as Markdown tables."""

import math
import re
from datetime import datetime, timedelta
from statistics import median

import numpy as np
from records import as_of_today, code, defaults, pair, part

SOURCE = "https://docs.cleanrl.dev/rl-algorithms/ppo/"
PUBLISHED = {  # by the script of the same name: mean and standard deviation over 3 seeds, steps
    "CartPole-v1": (490.04, 6.12, 500_000),
    "Acrobot-v1": (-86.36, 1.32, 500_000),
    "HalfCheetah-v4": (1442.64, 46.03, 1_000_000),
    "Walker2d-v4": (2287.95, 571.78, 1_000_000),
    "Hopper-v4": (2382.86, 271.74, 1_000_000),
    "Breakout-v5": (211.24, 151.84, 10_000_000),
    "Pong-v5": (20.45, 0.09, 10_000_000),
}
EAGER, COMPILE, BFLOAT16 = "eager", "`--compile`", "`--compile --bfloat16`"
SB3, CLEANRL, LEANRL = "Stable-Baselines3", "CleanRL", "LeanRL"
NAMES = {"simulator": "simulator alone", "sb3": SB3}
GROUPS = {"off": "one taken away", "on": "one added", "two": "two runs at once, each"}
PHASES = ("rollout", "advantages", "update", "log")
TARGETS = {"Walker2d-v4": 4000, "Pong-v5": 18}  # to get to in as few seconds as may be
MACHINE = ("cpu", "cores", "gpu")
TASK = (*MACHINE, "pair", "env_id", "total_timesteps", "cut")
SEEDS = 3  # of a figure on the front page, at least
ENOUGH = 5  # seeds each: with 3 and 3 no permutation test gets below p = 0.1
SITTING = timedelta(hours=6)  # between the first and the last session's start
DAY = timedelta(days=1)  # between the first and the last end of runs that take hours together
ONE, MANY = "ppo_continuous_action", "ppo_continuous_action_envpool"
MINUTES = {  # method: its pair and its variant
    MANY: (MANY, f"{MANY}_torchcompile:compile"),
    ONE: (ONE, f"{ONE}_torchcompile:compile"),
    f"{LEANRL} --compile": (ONE, f"{LEANRL} --compile"),
    CLEANRL: (ONE, CLEANRL),
    SB3: (ONE, "sb3"),
}
MINUTES_ENVS = ("HalfCheetah-v4", "Walker2d-v4")


PONG = "compile --bfloat16 --num-envs 16 --num-minibatches 16 --update-epochs 3 "
PONG += "--learning-rate 1e-3 --clip-coef 0.2 --no-clip-vloss --vf-coef 4"
WHICH = {  # pair: environments, actions, what is shown of it: environment, steps, flags
    "ppo": ("small problems, Gymnasium", "discrete", "CartPole-v1", 500_000, "compile"),
    "ppo_lstm": (
        "the same, partially observed: `--hide 1 3`",
        "discrete",
        "CartPole-v1",
        300_000,
        "compile",
    ),
    ONE: ("MuJoCo, Gymnasium", "continuous", "HalfCheetah-v4", 1_000_000, "compile"),
    MANY: (
        "64 of MuJoCo or dm_control, EnvPool",
        "continuous",
        "HalfCheetah-v4",
        1_000_000,
        "compile",
    ),
    "ppo_atari_envpool": ("8 of Atari, EnvPool", "discrete", "Pong-v5", 1_800_000, PONG),
    "ppo_atari": ("8 of Atari, ALE", "discrete", "ALE/Pong-v5", 1_800_000, PONG),
    "ppo_atari_envpool_multigpu": (
        "8 of Atari, EnvPool, one process per GPU",
        "discrete",
        "",
        0,
        "",
    ),
    "ppo_atari_envpool_lstm": (
        "8 of Atari, single frames",
        "discrete",
        "Pong-v5",
        1_800_000,
        PONG.replace("1e-3", "5e-4"),
    ),
}


def groups(records: list[dict], *fields: str) -> dict[tuple, list[dict]]:
    """Records by the values of these fields, in the order in which they first come."""
    found: dict[tuple, list[dict]] = {}
    for record in records:
        found.setdefault(tuple(record.get(field) for field in fields), []).append(record)
    return found


def values(records: list[dict], field: str = "sps") -> list:
    """Of the records that have the field."""
    return [r[field] for r in records if r.get(field) is not None]


def sps(runs: list[dict]) -> float:
    """Median steps/s."""
    return median(values(runs))


def of_today(records: list[dict]) -> list[dict]:
    """The sessions of a pair that ran both of its scripts, by one text each, as they are now; where
    a pair has none, as they were in the newest of its sessions, whose commit the captions name."""
    found: dict[str, dict[tuple, list[dict]]] = {}
    for (_, eager), same in groups(sorted(records, key=by_session), "session", "pair").items():
        ran = {(part(r["variant"])[0], r["code"]) for r in same if r.get("code")}
        names = [name for name, _ in ran]
        if {eager, f"{eager}_torchcompile"} <= set(names) and len(set(names)) == len(names):
            texts = tuple(sorted(ran))
            found.setdefault(eager, {}).setdefault(texts, []).extend(same)
    shown = []
    for by_texts in found.values():
        now = [texts for texts in by_texts if all(text == code(name) for name, text in texts)]
        shown += [r for texts in now or list(by_texts)[-1:] for r in by_texts[texts]]
    return shown


def by_session(record: dict) -> str:
    return record["session"]


def commits_of_old(records: list[dict], form: str) -> str:
    """The commits of scripts that have changed since; empty if none has."""
    old = [r for r in records if r.get("code") and r["code"] != code(part(r["variant"])[0])]
    return form.format(", ".join(sorted({r["commit"] for r in old}))) if old else ""


def newest(records: list[dict]) -> list[list[dict]]:
    """The newest session of each pair, machine and number of environments."""
    in_time = sorted(records, key=lambda r: r["session"])
    cases = groups(in_time, "pair", "num_envs", *MACHINE).values()
    found = [list(groups(case, "session").values())[-1] for case in cases]
    order = [*WHICH, *(same[0]["pair"] for same in found)]  # the front page's
    return sorted(found, key=lambda same: (order.index(same[0]["pair"]), same[0]["num_envs"]))


def sitting(records: list[dict]) -> list[list[dict]]:
    """What stands side by side: the newest session of each pair, on its script's own environments,
    begun on one machine within SITTING; of such sets the one of most pairs, of these the newest."""
    own = [r for r in records if r["num_envs"] == defaults(r["pair"])["num_envs"]]
    sets = []
    for same in groups([r for r in own if r.get("game") is None], *MACHINE).values():
        for (last,) in groups(same, "session"):
            end = datetime.fromisoformat(last)
            ago = [(end - datetime.fromisoformat(r["session"]), r) for r in same]
            found = newest([r for before, r in ago if timedelta(0) <= before <= SITTING])
            sets.append((len(found), end, found))
    return max(sets, key=lambda one: one[:2], default=(0, 0, []))[2]


def learned(records: list[dict]) -> list[list[dict]]:
    """Learning runs in which an episode ended, by pair and task; of one made twice, or resumed, the
    last. A variant is named with the flags that it would need today; `cut` are runs that were
    ended before they had taken all steps. Left out is what is `superseded`: its script no longer
    gives the same losses."""
    records = [
        {
            **r,
            "pair": r.get("pair") or pair(r["variant"]),
            "variant": as_of_today(r),
            "cut": r["until"] is not None,
        }
        for r in records
        if not r.get("superseded")
    ]
    names = (*TASK, "until", "variant", "seed")
    runs = {r.get("run") or tuple(r[name] for name in names): r for r in records}
    runs = {tuple(r[name] for name in names): r for r in runs.values()}
    found = [r for r in runs.values() if r["mean_return"] is not None]
    order = ("pair", "env_id", "total_timesteps", "variant", "seed")
    found.sort(key=lambda r: [r[name] for name in order])
    cases = groups(found, *TASK).values()
    return sorted(cases, key=lambda same: (same[0]["pair"], same[0]["env_id"], reach(same)))


def ours(record: dict) -> bool:
    """A script's of this repository, not a peer's or the simulator's."""
    return record["variant"].startswith("ppo")


def label(variant: str) -> str:
    """A variant as a person would type it: 'NAME:flag+flag' -> '`NAME --flag --flag`'."""
    if not variant.startswith("ppo"):
        return NAMES.get(variant, variant)
    name, mode, more = part(variant)
    return f"`{' '.join([name, *(f'--{flag}' for flag in mode.split('+') if flag), *more])}`"


def columns(records: list[dict], key) -> dict[str, tuple[list[dict], str]]:
    """{column: (runs of its variant with the largest key, flags that the column does not name)};
    whatever is not ours has a column of its own."""
    found: dict[str, tuple[list[dict], str]] = {}
    for (variant,), runs in groups(records, "variant").items():
        name, flags = NAMES.get(variant, variant), []
        if ours(runs[0]):
            script, *flags = label(variant).strip("`").split()
            named = [flag for flag in ("--compile", "--bfloat16") if flag in flags]
            flags = [flag for flag in flags if flag not in named]
            fast = f"`{' '.join(named)}`" if named else "no flags"
            name = fast if script.endswith("_torchcompile") else EAGER
        if name not in found or key(runs) > key(found[name][0]):
            found[name] = runs, " ".join(flags)
    return found


def rows_of(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, numbers to the right."""
    rule = ["---", *["--:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows])


def cores(n: int) -> str:
    """1 core, 2 cores."""
    return f"{n} core{'s' if n > 1 else ''}"


def machine(record: dict) -> str:
    """A machine's short name."""
    cpu = re.sub(r"\((R|TM)\)| (CPU|Processor|@.*)", "", record["cpu"])
    return record["gpu"] or f"{cpu}, {cores(record['cores'])}"


def when(records: list[dict]) -> str:
    """The first and the last day."""
    days = {r["date"][:10] for r in records}
    return " to ".join(sorted({min(days), max(days)}))


def place(records: list[dict]) -> str:
    """Machines, dates and commits."""
    machines = [
        f"{gpu or 'no GPU'}, {cpu}, {cores(n)}" for cpu, n, gpu in groups(records, *MACHINE)
    ]
    commits = sorted({r["commit"] for r in records})
    return f"{' and '.join(machines)}; {when(records)}; commit {', '.join(commits)}"


def caption(records: list[dict], how: str) -> str:
    versions = max(values(records, "versions"), key=len).items()
    versions = ", ".join(f"{name} {version}" for name, version in versions)
    commands = dict.fromkeys(values(records, "session_command"))
    shown = ", ".join(f"`{command}`" for command in commands)
    return f"*{place(records)}; {versions}; {how}.* {shown}".strip()


def blocks(records: list[dict], table, says=lambda _: "") -> str:
    """Of each of the newest sessions: title, what it says, table and caption."""
    found = []
    for same in newest(records):
        if text := table(same):
            how = f"medians of {rounds(same)} interleaved rounds"
            title = f"`{same[0]['pair']}`, environments: {same[0]['num_envs']}. {says(same)}"
            found.append(f"{title.strip()}\n\n{text}\n\n{caption(same, how)}")
    return "\n\n".join(found)


def ratio(records: list[dict], base: list[dict]) -> float | None:
    """Median over rounds of steps/s over the base's in the same round; None without one."""
    base_sps = {r["round"]: r["sps"] for r in base}
    ratios = [r["sps"] / base_sps[r["round"]] for r in records if r["round"] in base_sps]
    return median(ratios) if ratios else None


def times(records: list[dict], base: list[dict], form: str = "{:.2f}") -> str:
    """The same as text, empty without one."""
    found = ratio(records, base)
    return "" if found is None else form.format(found)


def phase_ms(runs: list[dict], phase: str) -> float:
    """Median milliseconds of a phase in one iteration, after burn-in."""
    found = []
    for run in runs:
        args = run["args"]
        iterations = run["global_step"] // (args["num_envs"] * args["num_steps"])
        found.append(1000 * run["phase_s"][phase] / (iterations - args["measure_burnin"]))
    return median(found)


def rounds(records: list[dict]) -> str:
    """The fewest and the most rounds of these sessions: '5' or '3 to 5'."""
    counts = {max(values(same, "round")) for same in groups(records, "session").values()}
    return " to ".join(map(str, sorted({min(counts), max(counts)})))


def speed(sessions: list[list[dict]]) -> str:
    """The front page's steps/s, a row a pair, of one sitting."""
    rows, more = [], []

    def figure(runs):
        return f"{float(f'{sps(runs):.3g}'):,.0f}"

    for same in sessions:
        name, found = f"`{same[0]['pair']}`", columns(same, sps)
        lean = max((peer for peer in found if peer.startswith(LEANRL)), default=LEANRL)
        mode = f"`{lean.removeprefix(LEANRL).strip()}`".replace("``", EAGER)
        flags = {lean: mode, COMPILE: found.get(COMPILE, ([], ""))[1]}
        if same[0]["pair"] == MANY:  # which they have no script for
            flags |= {lean: f"{mode} (1 environment)", CLEANRL: "(1 environment)"}
        cells = [column for column in (EAGER, COMPILE, SB3, CLEANRL, lean)]
        cells = [f"{figure(found[x][0])} {flags.get(x, '')}" if x in found else "" for x in cells]
        rows.append([name, *map(str.strip, cells)])
        eager = found.get(EAGER, ([], ""))[0]
        if BFLOAT16 in found:
            runs = found[BFLOAT16][0]
            gain = times(runs, eager, " ({:.1f} times eager)")
            more.append(f"{name} {figure(runs)}{gain}")
    shown = [r for same in sessions for r in same]
    how = f"Steps/s of the whole loop, and ratios within a round: medians of {rounds(shown)} "
    how += f"interleaved rounds; {machine(shown[0])}, {when(shown)}"
    how += commits_of_old(shown, ", by the scripts of commit {}")
    if any(r["variant"] == CLEANRL for r in shown):
        how += "; peers with their own number of threads"
    alone = [values([r for r in same if r["variant"] == "simulator"]) for same in sessions]
    spread = max((max(found) / min(found) - 1 for found in alone if found), default=0)
    if spread > 0.1:
        how += f". The machine was shared: the environments alone differed by up to {spread:.0%}"
    table = rows_of(["script", EAGER, COMPILE, SB3, CLEANRL, LEANRL], rows)
    return f"{table}\n\n*{how}.*" + (f"\n\n*{BFLOAT16}: {', '.join(more)}.*" if more else "")


def first_minutes(records: list[dict]) -> str:
    """What the first panel of minutes() comes to: ours by many environments, and CleanRL's."""
    env_id = MINUTES_ENVS[0]
    methods = minutes(records).get(env_id, {})
    if not {MANY, CLEANRL} <= methods.keys():
        return ""
    took = {name: median(values(runs, "seconds")) / 60 for name, runs in methods.items()}
    to = {name: f"{np.mean(values(runs, 'mean_return')):,.0f}" for name, runs in methods.items()}
    n = methods[MANY][0]["cores"]
    where = {1: "one core", 2: "two cores"}.get(n, cores(n))
    text = f"A million steps of {env_id} take **{took[MANY]:.2g} minutes** of {where} and return "
    text += f"{to[MANY]}, by many environments and hyper-parameters for them. CleanRL's script "
    return f"{text}takes {took[CLEANRL]:.2g} minutes and returns {to[CLEANRL]}."


def headline(sessions: list[list[dict]]) -> str:
    """What one sitting comes to: the fast scripts by --compile over their eager siblings, and over
    CleanRL's script of the same name, each from the least pair to the most."""
    cases = {same[0]["pair"]: columns(same, sps) for same in sessions}

    def gains(base, pairs):
        found = [(x[COMPILE][0], x[base][0]) for x in pairs if {COMPILE, base} <= x.keys()]
        ends = sorted(ratio(*one) for one in found)
        return " to ".join(dict.fromkeys(f"{x:.2g}" for x in (*ends[:1], *ends[-1:])))

    eager = gains(EAGER, cases.values())
    cleanrl = gains(CLEANRL, [found for name, found in cases.items() if name != MANY])
    text = f"With {COMPILE} a fast script makes **{eager} times** its eager sibling's steps per "
    text += f"second. Of CleanRL's it makes {cleanrl} times as many."
    text += commits_of_old([r for same in sessions for r in same], " (Scripts of commit {}.)")
    return text if eager and cleanrl else ""


def gain(records: list[dict]) -> str:
    """What a session of one pair says: fast over eager, and the share of the simulator's steps/s;
    of an ablation, which of the tricks alone is missed most."""
    cases = columns([r for r in records if not r.get("group")], sps)
    if EAGER not in cases or COMPILE not in cases:
        return ""
    fast = cases[COMPILE][0]
    simulator = cases.get(NAMES["simulator"], ([], ""))[0]
    text = f"{COMPILE} runs {times(fast, cases[EAGER][0], '{:.1f}')} times as fast as eager"
    text += times(fast, simulator, ", at {:.2f} of the simulator's speed")
    off = groups([r for r in records if r.get("group") == "off"], "label")
    cost = {label: ratio(runs, fast) for (label,), runs in off.items()}
    worst = min(cost, key=cost.get, default=None)
    return text + (f"; {worst}: {cost[worst]:.2f} of that." if worst else ".")


def cases_table(records: list[dict]) -> str:
    """Of one session, pair and number of environments: each case's steps/s, start-up and phases."""
    eager = [r for r in records if r["variant"] == r["pair"] and not r.get("group")]
    base, of_base = [r for r in records if r["variant"] == "simulator"], "of the simulator"
    if full := [r for r in records if r.get("label") == "fast file, all on" and not r["group"]]:
        base, of_base = full, "of all on"
    rows = []
    for (group,), same in groups(records, "group").items():
        rows += [[f"**{GROUPS[group]}**"]] if group else []
        for (variant, name), runs in groups(same, "variant", "label").items():
            row = [name or label(variant), f"{sps(runs):,.0f}"]
            row += [f"{min(values(runs)):,.0f} to {max(values(runs)):,.0f}"]
            row += [times(runs, base), times(runs, eager)]
            starts = [values(same, "startup_s") for same in groups(runs, "cold_cache").values()]
            ms = [f"{phase_ms(runs, phase):.1f}" for phase in PHASES if "phase_s" in runs[0]]
            rows.append([*row, " / ".join(f"{median(s):.1f}" for s in starts if s), " + ".join(ms)])
    header = ["", "steps/s", "least to most", of_base, "of eager", "start-up, s"]
    return rows_of([*header, f"{' + '.join(PHASES)}, ms"], rows)


def floors_table(records: list[dict]) -> str:
    """Of one ablation and one pair: a lower bound of an iteration's time beside what was measured.

    Its simulator, arithmetic and bytes over the bus, one after the other, at the rates that the
    machine showed in the same session. Empty where none was measured.
    """
    floors, rows = [r for r in records if "flops_acting" in r], []
    for (group, name), runs in groups(records if floors else [], "group", "label").items():
        if group != "":
            continue
        need, args, device = floors[0], runs[0]["args"], runs[0]["device"]
        dtype = "bfloat16" if args.get("bfloat16") else "float32"
        rate = median(r["flops_per_s"][device][dtype] for r in floors)
        bus_rate = median(values(floors, "bus_bytes_per_s")) if device == "cuda" else math.inf
        work = (need["flops_acting"] / rate, need["bus_bytes"] / bus_rate)
        seconds = [1 / sps(floors), *work, need["flops_learning"] / rate]  # of a step
        ms = [f"{1000 * args['num_envs'] * args['num_steps'] * s:.1f}" for s in seconds]
        row = [name, f"{phase_ms(runs, 'rollout'):.1f}", *ms[:3]]
        row += [f"{phase_ms(runs, 'update'):.1f}", ms[3], f"{rate / 1e9:,.0f}"]
        rows.append([*row, f"{sps(runs):,.0f}", f"{sps(runs) * sum(seconds):.2f}"])
    header = ["", "rollout, ms", "simulator", "acting", "bus", "update, ms", "learning", "10⁹/s"]
    return rows_of([*header, "steps/s", "of the bound's"], rows) if rows else ""


def ranks_table(records: list[dict]) -> str:
    """Of one session and number of environments: the data-parallel pair's ranks and its parent."""
    rows, cases = [], groups(records, "variant", "ranks")
    for (variant, ranks), runs in cases.items():
        mode = variant.partition(":")[2]
        (alone,) = (x for (name, n), x in cases.items() if not n and name.partition(":")[2] == mode)
        shares = values(runs, "all_reduce_share")
        row = [label(variant), str(ranks or "parent"), f"{sps(runs):,.0f}"]
        row += [f"{min(values(runs)):,.0f} to {max(values(runs)):,.0f}", times(runs, alone)]
        ms = [f"{phase_ms(runs, phase):.1f}" for phase in PHASES]
        rows.append([*row, f"{100 * median(shares):.0f}%" if shares else "", " + ".join(ms)])
    header = ["", "ranks", "steps/s", "least to most", "of the parent", "in all_reduce"]
    return rows_of([*header, f"{' + '.join(PHASES)}, ms"], rows)


def difference(a, b) -> np.ndarray:
    """Mean of b minus mean of a, along the last axis."""
    return np.mean(b, -1) - np.mean(a, -1)


def bootstrap(statistic, *samples: list[float]) -> tuple[float, float]:
    """95% interval of a statistic, each sample drawn anew with replacement 10,000 times."""
    rng = np.random.default_rng(0)
    drawn = [rng.choice(sample, (10_000, len(sample))) for sample in samples]
    low, high = np.percentile(statistic(*drawn), [2.5, 97.5])
    return float(low), float(high)


def seeds_as_one(runs: list[dict], points: int = 50) -> np.ndarray:
    """Curves of several seeds as one, (4, points): environment steps; means over seeds of the
    seconds until then; mean and standard deviation of the returns since the last point."""
    ends = np.linspace(0, runs[0]["total_timesteps"], points + 1)
    seconds, rows = [], []
    for steps, at, returns in (np.transpose(run["curve"]) for run in runs):
        bins = np.searchsorted(ends, steps) - 1
        means = {x: returns[bins == x].mean() for x in sorted({*bins})}
        # where no episode ended, a line between its neighbours
        rows.append(np.interp(range(points), list(means), list(means.values())))
        seconds.append(np.interp(ends[1:], steps, at))
    return np.array(
        [ends[1:], np.mean(seconds, 0), np.mean(rows, 0), np.std(rows, 0, ddof=len(rows) > 1)]
    )


def permutation_p(a: list[float], b: list[float]) -> float:
    """Two-sided p of the difference of means, from 20,000 random deals to sides of these sizes."""
    deals = np.random.default_rng(0).permuted(np.tile([*a, *b], (20_000, 1)), axis=1)
    found = abs(difference(deals[:, : len(a)], deals[:, len(a) :]))
    return float((1 + (found >= abs(difference(a, b)) - 1e-9).sum()) / (1 + len(deals)))


def over_seeds(runs: list[dict]) -> str:
    """Mean ± standard deviation; the number of seeds."""
    if not runs:
        return ""
    found = values(runs, "mean_return")
    std = np.std(found, ddof=1) if len(found) > 1 else None
    return f"{spread(np.mean(found), std)} ({len(found)} seed{'s' * (len(found) > 1)})"


def spread(mean: float, std: float | None) -> str:
    """Mean ± standard deviation."""
    form = ",.0f" if abs(mean) >= 100 else ",.1f"
    return f"{mean:{form}}" + (f" ± {std:{form}}" if std is not None else "")


def task(runs: list[dict], records: list[dict]) -> list[str]:
    """The first cells of a row: what was learned, where if there are several machines, and in how
    many steps; of runs that were cut, after the fewest and the most of the schedule's."""
    ends = [f"{step:,}" for step in sorted({r["global_step"] for r in runs if r["cut"]})]
    some = f"{' to '.join(ends[:1] + ends[1:][-1:])} of " if ends else ""
    where = f", {machine(runs[0])}" if len(groups(records, *MACHINE)) > 1 else ""
    return [runs[0]["env_id"] + where, f"{some}{runs[0]['total_timesteps']:,}"]


def reach(runs: list[dict]) -> int:
    """The most steps that one of them took, or was to take."""
    return max(r["global_step"] if r["cut"] else r["total_timesteps"] for r in runs)


def tuned(record: dict) -> bool:
    """A run of ours that would need flags of hyper-parameters today."""
    return ours(record) and bool(part(as_of_today(record))[2])


def plain(records: list[dict]) -> list[dict]:
    """Our runs by default flags, whatever their mode."""
    return [r for r in records if ours(r) and "+no-" not in r["variant"] and not tuned(r)]


def returns(records: list[dict]) -> str:
    """The front page's returns, beside those that CleanRL has published: by default flags, after as
    many steps, SEEDS or more; of each pair and environment those of the machine with most runs."""
    best: dict[tuple, list[str]] = {}
    theirs = [r for same in learned(records) for r in same if r["variant"] == CLEANRL]
    newest_last = sorted(learned(plain(records)), key=lambda same: max(r["date"] for r in same))
    for same in sorted(newest_last, key=len):
        name, env_id = same[0]["pair"], same[0]["env_id"]
        mean, std, steps = PUBLISHED.get(env_id, (0, 0, 0))
        found = columns(same, len)
        sides = [found.get(column, ([], ""))[0] for column in (EAGER, COMPILE)]
        cells = [over_seeds(runs) if len(runs) >= SEEDS else "" for runs in sides]
        if steps == same[0]["total_timesteps"] and not same[0]["cut"] and any(cells):
            first = [f"`{name}`, {env_id}", f"{steps / 1e6:g}M"]
            again = [r for r in theirs if (r["env_id"], r["total_timesteps"]) == (env_id, steps)]
            again = [r for r in again if same[0]["pair"] in (MANY, r["pair"]) and not r["cut"]]
            here = over_seeds(again) if len(again) >= SEEDS else ""
            best[name, env_id] = [*first, *cells, here, spread(mean, std)]
    header = ["script and environment", "steps", EAGER, COMPILE, "CleanRL's here"]
    header.append("CleanRL's published")
    table = rows_of(header, [best[task] for task in sorted(best)])
    how = "Mean return of the last 100 episodes, ± standard deviation over seeds"
    return f"{table}\n\n*{how}; [published]({SOURCE}): 3 seeds.*" if best else ""


def on_front(run: dict) -> bool:
    """Whether the front page's choice of a script gives the figures of this run of learned()."""
    *_, env_id, steps, mode = WHICH.get(run["pair"], ("", 0, ""))
    wanted = f"{run['pair']}_torchcompile:{mode}", env_id, steps
    found = tuple(run[field] for field in ("variant", "env_id", "total_timesteps"))
    return found == wanted and not run["cut"]


def which(records: list[dict], edges, parents: dict) -> str:
    """The front page's choice of a script: what it is for, edges(pair), and what runs of its fast
    script came to, on the machine of the newest of them; in how many minutes, by its last day."""
    rows, shown = [], []
    of_front = [r for same in learned(records) for r in same if on_front(r)]
    for name, (envs, actions, env_id, *_) in WHICH.items():
        runs = [r for r in of_front if r["pair"] == name]
        where, took = machine(max(runs, key=lambda r: r["date"])) if runs else "", ""
        runs = [r for r in runs if machine(r) == where]
        if runs:
            shown.append(runs[0])
            seconds = median(values(last_day(runs), "seconds"))
            took = f"{env_id}: {over_seeds(runs)}, {seconds / 60:.2g} minutes, "
            took += cores(runs[0]["cores"])
        down, aside = edges(name)
        down += f" from `{parents[name]}`" if parents.get(name) else ""
        fast = f"[{aside}](ppo/{name}_torchcompile.py)"
        rows.append([f"[`{name}`](ppo/README.md#{name})", envs, actions, down, fast, took])
    where = " and ".join(dict.fromkeys(machine(r).rpartition(",")[0] for r in shown))
    header = ["script", "environments, simulator", "actions", "changed lines"]
    header += ["changed to make it fast", "return and time" + f" on {where}" * bool(where)]
    return rows_of(header, rows)


def last_day(runs: list[dict]) -> list[dict]:
    """Those that ended within a DAY before the last one."""
    ended = [datetime.fromisoformat(r["date"]) for r in runs]
    return [r for r, end in zip(runs, ended, strict=True) if max(ended) - end <= DAY]


def minutes(records: list[dict]) -> dict[str, dict[str, list[dict]]]:
    """{environment: {method: its first SEEDS seeds}} of finished runs of 1M steps, each
    environment's of the DAY before its last one, of the machine that made the most of MINUTES."""
    chosen = [r for r in records if r["total_timesteps"] == 1_000_000 and r["until"] is None]
    runs = [r for same in learned(chosen) for r in same if r["curve"]]
    found = []
    for same in groups(runs, *MACHINE).values():
        panels = {}
        for env_id in MINUTES_ENVS:
            of_env = [r for r in same if r["env_id"] == env_id]
            cases = groups(last_day(of_env), "pair", "variant")
            methods = {name: cases.get(key, [])[:SEEDS] for name, key in MINUTES.items()}
            methods = {name: r for name, r in methods.items() if r}
            panels |= {env_id: methods} if methods else {}
        last = max(r["date"] for r in same)
        found.append((sum(map(len, panels.values())), last, panels))
    return max(found, key=lambda one: one[:2], default=(0, "", {}))[2]


def after(run: dict, seconds: float) -> float | None:
    """Mean return of the episodes that ended in the last 10 seconds up to this one of a run."""
    found = [value for _, at, value in run["curve"] if seconds - 10 < at <= seconds]
    return float(np.mean(found)) if found else None


def seconds_to(target: float, run: dict) -> float:
    """Seconds after which the mean return of 50,000 steps first got to the target; inf if none."""
    steps, seconds, returns = np.array(run["curve"]).T
    means = [returns[(steps > step - 50_000) & (steps <= step)].mean() for step in steps]
    return float(np.where(np.array(means) >= target, seconds, np.inf).min())


def alone(records: list[dict]) -> list[dict]:
    """Learning runs that had two cores to themselves."""
    return [r for r in records if (r["cores"], r.get("jobs")) == (2, 1)]


def target_table(records: list[dict]) -> str:
    """Seconds to a task's target return, of all runs that had two cores to themselves; and what the
    last checkpoint scored, if it was asked to play."""
    rows = []
    for same in learned([r for r in alone(records) if r["env_id"] in TARGETS]):
        target = TARGETS[same[0]["env_id"]]
        for (variant,), runs in groups(same, "variant").items():
            found = [seconds_to(target, run) for run in runs]
            times = [f"{s:,.0f}" if s < np.inf else "not reached" for s in (median(found), *found)]
            each = ", ".join(f"{r['seed']}: {s}" for r, s in zip(runs, times[1:], strict=True))
            games = [(r["seed"], r["eval"]) for r in runs if "eval" in r]
            form = "{0}: {mean:,.2f} ± {std:,.2f} ({episodes} episodes)".format
            end = ", ".join(form(seed, **found) for seed, found in games)
            row = [label(variant), *task(runs, records), f"{target:,}", times[0], each]
            rows.append([*row, end])
    return rows_of(["", "", "steps", "return", "s, median", "each seed", "at the end"], rows)


def scaling_table(records: list[dict]) -> str:
    """Of what was learned with other numbers of environments, and today's defaults for the rest:
    steps/s, returns at equal seconds."""
    rows, times = [], (30, 45, 60)
    sizes = {"--num-envs", "--num-steps", "--num-minibatches"}
    with_n = [r for r in records if {"--num-envs"} <= {*part(r["variant"])[2][::2]} <= sizes]
    of_today = [r for r in with_n if as_of_today(r) == r["variant"] and not r["until"]]
    for same in learned(of_today):
        cases = groups(same, "variant").values()
        if len(cases) == 1:
            continue
        for runs in sorted(cases, key=lambda runs: runs[0]["args"]["num_envs"]):
            args = runs[0]["args"]
            row = [same[0]["env_id"], f"{args['num_envs']} x {args['num_steps']}"]
            row += [str(args["num_minibatches"]), f"{sps(runs):,.0f}"]
            for seconds in times:
                found = [x for x in (after(run, seconds) for run in runs) if x is not None]
                row.append(f"{np.mean(found):,.0f}" if found else "")
            rows.append([*row, over_seeds(runs)])
    header = ["", "N x T", "minibatches", "steps/s"]
    return rows_of([*header, *(f"after {s} s" for s in times), "at the end"], rows)


def learning_table(records: list[dict]) -> str:
    """Each script's returns over seeds, and by how much its mean differs from its eager sibling's:
    with a bootstrap interval, and with a permutation test's p where there are enough seeds. Runs
    that were cut ended at steps of their own, and are not compared."""
    rows = []
    for same in learned(records):
        cases = groups(same, "variant")
        for (variant,), runs in cases.items():
            compared = variant != pair(variant) and not runs[0]["cut"]
            eager = cases.get((pair(variant),), []) if compared else []
            a, b, apart = values(eager, "mean_return"), values(runs, "mean_return"), ""
            if min(len(a), len(b)) > 1:
                low, high = bootstrap(difference, a, b)
                apart = f"{difference(a, b):+,.1f} [{low:+,.1f} to {high:+,.1f}]"
            if min(len(a), len(b)) >= ENOUGH:
                apart += f", p = {permutation_p(a, b):.3f}"
            each = ", ".join(f"{r['seed']}: {r['mean_return']:,.1f}" for r in runs)
            first = [*task(runs, records), label(variant)]
            rows.append([*first, over_seeds(runs), each, apart])
    return rows_of(
        ["", "steps", "script", "return", "each seed", "minus eager [95% interval]"], rows
    )
