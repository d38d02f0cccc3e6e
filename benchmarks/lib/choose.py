"""Which records a page shows, and the names under which they stand there."""

from datetime import datetime, timedelta

from lib.pairs import PAIRS
from lib.records import ROOT, as_of_today, code, defaults, pair, part
from lib.stats import groups

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
NAMES = {"simulator": "simulator alone", "sb3": SB3, "zoo": f"{SB3}, zoo's flags"}
GROUPS = {"off": "one taken away", "on": "one added", "two": "two runs at once, each"}
PHASES = ("rollout", "advantages", "update", "log")
NOT_KEPT = "nothing but the file's other differences"  # a case of ablation.py: memory not kept
LADDERS = {  # script: steps, each with ablation.py's group and label of what has it and all above
    "ppo_continuous_action": {
        "eager version": ("", "eager file"),
        "+ compiled gradients": ("on", "compile"),
        "+ acting in NumPy": ("", "fast file, all on"),
    },
    "ppo_lstm": {
        "eager version": ("", "eager file"),
        "+ compiled loss, the LSTM in one call": ("on", "compile"),
        "+ acting in NumPy": ("", "fast file, all on"),
    },
    "ppo_atari_envpool": {
        "without kept memory (the fast file, all off)": ("on", NOT_KEPT),
        "eager version": ("", "eager file"),
        "+ compiled gradients": ("off", "without channels-last"),
        "+ observations in NHWC": ("", "fast file, all on"),
        "+ bfloat16": ("", "all on, and bfloat16"),
    },
}
MORE = {  # pairs whose fast versions gain most, and why
    "ppo_lstm": "its LSTM reads all rows in one call",
    "ppo_continuous_action_lstm": "its LSTM does too",
    "ppo_continuous_action_warp": "its physics is captured as a graph, on a CPU too",
}
BONUSES = {  # of ppo_rnd with its patch, by what its variant has
    "at first visits, RND's": "",  # any
    "at first visits, of counts": "--visit-counts",
    "at every visit": "--no-first-visits",
    "none": "--int-coef 0",
}
TARGETS = {"Walker2d-v4": 4000, "Pong-v5": 18}  # to get to in as few seconds as may be
MACHINE = ("cpu", "cores", "gpu")
TASK = (*MACHINE, "pair", "env_id", "total_timesteps", "cut")
SEEDS = 3  # of a figure on the front page, at least
ENOUGH = 5  # seeds each: with 3 and 3 no permutation test gets below p = 0.1
TWO_DAYS = timedelta(days=2)  # between the first and the last session's start
ONE, MANY = "ppo_continuous_action", "ppo_continuous_action_envpool"
FAST_VERSION, EAGER_VERSION = "fast version", "eager version"
IDEAS = {  # pair: line of its panel, whose pair and variant; on the front page's run of the pair
    "ppo_masked": {
        "fast version with masks": ("ppo_masked", "ppo_masked_torchcompile:compile"),
        "fast version without masks": ("ppo", "ppo_torchcompile:compile"),
        "MaskablePPO of SB3": ("ppo_masked", "sb3"),
    },
    "ppo_pettingzoo": {
        "fast version": ("ppo_pettingzoo", "ppo_pettingzoo_torchcompile:compile"),
        "SB3 with SuperSuit": ("ppo_pettingzoo", "sb3"),
    },
}


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
    """The commits of scripts that have changed since, with their pairs where there are others than
    one commit's; empty if none has changed."""
    found: dict[str, list[str]] = {}
    for r in records:
        if r.get("code") and r["code"] != code(part(r["variant"])[0]):
            found.setdefault(r["commit"], []).append(f"`{r['pair']}`")
    if len(found) == 1 and len({r["pair"] for r in records}) == len(set(*found.values())):
        return form.format(*found)
    named = [f"{commit} ({', '.join(dict.fromkeys(found[commit]))})" for commit in sorted(found)]
    return form.format(", ".join(named)) if found else ""


def newest(records: list[dict]) -> list[list[dict]]:
    """The newest session of each pair, machine and number of environments."""
    in_time = sorted(records, key=lambda r: r["session"])
    cases = groups(in_time, "pair", "num_envs", *MACHINE).values()
    found = [list(groups(case, "session").values())[-1] for case in cases]
    order = [*PAIRS, *(same[0]["pair"] for same in found)]
    return sorted(found, key=lambda same: (order.index(same[0]["pair"]), same[0]["num_envs"]))


def sitting(records: list[dict]) -> list[list[dict]]:
    """What stands side by side: the newest session of each pair, on its script's own environments,
    begun on one machine within two days; of such sets that of most pairs, of these the newest."""
    own = [r for r in records if r["num_envs"] == defaults(r["pair"])["num_envs"]]
    sets = []
    for same in groups([r for r in own if r.get("game") is None], *MACHINE).values():
        for (last,) in groups(same, "session"):
            end = datetime.fromisoformat(last)
            ago = [(end - datetime.fromisoformat(r["session"]), r) for r in same]
            found = newest([r for before, r in ago if timedelta(0) <= before <= TWO_DAYS])
            sets.append((len(found), end, found))
    return max(sets, key=lambda one: one[:2], default=(0, 0, []))[2]


def by_date(record: dict) -> str:
    return record["date"]


def learned(records: list[dict]) -> list[list[dict]]:
    """Learning runs in which an episode ended, by pair and task. Of one of ours made twice, or of
    one resumed, the last; of the others', whose code stays, every one. A variant is named with the
    flags that it would need today; `cut` are runs that were ended before they had taken all steps.
    Old runs of eager versions that had their learning rate in float64, where the fast versions had
    float32, are kept apart: `learning_rate_dtype`."""
    records = [
        {
            **r,
            "pair": r.get("pair") or pair(r["variant"]),
            "variant": as_of_today(r),
            "cut": r["until"] is not None,
        }
        for r in records
    ]
    names = (*TASK, "until", "variant", "seed", "learning_rate_dtype")
    runs = {r.get("run") or i: r for i, r in enumerate(records)}
    latest = {}
    for i, r in enumerate(sorted(runs.values(), key=by_date)):
        latest[(*(r.get(name) for name in names), None if ours(r) else i)] = r
    found = [r for r in latest.values() if r["mean_return"] is not None]
    columns = ("pair", "env_id", "total_timesteps", "variant", "seed")
    found.sort(key=lambda r: [r[name] for name in columns])
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
    for (variant, _), runs in groups(records, "variant", "learning_rate_dtype").items():
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


def tuned(record: dict) -> bool:
    """A run of ours that would need flags of hyper-parameters today."""
    return ours(record) and bool(part(as_of_today(record))[2])


def plain(records: list[dict]) -> list[dict]:
    """Our runs by default flags, whatever their mode."""
    return [r for r in records if ours(r) and "+no-" not in r["variant"] and not tuned(r)]


def on_front(run: dict) -> bool:
    """Whether the front page's choice of a script gives the figures of this run of learned()."""
    shown = PAIRS.get(run["pair"])
    if shown is None:
        return False
    wanted = f"{run['pair']}_torchcompile:{shown.mode}", shown.env_id, shown.steps
    found = tuple(run[field] for field in ("variant", "env_id", "total_timesteps"))
    return found == wanted and not run["cut"]


def ideas(records: list[dict]) -> dict[str, dict[str, list[dict]]]:
    """{environment: {line: its finished runs}} of IDEAS, of the newest run's kind of machine."""
    runs = [r for same in learned(records) for r in same if not r["cut"]]
    panels = {}
    for of_pair, lines in IDEAS.items():
        env_id, steps = PAIRS[of_pair].env_id, PAIRS[of_pair].steps
        asked = [r for r in runs if (r["env_id"], r["total_timesteps"]) == (env_id, steps)]
        for name, key in lines.items():
            found = [r for r in asked if (r["pair"], r["variant"]) == key]
            if found:
                last = max(found, key=lambda r: r["date"])
                found = [r for r in found if all(r[x] == last[x] for x in MACHINE)]
                panels.setdefault(env_id, {})[name] = found
    return panels


def effects(records: list[dict]) -> dict[tuple[str, str], list[dict]]:
    """Runs of ideas.py by (idea, environment), "none" being the script without: of each the newest
    text that was run, with seeds that both have, and only ideas that are still there."""
    found = {}
    for record in sorted(records, key=by_date):
        texts = found.setdefault((record["idea"], record["env_id"]), {})
        texts.setdefault(record["code"], []).append(record)
    newest = {task: [*texts.values()][-1] for task, texts in found.items()}
    shown = {}
    for (idea, env_id), runs in newest.items():
        beside = {r["seed"] for r in newest.get(("none", env_id), [])}
        there = idea == "none" or (ROOT / "ppo" / "ideas" / f"{idea}.patch").exists()
        runs = [r for r in runs if r["seed"] in beside]
        if there and len(runs) > 2:
            shown[idea, env_id] = runs
    return shown


def alone(records: list[dict]) -> list[dict]:
    """Learning runs that had two cores to themselves."""
    return [r for r in records if (r["cores"], r.get("jobs")) == (2, 1)]


def reach(runs: list[dict]) -> int:
    """The most steps that one of them took, or was to take."""
    return max(r["global_step"] if r["cut"] else r["total_timesteps"] for r in runs)


def bonuses(records: list[dict]) -> dict[tuple[str, str], list[dict]]:
    """{environment, when a bonus is paid: runs of ppo_rnd with its patch of first visits}."""
    found: dict[tuple[str, str], list[dict]] = {}
    for r in sorted(records, key=lambda r: (r["env_id"], r["seed"])):
        (*_, kind) = (name for name, flag in BONUSES.items() if flag in r["variant"])
        found.setdefault((r["env_id"], kind), []).append(r)
    order = [*BONUSES]
    return dict(sorted(found.items(), key=lambda x: (x[0][0], order.index(x[0][1]))))
