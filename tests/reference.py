"""PPO in float64, by other means: what the eager scripts are held against for whole iterations.

Nothing comes from ppo/. Rows that are no transitions are taken out, advantages are sums over an
episode's errors, moments come from all rows so far. Sources: arXiv:1707.06347, arXiv:1506.02438.
"""

import importlib
import json
from math import log, pi

import envpool
import gymnasium as gym
import numpy as np

import torch
from torch.nn.functional import conv2d


class Moments:
    """Mean and variance of all rows so far, and of a first row of mean 0 and variance 1, which
    weighs 1e-4."""

    def __init__(self):
        self.rows = []

    def of_all(self):
        """Their mean, their variance, and what they weigh."""
        rows, weight = np.array(self.rows, dtype=float), len(self.rows) + 1e-4
        mean = rows.sum(0) / weight
        return mean, (1e-4 * (1 + mean**2) + ((rows - mean) ** 2).sum(0)) / weight, weight

    def scaled(self, x, bound, centre=1):
        """x by them, as it is before there is a row."""
        mean, var, _ = self.of_all()
        return ((x - centre * mean) / np.sqrt(var + 1e-8)).clip(-bound, bound)


def linear(p, layer, x):
    return x @ p[f"{layer}.weight"].T + p[f"{layer}.bias"]


def convolutions(p, obs):
    """obs (M, 4 or 1, 84, 84) of 0 to 255 -> (M, 512)."""
    x = obs / 255
    for layer, stride in ((0, 4), (2, 2), (4, 1)):
        x = conv2d(x, p[f"network.{layer}.weight"], p[f"network.{layer}.bias"], stride).relu()
    return linear(p, "network.7", x.flatten(1)).relu()


def nature_cnn(p, obs, memory):
    """obs (M, 4, 84, 84) of 0 to 255 -> logits (M, A), values (M,), and the memory as it was."""
    x = convolutions(p, obs)
    return linear(p, "actor", x), linear(p, "critic", x)[:, 0], memory


def small_cnn(p, obs, memory):
    """obs (M, 10, 10, C) of 0 and 1 -> the same, by one layer of convolutions."""
    x = conv2d(obs.movedim(3, 1), p["network.0.weight"], p["network.0.bias"]).relu()
    x = linear(p, "network.3", x.flatten(1)).relu()
    return linear(p, "actor", x), linear(p, "critic", x)[:, 0], memory


def one_step(p, lstm, x, h, c):
    """x (M, D), h and c (M, H) -> h and c a step later, by nn.LSTM's equations."""
    parts = (linear(p, f"{lstm}.from_x", x) + linear(p, f"{lstm}.from_h", h)).split(h.shape[1], 1)
    let_in, kept, shown = (1 / (1 + (-parts[k]).exp()) for k in (0, 1, 3))
    c = kept * c + let_in * parts[2].tanh()
    return shown * c.tanh(), c


def cnn_with_memory(p, obs, memory):
    """obs (M, 1, 84, 84) of 0 to 255, memory (M, H, 2) -> logits (M, A), values (M,), memory."""
    h, c = one_step(p, "lstm", convolutions(p, obs), *memory.unbind(2))
    return linear(p, "actor", h), linear(p, "critic", h)[:, 0], torch.stack([h, c], 2)


def two_memories(p, obs, memory):
    """obs (M, D), memory (M, H, 4), actor's and critic's -> logits or means (M, A), values (M,),
    memory."""
    found, after = [], []
    nets = sorted({key.split(".")[0] for key in p if "." in key})
    for net, of_net in zip(nets, memory.split(2, 2), strict=True):
        x = linear(p, f"{net}.layer", obs).tanh()
        after += one_step(p, f"{net}.lstm", x, *of_net.unbind(2))
        found.append(linear(p, f"{net}.head", after[-2]))
    return found[0], found[1][:, 0], torch.stack(after, 2)


def attention(p, obs, memory):
    """obs (M, D), memory (M, L, layers * H + 1), the rows before and, last, whether they are there
    -> logits (M, A), values (M,), memory."""
    x, added = linear(p, "encoder", obs).tanh(), []
    older, there = memory[..., :-1].split(x.shape[1], 2), memory[..., -1] > 0
    there = torch.hstack([there, there.new_ones(len(x), 1)])
    for i, rows in enumerate(older):
        added.append(x)
        rows = torch.cat([rows, x[:, None]], 1)  # (M, L + 1, H)
        asked = linear(p, f"layers.{i}.query", x).unflatten(1, (-1, x.shape[1]))
        likeness = torch.einsum("mkh,mlh->mlk", asked, rows + p[f"layers.{i}.lag"])
        weights = there[..., None] * (likeness / x.shape[1] ** 0.5).exp()  # (M, L + 1, heads)
        away = torch.einsum("mlk,mlh->mkh", weights / weights.sum(1, True), rows - x[:, None])
        away = away - away.mean(2, True)
        away = away / ((away**2).mean(2, True) + 1e-2) ** 0.5
        away = away * p[f"layers.{i}.norm.weight"] + p[f"layers.{i}.norm.bias"]
        x = x + linear(p, f"layers.{i}.out", away.flatten(1))
        x = x + linear(p, f"layers.{i}.hidden", x).clamp(min=0)
    row = torch.hstack([*added, torch.ones(len(x), 1)])
    memory = torch.cat([memory[:, 1:], row[:, None]], 1)
    return linear(p, "actor", x), linear(p, "critic", x)[:, 0], memory


def two_perceptrons(p, obs, memory, bend=torch.tanh):
    """obs (M, D) -> logits or means (M, A), values (M,), of networks named actor(_...), critic."""
    nets = sorted({key.split(".")[0] for key in p if "." in key})
    hidden = [bend(linear(p, f"{net}.2", bend(linear(p, f"{net}.0", obs)))) for net in nets]
    head, value = [linear(p, f"{net}.4", x) for net, x in zip(nets, hidden, strict=True)]
    return head, value[:, 0], memory


def two_elu_perceptrons(p, obs, memory):
    """The same, with exponential linear units (arXiv:1511.07289)."""
    return two_perceptrons(p, obs, memory, lambda x: x.clamp(min=0) + x.clamp(max=0).expm1())


def two_values(p, obs, memory):
    """obs (M, D) -> logits (M, A), values (M, 2), of rewards and of bonuses."""
    nets = "actor", "critic"
    hidden = [linear(p, f"{net}.2", linear(p, f"{net}.0", obs).tanh()).tanh() for net in nets]
    return *(linear(p, f"{net}.4", x) for net, x in zip(nets, hidden, strict=True)), memory


def categorical(p, logits, noise=None, actions=None):
    """Actions, their log-probabilities, entropies; a sample is the first of A clocks to ring."""
    log_probs = logits - logits.exp().sum(1, keepdim=True).log()
    actions = (noise / log_probs.exp()).argmin(1) if actions is None else actions
    return actions, log_probs[range(len(actions)), actions], -(log_probs.exp() * log_probs).sum(1)


def two_with_mask(p, obs, memory):
    """obs (M, D) and a mask (M, A) behind it -> logits and mask (M, 2 A), values (M,)."""
    obs, mask = obs.split([p["actor.0.weight"].shape[1], len(p["actor.4.bias"])], 1)
    logits, value, memory = two_perceptrons(p, obs, memory)
    return torch.hstack([logits, mask]), value, memory


def possible(p, head, noise=None, actions=None):
    """As categorical, of the actions that a mask allows; of all, equally, where it allows none."""
    logits, mask = head.chunk(2, 1)
    weights = torch.where(mask.any(1, keepdim=True), mask * logits.exp(), 1)
    probs = weights / weights.sum(1, keepdim=True)
    actions = (noise / probs).argmin(1) if actions is None else actions
    surprise = -torch.where(probs > 0, probs, 1).log()
    return actions, -surprise[range(len(actions)), actions], (probs * surprise).sum(1)


def gaussian(p, mean, noise=None, actions=None):
    """Actions, their log-densities, entropies."""
    log_std = p["actor_logstd"][0]
    actions = mean + log_std.exp() * noise if actions is None else actions
    squares, area = ((actions - mean) / log_std.exp()) ** 2, log_std + log(2 * pi) / 2
    return actions, (-squares / 2 - area).sum(1), (area + 1 / 2).sum().expand(len(mean))


class Atari:
    """EnvPool's games, each with a seed of its own. An agent's episode is a life."""

    def __init__(self, h, seeds):
        options = {"num_envs": h.num_envs, "seed": seeds.tolist(), "episodic_life": True}
        options |= {"stack_num": 1} if h.memory else {}
        self.envs = envpool.make(h.env_id, env_type="gym", **options)
        self.obs, info = self.envs.reset()
        self.lives, self.done = info["lives"], np.zeros(h.num_envs, bool)

    def step(self, actions):
        obs, _, terminal, cut, info = self.envs.step(actions)
        over, unsaid = info["terminated"] == 1, self.done & (info["lives"] > self.lives)
        self.lives, self.done = info["lives"], terminal | over | cut
        state = {"obs": obs, "dones": self.done, "terminations": terminal | over}
        state["over"] = self.done  # set back in the next step, which is no transition
        return state, np.sign(info["reward"]), info["reward"], over | cut | unsaid

    def anew(self, iteration, state):
        return state, []


class ALE(Atari):
    """ALE's own games, which it tells to be over, lives aside; a lost life is seen by its count."""

    def __init__(self, h, seeds):
        options = {"repeat_action_probability": 0.0, "reward_clipping": False}
        self.envs = gym.make_vec(h.env_id, h.num_envs, life_loss_info=False, **options)
        self.obs, info = self.envs.reset(seed=seeds)
        self.lives, self.over = info["lives"], np.zeros(h.num_envs, bool)

    def step(self, actions):
        obs, raw, terminal, cut, info = self.envs.step(actions)
        restarted, lost = self.over, (info["lives"] < self.lives) & ~self.over
        self.lives, self.over = info["lives"], terminal | cut
        state = {"obs": obs, "dones": self.over | lost, "terminations": terminal | lost}
        return state | {"over": self.over}, np.sign(raw), raw, restarted


class Gymnasium:
    """Single environments, set back in the step after an end."""

    def __init__(self, h, seeds):
        self.h, self.sums, self.paid = h, Moments(), [[] for _ in seeds]
        self.envs, obs = self.begin(h.env_id, seeds)
        self.obs, self.done = self.seen_of(obs), np.zeros(h.num_envs, bool)

    def begin(self, env_id, seeds):
        envs = [gym.make(env_id, disable_env_checker=True) for _ in seeds]
        return envs, np.stack([env.reset(seed=int(seeds[i]))[0] for i, env in enumerate(envs)])

    def seen_of(self, obs):
        hidden = getattr(self.h, "hide", ())
        return obs[:, [d for d in range(obs.shape[1]) if d not in hidden]]

    def step(self, actions):
        rows = []
        for env, action, done in zip(self.envs, actions, self.done, strict=True):
            if isinstance(env.action_space, gym.spaces.Box):
                action = action.clip(env.action_space.low, env.action_space.high)
            rows.append((env.reset()[0], 0.0, False, False) if done else env.step(action)[:4])
        obs, raw, terminal, cut = self.checked(*map(np.array, zip(*rows, strict=True)))
        obs = self.seen_of(obs)
        obs[terminal] = np.where(np.isfinite(obs[terminal]), obs[terminal], 0)
        started, self.done = np.flatnonzero(~self.done), terminal | cut
        for i in started:  # as in Gymnasium, a terminal reward opens the next sum
            self.paid[i] = ([] if terminal[i] else self.paid[i]) + [raw[i]]
        lost = getattr(self, "lost", np.zeros(len(rows), bool))  # of these there is no sample
        self.sums.rows += [np.polyval(self.paid[i], self.h.gamma) for i in started[~lost[started]]]
        state = {"obs": obs, "dones": self.done, "terminations": terminal, "over": self.done}
        return state, raw, raw, self.done

    def checked(self, *told):
        return told

    def anew(self, iteration, state):
        return state, []


class Images(Gymnasium):
    """The same; learning sees rewards of another scale than returns do."""

    def step(self, actions):
        state, reward, *rest = super().step(actions)
        return state, reward * self.h.reward_scale, *rest


class WithMask:
    """A single environment of Gymnasium's, its mask behind its observations."""

    def __init__(self, env_id):
        self.env = gym.make(env_id, disable_env_checker=True)
        self.action_space = self.env.action_space

    def reset(self, **more):
        obs, info = self.env.reset(**more)
        return (np.hstack([obs, info["action_mask"]]),)

    def step(self, action):
        obs, *rest, info = self.env.step(action)
        return np.hstack([obs, info["action_mask"]]), *rest


class Masked(Gymnasium):
    """The same, of environments that say which actions are possible."""

    def begin(self, env_id, seeds):
        envs = [WithMask(env_id) for _ in seeds]
        return envs, np.stack(
            [env.reset(seed=int(x))[0] for env, x in zip(envs, seeds, strict=True)]
        )


class Together:
    """Parallel environments, all of whose possible agents are rows: one who is not there sees
    zeros, earns none, and counts as terminated, whatever is told of it; so does one who leaves
    without a flag."""

    def __init__(self, h, seeds):
        make = importlib.import_module(h.env_id).parallel_env
        self.envs = [make(**json.loads(h.env_kwargs)) for _ in seeds]
        begun = [self.begin(env, seed=int(x)) for env, x in zip(self.envs, seeds, strict=True)]
        self.obs, _, self.over, _ = self.all_agents(begun)
        self.ended = [False] * len(seeds)

    def begin(self, env, **more):
        obs, _ = env.reset(**more)
        return {name: (obs[name], 0.0, False, False) for name in env.agents}

    def all_agents(self, outcomes):
        nothing = np.zeros(self.envs[0].observation_space(self.envs[0].possible_agents[0]).shape)
        names = self.envs[0].possible_agents
        rows = [x.get(name, (nothing, 0.0, True, False)) for x in outcomes for name in names]
        return map(np.array, zip(*rows, strict=True))

    def step(self, actions):
        outcomes, rows = [], iter(actions)
        for env, ended in zip(self.envs, self.ended, strict=True):
            chosen = {name: int(next(rows)) for name in env.possible_agents}
            if not ended:
                acted = {name: chosen[name] for name in env.agents}
                obs, *told, _ = env.step(acted)
                outcomes.append({})
                for name in {*acted, *env.agents}:
                    reward, terminal, cut = (x.get(name, False) for x in told)
                    terminal |= name not in env.agents and not cut
                    outcomes[-1][name] = obs[name], float(reward), terminal, cut
            else:
                outcomes.append(self.begin(env))
        obs, raw, terminal, cut = self.all_agents(outcomes)
        over = terminal | cut
        self.ended = [all(x) for x in over.reshape(len(self.envs), -1)]
        state = {"obs": obs, "dones": over, "terminations": terminal, "over": over}
        return state, raw, raw, over

    def anew(self, iteration, state):
        return state, []


class Single:
    """One of EnvPool's environments, as a single one of Gymnasium's."""

    def __init__(self, env_id, seed):
        self.envs = envpool.make(env_id, env_type="gym", num_envs=1, seed=[int(seed)])
        self.action_space = self.envs.action_space

    def reset(self):
        return (self.vector(self.envs.reset()[0]),)

    def step(self, action):
        obs, reward, terminal, cut, _ = self.envs.step(action[None])
        return self.vector(obs), float(reward[0]), terminal[0], cut[0]

    def vector(self, obs):
        parts = [obs[key] for key in obs] if isinstance(obs, dict) else [obs]
        return np.hstack([part.flatten() for part in parts])


class ManyEnvs(Gymnasium):
    """EnvPool's: a share of them begins anew with each rollout, until a game's steps are over."""

    def begin(self, env_id, seeds):
        envs = [Single(env_id, seed) for seed in seeds]
        rollouts = np.ceil(envs[0].envs.spec.config.max_episode_steps / self.h.num_steps)
        self.starts = [int(n * rollouts / len(envs)) * self.h.stagger for n in range(len(envs))]
        return envs, np.stack([env.reset()[0] for env in envs])

    def anew(self, iteration, state):
        state = {key: x.copy() for key, x in state.items()}
        cut_short = [n for n, start in enumerate(self.starts) if start == iteration > 0]
        for n in cut_short:
            state["obs"][n], state["terminations"][n] = self.envs[n].reset()[0], False
            state["dones"][n] = state["over"][n] = self.done[n] = False
        return state, cut_short


class Mass:
    """One of the worlds in tests/worlds.py, in float64."""

    action_space = gym.spaces.Box(-0.4, 1.5, (2,))

    def __init__(self, n, rare):
        self.n, self.episode, self.sick, self.late = n, 0, False, False
        self.rare = rare and n == 0

    def reset(self):
        """A world that diverged is told so, and starts anew a step later."""
        if self.late:
            self.late = False
            return (np.full(3, np.nan),)
        self.episode, self.sick = self.episode + 1, False
        self.where = 0.3 * np.sin(7 * self.n + 3 * self.episode)
        self.speed, self.steps = 0.1 * np.cos(5 * self.n + self.episode), 0
        return (np.array([self.where, self.speed, (self.where * self.speed) ** 3]),)

    def step(self, action):
        self.steps += 1
        self.speed = 0.9 * self.speed + 0.3 * action[0] - 0.1 * self.where
        self.where += self.speed
        odd = (2 * self.n + self.episode) % 5 == 0 and self.episode > 1
        self.sick |= odd and self.steps == 7
        fallen = abs(self.where) > 1.2 and not self.sick
        seen = np.array([self.where, self.speed, (self.where * self.speed) ** 3])
        paid = self.speed - 0.2 * (action @ action)
        if fallen and (self.n + self.episode) % 2 == 0:
            seen[1:] = np.nan, np.inf
            paid = np.nan if self.n % 3 == 0 else paid
        if self.rare and self.episode == 1 and self.steps == 14:
            paid = 30.0
        kind = self.n % 4 if self.sick else None
        seen[1] = np.nan if kind == 0 else seen[1]
        seen[2] = -1e11 if kind == 1 else seen[2]
        return seen, {2: np.nan, 3: np.inf}.get(kind, paid), fallen, self.steps >= 20


class OnDevice(Gymnasium):
    """Such worlds, whose first episodes have begun a while ago, and whose returns do not count."""

    def __init__(self, h, seeds):
        super().__init__(h, seeds)
        self.sound, self.shares = self.obs, []  # last rows that were; of worlds lost, a step

    def begin(self, env_id, seeds):
        envs = [Mass(n, env_id.endswith("Rare")) for n in range(len(seeds))]
        first = np.stack([env.reset()[0] for env in envs])
        for n, env in enumerate(envs):
            env.steps = n * 20 // len(envs) * self.h.stagger
        return envs, first

    def checked(self, obs, raw, terminal, cut):
        """What diverged earns nothing and counts nowhere, and is cut if it has not ended."""
        self.odd = ~(np.abs(np.hstack([obs, raw[:, None]])) < 1e10).all(1)
        fallen, terminal = terminal, terminal & (np.abs(raw) < 1e10)
        self.lost = self.odd & ~terminal
        for env, lost in zip(self.envs, self.lost & ~self.done & ~fallen, strict=True):
            env.late = lost
        obs = np.where(self.odd[:, None], np.nan, obs)
        return obs, np.where(self.lost, 0.0, raw), terminal, cut | self.lost

    def step(self, actions):
        first = np.array([env.episode == 1 for env in self.envs])
        state, reward, raw, ends = super().step(actions)
        self.sound = state["obs"] = np.where(self.odd[:, None], self.sound, state["obs"])
        self.shares.append(self.lost.mean())
        return state, reward, np.where(first & self.h.stagger | self.lost, np.nan, raw), ends


def advantages(h, rewards, values, dones, terminations, over, **_):
    """(T, N): each transition's TD errors to its episode's end, the k-th times (gamma lambda)^k."""
    found = np.full(rewards.shape, np.nan)
    for t, n in np.argwhere(~over[:-1]):
        end = next((k for k in range(t + 1, len(dones)) if dones[k, n]), len(dones) - 1)
        future = values[t + 1 : end + 1, n] * ~terminations[t + 1 : end + 1, n]
        errors = rewards[t:end, n] + h.gamma * future - values[t:end, n]
        found[t, n] = sum((h.gamma * h.gae_lambda) ** k * error for k, error in enumerate(errors))
    return found


class Bonus:
    """Random network distillation (arXiv:1810.12894): what was seen and earned so far, and what a
    rollout adds to it."""

    def __init__(self, h, games, seen):
        """Plays at random first, for the statistics; then all games begin anew."""
        rng = np.random.RandomState(h.seed)
        self.h, self.seen, self.sums, self.sum = h, seen, Moments(), np.zeros(h.num_envs)
        for _ in range(h.num_iterations_obs_norm_init * h.num_steps):
            over = games.done
            actions = rng.randint(games.envs[0].action_space.n, size=h.num_envs)
            self.seen.rows += [*games.step(actions)[0]["obs"][~over]]
        self.drawn = rng.random()
        games.obs = np.stack([env.reset()[0] for env in games.envs])
        games.done = np.zeros(h.num_envs, bool)

    def surprise(self, p, scaled):
        """(M, D) -> (M,): how far what is learned is from what is fixed."""
        fixed, learned = (linear(p, f"{net}.0", scaled) for net in ("target", "predictor"))
        fixed, learned = (torch.where(x < 0, 0.01 * x, x) for x in (fixed, learned))
        learned = linear(p, "predictor.4", linear(p, "predictor.2", learned).relu())
        return ((learned - linear(p, "target.2", fixed).detach()) ** 2).mean(-1)

    def after(self, p, found):
        """What a rollout becomes: bonuses of transitions by what they led to, their advantages
        through all ends, an autoreset step being a step without a bonus."""
        h, T, over = self.h, self.h.num_steps, found["over"]
        values, advantages = found["values"][..., 1], np.full(over[:-1].shape, np.nan)
        led_to, g = found["obs"][1:], h.int_gamma
        new = torch.from_numpy(self.seen.scaled(led_to, 5))
        bonus = self.surprise(p, new).numpy() * ~over[:-1]
        for row, out in zip(bonus, over, strict=False):
            self.sum = g * self.sum + row
            self.sums.rows += [*self.sum[~out]]
        std = self.sums.of_all()[1] ** 0.5
        for n in range(h.num_envs):
            rows, errors = np.flatnonzero(~over[:T, n]), {}
            for t in rows:
                resets = over[t + 1, n] and t + 2 <= T
                future = g * g * values[t + 2, n] if resets else g * values[t + 1, n]
                errors[t] = bonus[t, n] / std + future - values[t, n]
            for t in rows:
                later = [(k - t, error) for k, error in errors.items() if k >= t]
                advantages[t, n] = sum((g * h.gae_lambda) ** k * error for k, error in later)
        self.seen.rows += [*led_to[~over[:T]]]
        found = found | {"values": found["values"][..., 0], "int_values": values}
        found["int_returns"] = advantages + values[:T]
        found["led_to"], found["bonus"] = self.seen.scaled(led_to, 5), bonus
        return found, h.int_coef * advantages

    def objective(self, p, value, rows):
        """The loss of the bonus's value and of the predictor, and what is logged of them."""
        error = 0.5 * ((value - rows["int_returns"]) ** 2).mean()
        wrong = self.surprise(p, rows["led_to"][rows["trains"]])
        wrong = wrong.sum() / max(1, len(wrong))
        return self.h.vf_coef * error + wrong, [error.item(), wrong.item()]


def objective(h, log_density, entropy, value, rows):
    """The loss over rows that all are transitions, and what is logged of it."""
    gain, error, eps = rows["advantages"], (value - rows["returns"]) ** 2, h.clip_coef
    if h.norm_adv:
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
    if h.clip_vloss:
        near = value.minimum(rows["values"] + eps).maximum(rows["values"] - eps)
        error = error.maximum((near - rows["returns"]) ** 2)
    log_ratio = log_density - rows["logprobs"]
    ratio = log_ratio.exp()
    surrogate = torch.minimum(ratio * gain, gain + eps * gain.abs())
    kl, outside = ratio - 1 - log_ratio, ((ratio < 1 - eps) | (ratio > 1 + eps)).double()
    means = [x.mean() for x in (-surrogate, error / 2, entropy, -log_ratio, kl, outside)]
    return means[0] + h.vf_coef * means[1] - h.ent_coef * means[2], torch.stack(means).tolist()


def follow(h, network, policy, games, initial, trace):
    """Yields what each iteration of a run has to come to, given its noise and its permutations.

    The noise is that of the T actions; row T is there for its value.
    """
    T, E, iterations = h.num_steps, h.num_envs, h.total_timesteps // (h.num_steps * h.num_envs)
    games = games(h, np.random.SeedSequence([h.seed, 0]).generate_state(E) >> 1)
    N, K = E * h.agents, h.agents
    initial = {key: x for key, x in initial.items() if not key.startswith("obs_rms.")}
    theta = torch.cat([x.double().flatten() for x in initial.values()])
    seen = Moments()  # of observations, as far as the policy knows them
    bonus = Bonus(h, games, seen) if hasattr(h, "int_coef") else None
    adam_m, adam_v, steps = *torch.zeros(2, len(theta), dtype=float), 0

    def parameters():
        parts = iter(theta.split([x.numel() for x in initial.values()]))
        return {key: next(parts).view(x.shape) for key, x in initial.items()}

    def evaluate(obs, memory, **given):
        p, obs = parameters(), np.asarray(obs, dtype=float)
        obs = seen.scaled(obs, 10) if h.normalise else obs
        head, value, memory = network(p, torch.from_numpy(obs), memory)
        return *policy(p, head, **given), value, memory

    def on_rows(found, indices, memory):
        """The transitions among rows, and what the policy as it is says of them, with the memory
        that each of them had."""
        flat = {key: torch.from_numpy(x[:T]).flatten(0, 1) for key, x in found.items()}
        batch = {key: x[indices[~flat["over"][indices]]] for key, x in flat.items()}
        return batch, evaluate(batch["obs"], batch["memory"], actions=batch["actions"])[1:4]

    def on_games(found, indices, memory):
        """The transitions of whole environments, and what the policy says of them step by step."""
        games = {key: torch.from_numpy(x[:T])[:, indices] for key, x in found.items()}
        memory, said = memory[indices], []
        for obs, actions, done in zip(games["obs"], games["actions"], games["dones"], strict=True):
            *now, memory = evaluate(obs, memory, actions=actions)
            memory = torch.where(done[:, None, None], 0.0, memory)
            said.append(now[1:])
        valid = ~games["over"]
        now = [torch.stack(x)[valid] for x in zip(*said, strict=True)]
        return {key: x[valid] for key, x in games.items()}, now

    state = {"obs": games.obs} | {k: np.zeros(N, bool) for k in ("dones", "terminations", "over")}
    if K > 1:  # some agents may come later
        state |= {"dones": games.over, "over": games.over}
    shape = N, *(h.memory or h.window)
    unfinished, memory = [[] for _ in range(N)], torch.zeros(shape, dtype=float)
    for iteration, given in enumerate(trace):
        rows, episodes = [], []
        state, cut_short = games.anew(iteration, state)
        for n in cut_short:
            unfinished[n].clear()
        before_rollout = memory
        for t in range(T + 1):
            noise = given["noise"][min(t, T - 1)].double()
            action, logprob, _, value, after = evaluate(state["obs"], memory, noise=noise)
            rows.append(state | {"actions": action, "logprobs": logprob, "values": value})
            rows[t]["memory"] = memory
            if t == T:
                break
            done = torch.as_tensor(state["dones"]).view(N, *(1 for _ in shape[1:]))
            memory = torch.where(done, 0.0, after)
            state, rows[t]["rewards"], raw, ends = games.step(action.numpy())
            rows[t]["lost"] = getattr(games, "lost", np.zeros(N, bool))
            for n, paid in enumerate(unfinished):
                paid += [] if rows[t]["over"][n] else [float(raw[n])]
            for n in range(0, N, K):
                paid = [x for x in unfinished[n : n + K] if x]  # by those who took part
                if all(ends[n : n + K]) and paid:
                    total = float(np.mean([sum(x) for x in paid]))
                    if not np.isnan(total):
                        episodes.append([(iteration * T + t + 1) * E, total, max(map(len, paid))])
                    for x in paid:
                        x.clear()
        found = {k: np.stack([row[k] for row in rows if k in row]) for k in rows[0]}
        if h.normalise:
            found["scaled"] = seen.scaled(found["obs"], 10)
            found["rewards"] = games.sums.scaled(found["rewards"], 10, centre=0)
        if found["lost"].any():  # such a step is paid as the worst of the others, never more than 0
            least = min(0.0, *found["rewards"][~found["lost"]])
            found["rewards"] = np.where(found["lost"], least, found["rewards"])
        if bonus:
            found, of_bonus = bonus.after(parameters(), found)
        found["advantages"] = errors = advantages(h, **found)
        found["returns"] = found["advantages"] + found["values"][:T]
        if bonus:
            found["advantages"] = h.ext_coef * errors + of_bonus
        logged, rate = [], h.learning_rate * (1 - iteration / iterations * h.anneal_lr)
        for b_inds, trains in zip(given["b_inds"], given["trains"], strict=True):
            if bonus:
                found["trains"] = trains.numpy() == 1
            for indices in b_inds:
                theta.requires_grad_()
                batch, now = (on_games if h.memory else on_rows)(found, indices, before_rollout)
                values = now[-1].T if bonus else [now[-1]]
                loss, losses = objective(h, *now[:-1], values[0], batch)
                if bonus:
                    more, logged_more = bonus.objective(parameters(), values[1], batch)
                    loss, losses = loss + more, losses + logged_more
                (gradient,) = torch.autograd.grad(loss, theta)
                logged.append([*losses, float(gradient.square().sum().sqrt())])
                gradient *= min(1, h.max_grad_norm / logged[-1][-1])
                steps += 1
                adam_m.mul_(0.9).add_(gradient, alpha=0.1)
                adam_v.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
                scale = (adam_v / (1 - 0.999**steps)).sqrt_().add_(1e-5)
                theta = theta.detach().addcdiv_(adam_m, scale, value=-rate / (1 - 0.9**steps))
            kl = np.mean(logged[-h.num_minibatches :], 0)[4]
            if h.target_kl is not None and kl > h.target_kl:
                break
        explained = 1 - np.nanvar(errors) / np.nanvar(found["returns"])
        found |= {"losses": [*np.mean(logged, 0), explained], "logged": logged, "last_kl": kl}
        if hasattr(games, "shares"):
            found["diverged"] = np.mean(games.shares[-T:])
        if h.normalise:
            seen.rows += [*found["obs"][:T][~found["over"][:T]]]
        if h.normalise or bonus:
            found["moments"] = seen.of_all()
        yield found | {"rate": rate, "episodes": episodes, "theta": theta}
