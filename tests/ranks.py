"""The ranks of test_multigpu: processes that are forked from one in which all modules are loaded.
torchrun takes seconds to start as many.
"""

import multiprocessing
import os
import runpy
import socket
import sys
from multiprocessing import forkserver
from unittest import mock

import envpool  # noqa: F401 - what a script imports
import tyro  # noqa: F401
from tqdm import tqdm  # noqa: F401

import torch.distributed.nn  # noqa: F401 - as in the scripts: it would keep the group alive
from torch.utils.tensorboard import SummaryWriter  # noqa: F401

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["ranks"])


def together(count, script, *flags, cwd):
    """As many started ranks of a script on this machine; what rank
    i prints is in out<i> and err<i>. A flag may be a function of the rank."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
        forkserver.ensure_running()  # the server of Python 3.11 would not find this file
    processes = []
    for rank in range(count):
        env = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        words = [str(flag(rank) if callable(flag) else flag) for flag in flags]
        processes.append(SERVER.Process(target=begin, args=(env, script, words, str(cwd))))
        processes[-1].start()
    return processes


def begin(env, script, words, cwd):
    """A rank's process; multiprocessing makes its status of what is raised, as Python does."""
    os.environ |= {key: str(value) for key, value in env.items()}
    os.chdir(cwd)
    for number, name in ((1, "out"), (2, "err")):
        with open(f"{name}{env['RANK']}", "w") as file:
            os.dup2(file.fileno(), number)
    sys.argv = [str(script), *words]
    runpy.run_path(str(script), run_name="__main__")
    sys.stdout.flush()


def ended(processes, cwd, timeout=300):
    """The statuses of ranks, and what they have printed, as two lists of texts."""
    for process in processes:
        process.join(timeout)
    outs, errs = (
        [(cwd / f"{x}{i}").read_text() for i in range(len(processes))] for x in ("out", "err")
    )
    return [process.exitcode for process in processes], outs, errs
