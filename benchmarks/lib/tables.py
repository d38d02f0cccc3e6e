"""What the records say, as Markdown tables and sentences."""

import itertools
import json
import math
import re
from collections import Counter, defaultdict
from statistics import median

import numpy as np
from lib.choose import (
    BFLOAT16,
    CLEANRL,
    COMPILE,
    EAGER,
    EAGER_VERSION,
    ENOUGH,
    FAST_VERSION,
    GROUPS,
    LADDERS,
    LEANRL,
    MACHINE,
    MANY,
    MORE,
    NAMES,
    PHASES,
    PUBLISHED,
    SB3,
    SEEDS,
    SOURCE,
    TARGETS,
    alone,
    bonuses,
    columns,
    commits_of_old,
    effects,
    label,
    learned,
    newest,
    on_front,
)
from lib.pairs import PAIRS
from lib.recipes import AGAIN, command, recipes, runs_of, trials_of
from lib.records import ROOT, code, defaults, pair, part
from lib.stats import (
    across,
    bootstrap,
    difference,
    first_at,
    groups,
    holm,
    iqm,
    mean_std,
    over_seeds,
    permutation_p,
    phase_ms,
    ratio,
    rounds,
    seconds_to,
    spread,
    sps,
    times,
    values,
)


def rows_of(header: list[str], rows: list[list[str]], text: int = 1) -> str:
    """A Markdown table, its first columns text, the others numbers and to the right."""
    rule = [*["---"] * text, *["--:"] * (len(header) - text)]
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
            n = rounds(same)
            how = "one round" if n == "1" else f"medians of {n} interleaved rounds"
            title = f"`{same[0]['pair']}`, environments: {same[0]['num_envs']}. {says(same)}"
            found.append(f"{title.strip()}\n\n{text}\n\n{caption(same, how)}")
    return "\n\n".join(found)


def of_systems(same: list[dict]) -> dict[str, list[dict]]:
    """A session's runs by system, in the order of the tables: ours, then other people's."""
    found = {name: runs for name, (runs, _) in columns(same, sps).items()}
    names = {EAGER: EAGER_VERSION, COMPILE: FAST_VERSION, BFLOAT16: f"{FAST_VERSION}, bfloat16"}
    order = [EAGER, COMPILE, BFLOAT16, SB3, CLEANRL, LEANRL, f"{LEANRL} --compile"]
    # beside 64 environments CleanRL and LeanRL have no script
    order = order[:4] if same[0]["pair"] == MANY else order
    return {names.get(name, name): found[name] for name in order if name in found}


def moved(sessions: list[list[dict]]) -> str:
    """Of which pairs the simulator's own speed differed between rounds by more than a tenth."""
    alone = {
        same[0]["pair"]: values([r for r in same if r["variant"] == "simulator"])
        for same in sessions
    }
    apart = {name: max(found) / min(found) - 1 for name, found in alone.items() if found}
    shared = ", ".join(f"`{name}` by {x:.0%}" for name, x in apart.items() if x > 0.1)
    return f"; the simulator's own speed differed between rounds of {shared}" * bool(shared)


def speeds(sessions: list[list[dict]]) -> str:
    """Steps/s of one sitting, a row a system."""
    rows = []
    for same in sessions:
        systems = of_systems(same)
        eager = systems.get(EAGER_VERSION, [])
        simulator = [r for r in same if r["variant"] == "simulator"]
        for name, runs in systems.items():
            row = [f"`{same[0]['pair']}`", name, f"{float(f'{sps(runs):.3g}'):,.0f}"]
            starts = values([r for r in runs if r.get("cold_cache")], "startup_s")
            took = f"{(median(starts) + 1e6 / sps(runs)) / 60:.2g}" if starts else ""
            rows.append([*row, times(runs, eager), times(runs, simulator), took])
    shown = [r for same in sessions for r in same]
    how = f"{machine(shown[0])}, {when(shown)}; medians of {rounds(shown)} interleaved rounds"
    how += commits_of_old(shown, "; by the scripts of commit {}")
    how += moved(sessions)
    single = [f"`{same[0]['pair']}`" for same in sessions if rounds(same) == "1"]
    how += f"; a single round of {', '.join(single)}" * (single != [] and len(sessions) > 1)
    uneven = []
    for same in sessions:
        for name, runs in of_systems(same).items():
            least, most = min(values(runs)), max(values(runs))
            if most > 1.5 * least:
                uneven.append(f"{name} of `{same[0]['pair']}` {least:,.0f} to {most:,.0f}")
    if uneven:
        how += f"; steps/s of {', '.join(uneven)}"
    header = ["script", "system", "steps/s", "times eager", "of the simulator", "1M steps, minutes"]
    return f"{rows_of(header, rows, text=2)}\n\n*{how}.*"


def front(sessions: list[list[dict]]) -> str:
    """The front page's steps/s: a row a system, a column a task, with the simulator's share."""
    tasks = ["ppo", "ppo_continuous_action", MANY, "ppo_atari_envpool"]
    names = [FAST_VERSION, EAGER_VERSION, f"{LEANRL} --compile", CLEANRL, SB3]
    found = {same[0]["pair"]: same for same in sessions}
    shown = [name for name in tasks if name in found]
    rows = [[name] for name in [*names, NAMES["simulator"]]]
    for name in shown:
        systems = of_systems(found[name])
        alone = [r for r in found[name] if r["variant"] == "simulator"]
        for row in rows:
            runs = alone if row[0] == NAMES["simulator"] else systems.get(row[0], [])
            share = f" ({times(runs, alone)})" if runs and runs is not alone else ""
            row.append(f"{float(f'{sps(runs):.3g}'):,.0f}{share}" if runs else "")
    runs = [r for name in shown for r in found[name]]
    how = f"{machine(runs[0])}, {when(runs)}; medians of {rounds(runs)} interleaved rounds"
    how += commits_of_old(runs, "; by the scripts of commit {}")
    header = [""]
    for name in shown:
        env_id, envs = defaults(name)["env_id"], defaults(name)["num_envs"]
        header.append(f"{env_id}, {envs} environment{'s' * (envs > 1)}")
    how = f"Steps/s, in brackets their share of the simulator's in the same round; {how}"
    return f"{rows_of(header, rows)}\n\n*{how}.*"


def speedup(sessions: list[list[dict]]) -> str:
    """By how much fast versions are faster than eager ones, from the least pair to the most, and
    than what others have compiled too."""
    cases = [of_systems(same) for same in sessions]
    both = [x for x in cases if {EAGER_VERSION, FAST_VERSION} <= x.keys()]
    gains = {x[EAGER_VERSION][0]["pair"]: ratio(x[FAST_VERSION], x[EAGER_VERSION]) for x in both}
    if not gains:
        return ""
    apart = {name: gains.pop(name) for name in MORE if name in gains and len(gains) > 1}
    ends = [f"{x:.2g}" for x in (min(gains.values()), max(gains.values()))]
    text = f"Over {len(gains)} pairs, a fast version with `--compile` makes "
    text += f"{' to '.join(dict.fromkeys(ends))} times the steps per second of its eager version"
    text += " ([their commits](../benchmarks/README.md#steps-per-second))."
    for name, gain in apart.items():
        text += f" `{name}` makes {gain:.2g} times as many, as {MORE[name]}"
        found = next(x for x in both if x[EAGER_VERSION][0]["pair"] == name)
        if "lstm" in name and SB3 in found:
            text += f": {ratio(found[FAST_VERSION], found[SB3]):.2g} times those of RecurrentPPO"
        text += "."
    compiled = f"{LEANRL} --compile"
    found = {x[EAGER_VERSION][0]["pair"]: x for x in both if compiled in x}
    if found:
        beside = [
            f"{ratio(x[FAST_VERSION], x[compiled]):.1f} times as many on `{name}`"
            for name, x in found.items()
        ]
        text += f" Beside {LEANRL} with `--compile`, ours makes {' and '.join(beside)}."
    return text


def break_even(sessions: list[list[dict]]) -> str:
    """From how many steps on a run of the fast version ends sooner: its longer start-up, over the
    seconds that it gains a step. With an empty cache of compiled code, and with a full one."""
    rows = []
    for same in sessions:
        systems = of_systems(same)
        if not {EAGER_VERSION, FAST_VERSION} <= systems.keys():
            continue
        eager, fast = systems[EAGER_VERSION], systems[FAST_VERSION]
        gained = 1 / sps(eager) - 1 / sps(fast)
        row = [f"`{same[0]['pair']}`"]
        for cold in (True, False):
            starts = values([r for r in fast if r["cold_cache"] == cold], "startup_s")
            wait = median(starts) - median(values(eager, "startup_s")) if starts else math.nan
            steps = f"{max(wait, 0) / gained / 1e6:.2g}M" if gained > 0 else "never"
            row += [f"{wait:.0f}", steps] if starts else ["", ""]
        rows.append(row)
    header = ["script", "empty cache: compiling, s", "pays from, steps"]
    return rows_of([*header, "full cache: s", "pays from, steps"], rows)


def devices(gpu: list[dict], together: list[list[dict]]) -> str:
    """Breakout with 8 games on each GPU and on a CPU: steps/s, share of the simulator, start-up."""
    fast = "ppo_atari_envpool_torchcompile"
    systems = {  # what a GPU ran, and what a CPU
        FAST_VERSION: (f"{fast}:compile+cudagraphs", f"{fast}:compile"),
        EAGER_VERSION: ("ppo_atari_envpool", "ppo_atari_envpool"),
        LEANRL: (f"{LEANRL} --compile --cudagraphs", f"{LEANRL} --compile"),
        CLEANRL: (CLEANRL, CLEANRL),
        NAMES["simulator"]: ("simulator", "simulator"),
    }
    on_eight = [r for r in gpu if (r["pair"], r["num_envs"]) == ("ppo_atari_envpool", 8)]
    sessions = [  # of each GPU the one of most systems, of these the newest
        max(groups(same, "session").values(), key=lambda x: (len(x), x[0]["session"]))
        for same in groups(on_eight, *MACHINE).values()
    ]
    cpu = [same for same in together if same[0]["pair"] == "ppo_atari_envpool"]
    header, rows, how = ["Breakout, 8 games"], {name: [name] for name in systems}, []
    for same in sorted(sessions, key=lambda x: x[0]["date"]) + cpu:
        on_gpu = same[0]["gpu"] is not None
        alone = [r for r in same if r["variant"] == "simulator"]
        name = machine(same[0]).removesuffix(" 80GB HBM3")
        header += [name]
        for system, variants in systems.items():
            runs = [r for r in same if r["variant"] == variants[not on_gpu]]
            cell = f"{sps(runs):,.0f} ({times(runs, alone)})" if runs else ""
            waits = values(runs, "startup_s")
            rows[system] += [f"{cell}, {max(waits):.0f} s" if waits else cell]
        n = rounds(same)
        beside = f" with {cores(same[0]['cores'])} beside it" * on_gpu
        ran = f"{name}{beside}: {n} round{'s' * (n != '1')}, {when(same)}"
        how.append(ran + commits_of_old(same, ", by the scripts of commit {}"))
    what = "Steps/s, in brackets over those of the simulator; seconds of start-up"
    return f"{rows_of(header, list(rows.values()))}\n\n*{what}. {'; '.join(how)}.*"


def small(gpu: list[dict]) -> str:
    """Scripts of small networks on a GPU and on the CPU beside it: steps/s."""
    sides = {  # what the record of a fast version and that of an eager one are called
        "on the GPU": ("_torchcompile:compile+cudagraphs", ""),
        "on its CPU": ("_torchcompile:compile+no-cuda", ":no-cuda"),
    }
    header, rows, shown = ["script"], [], []
    for side in sides:
        header += [f"{what} {side}" for what in (FAST_VERSION, EAGER_VERSION)]
    found = [r for r in gpu if "atari" not in r["pair"] and "warp" not in r["pair"]]
    for (name,), same in groups(found, "pair").items():
        rows.append([f"`{name}`"])
        for end in itertools.chain(*sides.values()):
            runs = [r for r in same if r["variant"] == name + end]
            rows[-1].append(f"{sps(runs):,.0f}" if runs else "")
            shown += runs
    how = f"{machine(shown[0])}, {cores(shown[0]['cores'])} for each run; {rounds(shown)} round, "
    how += when(shown) + commits_of_old(shown, ", by the scripts of commit {}")
    return f"{rows_of(header, rows)}\n\n*{how}.*"


def worlds(gpu: list[dict]) -> str:
    """MuJoCo Warp on a GPU: steps/s of the newest session, with their share of the simulator."""
    sessions = groups([r for r in gpu if "warp" in r["pair"]], "session")
    same = sessions[max(sessions)]
    alone = [r for r in same if r["variant"] == "simulator"]
    rows = []
    for (variant,), runs in groups(same, "variant").items():
        name, _, flags = variant.partition(":")
        script = NAMES.get(name) or f"`{name} {' '.join(f'--{x}' for x in flags.split('+'))}`"
        wait = [f"{x:.0f}" for x in values(runs, "startup_s")] or [""]
        rows.append([script, f"{sps(runs):,.0f}", times(runs, alone), wait[-1]])
    header = [f"{same[0]['num_envs']:,} worlds", "steps/s", "of the simulator", "start-up, s"]
    how = f"{machine(same[0])}, {rounds(same)} round, {when(same)}"
    how += commits_of_old(same, ", by the scripts of commit {}")
    return f"{rows_of(header, rows)}\n\n*{how}.*"


def took(runs: list[dict]) -> str:
    """Median minutes."""
    return f"{median(values(runs, 'seconds')) / 60:.2g}"


def of_most_seeds(records: list[dict]) -> dict[tuple[str, str], list[dict]]:
    """{(environment, system): its runs} after as many steps as CleanRL has published, by default
    flags: those of the machine with most runs, SEEDS or more; of as many the newest."""
    best: dict[tuple, list[dict]] = {}

    def rank(runs):
        return len(runs), max((r["date"] for r in runs), default="")

    finished = [r for same in learned(records) for r in same if not r["cut"]]
    finished = [r for r in finished if not r.get("learning_rate_dtype")]  # of today's dtype
    for (env_id, variant, of_pair, _), same in groups(
        finished, "env_id", "variant", "pair", "cpu"
    ).items():
        steps = PUBLISHED.get(env_id, (0, 0, 0))[2]
        same = sorted((r for r in same if r["total_timesteps"] == steps), key=lambda r: r["date"])
        if variant.startswith("ppo"):  # of ours the last of a seed, on however many cores
            same = {r["seed"]: r for r in same}.values()
        runs = [*same]
        name = NAMES.get(variant, variant) + ", 64 environments" * (of_pair == MANY)
        if variant.startswith("ppo"):
            script, mode, flags = part(variant)
            if flags or mode not in ("", "compile") or (script != of_pair) != (mode == "compile"):
                continue  # neither the eager version nor the fast one by default flags
            name = f"`{of_pair}`, {'fast' if mode else 'eager'}"
        before = best.get((env_id, name), [])
        if len(runs) >= SEEDS and rank(runs) > rank(before):
            best[env_id, name] = runs
    return best


def returns(records: list[dict]) -> str:
    """Returns after as many steps as CleanRL has published: a row an environment and system."""
    best, rows = of_most_seeds(records), []
    for env_id, (mean, std, _) in PUBLISHED.items():
        found = {name: runs for (of_env, name), runs in best.items() if of_env == env_id}
        for name, runs in sorted(found.items(), key=lambda one: (one[0][0] != "`", one[0])):
            where = machine(runs[0]).partition(",")[0]
            cells = [spread(*mean_std(runs)), str(len(runs)), f"{where}, {when(runs)}"]
            rows.append([env_id, name, *cells])
        if found:
            rows.append([env_id, f"CleanRL, [published]({SOURCE})", spread(mean, std), "3", ""])
    return rows_of(["environment", "system", "return", "runs", "machine, days"], rows, text=2)


def apart(records: list[dict]) -> str:
    """By how much fast versions end above eager ones, with as many seeds as both have on one kind
    of processor: ENOUGH or more. A row an environment and pair."""
    best, rows = of_most_seeds(records), []
    for env_id, name in best:
        script, _, version = name.partition(", ")
        one, two = best[env_id, name], best.get((env_id, f"{script}, fast"), [])
        if version.startswith("eager") and two and one[0]["cpu"] == two[0]["cpu"]:
            by_seed = (sorted(runs, key=lambda r: r["seed"]) for runs in (one, two))
            a, b = (values(runs, "mean_return") for runs in by_seed)
            if min(len(a), len(b)) >= ENOUGH and len({*a, *b}) > 1:
                low, high = (short(x, 100) for x in bootstrap(difference, a, b))
                found = f"{difference(a, b):+,.0f} [{low} to {high}]"
                seeds = str(len(a)) if len(a) == len(b) else f"{len(a)} and {len(b)}"
                shown = [env_id, name.replace(", eager", ""), found]
                rows.append([*shown, f"{permutation_p(a, b):.2f}", seeds])
    header = ["environment", "script", "fast minus eager [95% interval]", "p", "seeds each"]
    return rows_of(header, rows, text=2)


def chance(p: float) -> str:
    """A p value, to three digits."""
    return "< 0.001" if p < 0.0005 else f"{p:.3f}"


def compared(records: list[dict]) -> tuple[dict, list[str], list[str], dict]:
    """Of effects: the runs, the tasks, the ideas, those with the largest mean gain first, and by
    (idea, task) p after Holm's correction for all of them."""
    found = effects(records)
    tasks = list(dict.fromkeys(env_id for _, env_id in found))
    chances = {
        (idea, env_id): permutation_p(*returns_of(found, idea, env_id))
        for idea, env_id in found
        if idea != "none"
    }
    corrected = dict(zip(chances, holm([*chances.values()]), strict=True))
    ideas = {idea: over_tasks(found, idea, tasks)[0] for idea, _ in chances}
    return found, tasks, sorted(ideas, key=lambda idea: -ideas[idea]), corrected


def returns_of(found: dict, idea: str, env_id: str) -> tuple[list[float], list[float]]:
    """Returns on a task without an idea, and with it."""
    return tuple(values(found[x, env_id], "mean_return") for x in ("none", idea))


def over_tasks(found: dict, idea: str, tasks: list[str]) -> tuple[float, float, float, float]:
    """What `across` says of an idea, over the tasks that it was tried on."""
    return across([returns_of(found, idea, x) for x in tasks if (idea, x) in found])


def effects_table(records: list[dict]) -> str:
    """What each patch of ppo/ideas changes over its tasks, and on which beyond chance: a row an
    idea, the largest gain first."""
    found, tasks, ideas, corrected = compared(records)
    if not ideas:
        return ""
    overall = {idea: over_tasks(found, idea, tasks) for idea in ideas}
    sure = dict(zip(ideas, holm([overall[idea][3] for idea in ideas]), strict=True))
    rows = []
    for idea in ideas:
        its = [x for x in tasks if (idea, x) in found]
        speeds = [[np.median(values(found[y, x])) for y in (idea, "none")] for x in its]
        speed = np.mean([fast / plain for fast, plain in speeds])
        change, low, high, p = overall[idea]
        cell = f"{change:+.0%} [{low:+.0%} to {high:+.0%}]"
        cell = f"{f'**{cell}**' if sure[idea] < 0.05 else cell}, {chance(p)}"
        beyond = [
            f"{x} {difference(*returns_of(found, idea, x)):+,.0f}"
            for x in its
            if corrected[idea, x] < 0.05
        ]
        link, count = f"[`{idea}`]({idea}.patch)", changed_lines(idea)
        rows.append([link, f"{count}", f"{speed:.2f}", f"{cell} ({len(its)})", "; ".join(beyond)])
    runs = [r for same in found.values() for r in same]
    counts = sorted({len(same) for same in found.values()})
    how = f"{machine(runs[0])} a run, {when(runs)}; seeds each: {' to '.join(map(str, counts))}"
    how += f"; bold where p is below 0.05 after Holm's correction for {len(ideas)} ideas, beyond "
    how += f"chance where it is so for {len(corrected)} pairs of an idea and a task"
    header = ["idea", "lines", "steps/s", "mean change [95%], p (tasks)", "beyond chance on"]
    return f"{rows_of(header, rows)}\n\n*{how}.*"


def effects_by_task(records: list[dict]) -> str:
    """What each patch of ppo/ideas changes on each task, for the log."""
    found, tasks, ideas, corrected = compared(records)
    if not ideas:
        return ""
    rows = [["without", *(spread(*mean_std(found["none", x])) for x in tasks)]]
    for idea in ideas:
        cells = []
        for x in tasks:
            if (idea, x) in found:
                a, b = returns_of(found, idea, x)
                low, high = bootstrap(difference, a, b)
                cell = f"{difference(a, b):+,.0f} [{low:+,.0f} to {high:+,.0f}]"
                cell = f"**{cell}**" if corrected[idea, x] < 0.05 else cell
                cells.append(f"{cell}, {chance(permutation_p(a, b))}")
            else:
                cells.append("")
        rows.append([f"`{idea}`", *cells])
    return rows_of(["idea", *(f"`{x}`" for x in tasks)], rows)


def forks_table(records: list[dict]) -> str:
    """The front page's: five patches of ppo/ideas, their lines, and the returns with each."""
    (found, *_, chances), env_id = compared(records), "HalfCheetah-v4"
    names = [
        x for x in "layernorm batch_norm_adv dual_clip spo rpo".split() if (x, env_id) in found
    ]
    if not names:
        return ""
    plain = found["none", env_id]
    rows = [["`ppo_continuous_action_envpool`", "", spread(*mean_std(plain)), ""]]
    for name in names:
        a, b = (values(x, "mean_return") for x in (plain, found[name, env_id]))
        ends = " to ".join(f"{x:+,.0f}" for x in bootstrap(difference, a, b))
        link = f"`--patch` [`{name}`](ppo/ideas/{name}.patch)"
        row = [spread(*mean_std(found[name, env_id])), f"{difference(a, b):+,.0f} [{ends}]"]
        rows.append([link, str(changed_lines(name)), *row])
    header = ["a [fork](ppo/ideas/README.md)", "lines", f"{env_id}, 1M steps", "difference [95%]"]
    first, *_, last = sorted(r["seed"] for r in plain)
    where = f"{machine(plain[0])} a run, {when([r for x in found.values() for r in x])}; "
    sure = [f"`{name}`" for name in names if chances[name, env_id] < 0.05]
    where += (
        f"seeds {first} to {last}, not those above; after Holm's correction for {len(chances)} "
    )
    where += f"comparisons of all ideas, beyond chance for {' and '.join(sure) or 'none'}"
    return f"{rows_of(header, rows)}\n\n*{where}.*"


def families_table(records: list[dict]) -> str:
    """EnvPool's ids by family: how many each script takes, and why none takes the rest."""
    scripts = ["ppo_envpool", "ppo_continuous_action_envpool", "ppo_atari_envpool", "ppo_pixels"]
    rows = []
    for (family,), ids in groups(records, "family").items():
        taken = [sum(r["script"] == name for r in ids) for name in scripts]
        why = Counter(r["reason"] for r in ids if r["reason"])
        left = "; ".join(f"{n}: {words}" for words, n in why.most_common())
        rows.append([f"`{family}`", str(len(ids)), *(str(n or "") for n in taken), left])
    header = ["family", "ids", *(f"`{name}`" for name in scripts), "by none"]
    table = rows_of(header, rows)
    version = records[0]["versions"]["envpool"]
    return f"{table}\n\n*EnvPool {version}, {when(records)}, by `benchmarks/families.py`.*"


def faults_table(records: list[dict]) -> str:
    """What a fault of one world of 64 does to the others: runs that finished, and their returns."""
    rows = []
    for (fault,), same in groups(records, "fault").items():
        row = [fault]
        for _, runs in groups(same, "system").items():
            ended = [r["return"] for r in runs if r["finished"]]
            told = sorted({r["said"].partition(":")[0] for r in runs if not r["finished"]})
            mean = f"{np.mean(ended):,.0f}, " if ended else ""
            chosen = [r["chosen"] for r in runs if "chosen" in r]
            mean += f"{np.mean(chosen):.1%} of steps, " if chosen else ""
            why = f" ({', '.join(told)})" if told else ""
            row.append(f"{mean}{len(ended)} of {len(runs)}{why}")
        rows.append(row)
    if not rows:
        return ""
    header = ["world 0", "ours: mean return, runs that finished", "rsl_rl 5.4.2"]
    return f"{rows_of(header, rows)}\n\n*{machine(records[0])} a run, {when(records)}.*"


def simulators_table(records: list[dict]) -> str:
    """Scores in EnvPool beside those of the same policies in Gymnasium's simulators."""
    rows = []
    for (env_id,), same in groups(records, "env_id").items():
        row = [f"`{env_id}`", str(len(same) // 2)]
        for _, runs in groups(same, "simulator").items():
            form = "{:.0f}" if abs(runs[0]["mean"]) >= 100 else "{:.2f}"
            row.append(" ".join(form.format(r["mean"]) for r in runs))
        rows.append(row)
    header = ["task", "policies", "in EnvPool", "in Gymnasium's"]
    return rows_of(header, rows) if rows else ""


def async_table(records: list[dict]) -> str:
    """Steps/s with environments in processes of their own and without, by the ms of a step."""
    rows = []
    for (name, ms), same in groups(records, "script", "ms").items():
        ways = groups(same, "system", "async")
        row = [f"{ms} ms, `{name}`"]
        for way in (
            ("eager", False),
            ("eager", True),
            ("fast", True),
            ("sb3", False),
            ("sb3", True),
        ):
            row.append(f"{sps(ways[way]):,.0f}" if way in ways else "")
        rows.append(row)
    if not rows:
        return ""
    header = ["a step of", "eager", "eager, `--async-envs`", "fast, `--async-envs`"]
    header += [SB3, "in `SubprocVecEnv`"]
    made = sorted(
        {len(same) for same in groups(records, "script", "ms", "system", "async").values()}
    )
    days = when([{"date": r["session"]} for r in records])
    note = f"{machine(records[0])}, {days}; medians of {' to '.join(map(str, made))} "
    note += "interleaved rounds"
    return f"{rows_of(header, rows)}\n\n*{note}.*"


def scaling_table(records: list[dict]) -> str:
    """Steps/s of a fast version and of its simulator by the cores that it may use, a row a script
    and number of environments."""
    counts, rows = sorted({r["cores"] for r in records}), []
    for (name, envs), same in groups(records, "pair", "num_envs").items():
        row = [f"`{name}`", f"{envs}"]
        for count in counts:
            on_these = [r for r in same if r["cores"] == count]
            for simulator in (False, True):
                runs = [r for r in on_these if (r["variant"] == "simulator") == simulator]
                row.append(f"{sps(runs):,.0f}")
        rows.append(row)
    if not rows:
        return ""
    header = ["fast version", "environments"]
    header += [x for n in counts for x in (f"steps/s, {cores(n)}", f"simulator, {cores(n)}")]
    made = sorted(
        {len(x) for x in groups(records, "pair", "num_envs", "cores", "variant").values()}
    )
    note = f"{machine(records[0]).partition(',')[0]}, {when(records)}; medians of "
    note += f"{' to '.join(map(str, made))} runs, with one core and with more in turn"
    return f"{rows_of(header, rows)}\n\n*{note}.*"


def ideas_table() -> str:
    """The patches of ppo/ideas: a row each, from what stands at its head."""
    rows = []
    for path in sorted((ROOT / "ppo" / "ideas").glob("*.patch")):
        head = re.sub(r"(?m)^# ?", "", path.read_text().partition("--- a/")[0])
        what = re.sub(r"\s+", " ", re.split(r"(?m)^Source: ", head)[0]).split(". ")[0].rstrip(". ")
        source = re.search(r"(?ms)^Source: (.+?)\.?\n(?=\w+: )", head)[1]
        source = re.sub(r"arXiv:([\d.]+\d)", r"[arXiv:\1](https://arxiv.org/abs/\1)", source)
        count = str(changed_lines(path.stem))
        cells = [f"[`{path.stem}`]({path.name})", what, source, count]
        rows.append([" ".join(cell.split()) for cell in cells])
    return rows_of(["idea", "what it changes", "source", "lines"], rows, text=3)


def changed_lines(idea: str) -> int:
    """Added and removed lines of a patch of ppo/ideas."""
    text = (ROOT / "ppo" / "ideas" / f"{idea}.patch").read_text()
    return len(re.findall(r"(?m)^[+-]", text[text.index("\n@@") :]))


def one_flag(records: list[dict], name: str = "ppo_lstm") -> str:
    """What a pair's fast version comes to with one of its parent's defaults in place of its own:
    a row a flag, beside the runs without one on the same seeds."""
    fast = f"{name}_torchcompile:compile"
    own, theirs = defaults(name), defaults(PAIRS[name].parent)
    task = {"pair": name, "env_id": own["env_id"], "total_timesteps": own["total_timesteps"]}
    found = [r for same in learned(records) for r in same if task.items() <= r.items()]
    cases = groups([r for r in found if r["variant"].startswith(fast)], "variant")
    rows = []
    for (variant,), runs in cases.items():
        flags = variant.removeprefix(fast)
        if flags.count(" --") != 1:
            continue
        flag, *given = flags.split()
        field = flag.lstrip("-").removeprefix("no-").replace("-", "_")
        value = float(given[0]) if given else not flag.startswith("--no-")
        if own.get(field) != value == theirs.get(field):
            seeds, returns = values(runs, "seed"), values(runs, "mean_return")
            beside = [r for r in cases.get((fast,), []) if r["seed"] in seeds]
            p = permutation_p(values(beside, "mean_return"), returns)
            cells = [f"`{flags.strip()}`", spread(*mean_std(runs)), str(len(runs))]
            rows.append((np.mean(returns), [*cells, f"{p:.2f}"]))
    header = [f"`{PAIRS[name].parent}`'s own", "return", "seeds", "p"]
    return rows_of(header, [row for _, row in sorted(rows)])


def which(records: list[dict]) -> str:
    """The front page's choice of a script: what it is for, and what a run of its fast version came
    to, and in how many minutes, on the machine of the newest of them."""
    rows = []
    of_front = [r for same in learned(records) for r in same if on_front(r)]
    for name, about in PAIRS.items():
        runs = [r for r in of_front if r["pair"] == name]
        cells = ["not measured", "", ""]
        if runs:
            last = max(runs, key=lambda r: r["date"])
            same = [r for r in runs if machine(r) == machine(last)]
            what = f"{about.env_id}, {about.steps / 1e6:g}M steps"
            if "--" in about.mode:
                what += f", [with flags](ppo/SCRIPTS.md#{name})"
            cells = [what, over_seeds(same), f"{took(same)}, {cores(last['cores'])}"]
        rows.append([f"[`{name}`](ppo/SCRIPTS.md#{name})", about.purpose, *cells])
    header = ["script", "for", "fast version on", "return", "minutes"]
    return rows_of(header, rows, text=3)


def ladder(records: list[dict]) -> str:
    """What each optimisation adds, one after another: a row a step, for each script of LADDERS."""
    rows, shown = [], []
    for same in newest(records):
        cases, before = groups(same, "group", "label"), []
        steps = LADDERS.get(same[0]["pair"], {}).items()
        for step, runs in [(step, cases[case]) for step, case in steps if case in cases]:
            row = [f"`{same[0]['pair']}`", step, f"{sps(runs):,.0f}"]
            rows.append([*row, times(runs, cases["", "eager file"]), times(runs, before)])
            before = runs
            shown += runs
    how = f"{machine(shown[0])}, {when(shown)}; medians of {rounds(shown)} interleaved rounds"
    how += commits_of_old(shown, "; by the scripts of commit {}")
    how += moved([same for same in newest(records) if same[0]["pair"] in LADDERS])
    header = ["script", "with all above", "steps/s", "times eager", "times the row above"]
    return f"{rows_of(header, rows, text=2)}\n\n*{how}.*"


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


def task(runs: list[dict], records: list[dict]) -> list[str]:
    """The first cells of a row: what was learned, where if there are several machines, and in how
    many steps; of runs that were cut, after the fewest and the most of the schedule's."""
    ends = [f"{step:,}" for step in sorted({r["global_step"] for r in runs if r["cut"]})]
    some = f"{' to '.join(ends[:1] + ends[1:][-1:])} of " if ends else ""
    where = f", {machine(runs[0])}" if len(groups(records, *MACHINE)) > 1 else ""
    return [runs[0]["env_id"] + where, f"{some}{runs[0]['total_timesteps']:,}"]


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


def learning_table(records: list[dict]) -> str:
    """Each script's returns over seeds, and by how much its mean differs from its eager version's:
    with a bootstrap interval, and with a permutation test's p where there are enough seeds. Runs
    that were cut ended at steps of their own, and are not compared."""
    rows = []
    for same in learned(records):
        cases = groups(same, "variant", "learning_rate_dtype")
        for (variant, dtype), runs in cases.items():
            compared = variant != pair(variant) and not runs[0]["cut"]
            eager = [found for (name, _), found in cases.items() if name == pair(variant)]
            eager = max(eager, key=len, default=[]) if compared else []
            a, b, apart = values(eager, "mean_return"), values(runs, "mean_return"), ""
            if min(len(a), len(b)) > 1:
                low, high = bootstrap(difference, a, b)
                apart = f"{difference(a, b):+,.1f} [{low:+,.1f} to {high:+,.1f}]"
            if min(len(a), len(b)) >= ENOUGH:
                apart += f", p = {permutation_p(a, b):.3f}"
            each = ", ".join(f"{r['seed']}: {r['mean_return']:,.1f}" for r in runs)
            first = [
                *task(runs, records),
                label(variant) + f", learning rate in {dtype}" * bool(dtype),
            ]
            rows.append([*first, over_seeds(runs), each, apart])
    return rows_of(
        ["", "steps", "script", "return", "each seed", "minus eager [95% interval]"], rows
    )


def short(x: float, around: float) -> str:
    """A return with as many digits as one of this size needs."""
    return f"{x:{',.0f' if abs(around) >= 100 else ',.1f'}}"


def million_steps(steps: int) -> str:
    """1_000_000 -> '1M', 100_000 -> '0.1M'."""
    return f"{steps / 1e6:g}M"


def recipe_table(records: list[dict], log: bool = False) -> str:
    """What recipes come to, a row each: interquartile mean over seeds of a run's mean score by the
    most likely actions, with its interval, the least and the most; the zoo's score; minutes; and
    the median seconds after which the return in training first got to the recipe's score. The log
    has sampled actions' score too, how many sets of flags were tried, and two seeds more."""
    rows, shown = [], []
    for name, recipe in recipes().items():
        same = [r for r in runs_of(records, recipe) if "eval_deterministic" in r]
        shown += same
        scored, ends, sampled, minutes, soon, again = "not measured", "", "", "", "", ""
        if same:
            scores = [r["eval_deterministic"]["mean"] for r in same]
            form = "{:,.0f}" if max(map(abs, scores)) >= 100 else "{:,.1f}"
            scored = f"{form} [{form}, {form}]".format(*iqm(scores))
            ends = f"{form} to {form}".format(min(scores), max(scores))
            sampled = form.format(iqm([r["eval"]["mean"] for r in same])[0])
            minutes = f"{took(same)} ({recipe['total_timesteps'] / 1e6:g}M)"
            seconds = median(seconds_to(recipe["score"], r) for r in same)
            soon = f"{recipe['score']:,} " + (
                f"in {seconds:.0f} s" if seconds < np.inf else "not reached"
            )
            others = values(runs_of(records, recipe, AGAIN), "eval_deterministic")
            again = "; ".join(form.format(found["mean"]) for found in others)
        zoo = ""
        if "zoo" in recipe:
            value, steps, env_id = (recipe["zoo"][x] for x in ("return", "steps", "env_id"))
            old = f", {env_id.rpartition('-')[2]}" * (env_id != recipe["env_id"])
            zoo = f"{value:,} ({steps / 1e6:g}M{old})"
        rows.append([f"`{name}`", scored, ends, zoo, minutes, soon])
        if log:
            seeds = " ".join(str(r["seed"]) for r in same)
            rows[-1] += [sampled, seeds, str(trials_of(records, recipe)), again]
    header = [
        "task",
        "return [95% interval]",
        "least to most",
        "zoo's",
        "minutes (steps)",
        "seconds to a score",
    ]
    more = ["sampled actions", "seeds", "sets of flags tried", "seeds 6; 7"]
    table = rows_of(header + more * log, rows)
    if not shown:
        return table
    where = place(shown) if log else f"{machine(shown[0])} a run, {when(shown)}"
    counts = {len(found) for found in (runs_of(records, x) for x in recipes().values()) if found}
    return f"{table}\n\n*{where}; {' or '.join(map(str, sorted(counts)))} seeds.*"


def zoo_table(records: list[dict]) -> str:
    """Recipes beside Stable-Baselines3 with its zoo's flags on the same machine: the seeds that
    both ran, each alone on a core."""
    rows, shown = [], []
    finished = [r for same in learned(records) for r in same if not r["cut"] and r["cores"] == 1]
    for name, recipe in recipes().items():
        asked = "zoo", recipe["env_id"]
        zoo = [r for r in finished if (r["variant"], r["env_id"]) == asked]
        own = [r for r in runs_of(records, recipe) if "eval_deterministic" in r]
        seeds = {r["seed"] for r in zoo} & {r["seed"] for r in own}
        for system, runs in (("this recipe", own), (NAMES["zoo"], zoo)):
            runs = [r for r in runs if r["seed"] in seeds]
            if runs:
                scores = [r["eval_deterministic"]["mean"] for r in runs]
                std = float(np.std(scores, ddof=1)) if len(scores) > 1 else None
                steps = million_steps(runs[0]["total_timesteps"])
                scored = f"{spread(float(np.mean(scores)), std)} ({len(runs)})"
                rows.append([f"`{name}`", system, steps, took(runs), scored])
                shown += runs
    if not rows:
        return ""
    header = ["task", "system", "steps", "minutes", "return (seeds)"]
    return f"{rows_of(header, rows, text=2)}\n\n*{machine(shown[0])} a run, {when(shown)}.*"


def visits_table(records: list[dict]) -> str:
    """What ppo_rnd comes to when its bonus is paid at first visits, by what, at every visit, or
    never; and after how many steps a twentieth of the run had a mean of 0.7."""
    rows = []
    for (env_id, kind), runs in bonuses(records).items():
        each = " ".join(f"{r['mean_return']:.2f}" for r in runs)
        found = [first_at(0.7, run)[0] / 1000 for run in runs]
        soon = " ".join(f"{k:.0f}" if k < np.inf else "-" for k in found)
        name = env_id.rpartition(":")[2].removeprefix("OneHot-MiniGrid-").removesuffix("-v0")
        total = million_steps(runs[0]["total_timesteps"])
        rows.append([f"{name}, {total} steps", kind, each, soon])
    header = ["task", "a bonus", "return of each seed, from 1 on", "1,000 steps to 0.7"]
    table = rows_of(header, rows, text=2)
    return f"{table}\n\n*{machine(records[0])} a run, {when(records)}.*" if records else ""


def untrained_table(records: list[dict]) -> str:
    """Policies beside who stands still and who acts at random, in the same games: return, steps and
    the terms of the reward that follow a command."""
    rows, parts = [], defaultdict(dict)
    for r in records:
        args = json.dumps(r["args"], sort_keys=True)
        parts[r["env_id"], r["args"]["seed"], r["global_step"], args][r["who"]] = r
    for (env_id, seed, step, _), played in sorted(parts.items()):
        total = played["policy"]["args"]["total_timesteps"]
        cut = f"{step / 1e6:.1f}M of " if step < 0.99 * total else ""
        row = [env_id, f"{cut}{million_steps(total)}", str(seed)]
        for who in ("policy", "still", "random"):
            if who not in played:  # where actions are discrete, nobody stands still
                row.append("")
                continue
            r = played[who]
            length = f", {np.mean(r['lengths']):.0f} steps"
            told = [f"{x:.2f}" for name, x in r["terms"].items() if "tracking" in name]
            terms = f" ({', '.join(told)})" if told else ""
            row.append(f"{np.mean(r['returns']):.1f} ± {np.std(r['returns']):.1f}{length}{terms}")
        rows.append([*row, str(len(played["policy"]["returns"]))])
    header = ["task", "steps", "seed", "policy", "standing still", "random", "games"]
    table = rows_of(header, rows)
    cpu = records and machine(records[0]).rpartition(",")[0]
    return f"{table}\n\n*{cpu}, {when(records)}.*" if records else ""


def recipe_commands() -> str:
    """Each recipe's whole command."""
    lines = [f"./run.sh {command(recipe)}" for recipe in recipes().values()]
    return "```bash\n" + "\n".join(lines) + "\n```"


def gradients_table(records: list[dict]) -> str:
    """How far gradients are from those in float64, and then what roundings grow to in a run: the
    newest record of each pair."""
    newest = {r["pair"]: r for r in sorted(records, key=lambda r: r["date"])}
    shown = [newest[name] for name in PAIRS if name in newest]
    if not shown:
        return ""
    errors, far = [], []
    for r in shown:
        sides = zip(r["errors"], r["largest"], strict=True)
        row = [f"{1e7 * x:.2g} ({1e7 * most:.2g})" for x, most in sides]
        each = zip(r["along"], r["along_se"], strict=True)
        row += [f"{1e7 * x:+.1g} ± {1e7 * se:.1g}" for x, se in each]
        row += ["; ".join(map(str, r["flipped"]))]
        errors.append([f"`{r['pair']}`", str(r["minibatches"]), *row])
        far.append([f"`{r['pair']}`", *(f"{x:.2g}" for x in r["departures"])])
    header = ["script", "minibatches", "eager", "compiled", "eager, along", "compiled, along"]
    header += ["on an edge: eager; compiled"]
    apart = ["script", "a compiled run", "an eager run, first weights moved"]
    how = f"*{machine(shown[0])}, {when(shown)}{commits_of_old_pairs(shown)}.*"
    return f"{rows_of(header, errors)}\n\n{rows_of(apart, far)}\n\n{how}"


def commits_of_old_pairs(records: list[dict]) -> str:
    """The commits of records whose two scripts have changed since; empty if none has."""
    names = [(r["pair"], f"{r['pair']}_torchcompile") for r in records]
    old = [r for r, two in zip(records, names, strict=True) if r["code"] != [code(x) for x in two]]
    commits = ", ".join(sorted({r["commit"] for r in old}))
    return f"; by the scripts of commit {commits}" * bool(old)
