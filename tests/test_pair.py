"""The pair rule: the siblings differ only where speed needs it, and each difference says why."""

import ast
import dataclasses
import inspect
import re

import pytest
from helpers import PAIRS, PPO, hunks, load

MAX_LINES, MAX_HUNKS = 120, 20
# what a fast script may write differently; everything else has the same text in both
DIFFERENT = {"compute_gae", "act"}
# and an argument that it adds
ADDED = {"compute_gradients": ", foreach=False"}

pytestmark = pytest.mark.parametrize(("eager", "fast"), PAIRS)


def definitions(name):
    tree = ast.parse((PPO / f"{name}.py").read_text())
    return [n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]


def test_budget(eager, fast):
    found = hunks(eager, fast)
    assert 0 < len(found) <= MAX_HUNKS
    assert sum(map(len, found)) <= MAX_LINES


def test_each_hunk_opens_with_its_reason(eager, fast):
    for hunk in hunks(eager, fast):
        added = [line[1:].lstrip("# ") for line in hunk if line.startswith("+")]
        assert added and added[0].startswith("fast: "), "\n".join(hunk)


def test_same_definitions_in_the_same_order(eager, fast):
    assert definitions(eager) == definitions(fast)


def test_shared_text(eager, fast):
    one, two = load(eager), load(fast)
    for name in set(definitions(eager)) - DIFFERENT - {"Args"}:
        first, second = inspect.getsource(getattr(one, name)), inspect.getsource(getattr(two, name))
        if name in ADDED:
            second = re.sub(" *# fast: .*\n( *# .*\n)*", "", second, count=1)
            second = second.replace(ADDED[name], "", 1)
        assert first == second, name
    for name in DIFFERENT:
        first, second = getattr(one, name), getattr(two, name)
        assert inspect.signature(first) == inspect.signature(second)
        assert inspect.getdoc(first) == inspect.getdoc(second)


def test_same_flags_and_defaults(eager, fast):
    one = {field.name: field for field in dataclasses.fields(load(eager).Args)}
    two = {field.name: field for field in dataclasses.fields(load(fast).Args)}
    assert set(one) < set(two)
    for name in set(one) - {"exp_name"}:
        assert (one[name].type, one[name].default) == (two[name].type, two[name].default), name
    assert two["compile"].default is False and two["cudagraphs"].default is False
    assert all(two[name].type is bool for name in set(two) - set(one)), "each has an off-switch"


def test_four_phases(eager, fast):
    for name in (eager, fast):
        lines = (PPO / f"{name}.py").read_text().splitlines()
        loop = lines.index(
            "    for iteration in range(iterations_done + 1, args.num_iterations + 1):"
        )
        phases = [line.strip() for line in lines[loop:] if line.startswith("        # ")]
        headings = [phase for phase in phases if phase[2:3].isupper()]
        assert headings == ["# Rollout", "# Advantages", "# Update", "# Log"]
