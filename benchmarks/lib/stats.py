"""Numbers from records: medians and ratios over rounds, means, intervals and curves over seeds."""

from statistics import median

import numpy as np


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


def times(records: list[dict], base: list[dict]) -> str:
    """Median over rounds of steps/s over the base's in the same round; empty without one."""
    base_sps = {r["round"]: r["sps"] for r in base}
    ratios = [r["sps"] / base_sps[r["round"]] for r in records if r["round"] in base_sps]
    return f"{median(ratios):.2f}" if ratios else ""


def rounds(records: list[dict]) -> str:
    """The fewest and the most rounds of these sessions: '5' or '3 to 5'."""
    counts = {max(values(same, "round")) for same in groups(records, "session").values()}
    return " to ".join(map(str, sorted({min(counts), max(counts)})))


def difference(a, b, axis: int = -1) -> np.ndarray:
    """Mean of b minus mean of a, along an axis."""
    return np.mean(b, axis) - np.mean(a, axis)


def bootstrap(statistic, *samples: list[float]) -> tuple[float, float]:
    """95% interval of a statistic, each sample drawn anew with replacement 10,000 times."""
    from scipy import stats  # here, as ./run.sh recipe does without it

    drawn = {"n_resamples": 10_000, "method": "percentile", "vectorized": True, "rng": 0}
    found = stats.bootstrap(samples, statistic, **drawn).confidence_interval
    return float(found.low), float(found.high)


def iqm(sample: list[float]) -> tuple[float, float, float]:
    """Interquartile mean, and the ends of its 95% bootstrap interval (arXiv:2108.13264)."""
    from scipy import stats

    def statistic(x, axis=-1):
        return stats.trim_mean(x, 0.25, axis=axis)

    return float(statistic(sample)), *bootstrap(statistic, sample)


def seeds_as_one(runs: list[dict], points: int = 50) -> np.ndarray:
    """Curves of several seeds as one, (3, points): environment steps; mean and standard deviation
    over seeds of the returns since the last point."""
    ends = np.linspace(0, runs[0]["total_timesteps"], points + 1)
    rows = []
    for steps, _, returns in (np.transpose(run["curve"]) for run in runs):
        bins = np.searchsorted(ends, steps) - 1
        means = {x: returns[bins == x].mean() for x in sorted({*bins})}
        # where no episode ended, a line between its neighbours
        rows.append(np.interp(range(points), list(means), list(means.values())))
    spread = np.std(rows, 0, ddof=len(rows) > 1)
    return np.array([ends[1:], np.mean(rows, 0), spread])


def permutation_p(a: list[float], b: list[float]) -> float:
    """Two-sided p of the difference of means: the share of all deals to sides of these sizes that
    are as far apart, or, where there are more than 20,000 of them, of 20,000 random ones."""
    from scipy import stats

    def apart(a, b, axis):
        return abs(difference(a, b, axis))

    how = {"n_resamples": 20_000, "alternative": "greater", "vectorized": True, "rng": 0}
    return float(stats.permutation_test((a, b), apart, **how).pvalue)


def across(pairs: list[tuple[list[float], list[float]]]) -> tuple[float, float, float, float]:
    """Over several tasks, each a sample without and one with a change: the mean of the changes of
    the task's mean, each over the size of the mean without; the ends of its 95% bootstrap
    interval; and its two-sided p, of 20,000 deals to both sides within each task."""
    rng, drawn, dealt, found = np.random.default_rng(0), [], [], []
    for a, b in ((np.array(a), np.array(b)) for a, b in pairs):
        size, both = abs(a.mean()), np.concatenate([a, b])
        found.append(difference(a, b) / size)
        anew = (rng.choice(x, (10_000, len(x))) for x in (a, b))
        drawn.append(difference(*anew) / size)
        mixed = rng.permuted(np.tile(both, (20_000, 1)), axis=1)
        dealt.append(difference(mixed[:, : len(a)], mixed[:, len(a) :]) / size)
    change = float(np.mean(found))
    low, high = np.quantile(np.mean(drawn, 0), [0.025, 0.975])
    as_far = (abs(np.mean(dealt, 0)) >= abs(change) - 1e-9).sum()
    return change, float(low), float(high), float((1 + as_far) / 20_001)


def holm(found: list[float]) -> list[float]:
    """p values corrected for how many they are, in the same order (Holm 1979): the chance that any
    of them is as small by luck alone."""
    order, largest, corrected = np.argsort(found), 0.0, [0.0] * len(found)
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(found) - rank) * found[i]))
        corrected[i] = largest
    return corrected


def spread(mean: float, std: float | None) -> str:
    """Mean ± standard deviation."""
    form = ",.0f" if abs(mean) >= 100 else ",.1f"
    return f"{mean:{form}}" + (f" ± {std:{form}}" if std is not None else "")


def mean_std(runs: list[dict]) -> tuple[float, float | None]:
    """Mean return and its sample standard deviation over seeds, None of one seed."""
    found = values(runs, "mean_return")
    return float(np.mean(found)), float(np.std(found, ddof=1)) if len(found) > 1 else None


def seconds_to(target: float, run: dict) -> float:
    """Seconds after which the mean return of a twentieth of the run first got to the target; inf if
    it never did."""
    steps, seconds, returns = np.array(run["curve"]).T
    window = run["total_timesteps"] / 20
    means = [returns[(steps > step - window) & (steps <= step)].mean() for step in steps]
    return float(np.where(np.array(means) >= target, seconds, np.inf).min())
