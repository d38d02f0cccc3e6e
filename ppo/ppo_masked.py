"""PPO where not every action is possible at every step: impossible ones are masked out.

    python ppo/ppo_masked.py                                     # eager, to be read
    python ppo/ppo_masked_torchcompile.py --compile              # the same algorithm, made fast
    diff -u ppo/ppo_masked.py ppo/ppo_masked_torchcompile.py     # how
    diff -u ppo/ppo.py ppo/ppo_masked.py                         # what masks need

Not here: masks for several actions at once; what ppo.py leaves out.
Sources: those of ppo.py; masks, arXiv:2006.14171; info["action_mask"], Gymnasium's Taxi.

Shapes: T num_steps, N num_envs, D entries of obs, A actions, B = T * N rows, M rows of a minibatch.
Time: in step t, actions[t] is chosen at obs[t] and earns rewards[t]. Whether it ended the episode
is in row t + 1 of dones and terminations, beside the next obs. `sync`: the host waits for a GPU.
Gymnasium resets an environment in the step after an episode's end. So where dones[t] is 1, obs[t]
is the last observation of an episode, its action is ignored, and row t is an autoreset step, which
is no real transition: valid[t] is 0, and the row weighs nothing in the loss.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = [
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
import atexit
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
from torch.distributions.categorical import Categorical
from torch.utils.tensorboard import SummaryWriter

torch.set_float32_matmul_precision("high")  # TF32 where a GPU has it
torch.set_num_threads(1)  # networks this small gain little from a second one

FORMAT = "ppo_masked 1"  # of a checkpoint; --resume refuses others
# what compute_gradients returns, in this order; grad_norm is that before clipping
LOSSES = "policy_loss value_loss entropy old_approx_kl approx_kl clipfrac grad_norm".split()


@dataclass
class Args:
    """PPO on Gymnasium's environments whose info["action_mask"] says what is possible."""

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

    env_id: str = "Taxi-v4"  # of Gymnasium, with info["action_mask"]; spaces as in ppo.py
    total_timesteps: int = 500_000  # steps, autoreset ones too; rounded down to whole rollouts
    learning_rate: float = 2.5e-4  # Adam's step size
    num_envs: int = 4  # N, environments side by side
    num_steps: int = 128  # T, steps of each environment in a rollout
    anneal_lr: bool = True  # let the learning rate fall linearly, to 0 after the last update
    gamma: float = 0.99  # discount of a step, 0 to 1
    gae_lambda: float = 0.95  # decay of the advantages, 0 (one step) to 1 (Monte Carlo)
    num_minibatches: int = 4  # gradient steps in an epoch; divides num_envs * num_steps
    update_epochs: int = 4  # passes over a rollout's rows
    norm_adv: bool = True  # normalise the advantages of each minibatch
    clip_coef: float = 0.2  # the probability ratio is clipped to 1 ± this; inf: never
    clip_vloss: bool = True  # clip the change of the value to ± clip_coef too
    ent_coef: float = 0.01  # weight of the entropy bonus
    vf_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5  # gradients are scaled down to this Euclidean norm; inf: never
    target_kl: float | None = None  # end an update after an epoch whose mean approx_kl is larger
    cleanrl_semantics: bool = False  # time limits are terminal, as in CleanRL; all else stays

    @property
    def batch_size(self):
        """B, the rows of a rollout."""
        return self.num_envs * self.num_steps

    @property
    def minibatch_size(self):
        """M, the rows of a minibatch."""
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


def make_envs(args):
    """N environments of Gymnasium's: obs (N, D), flattened if not arrays; actions (N,) int64.

    Raises what gym.make does, and ValueError for other spaces.
    """

    def make_env():
        env = gym.make(args.env_id, disable_env_checker=True)
        return env if env.observation_space.shape else gym.wrappers.FlattenObservation(env)

    next_step = gym.vector.AutoresetMode.NEXT_STEP
    envs = gym.vector.SyncVectorEnv([make_env] * args.num_envs, autoreset_mode=next_step)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    discrete = isinstance(action_space, gym.spaces.Discrete) and action_space.start == 0
    if len(obs_space.shape) != 1 or not discrete:
        raise ValueError(f"needs vectors and discrete actions, not {obs_space} and {action_space}")
    # an environment of the old Gym API, or without masks, fails here, before there is a run
    _, info = envs.reset()
    possible = action_masks(envs, info).int().argmax(-1)  # (N,), each one's first possible action
    *_, info = envs.step(possible.numpy())
    action_masks(envs, info)
    return envs


def action_masks(envs, info):
    """(N, A) bool, True where an action is possible; ValueError if an environment does not say so.

    Each environment gives info["action_mask"], (A,) of 0 and 1, at each reset and in each step.
    """
    # Gymnasium joins info by key, and says under _key which environments gave it
    given = info.get("_action_mask", np.zeros(envs.num_envs, bool))  # (N,)
    if not given.all():
        raise ValueError(f'no info["action_mask"] from environment {given.argmin()}')
    masks = np.array([*info["action_mask"]])
    expected = (envs.num_envs, int(envs.single_action_space.n))
    if masks.shape != expected:
        raise ValueError(f'info["action_mask"] has the shape {masks.shape}, not {expected}')
    return torch.from_numpy(masks != 0)


def layer_init(layer, std=2**0.5, bias_const=0.0):
    """Fills a layer with orthogonal weights of gain std and constant biases; returns it."""
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias_const)
    return layer


class Agent(nn.Module):
    """Two 64-64 tanh networks: obs (M, D), mask (M, A) -> masked logits (M, A), value (M,)."""

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

    def forward(self, obs, mask):
        # subtle: the same masked policy acts and learns. Were only acting masked, the ratio in the
        # loss would compare two policies. -1e8 gives a probability of exactly 0. So would -inf, but
        # in a row where nothing is possible, as may be at a last observation, it ends in nan
        logits = torch.where(mask, self.actor(obs), -1e8)
        return logits, self.critic(obs).squeeze(-1)


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
    for t in reversed(range(len(advantages) - 1)):  # adv[t] = delta[t] + decay[t] * adv[t + 1]
        advantages[t] += decay[t] * advantages[t + 1]
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
    logits, value = agent(storage["obs"][step], storage["masks"][step])  # (N, A), (N,)
    probs = Categorical(logits=logits, validate_args=False)
    # subtle: this is a categorical sample. Of all probs / noise, with noise from Exponential(1),
    # that of action a is the largest with probability probs[a].
    action = (probs.probs / noise[step]).argmax(-1)
    storage["actions"][step] = action
    storage["logprobs"][step] = probs.log_prob(action)
    storage["values"][step] = value
    return action


def compute_gradients(agent, args, batch, mb_inds):
    """Sets the parameters' .grad, which has to be None, to a minibatch's clipped gradient.

    batch: fields (B, ...) of the storage; mb_inds: (M,) int64, the minibatch's rows.
    Returns LOSSES, (7,) float32.
    """
    mb = {key: rows[mb_inds] for key, rows in batch.items()}  # (M, ...)
    logits, newvalue = agent(mb["obs"], mb["masks"])  # (M, A), (M,)
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
            cause = f"{what} of environment {env} in step {step} of the rollout"
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
    mode = "eager"
    print(f"{mode} on {device.type}: {args.env_id}, {args.num_envs} envs x {args.num_steps} steps")
    torch.backends.cudnn.deterministic = args.torch_deterministic
    torch.manual_seed(args.seed)
    rng = torch.cuda if device.type == "cuda" else torch  # its generator draws noise and b_inds

    # environments; a run that goes on has other seeds, or it would play its first episodes again
    T, N = args.num_steps, args.num_envs
    global_step = checkpoint["global_step"]
    seeds = np.random.SeedSequence([args.seed, global_step]).generate_state(N).tolist()
    with blame("--env-id", args.env_id):
        envs = make_envs(args)
        next_obs, info = envs.reset(seed=seeds)  # (N, D)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space

    # agent and optimizer; fused: one kernel steps all parameters
    agent = Agent(envs, device=device)
    optimizer = optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5, fused=True)
    if args.resume:
        restore(args, checkpoint, agent, optimizer, rng, device)

    # storage: rows 0 to T - 1 are the rollout's steps. subtle: row T holds next_obs, from which the
    # last step bootstraps; its obs is row 0 of the next rollout.
    storage = {
        "obs": torch.zeros((T + 1, N, *obs_space.shape), device=device),
        "masks": torch.zeros((T + 1, N, action_space.n), dtype=torch.bool, device=device),
        "actions": torch.zeros((T + 1, N), dtype=torch.int64, device=device),
        "logprobs": torch.zeros((T + 1, N), device=device),
        "values": torch.zeros((T + 1, N), device=device),
        "advantages": torch.zeros((T + 1, N), device=device),
        "returns": torch.zeros((T + 1, N), device=device),
        "valid": torch.zeros((T + 1, N), device=device),
    }
    batch = {key: rows[:T].flatten(0, 1) for key, rows in storage.items()}  # (B, ...), views
    noise = torch.zeros((T + 1, N, action_space.n), device=device)
    obs = storage["obs"]  # (T + 1, N, D)
    obs[T] = torch.from_numpy(next_obs)
    masks = storage["masks"]  # (T + 1, N, A); masks[t] came with obs[t]
    masks[T] = action_masks(envs, info)
    # what acting does not need stays on the host until the rollout ends, in one array, so that one
    # copy takes it to the device; the names of its parts are views
    host = np.zeros((3, T + 1, N))
    host_rewards, host_dones, host_terminations = host  # (T + 1, N) each
    episode_returns = np.zeros(N)  # of the episodes under way
    episode_lengths = np.zeros(N)
    episodic_returns = checkpoint["episodic_returns"]  # of the episodes that have ended, a list

    # the functions above with all bound that stays the same from call to call
    policy = partial(act, agent, storage, noise)  # a row's index -> its actions, (N,)
    gradients = partial(compute_gradients, agent, args, batch)  # mb_inds -> LOSSES, (7,)
    run_epoch = partial(train_epoch, gradients, optimizer)  # trains: b_inds -> LOSSES of each

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
        masks[0] = masks[T]
        host[:, 0] = host[:, T]
        # drawn for the whole rollout, outside of act: a compiled act, or one in NumPy, as the fast
        # versions have, would draw other numbers
        noise.exponential_()
        for step in range(T):
            action = policy(step).cpu().numpy()  # (N,); sync if a GPU acts
            next_obs, reward, terminated, truncated, info = envs.step(action)
            if terminated.any():  # a diverged simulator may end on nan, and nan * 0 is nan
                next_obs[terminated] = np.nan_to_num(next_obs[terminated], posinf=0.0, neginf=0.0)
            obs[step + 1] = torch.from_numpy(next_obs)  # sync if a GPU acts
            masks[step + 1] = action_masks(envs, info)  # sync if a GPU acts
            host_rewards[step] = reward
            host_dones[step + 1] = terminated | truncated
            host_terminations[step + 1] = terminated | (truncated & args.cleanrl_semantics)
            global_step += args.num_envs
            valid = host_dones[step] == 0  # (N,)
            episode_returns += reward * valid
            episode_lengths += valid
            for i in np.flatnonzero((terminated | truncated) & valid):
                episodic_returns.append(float(episode_returns[i]))
                writer.add_scalar("charts/episodic_return", episode_returns[i], global_step)
                writer.add_scalar("charts/episodic_length", episode_lengths[i], global_step)
                episode_returns[i] = episode_lengths[i] = 0
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
        optimizer.param_groups[0]["lr"] = lrnow
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
        # the last 100 episodes, or N if that is more: N environments that start together end their
        # short episodes first, so fewer than N would leave the long ones out
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
