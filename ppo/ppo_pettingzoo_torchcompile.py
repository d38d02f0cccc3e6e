"""PPO for several agents that share one policy, on PettingZoo's Parallel API.

    python ppo/ppo_pettingzoo.py                                         # eager, to be read
    python ppo/ppo_pettingzoo_torchcompile.py --compile                  # the same, made fast
    diff -u ppo/ppo_pettingzoo.py ppo/ppo_pettingzoo_torchcompile.py     # how
    diff -u ppo/ppo.py ppo/ppo_pettingzoo.py                             # what several agents need

Not here: agents with spaces of their own, a critic that sees all agents; what ppo.py leaves out.
Sources: those of ppo.py; IPPO, arXiv:2011.09533; one policy for all agents, arXiv:2103.01955.

Shapes: T num_steps, E num_envs, K agents, N = E * K: agent k of environment e has index e * K + k;
D entries of obs, A actions, B = T * N rows of a rollout, M rows of a minibatch.
Time: in step t, actions[t] is chosen at obs[t] and earns rewards[t]. Whether it ended the episode
is in row t + 1 of dones and terminations, beside the next obs. `sync`: the host waits for a GPU.
Where dones[t] is 1, an agent does not act: it has just left, and obs[t] is its last observation, or
it is not there, and obs[t] is zeros. As in an autoreset step, valid[t] is 0, and the row weighs
nothing in the loss. The step after the last agent has left resets the environment.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch>=2.11,<2.16",
#   # fast, CUDA graph: its CudaGraphModule
#   "tensordict>=0.15",
#   "gymnasium>=1.3",
#   "pettingzoo>=1.27",
#   "mpe2>=1.1",
#   "numpy>=2",
#   "tyro>=1.0.17",
#   "tqdm",
#   "tensorboard",
#   "wandb",
# ]
# ///
import argparse
import atexit
import importlib
import io
import json
import os
import re
import shlex
import signal
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial

import gymnasium as gym
import numpy as np
import tyro
from tqdm import tqdm

import torch
import torch.nn as nn
import torch.optim as optim

# fast, CUDA graph: CudaGraphModule captures a call and replays it; TensorDict holds the rollout
os.environ.setdefault("TD_LOGGING_LEVEL", "WARNING")  # no lines about each capture

from tensordict import TensorDict
from tensordict.nn import CudaGraphModule
from torch.distributions.categorical import Categorical
from torch.utils.tensorboard import SummaryWriter

torch.set_float32_matmul_precision("high")  # TF32 where a GPU has it
torch.set_num_threads(1)  # networks this small gain little from a second one

FORMAT = "ppo_pettingzoo 1"  # of a checkpoint; --resume refuses others
# what compute_gradients returns, in this order; grad_norm is that before clipping
LOSSES = "policy_loss value_loss entropy old_approx_kl approx_kl clipfrac grad_norm".split()


@dataclass
class Args:
    """PPO on PettingZoo's parallel environments, with one policy for all agents."""

    exp_name: str = os.path.basename(__file__).removesuffix(".py")  # part of the folder's name
    seed: int = 1  # of the environments, the network and the sampling, 0 or more
    torch_deterministic: bool = True  # cuDNN picks deterministic kernels
    cuda: bool = True  # use the GPU if there is one
    track: bool = False  # send the metrics to Weights & Biases as well
    wandb_project_name: str = "ppo"  # project on Weights & Biases
    wandb_entity: str | None = None  # team on Weights & Biases; None is your own account
    runs_dir: str = "runs"  # folder that gets a folder for this run
    checkpoint_interval: int = 50  # iterations between two checkpoints
    resume: str | None = None  # folder of a run to go on with: its arguments are the defaults
    measure_burnin: int = 3  # first iterations, not counted in the steps per second

    env_id: str = "mpe2.simple_spread_v3"  # module with a parallel_env of discrete actions
    env_kwargs: str = "{}"  # what parallel_env is called with, in JSON: '{"N": 5}'
    total_timesteps: int = 500_000  # steps of environments, autoreset ones too, in whole rollouts
    learning_rate: float = 1e-3  # Adam's step size
    num_envs: int = 8  # E, environments side by side, each with K agents
    num_steps: int = 128  # T, steps of each environment in a rollout
    anneal_lr: bool = True  # let the learning rate fall linearly, to 0 after the last update
    gamma: float = 0.95  # discount of a step, 0 to 1
    gae_lambda: float = 0.95  # decay of the advantages, 0 (one step) to 1 (Monte Carlo)
    num_minibatches: int = 4  # gradient steps in an epoch; divides num_envs * num_steps
    update_epochs: int = 10  # passes over a rollout's rows
    norm_adv: bool = True  # normalise the advantages of each minibatch
    clip_coef: float = 0.2  # the probability ratio is clipped to 1 ± this; inf: never
    clip_vloss: bool = False  # clip the change of the value to ± clip_coef too
    ent_coef: float = 0.01  # weight of the entropy bonus
    vf_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5  # gradients are scaled down to this Euclidean norm; inf: never
    target_kl: float | None = None  # end an update after an epoch whose mean approx_kl is larger
    cleanrl_semantics: bool = False  # time limits are terminal, as in CleanRL; all else stays
    # fast, both: hunks marked `both` are for a CPU and for a GPU, those marked `CUDA graph` gain
    # speed on a GPU alone. These flags are switches, so that what each one gains can be measured
    compile: bool = False  # compile the gradients: the first iteration takes longer
    cudagraphs: bool = False  # capture each epoch in a CUDA graph, on a CUDA device
    numpy_acting: bool = True  # with --compile, or --cudagraphs on a GPU, act in NumPy

    @property
    def batch_size(self):
        """B / K: steps of environments in a rollout."""
        return self.num_envs * self.num_steps

    @property
    def minibatch_size(self):
        """M / K; the rows of a minibatch are drawn from those of all agents."""
        return self.batch_size // self.num_minibatches

    @property
    def num_iterations(self):
        """Rollouts of the whole run, each followed by an update."""
        return self.total_timesteps // self.batch_size

    def __post_init__(self):
        """Raises ValueError for what is out of range: tyro prints it and exits with status 2."""
        for rule, holds, names in (
            ("above 0", lambda x: x > 0, "num_envs num_steps num_minibatches update_epochs"),
            ("above 0", lambda x: x is None or x > 0, "clip_coef max_grad_norm target_kl"),
            ("above 0, not inf", lambda x: 0 < x < np.inf, "learning_rate checkpoint_interval"),
            ("0 or more", lambda x: 0 <= x < np.inf, "measure_burnin ent_coef vf_coef"),
            ("0 to 2**64 - 1", lambda x: 0 <= x < 2**64, "seed"),
            ("0 to 1", lambda x: 0 <= x <= 1, "gamma gae_lambda"),
        ):
            for name in names.split():
                value = getattr(self, name)
                if not holds(value):
                    raise ValueError(f"--{name.replace('_', '-')} {value}: give {rule}")
        self.runs_dir = os.path.expanduser(self.runs_dir)
        self.resume = self.resume and os.path.expanduser(self.resume)
        rows = f"num_envs * num_steps = {self.batch_size}"
        if self.num_iterations < 1:
            raise ValueError(f"--total-timesteps {self.total_timesteps}: give {rows}, or more")
        if self.batch_size % self.num_minibatches or self.minibatch_size < 2:
            raise ValueError(f"--num-minibatches {self.num_minibatches}: no divisor below {rows}")


class ParallelEnvs:
    """E environments of PettingZoo's Parallel API with K agents each, stepped as one.

    After the step in which it leaves, and before it comes, an agent has zeros as observation and
    reward, and counts as terminated.
    """

    def __init__(self, make_env, num_envs):
        self.envs = [make_env() for _ in range(num_envs)]
        self.agents = [*self.envs[0].possible_agents]  # K names, in the order of all that is N long
        self.num_agents = num_envs * len(self.agents)  # N
        self.obs_space = self.space_of_all("observation_space")
        self.single_observation_space = gym.spaces.flatten_space(self.obs_space)
        self.single_action_space = self.space_of_all("action_space")

    def space_of_all(self, kind):
        """The one space of all agents; ValueError names two whose spaces differ."""
        spaces = {agent: getattr(self.envs[0], kind)(agent) for agent in self.agents}
        first = self.agents[0]
        for agent in self.agents:
            if spaces[agent] != spaces[first]:
                differ = f"{first} has {spaces[first]}, {agent} has {spaces[agent]}"
                raise ValueError(f"agents need the same {kind}: {differ}")
        return spaces[first]

    def of_all(self, found, missing):
        """N values, in their order, from a dictionary by agent for each environment."""
        return [by_agent.get(agent, missing) for by_agent in found for agent in self.agents]

    def flat(self, found):
        """Observations, a dictionary by agent for each environment -> (N, D) float32."""
        obs = np.zeros((self.num_agents, *self.single_observation_space.shape), np.float32)
        for row, seen in zip(obs, self.of_all(found, None), strict=True):
            if seen is not None:
                row[:] = gym.spaces.flatten(self.obs_space, seen)
        return obs

    def reset(self, seed):
        """Starts all environments, each with its own seed: obs, and who is not there, (N,) bool."""
        found = [env.reset(seed=x)[0] for env, x in zip(self.envs, seed, strict=True)]
        absent = [agent not in env.agents for env in self.envs for agent in self.agents]
        self.over = np.zeros(len(self.envs), bool)  # all its agents have left: to be reset
        return self.flat(found), np.array(absent)

    def step(self, actions):
        """Actions, (N,) int64 -> obs, (N, D), reward, terminated, truncated, (N,), and {}.

        An environment that all agents left in the step before is reset, as in Gymnasium's NEXT_STEP
        mode.
        """
        found = []
        for env, chosen, over in zip(
            self.envs, actions.reshape(len(self.envs), -1), self.over, strict=True
        ):
            if over:
                obs, _ = env.reset()
                reward, terminated, truncated = {}, {}, {}
            else:
                by_agent = dict(zip(self.agents, chosen.tolist(), strict=True))
                outcome = env.step({agent: by_agent[agent] for agent in env.agents})
                obs, reward, terminated, truncated, _ = outcome
            # whose end was not said in this step is there, or is not, as the list of agents says
            absent = {agent: agent not in env.agents for agent in self.agents}
            found.append((obs, reward, absent | terminated, truncated))
        obs, reward, terminated, truncated = zip(*found, strict=True)
        reward = np.array(self.of_all(reward, 0.0), np.float64)
        terminated = np.array(self.of_all(terminated, True), bool)
        truncated = np.array(self.of_all(truncated, False), bool)
        self.over = (terminated | truncated).reshape(len(self.envs), -1).all(1)
        return self.flat(obs), reward, terminated, truncated, {}

    def close(self):
        """Closes all environments."""
        for env in self.envs:
            env.close()


def make_envs(args):
    """E environments that the module env_id makes, as ParallelEnvs.

    Raises what the module does, and ValueError for other spaces.
    """
    module = importlib.import_module(args.env_id)
    make_env = partial(module.parallel_env, **json.loads(args.env_kwargs))
    envs = ParallelEnvs(make_env, args.num_envs)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    discrete = isinstance(action_space, gym.spaces.Discrete) and action_space.start == 0
    image = envs.obs_space.dtype == np.uint8 and len(envs.obs_space.shape) > 1
    if not isinstance(obs_space, gym.spaces.Box) or image or not discrete:
        spaces = f"{envs.obs_space} and {action_space}"
        raise ValueError(f"needs numbers, not pixels, and discrete actions, not {spaces}")
    # an environment of another API fails here, before there is a run
    envs.reset([0] * args.num_envs)
    envs.step(np.zeros(envs.num_agents, np.int64))
    return envs


def layer_init(layer, std=2**0.5, bias_const=0.0):
    """Fills a layer with orthogonal weights of gain std and constant biases; returns it."""
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias_const)
    return layer


class Agent(nn.Module):
    """Two 64-64 tanh networks: obs (M, D) -> logits (M, A), value (M,), float32."""

    def __init__(self, envs, device=None):
        super().__init__()
        (obs_size,) = envs.single_observation_space.shape
        self.critic = nn.Sequential(
            layer_init(nn.Linear(obs_size, 64, device=device)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 64, device=device)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 1, device=device), std=1.0),
        )
        self.actor = nn.Sequential(
            layer_init(nn.Linear(obs_size, 64, device=device)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 64, device=device)),
            nn.Tanh(),
            layer_init(nn.Linear(64, envs.single_action_space.n, device=device), std=0.01),
        )

    def forward(self, obs):
        return self.actor(obs), self.critic(obs).squeeze(-1)


def masked_mean(x, valid):
    """Mean of x over the rows where valid, 0 or 1 and of x's shape, is 1; 0 if there is none."""
    return (x * valid).sum() / valid.sum().clamp(min=1.0)


def compute_gae(rewards, dones, terminations, values, gamma, gae_lambda):
    """Generalised advantages of one rollout (arXiv:1506.02438, equation 16).

    rewards, dones, terminations, values: (T + 1, N) float64; row T of rewards is not read.
    An episode truncated in step t bootstraps from its last observation, of value values[t + 1].
    Returns advantages, (T, N) float64; those of autoreset steps mean nothing.
    """
    # one-step errors, delta[t], to begin with
    advantages = rewards[:-1] + gamma * values[1:] * (1 - terminations[1:]) - values[:-1]
    decay = gamma * gae_lambda * (1 - dones[1:])
    # fast, both: the loop as a scan (Hillis and Steele, doi:10.1145/7902.7903): log2(T) rounds of
    # whole tensors in place of T rounds of one row; the same sums in another order
    span = 1  # rows summed into each advantage so far
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
    """PPO's clipped loss (arXiv:1707.06347, equations 7 and 9) over a minibatch's valid rows, the
    value clipped as in OpenAI Baselines' ppo2.

    newlogprob, entropy, newvalue: (M,) float32, of the network as it is now; mb: fields (M, ...) of
    the rollout, `valid` being 1, or 0 for an autoreset step; args: coefficients.
    Returns the loss, (), and the first six of LOSSES, (6,), detached. With no valid row all are 0.
    """
    valid = mb["valid"]
    returns = mb["returns"]
    values = mb["values"]
    advantages = mb["advantages"]
    if args.norm_adv:
        centered = (advantages - masked_mean(advantages, valid)) * valid
        std = (centered.square().sum() / (valid.sum() - 1).clamp(min=1.0)).sqrt()
        advantages = centered / (std + 1e-8)

    logratio = (newlogprob - mb["logprobs"]) * valid  # else exp may be inf, and inf * 0 nan
    ratio = logratio.exp()
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
    """Samples the actions of row `step` and fills its actions, log-probabilities and values.

    storage: fields (T + 1, N, ...); noise: (T + 1, N, A) from Exponential(1); step: a row's index.
    Returns the actions, (N,) int64.
    """
    logits, value = agent(storage["obs"][step])  # (N, A), (N,)
    probs = Categorical(logits=logits, validate_args=False)
    # subtle: this is a categorical sample. Of all probs / noise, with noise from Exponential(1),
    # that of action a is the largest with probability probs[a].
    action = (probs.probs / noise[step]).argmax(-1)
    storage["actions"][step] = action
    storage["logprobs"][step] = probs.log_prob(action)
    storage["values"][step] = value
    return action


# fast, both: acting in NumPy: for a network this small, calling PyTorch takes longer than computing
def act_numpy(layers, obs, actions, log_noise, step):
    """Samples the actions of row `step` as `act` does, and fills that row of actions.

    layers: weights and biases of the actor; obs, (T + 1, N, D), actions, (T + 1, N), log_noise,
    (T + 1, N, A): arrays. Returns the actions, (N,) int64, a tensor as from act.
    """
    w1, b1, w2, b2, w3, b3 = layers
    hidden = np.tanh(obs[step] @ w1.T + b1)
    hidden = np.tanh(hidden @ w2.T + b2)  # (N, 64)
    logits = hidden @ w3.T + b3  # (N, A)
    actions[step] = (logits - log_noise[step]).argmax(-1)  # log(probs / noise), but for a constant
    return torch.from_numpy(actions[step])


# fast, both: what act_numpy leaves out, of all rows in one pass
@torch.no_grad()
def evaluate(agent, storage):
    """Fills the log-probabilities and values of all rows; row T has no action, its log-probability
    means nothing. storage: fields (T + 1, N, ...).
    """
    logits, values = agent(storage["obs"])  # (T + 1, N, A), (T + 1, N)
    storage["values"][:] = values
    probs = Categorical(logits=logits, validate_args=False)
    storage["logprobs"][:] = probs.log_prob(storage["actions"])


def compute_gradients(agent, args, batch, mb_inds):
    """Sets the parameters' .grad, which has to be None, to a minibatch's clipped gradient.

    batch: fields (B, ...) of the storage; mb_inds: (M,) int64, the minibatch's rows.
    Returns LOSSES, (7,) float32.
    """
    mb = {key: rows[mb_inds] for key, rows in batch.items()}  # (M, ...)
    logits, newvalue = agent(mb["obs"])  # (M, A), (M,)
    probs = Categorical(logits=logits, validate_args=False)
    newlogprob = probs.log_prob(mb["actions"])
    entropy = probs.entropy()
    loss, losses = ppo_loss(newlogprob, entropy, newvalue, mb, args)
    loss.backward()
    # foreach=False: True is slower when compiled, and rounds the norm differently
    grad_norm = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm, foreach=False)
    return torch.cat([losses, grad_norm.view(1)])


def train_epoch(gradients, optimizer, b_inds):
    """One epoch: a gradient step on each minibatch.

    gradients: compute_gradients with all but mb_inds bound; b_inds: (num_minibatches, ...) int64,
    each row the mb_inds of a minibatch. Returns LOSSES of each, (num_minibatches, 7) float32.
    """
    losses = []
    for mb_inds in b_inds:
        optimizer.zero_grad()
        losses.append(gradients(mb_inds))
        optimizer.step()
    return torch.stack(losses)


# Not PPO: from here to main come the command line, the run's folder, signals, checkpoints and what
# ends a run. A fork keeps, replaces or drops these functions; what it drops goes with its call.


class Console:
    """Standard output or error of a run that outlives its reader: once a terminal has closed, or a
    `tee` has ended, what is printed is lost, but the run goes on."""

    def __init__(self, stream):
        self.stream = stream or open(os.devnull, "w")  # there is none after 2>&-
        if isinstance(self.stream, io.TextIOWrapper):
            self.stream.reconfigure(errors="replace")  # where the locale has no ±

    def write(self, text):
        with suppress(OSError):
            self.stream.write(text)

    def flush(self):
        with suppress(OSError):
            self.stream.flush()

    def __getattr__(self, name):
        return getattr(self.stream, name)


def fail(flag, text):
    """Ends the script with one line about a flag, and status 2."""
    print(f"{os.path.basename(sys.argv[0])}: error: argument {flag}: {text}", file=sys.stderr)
    sys.exit(2)


@contextmanager
def blame(flag, value):
    """Turns whatever is raised inside into one line about a flag, and status 2."""
    try:
        yield
    except Exception as error:  # what an environment raises is its own affair
        fail(flag, f"{value}: {' '.join(str(error).split()) or type(error).__name__}")


def parse_args():
    """Reads the command line, and the checkpoint of the run that --resume names, if any.

    Returns Args, whose defaults are then that run's, and the checkpoint, a dictionary; for a new
    run an empty one, at step 0.
    """
    sys.stdout = Console(sys.stdout)
    sys.stderr = Console(sys.stderr)
    # --resume alone, before tyro reads all flags
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, usage=argparse.SUPPRESS)
    parser.add_argument("--resume", type=os.path.expanduser)
    folder = parser.parse_known_args()[0].resume
    checkpoint = {"args": {}, "global_step": 0, "episodic_returns": []}
    try:
        if folder:
            checkpoint = torch.load(f"{folder}/checkpoint.pt", "cpu", weights_only=True)
            if checkpoint["format"] != FORMAT:
                raise ValueError(f"it is one of {checkpoint['format']}")
        # without the flags that only the other version of this script has
        saved = {k: v for k, v in checkpoint["args"].items() if k in Args.__annotations__}
        default, done = Args(**saved), checkpoint["global_step"]
    except Exception as error:  # what a damaged file raises depends on its bytes
        fail("--resume", f"no checkpoint of {FORMAT} in {folder} ({error!r})")
    args = tyro.cli(Args, default=default)
    if done // args.batch_size >= args.num_iterations:
        fail("--total-timesteps", f"the run has done {done}, give {done + args.batch_size} or more")
    return args, checkpoint


def track(args, run_dir):
    """Sends what the run's SummaryWriter gets to Weights & Biases as well, for --track."""
    import wandb

    wandb.init(
        project=args.wandb_project_name,
        entity=args.wandb_entity,
        id=re.sub(r"[^\w.-]", "_", os.path.basename(os.path.abspath(run_dir))),
        resume="allow",
        sync_tensorboard=True,
        config=asdict(args),
    )


def resume_command(run_dir):
    """What a person types to go on with a run."""
    return shlex.join([sys.executable, sys.argv[0], "--resume", run_dir])


def open_run(args, global_step):
    """Opens the run's folder, a new one or that of --resume, its curves and its bar.

    Returns run_dir, a path; writer, of TensorBoard; progress, which counts environment steps.
    """
    started = time.strftime("%y%m%d-%H%M%S")
    run_name = f"{args.env_id}__{args.exp_name}__{args.seed}__{started}-{os.getpid()}"
    run_dir = args.resume
    while not run_dir:
        try:
            run_dir = f"{args.runs_dir}/{run_name.replace('/', '_')}"
            os.makedirs(run_dir)
        except FileExistsError:  # another container's run, of the same second and process number
            run_dir, run_name = None, f"{run_name}_"
    if args.track:
        track(args, run_dir)
    # a run that goes on drops the points that came after its checkpoint
    writer = SummaryWriter(run_dir, purge_step=global_step + 1)
    writer.add_text("hyperparameters", "".join(f"    {k}: {v}\n" for k, v in asdict(args).items()))
    steps = args.num_iterations * args.batch_size
    progress = tqdm(total=steps, initial=global_step, unit="step", unit_scale=True)

    def say_how_to_go_on(*error):
        progress.close()
        sys.__excepthook__(*error)
        if os.path.exists(f"{run_dir}/checkpoint.pt"):
            line = f"to go on from the last checkpoint: {resume_command(run_dir)}"
            print(line, file=sys.stderr)

    # also when the run ends by an exception; a signal that kills it skips this
    atexit.register(writer.close)
    atexit.register(progress.close)
    sys.excepthook = say_how_to_go_on
    return run_dir, writer, progress


def catch_signals(stop_signals):
    """Lets Ctrl+C, SIGTERM and SIGHUP, unless nohup ignores it, append their number to a list, for
    the loop to stop. A second Ctrl+C or SIGTERM ends the run at once; a second SIGHUP does not."""
    signals = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signals.append(signal.SIGHUP)

    def stop(signum, frame):
        stop_signals.append(signum)
        if signum in signals[:2]:  # a closing terminal may send SIGHUP twice
            signal.signal(signum, signal.SIG_DFL)
        with suppress(OSError):  # print would fail if the bar is in a write
            os.write(sys.stderr.fileno(), b"\nstopping after this iteration\n")

    for signum in signals:
        signal.signal(signum, stop)


def save_checkpoint(run_dir, state):
    """Writes checkpoint.pt, for --resume and ppo_eval.py, by way of another file, so that it is
    whole at any moment. state: tensors and plain values."""
    with open(f"{run_dir}/checkpoint.{os.getpid()}-{time.time_ns()}.tmp", "wb") as file:
        torch.save(state, file)
    os.replace(file.name, f"{run_dir}/checkpoint.pt")


def restore(args, checkpoint, agent, optimizer, rng, device):
    """Gives agent, optimizer and random state what the checkpoint of --resume holds; random state
    is that of a kind of device."""
    with blame("--resume", args.resume):  # with other spaces weights have other shapes
        agent.load_state_dict(checkpoint["agent"])
    # Adam's moments and steps are the checkpoint's, learning rate and epsilon are this run's
    optimizer.load_state_dict(optimizer.state_dict() | {"state": checkpoint["adam"]})
    if device.type in checkpoint["rng"]:
        rng.set_rng_state(checkpoint["rng"][device.type])


def not_finite(iteration, obs, rewards):
    """Says what of a rollout made its loss inf or nan, as far as its numbers show it.

    obs: (T + 1, N, ...) tensor; rewards: (T + 1, N) array.
    """
    cause = "the network, or too large a number: observations and rewards are finite"
    for what, rows in (("a reward", torch.from_numpy(rewards)), ("an observation", obs)):
        finite = rows.reshape(*rows.shape[:2], -1).isfinite().all(2)  # (T + 1, N)
        if not finite.all():
            step, env = (~finite).nonzero()[0].tolist()
            cause = f"{what} of agent {env}, of those of all environments, in step {step}"
    return f"iteration {iteration} gave a loss that is not finite, by {cause}"


def finish(run_dir, summary, stop_signals, error, writer, progress, envs):
    """Writes summary.json, closes everything, prints the last line and exits if need be.

    Status: 3 with an error; 128 + number if a signal stopped the run before its end.
    """

    def plain(x):
        """For JSON, which has no inf and no nan: inf becomes a string, nan becomes null."""
        if isinstance(x, dict):
            return {key: plain(value) for key, value in x.items()}
        odd = isinstance(x, float) and not np.isfinite(x)
        return (None if np.isnan(x) else str(x)) if odd else x

    with open(f"{run_dir}/summary.json", "w") as file:
        json.dump(plain(summary), file, indent=2)
    writer.close()
    progress.close()
    score = "no episode has ended yet"
    if summary["mean_return"] is not None:
        score = f"mean return {summary['mean_return']:.2f}"
    speed = f", {summary['sps']:.0f} steps/s" if summary["sps"] else ""
    print(f"{run_dir}: {score}{speed}")
    status = 0
    if error:
        print(f"error: {error}", file=sys.stderr)
        status = 3
    elif stop_signals and not summary["complete"]:
        print(f"to go on: {resume_command(run_dir)}")
        status = 128 + stop_signals[0]
    envs.close()  # when all results are there: a simulator may fail to close
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if status:
        sys.exit(status)


if __name__ == "__main__":
    args, checkpoint = parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() and args.cuda else "cpu")
    # fast, both: modes that were asked for and can run here; the summary names them
    modes = [name for name in ("compile", "cudagraphs") if getattr(args, name)]
    if args.cudagraphs and device.type == "cpu":
        print("--cudagraphs needs a CUDA device: running without", file=sys.stderr)
        modes.remove("cudagraphs")
    mode = "+".join(modes) or "eager"
    if not args.compile and "cudagraphs" not in modes:
        print("running eagerly: --compile makes this script fast, with a GPU --cudagraphs as well")
    numpy_acting = args.numpy_acting and mode != "eager"
    print(f"{mode} on {device.type}: {args.env_id}, {args.num_envs} envs x {args.num_steps} steps")
    torch.backends.cudnn.deterministic = args.torch_deterministic
    torch.manual_seed(args.seed)
    rng = torch.cuda if device.type == "cuda" else torch  # its generator draws noise and b_inds

    # environments; a run that goes on has other seeds, or it would play its first episodes again
    T, E = args.num_steps, args.num_envs
    global_step = checkpoint["global_step"]
    seeds = np.random.SeedSequence([args.seed, global_step]).generate_state(E).tolist()
    with blame("--env-id or --env-kwargs", args.env_id):
        envs = make_envs(args)
        next_obs, absent = envs.reset(seed=seeds)  # (N, D), (N,)
    N = envs.num_agents  # E * K
    obs_space, action_space = envs.single_observation_space, envs.single_action_space

    # agent and optimizer; fused: one kernel steps all parameters
    agent = Agent(envs, device=device)
    # fast, CUDA graph: the learning rate is a tensor, which a replay reads anew; a float would be
    # frozen into the graph. Without capturable, Adam refuses to be captured
    lr = torch.tensor(args.learning_rate, device=device)
    capturable = "cudagraphs" in modes
    optimizer = optim.Adam(agent.parameters(), lr=lr, eps=1e-5, fused=True, capturable=capturable)
    if args.resume:
        restore(args, checkpoint, agent, optimizer, rng, device)

    # storage: rows 0 to T - 1 are the rollout's steps. subtle: row T holds next_obs, from which the
    # last step bootstraps; its obs is row 0 of the next rollout.
    storage = {
        "obs": torch.zeros((T + 1, N, *obs_space.shape), device=device),
        "actions": torch.zeros((T + 1, N), dtype=torch.int64, device=device),
        "logprobs": torch.zeros((T + 1, N), device=device),
        "values": torch.zeros((T + 1, N), device=device),
        "advantages": torch.zeros((T + 1, N), device=device),
        "returns": torch.zeros((T + 1, N), device=device),
        "valid": torch.zeros((T + 1, N), device=device),
    }
    # fast, CUDA graph: views of all fields by one flatten; no speed, a dictionary of views would do
    storage = TensorDict(storage, batch_size=(T + 1, N))
    batch = storage[:T].flatten().to_dict()  # (B, ...), views
    noise = torch.zeros((T + 1, N, action_space.n), device=device)
    obs = storage["obs"]  # (T + 1, N, D)
    obs[T] = torch.from_numpy(next_obs)
    # what acting does not need stays on the host until the rollout ends, in one array, so that one
    # copy takes it to the device; the names of its parts are views
    host = np.zeros((3, T + 1, N))
    host_rewards, host_dones, host_terminations = host  # (T + 1, N) each
    host_dones[T] = absent  # the agents that are not there yet
    episode_returns = np.zeros(N)  # of the episodes under way
    episode_lengths = np.zeros(N)
    episodic_returns = checkpoint["episodic_returns"]  # of the episodes that have ended, a list

    # fast, both: network, loss, backward and clipping are compiled into one call, which fuses what
    # lies between two matrix products; else Python calls each operation by itself
    if args.compile:
        torch._dynamo.config.trace_autograd_ops = True  # else the graph breaks at backward
        compute_gradients = torch.compile(compute_gradients)
    # the functions above with all bound that stays the same from call to call
    policy = partial(act, agent, storage, noise)  # a row's index -> its actions, (N,)
    gradients = partial(compute_gradients, agent, args, batch)  # mb_inds -> LOSSES, (7,)
    run_epoch = partial(train_epoch, gradients, optimizer)  # trains: b_inds -> LOSSES of each
    # fast, CUDA graph: one launch replays an epoch, in place of a launch a kernel. The first two
    # calls warm up, the third runs and is then captured: all three are real updates
    if "cudagraphs" in modes:
        run_epoch = CudaGraphModule(run_epoch, warmup=3)
    # fast, both: NumPy acts, by a copy of the policy in the host's memory
    if numpy_acting:
        agent_inference = Agent(envs, device="meta")  # drawing weights would use up random numbers
        agent_inference.to_empty(device="cpu")
        layers = [p.detach().numpy() for p in agent_inference.actor.parameters()]  # views
        obs = obs.cpu()  # on a CPU the storage itself, no copy; actions too
        actions = storage["actions"].cpu()
        log_noise = torch.zeros(noise.shape)
        policy = partial(act_numpy, layers, obs.numpy(), actions.numpy(), log_noise.numpy())

    stop_signals = []
    catch_signals(stop_signals)
    run_dir, writer, progress = open_run(args, global_step)
    error = None
    first_iteration = global_step // args.batch_size + 1
    first_measured = first_iteration + args.measure_burnin
    phase_s = np.zeros(4)  # the host's seconds in each of the loop's phases, once measured
    sps = None
    for iteration in range(first_iteration, args.num_iterations + 1):
        # Rollout
        times = [time.perf_counter()]
        obs[0] = obs[T]
        host[:, 0] = host[:, T]
        # drawn for the whole rollout, outside of act: a compiled act, or one in NumPy, as the fast
        # versions have, would draw other numbers
        noise.exponential_()
        # fast, both: the policy stands still for a rollout: weights and noise are fetched once
        if numpy_acting:
            agent_inference.load_state_dict(agent.state_dict())  # sync
            log_noise.copy_(noise.log())  # sync
        for step in range(T):
            action = policy(step).cpu().numpy()  # (N,); sync if a GPU acts
            next_obs, reward, terminated, truncated, _ = envs.step(action)
            if terminated.any():  # a diverged simulator may end on nan, and nan * 0 is nan
                next_obs[terminated] = np.nan_to_num(next_obs[terminated], posinf=0.0, neginf=0.0)
            obs[step + 1] = torch.from_numpy(next_obs)  # sync if a GPU acts
            host_rewards[step] = reward
            host_dones[step + 1] = terminated | truncated
            host_terminations[step + 1] = terminated | (truncated & args.cleanrl_semantics)
            global_step += args.num_envs
            valid = host_dones[step] == 0  # (N,)
            episode_returns += reward * valid
            episode_lengths += valid
            # an episode ends with its last agent; its return is the mean over those who took part
            for e in np.flatnonzero(envs.over):
                returns = episode_returns.reshape(E, -1)[e]  # (K,), a view, as is the next
                lengths = episode_lengths.reshape(E, -1)[e]
                episodic_returns.append(float(returns[lengths > 0].mean()))
                writer.add_scalar("charts/episodic_return", episodic_returns[-1], global_step)
                writer.add_scalar("charts/episodic_length", lengths.max(), global_step)
                returns[:] = lengths[:] = 0
        # fast, both: log-probabilities and values of all rows in one pass, if NumPy left them out
        if numpy_acting:
            storage["obs"].copy_(obs)  # sync
            storage["actions"].copy_(actions)  # sync
            evaluate(agent, storage)
        else:
            policy(T)  # for values[T], from which the last step bootstraps; actions unused

        # Advantages
        times.append(time.perf_counter())
        rewards, dones, terminations = torch.from_numpy(host).to(device)  # (T + 1, N) each; sync
        values = storage["values"].double()  # sums of up to T terms: in float64, then rounded once
        advantages = compute_gae(rewards, dones, terminations, values, args.gamma, args.gae_lambda)
        storage["advantages"][:T] = advantages
        storage["returns"][:T] = advantages + values[:T]
        storage["valid"][:T] = 1 - dones[:T]

        # Update
        times.append(time.perf_counter())
        frac = 1.0 - (iteration - 1) / args.num_iterations if args.anneal_lr else 1.0
        lrnow = float(np.float32(frac * args.learning_rate))  # float32, as in the fast version
        # fast, CUDA graph: in place, where the captured Adam reads it
        optimizer.param_groups[0]["lr"].fill_(lrnow)
        losses = []
        for _ in range(args.update_epochs):
            b_inds = torch.randperm(T * N, device=device).view(args.num_minibatches, -1)
            losses.append(run_epoch(b_inds))  # (num_minibatches, 7)
            if args.target_kl is not None:
                approx_kl = losses[-1][:, LOSSES.index("approx_kl")].mean()
                if approx_kl > args.target_kl:  # sync: whether to go on is decided here
                    break
        explained_var = explained_variance(batch["values"], batch["returns"], batch["valid"])
        # means over the update; CleanRL logs those of its last minibatch
        metrics = torch.cat([torch.cat(losses).mean(0), explained_var.view(1)]).tolist()  # sync

        # Log
        times.append(time.perf_counter())
        for name, value in zip((*LOSSES, "explained_variance"), metrics, strict=True):
            writer.add_scalar(f"losses/{name}", value, global_step)
        writer.add_scalar("charts/learning_rate", lrnow, global_step)
        # the last 100 episodes, or E if that is more: E environments that start together end their
        # short episodes first, so fewer than E would leave the long ones out
        recent = episodic_returns[-max(100, args.num_envs) :]
        mean_return = float(np.mean(recent)) if recent else None
        progress.set_postfix_str(f"mean return {mean_return:.2f}" if recent else "", refresh=False)
        progress.update(args.batch_size)
        if not np.isfinite(metrics[:-1]).all():  # all of LOSSES
            error = not_finite(iteration, obs, host_rewards)
            break  # before a good checkpoint is overwritten
        # subtle: stop_signals is read once. A signal that comes after this line counts in the next
        # iteration; if the list were read again below, it would end the run without a checkpoint
        last = iteration == args.num_iterations or len(stop_signals) > 0
        if last or iteration % args.checkpoint_interval == 0:
            state = {
                "format": FORMAT,
                "args": asdict(args),
                "global_step": global_step,
                "episodic_returns": episodic_returns,
                "agent": agent.state_dict(),
                "adam": optimizer.state_dict()["state"],
                "rng": {device.type: rng.get_rng_state()},
            }
            save_checkpoint(run_dir, state)
        times.append(time.perf_counter())
        if iteration >= first_measured:
            phase_s += np.diff(times)
            sps = (iteration - first_measured + 1) * args.batch_size / phase_s.sum()
            writer.add_scalar("charts/SPS", sps, global_step)
        if last:
            break

    summary = {
        "script": os.path.basename(__file__).removesuffix(".py"),
        "args": asdict(args),
        "device": device.type,
        "mode": mode,
        "global_step": global_step,
        "complete": error is None and iteration == args.num_iterations,
        "sps": sps,
        "phase_s": dict(zip(("rollout", "advantages", "update", "log"), phase_s, strict=True)),
        "mean_return": mean_return,
        "episodes": len(episodic_returns),
    }
    finish(run_dir, summary, stop_signals, error, writer, progress, envs)
