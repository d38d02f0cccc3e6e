"""One thread of PyTorch a process, as a worker has one core; one cache of compiled code for all."""

import os
import shutil
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure(config):
    """The workers of pytest-xdist, and what tests start, inherit the folder."""
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        folder = os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="inductor-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
