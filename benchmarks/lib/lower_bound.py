"""What a script cannot do without: its simulator, its arithmetic and its bytes over the bus.

    python benchmarks/lib/lower_bound.py ppo_atari_envpool --num-envs 8

Prints one JSON object: steps/s of the script's environments with actions drawn beforehand, nothing
learned, copied or counted; the floating-point operations and the bytes of one environment step; and
what the device does of them per second, at its best, with the script's own number of threads.
"""

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

import numpy as np

import torch
from torch.utils.flop_counter import FlopCounterMode


def warp_envs(script, args, name: str):
    """Worlds of MuJoCo Warp, their physics captured as in the fast version."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    envs = script.WarpVectorEnv(args.env_id, args.num_envs, device)
    fast = importlib.import_module(f"{name.removesuffix('_torchcompile')}_torchcompile")
    envs.simulate = fast.captured_by_warp(envs.simulate, envs.device)
    envs.derive = fast.captured_by_warp(envs.derive, envs.device)
    return envs


def steps_per_second(envs, num_envs: int, seconds: float) -> float:
    """Environment steps per second with random actions, after a second of them."""
    rng = np.random.default_rng(0)
    space = envs.single_action_space
    if hasattr(space, "n"):
        actions = rng.integers(0, space.n, (1024, num_envs))  # (steps, N)
    else:
        actions = rng.uniform(space.low, space.high, (1024, num_envs, *space.shape))
        actions = actions.astype(np.float32)  # (steps, N, A)
    if hasattr(envs, "elapsed"):  # on the device; its tensor is read to wait for it
        actions = torch.from_numpy(actions).to(envs.elapsed.device)
    start, steps, warm = time.perf_counter(), 0, False
    while True:
        envs.step(actions[steps % len(actions)])
        steps += 1
        if hasattr(envs, "elapsed") and steps % 16 == 0:
            envs.elapsed[0].item()
        elapsed = time.perf_counter() - start
        if not warm and elapsed > 1:
            start, steps, warm = time.perf_counter(), 0, True
        elif warm and elapsed > seconds:
            return steps * num_envs / elapsed


def operations(agent, obs: torch.Tensor, *memory) -> tuple[float, float]:
    """Floating-point operations for each row of obs: of a forward pass, and of both passes."""
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        agent(obs, *memory)
    with FlopCounterMode(display=False) as both:
        probs, value = agent(obs, *memory)[:2]
        (probs.log_prob(probs.sample()).sum() + value.sum()).backward()
    return forward.get_total_flops() / len(obs), both.get_total_flops() / len(obs)


def best_rate(work, amount: float, device: torch.device) -> float:
    """Units per second of work(), which does `amount` of them: the best of a second of calls."""

    def once():
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    end, times = time.perf_counter() + 1, [once()]
    while time.perf_counter() < end:
        times.append(once())
    return amount / min(times)


def matrix_rates(device: torch.device) -> dict[str, float]:
    """Floating-point operations per second in a product of large matrices; float32 is TF32 where
    the script allows it and a GPU has it."""
    n, side = (8192, 16) if device.type == "cuda" else (2048, 32)
    rates = {}
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.randn(n, n, device=device, dtype=dtype)
        # a @ a.T as a convolution in NHWC, which on a CPU another library computes
        w, x = a[:, :, None, None], a.view(n // side**2, side, side, n).permute(0, 3, 1, 2)
        rates[str(dtype).removeprefix("torch.")] = max(
            best_rate(lambda a=a: a @ a, 2 * n**3, device),
            best_rate(lambda x=x, w=w: torch.conv2d(x, w), 2 * n**3, device),
        )
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("script", help="a script of ppo/, whose make_envs makes the environments")
    parser.add_argument("--env-id")
    parser.add_argument("--num-envs", type=int)
    parser.add_argument("--seconds", type=float, default=5.0, help="measured after 1 second")
    given = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "ppo"))
    script = importlib.import_module(given.script)
    asked = {"env_id": given.env_id, "num_envs": given.num_envs}
    args = script.Args(**{name: value for name, value in asked.items() if value is not None})
    on_device = hasattr(script, "WarpVectorEnv")
    if on_device:
        envs = warp_envs(script, args, given.script)
    elif hasattr(script, "envpool"):
        seeds = np.random.SeedSequence(args.seed).generate_state(args.num_envs) >> 1
        envs = script.make_envs(args, seeds)
    else:
        envs = script.make_envs(args)
    agents = 1
    if hasattr(script, "ParallelEnvs"):
        agents = len(envs.agents)
        envs.reset(range(args.num_envs))
    else:
        envs.reset()
    rows = steps_per_second(envs, args.num_envs * agents, given.seconds)
    found = {"sps": rows / agents}

    shape = envs.single_observation_space.shape
    pixels = envs.single_observation_space.dtype == np.uint8
    obs = torch.zeros(
        args.batch_size // args.num_minibatches,
        *shape,
        dtype=torch.uint8 if pixels else torch.float32,
    )
    memory = []
    if hasattr(script, "action_masks"):
        memory = [torch.ones(len(obs), int(envs.single_action_space.n), dtype=torch.bool)]
    if hasattr(script, "LSTM"):
        E = args.batch_size // args.num_minibatches // args.num_steps  # environments in a minibatch
        memory = [torch.zeros(len(obs)), torch.zeros((2, E, 128) if pixels else (2, 2, E, 64))]
    sizes = []
    if hasattr(script, "Attention"):
        shape = args.trxl_memory_length, args.trxl_num_layers, args.trxl_dim
        memory = [torch.zeros(len(obs), *shape), torch.zeros(len(obs), dtype=torch.int64)]
        sizes = [args]
    forward, both = operations(script.Agent(envs, *sizes), obs, *memory)
    found["flops_acting"] = agents * forward
    found["flops_learning"] = agents * args.update_epochs * both
    devices = [torch.device("cpu")] + [torch.device("cuda")] * torch.cuda.is_available()
    found["flops_per_s"] = {device.type: matrix_rates(device) for device in devices}

    action = 8 if hasattr(envs.single_action_space, "n") else 4 * envs.single_action_space.shape[0]
    flags = 3 * 8  # reward, done and termination, float64
    acting = 0 if on_device else obs[0].nbytes + action
    found |= {"bus_bytes": agents * (acting + flags), "bus_bytes_per_s": None}
    if torch.cuda.is_available():
        block = torch.zeros(2**28, dtype=torch.uint8).pin_memory()
        target = block.cuda()
        found["bus_bytes_per_s"] = best_rate(
            lambda: target.copy_(block), block.nbytes, target.device
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
