"""What the commands share: variants of the scripts, processes that are timed, records of them.

A variant is a script with flags, written NAME, NAME:compile, NAME:compile+no-channels-last or
'NAME:compile --gamma 0.9'. A record is one JSON object on a line of its own.
"""

import ast
import fcntl
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
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import distributions, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
SCRIPTS = sorted(
    path.stem for path in (ROOT / "ppo").glob("*.py") if "total_timesteps" in path.read_text()
)
# versions that a record names
LIBRARIES = "torch tensordict envpool ale_py gymnasium mujoco numpy stable_baselines3".split()
BAR = re.compile(r"\[\d+:[\d:]+<.*\]\s*$")  # a line of tqdm's ends with [00:01<00:02, ...]
# settings of threads and memory, which a script makes itself
NOT_INHERITED = "OMP_NUM_THREADS OMP_WAIT_POLICY MKL_NUM_THREADS GOMP_SPINCOUNT".split()
NOT_INHERITED += ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"]
PARSING = threading.Lock()  # two parses at once can break one in CPython 3.11 (gh-106905)
GRACE = 30  # seconds that a run has to save its checkpoint after a signal
SAVED = 128 + signal.SIGTERM  # status of one that has


class Failure(Exception):
    """A run that left no result, in one line."""


def warn(message: str) -> None:
    """One line on stderr, under a progress bar too."""
    print(f"\r{Path(sys.argv[0]).stem}: {message}", file=sys.stderr)


# Records


def append(path: Path, record: dict) -> None:
    """Adds a line to a file of records. A broken last line stays, and stays the only broken one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # whoever writes too waits
        start = b""
        if file.seek(0, 2):
            file.seek(-1, 2)
            start = b"" if file.read(1) == b"\n" else b"\n"
        file.write(start + json.dumps(record).encode() + b"\n")  # one write, at the end


def read(path: Path) -> list[dict]:
    """The records of a file, [] without one; a line that is no record is named and left out."""
    records = []
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        try:
            records.append(json.loads(line))
        except ValueError:
            warn(f"{path.name}, line {number}, is no record (a run that was killed?): left out")
    return records


# Variants of the scripts


def part(variant: str) -> tuple[str, str, list[str]]:
    """'NAME:flag+flag --more 1' -> ('NAME', 'flag+flag', ['--more', '1'])."""
    head, *more = variant.split()
    name, _, mode = head.partition(":")
    return name, mode, more


def split_variant(variant: str) -> tuple[str, list[str]]:
    """'NAME:compile+no-cuda' -> ('NAME', ['--compile', '--no-cuda']); Failure if there is none."""
    name, mode, more = part(variant)
    if name not in SCRIPTS:
        raise Failure(f"no script '{name}'; there are {', '.join(SCRIPTS)}")
    known = [k.replace("_", "-") for k, v in defaults(name).items() if isinstance(v, bool)]
    flags = mode.split("+") if mode else []
    for flag in flags:
        if flag.removeprefix("no-") not in known:
            raise Failure(f"'{name}' has no mode '{flag}'; it has {', '.join(sorted(known))}")
    return name, [*(f"--{flag}" for flag in flags), *more]


def pair(variant: str) -> str:
    """The eager script's name, by which a pair goes."""
    return part(variant)[0].removesuffix("_torchcompile")


def parsed(text: str | bytes) -> ast.Module:
    """ast.parse, for threads."""
    with PARSING:
        return ast.parse(text)


def fields(text: str) -> dict[str, ast.expr]:
    """The flags of a script's Args, by the names of their fields, and each one's default as code;
    Failure without an Args."""
    for node in parsed(text).body:
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


# Which code it was


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

    return hashlib.sha256(repr(plain(parsed(text))).encode()).hexdigest()[:10]


@cache
def code(name: str) -> str | None:
    """The fingerprint of a script in ppo/ as it is now; None without one."""
    path = ROOT / "ppo" / f"{name}.py"
    return fingerprint(path.read_text()) if path.exists() else None


def code_of(path: Path, beside: Path, env_id: str = "") -> str:
    """The fingerprint of a script and of all that it imports from no library: what lies beside the
    file that it is a copy of, or on PYTHONPATH, the environment's module too ('my_envs' of
    my_envs:HiddenCartPole-v1)."""
    folders = [beside, *map(Path, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))]
    folders = [x for x in folders if not {"site-packages", "dist-packages"} & {*x.parts}]
    module = re.match(r"[\w.]+(?=:|$)", env_id)
    names, files = [module[0]] if module else [], [path]
    for file in files:  # which grows
        with suppress(SyntaxError):
            nodes = [*ast.walk(parsed(file.read_bytes()))]
            names += [x.name for node in nodes if isinstance(node, ast.Import) for x in node.names]
            names += [x.module for x in nodes if isinstance(x, ast.ImportFrom) and not x.level]
        for name in sorted({x.partition(".")[0] for x in names}):
            for place in (folder / name for folder in folders):
                package = (place / "__init__.py").exists()
                found = sorted(place.rglob("*.py")) if package else [place.with_suffix(".py")]
                files += [x for x in found if x.exists() and x not in files]
    own, others = fingerprint(path.read_text()), b"".join(x.read_bytes() for x in files[1:])
    return hashlib.sha256(own.encode() + others).hexdigest()[:10] if files[1:] else own


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


# What a run has left, and where it ran


def events(run_dir: Path) -> dict[str, list]:
    """The TensorBoard events of a run, (wall_time, step, value), by the curves' tags."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run_dir), size_guidance={"scalars": 0}).Reload()
    return {tag: found.Scalars(tag) for tag in found.Tags()["scalars"]}


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


def now() -> str:
    """UTC to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


# Processes

running: set[subprocess.Popen] = set()
stopping = threading.Event()  # set by a signal; nothing is started after it


def end_all(signum: int = signal.SIGKILL) -> None:
    """Sends a signal to each process that was started here, and to those that it has started."""
    for process in [*running]:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signum)


def catch_signals() -> None:
    """Ctrl+C, SIGTERM and a terminal that closes end what was started here, too: by SIGTERM, after
    which a script saves its checkpoint; by SIGKILL after a second signal."""
    first = math.inf

    def handler(signum, frame):
        nonlocal first
        if stopping.is_set():  # `timeout` sends each signal twice
            return end_all() if time.monotonic() > first + 0.5 else None
        first = time.monotonic()
        stopping.set()
        end_all(signal.SIGTERM)
        if signum == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + signum)

    stopping.clear()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, handler)


def cold(folder: str) -> dict:
    """Variables by which nothing that was compiled before is found: neither kernels nor, in the
    temporary folder, the precompiled header."""
    found = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TMPDIR": f"{folder}/tmp"}
    os.makedirs(found["TMPDIR"], exist_ok=True)
    return found


def run_process(command: list[str], *more, **named) -> str:
    """The standard output of a command that ended well, as timed_lines runs it."""
    return "".join(line for _, line in timed_lines(command, *more, **named))


def ended(process: subprocess.Popen, limit: float | None) -> int | None:
    """A process's status, None if it has none after so many seconds."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(limit)
    return None


def timed_lines(
    command: list[str], env: dict | None = None, limit: float | None = None
) -> list[tuple[float, str]]:
    """(seconds since its start, line) of the standard output of a command that ended well; else
    Failure with its last line. It inherits nothing of NOT_INHERITED; env adds variables. It is a
    process group of its own, which ends with it.

    After `limit` seconds it gets a SIGTERM. A script of ours then saves what it has, and that is
    well, too.
    """
    environment = {k: v for k, v in os.environ.items() if k not in NOT_INHERITED}
    environment |= {"PYTHONUNBUFFERED": "1", **(env or {})}
    started, lines = time.monotonic(), []
    how = {"text": True, "errors": "replace", "env": environment, "start_new_session": True}
    if stopping.is_set():
        raise Failure("not begun, after a signal")
    with tempfile.TemporaryFile("w+", errors="replace") as err:
        try:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, **how)
        except OSError as error:
            raise Failure(f"{command[0]}: {error.strerror}") from None
        running.add(process)

        def listen():
            with process.stdout as out:
                for line in out:
                    lines.append((time.monotonic() - started, line))

        reader = threading.Thread(target=listen, daemon=True)
        reader.start()
        try:
            status = ended(process, limit)
            if status is None:
                process.terminate()
                status = ended(process, GRACE)
                if status != SAVED:
                    raise Failure(f"no end after {limit:.0f} seconds")
        finally:
            with suppress(ProcessLookupError):  # it, or what it has left behind
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            running.discard(process)
        reader.join(5)
        err.seek(0)
        if status and (status != SAVED or stopping.is_set()):
            said = err.read().strip() or "".join(line for _, line in lines)
            framed = re.search(r"─╮\n(.*?)(?:│ ─|╰)", said, re.DOTALL)  # a message of tyro's
            said = " ".join(framed[1].replace("│", " ").split()) if framed else said
            said = [line for line in said.splitlines() if line.strip() and not BAR.search(line)]
            raise Failure(f"status {status}: {(said or ['no output'])[-1].strip()[-300:]}")
        return lines


def python(script: str, *flags) -> list[str]:
    """The command that runs a script of this repository with this interpreter."""
    return [sys.executable, str(ROOT / script), *map(str, flags)]


def shown(command: list[str]) -> str:
    """A command as a person would type it at the repository's root."""
    words = (word.removeprefix(f"{ROOT}/") for word in command[1:])
    return shlex.join(["python" if command[0] == sys.executable else command[0], *words])
