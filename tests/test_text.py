"""What the texts say exists: flags that are read, paths, commands and versions."""

import ast
import dataclasses
import re
import subprocess

import pytest
import report
from helpers import PPO, ROOT, SCRIPTS, load

README = (ROOT / "README.md").read_text()
BENCHMARKS = (ROOT / "benchmarks" / "README.md").read_text()
RUN_SH = (ROOT / "run.sh").read_text()
TEXTS = pytest.mark.parametrize(
    "text", [README, BENCHMARKS, RUN_SH], ids=["README.md", "benchmarks/README.md", "run.sh"]
)
# flags of the tools that README names, and CleanRL's that are not there
OTHER_FLAGS = {"--help", "--logdir", "--load", "--save-model", "--upload-model", "--hf-entity"}
OTHER_FLAGS |= {"--standalone", "--nproc-per-node"}


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


def test_the_front_page_is_short():
    assert len(README.splitlines()) <= 170


@TEXTS
def test_flags_exist(text):
    known = {
        "--" + f.name.replace("_", "-") for n in SCRIPTS for f in dataclasses.fields(load(n).Args)
    }
    known |= {flag.replace("--", "--no-", 1) for flag in known} | OTHER_FLAGS
    known |= {"--" + f.name.replace("_", "-") for f in dataclasses.fields(load("ppo_eval").Args)}
    for path in (ROOT / "benchmarks").glob("*.py"):
        known |= set(re.findall(r'(?:add|add_argument)\("(--[a-z-]+)"', path.read_text()))
    text = "\n".join(
        line for line in text.splitlines() if "pip install" not in line and " -m venv" not in line
    )
    if text.startswith("#!"):
        text = text[text.index("<<'TEXT'") : text.index("\nTEXT\n")]
    for flag in set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)):
        assert flag in known, flag


@TEXTS
def test_paths_and_commands_exist(text):
    for path in set(re.findall(r"\b(?:ppo|tests|requirements|benchmarks)/[\w./-]*\w", text)):
        assert (ROOT / path).exists() or path == "ppo/NAME.py", path
    for name in set(re.findall(r"\./run\.sh (\w+)", text)) - {"test", "bench", "NAME"}:
        assert name in (*SCRIPTS, "ppo_eval"), name


def test_readme_names_each_metric():
    for name in SCRIPTS:
        text = (PPO / f"{name}.py").read_text()
        for key in re.findall(r'"(charts/\w+)"', text):
            assert f"`{key}`" in README, key
        for loss in (*load(name).LOSSES, "explained_variance"):
            assert f"`losses/{loss}`" in README, loss


def test_tables_are_what_the_records_say():
    for page, text in report.pages(report.RESULTS).items():
        assert page.read_text() == text, f"{page.name}: run python benchmarks/report.py"


def test_requirements_are_pinned():
    pinned = dict(
        line.split("==")
        for line in (ROOT / "requirements/constraints.txt").read_text().splitlines()
        if "==" in line
    )
    for file in ("requirements.txt", "requirements-dev.txt", "requirements-bench.txt"):
        for line in (ROOT / "requirements" / file).read_text().splitlines():
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
