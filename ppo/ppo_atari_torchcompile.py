"""Proximal Policy Optimization (PPO) on Atari, with the games simulated by ALE.

    python ppo/ppo_atari.py   # or *_torchcompile.py --compile --cudagraphs, made fast
    diff -u ppo/ppo_atari_envpool.py ppo/ppo_atari.py         # what another simulator changes
    diff -u ppo/ppo_atari.py ppo/ppo_atari_torchcompile.py    # what makes it fast

Not here: EnvPool, several processes, a memory (ppo_atari_envpool*.py), scores (ppo_eval.py).
Sources: PPO, arXiv:1707.06347; advantages, arXiv:1506.02438; network, doi:10.1038/nature14236;
names and defaults, CleanRL's ppo_atari.py.

Shapes: T num_steps, N num_envs, A number of actions, B = T * N rows, M of them in a minibatch.
`sync` marks where the host waits for the GPU. A lost life, and then the game's end, in rows:
    t  obs[t]             actions[t]  rewards[t]   dones[t]  valid[t]
    5  observation        action      reward       1         1         a lost life, the game goes on
    6  observation        action      last reward  0         1
    7  final observation  ignored     0            1         0         autoreset step, no transition
    8  first observation  action      reward       0         1
"""

# /// script
# requires-python = ">=3.11"
# dependencies = [
#   # fast, CUDA graph: its CudaGraphModule and from_module
#   "tensordict>=0.15",
#   "torch>=2.11,<2.16",
#   "ale-py>=0.12",
#   "gymnasium>=1.3",
#   "numpy>=2",
#   "tyro>=1.0.17",
#   "tqdm",
#   "tensorboard",
#   "wandb",
# ]
# ///
import argparse
import json
import os
import random
import re
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

SCRIPT = Path(__file__).read_bytes()  # the text that runs, kept beside what it learns

# fast, CPU: before PyTorch is imported. Idle threads soon sleep, as games need their cores; freed
# memory stays with the process, as Linux would zero it anew for each minibatch
import ctypes

os.environ.setdefault("GOMP_SPINCOUNT", "1000")
with suppress(AttributeError, TypeError):  # where the C library is not glibc
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
    mallopt(-3, 2**31 - 1) or mallopt(-3, 2**25)  # M_MMAP_THRESHOLD; old versions: 32 MiB at most

import ale_py
import gymnasium as gym
import numpy as np
import tyro
from tqdm import tqdm

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.tensorboard import SummaryWriter

# fast, CUDA graph: captures the kernels that a call launches, and replays them with one launch
# isort: split
import copy

from tensordict import from_module
from tensordict.nn import CudaGraphModule

gym.register_envs(ale_py)  # ALE/...
torch.set_float32_matmul_precision("high")  # TF32 where a GPU, or a CPU, has it

LOSSES = "policy_loss value_loss entropy old_approx_kl approx_kl clipfrac grad_norm".split()
FORMAT = "ppo_atari 3"  # of checkpoints: for --resume and ppo_eval.py


@dataclass
class Args:
    """PPO for the Atari games of ALE."""

    exp_name: str = os.path.basename(__file__).removesuffix(".py")  # part of the run's name
    seed: int = 1  # of environments, network and sampling
    torch_deterministic: bool = True  # only deterministic cuDNN kernels
    cuda: bool = True  # use the GPU if there is one
    track: bool = False  # log to Weights & Biases as well
    wandb_project_name: str = "ppo"  # project on Weights & Biases
    wandb_entity: str | None = None  # team on Weights & Biases; None is your own account
    runs_dir: str = "runs"  # where the run's folder is created
    checkpoint_interval: int = 50  # iterations between checkpoints
    resume: str | None = None  # folder of a run to continue; its arguments are the defaults
    measure_burnin: int = 3  # iterations before the steps per second are measured
    # fast, both: switches, to measure each gain. `CPU`: a CPU alone; `CUDA graph`: a GPU alone;
    # `both`: either
    compile: bool = False  # compile acting and the gradients; the first iteration takes longer
    cudagraphs: bool = False  # capture acting and each epoch in CUDA graphs, on a GPU
    channels_last: bool = True  # store observations as NHWC, if compiled
    bfloat16: bool = False  # CNN in bfloat16, 2 to 3 digits; slow on a CPU without avx512_bf16

    env_id: str = "ALE/Breakout-v5"  # ALE's name of an Atari game, with or without ALE/
    env_kwargs: str = "{}"  # arguments of the environment, as JSON
    repeat_action_probability: float = 0.0  # probability of a sticky action; ALE recommends 0.25
    total_timesteps: int = 10_000_000  # steps of 4 frames, rounded down to whole rollouts
    learning_rate: float = 2.5e-4  # Adam's learning rate
    num_envs: int = 8  # N, parallel games
    num_steps: int = 128  # T, steps per game in a rollout
    anneal_lr: bool = True  # decrease the learning rate linearly to 0
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # lambda of generalised advantage estimation
    num_minibatches: int = 4  # minibatches per epoch; must divide num_envs * num_steps
    update_epochs: int = 4  # epochs per rollout
    norm_adv: bool = True  # normalise advantages per minibatch
    clip_coef: float = 0.1  # the probability ratio is clipped to 1 ± clip_coef
    clip_vloss: bool = True  # clip the value function's change to ± clip_coef
    ent_coef: float = 0.01  # weight of the entropy bonus
    vf_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5  # maximum gradient norm
    target_kl: float | None = None  # stop the update after an epoch with a larger mean approx_kl

    def __post_init__(self):
        self.env_id = f"ALE/{self.env_id.removeprefix('ALE/')}"
        self.batch_size = self.num_envs * self.num_steps
        self.num_iterations = self.total_timesteps // self.batch_size
        if self.batch_size % self.num_minibatches or self.batch_size == self.num_minibatches:
            raise ValueError(f"--num-minibatches divides {self.batch_size} rows, 2 or more each")
        if self.num_iterations < 1:
            raise ValueError(f"--total-timesteps must be at least a rollout: {self.batch_size}")


def make_envs(args):
    """N Atari games: obs (N, 4, 84, 84) uint8, actions (N,) int64, rewards not clipped.

    A lost life is terminated, as a game's end is. Which it was shows in the next step: if that
    restarted the game, its episode_frame_number has not grown.
    """
    options = {"life_loss_info": True, "repeat_action_probability": args.repeat_action_probability}
    options |= {"reward_clipping": False, **json.loads(args.env_kwargs)}
    return gym.make_vec(args.env_id, args.num_envs, **options)


def layer_init(layer, std=2**0.5, bias_const=0.0):
    """Gives a layer orthogonal weights of gain std and constant biases."""
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias_const)
    return layer


class Categorical:
    """A distribution over A actions, of logits (..., A)."""

    def __init__(self, logits):
        self.logits = logits.log_softmax(-1)  # logarithms of probabilities

    def sample(self):
        """Actions, (...): argmax of logits plus Gumbel noise, arXiv:1611.01144."""
        noise = torch.empty_like(self.logits).exponential_()
        return (self.logits - noise.log()).argmax(-1)

    def mode(self):
        """What ppo_eval --deterministic takes."""
        return self.logits.argmax(-1)

    def log_prob(self, action):
        return self.logits.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self):
        return -(self.logits.exp() * self.logits).sum(-1)


class Agent(nn.Module):
    """Nature CNN: obs (M, 4, 84, 84) uint8 -> a distribution over A actions, value (M,)."""

    def __init__(self, envs):
        super().__init__()
        self.network = nn.Sequential(
            layer_init(nn.Conv2d(envs.single_observation_space.shape[0], 32, 8, stride=4)),
            nn.ReLU(),
            layer_init(nn.Conv2d(32, 64, 4, stride=2)),
            nn.ReLU(),
            layer_init(nn.Conv2d(64, 64, 3, stride=1)),
            nn.ReLU(),
            nn.Flatten(),
            layer_init(nn.Linear(64 * 7 * 7, 512)),
            nn.ReLU(),
        )
        self.actor = layer_init(nn.Linear(512, int(envs.single_action_space.n)), std=0.01)
        self.critic = layer_init(nn.Linear(512, 1), std=1.0)

    def forward(self, obs):
        hidden = self.network(obs.float() / 255.0)  # (M, 512)
        return Categorical(self.actor(hidden)), self.critic(hidden).squeeze(-1)


@torch.no_grad()
def act(agent, obs):
    """Samples an action for each observation, (N, 4, 84, 84).

    Returns actions, their log-probabilities and values, (N,) each.
    """
    probs, value = agent(obs)
    action = probs.sample()
    return action, probs.log_prob(action), value


def compute_gae(rewards, dones, terminations, values, gamma, gae_lambda):
    """Generalised advantages of a rollout (arXiv:1506.02438, equation 16).

    rewards: (T, N); dones, terminations, values: (T + 1, N), arrays. Returns advantages, (T, N).
    An episode cut by its time limit is done but not terminated: values[t + 1], the value of its
    final observation, bootstraps.
    """
    advantages = rewards + gamma * values[1:] * (1 - terminations[1:]) - values[:-1]  # TD errors
    decay = gamma * gae_lambda * (1 - dones[1:])
    for t in reversed(range(len(advantages) - 1)):
        advantages[t] += decay[t] * advantages[t + 1]
    return advantages


def masked_mean(x, valid):
    """Mean of x over the rows where valid is 1: x.mean() would learn from autoreset steps, too."""
    return (x * valid).sum() / valid.sum().clamp(min=1.0)


def ppo_loss(newlogprob, entropy, newvalue, mb, args):
    """PPO's loss, to be minimised, over a minibatch's valid rows (arXiv:1707.06347, equation 9).

        L_clip = mean(min(ratio * A, clip(ratio, 1 - clip_coef, 1 + clip_coef) * A))
        loss = -L_clip + vf_coef * v_loss - ent_coef * entropy

    newlogprob, entropy, newvalue: (M,), of the agent as it is now; mb: fields (M, ...) of the
    rollout. Returns the loss, (), and the first six of LOSSES, (6,).
    """
    valid = mb["valid"]
    # 0 at an autoreset row: its exp could be inf, and inf * 0 is nan
    logratio = (newlogprob - mb["logprobs"]) * valid
    ratio = logratio.exp()

    advantages = mb["advantages"]
    if args.norm_adv:
        centered = (advantages - masked_mean(advantages, valid)) * valid
        std = (centered.square().sum() / (valid.sum() - 1).clamp(min=1.0)).sqrt()
        advantages = centered / (std + 1e-8)

    # policy loss, -L_clip
    pg_loss1 = -advantages * ratio
    pg_loss2 = -advantages * ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
    pg_loss = masked_mean(torch.max(pg_loss1, pg_loss2), valid)

    # value loss
    v_loss = (newvalue - mb["returns"]).square()
    if args.clip_vloss:
        change = (newvalue - mb["values"]).clamp(-args.clip_coef, args.clip_coef)
        v_loss_clipped = (mb["values"] + change - mb["returns"]).square()
        v_loss = torch.max(v_loss, v_loss_clipped)
    v_loss = 0.5 * masked_mean(v_loss, valid)

    entropy_loss = masked_mean(entropy, valid)
    loss = pg_loss - args.ent_coef * entropy_loss + args.vf_coef * v_loss

    old_approx_kl = masked_mean(-logratio, valid)
    approx_kl = masked_mean((ratio - 1) - logratio, valid)  # http://joschu.net/blog/kl-approx.html
    clipfrac = masked_mean(((ratio - 1).abs() > args.clip_coef).float(), valid)
    losses = torch.stack([pg_loss, v_loss, entropy_loss, old_approx_kl, approx_kl, clipfrac])
    return loss, losses.detach()


def compute_gradients(agent, batch, args, mb_inds):
    """Sets the parameters' .grad to the clipped gradient of a minibatch.

    batch: fields (B, ...) of the storage; mb_inds: (M,), the minibatch's rows.
    Returns LOSSES, (7,); grad_norm is that before clipping.
    """
    mb = {key: rows[mb_inds] for key, rows in batch.items()}  # (M, ...)
    probs, newvalue = agent(mb["obs"])
    newlogprob = probs.log_prob(mb["actions"])
    loss, losses = ppo_loss(newlogprob, probs.entropy(), newvalue, mb, args)
    loss.backward()
    # foreach=False: on a CPU so few tensors need no batching
    grad_norm = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm, foreach=False)
    return torch.cat([losses, grad_norm.view(1)])


def train_epoch(agent, optimizer, batch, args, b_inds):
    """Takes a gradient step on each minibatch.

    b_inds: (B / M, M), the rows of each minibatch. Returns the LOSSES of each, (B / M, 7).
    """
    losses = []
    for mb_inds in b_inds:
        optimizer.zero_grad()
        losses.append(compute_gradients(agent, batch, args, mb_inds))
        optimizer.step()
    return torch.stack(losses)


# fast, CUDA graph: a step in one launch; each copy between host and device was a launch of its own
def act_captured(agent, storage, obs, step, obs_host, action_host):
    """act on the observation in obs_host; the actions go to action_host. Both are pinned.

    obs: (N, ...), where it arrives; step: (1,) int64, the row to write; raised by one.
    """
    obs.copy_(obs_host, non_blocking=True)
    action, logprob, value = act(agent, obs)
    action_host.copy_(action, non_blocking=True)
    row = {"obs": obs, "actions": action, "logprobs": logprob, "values": value}
    for key, x in row.items():
        storage[key][step] = x
    step += 1


# fast, CUDA graph: one launch for an epoch. Three calls run as they are, the third then records
# the graph, so that it holds nothing that is done once: compiling, Adam's first state
def captured(function, *fixed):
    """function as a CUDA graph. Its first arguments stay `fixed`; a call copies in the others."""
    graph = CudaGraphModule(lambda *inputs: function(*fixed, *inputs), warmup=3)
    return lambda *args: graph(*args[len(fixed) :])


# Not PPO: command line, run folder, checkpoints, signals. A fork keeps, replaces or drops them.


def parse_args():
    """Returns Args and, with --resume, that run's checkpoint, whose arguments are the defaults."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--resume")
    run_dir = parser.parse_known_args()[0].resume
    if run_dir is None:
        return tyro.cli(Args), None
    checkpoint = torch.load(os.path.join(run_dir, "checkpoint.pt"), "cpu", weights_only=True)
    if checkpoint["format"] != FORMAT:
        sys.exit(f"{run_dir} is a run of {checkpoint['format']}, not of {FORMAT}")
    saved = {k: v for k, v in checkpoint["args"].items() if k in Args.__annotations__}
    return tyro.cli(Args, default=Args(**saved)), checkpoint


def open_run(args, global_step):
    """Creates the run's folder, or takes that of --resume; returns it and a TensorBoard writer."""
    started = time.strftime("%y%m%d-%H%M%S")
    name = f"{args.env_id}__{args.exp_name}__{args.seed}__{started}-{os.getpid()}"
    run_dir = args.resume or os.path.join(args.runs_dir, re.sub(r"[^\w.-]", "_", name))
    run_dir = os.path.abspath(run_dir)
    os.makedirs(run_dir, exist_ok=args.resume is not None)
    if args.track:
        import wandb

        wandb.init(
            project=args.wandb_project_name,
            entity=args.wandb_entity,
            name=os.path.basename(run_dir),
            id=os.path.basename(run_dir),
            resume="allow",
            sync_tensorboard=True,
            config=asdict(args),
        )
    writer = SummaryWriter(run_dir, purge_step=global_step + 1)
    writer.add_text("hyperparameters", "".join(f"    {k}: {v}\n" for k, v in asdict(args).items()))
    return run_dir, writer


def save_checkpoint(run_dir, state):
    """Replaces checkpoint.pt and script.py, the text that wrote it, each in one step."""
    torch.save(state, f"{run_dir}/checkpoint.tmp")
    Path(run_dir, "script.tmp").write_bytes(SCRIPT)
    os.replace(f"{run_dir}/script.tmp", f"{run_dir}/script.py")
    os.replace(f"{run_dir}/checkpoint.tmp", f"{run_dir}/checkpoint.pt")


def catch_signals(received):
    """The first Ctrl+C or SIGTERM adds its number to `received`; a second one kills the run."""

    def handler(signum, frame):
        received.append(signum)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with suppress(OSError):  # a console that is gone
            os.write(2, b"\nstopping after this iteration\n")

    signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGTERM, handler)


if __name__ == "__main__":
    args, checkpoint = parse_args()
    global_step = checkpoint["global_step"] if checkpoint else 0
    # rounded up, so that a run resumed with other sizes takes no more steps than total_timesteps
    first_iteration = -(-global_step // args.batch_size) + 1
    if first_iteration > args.num_iterations:
        sys.exit(f"{global_step} steps are done already: give a larger --total-timesteps")
    T, N = args.num_steps, args.num_envs
    device = torch.device("cuda" if torch.cuda.is_available() and args.cuda else "cpu")
    # fast, both: one command for all machines: without a GPU it runs without graphs, and says so
    cudagraphs = args.cudagraphs and device.type == "cuda"
    if args.cudagraphs and not cudagraphs:
        print("--cudagraphs needs a CUDA device: running without")
    print(f"{args.exp_name} on {device.type}: {args.env_id}, {N} envs x {T} steps")
    random.seed(args.seed + global_step)  # for environments that draw from it
    np.random.seed((args.seed + global_step) % 2**32)
    torch.manual_seed(args.seed + global_step)  # a resumed run's saved state replaces it below
    torch.backends.cudnn.deterministic = args.torch_deterministic

    # games; runs with different seeds share none, and a resumed run plays new ones
    seeds = np.random.SeedSequence([args.seed, global_step]).generate_state(N) >> 1  # fits int32
    envs = make_envs(args)
    next_obs, info = envs.reset(seed=seeds)

    # agent and optimizer; fused: one call steps all parameters
    agent = Agent(envs).to(device)
    lr = torch.tensor(args.learning_rate, device=device)  # annealed in place
    optimizer = optim.Adam(agent.parameters(), lr=lr, eps=1e-5, fused=True)
    episodic_returns = []
    rng = torch.cuda if device.type == "cuda" else torch  # sampling and shuffling draw from it
    if checkpoint:
        agent.load_state_dict(checkpoint["agent"])
        for name, parameter in agent.named_parameters():  # Adam's moments, by name
            moments = checkpoint["adam"][name]
            optimizer.state[parameter] = {key: x.to(device) for key, x in moments.items()}
        episodic_returns = checkpoint["episodic_returns"]
        if device.type in checkpoint["rng"]:
            rng.set_rng_state(checkpoint["rng"][device.type])

    # storage: rows 0 to T - 1 are the steps of a rollout. Row T holds the observation after the
    # last step: its value bootstraps, and it becomes row 0 of the next rollout
    storage = {
        "obs": torch.zeros((T + 1, *next_obs.shape), dtype=torch.uint8, device=device),
        "actions": torch.zeros((T + 1, N), dtype=torch.int64, device=device),
        "logprobs": torch.zeros((T + 1, N), device=device),
        "values": torch.zeros((T + 1, N), device=device),
        "advantages": torch.zeros((T + 1, N), device=device),
        "returns": torch.zeros((T + 1, N), device=device),
        "valid": torch.zeros((T + 1, N), device=device),
    }
    batch = {key: rows[:T].flatten(0, 1) for key, rows in storage.items()}  # (B, ...), views
    obs = storage["obs"]
    obs[T] = torch.from_numpy(next_obs)
    # rewards and flags stay on the host, where advantages are computed
    rewards = np.zeros((T, N))
    dones = np.zeros((T + 1, N))
    terminations = np.zeros((T + 1, N))
    valid = np.zeros((T, N), dtype=bool)
    frames = info["episode_frame_number"]
    running_returns = np.zeros(N)
    running_lengths = np.zeros(N)

    # fast, both: observations as the convolutions read them, channels last (NHWC); else each
    # minibatch is laid out anew
    if args.compile and args.channels_last:
        rows = storage["obs"].flatten(0, 1).to(memory_format=torch.channels_last)
        storage["obs"] = obs = rows.unflatten(0, (T + 1, N))
        batch["obs"] = obs[:T].flatten(0, 1)
    # fast, CUDA graph: a second agent acts in it, as in LeanRL, on the first one's weights without
    # their gradients: a precaution, as act asks for none
    agent_inference = agent
    if cudagraphs:
        agent_inference = copy.deepcopy(agent)
        from_module(agent).data.to_module(agent_inference)
    # fast, both: bfloat16 halves the bytes between layers, and is computed faster by a processor
    # made for it; parameters, heads, losses and Adam stay float32
    if args.bfloat16:
        for network in {agent.network, agent_inference.network}:
            network.forward = torch.autocast(device.type, torch.bfloat16)(network.forward)
            network.register_forward_hook(lambda module, inputs, hidden: hidden.float())
    # fast, both: acting becomes one call of fused kernels, and so do network, loss, backward and
    # clipping; else each operation passes over memory on its own
    if args.compile:
        torch._dynamo.config.trace_autograd_ops = True  # else the graph breaks at backward
        torch._inductor.config.fallback_random = True  # act draws as the eager version does
        act = torch.compile(act)
        compute_gradients = torch.compile(compute_gradients)
    # fast, CUDA graph: one launch for a step, and one for an epoch
    if cudagraphs:
        optimizer.param_groups[0]["capturable"] = True  # else Adam refuses to be captured
        train_epoch = captured(train_epoch, agent, optimizer, batch, args)
        next_row = torch.zeros(1, dtype=torch.int64, device=device)
        obs_host = torch.from_numpy(next_obs).pin_memory()
        action_host = torch.zeros(N, dtype=torch.int64).pin_memory()
        static = agent_inference, storage, obs[T].clone(), next_row, obs_host, action_host
        run_step = captured(act_captured, *static)

    run_dir, writer = open_run(args, global_step)
    total = args.num_iterations * args.batch_size
    progress = tqdm(total=total, initial=global_step, unit="step", unit_scale=True)
    stop_signals = []
    sps = None
    for iteration in range(first_iteration, args.num_iterations + 1):
        if iteration == first_iteration + args.measure_burnin:
            start_time, start_step = time.time(), global_step

        # Rollout
        obs[0] = obs[T]
        dones[0] = dones[T]
        # fast, CUDA graph: the graph counts the rows itself
        if cudagraphs:
            next_row.zero_()
        for step in range(T):
            # fast, CUDA graph: one launch, one wait
            if cudagraphs:
                run_step()
                torch.cuda.current_stream().synchronize()  # sync
                action = action_host
            else:
                action, logprob, value = act(agent, obs[step])
                storage["actions"][step] = action
                storage["logprobs"][step] = logprob
                storage["values"][step] = value
            next_obs, reward, terminated, truncated, info = envs.step(action.cpu().numpy())  # sync
            # fast, CUDA graph: the next launch copies it to its row. subtle: by NumPy, as
            # PyTorch's copy wakes threads on the simulator's cores (seen: half the speed, 16 cores)
            if cudagraphs:
                np.copyto(obs_host.numpy(), next_obs)
            else:
                obs[step + 1] = torch.from_numpy(next_obs)  # sync
            rewards[step] = np.sign(reward)
            valid[step] = info["episode_frame_number"] > frames  # else the step restarted the game
            frames = info["episode_frame_number"]
            dones[step + 1] = terminated | truncated
            terminations[step + 1] = terminated
            global_step += N
            running_returns += reward * valid[step]  # not clipped
            running_lengths += valid[step]
            for i in np.flatnonzero(~valid[step]):
                episodic_returns.append(float(running_returns[i]))
                writer.add_scalar("charts/episodic_return", running_returns[i], global_step)
                writer.add_scalar("charts/episodic_length", running_lengths[i], global_step)
                running_returns[i] = running_lengths[i] = 0

        # fast, CUDA graph: no launch follows the last step, to copy what it led to
        if cudagraphs:
            obs[T] = obs_host  # sync

        # Advantages
        with torch.no_grad():
            _, storage["values"][T] = agent(obs[T])  # from which the last step bootstraps
        values = storage["values"].double().cpu().numpy()  # sync; sums in float64, rounded once
        advantages = compute_gae(rewards, dones, terminations, values, args.gamma, args.gae_lambda)
        returns = advantages + values[:T]
        storage["advantages"][:T] = torch.from_numpy(advantages)  # sync
        storage["returns"][:T] = torch.from_numpy(returns)  # sync
        storage["valid"][:T] = torch.from_numpy(valid)  # sync

        # Update
        frac = 1.0 - (iteration - 1) / args.num_iterations if args.anneal_lr else 1.0
        lrnow = frac * args.learning_rate
        optimizer.param_groups[0]["lr"].fill_(lrnow)
        losses = []
        for _ in range(args.update_epochs):
            b_inds = torch.randperm(T * N, device=device).view(args.num_minibatches, -1)
            losses.append(train_epoch(agent, optimizer, batch, args, b_inds))
            approx_kl = losses[-1][:, LOSSES.index("approx_kl")].mean()
            if args.target_kl is not None and approx_kl > args.target_kl:  # sync
                break
        losses = torch.cat(losses).mean(0).tolist()  # sync; CleanRL averages clipfrac alone

        # Log
        for name, value in zip(LOSSES, losses, strict=True):
            writer.add_scalar(f"losses/{name}", value, global_step)
        var_returns = returns[valid].var() if valid.any() else 0.0
        explained_var = 1 - advantages[valid].var() / var_returns if var_returns > 0 else np.nan
        writer.add_scalar("losses/explained_variance", explained_var, global_step)
        writer.add_scalar("charts/learning_rate", lrnow, global_step)
        if iteration >= first_iteration + args.measure_burnin:
            sps = round((global_step - start_step) / (time.time() - start_time))
            writer.add_scalar("charts/SPS", sps, global_step)
        # at least N: in a smaller window short episodes would outnumber long ones
        recent = episodic_returns[-max(100, N) :]
        mean_return = float(np.mean(recent)) if recent else None
        score = f"mean return {mean_return:.2f}" if recent else "no episode has ended yet"
        progress.set_postfix_str(score, refresh=False)
        with suppress(BrokenPipeError):  # Ctrl+C ends a `tee` as well
            progress.update(args.batch_size)

        # Checkpoint
        if not np.isfinite(losses).all():  # before they are saved
            raise FloatingPointError(f"in iteration {iteration} {LOSSES} are {losses}")
        # subtle: read once; a signal between save and break would end the run unsaved
        last = iteration == args.num_iterations or len(stop_signals) > 0
        if last or iteration % args.checkpoint_interval == 0:
            state = {
                "format": FORMAT,
                "args": asdict(args),
                "global_step": global_step,
                "episodic_returns": episodic_returns,
                "agent": agent.state_dict(),
                "adam": {name: optimizer.state[x] for name, x in agent.named_parameters()},
                "rng": {device.type: rng.get_rng_state()},
            }
            writer.flush()  # else a killed run's curves end before its checkpoint
            save_checkpoint(run_dir, state)  # sync
        if last:
            break
        if iteration == first_iteration:  # before this, Ctrl+C ends the run at once
            catch_signals(stop_signals)

    summary = {
        "script": os.path.basename(__file__).removesuffix(".py"),
        "args": asdict(args),
        "device": device.type,
        "global_step": global_step,
        "complete": iteration == args.num_iterations,
        "sps": sps,
        "mean_return": mean_return,
        "episodes": len(episodic_returns),
    }
    Path(run_dir, "summary.json").write_text(json.dumps(summary, indent=2))
    writer.close()
    progress.close()
    print(f"{run_dir}: {score}" + (f", {sps} steps/s" if sps else ""))
    envs.close()
    if not summary["complete"]:
        sys.exit(128 + stop_signals[0])
