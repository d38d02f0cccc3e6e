"""What the benchmarks share: variants of the scripts, processes that are timed, records of them.

A variant is a script with a mode, written NAME, NAME:compile or NAME:compile+no-channels-last: the
words after the colon are the script's flags. A record is one JSON object on a line of its own.
"""

import ast
import hashlib
import json
import math
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import distributions, version
from pathlib import Path
from threading import Thread

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
SCRIPTS = sorted(
    path.stem for path in (ROOT / "ppo").glob("*.py") if "total_timesteps" in path.read_text()
)

LIBRARIES = (
    "torch",
    "tensordict",
    "envpool",
    "ale_py",
    "gymnasium",
    "mujoco",
    "numpy",
    "stable_baselines3",
)
SPS = re.compile(r"SPS: ([\d.]+)")  # as peers print it
BAR = re.compile(r"\[\d+:[\d:]+<.*\]\s*$")  # a line of tqdm's ends with [00:01<00:02, ...]
# what run.sh sets for the Atari scripts, on a glibc that takes it (2.36 does)
KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "2147483647", "MALLOC_TRIM_THRESHOLD_": "2147483647"}
SLEEPING = {"GOMP_SPINCOUNT": "1000"}  # idle threads of OpenMP, as run.sh sets it for all scripts
NOT_INHERITED = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MKL_NUM_THREADS", *KEPT_MEMORY, *SLEEPING)


class Failure(Exception):
    """A run that left no result, in one line."""


def warn(message: str) -> None:
    """One line on stderr, under a progress bar too."""
    print(f"\r{Path(sys.argv[0]).stem}: {message}", file=sys.stderr)


def append(path: Path, record: dict) -> None:
    """Adds a line to a file of records; a broken last line stays, and stays the only broken one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as file:
        file.seek(0, 2)
        start = b""
        if file.tell():
            file.seek(-1, 2)
            start = b"" if file.read(1) == b"\n" else b"\n"
        file.write(start + json.dumps(record).encode() + b"\n")  # one write, at the end


def read(path: Path) -> list[dict]:
    """The records of a file, [] without one; a line that is no record is named and left out."""
    records = []
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError
            records.append(record)
        except ValueError:
            warn(f"{path.name}, line {number}, is no record (a run that was killed?): left out")
    return records


def split_variant(variant: str) -> tuple[str, list[str]]:
    """'NAME:compile+no-cuda' -> ('NAME', ['--compile', '--no-cuda']); Failure if there is none.

    What follows a space is passed on as it is: 'NAME:compile --gamma 0.9'.
    """
    name, mode, more = part(variant)
    if name not in SCRIPTS:
        raise Failure(f"no script '{name}'; there are {', '.join(SCRIPTS)}")
    text = (ROOT / "ppo" / f"{name}.py").read_text()
    text = text[text.index("\nclass Args:") : text.index("def __post_init__(")]
    switches = re.findall(r"^    (\w+): bool = ", text, re.MULTILINE)
    known = {word.replace("_", "-") for word in switches}
    flags = mode.split("+") if mode else []
    for flag in flags:
        if flag not in known and not (flag.startswith("no-") and flag[3:] in known):
            raise Failure(f"'{name}' has no mode '{flag}'; it has {', '.join(sorted(known))}")
    return name, [*(f"--{flag}" for flag in flags), *more]


def part(variant: str) -> tuple[str, str, list[str]]:
    """'NAME:flag+flag --more 1' -> ('NAME', 'flag+flag', ['--more', '1'])."""
    head, *more = variant.split()
    name, _, mode = head.partition(":")
    return name, mode, more


def pair(variant: str) -> str:
    """The eager script's name, by which a pair goes."""
    return part(variant)[0].removesuffix("_torchcompile")


def fields(text: str) -> dict[str, ast.expr]:
    """The flags of a script's Args, by the names of their fields, and each one's default as code;
    Failure without an Args."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name == "Args":
            return {x.target.id: x.value for x in node.body if isinstance(x, ast.AnnAssign)}
    raise Failure("it has no Args")


def constants(text: str) -> dict:
    """The same flags and what they are when not given; those that are computed are left out."""
    return {k: v.value for k, v in fields(text).items() if isinstance(v, ast.Constant)}


@cache
def defaults(name: str) -> dict:
    """Those of a script in ppo/."""
    return constants((ROOT / "ppo" / f"{name}.py").read_text())


def as_of_today(record: dict) -> str:
    """A run's variant, with the flags that its script would need today for the same arguments; a
    peer's name."""
    name, mode, more = part(record["variant"])
    if name not in SCRIPTS:
        return record["variant"]
    given = {word.lstrip("-").removeprefix("no-") for word in (*mode.split("+"), *more)}
    known, found = defaults(name), [record["variant"]]
    for field in list(known)[list(known).index("total_timesteps") + 1 :]:
        flag, value = field.replace("_", "-"), record.get("args", known).get(field, known[field])
        if flag not in given and value != known[field]:
            switch = {True: f"--{flag}", False: f"--no-{flag}"}
            found.append(switch[value] if isinstance(value, bool) else f"--{flag} {value}")
    return " ".join(found)


def fingerprint(text: str) -> str:
    """Of a script's code, 10 hex digits: comments, docstrings and line breaks change nothing, nor
    does the Python that reads it."""

    def plain(node):
        if isinstance(node, ast.AST):
            fields = [(key, plain(value)) for key, value in ast.iter_fields(node)]
            return type(node).__name__, [pair for pair in fields if pair[1] not in (None, [])]
        if isinstance(node, list):  # a constant that stands alone does nothing
            alone = [isinstance(getattr(x, "value", None), ast.Constant) for x in node]
            kept = zip(node, alone, strict=True)
            return [plain(x) for x, alone in kept if not (alone and isinstance(x, ast.Expr))]
        return node

    return hashlib.sha256(repr(plain(ast.parse(text))).encode()).hexdigest()[:10]


@cache
def code(name: str) -> str | None:
    """The fingerprint of a script as it is now; None without one."""
    path = ROOT / "ppo" / f"{name}.py"
    return fingerprint(path.read_text()) if path.exists() else None


def scalars(run_dir: Path, tag: str) -> list:
    """The TensorBoard events of a curve of a run: step, value, wall_time; [] if there is none."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir), size_guidance={"scalars": 0}).Reload()
    return events.Scalars(tag) if tag in events.Tags()["scalars"] else []


def startup_s(run_dir: Path, start: float) -> float:
    """Seconds from `start`, a time.time(), to the end of a run's first iteration."""
    return scalars(run_dir, "charts/learning_rate")[0].wall_time - start


def machine() -> dict:
    """What a figure depends on: processor, cores that this process may use, GPU, versions."""
    import torch

    names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    versions = {name: version(name) for name in LIBRARIES if any(distributions(name=name))}
    return {
        "cpu": names[0].strip() if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "versions": {"python": platform.python_version(), **versions},
    }


def commit() -> str:
    """The commit that is checked out, with '+' if a tracked file differs from it; where git knows
    none, what COMMIT in the environment says."""

    def git(*words):
        if shutil.which("git") is None:
            return ""
        done = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "ppo", "benchmarks/*.py")
    found = git("rev-parse", "--short=10", "HEAD") or os.environ.get("COMMIT", "unknown")
    return found + ("+" if changed else "")


def now() -> str:
    """UTC to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def settings(name: str, more: dict | None = None) -> dict:
    """Environment variables of what runs on a pair's environments, and more; None is not set."""
    found = (KEPT_MEMORY if "atari" in name else {}) | (more or {})
    return {key: value for key, value in found.items() if value is not None}


def run_process(command: list[str], *more, **named) -> str:
    """The standard output of a command that ended well, as timed_lines runs it."""
    return "".join(line for _, line in timed_lines(command, *more, **named))


def timed_lines(
    command: list[str], env: dict | None = None, tick=None, limit=math.inf
) -> list[tuple[float, str]]:
    """(seconds since its start, line) of the standard output of a command that ended well within
    `limit` seconds; else Failure with its last line. It inherits no setting of thread numbers and
    waiting: SLEEPING holds for all that is started; env adds variables.

    tick(process) is called each second or so, and may end the process by a signal.
    """
    environment = {k: v for k, v in os.environ.items() if k not in NOT_INHERITED}
    environment |= {"PYTHONUNBUFFERED": "1", **SLEEPING, **(env or {})}
    started, lines = time.monotonic(), []
    text = {"text": True, "errors": "replace"}
    with tempfile.TemporaryFile("w+", errors="replace") as err:
        try:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=err, env=environment, **text
            )
        except OSError as error:
            raise Failure(f"{command[0]}: {error.strerror}") from None

        def listen():
            with process.stdout as out:
                for line in out:
                    lines.append((time.monotonic() - started, line))

        reader = Thread(target=listen, daemon=True)
        reader.start()
        stopped = False
        try:
            while True:
                try:
                    status = process.wait(1)
                    break
                except subprocess.TimeoutExpired:
                    if time.monotonic() - started > limit:
                        raise Failure(f"no end after {limit:.0f} seconds") from None
                    stopped = stopped or bool(tick and tick(process))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        reader.join(5)  # no longer: a process that it leaves behind may hold the pipe
        err.seek(0)
        if status and not (stopped and status in (-signal.SIGTERM, 128 + signal.SIGTERM)):
            said = err.read().strip() or "".join(line for _, line in lines)
            framed = re.search(r"─╮\n(.*?)(?:│ ─|╰)", said, re.DOTALL)  # a message of tyro's
            said = " ".join(framed[1].replace("│", " ").split()) if framed else said
            said = [line for line in said.splitlines() if line.strip() and not BAR.search(line)]
            raise Failure(f"status {status}: {(said or ['no output'])[-1].strip()[-300:]}")
        return lines


def matches(pattern: re.Pattern, lines: list[tuple[float, str]]) -> list[tuple[float, re.Match]]:
    """(seconds, match) of all that a pattern finds in timed lines."""
    return [(at, match) for at, line in lines for match in pattern.finditer(line)]


def peer(text: str, **values) -> tuple[str, list[str], str]:
    """Of --peer NAME='COMMAND' the name, the command's words and the command, in which each
    {value} is replaced; Failure without a command."""
    name, _, command = text.partition("=")
    for key, value in values.items():
        command = command.replace(f"{{{key}}}", str(value))
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise Failure(f"--peer {text}: {error}") from None
    if not words:
        raise Failure(f"--peer {text}: give NAME='COMMAND'")
    return name, words, command


def python(script: str, *flags) -> list[str]:
    """The command that runs a script of this repository with this interpreter."""
    return [sys.executable, str(ROOT / script), *map(str, flags)]


def shown(script: str, *flags) -> str:
    """The same command as a person would type it at the repository's root."""
    return shlex.join(["python", script, *map(str, flags)])
