"""What the texts say exists: flags, paths, commands, functions, metrics, versions; and what a
script needs is said alike wherever it is said."""

import ast
import dataclasses
import re
import signal
import sys
import tomllib
from importlib.metadata import packages_distributions

import doors  # noqa: F401
import numpy as np
import pytest
import report
from helpers import PAIRS, PPO, ROOT, SCRIPTS, TINY, load, run_main
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import torch

GUIDES = ("ppo/README.md", "ppo/SCRIPTS.md", "ppo/USING.md", "ppo/ideas/README.md")
NAMES = ("README.md", "benchmarks/README.md", "CONTRIBUTING.md", *GUIDES)
PAGES = {name: (ROOT / name).read_text() for name in NAMES}
GUIDE = "".join(PAGES[name] for name in GUIDES)
PROGRAMS = re.findall(r"```python\n(.+?)```", GUIDE, re.DOTALL)
pages = pytest.mark.parametrize("page", PAGES)
RUN_SH = (ROOT / "run.sh").read_text()
COMMANDS = set("test bench recipe fork check compare tune NAME NAME_torchcompile".split())
# of tools that pages name, tensorboard, torchrun and Slurm's; and CleanRL's that are not here
OTHER_FLAGS = set(
    "help logdir save-model upload-model hf-entity standalone nproc-per-node nnodes node-rank "
    "master-addr master-port local-num-envs device-ids backend".split()
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_flag_is_read_and_explained(name):
    text = (PPO / f"{name}.py").read_text()
    module = ast.parse(text)
    (own,) = [node for node in module.body if getattr(node, "name", "") == "Args"]
    nodes = [(node, "args") for node in ast.walk(module)] + [(x, "self") for x in ast.walk(own)]
    nodes = [(x, of) for x, of in nodes if isinstance(x, ast.Attribute)]
    nodes = [(x, of) for x, of in nodes if isinstance(x.ctx, ast.Load)]
    read = {x.attr for x, of in nodes if getattr(x.value, "id", "") == of}
    for field in dataclasses.fields(load(name).Args):
        assert field.name in read, f"{field.name} is never read"
        line = rf"^    {field.name}: .+ = .+  # \w.+$"
        assert re.search(line, text, re.MULTILINE), f"{field.name}: one line, with its help"


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


def test_marked_parts_are_what_report_makes(monkeypatch):
    """From records and scripts, as they are now; each of them is on a page."""
    parts = report.parts(report.RESULTS)
    monkeypatch.setattr(report, "parts", lambda folder: parts)
    marks = {page: re.findall(r"<!-- (\w+) -->", text) for page, text in PAGES.items()}
    for page, opened in marks.items():
        assert opened == re.findall(r"<!-- /(\w+) -->", PAGES[page]), "what is opened is closed"
        assert page in report.PAGES or not opened
    assert {x for opened in marks.values() for x in opened} == {*parts}
    found = [path.name for path in report.stale(report.RESULTS)]
    assert not found, f"{found}: run python benchmarks/report.py"
    text = "a\n<!-- x -->\nold\n<!-- /x -->\nb\n"
    assert report.filled(text, {"x": "| y |"}) == text.replace("old", "| y |")


def test_the_guide_names_each_pair_and_metric():
    sections = re.findall(r"^### (\w+)$", PAGES["ppo/SCRIPTS.md"], re.MULTILINE)
    assert sorted(sections) == sorted(eager for eager, _ in PAIRS)
    for name in SCRIPTS:
        metrics = re.findall(r'"(charts/\w+)"', (PPO / f"{name}.py").read_text())
        metrics += [f"losses/{loss}" for loss in (*load(name).LOSSES, "explained_variance")]
        assert [metric for metric in metrics if f"`{metric}`" not in GUIDE] == [], name


SEES = {  # what is seen of an observation, where a policy wants that or more
    "ppo_masked_torchcompile": 'np.concatenate([obs, info["action_mask"]])',
    "ppo_trxl": "obs[::2]",
}


@pytest.mark.parametrize("name", SEES)
def test_an_agent_acts_in_a_program_of_ones_own(name, tmp_path, monkeypatch):
    """The guide's program: with the weights of the run."""
    env_id = "Doors-v0" if "masked" in name else "CartPole-v1"
    learned = run_main(name, *TINY, "--env-id", env_id, runs_dir=tmp_path / "runs").agent
    (tmp_path / "ppo").symlink_to(PPO)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (run_dir,) = (tmp_path / "runs").iterdir()
    (program,) = [text for text in PROGRAMS if "ppo_eval.load(" in text]
    program, found = program.replace("runs/<run>", str(run_dir)), {"np": np}
    exec(program.replace("policy.act(obs)", f"policy.act({SEES[name]})"), found)
    for key, weights in learned.state_dict().items():
        assert torch.equal(found["policy"].agent.state_dict()[key], weights), key
    assert np.isfinite(found["obs"]).all() and found["over"]


def test_the_timeline_is_what_runs(tmp_path, monkeypatch, capsys):
    """The guide's program prints the rows that stand below it, and they obey its formulas."""
    (program,) = [text for text in PROGRAMS if "runpy.run_path(" in text]
    (tmp_path / "ppo").symlink_to(PPO)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr(signal, "signal", lambda signum, handler: None)
    exec(program, {})

    def rows(text):
        lines = re.findall(r"^ *\d+ +-?[\d.]+ +\d +-?\d +[01] .*$", text, re.MULTILINE)
        values = [[float(x) for x in line.split()[:9]] for line in lines]
        return {int(row[0]): row[1:] for row in values}

    printed, shown = rows(capsys.readouterr().out), rows(GUIDE)
    both = printed.keys() & shown.keys()
    assert len(both) > 4
    for t in both:
        assert shown[t] == pytest.approx(printed[t], abs=0.011), t
    for t in shown.keys() & {t - 1 for t in shown}:
        *_, reward, _, _, _, value, advantage = shown[t]
        _, _, _, done, terminated, _, next_value, next_advantage = shown[t + 1]
        delta = reward + 0.99 * next_value * (1 - terminated) - value
        expected = delta + 0.99 * 0.95 * (1 - done) * next_advantage
        assert advantage == pytest.approx(expected, abs=0.03 if t in printed else 0.003), t
    ends = [row[3:6] for row in shown.values() if row[3]]
    assert [1, 1, 0] in ends and [1, 0, 0] in ends, "done, termination, valid"


def known_flags():
    """Of all scripts, of ppo_eval, of patches, of the commands, and of tools that pages name."""
    fields = [f.name for n in (*SCRIPTS, "ppo_eval") for f in dataclasses.fields(load(n).Args)]
    for path in (PPO / "ideas").glob("*.patch"):
        fields += re.findall(r"(?m)^\+    (\w+): [\w | None]+ = ", path.read_text())
    known = {field.replace("_", "-") for field in fields}
    known |= {f"no-{flag}" for flag in known} | OTHER_FLAGS
    for path in (ROOT / "benchmarks").rglob("*.py"):
        known |= set(re.findall(r'(?:add|add_argument)\("--([a-z-]+)"', path.read_text()))
    return known


def test_flags_and_paths_exist():
    """And what run.sh is asked to run, in its own help, too."""
    text = "\n".join([*PAGES.values(), RUN_SH[RUN_SH.index("<<'TEXT'") : RUN_SH.index("\nTEXT\n")]])
    lines = [x for x in text.splitlines() if not re.search("pip install| -m venv|git ", x)]
    flags = set(re.findall(r"(?<![\w-])--([a-z][a-z0-9-]*)", "\n".join(lines)))
    assert flags <= (known := known_flags()), flags - known
    for path in set(re.findall(r"\b(?:ppo|tests|requirements|benchmarks)/[\w./-]*\w", text)):
        assert (ROOT / path).exists() or path.startswith("ppo/NAME"), path
    scripts = "".join(path.read_text() for path in PPO.glob("*.py"))
    for name in re.findall(r"`([\w.]+)\(\)`", GUIDE):
        assert re.search(rf"(def|class) {name.rpartition('.')[2]}\b", scripts), name
    asked = set(re.findall(r"\./run\.sh (\w+)", text))
    assert asked <= COMMANDS | {*SCRIPTS, "ppo_eval"}, asked


# What a script needs


def header(path):
    """The dependencies of a script's first lines."""
    block = re.search(r"(?ms)^# /// script\n(.*?)^# ///$", path.read_text())[1]
    return [*map(Requirement, tomllib.loads(re.sub("(?m)^# ?", "", block))["dependencies"])]


def listed(name):
    """Those of a file of requirements/."""
    lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
    return [Requirement(line.partition("#")[0]) for line in lines if line.partition("#")[0].strip()]


def named(requirements):
    return {canonicalize_name(x.name) for x in requirements}


EXTRA = "requirements-pettingzoo", "requirements-warp", "requirements-onnx"
# not imported by name: TensorBoard's writer, a codec, PettingZoo's games, what ONNX's exporter asks
UNSEEN = {"tensorboard", "imageio-ffmpeg", "pettingzoo", "mpe2", "onnx", "onnxscript"}
OF_SCRIPTS = {"ale-py", "envpool", "minatar"}  # which ppo_eval executes


@pytest.mark.parametrize("path", sorted(PPO.glob("*.py")), ids=lambda path: path.stem)
def test_what_a_script_needs_is_said_alike(path):
    """By its first lines, by its imports, none of which is of the repository, by requirements/, and
    by what run.sh looks for."""
    head, files = header(path), {name: listed(name) for name in ("requirements", *EXTRA)}
    every = [x for found in files.values() for x in found]
    for one in head:
        same = [x for x in every if named([x]) == named([one])]
        if named([one]) <= {"imageio"}:  # comes with gymnasium[mujoco]
            continue
        assert [x for x in same if x.specifier == one.specifier and one.extras <= x.extras], one
        if one.marker:
            assert one.marker in [x.marker for x in same], one
    text = path.read_text()
    nodes = [*ast.walk(ast.parse(text))]
    imports = {x.name for node in nodes if isinstance(node, ast.Import) for x in node.names}
    imports |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    # what surrounds a script asks it, and does not read its text; ppo_eval asks for signatures
    assert not imports & {"ast", "dis", *["inspect"] * (path.stem != "ppo_eval")}
    modules = {x.partition(".")[0] for x in imports} - sys.stdlib_module_names
    of = packages_distributions()
    packages = [{*map(canonicalize_name, of[x])} for x in modules]
    assert all(x & named(head) for x in packages), modules
    spare = named(head) - set().union(*packages) - UNSEEN
    assert not spare - (OF_SCRIPTS if path.stem == "ppo_eval" else set())
    kinds = re.findall(r"uses '([^']+)'.*(?:\n  )?.*needs\+=\((requirements-\w+)\)", RUN_SH)
    assert kinds
    for regex, name in kinds:
        wanted = bool(named(head) & (named(files[name]) - named(files["requirements"])))
        assert path.stem == "ppo_eval" or bool(re.search(regex, text, re.M)) == wanted, name


def test_requirements_are_pinned():
    lines = (ROOT / "requirements/constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    names = {canonicalize_name(name) for name in pinned}
    for file in (ROOT / "requirements").glob("requirements*.txt"):
        assert named(listed(file.stem)) <= names, file.name
    assert "+" not in pinned["torch"], "a local build is not on the registry"
