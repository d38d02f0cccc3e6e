"""What the texts say exists: flags, paths, commands, functions, metrics, versions."""

import ast
import dataclasses
import re
import signal
import subprocess

import doors  # noqa: F401
import numpy as np
import pytest
import report
from helpers import PAIRS, PPO, ROOT, SCRIPTS, TINY, load, run_main

import torch

GUIDES = ("ppo/README.md", "ppo/SCRIPTS.md", "ppo/USING.md", "ppo/ideas/README.md")
NAMES = ("README.md", "benchmarks/README.md", "CONTRIBUTING.md", *GUIDES)
PAGES = {name: (ROOT / name).read_text() for name in NAMES}
README, GUIDE = PAGES["README.md"], "".join(PAGES[name] for name in GUIDES)
PROGRAMS = re.findall(r"```python\n(.+?)```", GUIDE, re.DOTALL)
pages = pytest.mark.parametrize("page", PAGES)
TEXTS = PAGES | {"run.sh": (ROOT / "run.sh").read_text()}
texts = pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))
# flags of the tools that pages name, and CleanRL's that are not there
OTHER_FLAGS = {"--help", "--logdir", "--load", "--save-model", "--upload-model", "--hf-entity"}
OTHER_FLAGS |= {
    "--standalone",
    "--nproc-per-node",
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--gpus-per-node",
    "--nodes",
    "--ntasks-per-node",
    "--local-addr",
    "--rdzv-backend",
    "--rdzv-endpoint",
    "--rdzv-id",
    "--rdzv-conf",
    "--master-port",
    "--local-num-envs",
    "--device-ids",
    "--backend",
}


def parse(text):
    """A page's paragraphs and list items, and its tables, lists of rows of cells; without code
    blocks, comments, tags and headings."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->|<[^>\n]*>", "", text, flags=re.DOTALL)
    prose, tables, before = [], [], ""
    for line in (line.strip() for line in text.splitlines()):
        begins = re.match(r"[-*] |\d+\. ", line) or not before or before[0] in "#|"
        if line.startswith("|"):
            if not before.startswith("|"):
                tables.append([])
            tables[-1].append(line.strip("|").split("|"))
        elif line and line[0] != "#":
            prose += [line] if begins else [f"{prose.pop()} {line}"]
        before = line
    return prose, tables


def plain(text):
    """Without links' addresses."""
    return re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_flag_is_read_and_explained(name):
    text = (PPO / f"{name}.py").read_text()
    read = {
        node.attr
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("args", "self")
    }
    for field in dataclasses.fields(load(name).Args):
        assert field.name in read, f"{field.name} is never read"
        line = rf"^    {field.name}: .+ = .+  # \w.+$"
        assert re.search(line, text, re.MULTILINE), f"{field.name}: one line, with its help"


@pages
def test_one_word_a_thing(page):
    """Words of earlier pages, or of code alone."""
    prose = re.sub(r"`[^`]*`", "", " ".join(map(plain, parse(PAGES[page])[0])))
    for word in ("sibling", "peers?", "many environments", "floors?", "no transition", "useless"):
        assert not re.findall(rf"\b{word}\b", prose, re.IGNORECASE), word


@pages
def test_links_resolve(page):
    """Files are there, and so are headings, under the names that GitHub gives them."""
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        found = (ROOT / page).parent / path if path else ROOT / page
        assert found.exists(), target
        heads = re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE) if anchor else []
        names = [re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads]
        assert not anchor or anchor in names, target


def functions(path):
    """Names of a script's functions, and of its classes' methods as Class.method."""
    found, inner = set(), set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = [x.name for x in node.body if isinstance(x, ast.FunctionDef)]
            inner |= {f"{node.name}.{method}" for method in methods}
    return found, inner


def test_the_guide_names_functions_that_exist():
    """And each function of a script."""
    named = set(re.findall(r"`([\w.]+)\(\)`", GUIDE))
    found = {path.stem: functions(path) for path in PPO.glob("*.py")}
    assert named <= set().union(*(x | inner for x, inner in found.values()))
    assert set().union(*(found[name][0] for name in SCRIPTS)) <= named


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_guide_names_each_metric(name):
    metrics = re.findall(r'"(charts/\w+)"', (PPO / f"{name}.py").read_text())
    metrics += [f"losses/{loss}" for loss in (*load(name).LOSSES, "explained_variance")]
    assert [metric for metric in metrics if f"`{metric}`" not in GUIDE] == []


def test_each_pair_has_a_section():
    sections = re.findall(r"^### (\w+)$", PAGES["ppo/SCRIPTS.md"], re.MULTILINE)
    assert sorted(sections) == sorted(eager for eager, _ in PAIRS)


OWN = {  # what is seen of an observation, where a policy wants that or more
    "ppo": "obs",
    "ppo_masked_torchcompile": 'obs, info["action_mask"]',
    "ppo_lstm": "obs[::2]",
    "ppo_trxl_torchcompile": "obs[::2]",
    "ppo_continuous_action": "obs",
    "ppo_continuous_action_envpool_torchcompile": "obs",
}


@pytest.mark.parametrize("name", OWN)
def test_an_agent_acts_in_a_program_of_ones_own(name, tmp_path, monkeypatch):
    """The guide's program: with the weights of the run, as ppo_eval scores it."""
    games = {"masked": "Doors-v0", "continuous": "Hopper-v4"}
    env_id = next((games[word] for word in games if word in name), "CartPole-v1")
    flags = [*TINY, "--env-id", env_id]
    learned = run_main(name, *flags, runs_dir=tmp_path / "runs").agent
    (tmp_path / "ppo").symlink_to(PPO)
    monkeypatch.chdir(tmp_path)
    (run_dir,) = (tmp_path / "runs").iterdir()
    program, found = PROGRAMS[1].replace("runs/<run>", str(run_dir)), {}
    exec(program.replace("policy.act(obs)", f"policy.act({OWN[name]})"), found)
    for key, weights in learned.state_dict().items():
        assert torch.equal(found["policy"].agent.state_dict()[key], weights), key
    assert np.isfinite(found["obs"]).all() and found["over"]
    (call,) = re.findall(r"`(ppo_eval\.play\(.+?)`", GUIDE)
    scored = eval(call, found)
    if "envpool" not in name:  # which draws other first states from a seed
        assert found["total"] == pytest.approx(scored)


def test_the_timeline_is_what_runs(tmp_path, monkeypatch, capsys):
    """The guide's program prints the rows that stand below it, and they obey its formulas."""
    program, *_ = PROGRAMS
    (tmp_path / "ppo").symlink_to(PPO)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [])
    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    exec(program, {})
    for signum, handler in handlers.items():
        signal.signal(signum, handler)

    def rows(text):
        lines = re.findall(r"^ *\d+ +-?[\d.]+ +\d +-?\d +[01] .*$", text, re.MULTILINE)
        values = [[float(x) for x in line.split()[:9]] for line in lines]
        return {int(row[0]): row[1:] for row in values}

    printed, shown = rows(capsys.readouterr().out), rows(GUIDE)
    assert {t: row for t, row in shown.items() if t in printed} == {
        t: pytest.approx(printed[t], abs=0.011) for t in (7, 8, 9, 10, 20, 21, 22, 23)
    }
    for t in shown.keys() & {t - 1 for t in shown}:
        *_, reward, _, _, _, value, advantage = shown[t]
        _, _, _, done, terminated, _, next_value, next_advantage = shown[t + 1]
        delta = reward + 0.99 * next_value * (1 - terminated) - value
        expected = delta + 0.99 * 0.95 * (1 - done) * next_advantage
        assert advantage == pytest.approx(expected, abs=0.03 if t in printed else 0.003), t
    ends = {t: row[3:6] for t, row in shown.items() if row[3]}
    assert ends == {9: [1, 1, 0], 22: [1, 0, 0], 99: [1, 1, 0]}, "done, termination, valid"


def test_what_a_pair_is_added_to_is_there():
    """The names in CONTRIBUTING.md's table, in the files of their rows."""
    (table,) = parse(PAGES["CONTRIBUTING.md"])[1]
    for files, names, _ in table[2:]:
        text = "".join((ROOT / file).read_text() for file in re.findall(r"`(.+?)`", files))
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"\b{name}\b", text), (files, name)


@texts
def test_flags_exist(text):
    known = {
        "--" + f.name.replace("_", "-") for n in SCRIPTS for f in dataclasses.fields(load(n).Args)
    }
    known |= {"--" + f.name.replace("_", "-") for f in dataclasses.fields(load("ppo_eval").Args)}
    for path in (PPO / "ideas").glob("*.patch"):
        flags = re.findall(r"(?m)^\+    (\w+): \w+ = ", path.read_text())
        known |= {"--" + flag.replace("_", "-") for flag in flags}
    known |= {flag.replace("--", "--no-", 1) for flag in known} | OTHER_FLAGS
    for path in (ROOT / "benchmarks").rglob("*.py"):
        known |= set(re.findall(r'(?:add|add_argument)\("(--[a-z-]+)"', path.read_text()))
    text = "\n".join(
        line for line in text.splitlines() if "pip install" not in line and " -m venv" not in line
    )
    if text.startswith("#!"):
        text = text[text.index("<<'TEXT'") : text.index("\nTEXT\n")]
    for flag in set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)):
        assert flag in known, flag


@texts
def test_paths_and_commands_exist(text):
    for path in set(re.findall(r"\b(?:ppo|tests|requirements|benchmarks)/[\w./-]*\w", text)):
        assert (ROOT / path).exists() or path.startswith("ppo/NAME"), path
    for name in set(re.findall(r"\./run\.sh (\w+)", text)) - {
        "test",
        "bench",
        "recipe",
        "fork",
        "check",
        "compare",
        "tune",
        "NAME",
        "NAME_torchcompile",
    }:
        assert name in (*SCRIPTS, "ppo_eval"), name


def test_tables_are_what_the_records_say_and_diffs_what_the_scripts_do():
    found = [path.name for path in report.stale(report.RESULTS)]
    assert not found, f"{found}: run python benchmarks/report.py"


@pytest.mark.parametrize("name", [eager for eager, _ in PAIRS])
def test_the_guide_links_both_diffs(name):
    """In the section of the pair, and in the tree."""
    scripts = PAGES["ppo/SCRIPTS.md"]
    section = re.search(rf"^### {name}$(.*?)^##", scripts, re.MULTILINE | re.DOTALL)[1]
    shown = [report.diff_name(*pair) for pair in report.both(name) if pair[0]]
    for text in (section, GUIDE[: GUIDE.index("<!-- /tree -->")]):
        assert all(f"](diffs/{diff})" in text for diff in shown)


def test_requirements_are_pinned():
    pinned = dict(
        line.split("==")
        for line in (ROOT / "requirements/constraints.txt").read_text().splitlines()
        if "==" in line
    )
    for file in [*(ROOT / "requirements").glob("requirements*.txt")]:
        for line in file.read_text().splitlines():
            name = re.match(r"[\w-]*", line).group()
            assert not name or name.replace("-", "_") in {k.replace("-", "_") for k in pinned}, name
    assert "+" not in pinned["torch"], "a local build is not on the registry"


def test_run_sh():
    def call(*words):
        return subprocess.run([ROOT / "run.sh", *words], capture_output=True, text=True)

    done = call("--help")
    assert done.returncode == 0 and len(done.stdout.splitlines()) < 25
    assert all(name in done.stdout for name in SCRIPTS)
    done = call("ppo_atari_envpol")
    assert done.returncode == 2 and "ppo_atari_envpol" in done.stderr and not done.stdout
    assert SCRIPTS[0] in done.stderr and len(done.stderr.splitlines()) == 1


def test_run_sh_installs_what_a_command_needs(tmp_path):
    """Beside what all need, which is there, by a python that tells what it is asked to do."""
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@" >&2\n')
    python.chmod(0o755)
    (tmp_path / "ppo").mkdir()
    (tmp_path / "ppo/ppo_eval.py").touch()
    (tmp_path / "requirements").symlink_to(ROOT / "requirements")
    text = (ROOT / "run.sh").read_text()
    ready = text[text.index("fingerprint()") : text.index("ready()")]
    stamp = f"root={tmp_path} venv={tmp_path}/.venv\n{ready}\nfingerprint requirements"
    stamp = subprocess.run(["bash", "-c", stamp], capture_output=True, check=True).stdout
    (tmp_path / ".venv/.requirements").write_bytes(stamp)
    (tmp_path / "run.sh").write_text(text)

    def installed(*words):
        command = ["bash", tmp_path / "run.sh", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return re.findall(r"-r \S+/requirements-(\w+)\.txt", done.stderr)

    assert installed("ppo_eval", "runs/x") == []
    assert installed("ppo_eval", "runs/ppo_pettingzoo", "--onnx") == ["pettingzoo", "onnx"]
    assert installed("ppo_eval", "runs/x", "--onnx", "--episodes", "1") == []  # it is there
