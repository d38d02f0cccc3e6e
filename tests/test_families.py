"""What of EnvPool is trained here, by benchmarks/families.py."""

import json
import subprocess
import sys

import families
import pytest
from helpers import ROOT
from lib import tables


def test_each_id_is_taken_or_says_why(tmp_path):
    """By the scripts' own environments: vectors by one of two, images by ppo_pixels or none."""
    command = [sys.executable, ROOT / "benchmarks" / "families.py", "--results", tmp_path]
    subprocess.run([*command, "--families", "box2d", "toy_text"], check=True, timeout=300)
    found = [json.loads(line) for line in (tmp_path / "families.jsonl").read_text().splitlines()]
    by_id = {r["env_id"]: (r["script"], r["reason"]) for r in found}
    assert by_id["LunarLander-v3"] == ("ppo_envpool", None)
    assert by_id["BipedalWalker-v3"] == ("ppo_continuous_action_envpool", None)
    assert by_id["CarRacing-v3"] == (None, "images, continuous actions")
    assert {r["script"] for r in found if r["family"] == "toy_text"} == {"ppo_envpool"}
    assert len(by_id) == len(found) == sum(len(families.ids()[x]) for x in ("box2d", "toy_text"))
    table = tables.families_table(found)
    assert f"| `box2d` | {len(families.ids()['box2d'])} |" in table and "1: images, cont" in table


def test_a_process_that_ends_costs_one_id(monkeypatch, tmp_path):
    """The next one goes on behind it."""
    script = tmp_path / "families.py"
    script.write_text(
        "import sys, json, os\n"
        "for i in range(int(sys.argv[3]), 4):\n"
        "    print(json.dumps({'begins': f'id{i}'}), flush=True)\n"
        "    if i == 1: os.abort()\n"
        "    print(json.dumps({'env_id': f'id{i}', 'script': 'x', 'why': None}))\n"
    )
    monkeypatch.setattr(families, "__file__", str(script))
    found = families.every("any", 4, 60)
    assert [r["env_id"] for r in found] == ["id0", "id1", "id2", "id3"]
    assert [r["script"] for r in found] == ["x", None, "x", "x"]
    assert found[1]["why"] == "the process ended with -6"


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("AssertionError: has pixels: see ppo_atari_envpool.py", "images"),
        ("actions MultiDiscrete([2 3]) must be Discrete", "several choices"),
        ("ValueError: rows of (4,) for 2 environments", "several players"),
        ("KeyError: something new", "KeyError: something new"),
    ],
)
def test_a_reason_in_a_few_words(why, words):
    assert families.reason(why).startswith(words)
