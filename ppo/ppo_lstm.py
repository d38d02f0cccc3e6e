"""Proximal Policy Optimization (PPO) with a memory, CartPole without velocities: one of a pair.

    python ppo/ppo_lstm.py --hide 1 3                              # eager
    python ppo/ppo_lstm_torchcompile.py --hide 1 3 --compile       # made fast
    diff -u ppo/ppo.py ppo/ppo_lstm.py                             # what a memory needs

Sources: PPO, arXiv:1707.06347; advantages, arXiv:1506.02438; names, CleanRL's ppo_atari_lstm.py.
Shapes: T num_steps, N num_envs, D obs, A actions, B = T * N batch_size, M minibatch_size.
Time: row t is step t; row T holds next_obs. dones[t] and terminations[t] came with obs[t].
Gymnasium resets on the next step: where dones[t] is set, obs[t] is the last of an episode, the
action is ignored, and row t is an autoreset step: valid[t] is 0, and it weighs nothing.
Only after such a row is the memory set to zero: a truncation bootstraps from that row's value.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch>=2.11,<2.16",
#   "gymnasium>=1.2",
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
import signal
import sys
import time
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

FORMAT = "ppo_lstm 1"  # of a checkpoint: who can read it
LOSSES = "policy_loss value_loss entropy old_approx_kl approx_kl clipfrac grad_norm".split()


@dataclass
class Args:
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
    measure_burnin: int = 3  # iterations left out of the steps per second

    env_id: str = "CartPole-v1"  # of Gymnasium, with vectors as observations and discrete actions
    hide: tuple[int, ...] | None = None  # unseen entries; None: 1 3 on CartPole-v1, else none
    total_timesteps: int = 300_000  # environment steps, in whole rollouts
    learning_rate: float = 1e-3  # Adam's step size
    num_envs: int = 8  # N, environments side by side
    num_steps: int = 128  # T, steps of each environment in a rollout
    anneal_lr: bool = True  # let the learning rate fall linearly to 0
    gamma: float = 0.995  # discount of a step, 0 to 1
    gae_lambda: float = 0.95  # decay of the advantages, 0 (one step) to 1 (Monte Carlo)
    num_minibatches: int = 4  # gradient steps in an epoch; divides num_envs
    update_epochs: int = 4  # passes over a rollout's rows
    norm_adv: bool = False  # normalise the advantages of each minibatch
    clip_coef: float = 0.2  # the probability ratio is clipped to 1 ± this; inf: never
    clip_vloss: bool = False  # clip the change of the value by clip_coef too
    ent_coef: float = 0.0  # weight of the entropy bonus
    vf_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5  # gradients are scaled down to this Euclidean norm; inf: never
    target_kl: float | None = None  # end an update after an epoch whose mean approx_kl is larger
    cleanrl_semantics: bool = False  # time limits are terminal, for comparison

    def __post_init__(self):
        for rule, holds, names in (
            ("above 0", lambda x: x > 0, "num_envs num_steps num_minibatches update_epochs"),
            ("above 0", lambda x: x is None or x > 0, "clip_coef max_grad_norm target_kl"),
            ("above 0, not inf", lambda x: 0 < x < np.inf, "learning_rate checkpoint_interval"),
            ("0 or more", lambda x: 0 <= x < np.inf, "seed measure_burnin ent_coef vf_coef"),
            ("0 to 1", lambda x: 0 <= x <= 1, "gamma gae_lambda"),
        ):
            for name in names.split():
                value = getattr(self, name)
                if not holds(value):
                    raise ValueError(f"--{name.replace('_', '-')} {value}: give {rule}")
        self.batch_size = self.num_envs * self.num_steps  # B
        self.minibatch_size = self.batch_size // self.num_minibatches  # M
        self.num_iterations = self.total_timesteps // self.batch_size
        rows = f"num_envs * num_steps = {self.batch_size}"
        if self.num_iterations < 1:
            raise ValueError(f"--total-timesteps {self.total_timesteps}: give {rows}, or more")
        if self.num_envs % self.num_minibatches or self.minibatch_size < 2:
            raise ValueError(f"--num-minibatches {self.num_minibatches}: no divisor of num_envs")


def make_envs(args):
    """N environments of Gymnasium's: obs (N, D), all but arrays flattened; actions (N,) int64.

    Raises what gym.make does, and ValueError for other spaces.
    """
    hide = (1, 3) if args.hide is None and args.env_id == "CartPole-v1" else args.hide or ()

    def make_env():
        env = gym.make(args.env_id, disable_env_checker=True)
        env = env if env.observation_space.shape else gym.wrappers.FlattenObservation(env)
        shape = env.observation_space.shape
        seen = np.delete(np.arange(shape[0]), hide)  # IndexError if there is none to delete
        space = gym.spaces.Box(-np.inf, np.inf, (len(seen), *shape[1:]))
        return gym.wrappers.TransformObservation(env, lambda obs: obs[seen], space)

    envs = gym.vector.SyncVectorEnv([make_env] * args.num_envs)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    discrete = isinstance(action_space, gym.spaces.Discrete) and action_space.start == 0
    if len(obs_space.shape) != 1 or not obs_space.shape[0] or not discrete:
        raise ValueError(f"needs vectors and discrete actions, not {obs_space} and {action_space}")
    return envs


def layer_init(layer, std=2**0.5, bias_const=0.0):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias_const)
    return layer


class LSTM(nn.Module):
    """nn.LSTM's equations: x (..., input_size), dones (...) -> hidden (..., H) float32, state.

    Rows in order of time, those of E environments a step; state: h and c, (2, E, H), before the
    first and after the last. Where dones is set, a row is read with its memory, the next with none.
    """

    def __init__(self, input_size, hidden_size, device=None):
        super().__init__()
        self.from_x = layer_init(nn.Linear(input_size, 4 * hidden_size, device=device), std=1.0)
        self.from_h = layer_init(nn.Linear(hidden_size, 4 * hidden_size, device=device), std=1.0)

    def forward(self, x, dones, state):
        h, c = state  # (E, H) each
        rows = self.from_x(x).view(-1, len(h), 4 * h.shape[1])  # (T, E, 4 H), in one product
        hidden = []
        for row, done in zip(rows, dones.view(-1, len(h), 1), strict=True):
            i, f, g, o = (row + self.from_h(h)).chunk(4, dim=1)  # (E, H) each
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            hidden.append(h)
            h, c = h * (1 - done), c * (1 - done)
        return torch.stack(hidden).view(*dones.shape, -1), torch.stack([h, c])


class Recurrent(nn.Module):
    """A layer, an LSTM, a head: obs (..., D), dones (...), state -> (..., outputs), state."""

    def __init__(self, inputs, outputs, std, device=None):
        super().__init__()
        self.layer = layer_init(nn.Linear(inputs, 64, device=device))
        self.lstm = LSTM(64, 64, device=device)
        self.head = layer_init(nn.Linear(64, outputs, device=device), std)

    def forward(self, obs, dones, state):
        hidden, state = self.lstm(self.layer(obs).tanh(), dones, state)
        return self.head(hidden), state


class Agent(nn.Module):
    """Two networks with a memory: obs (..., D), dones (...), lstm_state (2, 2, E, 64), actor and
    critic, h and c -> logits (..., A), value (...), lstm_state, float32."""

    def __init__(self, envs, device=None):
        super().__init__()
        (obs_size,) = envs.single_observation_space.shape
        self.critic = Recurrent(obs_size, 1, 1.0, device)
        self.actor = Recurrent(obs_size, envs.single_action_space.n, 0.01, device)

    def forward(self, obs, dones, lstm_state):
        logits, actor_state = self.actor(obs, dones, lstm_state[0])
        value, critic_state = self.critic(obs, dones, lstm_state[1])
        return logits, value.squeeze(-1), torch.stack([actor_state, critic_state])


def masked_mean(x, valid):
    """Mean of x over the rows where valid, float of the same shape, is 1; 0 where there is none."""
    return (x * valid).sum() / valid.sum().clamp(min=1.0)


def compute_gae(rewards, dones, terminations, values, gamma, gae_lambda):
    """Generalised advantages of one rollout (arXiv:1506.02438, equation 16).

    rewards, dones, terminations, values: (T + 1, N) float64; row T of rewards is not read.
    A truncated episode bootstraps from its last observation, whose value is values[t + 1].
    Returns advantages, (T, N) float64; those of reset rows mean nothing.
    """
    advantages = rewards[:-1] + gamma * values[1:] * (1 - terminations[1:]) - values[:-1]
    decay = gamma * gae_lambda * (1 - dones[1:])
    for t in reversed(range(len(advantages) - 1)):  # one-step errors, summed from the end
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
def act(agent, storage, lstm_states, noise, step):
    """Samples the actions of row `step` from the policy and fills that row of the storage.

    storage: fields (T + 1, N, ...); noise: (T + 1, N, A) from Exponential(1); step: a row's index.
    lstm_states: (T + 2, 2, 2, N, H), the state before each row; row step + 1 is filled.
    Returns the actions, (N,) int64: the argmax of probs / noise is a sample of probs.
    """
    obs, done = storage["obs"][step], storage["dones"][step]  # (N, D), (N,)
    logits, value, lstm_states[step + 1] = agent(obs, done, lstm_states[step])  # (N, A), (N,)
    probs = Categorical(logits=logits, validate_args=False)
    action = (probs.probs / noise[step]).argmax(-1)
    storage["actions"][step] = action
    storage["logprobs"][step] = probs.log_prob(action)
    storage["values"][step] = value
    return action


def compute_gradients(agent, args, batch, initial_lstm_state, mb_inds):
    """Fills the parameters' empty .grad with the gradient of the loss on a minibatch, clipped.

    batch: fields (T, N, ...) of the storage; initial_lstm_state: (2, 2, N, H), before row 0;
    mb_inds: (E,) int64, the minibatch's environments. Returns LOSSES, (7,) float32.
    """
    mb = {key: rows[:, mb_inds].flatten(0, 1) for key, rows in batch.items()}  # (M, ...)
    logits, newvalue, _ = agent(mb["obs"], mb["dones"], initial_lstm_state[:, :, mb_inds])
    probs = Categorical(logits=logits, validate_args=False)
    newlogprob, entropy = probs.log_prob(mb["actions"]), probs.entropy()
    loss, losses = ppo_loss(newlogprob, entropy, newvalue, mb, args)
    loss.backward()
    grad_norm = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm, foreach=False)
    return torch.cat([losses, grad_norm.view(1)])


def update(gradients, optimizer, b_inds):
    """One epoch: a gradient step on each minibatch.

    gradients: compute_gradients with all but mb_inds bound; b_inds: (B / M, ...) int64, mb_inds for
    each minibatch. Returns their LOSSES, (B / M, 7) float32.
    """
    losses = []
    for mb_inds in b_inds:
        optimizer.zero_grad()
        losses.append(gradients(mb_inds))
        optimizer.step()
    return torch.stack(losses)


if __name__ == "__main__":
    checkpoint = {"args": {}, "global_step": 0, "episodic_returns": []}  # of a new run
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, usage=argparse.SUPPRESS)
    parser.add_argument("--resume")
    try:
        if resume := parser.parse_known_args()[0].resume:
            checkpoint = torch.load(f"{resume}/checkpoint.pt", "cpu", weights_only=True)
            assert checkpoint["format"] == FORMAT, checkpoint["format"]
        default = Args(**{k: v for k, v in checkpoint["args"].items() if k in Args.__annotations__})
        global_step, episodic_returns = checkpoint["global_step"], checkpoint["episodic_returns"]
    except Exception as error:  # what a damaged file raises depends on its bytes
        parser.error(f"argument --resume: no checkpoint of {FORMAT} in {resume} ({error!r})")
    args = tyro.cli(Args, default=default)
    first_iteration = global_step // args.batch_size + 1
    if first_iteration > args.num_iterations:
        parser.error(f"argument --total-timesteps: the run has done {global_step}, give more")

    device = torch.device("cuda" if torch.cuda.is_available() and args.cuda else "cpu")
    mode = "eager"
    print(f"{mode} on {device.type}: {args.env_id}, {args.num_envs} envs x {args.num_steps} steps")
    torch.manual_seed(args.seed)
    rng = torch.cuda if device.type == "cuda" else torch  # draws noise and permutations
    torch.backends.cudnn.deterministic = args.torch_deterministic

    try:
        envs = make_envs(args)
    except Exception as error:  # what gym.make raises depends on the environment
        parser.error(f"argument --env-id: {args.env_id}: {error}")
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    agent = Agent(envs, device=device)
    optimizer = optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5, fused=True)
    if args.resume:
        agent.load_state_dict(checkpoint["agent"])
        optimizer.load_state_dict(optimizer.state_dict() | {"state": checkpoint["adam"]})
        if device.type in checkpoint["rng"]:
            rng.set_rng_state(checkpoint["rng"][device.type])

    # rows 0 to T - 1 are the rollout; row T, next_obs and its value, is row 0 of the next one
    T, N = args.num_steps, args.num_envs
    seeds = np.random.SeedSequence([args.seed, global_step]).generate_state(N).tolist()
    next_obs, _ = envs.reset(seed=seeds)  # (N, D)
    storage = {
        "obs": torch.zeros((T + 1, N, *obs_space.shape), device=device),
        "actions": torch.zeros((T + 1, N), dtype=torch.int64, device=device),
    }
    for key in ("logprobs", "values", "advantages", "returns", "valid", "dones"):
        storage[key] = torch.zeros((T + 1, N), device=device)
    batch = {key: rows[:T] for key, rows in storage.items()}  # (T, N, ...) views
    obs, ends = storage["obs"], storage["dones"]  # (T + 1, N, D), (T + 1, N)
    lstm_states = torch.zeros((T + 2, 2, 2, N, 64), device=device)  # row T + 1 is not read
    obs[T] = torch.from_numpy(next_obs)
    noise = torch.zeros((T + 1, N, action_space.n), device=device)
    # what acting does not need stays on the host until the rollout ends
    host = np.zeros((3, T + 1, N))
    host_rewards, host_dones, host_terminations = host  # (T + 1, N) each
    episode_returns, episode_lengths = np.zeros((2, N))  # (N,) each

    # executables, with what stays the same from call to call bound
    act = partial(act, agent, storage, lstm_states, noise)
    gradients = partial(compute_gradients, agent, args, batch, lstm_states[0])
    update = partial(update, gradients, optimizer)

    run_name = f"{args.env_id}__{args.exp_name}__{args.seed}__{time.strftime('%y%m%d-%H%M%S')}"
    run_dir = args.resume or f"{args.runs_dir}/{run_name.replace('/', '_')}-{os.getpid()}"
    if args.track:
        import wandb

        wandb.init(
            project=args.wandb_project_name,
            entity=args.wandb_entity,
            id=os.path.basename(os.path.abspath(run_dir)),
            resume="allow",
            sync_tensorboard=True,
            config=asdict(args),
        )
    writer = SummaryWriter(run_dir, purge_step=global_step + 1)
    writer.add_text("hyperparameters", "".join(f"    {k}: {v}\n" for k, v in asdict(args).items()))
    progress = tqdm(total=args.total_timesteps, initial=global_step, unit="step", unit_scale=True)
    stop_signals = []

    def stop(signum, frame):
        stop_signals.append(signum)
        signal.signal(signum, signal.SIG_DFL)  # a second one ends the run at once
        os.write(2, b"\nstopping after this iteration\n")  # the bar may be in a write

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)

    first_measured = first_iteration + args.measure_burnin
    phase_s, sps = np.zeros(4), None  # seconds in each phase after burn-in
    for iteration in range(first_iteration, args.num_iterations + 1):
        # Rollout
        times = [time.perf_counter()]
        obs[0], ends[0], lstm_states[0] = obs[T], ends[T], lstm_states[T]
        host[:, 0] = host[:, T]
        noise.exponential_()
        for step in range(T):
            action = act(step).cpu().numpy()  # (N,); sync if the device acts
            next_obs, reward, terminated, truncated, _ = envs.step(action)
            obs[step + 1] = torch.from_numpy(next_obs)  # sync if the device acts
            host_rewards[step] = reward
            host_dones[step + 1] = terminated | truncated
            host_terminations[step + 1] = terminated | (truncated & args.cleanrl_semantics)
            ends[step + 1] = torch.from_numpy(host_dones[step + 1])  # sync if the device acts
            global_step += args.num_envs
            valid = host_dones[step] == 0  # (N,)
            episode_returns += reward * valid
            episode_lengths += valid
            for i in np.flatnonzero((terminated | truncated) & valid):
                episodic_returns.append(float(episode_returns[i]))
                writer.add_scalar("charts/episodic_return", episode_returns[i], global_step)
                writer.add_scalar("charts/episodic_length", episode_lengths[i], global_step)
                episode_returns[i] = episode_lengths[i] = 0
        act(T)  # for values[T] alone

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
        lrnow = frac * args.learning_rate
        optimizer.param_groups[0]["lr"] = lrnow
        losses = []
        for _ in range(args.update_epochs):
            b_inds = torch.randperm(N, device=device).view(args.num_minibatches, -1)
            losses.append(update(b_inds))  # (B / M, 7)
            if args.target_kl is not None:
                approx_kl = losses[-1][:, LOSSES.index("approx_kl")].mean()
                if approx_kl > args.target_kl:  # sync: whether to go on is decided here
                    break
        explained_var = explained_variance(batch["values"], batch["returns"], batch["valid"])
        metrics = torch.cat([torch.cat(losses).mean(0), explained_var.view(1)]).tolist()  # sync

        # Log
        times.append(time.perf_counter())
        finite = np.isfinite(metrics[:-1]).all()  # all of LOSSES
        last = iteration == args.num_iterations or len(stop_signals) > 0
        for name, value in zip((*LOSSES, "explained_variance"), metrics, strict=True):
            writer.add_scalar(f"losses/{name}", value, global_step)
        writer.add_scalar("charts/learning_rate", lrnow, global_step)
        recent = episodic_returns[-max(100, args.num_envs) :]
        score = f"mean return {np.mean(recent):.2f}" if recent else "no episode has ended yet"
        progress.set_postfix_str(score, refresh=False)
        progress.update(args.batch_size)
        if not finite:
            break  # before a good checkpoint is overwritten
        if last or iteration % args.checkpoint_interval == 0:
            checkpoint = {
                "format": FORMAT,
                "args": asdict(args),
                "global_step": global_step,
                "episodic_returns": episodic_returns,
                "agent": agent.state_dict(),
                "adam": optimizer.state_dict()["state"],
                "rng": {device.type: rng.get_rng_state()},
            }
            with open(f"{run_dir}/checkpoint.tmp", "wb") as file:
                torch.save(checkpoint, file)
            os.replace(file.name, f"{run_dir}/checkpoint.pt")  # whole at any moment
        times.append(time.perf_counter())
        if iteration >= first_measured:
            phase_s += np.diff(times)
            sps = (iteration - first_measured + 1) * args.batch_size / phase_s.sum()
            writer.add_scalar("charts/SPS", sps, global_step)
        if last:
            break

    progress.close()
    envs.close()
    writer.close()
    summary = {
        "script": os.path.basename(__file__).removesuffix(".py"),
        "args": asdict(args),
        "device": device.type,
        "mode": mode,
        "global_step": global_step,
        "sps": sps,
        "phase_s": dict(zip(("rollout", "advantages", "update", "log"), phase_s, strict=True)),
        "mean_return": float(np.mean(recent)) if recent else None,
        "episodes": len(episodic_returns),
    }
    with open(f"{run_dir}/summary.json", "w") as file:
        json.dump(summary, file, indent=2)
    print(f"{run_dir}: {score}" + (f", {sps:.0f} steps/s" if sps else ""))
    if not finite:
        parser.exit(3, f"error: iteration {iteration} gave a loss that is not finite\n")
    if stop_signals and iteration < args.num_iterations:
        print(f"to go on: {sys.executable} {sys.argv[0]} --resume {run_dir}")
        sys.exit(128 + stop_signals[0])
