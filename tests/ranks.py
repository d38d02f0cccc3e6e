"""A rank of test_multigpu, started by torchrun: updates on its share of rows made for all."""

import hashlib
import sys

from helpers import load, random_storage, spaces

import torch
import torch.distributed as dist
import torch.distributed.nn  # as in the scripts: it would keep the group alive

T, N, EPOCHS, MINIBATCHES = 6, 8, 3, 3


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


def main(path):
    """Saves losses, gradients and parameters after each epoch, in two precisions, of rank 0, and a
    fingerprint of them of each rank."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    module = load("ppo_atari_envpool_multigpu")
    torch.set_num_threads(1)
    batch, advantages, b_inds = rows(ranks)
    mine = slice(rank * N // ranks, (rank + 1) * N // ranks)
    batch = {key: field[:, mine].flatten(0, 1) for key, field in batch.items()}
    args, found = module.Args(norm_adv=False, num_envs=8), []
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


if __name__ == "__main__":
    main(*sys.argv[1:])
