"""Proximal Policy Optimization (PPO) on Atari, with the games simulated by EnvPool: one of a pair.

    python ppo/ppo_atari_envpool.py                                          # eager, to be read
    python ppo/ppo_atari_envpool_torchcompile.py --compile --cudagraphs      # the same, made fast
    diff -u ppo/ppo_atari_envpool.py ppo/ppo_atari_envpool_torchcompile.py   # how

Sources: PPO, arXiv:1707.06347; advantages, arXiv:1506.02438; network, doi:10.1038/nature14236;
names and defaults, CleanRL's ppo_atari_envpool.py.
Shapes: T num_steps, N num_envs, A actions, B = T * N batch_size, M minibatch_size.
Time: row t is step t; row T holds next_obs. dones[t] and terminations[t] came with obs[t].
EnvPool resets on the next step: where dones[t] is set, obs[t] is the last of an episode, the action
is ignored, and row t is no transition. Such rows have valid[t] = 0 and weigh nothing.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch>=2.11,<2.14",
#   # fast: CUDA graphs, and the storage
#   "tensordict>=0.15",
#   "envpool>=1.2.5",
#   "gymnasium>=1.2",
#   "numpy>=2",
#   "tyro",
#   "tqdm",
#   "tensorboard",
#   "wandb",
# ]
# ///
import os
import time

START_TIME = time.perf_counter()  # before the slow imports: start-up seconds count them
# fast: OpenMP's idle threads sleep soon (set before torch is loaded); by default they spin on cores
# that others need: alone that costs nothing, but two runs on the same 2 cores take 4 times as long
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# fast: for mallopt, below
import ctypes
import difflib
import io
import json
import math
import platform
import random
import shlex
import signal
import sys
import threading
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import NoReturn

import envpool
import gymnasium as gym
import numpy as np
import tyro
from tqdm import tqdm

import torch
import torch.nn as nn
import torch.optim as optim

# fast: CudaGraphModule captures a call and replays it; TensorDict holds the rollout
from tensordict import TensorDict, from_module
from tensordict.nn import CudaGraphModule
from torch.distributions.categorical import Categorical
from torch.utils.tensorboard import SummaryWriter

torch.set_float32_matmul_precision("high")  # TF32 where a GPU has it
# fast: loss, backward and clipping compile to one graph; without it the graph breaks at backward
if hasattr(torch._dynamo.config, "trace_autograd_ops"):
    torch._dynamo.config.trace_autograd_ops = True

PAIR, FORMAT = "ppo_atari_envpool", 1  # of a checkpoint: who can read it
LIBRARIES = ("torch", "tensordict", "envpool", "gymnasium", "numpy")
LOSSES = (
    "policy_loss",
    "value_loss",
    "entropy",
    "old_approx_kl",
    "approx_kl",
    "clipfrac",
    "grad_norm",
)


@dataclass
class Args:
    exp_name: str = os.path.basename(__file__).removesuffix(".py")
    """name of the run, part of its folder's name"""
    seed: int = 1
    """seed of the games, the network and the sampling, 0 or more"""
    torch_deterministic: bool = True
    """cuDNN picks deterministic kernels; --no-torch-deterministic lets it pick faster ones"""
    cuda: bool = True
    """use the GPU if there is one; --no-cuda keeps everything on the CPU"""
    track: bool = False
    """send the metrics to Weights & Biases as well"""
    wandb_project_name: str = "ppo"
    """project on Weights & Biases; read with --track"""
    wandb_entity: str | None = None
    """team on Weights & Biases; None is your own account; read with --track"""
    runs_dir: str = "runs"
    """folder that gets a folder for this run"""
    checkpoint_interval: int = 50
    """iterations between two checkpoints; 0 leaves the one at the end"""
    resume: str | None = None
    """run folder, or checkpoint, to go on with; None starts anew. Its arguments are the defaults"""

    env_id: str = "Breakout-v5"
    """an Atari game of EnvPool's"""
    total_timesteps: int = 10_000_000
    """environment steps (of 4 frames) in all, rounded down to whole rollouts"""
    learning_rate: float = 2.5e-4
    """Adam's step size, above 0"""
    num_envs: int = 8
    """N, games played side by side"""
    num_steps: int = 128
    """T, steps of each game in a rollout"""
    anneal_lr: bool = True
    """let the learning rate fall linearly to 0; --no-anneal-lr keeps it constant"""
    gamma: float = 0.99
    """discount of a step, 0 to 1"""
    gae_lambda: float = 0.95
    """decay of the advantage estimator, 0 (one-step) to 1 (Monte Carlo)"""
    num_minibatches: int = 4
    """gradient steps in an epoch; divides num_envs * num_steps"""
    update_epochs: int = 4
    """passes over a rollout's rows"""
    norm_adv: bool = True
    """normalise the advantages of each minibatch; --no-norm-adv leaves them"""
    clip_coef: float = 0.1
    """the probability ratio is clipped to 1 ± this; inf switches clipping off"""
    clip_vloss: bool = True
    """clip the change of the value by clip_coef too; --no-clip-vloss: plain squared error"""
    ent_coef: float = 0.01
    """weight of the entropy bonus; 0 switches it off"""
    vf_coef: float = 0.5
    """weight of the value loss"""
    max_grad_norm: float = 0.5
    """gradients are scaled down to this Euclidean norm; inf switches it off"""
    target_kl: float | None = None
    """end an update after the epoch whose mean approx_kl exceeds this; None never does"""
    cleanrl_semantics: bool = False
    """train on reset rows and take time limits as terminal, as CleanRL does: for comparison only"""
    measure_burnin: int = 3
    """iterations left out of the steps per second"""
    # fast: what can be switched, so that its gain can be measured
    compile: bool = False
    """compile acting and the gradients with torch.compile: the first iteration takes longer"""
    cudagraphs: bool = False
    """capture acting and each epoch in CUDA graphs; without a CUDA device it changes nothing"""
    channels_last: bool = True
    """with --compile, convolutions in NHWC; --no-channels-last computes them in NCHW"""
    keep_memory: bool = True
    """keep freed memory in the process (glibc); --no-keep-memory gives large blocks back at once"""
    bfloat16: bool = False
    """convolutions and hidden layer in bfloat16, 2 to 3 digits: losses differ from the first on"""

    @property
    def batch_size(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def minibatch_size(self) -> int:
        return self.batch_size // self.num_minibatches

    @property
    def num_iterations(self) -> int:
        return self.total_timesteps // self.batch_size


def fail(name: str, value: object, hint: str) -> NoReturn:
    """Ends a run that cannot start: one line on stderr, naming the flag, and exit status 2."""
    print(f"error: --{name.replace('_', '-')} {value}: {hint}", file=sys.stderr)
    sys.exit(2)


def check_args(args: Args) -> None:
    """Fails on the first value that is out of range."""
    for name, in_range, hint in (
        ("seed", 0 <= args.seed < 2**32, "give a whole number from 0 to 4294967295"),
        ("total_timesteps", args.total_timesteps >= 1, "give 1 or more"),
        ("learning_rate", 0 < args.learning_rate < math.inf, "give a finite number above 0"),
        ("num_envs", args.num_envs >= 1, "give 1 or more"),
        ("num_steps", args.num_steps >= 1, "give 1 or more"),
        ("gamma", 0 <= args.gamma <= 1, "give a number from 0 to 1"),
        ("gae_lambda", 0 <= args.gae_lambda <= 1, "give a number from 0 to 1"),
        ("num_minibatches", args.num_minibatches >= 1, "give 1 or more"),
        ("update_epochs", args.update_epochs >= 1, "give 1 or more"),
        ("clip_coef", args.clip_coef > 0, "give a number above 0 (inf: no clipping)"),
        ("ent_coef", 0 <= args.ent_coef < math.inf, "give 0 or a finite number above"),
        ("vf_coef", 0 <= args.vf_coef < math.inf, "give 0 or a finite number above"),
        ("max_grad_norm", args.max_grad_norm > 0, "give a number above 0 (inf: no clipping)"),
        ("target_kl", (args.target_kl or 0) > 0 or args.target_kl is None, "give None, or above 0"),
        ("checkpoint_interval", args.checkpoint_interval >= 0, "give 0 or more"),
        ("measure_burnin", args.measure_burnin >= 0, "give 0 or more"),
    ):
        if not in_range:
            fail(name, getattr(args, name), hint)
    rows = f"{args.num_envs} envs x {args.num_steps} steps = {args.batch_size} rows"
    if args.batch_size % args.num_minibatches:
        fail("num_minibatches", args.num_minibatches, f"give a divisor of {rows}")
    if args.minibatch_size < 2:
        fail("num_minibatches", args.num_minibatches, f"leave 2 rows or more to each, of {rows}")
    if args.num_iterations < 1:
        fail("total_timesteps", args.total_timesteps, f"give at least one rollout, {rows}")
    if args.track and find_spec("wandb") is None:
        fail("track", True, "needs wandb: pip install wandb, or leave the flag out")
    if args.track and os.environ.get("WANDB_MODE") not in ("offline", "disabled"):
        import wandb

        try:
            if not wandb.login(prompt=False):
                hint = "needs a key: wandb login, or WANDB_API_KEY, or WANDB_MODE=offline"
                fail("track", True, hint)
        except wandb.Error as error:  # no network, or a wrong key: `wandb sync` can send it later
            complain(f"wandb goes on offline: {error}")
            os.environ["WANDB_MODE"] = "offline"


def load_checkpoint(path: str) -> dict:
    """The checkpoint in a run's folder, or in a file, on the CPU; fails where there is none."""
    file = os.path.join(path, "checkpoint.pt") if os.path.isdir(path) else path
    try:
        with open(file, "rb") as opened:
            data = io.BytesIO(opened.read())
    except OSError as error:
        fail("resume", path, f"give a run's folder or its checkpoint ({error.strerror}: {file})")
    try:
        checkpoint = torch.load(data, map_location="cpu", weights_only=True)
    except Exception:  # what a file that is none makes torch.load raise depends on its bytes
        fail("resume", path, "not a whole checkpoint, or one that holds more than plain values")
    checkpoint = checkpoint if isinstance(checkpoint, dict) else {}
    found, number = checkpoint.get("pair"), checkpoint.get("format")
    if found != PAIR:
        fail("resume", path, f"a checkpoint of {found or 'something else'}, not of {PAIR}")
    if number != FORMAT:
        fail("resume", path, f"of format {number}, this script reads {FORMAT}: use its own version")
    return checkpoint


def read_args() -> tuple[Args, dict | None]:
    """The command line's arguments, on top of those of the run that it resumes, if it does.

    Also returns that run's checkpoint. Fails where the two would differ in network or batch.
    """
    args = tyro.cli(Args)
    if args.resume is None:
        return args, None
    checkpoint = load_checkpoint(args.resume)
    names = asdict(args).keys() - {"resume", "runs_dir"}
    saved = {key: value for key, value in checkpoint["args"].items() if key in names}
    args = tyro.cli(Args, default=Args(**saved, resume=args.resume, runs_dir=args.runs_dir))
    if os.path.isfile(args.resume) and os.path.basename(args.resume) != "checkpoint.pt":
        fail("resume", args.resume, "call it checkpoint.pt, in a folder of its own: it is replaced")
    for name in ("env_id", "seed", "num_envs", "num_steps", "num_minibatches"):
        if getattr(args, name) != saved[name]:
            fail(name, getattr(args, name), f"the run to resume has {saved[name]}, and keeps it")
    if args.num_iterations <= checkpoint["iteration"]:
        done = checkpoint["global_step"]
        fail("total_timesteps", args.total_timesteps, f"give more: the run has done {done} steps")
    return args, checkpoint


def make_envs(args: Args, global_step: int = 0) -> gym.vector.VectorEnv:
    """N Atari games in EnvPool: obs (N, 4, 84, 84) uint8, rewards clipped to their sign.

    A lost life ends the episode, not the game. Each game has a seed of its own: a single seed would
    give game i the seed + i, so that runs with seeds 1 and 2 would share all games but one. A run
    that goes on from global_step plays other games than it began with.
    """
    seeds = np.random.SeedSequence([args.seed, global_step]).generate_state(args.num_envs) >> 1
    env_ids = envpool.list_all_envs()
    if args.env_id not in env_ids:
        near = ", ".join(difflib.get_close_matches(args.env_id, env_ids, n=3, cutoff=0.0))
        fail("env_id", args.env_id, f"not in EnvPool; the nearest are {near}")
    try:
        spec = envpool.make_spec(args.env_id)
    except (ImportError, RuntimeError) as error:
        fail("env_id", args.env_id, f"EnvPool cannot make it: {' '.join(str(error).split())}")
    actions, pixels = spec.gymnasium_action_space, spec.state_array_spec.get("obs")
    if not isinstance(actions, gym.spaces.Discrete):
        fail("env_id", args.env_id, f"give one with discrete actions (Pong-v5), not {actions}")
    if pixels is None or list(pixels.shape) != [4, 84, 84]:
        fail("env_id", args.env_id, "give one with observations of 4x84x84 pixels (Pong-v5)")
    return envpool.make(
        args.env_id,
        env_type="gym",
        num_envs=args.num_envs,
        episodic_life=True,
        reward_clip=True,
        seed=seeds.tolist(),
    )


class EpisodeStatistics:
    """Return and length of each finished game, an episode of all lives, with unclipped rewards."""

    def __init__(self, num_envs: int):
        self.returns = np.zeros(num_envs)  # (N,)
        self.lengths = np.zeros(num_envs, dtype=np.int64)  # (N,)
        self.dones = np.zeros(num_envs, dtype=bool)  # (N,), of the observation that was acted on

    def step(self, reward, terminated, truncated, info) -> list[tuple[float, int]]:
        """From what `envs.step` returned, (N,) each: (return, length) of episodes that ended."""
        valid = ~self.dones
        self.dones = terminated | truncated
        self.returns += info.get("reward", reward) * valid
        self.lengths += valid
        # a lost life sets terminated, the end of the game sets info["terminated"]
        game_over = info["terminated"] > 0 if "lives" in info else terminated
        ended = (game_over | truncated) & valid
        episodes = [(float(self.returns[i]), int(self.lengths[i])) for i in np.flatnonzero(ended)]
        self.returns[ended] = self.lengths[ended] = 0
        return episodes


def layer_init(layer, std=2**0.5, bias_const=0.0):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias_const)
    return layer


class Agent(nn.Module):
    """Nature CNN: obs (M, 4, 84, 84) uint8 -> logits (M, A), value (M,), float32."""

    def __init__(self, envs, device=None):
        super().__init__()
        self.network = nn.Sequential(
            layer_init(nn.Conv2d(4, 32, 8, stride=4, device=device)),
            nn.ReLU(),
            layer_init(nn.Conv2d(32, 64, 4, stride=2, device=device)),
            nn.ReLU(),
            layer_init(nn.Conv2d(64, 64, 3, stride=1, device=device)),
            nn.ReLU(),
            nn.Flatten(),
            layer_init(nn.Linear(64 * 7 * 7, 512, device=device)),
            nn.ReLU(),
        )
        self.actor = layer_init(nn.Linear(512, envs.single_action_space.n, device=device), std=0.01)
        self.critic = layer_init(nn.Linear(512, 1, device=device), std=1)

    def forward(self, obs):
        hidden = self.network(obs.float().div_(255.0))  # (M, 512)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


def masked_mean(x, valid):
    """Mean of x over the rows where valid, float of the same shape, is 1; 0 where there is none."""
    return (x * valid).sum() / valid.sum().clamp(min=1.0)


def compute_gae(rewards, dones, terminations, values, gamma, gae_lambda):
    """Generalised advantages of one rollout (arXiv:1506.02438, equation 16).

    rewards, dones, terminations, values: (T + 1, N) float64; row T of rewards is not read.
    A truncated episode bootstraps from its last observation, whose value is values[t + 1].
    Returns advantages, (T, N) float64; those of reset rows mean nothing.
    """
    # fast: advantages[t] = delta[t] + decay[t] * advantages[t + 1] as a scan (Hillis and Steele,
    # doi:10.1145/7902.7903): about 5 log2(T) operations, where the loop takes about 10 T small ones
    advantages = rewards[:-1] + gamma * values[1:] * (1 - terminations[1:]) - values[:-1]
    decay = gamma * gae_lambda * (1 - dones[1:])
    span = 1  # rows already summed into each advantage
    while span < len(advantages):
        advantages[:-span] += decay[:-span] * advantages[span:]
        decay[:-span] = decay[:-span] * decay[span:]
        span *= 2
    return advantages


def explained_variance(values, returns, valid):
    """1 - Var[returns - values] / Var[returns] over the valid rows, (); nan at constant returns."""
    residual = returns - values
    var_residual = masked_mean((residual - masked_mean(residual, valid)).square(), valid)
    var_returns = masked_mean((returns - masked_mean(returns, valid)).square(), valid)
    return torch.where(var_returns > 0, 1 - var_residual / var_returns, torch.nan)


def ppo_loss(newlogprob, entropy, newvalue, mb, args):
    """PPO's clipped loss (arXiv:1707.06347, equations 7 and 9) over a minibatch's valid rows.

    The value is clipped as OpenAI Baselines' ppo2 does.

    newlogprob, entropy, newvalue: (M,) float32, of the network as it is now; mb: fields (M,) as the
    rollout left them, where `valid` is 1, or 0 for a row that is no transition; args: coefficients.
    Returns the loss, (), and the first six of LOSSES, (6,), detached. With no valid row all are 0.
    """
    valid, advantages, returns, values = mb["valid"], mb["advantages"], mb["returns"], mb["values"]
    logratio = (newlogprob - mb["logprobs"]) * valid
    ratio = logratio.exp()
    if args.norm_adv:
        centered = (advantages - masked_mean(advantages, valid)) * valid
        std = (centered.square().sum() / (valid.sum() - 1).clamp(min=1.0)).sqrt()
        advantages = centered / (std + 1e-8)

    pg_loss1 = -advantages * ratio
    pg_loss2 = -advantages * ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
    pg_loss = masked_mean(torch.max(pg_loss1, pg_loss2), valid)

    v_loss = (newvalue - returns).square()
    if args.clip_vloss:
        v_clipped = values + (newvalue - values).clamp(-args.clip_coef, args.clip_coef)
        v_loss = torch.max(v_loss, (v_clipped - returns).square())
    v_loss = 0.5 * masked_mean(v_loss, valid)

    entropy_loss = masked_mean(entropy, valid)
    loss = pg_loss - args.ent_coef * entropy_loss + args.vf_coef * v_loss

    old_approx_kl = masked_mean(-logratio, valid)
    approx_kl = masked_mean((ratio - 1) - logratio, valid)  # http://joschu.net/blog/kl-approx.html
    clipfrac = masked_mean(((ratio - 1).abs() > args.clip_coef).float(), valid)
    losses = torch.stack([pg_loss, v_loss, entropy_loss, old_approx_kl, approx_kl, clipfrac])
    return loss, losses.detach()


@torch.no_grad()
def act(agent, storage, noise, step):
    """Samples the actions of row `step` from the policy and fills that row of the storage.

    storage: fields (T + 1, N, ...); noise: (T + 1, N, A) from Exponential(1); step: a row's index.
    Returns the actions, (N,) int64: the argmax of probs / noise is a sample of probs.
    """
    # fast: a (1,) index is an input of the one graph for all rows; an int would be frozen in it, a
    # () one fetched by the host
    obs, exponential = storage["obs"][step][0], noise[step][0]  # (N, 4, 84, 84), (N, A)
    logits, value = agent(obs)  # (N, A), (N,)
    probs = Categorical(logits=logits, validate_args=False)
    action = (probs.probs / exponential).argmax(-1)
    storage["actions"][step] = action
    storage["logprobs"][step] = probs.log_prob(action)
    storage["values"][step] = value
    return action


def compute_gradients(agent, args, batch, mb_inds):
    """Adds to the parameters' .grad the gradient of the loss on a minibatch, and clips it.

    batch: fields (B, ...) of the storage; mb_inds: (M,) int64, the minibatch's rows.
    Returns LOSSES, (7,) float32.
    """
    mb = {key: rows.index_select(0, mb_inds) for key, rows in batch.items()}  # (M, ...)
    logits, newvalue = agent(mb["obs"])  # (M, A), (M,)
    probs = Categorical(logits=logits, validate_args=False)
    newlogprob, entropy = probs.log_prob(mb["actions"]), probs.entropy()
    loss, losses = ppo_loss(newlogprob, entropy, newvalue, mb, args)
    loss.backward()
    grad_norm = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
    return torch.cat([losses, grad_norm.view(1)])


def update(gradients, optimizer, b_inds):
    """One epoch: a gradient step on each minibatch.

    gradients: compute_gradients with all but mb_inds bound; b_inds: (B / M, M) int64, the rows of
    each minibatch. Returns their LOSSES, (B / M, 7) float32.
    """
    losses = []
    for mb_inds in b_inds:
        optimizer.zero_grad()
        losses.append(gradients(mb_inds))
        optimizer.step()
    return torch.stack(losses)


def random_states(device) -> dict:
    """The random states of Python, NumPy, PyTorch and the device, as plain values."""
    algorithm, key, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (algorithm, key.tolist(), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def set_random_states(states: dict, device) -> None:
    """Goes on from random_states; a GPU keeps its own if there was none."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if device.type == "cuda" and states["cuda"] is not None:
        torch.cuda.set_rng_state(states["cuda"], device)


@cache
def complain(message: str) -> None:
    """A line on stderr for what training goes on without; cached, so that each comes once."""
    with suppress(OSError):  # stderr may be a closed pipe, or a file on the same full disk
        tqdm.write(f"warning: {message}", file=sys.stderr)


class Curves(SummaryWriter):
    """TensorBoard's writer. Points that a full disk does not take are lost; training goes on."""

    def __init__(self, log_dir: str, purge_step: int | None):
        super().__init__(log_dir, purge_step=purge_step)
        self.retry_time = 0.0
        threading.excepthook = self.thread_failed

    def thread_failed(self, failed):
        if not issubclass(failed.exc_type, OSError):  # that one the next add_scalar raises
            threading.__excepthook__(failed)

    def add_scalar(self, tag, value, step):
        if time.monotonic() < self.retry_time:
            return
        try:
            super().add_scalar(tag, value, step)
        except OSError as error:
            complain(f"{self.log_dir}: curves have a gap: {error.strerror}")
            self.file_writer = self.all_writers = None  # the next point opens a new file
            self.retry_time = time.monotonic() + 300

    def close(self):
        try:
            super().close()
        except OSError as error:
            complain(f"{self.log_dir}: curves have a gap: {error.strerror}")


def replace_file(path: str, data: bytes) -> bool:
    """Puts data at path in one step: who looks finds the old file or the new one, whole.

    A disk that does not take it leaves the old one, a warning, and False.
    """
    try:
        with open(f"{path}.tmp", "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.tmp", path)
        return True
    except OSError as error:
        complain(f"{path}: {error.strerror}")
        with suppress(OSError):
            os.remove(f"{path}.tmp")
        return False


def cpu_model() -> str:
    """Name of the processor, as Linux gives it."""
    with open("/proc/cpuinfo") as file:
        names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def clock(device) -> float:
    """Seconds, read after the device has finished what was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


if __name__ == "__main__":
    args, checkpoint = read_args()
    check_args(args)
    device = torch.device("cuda" if torch.cuda.is_available() and args.cuda else "cpu")
    # fast: without a GPU --cudagraphs is left out, in one line; mode names what runs
    cudagraphs = args.cudagraphs and device.type == "cuda"
    if args.cudagraphs and not cudagraphs:
        print("--cudagraphs needs a CUDA device: running without", file=sys.stderr)
    modes = {"compile": args.compile, "cudagraphs": cudagraphs, "bfloat16": args.bfloat16}
    mode = "+".join(name for name, on in modes.items() if on) or "eager"
    # fast: M_TRIM_THRESHOLD and M_MMAP_THRESHOLD at their top (old glibc: 32 MiB): freed blocks are
    # used again; else a large tensor gets new pages, zeroed: a CPU's update takes a third longer
    if args.keep_memory and sys.platform == "linux":
        ctypes.CDLL(None).mallopt(-1, 2**31 - 1)
        ctypes.CDLL(None).mallopt(-3, 2**31 - 1) or ctypes.CDLL(None).mallopt(-3, 2**25)
    print(f"{mode} on {device.type}: {args.env_id}, {args.num_envs} envs x {args.num_steps} steps")

    iterations_done = global_step = 0
    if checkpoint is not None:
        iterations_done, global_step = checkpoint["iteration"], checkpoint["global_step"]
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.backends.cudnn.deterministic = args.torch_deterministic

    envs = make_envs(args, global_step)
    agent = Agent(envs, device=device)
    # fast: convolutions in NHWC; in NCHW an update on 2 CPU cores takes a tenth longer
    channels_last = args.compile and args.channels_last
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    agent.to(memory_format=memory_format)
    # fast: a second agent acts, on the same memory without .grad: its graph depends on nothing that
    # training attaches to a parameter; on 2 CPU cores leaving it out costs nothing
    agent_inference = Agent(envs, device="meta")  # draws no random numbers
    from_module(agent).data.to_module(agent_inference)
    # fast: half the bytes and, where a processor has it, twice the rate; parameters, heads, losses
    # and Adam stay float32; left out, 2 cores with AVX512-BF16 take 3/4 longer for an update
    if args.bfloat16:
        for network in (agent.network, agent_inference.network):
            network.forward = torch.autocast(device.type, torch.bfloat16)(network.forward)
            network.register_forward_hook(lambda module, inputs, hidden: hidden.float())
    optimizer = optim.Adam(
        agent.parameters(),
        eps=1e-5,
        fused=True,
        # fast: a graph reads a tensor anew at each replay, a float would be frozen into it; without
        # capturable Adam's step raises when it is captured
        lr=torch.tensor(args.learning_rate, device=device),
        capturable=device.type == "cuda",
    )

    episodes, recent_returns = 0, deque(maxlen=100)
    if checkpoint is not None:
        agent.load_state_dict(checkpoint["agent"])
        adam = {"state": checkpoint["optimizer"]["state"]}
        optimizer.load_state_dict(optimizer.state_dict() | adam)  # its settings are this file's
        for parameter, moments in optimizer.state.items():  # laid out as the parameters are
            for key in ("exp_avg", "exp_avg_sq"):
                moments[key] = torch.empty_like(parameter).copy_(moments[key])
        set_random_states(checkpoint["random"], device)
        episodes = checkpoint["episodes"]
        recent_returns.extend(checkpoint["recent_returns"])

    # rows 0 to T - 1 are the rollout; row T, next_obs and its value, is row 0 of the next one
    T, N = args.num_steps, args.num_envs
    next_obs, _ = envs.reset()
    storage = {
        "obs": torch.zeros((T + 1, *next_obs.shape), dtype=torch.uint8, device=device),
        "actions": torch.zeros((T + 1, N), dtype=torch.int64, device=device),
        "logprobs": torch.zeros((T + 1, N), device=device),
        "values": torch.zeros((T + 1, N), device=device),
        "advantages": torch.zeros((T + 1, N), device=device),
        "returns": torch.zeros((T + 1, N), device=device),
        "valid": torch.zeros((T + 1, N), device=device),
    }
    # fast: observations are stored as the convolutions read them; else each minibatch is laid out
    # anew, and an update on 2 CPU cores takes a tenth longer
    rows = storage["obs"].flatten(0, 1).to(memory_format=memory_format)
    storage["obs"] = rows.unflatten(0, (T + 1, N))
    # fast: one flatten makes views of all fields, at the addresses that a graph captures; a
    # dictionary of views would have them too, in a longer line
    storage = TensorDict(storage, batch_size=(T + 1, N))
    batch = storage[:T].flatten().to_dict()  # (B, ...) views
    obs = storage["obs"]  # (T + 1, N, 4, 84, 84)
    obs[T] = torch.from_numpy(next_obs)
    noise = torch.zeros((T + 1, N, envs.single_action_space.n), device=device)
    # what acting does not need stays on the host until the rollout ends
    host = np.zeros((3, T + 1, N))
    host_rewards, host_dones, host_terminations = host  # (T + 1, N) each

    # executables, with what stays the same from call to call bound
    # fast: elementwise work is fused, forward and backward; else each operation passes over memory
    if args.compile:
        act, compute_gradients = torch.compile(act), torch.compile(compute_gradients)
    act = partial(act, agent_inference, storage, noise)
    gradients = partial(compute_gradients, agent, args, batch)
    update = partial(update, gradients, optimizer)
    # fast: one launch replays a step or an epoch, instead of hundreds; the first two calls compile
    # and allocate, the third captures; all are real updates
    if cudagraphs:
        act, update = CudaGraphModule(act, warmup=3), CudaGraphModule(update, warmup=3)
    steps = torch.arange(T + 1, device=device).split(1)  # T + 1 tensors, (1,) each

    run_name = f"{args.env_id}__{args.exp_name}__{args.seed}__{datetime.now():%y%m%d-%H%M%S-%f}"
    run_dir = os.path.join(args.runs_dir, run_name.replace("/", "_"))
    if checkpoint is not None:
        run_dir = args.resume if os.path.isdir(args.resume) else os.path.dirname(args.resume) or "."
        run_name = os.path.basename(os.path.abspath(run_dir))
    checkpoint_path = os.path.join(run_dir, "checkpoint.pt")
    try:
        os.makedirs(run_dir, exist_ok=checkpoint is not None)
        with open(f"{checkpoint_path}.tmp", "wb") as file:  # what a killed run left, or nothing
            file.write(b"room")
        os.remove(f"{checkpoint_path}.tmp")
    except OSError as error:
        flag = ("runs_dir", args.runs_dir) if checkpoint is None else ("resume", args.resume)
        fail(*flag, f"give a folder that can be written ({error.strerror})")
    wandb_id = checkpoint["wandb_id"] if checkpoint is not None else None
    if args.track:
        import wandb

        run = {
            "project": args.wandb_project_name,
            "entity": args.wandb_entity,
            "id": wandb_id,
            "resume": "allow",
            "mode": os.environ.get("WANDB_MODE"),  # which check_args may have set
            "sync_tensorboard": True,
            "config": asdict(args),
            "name": run_name,
            "dir": run_dir,
            "save_code": True,
        }
        try:
            wandb.init(**run)
        except wandb.Error as error:
            complain(f"wandb goes on offline: {error}")
            wandb.init(**{**run, "mode": "offline"})
        wandb_id = wandb.run.id
    # resumed, the curves go on after the checkpoint: later points of the run that ended are purged
    writer = Curves(run_dir, purge_step=None if checkpoint is None else global_step + 1)
    table = [f"|{key}|{value}|" for key, value in asdict(args).items()]
    writer.add_text("hyperparameters", "\n".join(["|param|value|", "|-|-|", *table]))

    statistics = EpisodeStatistics(N)
    burnin_end, burnin_step = iterations_done + args.measure_burnin, global_step
    sps = startup_s = None
    phase_s = np.zeros(4)  # seconds in each phase, after burn-in
    burnin_time = clock(device)
    versions = {name: version(name) for name in LIBRARIES if name in sys.modules}
    saved, stop_signals = True, []

    def stop(signum, frame):
        stop_signals.append(signum)
        for each in handlers:
            signal.signal(each, signal.SIG_DFL)
        with suppress(OSError):  # the terminal may be gone
            os.write(2, b"\nstopping after this iteration; once more: at once\n")

    handlers = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    progress = tqdm(
        total=args.num_iterations * args.batch_size,
        initial=global_step,
        unit="step",
        unit_scale=True,
        delay=1e-9,  # first drawn in the loop, where it may fail
    )
    for iteration in range(iterations_done + 1, args.num_iterations + 1):
        # Rollout
        rollout_start = clock(device)
        obs[0] = obs[T]
        host[:, 0] = host[:, T]
        noise.exponential_()
        for step in range(T):
            # fast: a tensor, as the graph wants it
            action = act(steps[step]).cpu().numpy()  # (N,); sync: the simulator waits
            next_obs, reward, terminated, truncated, info = envs.step(action)
            terminated |= info["terminated"] > 0  # at the time limit a game over is only truncated
            done = terminated | truncated
            obs[step + 1] = torch.from_numpy(next_obs)  # sync: copied to the device
            host_rewards[step] = reward
            host_dones[step + 1] = done
            host_terminations[step + 1] = done if args.cleanrl_semantics else terminated
            global_step += N
            ended = statistics.step(reward, terminated, truncated, info)
            for episodic_return, episodic_length in ended:
                episodes += 1
                recent_returns.append(episodic_return)
                writer.add_scalar("charts/episodic_return", episodic_return, global_step)
                writer.add_scalar("charts/episodic_length", episodic_length, global_step)
        # fast: a tensor, as the graph wants it
        act(steps[T])  # for values[T] alone

        # Advantages
        rollout_end = clock(device)
        rewards, dones, terminations = torch.from_numpy(host).to(device)  # (T + 1, N) each; sync
        values = storage["values"].double()  # sums of up to T terms: in float64, then rounded once
        advantages = compute_gae(
            rewards, dones, terminations, values, args.gamma, args.gae_lambda
        )  # (T, N)
        storage["advantages"][:T] = advantages
        storage["returns"][:T] = advantages + values[:T]
        storage["valid"][:T] = 1.0 if args.cleanrl_semantics else 1 - dones[:T]

        # Update
        advantages_end = clock(device)
        frac = 1.0 - (iteration - 1) / args.num_iterations if args.anneal_lr else 1.0
        lrnow = frac * args.learning_rate
        # fast: in place, where the captured Adam reads it
        optimizer.param_groups[0]["lr"].fill_(lrnow)
        losses = []
        for _ in range(args.update_epochs):
            b_inds = torch.randperm(args.batch_size, device=device).view(args.num_minibatches, -1)
            losses.append(update(b_inds))  # (B / M, 7)
            if args.target_kl is not None:
                approx_kl = losses[-1][:, LOSSES.index("approx_kl")].mean()
                if approx_kl > args.target_kl:  # sync: whether to go on is decided here
                    break
        explained_var = explained_variance(batch["values"], batch["returns"], batch["valid"])
        metrics = torch.cat([torch.cat(losses).mean(0), explained_var.view(1)])  # (8,)
        metrics = metrics.tolist()  # sync: the losses are read once

        # Log
        update_end = clock(device)
        for name, value in zip((*LOSSES, "explained_variance"), metrics, strict=True):
            writer.add_scalar(f"losses/{name}", value, global_step)
        writer.add_scalar("charts/learning_rate", lrnow, global_step)
        if iteration > burnin_end:
            sps = (global_step - burnin_step) / (update_end - burnin_time)
            writer.add_scalar("charts/SPS", sps, global_step)
        if recent_returns:
            progress.set_postfix_str(f"mean return {np.mean(recent_returns):.1f}", refresh=False)
        with suppress(OSError):  # as in complain
            progress.update(args.batch_size)
        bad = [name for name, x in zip(LOSSES, metrics, strict=False) if not math.isfinite(x)]
        if bad:
            break  # before the last good checkpoint is overwritten
        stopping = bool(stop_signals)  # read once: one that comes later waits for an iteration
        due = args.checkpoint_interval and iteration % args.checkpoint_interval == 0
        if due or stopping or iteration == args.num_iterations:
            checkpoint = {
                "pair": PAIR,
                "format": FORMAT,
                "args": asdict(args),
                "versions": versions,
                "iteration": iteration,
                "global_step": global_step,
                "agent": agent.state_dict(),
                "optimizer": optimizer.state_dict(),
                "random": random_states(device),
                "episodes": episodes,
                "recent_returns": list(recent_returns),
                "wandb_id": wandb_id,
            }
            buffer = io.BytesIO()
            torch.save(checkpoint, buffer)
            saved = replace_file(checkpoint_path, buffer.getbuffer())
        log_end = clock(device)
        phase_s += np.diff([rollout_start, rollout_end, advantages_end, update_end, log_end])
        if startup_s is None:
            startup_s = log_end - START_TIME
        if iteration <= burnin_end:
            burnin_step, burnin_time = global_step, log_end
            phase_s[:] = 0
        if stopping:
            break

    with suppress(OSError):
        progress.close()
    envs.close()
    writer.close()
    mean_return = float(np.mean(recent_returns)) if recent_returns else None
    phases = ("rollout", "advantages", "update", "log")
    summary = {
        "script": os.path.basename(__file__).removesuffix(".py"),
        "args": asdict(args),
        "seed": args.seed,
        "device": device.type,
        "mode": mode,
        "global_step": global_step,
        "sps": sps,
        "startup_s": startup_s,
        "phase_s": dict(zip(phases, phase_s.tolist(), strict=True)),
        "mean_return": mean_return,
        "episodes": episodes,
        "versions": versions,
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
    }
    text = json.dumps(summary, indent=2)
    written = replace_file(os.path.join(run_dir, "summary.json"), text.encode())
    for each, handler in handlers.items():
        signal.signal(each, handler)
    speed = f"{sps:.0f} steps/s" if sps else "too short a run for a speed"
    score = (
        f", mean return of the last {len(recent_returns)}: {mean_return:.2f}" if episodes else ""
    )
    print(f"{run_dir}: {speed}; {episodes} episodes{score}")
    if bad:
        value, kept = metrics[LOSSES.index(bad[0])], "none was written"
        if os.path.exists(checkpoint_path):
            kept = f"{checkpoint_path} is from before"
        where = f"iteration {iteration}, step {global_step}"
        print(f"error: losses/{bad[0]} is {value} in {where}; checkpoint: {kept}", file=sys.stderr)
        sys.exit(3)
    if not (saved and written):
        print(f"error: {run_dir}: the end of this run is not saved", file=sys.stderr)
        sys.exit(1)
    if stop_signals and iteration < args.num_iterations:
        command = shlex.join([sys.executable, sys.argv[0], "--resume", run_dir])
        print(f"to go on: {command}")
        sys.exit(128 + stop_signals[0])
