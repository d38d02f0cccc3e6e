"""The ranks of test_multigpu: processes that are forked from one in which all modules are loaded,
and one that updates on its share of rows made for all. torchrun takes seconds to start as many.
"""

import hashlib
import multiprocessing
import os
import runpy
import socket
import sys
from multiprocessing import forkserver
from unittest import mock

import envpool  # noqa: F401 - what a script imports
import tyro  # noqa: F401
from helpers import load, random_storage, spaces
from tqdm import tqdm  # noqa: F401

import torch
import torch.distributed as dist
import torch.distributed.nn  # as in the scripts: it would keep the group alive
from torch.utils.tensorboard import SummaryWriter  # noqa: F401

T, N, EPOCHS, MINIBATCHES = 6, 9, 3, 3
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["ranks"])


def together(count, script, *flags, cwd):
    """As many started ranks of a script, or of a function of this file, on this machine; what rank
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
    if callable(script):
        return script(*words)
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


def rows(ranks):
    """A batch of all ranks, (T, N, ...), raw advantages, (T, N), and each rank's minibatches.

    In the first minibatch of all the last rank has no valid row.
    """
    storage, *_ = random_storage("ppo_atari_envpool_multigpu", T, N)
    batch = {key: field[:T] for key, field in storage.items()}
    rng = torch.Generator().manual_seed(1)
    batch["returns"] = torch.randn((T, N), generator=rng)
    share = (EPOCHS, MINIBATCHES, T * N // ranks // MINIBATCHES)
    orders = [
        torch.stack([torch.randperm(T * N // ranks, generator=rng) for _ in range(EPOCHS)])
        for _ in range(ranks)
    ]
    b_inds = [order.view(share) for order in orders]
    mine = batch["valid"][:, -(N // ranks) :]
    flat = mine.flatten()
    flat[b_inds[-1][0, 0]] = 0.0
    mine.copy_(flat.view_as(mine))
    return batch, 0.5 + 2 * torch.randn((T, N), generator=rng).double(), b_inds


def cast(batch, dtype):
    """Its float fields as dtype."""
    return {key: x.to(dtype) if x.dtype == torch.float32 else x for key, x in batch.items()}


def learner(module, dtype):
    """The agent, bolder than at its start, and its optimizer."""
    torch.manual_seed(0)
    agent = module.Agent(spaces("atari")).to(dtype)
    if dtype == torch.float64:
        agent.network.register_forward_pre_hook(lambda module, args: args[0].double())
    agent.actor.weight.data.mul_(100.0)
    return agent, torch.optim.Adam(agent.parameters(), lr=1e-3, eps=1e-5, fused=True)


def flat(agent, what):
    return torch.cat([what(parameter).detach().flatten() for parameter in agent.parameters()])


def share(path):
    """Saves losses, gradients and parameters after each epoch, in two precisions, of rank 0, and a
    fingerprint of them of each rank."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    module = load("ppo_atari_envpool_multigpu")
    torch.set_num_threads(1)
    batch, advantages, b_inds = rows(ranks)
    mine = slice(rank * N // ranks, (rank + 1) * N // ranks)
    batch = {key: field[:, mine].flatten(0, 1) for key, field in batch.items()}
    args, found = module.Args(norm_adv=False, num_envs=N), []
    for dtype in (torch.float32, torch.float64):
        agent, optimizer = learner(module, dtype)
        fields = cast(batch, dtype)
        for order in b_inds[rank]:
            module.weigh(batch, advantages[:, mine].flatten(), order, norm_adv=True)
            for key in ("weights", "advantages"):
                fields[key].copy_(batch[key])
            losses = module.train_epoch(agent, optimizer, fields, args, order)
            found.append([losses, flat(agent, lambda p: p.grad), flat(agent, lambda p: p)])
    fingerprints = [None] * ranks
    own = [hashlib.sha256(x.numpy()).hexdigest() for after in found for x in after]
    dist.all_gather_object(fingerprints, own)
    if rank == 0:
        torch.save([fingerprints, found], path)
    dist.destroy_process_group()  # else gloo may free a tensor of Python at exit, and abort
