"""One thread of PyTorch a process, as a worker has one core; one cache of compiled code for all
workers, kept for the next run; where EnvPool has no wheel, what needs it is skipped."""

import getpass
import importlib.util
import os
import sys
import tempfile
import types
from importlib.metadata import version
from pathlib import Path

import pytest

KERNELS = Path(tempfile.gettempdir(), f"inductor-{getpass.getuser()}-{version('torch')}")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# the workers of pytest-xdist, and what tests start, inherit the folder
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(KERNELS))
# a third of the time of compiling with an empty cache: no trial of this processor's instructions
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
HAS_ENVPOOL = importlib.util.find_spec("envpool") is not None


class Missing(types.ModuleType):
    """In place of EnvPool: a test that uses any of it is skipped."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(name)

    def __call__(self, *args, **kwargs):
        pytest.skip("needs EnvPool")

    __iter__ = __getitem__ = __call__


if not HAS_ENVPOOL:
    sys.modules["envpool"] = Missing("envpool")


def pytest_collection_modifyitems(items):
    """Skips what starts a script of EnvPool's as a process of its own."""
    for item in items:
        if not HAS_ENVPOOL and ("envpool" in item.name or item.get_closest_marker("envpool")):
            item.add_marker(pytest.mark.skip(reason="needs EnvPool"))


def pytest_runtest_setup(item):
    """MuJoCo Warp's kernels are compiled once for all workers."""
    from helpers import compile_kernels

    if "warp" in item.nodeid and item.path.stem in ("test_warp", "test_scripts"):
        compile_kernels("HalfCheetah-v5", "cuda" if item.get_closest_marker("gpu") else "cpu")
