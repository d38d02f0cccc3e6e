"""A script with a clock in its loop: how many seconds it spends in each phase of an iteration."""

PHASES = ("rollout", "advantages", "update", "log")
LOOP = """\
        if iteration <= first_iteration + args.measure_burnin:  # the burn-in does not count
            phase_s = dict.fromkeys({names}, 0.0)
        phase_start = time.perf_counter()
"""
BETWEEN = """\
        phase_s["{name}"] += time.perf_counter() - phase_start
        phase_start = time.perf_counter()
"""


def clocked(text: str) -> str:
    """A script's text with a clock at the five headings of its loop; nothing else changes. Its
    summary.json then has phase_s, the seconds in each phase of the iterations after the burn-in;
    ValueError for a text without the headings."""
    marks = [f"        # {name.capitalize()}\n" for name in (*PHASES, "checkpoint")]
    added = [LOOP.format(names=PHASES), *(BETWEEN.format(name=name) for name in PHASES)]
    edits = [(mark, lines + mark) for mark, lines in zip(marks, added, strict=True)]
    begin = "    summary = {\n"
    for old, new in [*edits, (begin, f'{begin}        "phase_s": phase_s,\n')]:
        if text.count(f"\n{old}") != 1:
            raise ValueError(f"not once in the script: {old.strip()}")
        text = text.replace(f"\n{old}", f"\n{new}")
    return text
