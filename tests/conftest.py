"""One thread of PyTorch a process, as a worker has one core; one cache of compiled code for all
workers, kept for the next run."""

import getpass
import os
import tempfile
from importlib.metadata import version
from pathlib import Path

KERNELS = Path(tempfile.gettempdir(), f"inductor-{getpass.getuser()}-{version('torch')}")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# the workers of pytest-xdist, and what tests start, inherit the folder
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(KERNELS))
# a third of the time of compiling with an empty cache: no trial of this processor's instructions
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")


def pytest_runtest_setup(item):
    """MuJoCo Warp's kernels are compiled once for all workers."""
    from helpers import compile_kernels

    if "warp" in item.nodeid and item.path.stem in ("test_warp", "test_scripts"):
        compile_kernels("HalfCheetah-v5", "cuda" if item.get_closest_marker("gpu") else "cpu")
