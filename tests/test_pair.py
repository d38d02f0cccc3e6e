"""The pair rule and the weight: siblings differ only where speed needs it, and files stay small."""

import ast
import dataclasses
import inspect

import pytest
from helpers import PAIRS, PPO, ROOT, SCRIPTS, load
from report import TREE, changes

MAX_LINES, MAX_HUNKS = 80, 15
EAGER, WITH_LSTM, WITH_NORMALISATION, WITH_RANKS, MORE = 460, 505, 520, 535, 70
# changed lines at most, where that is agreed
FROM_PARENT = {
    "ppo_lstm": 130,
    "ppo_continuous_action_envpool": 90,
    "ppo_atari": 75,
    "ppo_atari_envpool_multigpu": 110,
    "ppo_atari_envpool_lstm": 90,
}
# the fused LSTM in both, and in NumPy: changed lines, hunks, more lines than the eager one
LSTMS = {"ppo_lstm": (105, 15, 96), "ppo_atari_envpool_lstm": (88, 13, 80)}
# what a fast script may write differently; everything else has the same text in both
DIFFERENT = {"compute_gae", "act", "LSTM"}
# what one script writes differently from another of its kind, and the idea that asks for it
IDEAS = {
    "Args": "flags and defaults are CleanRL's for that script",
    "make_envs": "who simulates",
    "Agent": "the network suits what is seen and done",
    "act": "the distribution of the actions",
    "compute_gradients": "the distribution of the actions; whole environments for a memory",
}

pairs = pytest.mark.parametrize(("eager", "fast"), PAIRS)


def text_of(name):
    return (PPO / f"{name}.py").read_text()


def definitions(name):
    """{name: text} of a script's functions and classes, in their order."""
    text = text_of(name)
    nodes = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    lines = text.splitlines()
    return {
        n.name: "\n".join(
            lines[min([n.lineno, *(x.lineno for x in n.decorator_list)]) - 1 : n.end_lineno]
        )
        for n in nodes
    }


def hunks(eager, fast):
    return changes(PPO / f"{eager}.py", PPO / f"{fast}.py")


@pairs
def test_budget(eager, fast):
    found = hunks(eager, fast)
    max_lines, max_hunks, more_lines = LSTMS.get(eager, (MAX_LINES, MAX_HUNKS, MORE))
    assert 0 < len(found) <= max_hunks
    assert sum(map(len, found)) <= max_lines
    lines = len(text_of(eager).splitlines())
    more = {"RunningMeanStd": WITH_NORMALISATION, "torch.distributed": WITH_RANKS}
    more["class LSTM"] = WITH_LSTM
    assert lines <= max([n for word, n in more.items() if word in text_of(eager)], default=EAGER)
    if eager in FROM_PARENT:
        parent, _ = TREE[eager]
        assert sum(map(len, hunks(parent, eager))) <= FROM_PARENT[eager]
    assert len(text_of(fast).splitlines()) <= lines + more_lines


@pairs
def test_each_hunk_opens_with_its_reason(eager, fast):
    for hunk in hunks(eager, fast):
        added = [line[1:].lstrip("# ") for line in hunk if line.startswith("+")]
        assert added and added[0].startswith("fast: "), "\n".join(hunk)


@pairs
def test_shared_text(eager, fast):
    one, two = definitions(eager), definitions(fast)
    assert list(one) == list(two), "the same definitions in the same order"
    for name in one.keys() - DIFFERENT - {"Args"}:
        assert one[name] == two[name], name
    for name in DIFFERENT & one.keys():
        first, second = getattr(load(eager), name), getattr(load(fast), name)
        assert inspect.signature(first) == inspect.signature(second)
        assert inspect.getdoc(first) == inspect.getdoc(second)


@pytest.mark.parametrize("column", [0, 1], ids=["eager", "fast"])
def test_one_name_one_text(column):
    """In all eager files and in all fast ones, but for what an idea changes; no name stands on that
    list in vain."""
    texts = {}
    for pair in PAIRS:
        for name, text in definitions(pair[column]).items():
            texts.setdefault(name, set()).add(text)
    assert {name for name, found in texts.items() if len(found) > 1} == IDEAS.keys()


@pairs
def test_same_flags_and_defaults(eager, fast):
    one = {field.name: field for field in dataclasses.fields(load(eager).Args)}
    two = {field.name: field for field in dataclasses.fields(load(fast).Args)}
    assert set(one) < set(two)
    for name in set(one) - {"exp_name"}:
        assert (one[name].type, one[name].default) == (two[name].type, two[name].default), name
    checks = [inspect.getsource(load(name).Args.__post_init__) for name in (eager, fast)]
    assert checks[0] == checks[1]
    assert two["compile"].default is False and two["cudagraphs"].default is False
    assert all(two[name].type is bool for name in set(two) - set(one)), "each has an off-switch"


@pytest.mark.parametrize("name", SCRIPTS)
def test_anatomy(name):
    """A short docstring, four phases, and nothing from the rest of the repository."""
    assert len(load(name).__doc__.splitlines()) <= 15
    lines = text_of(name).splitlines()
    (loop,) = [i for i, line in enumerate(lines) if line.startswith("    for iteration in range(")]
    comments = [line.strip() for line in lines[loop:] if line.startswith("        # ")]
    headings = [comment for comment in comments if comment[2:3].isupper()]
    assert headings == ["# Rollout", "# Advantages", "# Update", "# Log"]


@pytest.mark.parametrize("path", sorted(PPO.glob("*.py")), ids=lambda path: path.stem)
def test_imports_nothing_from_the_repository(path):
    """In a function neither."""
    folders = ("ppo", "benchmarks", "tests")
    ours = {path.stem for folder in folders for path in (ROOT / folder).glob("*.py")}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not ours & {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module.split(".")[0] not in ours
