"""Proximal Policy Optimization (PPO) with a memory, an LSTM, and continuous actions.

    python ppo/ppo_continuous_action_lstm.py   # or *_torchcompile.py --compile, made fast
    diff -u ppo/ppo_continuous_action.py ppo/ppo_continuous_action_lstm.py   # what a memory needs
    diff -u ppo/ppo_continuous_action_lstm.py ppo/ppo_continuous_action_lstm_torchcompile.py

Not here: discrete actions (ppo_lstm.py), pixels (ppo_atari_envpool_lstm.py).
Sources: PPO, arXiv:1707.06347; advantages, arXiv:1506.02438; names, CleanRL's
ppo_continuous_action.py; normalisation, Gymnasium's vector wrappers.

Shapes: T num_steps, N num_envs, D observation size, A action size, H memory size; a minibatch is
M = T * E rows, all those of E environments.
`sync` marks where the host waits for the GPU. An episode's end, in the rows of a rollout:
    t  obs[t]             actions[t]  rewards[t]   dones[t]  valid[t]
    5  observation        action      reward       0         1
    6  observation        action      last reward  0         1
    7  final observation  ignored     0            1         0         autoreset step, no transition
    8  first observation  action      reward       0         1         the memory starts at 0
"""

# /// script
# requires-python = ">=3.11"
# dependencies = [
#   # fast, CUDA graph: its CudaGraphModule
#   "tensordict>=0.15",
#   "torch>=2.11,<2.16",
#   "gymnasium[mujoco]>=1.3",
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

import gymnasium as gym
import numpy as np
import tyro
from tqdm import tqdm

import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions.independent import Independent
from torch.distributions.normal import Normal
from torch.utils.tensorboard import SummaryWriter

# fast, both: this file's own imports, away from lines that a fork's patch may touch
# isort: split
import copy  # both: on a GPU, what acts in NumPy is a copy of the agent
import dis  # both: reads what a fork's network does
import warnings  # both: where PyTorch acts after all, or where no graph replays

# CUDA graph: captures the kernels that a call launches, and replays them with one launch
from tensordict.nn import CudaGraphModule

torch.set_float32_matmul_precision("high")  # TF32 where a GPU, or a CPU, has it
torch.set_num_threads(1)  # a second thread does not pay for networks this small
gym.logger.min_level = gym.logger.ERROR  # no warnings: v4 is old, but published tables used it

LOSSES = "policy_loss value_loss entropy old_approx_kl approx_kl clipfrac grad_norm".split()
FORMAT = "ppo_continuous_action_lstm"  # of checkpoints: for --resume and ppo_eval.py


@dataclass
class Args:
    """PPO with a memory for Gymnasium's vectors as observations and as actions."""

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
    # fast, both: switches, to measure each gain. `both`: a CPU and a GPU; `CUDA graph`: a GPU alone
    compile: bool = False  # compile the loss; the first iteration takes longer
    cudagraphs: bool = False  # capture each epoch in a CUDA graph, on a GPU
    numpy_acting: bool = True  # act in NumPy, if compiled or captured
    fused_lstm: bool = True  # all rows in one call of an LSTM, if compiled and not captured

    env_id: str = "Pendulum-v1"  # Gymnasium id
    hide: tuple[int, ...] | None = None  # entries left out of obs; by default Pendulum's velocity
    total_timesteps: int = 300_000  # environment steps, rounded down to whole rollouts
    learning_rate: float = 1e-3  # Adam's learning rate
    num_envs: int = 16  # N, parallel environments
    num_steps: int = 128  # T, steps per environment in a rollout
    anneal_lr: bool = True  # decrease the learning rate linearly to 0
    gamma: float = 0.95  # discount factor
    gae_lambda: float = 0.95  # lambda of generalised advantage estimation
    num_minibatches: int = 4  # minibatches per epoch; must divide num_envs
    update_epochs: int = 10  # epochs per rollout
    norm_adv: bool = True  # normalise advantages per minibatch
    clip_coef: float = 0.2  # the probability ratio is clipped to 1 ± clip_coef
    clip_vloss: bool = False  # clip the value function's change to ± clip_coef
    ent_coef: float = 0.0  # weight of the entropy bonus
    vf_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5  # maximum gradient norm
    target_kl: float | None = None  # stop the update after an epoch with a larger mean approx_kl
    cleanrl_semantics: bool = False  # time limits are terminal, as in CleanRL

    def __post_init__(self):
        self.batch_size = self.num_envs * self.num_steps
        self.num_iterations = self.total_timesteps // self.batch_size
        if self.num_envs % self.num_minibatches:
            raise ValueError(f"--num-minibatches must divide --num-envs {self.num_envs}")
        if self.num_iterations < 1:
            raise ValueError(f"--total-timesteps must be at least a rollout: {self.batch_size}")


def make_envs(args):
    """N Gymnasium environments stepped together: obs (N, D), actions (N, A) float."""
    hide = args.hide
    if hide is None:
        hide = (2,) if args.env_id == "Pendulum-v1" else ()

    def make_env():
        env = gym.make(args.env_id, disable_env_checker=True)  # no checks of its first step
        obs_space = env.observation_space  # its text shows what is in a Dict, too
        assert not re.search(r"\d\), uint8", str(obs_space)), f"{obs_space} has pixels"
        env = env if obs_space.shape else gym.wrappers.FlattenObservation(env)
        if not hide:
            return env
        seen = np.delete(np.arange(env.observation_space.shape[0]), hide)
        space = gym.spaces.Box(-np.inf, np.inf, seen.shape)
        return gym.wrappers.TransformObservation(env, lambda obs: obs[seen], space)

    next_step = gym.vector.AutoresetMode.NEXT_STEP
    envs = gym.vector.SyncVectorEnv([make_env] * args.num_envs, autoreset_mode=next_step)
    space = envs.single_action_space
    bounded = isinstance(space, gym.spaces.Box) and space.is_bounded() and space.dtype.kind == "f"
    assert bounded, f"actions {space} must be a bounded Box of floats (Discrete: ppo_lstm)"
    return envs


class RunningMeanStd:
    """Mean and variance of all rows so far (Welford, doi:10.1080/00401706.1962.10490022)."""

    def __init__(self, mean, var, count=1e-4):
        self.mean = mean  # (...) float64
        self.var = var
        self.count = count  # rows so far, and a small weight for the first mean and variance

    def update(self, x):
        """Adds x, (rows, ...), skipping rows with nan or inf."""
        x = x[np.isfinite(x).all(tuple(range(1, x.ndim)))]
        total = self.count + len(x)
        delta = x - self.mean
        self.mean = self.mean + delta.sum(0) / total
        self.var = (self.var * self.count + (delta * (x - self.mean)).sum(0)) / total
        self.count = total

    def scale(self, x):
        """x over the standard deviation, no mean subtracted; clipped to ±10 as in CleanRL."""
        return np.minimum(np.maximum(x / np.sqrt(self.var + 1e-8), -10.0), 10.0)


def layer_init(layer, std=2**0.5, bias_const=0.0):
    """Gives a layer orthogonal weights of gain std and constant biases."""
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias_const)
    return layer


class LSTM(nn.Module):
    """nn.LSTM's equations; nn.LSTM has no argument that zeroes its state between two rows.

    x: (T * E, inputs), rows of E environments in order of time; dones: (T * E,); state: h and c
    before the first row, (2, E, H). Returns hidden, (T * E, H), and the state after the last row.
    A row whose dones is 1 still reads the memory of its episode; the row after it reads zeros.
    """

    # fast, both: whether learning passes all rows in one call; main decides
    fused = False

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.from_x = layer_init(nn.Linear(input_size, 4 * hidden_size), std=1.0)
        self.from_h = layer_init(nn.Linear(hidden_size, 4 * hidden_size), std=1.0)

    def forward(self, x, dones, state):
        h, c = state  # (E, H) each
        # fast, both: all rows in one call; the loop makes a dozen a row, which compile for minutes.
        # subtle: dones is one more entry of x, whose weight shuts all gates. So the state after an
        # autoreset row is 0, and so is that row's hidden, which the loss does not see
        if self.fused and torch.is_grad_enabled():
            w_x = nn.functional.pad(self.from_x.weight, (0, 1), value=-1e9)  # (4 H, inputs + 1)
            weights = [w_x, self.from_h.weight, self.from_x.bias, self.from_h.bias]
            x = torch.cat([x, dones[:, None]], dim=1).view(-1, len(h), w_x.shape[1])
            # biases, one layer, no dropout, training, one direction, rows before environments
            options = True, 1, 0.0, True, False, False
            hidden, h, c = torch.lstm(x, (h[None], c[None]), weights, *options)
            return hidden.flatten(0, 1), torch.cat([h, c])
        rows = self.from_x(x).view(-1, len(h), 4 * self.hidden_size)  # (T, E, 4 H), in one product
        keeps = 1 - dones.view(-1, len(h), 1)  # (T, E, 1)
        hidden = []
        for row, keep in zip(rows, keeps, strict=True):
            i, f, g, o = (row + self.from_h(h)).chunk(4, dim=1)  # (E, H) each
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            hidden.append(h)
            h, c = h * keep, c * keep
        return torch.cat(hidden), torch.stack([h, c])


class Recurrent(nn.Module):
    """A layer, an LSTM, a head: obs (M, D), dones (M,), state (2, E, H) -> (M, outputs), state."""

    def __init__(self, obs_size, outputs, std):
        super().__init__()
        self.layer = layer_init(nn.Linear(obs_size, 64))
        self.lstm = LSTM(64, 64)
        self.head = layer_init(nn.Linear(64, outputs), std)

    def forward(self, obs, dones, state):
        hidden, state = self.lstm(self.layer(obs).tanh(), dones, state)
        return self.head(hidden), state


class Agent(nn.Module):
    """Two networks with a memory: obs (M, D), dones (M,), lstm_state (2, 2, E, H), of actor and
    critic -> a Gaussian of (M, A) actions, value (M,), lstm_state.
    """

    def __init__(self, envs):
        super().__init__()
        (obs_size,) = envs.single_observation_space.shape
        (action_size,) = envs.single_action_space.shape
        self.critic = Recurrent(obs_size, 1, std=1.0)
        self.actor_mean = Recurrent(obs_size, action_size, std=0.01)
        self.actor_logstd = nn.Parameter(torch.zeros(1, action_size))

    def forward(self, obs, dones, lstm_state):
        mean, actor_state = self.actor_mean(obs, dones, lstm_state[0])
        value, critic_state = self.critic(obs, dones, lstm_state[1])
        probs = Normal(mean, self.actor_logstd.exp(), validate_args=False)
        probs = Independent(probs, 1, validate_args=False)  # its log_prob sums over the A entries
        return probs, value.squeeze(-1), torch.stack([actor_state, critic_state])


@torch.no_grad()
def act(agent, row, lstm_state):
    """Samples actions at a row's observations, and stores them there with their log-probabilities
    and values. row: fields (N, ...) of the storage; lstm_state: the memory before that row.
    Returns the actions, (N, A), and the memory after it.
    """
    probs, value, lstm_state = agent(row["obs"], row["dones"], lstm_state)
    action = probs.sample()
    row["actions"][:] = action
    row["logprobs"][:] = probs.log_prob(action)
    row["values"][:] = value
    return action, lstm_state


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


def compute_gradients(agent, batch, initial_lstm_state, args, mb_inds):
    """Sets the parameters' .grad to the clipped gradient of a minibatch.

    batch: fields (T, N, ...) of the storage; initial_lstm_state: (..., N, H), before row 0;
    mb_inds: (E,), the minibatch's environments.
    Returns LOSSES, (7,); grad_norm is that before clipping.
    """
    mb = {key: rows[:, mb_inds].flatten(0, 1) for key, rows in batch.items()}  # (M, ...)
    probs, newvalue, _ = agent(mb["obs"], mb["dones"], initial_lstm_state[..., mb_inds, :])
    newlogprob = probs.log_prob(mb["actions"])
    loss, losses = ppo_loss(newlogprob, probs.entropy(), newvalue, mb, args)
    loss.backward()
    # foreach=False: so few tensors need no batching
    grad_norm = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm, foreach=False)
    return torch.cat([losses, grad_norm.view(1)])


def train_epoch(agent, optimizer, batch, initial_lstm_state, args, b_inds):
    """Takes a gradient step on each minibatch.

    b_inds: (N / E, E), the environments of each minibatch. Returns the LOSSES of each, (N / E, 7).
    """
    losses = []
    for mb_inds in b_inds:
        optimizer.zero_grad()
        losses.append(compute_gradients(agent, batch, initial_lstm_state, args, mb_inds))
        optimizer.step()
    return torch.stack(losses)


# fast, both: only where one call computes what the loop does; it buys no speed
def fusable(agent):
    """Whether each LSTM of the agent has the same hidden and state in one call; warns if not."""
    generator = torch.Generator().manual_seed(0)
    try:
        for lstm in (module for module in agent.modules() if isinstance(module, LSTM)):
            x = torch.randn((12, lstm.from_x.in_features), generator=generator)
            state = torch.randn((2, 3, lstm.hidden_size), generator=generator)
            dones = (torch.arange(12) % 5 == 3).float()  # of 4 rows, 3 environments
            inputs = [tensor.to(lstm.from_x.weight.device) for tensor in (x, dones, state)]
            LSTM.fused = True
            in_one, after = lstm(*inputs)
            LSTM.fused = False
            hidden, looped = lstm(*inputs)
            pairs = [(in_one[dones == 0], hidden[dones == 0]), (after, looped)]
            same = all(torch.allclose(*pair, 1e-2, 1e-2) for pair in pairs)
            if not same or len([*lstm.parameters()]) != 4:  # others may begin at 0
                raise ValueError("torch.lstm computes something else")
        return True
    except Exception as error:  # whatever a fork does, the loop can
        warnings.warn(f"the LSTM learns in its loop, which is slower: {error}", stacklevel=2)
        LSTM.fused = False
        return False


# fast, both: Agent in NumPy; calling PyTorch takes longer than computing so small a network
def agent_numpy(weights, obs, dones, lstm_state):
    """obs (N, D), dones (N,), lstm_state (2, 2, N, H) -> mean (N, A), value (N,), lstm_state.

    All are arrays. weights: those of actor and critic stacked, (2, inputs, outputs) or (2,
    outputs), so that one product computes both; those of the two heads, which come last, are not.
    """
    w1, b1, w_x, b_x, w_h, b_h, w_mean, w_critic, b_mean, b_critic = weights
    h, c = lstm_state.swapaxes(0, 1)  # (2, N, H) each, of actor and critic
    x = np.tanh(obs @ w1 + b1[:, None])
    gates = x @ w_x + h @ w_h + (b_x + b_h)[:, None]  # (2, N, 4 H)
    i, f, g, o = np.split(gates, 4, axis=2)
    i, f, o = (0.5 + 0.5 * np.tanh(0.5 * gate) for gate in (i, f, o))  # sigmoids
    c = f * c + i * np.tanh(g)
    h = o * np.tanh(c)
    mean = h[0] @ w_mean + b_mean
    value = (h[1] @ w_critic + b_critic).squeeze(-1)
    return mean, value, np.stack([h, c], axis=1) * (dones == 0)[:, None]


# fast, both: actor and critic have the same layers
def numpy_weights(agent):
    """The weights that agent_numpy takes, as arrays."""
    pairs = zip(agent.actor_mean.parameters(), agent.critic.parameters(), strict=True)
    *layers, weights, biases = ([p.detach().t() for p in pair] for pair in pairs)
    return [torch.stack(pair).numpy() for pair in layers] + [p.numpy() for p in weights + biases]


# fast, both: buys no speed; it sees a fork that acts otherwise than NumPy would
def code(function):
    """What Python does in a function and in one that it wraps, whatever its variables' names."""
    inner, steps = getattr(function, "__wrapped__", None), dis.get_instructions(function)
    steps = [(x.opname, x.arg if x.opcode in dis.haslocal else x.argval) for x in steps]
    return steps + code(inner) if inner else steps


# fast, both: the actions of a rollout without PyTorch
class NumpyAct:
    """act in NumPy, by the weights of the agent that it is given and from the same random numbers.

    subtle: NumPy does what the two methods below do in PyTorch. Where a fork's forward or act is
    another one, or agent_numpy computes something else of the first row of a rollout, with any
    memory, act itself acts to the end of the run, and a warning says so.
    """

    # with other names of variables, so that a search finds the original alone
    def forward(agent, x, ends, memory):
        y, of_actor = agent.actor_mean(x, ends, memory[0])
        v, of_critic = agent.critic(x, ends, memory[1])
        p = Normal(y, agent.actor_logstd.exp(), validate_args=False)
        p = Independent(p, 1, validate_args=False)
        return p, v.squeeze(-1), torch.stack([of_actor, of_critic])

    @torch.no_grad()
    def act(agent, x, memory):
        p, v, memory = agent(x["obs"], x["dones"], memory)
        y = p.sample()
        x["actions"][:] = y
        x["logprobs"][:] = p.log_prob(y)
        x["values"][:] = v
        return y, memory

    def __init__(self, act, obs):
        self.own, self.num_steps = act, len(obs) - 1
        self.shape, self.on_gpu = obs[0].shape, obs.is_cuda
        self.in_numpy = True
        self.renew()

    def __call__(self, *inputs, **named):
        return self.step(*inputs, **named)

    def renew(self):
        """For the next rollout: weights have changed."""
        self.step = self.first_step if self.in_numpy else self.own

    @torch.no_grad()
    def first_step(self, agent, *inputs, **named):
        """NumPy acts in this rollout if it does what act does at this row, with any memory."""
        rng = torch.cuda if self.on_gpu else torch
        state, precision = rng.get_rng_state(), torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")  # NumPy has no TF32
        try:
            if code(agent.forward) != code(self.forward) or code(self.own) != code(self.act):
                raise ValueError("their code is another one")
            if Normal is not torch.distributions.Normal:
                raise ValueError("another distribution")
            if any(x._forward_hooks or x._forward_pre_hooks for x in agent.modules()):
                raise ValueError("a layer has a hook")
            row, *memory = *inputs, *named.values()
            if row["obs"].shape != self.shape:  # other environments: the rollout is to come
                return self.own(agent, *inputs, **named)
            generator = torch.Generator().manual_seed(0)
            dones = torch.randint(2, row["dones"].shape, generator=generator)
            row = {**row, "dones": dones.to(row["dones"])}  # sync
            lstm_state = torch.randn(memory[0].shape, generator=generator).to(memory[0])  # sync
            one, two = ({key: x.clone() for key, x in row.items()} for _ in "12")
            expected = self.own(agent, one, lstm_state)
            rng.set_rng_state(state)
            self.t, self.step = 0, self.derived(agent, row, lstm_state)
            found = self.step(agent, two, lstm_state)
            pairs = zip([*found, *two.values()], [*expected, *one.values()], strict=True)
            if not all(torch.allclose(x, y, 1e-3, 1e-3) for x, y in pairs):  # sync
                raise ValueError("agent_numpy computes something else")
            self.t = 0
        except Exception as error:  # whatever a fork does, its own act can
            reason = f"NumPy does not do what forward and act do ({error})"
            warnings.warn(f"PyTorch acts from now on, 0.3 ms a step slower: {reason}", stacklevel=4)
            rng.set_rng_state(state)
            self.in_numpy, self.step = False, self.own
        finally:
            torch.set_float32_matmul_precision(precision)
        return self.step(agent, *inputs, **named)

    def derived(self, known, row, lstm_state):
        """act in NumPy, by the random numbers that it would draw from now on."""
        host = copy.deepcopy(known).cpu() if self.on_gpu else known  # sync
        weights = numpy_weights(host)
        noise = torch.empty((self.num_steps, *row["actions"].shape), device=row["obs"].device)
        for x in noise:
            x.normal_()
        noise = noise.cpu().numpy()  # sync

        def sample(agent, row, lstm_state):
            if agent is not known or row["obs"].shape != self.shape or self.t == self.num_steps:
                return self.own(agent, row, lstm_state)
            inputs = (x.cpu().numpy() for x in (row["obs"], row["dones"], lstm_state))  # sync
            mean, value, state = agent_numpy(weights, *inputs)
            std = agent.actor_logstd.detach().exp().cpu().numpy()  # (1, A); sync
            action = mean + noise[self.t] * std
            # in this order, as Normal rounds it; 0.919 is log(sqrt(2 pi))
            logprob = -((action - mean) ** 2) / (2 * std**2) - np.log(std) - 0.9189385332046727
            found = {"actions": action, "logprobs": logprob.sum(-1), "values": value}
            for key, x in found.items():
                row[key][:] = torch.from_numpy(x)  # sync
            self.t += 1
            device = row["obs"].device
            return torch.from_numpy(action).to(device), torch.from_numpy(state).to(device)  # sync

        return sample


# fast, CUDA graph: a replay keeps these as they were captured; a fork may anneal them
def numbers(agent, optimizer, *inputs):
    """Numbers among the agent's attributes, the optimizer's options and the flags."""
    owners = [*map(vars, agent.modules()), *optimizer.param_groups, vars(inputs[-1])]
    return [(k, v) for x in owners for k, v in x.items() if isinstance(v, int | float | tuple)]


# fast, CUDA graph: one launch for an epoch. Its first three calls run as they are, as a graph must
# not hold what is done once: compiling, Adam's first state
def captured(train_epoch, *inputs):
    """train_epoch of these inputs as a CUDA graph, in which b_inds, the last one, is copied."""
    graph = CudaGraphModule(lambda b_inds: train_epoch(*inputs, b_inds), warmup=3)
    frozen = numbers(*inputs)

    def epoch(*arguments):
        given = all(x is y for x, y in zip(arguments, inputs, strict=False))
        if given and numbers(*inputs) == frozen:
            return graph(arguments[-1])
        changed = [name for name, value in numbers(*inputs) if (name, value) not in frozen]
        changed = changed if given else "what it was first given"
        warnings.warn(f"epochs without a CUDA graph, as it would keep {changed}", stacklevel=2)
        return train_epoch(*arguments)

    return epoch


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
    Path(run_dir, "script.py").write_bytes(Path(__file__).read_bytes())  # for ppo_eval.py
    if args.track:
        import wandb

        wandb.init(
            project=args.wandb_project_name,
            entity=args.wandb_entity,
            id=os.path.basename(run_dir),
            resume="allow",
            sync_tensorboard=True,
            config=asdict(args),
        )
    writer = SummaryWriter(run_dir, purge_step=global_step + 1)
    writer.add_text("hyperparameters", "".join(f"    {k}: {v}\n" for k, v in asdict(args).items()))
    return run_dir, writer


def save_checkpoint(run_dir, state):
    """Replaces checkpoint.pt in one step, so that a run that is killed never leaves half of it."""
    torch.save(state, f"{run_dir}/checkpoint.tmp")
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
    mode = "+".join(["compile"] * args.compile + ["cudagraphs"] * cudagraphs) or "eager"
    if args.cudagraphs and not cudagraphs:
        print("--cudagraphs needs a CUDA device: running without")
    print(f"mode: {mode}")
    print(f"{args.exp_name} on {device.type}: {args.env_id}, {N} envs x {T} steps")
    random.seed(args.seed + global_step)  # for environments that draw from it
    np.random.seed((args.seed + global_step) % 2**32)
    torch.manual_seed(args.seed)  # a resumed run goes on with the state that it saved
    torch.backends.cudnn.deterministic = args.torch_deterministic

    # environments; runs with different seeds share no episode, and a resumed run plays new ones
    envs = make_envs(args)
    seeds = np.random.SeedSequence([args.seed, global_step]).generate_state(N) >> 1  # fits int32
    next_obs, _ = envs.reset(seed=seeds.tolist())

    # agent, optimizer (fused: one kernel steps all parameters) and running statistics
    agent = Agent(envs).to(device)
    lr = torch.tensor(args.learning_rate, device=device)  # annealed in place
    optimizer = optim.Adam(agent.parameters(), lr=lr, eps=1e-5, fused=True)
    obs_rms = RunningMeanStd(np.zeros(next_obs.shape[1:]), np.ones(next_obs.shape[1:]))
    return_rms = RunningMeanStd(np.zeros(()), np.ones(()))
    episodic_returns = []
    rng = torch.cuda if device.type == "cuda" else torch  # sampling and shuffling draw from it
    if checkpoint:
        agent.load_state_dict(checkpoint["agent"])
        # Adam's moments; its learning rate and epsilon are this run's
        optimizer.load_state_dict(optimizer.state_dict() | {"state": checkpoint["adam"]})
        obs_rms = RunningMeanStd(*map(np.array, checkpoint["obs_rms"]))
        return_rms = RunningMeanStd(*map(np.array, checkpoint["return_rms"]))
        episodic_returns = checkpoint["episodic_returns"]
        if device.type in checkpoint["rng"]:
            rng.set_rng_state(checkpoint["rng"][device.type])

    # storage: rows 0 to T - 1 are the steps of a rollout. Row T holds the observation after the
    # last step: its value bootstraps, and it becomes row 0 of the next rollout
    storage = {
        "obs": torch.zeros((T + 1, N, *envs.single_observation_space.shape), device=device),
        "actions": torch.zeros((T + 1, N, *envs.single_action_space.shape), device=device),
        "logprobs": torch.zeros((T + 1, N), device=device),
        "values": torch.zeros((T + 1, N), device=device),
        "advantages": torch.zeros((T + 1, N), device=device),
        "returns": torch.zeros((T + 1, N), device=device),
        "valid": torch.zeros((T + 1, N), device=device),
        "dones": torch.zeros((T + 1, N), device=device),
    }
    batch = {key: rows[:T] for key, rows in storage.items()}  # (T, N, ...), views
    obs = storage["obs"]
    obs_rms.update(next_obs)
    obs[T] = torch.from_numpy(obs_rms.scale(next_obs - obs_rms.mean))
    lstm_state = torch.zeros((2, 2, N, agent.actor_mean.lstm.hidden_size), device=device)
    initial_lstm_state = lstm_state.clone()  # before row 0 of a rollout
    low, high = envs.single_action_space.low, envs.single_action_space.high
    # rewards and flags stay on the host, where advantages are computed
    rewards = np.zeros((T, N))
    dones = np.zeros((T + 1, N))
    terminations = np.zeros((T + 1, N))
    valid = np.zeros((T, N), dtype=bool)
    discounted = np.zeros(N)  # sums of discounted rewards, by whose std rewards are scaled
    running_returns = np.zeros(N)
    running_lengths = np.zeros(N)

    # fast, both: the loss in fused kernels, the LSTM in one call; a CUDA graph captures the loop
    if args.compile:
        ppo_loss = torch.compile(ppo_loss)
        LSTM.fused = args.fused_lstm and not cudagraphs and fusable(agent)

    # fast, CUDA graph: Adam counts its steps in the graph; train_epoch keeps name and arguments
    if cudagraphs:
        optimizer.param_groups[0]["capturable"] = True
        train_epoch = captured(train_epoch, agent, optimizer, batch, initial_lstm_state, args)

    # fast, both: NumPy acts where it does what act does, and keeps its name and arguments
    numpy_acting = args.numpy_acting and mode != "eager"
    if numpy_acting:
        act = NumpyAct(act, storage["obs"])

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
        initial_lstm_state[:] = lstm_state
        for step in range(T):
            storage["dones"][step] = torch.from_numpy(dones[step])  # sync
            row = {key: rows[step] for key, rows in storage.items()}  # views
            action, lstm_state = act(agent, row, lstm_state)  # sync: a Normal checks its std
            clipped = np.clip(action.cpu().numpy(), low, high)  # (N, A); sync
            next_obs, reward, terminated, truncated, _ = envs.step(clipped)
            obs_rms.update(next_obs)
            if terminated.any():  # a diverged simulator may end on nan, and nan * 0 is nan
                next_obs[terminated] = np.nan_to_num(next_obs[terminated], posinf=0.0, neginf=0.0)
            obs[step + 1] = torch.from_numpy(obs_rms.scale(next_obs - obs_rms.mean))  # sync
            valid[step] = dones[step] == 0
            dones[step + 1] = terminated | truncated
            terminations[step + 1] = terminated | (truncated & args.cleanrl_semantics)
            global_step += N
            # rewards are divided by the deviation of their discounted sums; as in Gymnasium a
            # termination drops the sum before its reward comes in, a truncation keeps it
            sums = discounted * args.gamma * ~terminated + reward
            discounted = np.where(valid[step], sums, discounted)
            return_rms.update(discounted[valid[step]])
            rewards[step] = return_rms.scale(reward)
            running_returns += reward * valid[step]
            running_lengths += valid[step]
            for i in np.flatnonzero(dones[step + 1]):
                episodic_returns.append(float(running_returns[i]))
                writer.add_scalar("charts/episodic_return", running_returns[i], global_step)
                writer.add_scalar("charts/episodic_length", running_lengths[i], global_step)
                running_returns[i] = running_lengths[i] = 0

        # Advantages
        storage["dones"][T] = torch.from_numpy(dones[T])  # sync
        with torch.no_grad():  # the value from which the last step bootstraps
            row = storage["obs"][T], storage["dones"][T], lstm_state
            _, storage["values"][T], _ = agent(*row)
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
            # whole environments, as a memory needs their rows in order of time
            b_inds = torch.randperm(N, device=device).view(args.num_minibatches, -1)
            losses.append(train_epoch(agent, optimizer, batch, initial_lstm_state, args, b_inds))
            approx_kl = losses[-1][:, LOSSES.index("approx_kl")].mean()
            if args.target_kl is not None and approx_kl > args.target_kl:  # sync
                break
        losses = torch.cat(losses).mean(0).tolist()  # sync; CleanRL logs the last minibatch's

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
        with suppress(BrokenPipeError):  # of a `tee` that Ctrl+C has ended, too
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
                "adam": optimizer.state_dict()["state"],
                "obs_rms": [np.asarray(x).tolist() for x in vars(obs_rms).values()],
                "return_rms": [np.asarray(x).tolist() for x in vars(return_rms).values()],
                "rng": {device.type: rng.get_rng_state()},
            }
            writer.flush()  # else a killed run's curves end before its checkpoint
            save_checkpoint(run_dir, state)
        if last:
            break
        if iteration == first_iteration:  # before this, Ctrl+C ends the run at once
            catch_signals(stop_signals)
        # fast, both: the next rollout acts by the weights of now
        if numpy_acting:
            act.renew()

    summary = {
        "script": os.path.basename(__file__).removesuffix(".py"),
        "args": asdict(args),
        "device": device.type,
        # fast, both: for tables of speed
        "mode": mode,
        "global_step": global_step,
        "complete": iteration == args.num_iterations,
        "sps": sps,
        "mean_return": mean_return,
        "episodes": len(episodic_returns),
    }
    with open(f"{run_dir}/summary.json", "w") as file:
        json.dump(summary, file, indent=2)
    writer.close()
    progress.close()
    speed = f", {sps} steps/s" if sps else ""
    print(f"{run_dir}: {score}{speed}")
    envs.close()
    if not summary["complete"]:
        sys.exit(128 + stop_signals[0])
