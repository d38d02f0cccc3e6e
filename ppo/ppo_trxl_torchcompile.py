"""Proximal Policy Optimization (PPO) with a memory, attention, on CartPole without velocities.

    python ppo/ppo_trxl.py   # or *_torchcompile.py --compile, made fast
    diff -u ppo/ppo_trxl.py ppo/ppo_trxl_torchcompile.py   # what makes it fast
    diff -u ppo/ppo.py ppo/ppo_trxl.py                     # what attention to earlier rows needs

Not here: pixels, an LSTM (ppo_lstm.py), scores and films of a trained agent (ppo_eval.py).
Sources: PPO, arXiv:1707.06347; advantages, arXiv:1506.02438; names, CleanRL's ppo_trxl.py; a memory
without gradients, arXiv:1901.02860; learned vectors of lags, arXiv:1803.02155.
Shapes: T num_steps, N num_envs, D observation size, A number of actions, B = T * N, M minibatch,
L trxl_memory_length, H trxl_dim.
`sync` marks where the host waits for the GPU. An episode's end, in the rows of a rollout:
    t  obs[t]             actions[t]  rewards[t]   dones[t]  valid[t]
    5  observation        action      reward       0         1
    6  observation        action      last reward  0         1
    7  final observation  ignored     0            1         0         autoreset step, no transition
    8  first observation  action      reward       0         1         sees no row before it
"""

# /// script
# requires-python = ">=3.11"
# dependencies = [
#   # fast, CUDA graph: its CudaGraphModule
#   "tensordict>=0.15",
#   "torch>=2.11,<2.16",
#   "gymnasium>=1.3",
#   "gymnasium[box2d]>=1.3; python_version < '3.14'",
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

import gymnasium as gym
import numpy as np
import tyro
from tqdm import tqdm

import torch
import torch.nn as nn
import torch.optim as optim

# fast, CUDA graph: captures the kernels that a call launches, and replays them with one launch
from tensordict.nn import CudaGraphModule
from torch.utils.tensorboard import SummaryWriter

torch.set_float32_matmul_precision("high")  # TF32 where a GPU, or a CPU, has it
torch.set_num_threads(1)  # a second thread does not pay for networks this small

LOSSES = "policy_loss value_loss entropy old_approx_kl approx_kl clipfrac grad_norm".split()
FORMAT = "ppo_trxl 3"  # of checkpoints: for --resume and ppo_eval.py


@dataclass
class Args:
    """PPO with attention to earlier rows, for vectors and discrete actions on Gymnasium."""

    exp_name: str = os.path.basename(__file__).removesuffix(".py")  # part of the run's name
    seed: int = 1  # of environments, network and sampling
    cuda: bool = True  # use the GPU if there is one
    track: bool = False  # log to Weights & Biases as well
    wandb_project_name: str = "ppo"  # project on Weights & Biases
    wandb_entity: str | None = None  # team on Weights & Biases; None is your own account
    runs_dir: str = "runs"  # where the run's folder is created
    checkpoint_interval: int = 50  # iterations between checkpoints
    resume: str | None = None  # folder of a run to continue; its arguments are the defaults
    measure_burnin: int = 3  # iterations before the steps per second are measured
    # fast, both: switches, to measure each gain. `both`: a CPU and a GPU; `CUDA graph`: a GPU alone
    compile: bool = False  # compile acting and the gradients; the first iteration takes longer
    cudagraphs: bool = False  # capture each epoch in a CUDA graph, on a GPU

    env_id: str = "CartPole-v1"  # Gymnasium id
    env_kwargs: str = "{}"  # arguments of the environment, as JSON
    hide: tuple[int, ...] | None = None  # entries left out of obs; by default CartPole's velocities
    trxl_memory_length: int = 32  # L, earlier rows that a row attends to
    trxl_num_layers: int = 1  # layers of attention
    trxl_num_heads: int = 4  # heads of a layer
    trxl_dim: int = 64  # H, size of a row in each layer
    total_timesteps: int = 300_000  # environment steps, rounded down to whole rollouts
    learning_rate: float = 1e-3  # Adam's learning rate
    num_envs: int = 8  # N, parallel environments
    num_steps: int = 128  # T, steps per environment in a rollout
    anneal_lr: bool = True  # decrease the learning rate linearly to 0
    gamma: float = 0.995  # discount factor
    gae_lambda: float = 0.95  # lambda of generalised advantage estimation
    num_minibatches: int = 4  # minibatches per epoch; must divide num_envs * num_steps
    update_epochs: int = 4  # epochs per rollout
    norm_adv: bool = False  # normalise advantages per minibatch
    clip_coef: float = 0.2  # the probability ratio is clipped to 1 ± clip_coef
    clip_vloss: bool = False  # clip the value function's change to ± clip_coef
    ent_coef: float = 0.0  # weight of the entropy bonus
    vf_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5  # maximum gradient norm
    target_kl: float | None = None  # stop the update after an epoch with a larger mean approx_kl

    def __post_init__(self):
        self.batch_size = self.num_envs * self.num_steps
        self.num_iterations = self.total_timesteps // self.batch_size
        if self.batch_size % self.num_minibatches or self.batch_size == self.num_minibatches:
            raise ValueError(f"--num-minibatches divides {self.batch_size} rows, 2 or more each")
        if self.num_iterations < 1:
            raise ValueError(f"--total-timesteps must be at least a rollout: {self.batch_size}")
        if self.trxl_memory_length < 1:
            raise ValueError("--trxl-memory-length must be at least 1")
        if self.hide is None:
            self.hide = (1, 3) if self.env_id == "CartPole-v1" else ()


def make_envs(args):
    """N Gymnasium environments stepped together: obs (N, D), actions (N,) int64."""

    def make_env():
        env = gym.make(args.env_id, disable_env_checker=True, **json.loads(args.env_kwargs))
        obs_space = env.observation_space  # its text shows what is in a Dict, too
        assert not re.search(r"\d\), uint8", str(obs_space)), "has pixels: see ppo_pixels.py"
        vector = isinstance(obs_space, gym.spaces.Box) and len(obs_space.shape) == 1
        env = env if vector else gym.wrappers.FlattenObservation(env)
        if not args.hide:
            return env
        obs_space = env.observation_space
        seen = np.delete(np.arange(obs_space.shape[0]), args.hide)
        low, high = obs_space.low[seen], obs_space.high[seen]
        space = gym.spaces.Box(low, high, dtype=obs_space.dtype)
        return gym.wrappers.TransformObservation(env, lambda obs: obs[seen], space)

    next_step = gym.vector.AutoresetMode.NEXT_STEP
    envs = gym.vector.SyncVectorEnv([make_env] * args.num_envs, autoreset_mode=next_step)
    space = envs.single_action_space
    discrete = isinstance(space, gym.spaces.Discrete) and space.start == 0
    assert discrete, f"actions must be Discrete, counted from 0, not {space}"
    return envs


def layer_init(layer, std=2**0.5, bias_const=0.0):
    """Gives a layer orthogonal weights of gain std and constant biases."""
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias_const)
    return layer


class Attention(nn.Module):
    """Each row reads from the rows before it and from itself, then passes a layer.

    x (M, H), window (M, L, H), the rows before it, ages (M,), its number in its episode ->
    (M, H). Keys and values are these rows as they are: what W_k would do to L rows, query does to
    one. Keys have a learned vector for each lag, the distance in rows.
    """

    def __init__(self, size, heads, memory_length):
        super().__init__()
        self.heads = heads
        self.lag = nn.Parameter(torch.randn(memory_length + 1, size))
        self.query = layer_init(nn.Linear(size, heads * size))
        nn.init.normal_(self.query.bias)  # at first, heads attend to different lags
        self.norm = nn.LayerNorm(size, eps=1e-2)  # a smaller eps would blow up tiny differences
        self.out = layer_init(nn.Linear(heads * size, size), std=1.0)
        self.hidden = layer_init(nn.Linear(size, size))

    def forward(self, x, window, ages):
        lags = torch.arange(len(self.lag) - 1, -1, -1, device=x.device)  # L, ..., 1, and 0: itself
        query = self.query(x).unflatten(1, (self.heads, -1)) / x.shape[1] ** 0.5  # (M, heads, H)
        scores = torch.cat([query @ window.mT, query @ x.unsqueeze(2)], dim=2)  # (M, heads, L + 1)
        scores = scores + query @ self.lag.T
        other = lags > ages.unsqueeze(1)  # (M, L + 1), rows of another episode
        weights = scores.masked_fill(other.unsqueeze(1), -torch.inf).softmax(2)
        read = weights[..., :-1] @ window + weights[..., -1:] * x.unsqueeze(1)  # (M, heads, H)
        # subtle: relative to x and normalised: else what changes a little from row to row is lost
        x = x + self.out(self.norm(read - x.unsqueeze(1)).flatten(1))
        return x + self.hidden(x).relu()


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
    """One network with a memory: obs (M, D), window (M, L, layers, H), ages (M,) -> a distribution
    over A actions, value (M,), and what the row adds to the memory, its layers' inputs, (M, layers,
    H).
    """

    def __init__(self, envs, args):
        super().__init__()
        (obs_size,) = envs.single_observation_space.shape
        sizes = args.trxl_dim, args.trxl_num_heads, args.trxl_memory_length
        self.window_shape = args.trxl_memory_length, args.trxl_num_layers, args.trxl_dim
        self.encoder = layer_init(nn.Linear(obs_size, args.trxl_dim))
        self.layers = nn.ModuleList(Attention(*sizes) for _ in range(args.trxl_num_layers))
        self.critic = layer_init(nn.Linear(args.trxl_dim, 1), std=1.0)
        self.actor = layer_init(nn.Linear(args.trxl_dim, int(envs.single_action_space.n)), std=0.01)

    def initial_state(self, num_envs):
        """The memory at the start of an episode: a window of zeros, none of whose rows is its."""
        weight = self.actor.weight
        window = weight.new_zeros((num_envs, *self.window_shape))
        return window, weight.new_zeros(num_envs, dtype=torch.int64)

    def forward(self, obs, window, ages):
        x, added = self.encoder(obs).tanh(), []
        for i, layer in enumerate(self.layers):
            added.append(x)
            x = layer(x, window[:, :, i], ages)
        return Categorical(self.actor(x)), self.critic(x).squeeze(-1), torch.stack(added, dim=1)


@torch.no_grad()
def act(agent, obs, dones, trxl_state):
    """Samples an action for each observation, and adds these rows to the memory.

    obs: (N, D); dones: (N,); trxl_state: window and ages, the memory before these rows.
    Returns actions, their log-probabilities and values, (N,), and the memory after these rows.
    """
    window, ages = trxl_state
    probs, value, added = agent(obs, window, ages)
    action = probs.sample()
    window = torch.cat([window[:, 1:], added.unsqueeze(1)], dim=1)
    ages = (ages + 1) * (dones == 0)  # after an episode's last row no row is its own
    return action, probs.log_prob(action), value, (window, ages)


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
    probs, newvalue, _ = agent(mb["obs"], mb["window"], mb["ages"])
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

    # environments; runs with different seeds share no episode, and a resumed run plays new ones
    envs = make_envs(args)
    seeds = np.random.SeedSequence([args.seed, global_step]).generate_state(N) >> 1  # fits int32
    next_obs, _ = envs.reset(seed=seeds.tolist())

    # agent and optimizer; fused: one call steps all parameters
    agent = Agent(envs, args).to(device)
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
        "obs": torch.zeros((T + 1, N, *envs.single_observation_space.shape), device=device),
        "actions": torch.zeros((T + 1, N), dtype=torch.int64, device=device),
        "logprobs": torch.zeros((T + 1, N), device=device),
        "values": torch.zeros((T + 1, N), device=device),
        "advantages": torch.zeros((T + 1, N), device=device),
        "returns": torch.zeros((T + 1, N), device=device),
        "valid": torch.zeros((T + 1, N), device=device),
        "ages": torch.zeros((T + 1, N), dtype=torch.int64, device=device),
    }
    # memory: L rows from before the rollout, then what rows 0 to T - 1 add; the window of a row is
    # a view of the L rows before it
    trxl_state = window, ages = agent.initial_state(N)
    L = args.trxl_memory_length
    memory = torch.zeros((L + T, N, *window.shape[2:]), device=device)
    storage["window"] = memory.unfold(0, L, 1).movedim(4, 2)  # (T + 1, N, L, layers, H)
    batch = {key: rows[:T].flatten(0, 1) for key, rows in storage.items()}  # (B, ...), views
    obs = storage["obs"]
    obs[T] = torch.from_numpy(next_obs)
    # rewards and flags stay on the host, where advantages are computed
    rewards = np.zeros((T, N))
    dones = np.zeros((T + 1, N))
    terminations = np.zeros((T + 1, N))
    valid = np.zeros((T, N), dtype=bool)
    running_returns = np.zeros(N)
    running_lengths = np.zeros(N)

    # fast, both: acting becomes one call of fused kernels, and so do network, loss, backward and
    # clipping
    if args.compile:
        torch._dynamo.config.trace_autograd_ops = True  # else the graph breaks at backward
        torch._inductor.config.fallback_random = True  # act draws as the eager version does
        act = torch.compile(act)
        compute_gradients = torch.compile(compute_gradients)
    # fast, CUDA graph: Adam refuses to be captured unless told; train_epoch is called as before
    if cudagraphs:
        optimizer.param_groups[0]["capturable"] = True
        train_epoch = captured(train_epoch, agent, optimizer, batch, args)

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
        memory[:L] = window.transpose(0, 1)
        for step in range(T):
            storage["ages"][step] = ages
            done = torch.from_numpy(dones[step]).to(device)  # sync
            action, logprob, value, trxl_state = act(agent, obs[step], done, trxl_state)
            window, ages = trxl_state
            storage["actions"][step] = action
            storage["logprobs"][step] = logprob
            storage["values"][step] = value
            memory[L + step] = window[:, -1]
            next_obs, reward, terminated, truncated, _ = envs.step(action.cpu().numpy())  # sync
            obs[step + 1] = torch.from_numpy(next_obs)  # sync
            rewards[step] = reward
            valid[step] = dones[step] == 0
            dones[step + 1] = terminated | truncated
            terminations[step + 1] = terminated
            global_step += N
            running_returns += reward * valid[step]
            running_lengths += valid[step]
            for i in np.flatnonzero(dones[step + 1]):
                episodic_returns.append(float(running_returns[i]))
                writer.add_scalar("charts/episodic_return", running_returns[i], global_step)
                writer.add_scalar("charts/episodic_length", running_lengths[i], global_step)
                running_returns[i] = running_lengths[i] = 0

        # Advantages
        with torch.no_grad():  # the value from which the last step bootstraps
            _, storage["values"][T], _ = agent(obs[T], window, ages)
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
