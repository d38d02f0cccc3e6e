"""The pair rule: two versions differ only where speed needs it."""

import re

import pytest
import spread
from helpers import PAIRS, PPO, SCRIPTS, text_of
from lib.pairs import changes

# for which device a hunk of a fast file is
DEVICES = ("# fast, CPU: ", "# fast, CUDA graph: ", "# fast, both: ")
# what one script writes differently from another, and the idea that asks for it
IDEAS = {
    "Args": "flags and defaults are CleanRL's for that script",
    "make_envs": "who simulates; what is hidden",
    "Agent": "the network suits what is seen and done",
    "act": "what a row keeps; a memory",
    "compute_gradients": "a bonus; whole environments for a memory; ranks",
    "train_epoch": "a memory's state before the first row; how many losses",
    "open_run": "of several processes one writes",
}
IDEAS_OF_FAST = IDEAS | {"act_captured": "a memory"}

pairs = pytest.mark.parametrize(("eager", "fast"), PAIRS)


def definitions(name):
    """{name: text} of a script's functions and classes, in their order."""
    return spread.definitions(text_of(name))


@pairs
def test_a_fast_file_is_its_eager_file_and_what_makes_it_fast(eager, fast):
    """So few lines, and none in place of an eager one but in Atari's rollouts. Each hunk opens with
    its reason, and with the device that it is for."""
    found = changes(PPO / f"{eager}.py", PPO / f"{fast}.py")
    lines = [line for hunk in found for line in hunk]
    most = 113 if "atari" in eager else 69 if "warp" in eager else 31
    rewritten = (8 if "lstm" in eager else 5) if "atari" in eager else 0
    assert 0 < len(lines) <= most and sum(line[0] == "-" for line in lines) <= rewritten
    for hunk in found:
        added = [line[1:].removeprefix("#").strip() for line in hunk if line.startswith("+")]
        opens = added[0] if added[0].startswith("#") else f"# {added[0]}"
        assert opens.startswith(DEVICES), "\n".join(hunk)


@pairs
def test_shared_text(eager, fast):
    """The same definitions in the same order."""
    one, two = definitions(eager), definitions(fast)
    assert [name for name in two if name in one] == list(one)
    for name in one.keys() - {"Args"}:
        assert one[name] == two[name], name


# what ends with more than ppo does: diverged worlds; several processes
ENDS_OTHERWISE = {"ppo_continuous_action_warp", "ppo_atari_envpool_multigpu"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_last_phase_is_one_text(name):
    """But for what the checkpoint has: test_life breaks and resumes one of each text."""

    def phase(name):
        text = text_of(name).partition("        # Checkpoint\n")[2].partition("    summary = {")[0]
        return re.sub(r"(?s) state = \{.*?\n            \}\n", " state = {}\n", text)

    kinds = {x for x in ENDS_OTHERWISE if x in name}
    assert (phase(name) == phase("ppo")) == (not kinds)


@pytest.mark.parametrize("column", [0, 1], ids=["eager", "fast"])
def test_one_name_one_text(column):
    """In all eager files and in all fast ones, but for what an idea changes; no name stands on that
    list in vain."""
    texts, ideas = {}, (IDEAS, IDEAS_OF_FAST)[column]
    for pair in PAIRS:
        for name, text in definitions(pair[column]).items():
            texts.setdefault(name, set()).add(text)
    assert {name for name, found in texts.items() if len(found) > 1} == ideas.keys()
