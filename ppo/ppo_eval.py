"""Scores a trained agent, and films it: whole games from the checkpoint of any script beside this.

    python ppo/ppo_eval.py runs/<run>                              # 20 games, actions sampled
    python ppo/ppo_eval.py runs/<run> --deterministic              # the most likely actions
    python ppo/ppo_eval.py runs/<run> --capture-video --video-game best
    python ppo/ppo_eval.py runs/<run> --onnx                       # leaves the policy, policy.onnx

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
#   "onnx",  # these three for --onnx
#   "onnxscript",
#   "onnxruntime",
# ]
# ///
import ctypes
import importlib.util
import io
import json
import logging
import os
import sys
from contextlib import redirect_stderr, suppress
from dataclasses import asdict, dataclass
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
    onnx: bool = False  # write the policy to policy.onnx, which then plays

    def __post_init__(self):
        if min(self.episodes, self.num_envs, self.max_steps) < 1 or self.seed < 0:
            raise ValueError("give 1 or more --episodes, --num-envs, --max-steps; a --seed from 0")
        self.run = os.path.expanduser(self.run)
        try:
            path = f"{self.run}/checkpoint.pt"
            self.checkpoint = torch.load(path, map_location="cpu", weights_only=True)
            name = self.checkpoint["format"].partition(" ")[0]  # it once had a number: "ppo 2"
            self.player = PLAYERS[name](self.checkpoint, self.deterministic)
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
    reads = ()  # attributes that the policy reads beside observations: a mask, a memory's state
    keeps = ()  # those of them that it leaves for the next step
    outputs = ("logits",)  # of the policy
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

    def policy(self, obs):
        """(M, ...), as the environment gives them -> what outputs names, (M, A) float32 each."""
        return (self.logits(obs),)

    def act(self, obs, generators):
        """Observations, (M, ...) -> (M,) int64; each game draws from its own generator."""
        probs = self.policy(torch.from_numpy(obs))[0].softmax(-1)  # (M, A)
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


def action_masks(envs, info):
    """info["action_mask"] of all environments: (N, A) bool, True where an action is possible.

    Each environment gives an array, a list or a tuple of 0 and 1 at each reset and in each step;
    ValueError if one does not.
    """
    # Gymnasium joins arrays to one; lists and tuples stay objects, one for each environment
    given = info.get("action_mask", np.array([]))
    givers = info.get("_action_mask", np.array(False))  # which environments gave one, (N,)
    masks = np.array(given.tolist(), given.dtype)
    shape = (envs.num_envs, int(envs.single_action_space.n))
    if masks.shape != shape or not givers.all() or not ((masks == 0) | (masks == 1)).all():
        found = f"{givers.sum()} of {envs.num_envs} environments gave {given}"
        raise ValueError(f'info["action_mask"] must be {shape} of 0 and 1, but {found}')
    return torch.from_numpy(masks.astype(bool))


class Masked(Discrete):
    """Plays an environment of Gymnasium's that gives masks with the networks of ppo_masked."""

    reads = ("mask",)

    def reset(self, seeds, **options):
        """As Discrete's."""
        self.envs, obs = super().reset(seeds, **options)
        return self.envs, obs

    def logits(self, obs):
        """(M, D) -> (M, A) float32; what info["action_mask"] forbids has probability 0."""
        return torch.where(self.mask, super().logits(obs), -1e8)

    def act(self, obs, generators):
        """As Discrete's."""
        self.mask = action_masks(self.envs, self.info)  # (M, A), came with obs
        return super().act(obs, generators)


class ParallelEnvs:
    """E environments of PettingZoo's Parallel API with K agents each, stepped as one.

    An agent is absent before it comes and after the step in which it leaves: its observation and
    reward are then 0, and it counts as terminated.
    """

    def __init__(self, envs):
        self.envs = envs
        self.agents = [*envs[0].possible_agents]  # K names, in the order of the columns
        self.num_agents = len(envs) * len(self.agents)  # N
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

    def reset(self, seed):
        """Resets each environment with its own seed: obs, (N, D), and who is absent, (N,) bool."""
        found = [
            ({}, env.reset(seed=x)[0], {}, {}, {}) for env, x in zip(self.envs, seed, strict=True)
        ]
        obs, _, absent, _ = self.join(found)
        return obs, absent

    def step(self, actions):
        """Actions, (N,) -> obs, (N, D), reward, terminated, truncated, (N,), and {}.

        An environment that all agents have left is reset, as in Gymnasium's NEXT_STEP mode.
        """
        found = []
        for e, chosen in enumerate(actions.reshape(len(self.envs), -1).tolist()):
            env = self.envs[e]
            if self.over[e]:
                found.append(({}, env.reset()[0], {}, {}, {}))
            else:
                by_agent = dict(zip(self.agents, chosen, strict=True))
                acted = {agent: by_agent[agent] for agent in env.agents}
                found.append((acted, *env.step(acted)[:4]))
        return *self.join(found), {}

    def join(self, found):
        """Joins the dictionaries of all environments to obs, reward, terminated and truncated.

        found: for each environment, who acted, then observations, rewards and flags by agent.
        """
        obs = np.zeros((self.num_agents, *self.single_observation_space.shape), np.float32)
        reward = np.zeros(self.num_agents)
        terminated = np.ones(self.num_agents, bool)
        truncated = np.zeros(self.num_agents, bool)
        for e, (acted, seen, rewards, terminations, truncations) in enumerate(found):
            for k, agent in enumerate(self.agents):
                i = e * len(self.agents) + k
                there = agent in self.envs[e].agents
                # subtle: who neither acted nor is there is absent, even if the environment gives
                # rewards and flags for all possible agents, as it may do for a team
                if agent not in acted and not there:
                    continue
                if seen.get(agent) is not None:
                    obs[i] = gym.spaces.flatten(self.obs_space, seen[agent])
                reward[i : i + 1] = rewards.get(agent, 0.0)  # a number, or an array of one
                truncated[i] = truncations.get(agent, False)
                left = not there and not truncated[i]  # at times without a flag
                terminated[i] = terminations.get(agent, False) or left
                # zeros in its place would be acted on, or bootstrap
                assert terminated[i] or seen.get(agent) is not None, f"{agent} gave no observation"
        # environments that all agents have left, (E,)
        self.over = (terminated | truncated).reshape(len(self.envs), -1).all(1)
        return obs, reward, terminated, truncated

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
        module = importlib.import_module(self.env_id)
        kwargs = self.env_kwargs | options
        envs = ParallelEnvs([module.parallel_env(**kwargs) for _ in seeds])
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

    outputs = "mean", "std"
    actor = "actor_mean"
    last = "actor_logstd"

    def __init__(self, checkpoint, deterministic):
        super().__init__(checkpoint, deterministic)
        mean, var, _ = checkpoint["obs_rms"]
        self.mean = torch.tensor(mean, dtype=torch.float64)  # (D,)
        self.std = (torch.tensor(var, dtype=torch.float64) + 1e-8).sqrt()

    def policy(self, obs):
        """As Discrete's; the networks see what obs_rms scales."""
        mean = self.logits(((obs.double() - self.mean) / self.std).clamp(-10.0, 10.0))
        return mean, self.weights["actor_logstd"].exp().expand_as(mean)

    def act(self, obs, generators):
        """(M, D) -> (M, A) float32, clipped to what the space allows."""
        action, std = self.policy(torch.from_numpy(obs))
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
    """The LSTM of a script with _lstm in its name, zero at a game's start."""

    done, lstm = False, "lstm"
    reads = keeps = ("lstm_state",)  # (2, M, H)

    def reset(self, seeds, **options):
        """As the simulator's."""
        size = self.weights[f"{self.lstm}.from_h.weight"].shape[1]
        self.lstm_state = torch.zeros(2, len(seeds), size)
        return super().reset(seeds, **options)

    def remember(self, hidden):
        """(M, D) -> (M, H), and the state on to the next step."""
        names = "from_x.weight", "from_h.weight", "from_x.bias", "from_h.bias"
        weights = (self.weights[f"{self.lstm}.{name}"] for name in names)
        self.lstm_state = torch.stack(torch.lstm_cell(hidden, tuple(self.lstm_state), *weights))
        return self.lstm_state[0]

    def act(self, obs, generators):
        """As the simulator's; after a life's last step the state is zero."""
        actions = super().act(obs, generators)
        self.lstm_state = self.lstm_state * ~torch.as_tensor(self.done).unsqueeze(-1)
        return actions


class PartlySeen:
    """Plays an environment of Gymnasium's, from whose observations --hide keeps entries."""

    def __init__(self, checkpoint, deterministic):
        super().__init__(checkpoint, deterministic)
        self.hide = checkpoint["args"]["hide"]
        if self.hide is None:
            self.hide = {"CartPole-v1": (1, 3), "Pendulum-v1": (2,)}.get(self.env_id, ())

    def policy(self, obs):
        """(M, D and the hidden) -> as the simulator's."""
        return super().policy(obs[:, np.delete(np.arange(obs.shape[1]), self.hide)])


class Recurrent(PartlySeen, Memory):
    """The networks of ppo_lstm and ppo_continuous_action_lstm."""

    def __init__(self, checkpoint, deterministic):
        super().__init__(checkpoint, deterministic)
        self.lstm = f"{self.actor}.lstm"

    def logits(self, obs):
        """(M, D) -> (M, A) float32."""
        names = "layer.weight", "layer.bias", "head.weight", "head.bias"
        w1, b1, w2, b2 = (self.weights[f"{self.actor}.{name}"] for name in names)
        return F.linear(self.remember(F.linear(obs.float(), w1, b1).tanh()), w2, b2)


class DiscreteLSTM(Recurrent, Discrete):
    """Plays an environment of Gymnasium's with the networks of ppo_lstm."""

    last = "actor.head.bias"


class ContinuousLSTM(Recurrent, Continuous):
    """Plays an environment of Gymnasium's with the networks of ppo_continuous_action_lstm."""


class DiscreteAttention(PartlySeen, Discrete):
    """Plays an environment of Gymnasium's with the network of ppo_trxl."""

    reads = keeps = "window", "ages"  # (M, L, layers, H), rows before; (M,), how many are a game's
    last = "actor.bias"

    def reset(self, seeds, **options):
        """As Discrete's; there are no rows before a game's first one."""
        lag = self.weights["layers.0.lag"]  # (L + 1, H)
        layers = sum(key.endswith(".lag") for key in self.weights)
        self.window = torch.zeros(len(seeds), len(lag) - 1, layers, lag.shape[1])
        self.ages = torch.zeros(len(seeds), dtype=torch.int64)
        return super().reset(seeds, **options)

    def linear(self, name, x):
        """x by the weight and bias of that name."""
        return F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def logits(self, obs):
        """(M, D) -> (M, A) float32; and the row to those before it."""
        x, added = self.linear("encoder", obs.float()).tanh(), []
        other = torch.arange(self.window.shape[1], -1, -1) > self.ages[:, None]  # (M, L + 1)
        for i in range(self.window.shape[2]):
            added.append(x)
            name, rows = f"layers.{i}", torch.cat([self.window[:, :, i], x[:, None]], 1)
            query = self.linear(f"{name}.query", x).unflatten(1, (-1, x.shape[1]))
            scores = query @ (rows + self.weights[f"{name}.lag"]).mT / x.shape[1] ** 0.5
            weights = scores.masked_fill(other[:, None], -torch.inf).softmax(2)  # (M, heads, L + 1)
            norm = self.weights[f"{name}.norm.weight"], self.weights[f"{name}.norm.bias"]
            read = F.layer_norm(weights @ rows - x[:, None], x.shape[1:], *norm, 1e-2)
            x = x + self.linear(f"{name}.out", read.flatten(1))
            x = x + self.linear(f"{name}.hidden", x).relu()
        self.window = torch.cat([self.window, torch.stack(added, 1)[:, None]], 1)[:, 1:]
        self.ages = self.ages + 1
        return self.linear("actor", x)


class AtariLSTM(Memory, Atari):
    """Plays an Atari game in EnvPool with the networks of ppo_atari_envpool_lstm."""

    stack_num = 1


class Exported(torch.nn.Module):
    """A player's policy in an ONNX file, which is written at the first step and plays from then on.

    Inputs: obs, (rows, ...), as the environment gives them, and what the policy reads beside them:
    mask, (rows, A) bool, or lstm_state, (2, rows, H), or window, (rows, L, layers, H), and ages,
    (rows,) int64, all zeros at a game's start. Outputs: logits, or mean and std, (rows, A) float32,
    and next_lstm_state, or next_window and next_ages.
    """

    def __init__(self, player, path, progress):
        super().__init__()
        self.player, self.path, self.progress, self.session = player, path, progress, None
        self.policy, player.policy = player.policy, self.play
        self.inputs = ["obs", *player.reads]

    def forward(self, inputs):
        """The policy as a function of all that it reads, for the exporter."""
        for name, x in zip(self.player.reads, inputs[1:], strict=True):
            setattr(self.player, name, x)
        outputs = self.policy(inputs[0])
        return *outputs, *(getattr(self.player, name) for name in self.player.keeps)

    def write(self, inputs):
        """Writes the file, and opens it."""
        import onnxruntime

        rows = torch.export.Dim("rows")
        axes = [1 if name == "lstm_state" else 0 for name in self.inputs]  # of the rows
        # subtle: twice the rows, as of a single one the exporter makes a constant
        inputs = [torch.cat([x, x], axis) for x, axis in zip(inputs, axes, strict=True)]
        # it warns of old names within PyTorch, and that there is no torchvision: that is harmless,
        # and a wrong file would show in the returns
        logging.getLogger("torch").setLevel(logging.ERROR)
        with redirect_stderr(io.StringIO()):
            program = torch.onnx.export(
                self.eval(),
                (inputs,),
                input_names=self.inputs,
                output_names=[*self.player.outputs, *(f"next_{x}" for x in self.player.keeps)],
                dynamic_shapes=([{axis: rows} for axis in axes],),
                verbose=False,
            )
        for node in program.model.graph:
            node.metadata_props.clear()  # lines and folders of this machine's files
        program.save(self.path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()  # else one for each core
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = onnxruntime.InferenceSession(self.path, options)

    def play(self, obs):
        """As the player's policy; the agents of a game are rows."""
        games = obs.shape[: 2 if isinstance(self.player, SharedPolicy) else 1]
        inputs = [obs.flatten(0, len(games) - 1)]
        inputs += [getattr(self.player, name) for name in self.player.reads]
        try:
            if self.session is None:
                self.write(inputs)
        except Exception as error:  # of a network that it cannot trace, of a full disk
            self.progress.close()
            text, *_ = str(error.__cause__ or error).strip().splitlines() or [repr(error)]
            fail("--onnx", f"{self.path} cannot be written: {text}")
        fed = {name: x.numpy() for name, x in zip(self.inputs, inputs, strict=True)}
        outputs = [torch.from_numpy(x) for x in self.session.run(None, fed)]
        for name in reversed(self.player.keeps):
            setattr(self.player, name, outputs.pop())
        return [x.unflatten(0, games) for x in outputs]


PLAYERS = {  # by a checkpoint's format
    "ppo": Discrete,
    "ppo_masked": Masked,
    "ppo_pettingzoo": SharedPolicy,
    "ppo_lstm": DiscreteLSTM,
    "ppo_trxl": DiscreteAttention,
    "ppo_rnd": Discrete,
    "ppo_atari": AtariALE,
    "ppo_atari_envpool": Atari,
    "ppo_atari_envpool_lstm": AtariLSTM,
    "ppo_continuous_action": Continuous,
    "ppo_continuous_action_envpool": ContinuousEnvPool,
    "ppo_continuous_action_warp": Continuous,  # Gymnasium's task of that name, in MuJoCo on the CPU
    "ppo_continuous_action_lstm": ContinuousLSTM,
}


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
        progress.close()
        missing = isinstance(error, ImportError | gym.error.DependencyNotInstalled)
        what = "needs what is not installed" if missing else "is not the environment of training"
        text = " ".join(str(error).split()) or type(error).__name__
        fail("run", f"{player.env_id} {what}: {text}")
    games = [Game(seed, []) for seed in seeds]
    running = set(range(len(seeds)))
    while running:
        try:
            obs, rewards, over = player.step(envs, actions)
        except SystemExit as error:  # its status may be 0, as of a success
            raise RuntimeError("an environment ended the process") from error
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
    args = tyro.cli(Args)
    player, games = args.player, []
    needs = ["onnx", "onnxscript", "onnxruntime"] if args.onnx else []
    if missing := [name for name in needs if importlib.util.find_spec(name) is None]:
        fail("--onnx", f"not installed: {', '.join(missing)} (pip install {' '.join(missing)})")
    # a game's seed starts its environment and draws its actions; no game of training has it
    seeds = np.random.SeedSequence(args.seed, spawn_key=(1,)).generate_state(args.episodes) >> 1
    with tqdm(total=args.episodes, unit="game") as progress:
        if args.onnx:
            Exported(player, f"{args.run}/policy.onnx", progress)
        for start in range(0, args.episodes, args.num_envs):
            some = seeds[start : start + args.num_envs].tolist()
            games += play(player, some, progress, args.max_steps)

    returns = [game.total for game in games]
    with np.errstate(invalid="ignore"):  # of inf and nan
        mean, std, median = (float(f(returns)) for f in (np.mean, np.std, np.median))
    cut = sum(game.cut for game in games)
    result = {
        "env_id": player.env_id,
        "global_step": args.checkpoint["global_step"],
        **asdict(args),
        "mean": mean,
        "std": std,
        "median": median,
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
    print(f"mean {mean:.2f}, std {std:.2f}, median {median:.2f}")
    if cut:
        print(f"{cut} of {len(games)} games were cut after {args.max_steps} steps (--max-steps);")
        print("their returns count as they were")

    if args.capture_video:
        best = int(np.argmax(np.nan_to_num(returns, nan=-np.inf)))
        number = best if args.video_game == "best" else 0
        game, total, video = games[number], 0.0, f"{args.run}/video.mp4"
        try:
            envs = player.film(game.seed)
            frame = player.frame(envs)
            if frame is None:
                raise ValueError("its render() returns None")
        except Exception as error:  # what a missing renderer raises depends on which
            sys.unraisablehook = lambda _: None  # and taking down what is half made raises again
            sys.exit(f"--capture-video: nothing renders {player.env_id} ({error}); {player.hint}")
        part = f"{args.run}/video.part.mp4"
        try:
            with imageio.get_writer(part, fps=player.fps, macro_block_size=2) as writer:
                writer.append_data(frame)
                for action in game.actions:  # the game again, as it was scored
                    total += float(player.step(envs, action[None])[1][0])
                    writer.append_data(player.frame(envs))
        except Exception as error:  # a frame that is no array, or of another size than the first
            if os.path.exists(part):
                os.remove(part)
            sys.exit(f"--capture-video: no film of {player.env_id}: {error}")
        os.replace(part, video)
        envs.close()
        if not np.array_equal(total, game.total, equal_nan=True):
            sys.exit(f"{video}: the film's return is {total}, not the game's {game.total}")
        print(f"{video}: game {number + 1}, return {total:.2f}, {len(game.actions) + 1} frames")
