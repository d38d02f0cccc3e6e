"""Scores a trained agent, and films it: whole games from the checkpoint of any script beside this.

    python ppo/ppo_eval.py runs/<run>                              # 20 games, actions sampled
    python ppo/ppo_eval.py runs/<run> --deterministic              # the most likely actions
    python ppo/ppo_eval.py runs/<run> --capture-video --video-game best

Atari is played as in training, to the last life and with unclipped rewards, MuJoCo with the
statistics that normalised the observations in training, frozen. Leaves eval.json, and on request a
video, beside the checkpoint.
Shapes: M games side by side, A actions, D numbers of an observation, K agents in a game.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch>=2.11,<2.16",
#   "ale-py>=0.12",
#   "envpool>=1.2.5; sys_platform != 'darwin' or platform_machine == 'arm64'",
#   "gymnasium[classic-control,mujoco]>=1.3",
#   "gymnasium[box2d]>=1.3; python_version < '3.14'",
#   "pettingzoo>=1.27",
#   "mpe2>=1.1",
#   "numpy>=2",
#   "tyro>=1.0.17",
#   "tqdm",
#   "imageio",
#   "imageio-ffmpeg",
# ]
# ///
import ctypes
import importlib
import io
import json
import os
import statistics
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

# kept for filming: where this renderer is missing, mujoco could not even be imported
MUJOCO_GL = os.environ.pop("MUJOCO_GL", "egl")

import gymnasium as gym
import imageio.v2 as imageio
import numpy as np
import tyro
from tqdm import tqdm

import torch
import torch.nn.functional as F

gym.logger.min_level = gym.logger.ERROR  # v4 is out of date, but what the published tables used


@dataclass
class Args:
    run: tyro.conf.Positional[str]  # folder of a run, with a checkpoint.pt in it
    episodes: int = 20  # games to play
    deterministic: bool = False  # take the most likely actions; else they are sampled
    seed: int = 1  # of the games and of the sampling, 0 or more
    num_envs: int = 8  # games side by side
    capture_video: bool = False  # film one of the games: video.mp4
    video_game: Literal["first", "best"] = "first"  # which one
    max_steps: int = 27_000  # a game that has not ended then is cut, Atari's own limit

    def __post_init__(self):
        if min(self.episodes, self.num_envs, self.max_steps) < 1 or self.seed < 0:
            raise ValueError("give 1 or more --episodes, --num-envs, --max-steps; a --seed from 0")
        self.run = os.path.expanduser(self.run)
        try:
            path = f"{self.run}/checkpoint.pt"
            self.checkpoint = torch.load(path, map_location="cpu", weights_only=True)
            self.player = PLAYERS[self.checkpoint["format"]](self.checkpoint, self.deterministic)
        except Exception as error:  # what a damaged file raises depends on its bytes
            known = " or ".join(PLAYERS)
            raise ValueError(f"{self.run}: no checkpoint of {known} ({error!r})") from error


@dataclass
class Game:
    """One game from its first observation to its last."""

    seed: int
    actions: list  # a step's each, (), (A,), or (K,) of several agents
    total: float = 0.0  # return, of raw rewards
    cut: bool = False  # by --max-steps


class Discrete:
    """Plays an environment of Gymnasium's with the networks of ppo."""

    fps = 30  # where the environment does not say
    actor = "actor"  # the network that acts
    last = "actor.4.bias"  # its last weights, as many as actions
    hint = "on Debian, apt install libegl1 (MUJOCO_GL=egl) or libosmesa6 (MUJOCO_GL=osmesa)"

    def __init__(self, checkpoint, deterministic):
        self.env_id, self.weights = checkpoint["args"]["env_id"], checkpoint["agent"]
        self.deterministic = deterministic

    def reset(self, seeds, **options):
        """Environments, one a seed, and their first observations, (M, D)."""

        def make_env():
            env = gym.make(self.env_id, disable_env_checker=True, **options)
            return env if env.observation_space.shape else gym.wrappers.FlattenObservation(env)

        envs = gym.vector.SyncVectorEnv([make_env] * len(seeds))
        self.action_space = envs.single_action_space
        obs, self.info = envs.reset(seed=seeds)
        return envs, obs

    def step(self, envs, actions):
        """One step: observations, raw rewards, (M,), and whose game is over, (M,) bool."""
        obs, rewards, terminated, truncated, self.info = envs.step(actions)
        return obs, rewards, terminated | truncated

    def logits(self, obs):
        """(M, D) -> (M, A) float32."""
        hidden = obs.float()
        for layer in (0, 2, 4):
            weight, bias = (self.weights[f"{self.actor}.{layer}.{x}"] for x in ("weight", "bias"))
            hidden = F.linear(torch.tanh(hidden) if layer else hidden, weight, bias)
        return hidden

    def act(self, obs, generators):
        """Observations, (M, ...) -> (M,) int64; each game draws from its own generator."""
        probs = self.logits(torch.from_numpy(obs)).softmax(-1)  # (M, A)
        if not self.deterministic:
            noise = [torch.empty(probs.shape[1:]).exponential_(generator=g) for g in generators]
            probs = probs / torch.stack(noise)
        return probs.argmax(-1).numpy()

    def film(self, seed):
        """The environment of a game, ready to be filmed; MuJoCo's by the camera on the body."""
        os.environ["MUJOCO_GL"] = MUJOCO_GL
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # no window
        options, model = {}, getattr(gym.make(self.env_id).unwrapped, "model", None)
        if "track" in (model.camera(i).name for i in range(getattr(model, "ncam", 0))):
            options = {"camera_name": "track"}
        envs = self.reset([seed], render_mode="rgb_array", **options)[0]
        self.fps = envs.metadata.get("render_fps", self.fps)
        return envs

    def frame(self, envs):
        """(height, width, 3) uint8."""
        return envs.render()[0]


class Masked(Discrete):
    """Plays an environment of Gymnasium's that gives masks with the networks of ppo_masked."""

    def logits(self, obs):
        """(M, D) -> (M, A) float32; what info["action_mask"] forbids has probability 0."""
        mask = torch.from_numpy(self.info["action_mask"] != 0)  # (M, A), came with obs
        return torch.where(mask, super().logits(obs), -1e8)


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


class SharedPolicy(Discrete):
    """Plays a parallel environment of PettingZoo's with the networks of ppo_pettingzoo, the same
    for all K agents; a game's return is the mean over those who took part."""

    def __init__(self, checkpoint, deterministic):
        super().__init__(checkpoint, deterministic)
        self.env_kwargs = json.loads(checkpoint["args"]["env_kwargs"])

    def reset(self, seeds, **options):
        """Environments, one a seed, and their first observations, (M, K, D)."""
        make = importlib.import_module(self.env_id).parallel_env
        envs = ParallelEnvs(partial(make, **self.env_kwargs, **options), len(seeds))
        obs, absent = envs.reset(seeds)  # (M * K, D), (M * K,)
        self.there = ~absent.reshape(len(seeds), -1)  # (M, K), who acts in the next step
        self.took_part = np.zeros_like(self.there)
        self.returns = np.zeros(self.there.shape)
        return envs, obs.reshape(*self.there.shape, -1)

    def step(self, envs, actions):
        """One step of (M, K) actions: observations, (M, K, D), what it adds to each game's return,
        (M,), and whose game is over, (M,) bool."""
        before = self.mean_return()
        obs, rewards, terminated, truncated, _ = envs.step(actions.reshape(-1))
        self.returns += rewards.reshape(actions.shape) * self.there
        self.took_part |= self.there
        self.there = ~(terminated | truncated).reshape(actions.shape)
        over = ~self.there.any(1)
        return obs.reshape(*actions.shape, -1), self.mean_return() - before, over

    def mean_return(self):
        """(M,), the mean of returns over the agents that took part so far; 0 before any did."""
        return self.returns.sum(1) / self.took_part.sum(1).clip(1)

    def film(self, seed):
        """The environment of a game, ready to be filmed."""
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # no window
        envs = self.reset([seed], render_mode="rgb_array")[0]
        self.fps = envs.envs[0].metadata.get("render_fps", self.fps)
        return envs

    def frame(self, envs):
        """(height, width, 3) uint8."""
        return envs.envs[0].render()


class Continuous(Discrete):
    """Plays an environment of Gymnasium's with the networks of ppo_continuous_action."""

    actor = "actor_mean"
    last = "actor_logstd"

    def __init__(self, checkpoint, deterministic):
        super().__init__(checkpoint, deterministic)
        mean, var, _ = checkpoint["obs_rms"]
        self.mean, self.std = np.array(mean), np.sqrt(np.array(var) + 1e-8)  # (D,)

    def gaussian(self, obs):
        """(M, D) -> mean (M, A), std (1, A), float32."""
        return self.logits(obs), self.weights["actor_logstd"].exp()

    def act(self, obs, generators):
        """(M, D) -> (M, A) float32, clipped to what the space allows."""
        scaled = np.clip((obs - self.mean) / self.std, -10.0, 10.0)
        action, std = self.gaussian(torch.from_numpy(scaled))
        if not self.deterministic:
            noise = [torch.empty(action.shape[1]).normal_(generator=g) for g in generators]
            action = action + std * torch.stack(noise)
        return np.clip(action.numpy(), self.action_space.low, self.action_space.high)


class ContinuousEnvPool(Continuous):
    """Plays an environment of EnvPool's with the networks of ppo_continuous_action_envpool."""

    fps = 50  # where Gymnasium does not know the environment; EnvPool does not say
    hint = "on Debian, apt install libegl1"

    def reset(self, seeds, **options):
        """Environments, one a seed, and their first observations, (M, D) or a dictionary."""
        with suppress(OSError):  # MuJoCo in EnvPool looks for it when it is first used
            ctypes.CDLL("libEGL.so.1", ctypes.RTLD_GLOBAL)
        import envpool

        options |= {"num_envs": len(seeds), "seed": seeds}
        envs = envpool.make(self.env_id, env_type="gym", **options)
        self.action_space = envs.single_action_space
        return envs, envs.reset()[0]

    def act(self, obs, generators):
        """(M, D), or a dictionary of (M, ...) -> (M, A) float32, clipped as above."""
        arrays = obs.values() if isinstance(obs, dict) else [obs]
        obs = np.concatenate([np.reshape(x, (len(x), -1)) for x in arrays], 1)
        return super().act(obs, generators)

    def film(self, seed):
        """The environment of a game, ready to be filmed."""
        ctypes.CDLL("libEGL.so.1")  # OSError where it is missing: MuJoCo in EnvPool would abort
        with suppress(Exception):  # where Gymnasium has that id, and what it needs
            make = gym.envs.registration.load_env_creator(gym.registry[self.env_id].entry_point)
            self.fps = make.metadata["render_fps"]
        return self.reset([seed], render_mode="rgb_array")[0]

    def frame(self, envs):
        """(height, width, 3) uint8, by MuJoCo's first camera, which follows the body."""
        return envs.render(camera_id=0)[0]


class Atari(Discrete):
    """Plays an Atari game in EnvPool with the Nature CNN of ppo_atari_envpool."""

    fps = 15  # of 60 frames a second, the agent sees every fourth
    last = "actor.bias"
    stack_num = 4

    def reset(self, seeds, **options):
        """Environments, one a seed, and their first observations, (M, 4, 84, 84) uint8."""
        import envpool

        options |= {"num_envs": len(seeds), "seed": seeds, "stack_num": self.stack_num}
        envs = envpool.make(self.env_id, env_type="gym", episodic_life=True, **options)
        obs, info = envs.reset()
        self.lives, self.done = info["lives"], False
        return envs, obs

    def step(self, envs, actions):
        """As above; a lost life ends no game, but EnvPool serves again, as it does in training."""
        obs, rewards, terminated, truncated, info = envs.step(actions)
        over = (info["terminated"] > 0) | truncated | (self.done & (info["lives"] > self.lives))
        self.lives, self.done = info["lives"], terminated | truncated
        return obs, rewards, over

    def logits(self, obs):
        """(M, stack_num, 84, 84) uint8 -> (M, A) float32."""
        weights, hidden = self.weights, obs.float().div_(255.0)
        for layer, stride in ((0, 4), (2, 2), (4, 1)):
            weight, bias = weights[f"network.{layer}.weight"], weights[f"network.{layer}.bias"]
            hidden = F.relu(F.conv2d(hidden, weight, bias, stride))
        hidden = F.linear(hidden.flatten(1), weights["network.7.weight"], weights["network.7.bias"])
        hidden = self.remember(F.relu(hidden))
        return F.linear(hidden, weights["actor.weight"], weights["actor.bias"])

    def remember(self, hidden):
        """Without a memory what is seen is all there is."""
        return hidden

    def film(self, seed):
        """The environment of a game, ready to be filmed."""
        return self.reset([seed], render_mode="rgb_array")[0]

    def frame(self, envs):
        """(420, 320, 3) uint8, twice the console's size."""
        return envs.render()[0].repeat(2, axis=0).repeat(2, axis=1)


class AtariALE(Atari):
    """Plays an Atari game in ALE with the Nature CNN of ppo_atari."""

    def __init__(self, checkpoint, deterministic):
        super().__init__(checkpoint, deterministic)
        self.sticky = checkpoint["args"]["repeat_action_probability"]

    def reset(self, seeds, **options):
        """Environments, one a seed, and their first observations, (M, 4, 84, 84) uint8."""
        import ale_py

        gym.register_envs(ale_py)
        options |= {"reward_clipping": False, "repeat_action_probability": self.sticky}
        envs = gym.make_vec(self.env_id, len(seeds), **options)
        return envs, envs.reset(seed=np.array(seeds))[0]

    def step(self, envs, actions):
        """As Discrete's: ALE says when a game is over, and that a life is lost only on request."""
        return Discrete.step(self, envs, actions)

    def film(self, seed):
        """The environment of a game in colour, ready to be filmed."""
        screen = {"img_height": 210, "img_width": 160, "grayscale": False, "stack_num": 1}
        envs, obs = self.reset([seed], **screen)
        envs.screen, step = obs[0, 0], envs.step  # (210, 160, 3) uint8; ALE's many cannot render

        def kept(actions):
            outcome = step(actions)
            envs.screen = outcome[0][0, 0]
            return outcome

        envs.step = kept
        return envs

    def frame(self, envs):
        """(420, 320, 3) uint8, twice the console's size."""
        return envs.screen.repeat(2, axis=0).repeat(2, axis=1)


class Memory:
    """The LSTM of ppo_lstm and ppo_atari_envpool_lstm, zero at a game's start."""

    done, lstm = False, "lstm"

    def reset(self, seeds, **options):
        """As the simulator's."""
        size = self.weights[f"{self.lstm}.from_h.weight"].shape[1]
        self.lstm_state = torch.zeros(2, len(seeds), size)
        return super().reset(seeds, **options)

    def remember(self, hidden):
        """(M, D) -> (M, H), and the state on to the next step: zero after a life's last one."""
        names = "from_x.weight", "from_h.weight", "from_x.bias", "from_h.bias"
        weights = (self.weights[f"{self.lstm}.{name}"] for name in names)
        self.lstm_state = torch.stack(torch.lstm_cell(hidden, tuple(self.lstm_state), *weights))
        hidden = self.lstm_state[0]
        self.lstm_state = self.lstm_state * ~torch.as_tensor(self.done).unsqueeze(-1)
        return hidden


class DiscreteLSTM(Memory, Discrete):
    """Plays an environment of Gymnasium's with the networks of ppo_lstm, which see a part of it."""

    lstm = "actor.lstm"
    last = "actor.head.bias"

    def __init__(self, checkpoint, deterministic):
        super().__init__(checkpoint, deterministic)
        self.hide = checkpoint["args"]["hide"]
        if self.hide is None:
            self.hide = (1, 3) if self.env_id == "CartPole-v1" else ()

    def logits(self, obs):
        """(M, D and the hidden) -> (M, A) float32."""
        seen = obs[:, np.delete(np.arange(obs.shape[1]), self.hide)].float()
        names = "actor.layer.weight", "actor.layer.bias", "actor.head.weight", "actor.head.bias"
        w1, b1, w2, b2 = (self.weights[name] for name in names)
        return F.linear(self.remember(F.linear(seen, w1, b1).tanh()), w2, b2)


class AtariLSTM(Memory, Atari):
    """Plays an Atari game in EnvPool with the networks of ppo_atari_envpool_lstm."""

    stack_num = 1


PLAYERS = {  # by a checkpoint's format
    "ppo 2": Discrete,
    "ppo_masked 1": Masked,
    "ppo_pettingzoo 1": SharedPolicy,
    "ppo_lstm 1": DiscreteLSTM,
    "ppo_atari 1": AtariALE,
    "ppo_atari_envpool 2": Atari,
    "ppo_atari_envpool_lstm 1": AtariLSTM,
    "ppo_continuous_action 2": Continuous,
    "ppo_continuous_action_envpool 2": ContinuousEnvPool,
}


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


def plain(x):
    """For JSON, which has no inf and no nan: inf becomes a string, nan becomes null."""
    if isinstance(x, dict):
        return {key: plain(value) for key, value in x.items()}
    if isinstance(x, list):
        return [plain(value) for value in x]
    odd = isinstance(x, float) and not np.isfinite(x)
    return (None if np.isnan(x) else str(x)) if odd else x


@torch.no_grad()
def play(player, seeds, progress, max_steps):
    """One game for each seed, side by side, each to its end, or for so many steps: games in the
    order of the seeds."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    try:
        envs, obs = player.reset(seeds)
        size = gym.spaces.flatdim(envs.single_action_space)
        known = player.weights[player.last].numel()
        if size != known:
            raise ValueError(f"it has {size} actions, and the agent knows {known}")
        actions = player.act(obs, generators)
    except Exception as error:  # what an environment raises is its own affair
        text = " ".join(str(error).split()) or type(error).__name__
        fail("run", f"{player.env_id} is not the environment of training: {text}")
    games = [Game(seed, []) for seed in seeds]
    running = set(range(len(seeds)))
    while running:
        obs, rewards, over = player.step(envs, actions)
        for i in list(running):
            games[i].actions.append(actions[i])
            games[i].total += float(rewards[i])
            games[i].cut = not over[i] and len(games[i].actions) == max_steps
            if over[i] or games[i].cut:
                running.remove(i)
                progress.update()
        actions = player.act(obs, generators)
    try:
        envs.close()
    except Exception as error:  # the games are played
        print(f"{player.env_id} failed to close: {error!r}", file=sys.stderr)
    return games


if __name__ == "__main__":
    sys.stdout = Console(sys.stdout)
    sys.stderr = Console(sys.stderr)
    args = tyro.cli(Args)
    player, games = args.player, []
    # a game's seed starts its environment and draws its actions; no game of training has it
    seeds = np.random.SeedSequence(args.seed, spawn_key=(1,)).generate_state(args.episodes) >> 1
    with tqdm(total=args.episodes, unit="game") as progress:
        for start in range(0, args.episodes, args.num_envs):
            some = seeds[start : start + args.num_envs].tolist()
            games += play(player, some, progress, args.max_steps)

    returns = [game.total for game in games]
    cut = sum(game.cut for game in games)
    result = {
        "env_id": player.env_id,
        "global_step": args.checkpoint["global_step"],
        **asdict(args),
        "mean": statistics.fmean(returns),
        "std": statistics.pstdev(returns),
        "median": statistics.median(returns),
        "cut": cut,
        "returns": returns,
        "lengths": [len(game.actions) for game in games],
    }
    with open(f"{args.run}/eval.json", "w") as file:
        json.dump(plain(result), file, indent=2)
    way = "most likely actions" if args.deterministic else "sampled actions"
    print(f"{player.env_id} after {result['global_step']:,} steps of training, {way}")
    print(f"{'game':>6}{'return':>12}{'length':>9}")
    for number, game in enumerate(games, 1):
        print(f"{number:>6}{game.total:>12.2f}{len(game.actions):>9}")
    print(f"mean {result['mean']:.2f}, std {result['std']:.2f}, median {result['median']:.2f}")
    if cut:
        print(f"{cut} of {len(games)} games were cut after {args.max_steps} steps (--max-steps);")
        print("their returns count as they were")

    if args.capture_video:
        number = 0 if args.video_game == "first" else int(np.argmax(returns))
        game, total, video = games[number], 0.0, f"{args.run}/video.mp4"
        try:
            envs = player.film(game.seed)
            frame = player.frame(envs)
            if frame is None:
                raise ValueError("its render() returns None")
        except Exception as error:  # what a missing renderer raises depends on which
            sys.unraisablehook = lambda _: None  # and taking down what is half made raises again
            sys.exit(f"--capture-video: nothing renders {player.env_id} ({error}); {player.hint}")
        with imageio.get_writer(video, fps=player.fps, macro_block_size=2) as writer:
            writer.append_data(frame)
            for action in game.actions:  # the game again, as it was scored
                total += float(player.step(envs, action[None])[1][0])
                writer.append_data(player.frame(envs))
        envs.close()
        if total != game.total:
            sys.exit(f"{video}: the film's return is {total}, not the game's {game.total}")
        print(f"{video}: game {number + 1}, return {total:.2f}, {len(game.actions) + 1} frames")
