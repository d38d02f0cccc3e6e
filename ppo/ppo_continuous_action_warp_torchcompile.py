"""Proximal Policy Optimization (PPO) on MuJoCo Warp: the simulator runs where the network does.

    python ppo/ppo_continuous_action_warp.py   # or *_torchcompile.py --compile, made fast
    diff -u ppo/ppo_continuous_action_envpool.py ppo/ppo_continuous_action_warp.py   # what it needs

Not here: MuJoCo on the host, which on a CPU is faster (ppo_continuous_action_envpool.py).
Sources: PPO, arXiv:1707.06347; advantages, arXiv:1506.02438; names, CleanRL's; ELU,
arXiv:1511.07289; tasks, gymnasium/envs/mujoco/*_v5.py; defaults, version 0.1's on EnvPool.

Shapes: T num_steps, N num_envs, D observation size, A action size, B = T * N rows, M minibatch.
`sync` marks where the host waits for the GPU. An episode's end, in the rows of a rollout:
    t  obs[t]             actions[t]  rewards[t]   dones[t]  valid[t]
    5  observation        action      reward       0         1
    6  observation        action      last reward  0         1
    7  final observation  ignored     0            1         0         autoreset step, no transition
    8  first observation  action      reward       0         1
"""

# /// script
# requires-python = ">=3.11"
# dependencies = [
#   # fast, CUDA graph: its CudaGraphModule
#   "tensordict>=0.15",
#   "torch>=2.11,<2.16",
#   "mujoco>=4",
#   "mujoco-warp>=4",
#   "warp-lang>=1.15",
#   "gymnasium>=1.3",
#   "numpy>=2",
#   "tyro>=1.0.17",
#   "tqdm",
#   "tensorboard",
#   "wandb",
# ]
# ///
import argparse
import importlib
import json
import math
import os
import random
import re
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

SCRIPT = Path(__file__).read_bytes()  # the text that runs, kept beside what it learns

import gymnasium as gym
import numpy as np
import tyro
from tqdm import tqdm

try:
    import mujoco
    import mujoco_warp as mjw
    import warp as wp

    wp.config.log_level = wp.LOG_WARNING  # no banner, and no line for each module of kernels
    wp.init()
except ImportError:  # TASKS need them, a class of your own may not
    wp = None

import torch
import torch.nn as nn
import torch.optim as optim

# fast, CUDA graph: captures the kernels that a call launches, and replays them with one launch
from tensordict.nn import CudaGraphModule
from torch.utils.tensorboard import SummaryWriter

torch.set_float32_matmul_precision("high")  # TF32 where a GPU, or a CPU, has it
torch.set_num_threads(1)  # a second thread does not pay for networks this small

INF = float("inf")
DIVERGED = 1e10  # what no sound observation or reward gets to; MuJoCo's own limit, mjMAXVAL
LOSSES = "policy_loss value_loss entropy old_approx_kl approx_kl clipfrac grad_norm".split()
FORMAT = "ppo_continuous_action_warp 4"  # of checkpoints: for --resume and ppo_eval.py
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


@dataclass
class Args:
    """PPO for environments on the device, with vectors as observations and as actions."""

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
    compile: bool = False  # compile the gradients, let Warp capture physics; slow at first
    cudagraphs: bool = False  # capture each rollout and each epoch in a CUDA graph, on a GPU
    rollout_graph: bool = True  # with --cudagraphs: whole rollouts; if not, physics and epochs
    physics_graph: bool = True  # with a speed flag: let Warp capture physics where rollouts are not

    env_id: str = "HalfCheetah-v5"  # one of TASKS, or module:Class, a class of your own
    env_kwargs: str = "{}"  # arguments of the environment, as JSON
    total_timesteps: int = 10_000_000  # environment steps, rounded down to whole rollouts
    learning_rate: float = 2e-3  # Adam's learning rate
    num_envs: int = 64  # N, parallel environments
    num_steps: int = 64  # T, steps per environment in a rollout
    stagger: bool = True  # cut first episodes short, so that later ones end apart
    anneal_lr: bool = True  # decrease the learning rate linearly to 0
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # lambda of generalised advantage estimation
    num_minibatches: int = 8  # minibatches per epoch; must divide num_envs * num_steps
    update_epochs: int = 5  # epochs per rollout
    norm_adv: bool = True  # normalise advantages per minibatch
    clip_coef: float = 0.2  # the probability ratio is clipped to 1 ± clip_coef
    clip_vloss: bool = False  # clip the value function's change to ± clip_coef
    ent_coef: float = 0.0  # weight of the entropy bonus
    vf_coef: float = 1.3  # weight of the value loss
    max_grad_norm: float = 3.5  # maximum gradient norm
    target_kl: float | None = None  # stop the update after an epoch with a larger mean approx_kl

    def __post_init__(self):
        self.batch_size = self.num_envs * self.num_steps
        self.num_iterations = self.total_timesteps // self.batch_size
        if self.batch_size % self.num_minibatches or self.batch_size == self.num_minibatches:
            raise ValueError(f"--num-minibatches divides {self.batch_size} rows, 2 or more each")
        if self.num_iterations < 1:
            raise ValueError(f"--total-timesteps must be at least a rollout: {self.batch_size}")


@dataclass
class Task:
    """What Gymnasium's file says of a task; lengths in m, angles in rad."""

    xml: str  # the model, from Gymnasium's folder
    frame_skip: int  # physics steps in a step
    ctrl_cost: float  # weight of the squared controls
    noise: float  # size of the deviation of first states from the model's
    normal: bool = False  # first velocities are drawn from a normal distribution, else a uniform
    hidden: int = 1  # first entries of qpos, not observed
    max_velocity: float = INF  # at which observed velocities are clipped
    forward_reward: float = 1.0  # weight of the velocity along x
    healthy_reward: float = 0.0  # in each step that leaves the body healthy
    healthy: tuple = ()  # of (entry of qpos and qvel, low, high): outside the episode ends
    humanoid: bool = False  # inertias, velocities and forces are observed, the mass centre is x


# without Ant-v5: Warp turns the directions of friction of a steep capsule, and the reward of a step
# is then up to 0.14 away from Gymnasium's
TASKS = {
    "HalfCheetah-v5": Task("half_cheetah.xml", 5, 0.1, 0.1, normal=True),
    "Hopper-v5": Task(
        "hopper.xml", 4, 1e-3, 5e-3, max_velocity=10.0, healthy_reward=1.0,
        healthy=((slice(2, None), -100.0, 100.0), (1, 0.7, INF), (2, -0.2, 0.2)),
    ),
    "Walker2d-v5": Task(
        "walker2d_v5.xml", 4, 1e-3, 5e-3, max_velocity=10.0, healthy_reward=1.0,
        healthy=((1, 0.8, 2.0), (2, -1.0, 1.0)),
    ),
    "Swimmer-v5": Task("swimmer.xml", 4, 1e-4, 0.1, hidden=2),
    "Humanoid-v5": Task(
        "humanoid.xml", 5, 0.1, 1e-2, hidden=2, forward_reward=1.25, healthy_reward=5.0,
        healthy=((2, 1.0, 2.0),), humanoid=True,
    ),
}  # fmt: skip


class WarpVectorEnv:
    """N worlds of one of TASKS, all of whose state is in tensors on the device.

    A class of your own, for `--env-id module:Class`, needs what the script uses:
    Class(num_envs, device), and what --env-kwargs names
    single_observation_space, single_action_space: Boxes, (D,) and (A,)
    max_episode_steps; elapsed: (N,), steps of each episode, which the script may change: where they
    are max_episode_steps or more after a step, it is truncated
    metrics: {name: tensor ()}, logged once an iteration; may be empty
    state() -> what load(state) of a resumed run goes on with, a curriculum: tensors, numbers,
    strings, in lists or dicts; may both be left out
    reset() -> obs (N, D) float32
    step(action (N, A)) -> obs (N, D), reward (N,) float32, terminated (N,), truncated (N,) bool

    The step after an episode's end ignores the action and starts anew: first observation, reward 0,
    no flags. Shapes never change, the host reads no value, and state is written in place, as a CUDA
    graph asks for (capturable = False where a step does wait for the device, or launches elsewhere
    than on PyTorch's stream); random numbers come from PyTorch's default generator.
    """

    def __init__(self, env_id, num_envs, device, **task):
        self.task = task = replace(TASKS[env_id], **task)
        self.num_envs = num_envs
        self.max_episode_steps = gym.spec(env_id).max_episode_steps
        folder = os.path.join(os.path.dirname(gym.__file__), "envs", "mujoco", "assets")
        mjm = mujoco.MjModel.from_xml_path(os.path.join(folder, task.xml))
        mjm.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON  # Humanoid's, PGS, is not in MuJoCo Warp
        mjd = mujoco.MjData(mjm)
        mujoco.mj_forward(mjm, mjd)
        self.device = wp.get_device(device.type)
        with wp.ScopedDevice(self.device):
            self.model = mjw.put_model(mjm)
            self.data = mjw.put_data(mjm, mjd, nworld=num_envs)
        self.model.opt.warn_overflow = 0  # dropped contacts are counted, not printed
        views = "qpos qvel ctrl qacc_warmstart overflow xipos cinert cvel qfrc_actuator cfrc_ext"
        for name in views.split():
            setattr(self, name, wp.to_torch(getattr(self.data, name)))  # (N, ...), views
        self.first_qpos = torch.from_numpy(mjm.qpos0).to(self.qpos)
        self.mass = torch.from_numpy(mjm.body_mass / mjm.body_mass.sum()).to(self.qpos)
        self.dt = mjm.opt.timestep * task.frame_skip
        self.low = torch.full((mjm.nq + mjm.nv,), -INF, device=device)  # of qpos and qvel
        self.high = -self.low
        for entry, low, high in task.healthy:
            self.low[entry], self.high[entry] = low, high
        self.x = torch.zeros(num_envs, device=device)  # from which the next step's reward counts
        self.done = torch.ones(num_envs, dtype=torch.bool, device=device)
        self.elapsed = torch.zeros(num_envs, dtype=torch.int64, device=device)
        # of Warp's overflows those by which contacts, or the constraints that they make, get lost
        kinds = mjw.OverflowType
        self.dropped = kinds.NEFC | kinds.BROADPHASE | kinds.NARROWPHASE
        # steps of worlds in which contacts did not fit into Warp's arrays
        self.metrics = {"dropped_contacts": torch.zeros((), dtype=torch.int64, device=device)}
        obs_size = self.observe().shape[1]
        self.single_observation_space = gym.spaces.Box(-INF, INF, (obs_size,))
        low, high = mjm.actuator_ctrlrange.astype(np.float32).T
        self.single_action_space = gym.spaces.Box(low, high)

    def simulate(self):
        """Launches the kernels of a step's physics.

        sync: on a GPU the host asks in each iteration of the solver whether it has converged;
        where the launches are captured, it does not.
        """
        with wp.ScopedDevice(self.device):
            for _ in range(self.task.frame_skip):
                mjw.step(self.model, self.data)
            if self.task.humanoid:
                mjw.rne_postconstraint(self.model, self.data)  # cfrc_ext

    def derive(self):
        """Launches the kernels of what follows from qpos and qvel, inertias for instance."""
        with wp.ScopedDevice(self.device):
            mjw.forward(self.model, self.data)

    def position(self):
        """x of each world, (N,), by which velocity is measured."""
        if self.task.humanoid:
            return (self.xipos[:, :, 0] * self.mass).sum(1)
        return self.qpos[:, 0].clone()

    def observe(self):
        """Observations, (N, D)."""
        limit = self.task.max_velocity
        parts = [self.qpos[:, self.task.hidden :], self.qvel.clamp(-limit, limit)]
        if self.task.humanoid:
            parts += [self.cinert[:, 1:].flatten(1), self.cvel[:, 1:].flatten(1)]
            parts += [self.qfrc_actuator[:, 6:], self.cfrc_ext[:, 1:].flatten(1)]
        return torch.cat(parts, 1)

    def cost(self):
        """What controls and contacts take from each world's reward, (N,)."""
        cost = self.task.ctrl_cost * self.ctrl.square().sum(1)
        if self.task.humanoid:
            # weight and limit of the contacts' cost, which this task alone has
            cost += (5e-7 * self.cfrc_ext.square().sum((1, 2))).clamp(max=10.0)
        return cost

    def first_states(self):
        """qpos, (N, nq), and qvel, (N, nv), of worlds that start anew; drawn for all N."""
        qpos = 2 * torch.rand_like(self.qpos) - 1
        normal = self.task.normal
        qvel = torch.randn_like(self.qvel) if normal else 2 * torch.rand_like(self.qvel) - 1
        return self.first_qpos + self.task.noise * qpos, self.task.noise * qvel

    def reset(self):
        """Starts all worlds anew; returns first observations, (N, D)."""
        self.done.fill_(True)
        return self.step(torch.zeros_like(self.ctrl))[0]

    def step(self, action):
        """Steps all worlds; those whose episode has ended start anew instead."""
        task, anew = self.task, self.done.clone()
        # controls of a first state are 0; the physics of a world that starts anew is for nothing
        self.ctrl.copy_(torch.where(anew[:, None], 0.0, action))
        self.simulate()
        obs, x = self.observe(), self.position()
        state = torch.cat([self.qpos, self.qvel], 1)
        healthy = ((state > self.low) & (state < self.high)).all(1)
        reward = task.forward_reward * (x - self.x) / self.dt + task.healthy_reward * healthy
        reward -= self.cost()
        # what MuJoCo takes for diverged ends no episode: the reward says so, the world starts anew
        sound = (torch.cat([state, reward[:, None]], 1).abs() < mujoco.mjMAXVAL).all(1)
        reward = torch.where(sound, reward, torch.nan)
        self.metrics["dropped_contacts"] += (self.overflow & self.dropped != 0).sum()
        self.overflow.zero_()

        qpos, qvel = self.first_states()
        self.qpos.copy_(torch.where(anew[:, None], qpos, self.qpos))
        self.qvel.copy_(torch.where(anew[:, None], qvel, self.qvel))
        self.qacc_warmstart.masked_fill_(anew[:, None], 0.0)  # else nan would live on there
        if task.humanoid:
            self.derive()
            self.cfrc_ext.zero_()  # as after Gymnasium's reset
        obs = torch.where(anew[:, None], self.observe(), obs)
        # subtle: Humanoid's x is that before the last physics step, as in Gymnasium. So it is kept:
        # derive() brings it up to date
        self.x.copy_(torch.where(anew, self.position(), x))
        self.elapsed.add_(1).masked_fill_(anew, 0)
        terminated = ~healthy & sound & ~anew
        truncated = (self.elapsed >= self.max_episode_steps) & ~anew
        self.done.copy_(terminated | truncated | (~sound & ~anew))
        return obs, torch.where(anew, 0.0, reward), terminated, truncated


# fast, both: launching the kernels of a step one by one takes longer than running them
def captured_by_warp(launch, device):
    """Captures the kernels that `launch` launches, on a CPU as well; returns what replays them."""
    launch()  # compiles and loads them; subtle: it steps the worlds too, which reset() undoes
    with wp.ScopedCapture(device) as capture:
        launch()
    return lambda: wp.capture_launch(capture.graph)


# fast, CUDA graph: Warp's kernels become a part of what PyTorch captures
def on_torch_stream(launch):
    """`launch` on PyTorch's current stream, in place of Warp's own."""
    streams = {}  # PyTorch's to Warp's, which must last as long as what runs on them

    def launch_there():
        current = torch.cuda.current_stream()
        if current not in streams:
            streams[current] = wp.stream_from_torch(current)
        stream = streams[current]
        with wp.ScopedStream(stream, sync_enter=False):  # Warp's own stream is in no capture
            # subtle: Warp must know of PyTorch's capture. Else its solver would ask the device, in
            # each iteration, whether it has converged, and that breaks a capture
            if torch.cuda.is_current_stream_capturing():
                mode = wp.CaptureMode.GLOBAL  # as torch.cuda.graph's
                with wp.ScopedCapture(stream=stream, external=True, capture_mode=mode):
                    launch()
            else:
                launch()

    return launch_there


def make_envs(args, device):
    """N environments on the device, of Warp's or of a class of your own."""
    if ":" in args.env_id:
        module, name = args.env_id.split(":")
        make = getattr(importlib.import_module(module), name)
        envs = make(args.num_envs, device, **json.loads(args.env_kwargs))
    elif args.env_id in TASKS:
        if wp is None:
            sys.exit("this needs MuJoCo Warp: pip install mujoco mujoco-warp warp-lang")
        if device.type == "cuda" and not wp.is_cuda_available():
            sys.exit('Warp finds no GPU: from 1.18 on it needs driver 580; else "warp-lang<1.18"')
        print(f"kernels: compiled once, for about a minute, into {wp.config.kernel_cache_dir}")
        envs = WarpVectorEnv(args.env_id, args.num_envs, device, **json.loads(args.env_kwargs))
    else:
        sys.exit(f"--env-id {args.env_id}: there are {', '.join(TASKS)}, or module:Class")
    space = envs.single_action_space
    floats = isinstance(space, gym.spaces.Box) and space.dtype.kind == "f"
    assert floats, f"actions must be a Box of floats, not {space}"
    # what a Gaussian draws beyond the bounds is clipped to them
    low, high = (torch.from_numpy(x).to(device) for x in (space.low, space.high))
    step = envs.step
    envs.step = lambda action: step(action.clamp(low, high))
    return envs


class RunningMeanStd(nn.Module):
    """Mean and variance of all rows so far (Welford, doi:10.1080/00401706.1962.10490022), float64.

    forward: x, (..., D), less the mean, over the deviation, clipped to ±10 as in CleanRL; float32.
    """

    def __init__(self, size):
        super().__init__()
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("var", torch.ones(size, dtype=torch.float64))
        # rows so far, and a small weight for the first mean and variance
        self.register_buffer("count", torch.tensor(1e-4, dtype=torch.float64))

    def update(self, x, valid):
        """Adds the rows of x, (..., D), where valid, (...), is 1; others may be inf or nan."""
        total = self.count + valid.sum()
        rows = valid.unsqueeze(-1) > 0
        before = torch.where(rows, x - self.mean, 0.0)
        self.mean += before.flatten(0, -2).sum(0) / total
        after = torch.where(rows, x - self.mean, 0.0)
        self.var.copy_((self.var * self.count + (before * after).flatten(0, -2).sum(0)) / total)
        self.count.copy_(total)

    def forward(self, x):
        mean, var = self.mean.float(), self.var.float()
        return ((x - mean) * (var + 1e-8).rsqrt()).clamp(-10.0, 10.0)


def layer_init(layer, std=2**0.5, bias_const=0.0):
    """Gives a layer orthogonal weights of gain std and constant biases."""
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias_const)
    return layer


class Gaussian:
    """A diagonal Gaussian over A dimensions, of mean (..., A) and standard deviations std."""

    def __init__(self, mean, std):
        self.mean = mean
        self.std = std

    def sample(self):
        return self.mean + self.std * torch.randn_like(self.mean)

    def mode(self):
        """What ppo_eval --deterministic takes."""
        return self.mean

    def log_prob(self, action):
        """(...), the logarithms of all A densities summed."""
        z = (action - self.mean) / self.std
        return (-0.5 * z.square() - self.std.log() - HALF_LOG_2PI).sum(-1)

    def entropy(self):
        return (0.5 + HALF_LOG_2PI + self.std.log()).sum(-1).expand(self.mean.shape[:-1])


class Agent(nn.Module):
    """Two ELU networks: obs (..., D) -> a Gaussian of (..., A) actions, value (...)."""

    def __init__(self, envs):
        super().__init__()
        (obs_size,) = envs.single_observation_space.shape
        (action_size,) = envs.single_action_space.shape
        self.obs_rms = RunningMeanStd(obs_size)
        self.critic = nn.Sequential(
            layer_init(nn.Linear(obs_size, 64)),
            nn.ELU(),
            layer_init(nn.Linear(64, 64)),
            nn.ELU(),
            layer_init(nn.Linear(64, 1), std=1.0),
        )
        self.actor_mean = nn.Sequential(
            layer_init(nn.Linear(obs_size, 64)),
            nn.ELU(),
            layer_init(nn.Linear(64, 64)),
            nn.ELU(),
            layer_init(nn.Linear(64, action_size), std=0.01),
        )
        # begins with a deviation of 0.6, not 1: smaller, as arXiv:2006.05990 advises
        self.actor_logstd = nn.Parameter(torch.full((1, action_size), -0.5))

    def policy(self, obs):
        return Gaussian(self.actor_mean(self.obs_rms(obs)), self.actor_logstd.exp())

    def forward(self, obs):
        return self.policy(obs), self.critic(self.obs_rms(obs)).squeeze(-1)


@torch.no_grad()
def act(agent, obs):
    """Samples an action for each observation: (N, D) -> (N, A)."""
    return agent.policy(obs).sample()


@torch.no_grad()
def rollout(agent, envs, storage, signals, args):
    """T steps of all environments, written into storage and signals; the host reads no value."""
    obs = storage["obs"]
    rewards, dones, terminations, discounted, running_returns, running_lengths, lost = signals
    for step in range(args.num_steps):
        action = act(agent, obs[step])
        storage["actions"][step] = action
        next_obs, reward, terminated, truncated = envs.step(action)
        # a world that diverges and does not end is cut as by a time limit, what it saw before
        # stands in for what it sees now, and it starts anew; main sets its reward
        paid = reward.abs() < DIVERGED  # not where it is nan
        terminated = terminated & paid  # what ends on nan has diverged
        sound = (next_obs.abs() < DIVERGED).all(1) & paid
        envs.elapsed.masked_fill_(~sound, envs.max_episode_steps)
        valid = dones[step] == 0
        lost[step + 1] = ~sound & ~terminated  # in later steps too, unless a new episode heals it
        # where the simulator itself ended the episode, what it paid for that counts
        reward = torch.where(sound | terminated, reward, 0.0)
        obs[step + 1] = torch.where(sound.unsqueeze(1), next_obs, obs[step])
        storage["valid"][step] = valid
        dones[step + 1] = terminated | truncated | ~sound
        terminations[step + 1] = terminated
        rewards[step] = reward
        # as in Gymnasium a termination drops the sum before its reward comes in, a cut keeps it
        sums = discounted[step] * args.gamma * ~terminated + reward
        discounted[step + 1] = torch.where(valid, sums, discounted[step])
        running_returns[step + 1] = torch.where(valid, running_returns[step] + reward, 0.0)
        running_lengths[step + 1] = torch.where(valid, running_lengths[step] + 1, 0.0)


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


# fast, CUDA graph: one launch for an epoch or a rollout. Three calls run as they are, the third
# then records the graph, so that it holds nothing that is done once: compiling, Adam's state
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

    # environments
    envs = make_envs(args, device)
    # fast, both: Warp's launches, captured. Those of a class of your own are captured with the
    # rollout, unless it has `capturable = False`, as its steps wait for the device
    rollout_graph = cudagraphs and args.rollout_graph and getattr(envs, "capturable", True)
    if isinstance(envs, WarpVectorEnv):
        if rollout_graph:
            envs.simulate, envs.derive = map(on_torch_stream, (envs.simulate, envs.derive))
        elif (args.compile or cudagraphs) and args.physics_graph:
            envs.simulate = captured_by_warp(envs.simulate, envs.device)
            envs.derive = captured_by_warp(envs.derive, envs.device)
    obs_shape, action_shape = envs.single_observation_space.shape, envs.single_action_space.shape

    # agent, optimizer (fused: one call steps all parameters) and the statistics of returns
    agent = Agent(envs).to(device)
    lr = torch.tensor(args.learning_rate, device=device)  # annealed in place
    optimizer = optim.Adam(agent.parameters(), lr=lr, eps=1e-5, fused=True)
    return_rms = RunningMeanStd(1)  # on the host, where rewards are scaled
    episodic_returns = []
    rng = torch.cuda if device.type == "cuda" else torch  # sampling and shuffling draw from it
    if checkpoint:
        agent.load_state_dict(checkpoint["agent"])
        for name, parameter in agent.named_parameters():  # Adam's moments, by name
            moments = checkpoint["adam"][name]
            optimizer.state[parameter] = {key: x.to(device) for key, x in moments.items()}
        return_rms.load_state_dict(checkpoint["return_rms"])
        episodic_returns = checkpoint["episodic_returns"]
        if device.type in checkpoint["rng"]:
            rng.set_rng_state(checkpoint["rng"][device.type])

    # storage: rows 0 to T - 1 are the steps of a rollout. Row T holds the observation after the
    # last step: its value bootstraps, and it becomes row 0 of the next rollout
    storage = {
        "obs": torch.zeros((T + 1, N, *obs_shape), device=device),
        "actions": torch.zeros((T + 1, N, *action_shape), device=device),
        "logprobs": torch.zeros((T + 1, N), device=device),
        "values": torch.zeros((T + 1, N), device=device),
        "advantages": torch.zeros((T + 1, N), device=device),
        "returns": torch.zeros((T + 1, N), device=device),
        "valid": torch.zeros((T + 1, N), device=device),
    }
    batch = {key: rows[:T].flatten(0, 1) for key, rows in storage.items()}  # (B, ...), views
    obs = storage["obs"]
    # rewards, dones, terminations, sums of discounted rewards, by whose std rewards are scaled, of
    # each episode so far return and length, and where a world diverged: (T + 1, N) each, on the
    # device in one piece, which the host fetches once an iteration. Row T of rewards is not used
    signals = torch.zeros((7, T + 1, N), dtype=torch.float64, device=device)
    if checkpoint and hasattr(envs, "load"):
        envs.load(checkpoint["envs"])
    next_obs = envs.reset()
    assert next_obs.abs().max() < DIVERGED, "a first observation is not sound"  # sync
    obs[T] = next_obs
    # --stagger: where episodes end by their time limit alone, all would end in the same step for
    # ever. So first episodes begin as if some steps had been made, spread over an episode's length,
    # and their returns do not count
    if args.stagger:
        envs.elapsed.copy_(torch.arange(N) * envs.max_episode_steps // N)
        signals[4, T] = torch.nan

    # fast, both: network, loss, backward and clipping become one call, fused between the matrix
    # products. act stays: on a CPU a compiled call is no faster, with networks this small
    if args.compile:
        torch._dynamo.config.trace_autograd_ops = True  # else the graph breaks at backward
        compute_gradients = torch.compile(compute_gradients)
    # fast, CUDA graph: Adam refuses to be captured unless told; train_epoch is called as before
    if cudagraphs:
        optimizer.param_groups[0]["capturable"] = True
        train_epoch = captured(train_epoch, agent, optimizer, batch, args)
    # fast, CUDA graph: one launch for a rollout, physics included
    if rollout_graph:
        rollout = captured(rollout, agent, envs, storage, signals, args)

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
        signals[:, 0] = signals[:, T]
        rollout(agent, envs, storage, signals, args)
        global_step += T * N
        on_host = signals.cpu().numpy()  # sync
        rewards, dones, terminations, discounted, running_returns, running_lengths, lost = on_host
        rewards, lost = rewards[:T], lost[1:] == 1
        valid = dones[:T] == 0
        ended = valid & (dones[1:] == 1) & ~lost & ~np.isnan(running_returns[1:])  # (T, N)
        if ended.any():  # means, as thousands of episodes may end in an iteration
            ended_returns, ended_lengths = running_returns[1:][ended], running_lengths[1:][ended]
            episodic_returns.extend(map(float, ended_returns))
            writer.add_scalar("charts/episodic_return", ended_returns.mean(), global_step)
            writer.add_scalar("charts/episodic_length", ended_lengths.mean(), global_step)

        # Advantages
        # rewards are divided by the deviation of their discounted sums, this rollout's included
        rows = torch.from_numpy(discounted[1:, :, None])
        return_rms.update(rows, torch.from_numpy(valid & ~lost))
        rewards = np.clip(rewards / (return_rms.var.item() + 1e-8) ** 0.5, -10.0, 10.0)
        with torch.no_grad():  # the policy that acted has not changed: one pass for all T + 1 rows
            probs, storage["values"][:] = agent(storage["obs"])
            storage["logprobs"][:] = probs.log_prob(storage["actions"])
        values = storage["values"].double().cpu().numpy()  # sync; sums in float64, rounded once
        # to diverge never pays: a lost step, so far 0, earns the least that any step did
        rewards[lost] = rewards.min()
        advantages = compute_gae(rewards, dones, terminations, values, args.gamma, args.gae_lambda)
        returns = advantages + values[:T]
        storage["advantages"][:T] = torch.from_numpy(advantages)  # sync
        storage["returns"][:T] = torch.from_numpy(returns)  # sync

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
        # statistics move last: until here one policy acts and learns, so that ratios begin at 1;
        # the first rollout is learned from as it was seen, only clipped to ±10
        agent.obs_rms.update(obs[:T], storage["valid"][:T])

        # Log
        writer.add_scalar("charts/diverged", lost.mean(), global_step)
        for name, value in envs.metrics.items():
            writer.add_scalar(f"charts/{name}", value.item(), global_step)  # sync
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
        if lost.mean() > 0.125:  # a fault of the task or of the learner
            raise FloatingPointError(
                f"in iteration {iteration} {lost.mean():.0%} of steps diverged"
            )
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
                "return_rms": return_rms.state_dict(),
                "rng": {device.type: rng.get_rng_state()},
                "envs": envs.state() if hasattr(envs, "state") else None,
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
    if not summary["complete"]:
        sys.exit(128 + stop_signals[0])
