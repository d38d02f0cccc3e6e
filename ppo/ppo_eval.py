"""Scores a trained agent, and films it: whole games from the checkpoint of any script beside this.

    python ppo/ppo_eval.py runs/<run>                              # 20 games, actions sampled
    python ppo/ppo_eval.py runs/<run> --deterministic              # the most likely actions
    python ppo/ppo_eval.py runs/<run> --capture-video --video-game best

Atari is played with all lives and unclipped rewards, MuJoCo with the statistics that normalised the
observations in training, frozen. Leaves eval.json, and on request a video, beside the checkpoint.
Shapes: M games side by side, A actions, D numbers of an observation.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch>=2.11,<2.14",
#   "envpool>=1.2.5",
#   "gymnasium[mujoco]>=1.2",
#   "numpy>=2",
#   "tyro",
#   "tqdm",
#   "imageio",
#   "imageio-ffmpeg",
# ]
# ///
import io
import itertools
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Annotated, Literal, NoReturn

# kept for filming: where this renderer is missing, mujoco could not even be imported
MUJOCO_GL = os.environ.pop("MUJOCO_GL", "egl")

import gymnasium as gym
import numpy as np
import tyro
from tqdm import tqdm

import torch
import torch.nn.functional as F

FORMAT = 1  # of the checkpoints that this file reads
LIBRARIES = ("torch", "envpool", "gymnasium", "mujoco", "numpy")
NO_RENDERER = (
    "MuJoCo found no off-screen renderer: on Debian, apt install libegl1 (MUJOCO_GL=egl, the "
    "default) or libosmesa6 (MUJOCO_GL=osmesa)"
)
gym.logger.min_level = gym.logger.ERROR  # v4 is out of date, but what the published tables used


@dataclass
class Args:
    run: Annotated[str, tyro.conf.Positional]
    """run folder, or its checkpoint.pt"""
    episodes: int = 20
    """games to play"""
    deterministic: bool = False
    """take the most likely action each time; --no-deterministic samples, as training does"""
    seed: int = 1
    """seed of the games and of the sampling, 0 or more"""
    num_envs: int = 8
    """games side by side"""
    capture_video: bool = False
    """film one of the games in true colour: video.mp4"""
    video_game: Literal["first", "best"] = "first"
    """which one; read with --capture-video"""


@dataclass
class Game:
    """One game from its first observation to its last."""

    seed: int
    actions: list
    total: float = 0.0
    """return: the sum of the raw rewards"""
    replayed: float | None = None
    """the return when it was played again for a film"""

    @property
    def length(self) -> int:
        return len(self.actions)


def fail(name: str, value: object, hint: str, status: int = 2) -> NoReturn:
    """Ends the program: one line on stderr and the exit status."""
    print(f"error: {name} {value}: {hint}", file=sys.stderr)
    sys.exit(status)


def load_checkpoint(path: str) -> tuple[str, dict]:
    """The file of a run's folder, or the file itself, and the checkpoint in it, on the CPU."""
    file = os.path.join(path, "checkpoint.pt") if os.path.isdir(path) else path
    try:
        with open(file, "rb") as opened:
            data = io.BytesIO(opened.read())
    except OSError as error:
        fail("run", path, f"give a run's folder or its checkpoint ({error.strerror}: {file})")
    try:
        checkpoint = torch.load(data, map_location="cpu", weights_only=True)
    except Exception:  # what a file that is none makes torch.load raise depends on its bytes
        fail("run", path, "not a whole checkpoint, or one that holds more than plain values")
    if not isinstance(checkpoint, dict) or checkpoint.get("pair") not in PLAYERS:
        fail("run", path, "not a checkpoint of " + " or ".join(PLAYERS))
    number = checkpoint.get("format")
    if number != FORMAT:
        other = "a newer" if isinstance(number, int) and number > FORMAT else "another"
        fail("run", path, f"of {other} format, {number}; this script reads {FORMAT}")
    return file, checkpoint


def nature_cnn(weights: dict, obs: torch.Tensor) -> torch.Tensor:
    """The actor of ppo_atari_envpool: obs (M, 4, 84, 84) uint8 -> logits (M, A) float32."""
    hidden = obs.float().div_(255.0)
    for layer, stride in ((0, 4), (2, 2), (4, 1)):
        weight, bias = weights[f"network.{layer}.weight"], weights[f"network.{layer}.bias"]
        hidden = F.relu(F.conv2d(hidden, weight, bias, stride))
    hidden = F.linear(hidden.flatten(1), weights["network.7.weight"], weights["network.7.bias"])
    return F.linear(F.relu(hidden), weights["actor.weight"], weights["actor.bias"])


def gaussian_mlp(weights: dict, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The actor of ppo_continuous_action: obs (M, D) float32 -> mean (M, A), std (1, A)."""
    hidden = obs
    for layer in (0, 2, 4):
        if layer > 0:
            hidden = torch.tanh(hidden)
        weight, bias = weights[f"actor_mean.{layer}.weight"], weights[f"actor_mean.{layer}.bias"]
        hidden = F.linear(hidden, weight, bias)
    return hidden, weights["actor_logstd"].exp()


class Atari:
    """Plays an Atari game in EnvPool: a list of actions is (length,) ints."""

    fps = 15  # of 60 frames a second, the agent sees every fourth

    def __init__(self, checkpoint: dict, deterministic: bool):
        self.env_id, self.weights = checkpoint["args"]["env_id"], checkpoint["agent"]
        self.deterministic = deterministic

    def make(self, seeds: list[int], **options):
        import envpool

        return envpool.make(
            self.env_id,
            env_type="gym",
            num_envs=len(seeds),
            episodic_life=False,
            reward_clip=False,
            seed=seeds,
            **options,
        )

    def reset(self, envs, seeds: list[int]) -> np.ndarray:
        return envs.reset()[0]  # the seeds are make's

    def act(self, obs: np.ndarray, generators: list[torch.Generator]) -> np.ndarray:
        """(M, 4, 84, 84) uint8 -> (M,) int64."""
        probs = nature_cnn(self.weights, torch.from_numpy(obs)).softmax(-1)  # (M, A)
        if not self.deterministic:
            size = probs.shape[1:]
            noise = [torch.empty(size).exponential_(generator=g) for g in generators]
            probs = probs / torch.stack(noise)
        return probs.argmax(-1).numpy()

    def film(self, game: Game) -> Iterator[np.ndarray]:
        """The game played again: frames (420, 320, 3) uint8, twice the console's.

        Leaves in game.replayed the return of what was filmed.
        """
        envs = self.make([game.seed], render_mode="rgb_array")
        envs.reset()
        yield envs.render()[0].repeat(2, axis=0).repeat(2, axis=1)
        game.replayed = 0.0
        for action in game.actions:
            game.replayed += float(envs.step(np.array([action]))[1][0])
            yield envs.render()[0].repeat(2, axis=0).repeat(2, axis=1)
        envs.close()


class Continuous:
    """Plays an environment of Gymnasium's: a list of actions is (length, A) floats."""

    fps = 30  # where the environment does not say

    def __init__(self, checkpoint: dict, deterministic: bool):
        self.env_id, self.weights = checkpoint["args"]["env_id"], checkpoint["agent"]
        self.deterministic = deterministic
        stats = checkpoint["normalizer"]["obs"]
        self.mean, self.std = stats["mean"].numpy(), np.sqrt(stats["var"].numpy() + 1e-8)  # (D,)

    def make_env(self, **options) -> gym.Env:
        env = gym.make(self.env_id, disable_env_checker=True, **options)
        if isinstance(env.observation_space, gym.spaces.Dict):
            env = gym.wrappers.FlattenObservation(env)
        return env

    def make(self, seeds: list[int]):
        return gym.vector.SyncVectorEnv([self.make_env] * len(seeds))

    def reset(self, envs, seeds: list[int]) -> np.ndarray:
        self.low, self.high = envs.single_action_space.low, envs.single_action_space.high
        return envs.reset(seed=seeds)[0]

    def act(self, obs: np.ndarray, generators: list[torch.Generator]) -> np.ndarray:
        """(M, D) -> (M, A) float32, clipped to what the space allows."""
        scaled = np.clip((obs - self.mean) / self.std, -10.0, 10.0).astype(np.float32)
        action, std = gaussian_mlp(self.weights, torch.from_numpy(scaled))
        if not self.deterministic:
            size = action.shape[1:]
            noise = [torch.empty(size).normal_(generator=g) for g in generators]
            action = action + std * torch.stack(noise)
        return np.clip(action.numpy(), self.low, self.high)

    def camera(self) -> dict[str, str]:
        """The camera that follows the body, in the MuJoCo models that have one."""
        env = self.make_env()
        model, mujoco = getattr(env.unwrapped, "model", None), sys.modules.get("mujoco")
        env.close()
        if mujoco is None or not isinstance(model, mujoco.MjModel):
            return {}
        found = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, "track") >= 0
        return {"camera_name": "track"} if found else {}

    def film(self, game: Game) -> Iterator[np.ndarray]:
        """The game played again: frames (height, width, 3) uint8.

        Leaves in game.replayed the return of what was filmed.
        """
        os.environ["MUJOCO_GL"] = MUJOCO_GL
        env = self.make_env(render_mode="rgb_array", **self.camera())
        self.fps = env.metadata.get("render_fps", self.fps)
        env.reset(seed=game.seed)
        try:
            frame = env.render()
        except gym.error.DependencyNotInstalled as error:
            fail("--capture-video", self.env_id, str(error), status=1)
        except Exception as error:  # what a missing library makes MuJoCo raise depends on which
            sys.unraisablehook = lambda _: None  # and taking down what is half made raises again
            fail("--capture-video", self.env_id, f"{NO_RENDERER} ({error})", status=1)
        yield frame
        game.replayed = 0.0
        for action in game.actions:
            game.replayed += float(env.step(action)[1])
            yield env.render()
        env.close()


PLAYERS: dict[str, type] = {"ppo_atari_envpool": Atari, "ppo_continuous_action": Continuous}


@torch.no_grad()
def play(player, seeds: list[int], on_end: Callable[[Game], None]) -> list[Game]:
    """One game for each seed, side by side, each to its end: games in the order of the seeds."""
    envs = player.make(seeds)
    obs = player.reset(envs, seeds)
    games = [Game(seed, []) for seed in seeds]
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    running = set(range(len(seeds)))
    while running:
        actions = player.act(obs, generators)
        obs, rewards, terminated, truncated, _ = envs.step(actions)
        for i in list(running):
            games[i].actions.append(actions[i])
            games[i].total += float(rewards[i])
            if terminated[i] or truncated[i]:
                running.remove(i)
                on_end(games[i])
    envs.close()
    return games


def replace_file(path: str, data: bytes) -> None:
    """Puts data at path in one step."""
    try:
        with open(f"{path}.tmp", "wb") as file:
            file.write(data)
        os.replace(f"{path}.tmp", path)
    except OSError as error:
        with suppress(OSError):
            os.remove(f"{path}.tmp")
        fail("cannot write", path, str(error.strerror), status=1)


if __name__ == "__main__":
    args = tyro.cli(Args)
    if args.episodes < 1 or args.num_envs < 1:
        fail("--episodes, --num-envs", (args.episodes, args.num_envs), "give 1 or more")
    if not 0 <= args.seed < 2**32:
        fail("--seed", args.seed, "give a whole number from 0 to 4294967295")
    path, checkpoint = load_checkpoint(args.run)
    try:
        player = PLAYERS[checkpoint["pair"]](checkpoint, args.deterministic)
    except KeyError as error:
        fail("run", args.run, f"a checkpoint without {error}")
    # a game's seed starts its environment and draws its actions; no game of training has it
    seeds = np.random.SeedSequence(args.seed, spawn_key=(1,)).generate_state(args.episodes) >> 1
    seeds = seeds.tolist()

    games = []
    with tqdm(total=args.episodes, unit="game") as progress:
        for start in range(0, args.episodes, args.num_envs):
            chunk = seeds[start : start + args.num_envs]
            try:
                games += play(player, chunk, on_end=lambda game: progress.update())
            except (gym.error.Error, ImportError) as error:
                fail("run", args.run, f"{player.env_id} cannot be made: {error}", status=1)

    returns = [game.total for game in games]
    result = {
        "checkpoint": path,
        "env_id": checkpoint["args"]["env_id"],
        "global_step": checkpoint["global_step"],
        **asdict(args),
        "mean": statistics.fmean(returns),
        "std": statistics.pstdev(returns),
        "median": statistics.median(returns),
        "returns": returns,
        "lengths": [game.length for game in games],
        "versions": {name: version(name) for name in LIBRARIES if name in sys.modules},
    }
    way = "most likely actions" if args.deterministic else "sampled actions"
    print(f"{result['env_id']} after {result['global_step']:,} steps of training, {way}")
    print(f"{'game':>6}{'return':>12}{'length':>9}")
    for number, game in enumerate(games, 1):
        print(f"{number:>6}{game.total:>12.2f}{game.length:>9}")
    print(f"mean {result['mean']:.2f}, std {result['std']:.2f}, median {result['median']:.2f}")
    folder = os.path.dirname(path) or "."
    replace_file(os.path.join(folder, "eval.json"), json.dumps(result, indent=2).encode())

    if args.capture_video:
        import imageio.v2 as imageio
        import imageio_ffmpeg

        number = 0 if args.video_game == "first" else int(np.argmax(returns))
        game, frames = games[number], 0
        video, unfinished = (os.path.join(folder, name) for name in ("video.mp4", ".video.mp4"))
        film = player.film(game)
        first = next(film)
        try:
            with imageio.get_writer(unfinished, fps=player.fps, macro_block_size=2) as writer:
                for frame in itertools.chain([first], film):
                    writer.append_data(frame)
                    frames += 1
            whole = imageio_ffmpeg.count_frames_and_secs(unfinished)[0] == frames
        except (OSError, RuntimeError) as error:
            with suppress(OSError):
                os.remove(unfinished)
            fail("cannot write", video, str(error).strip().partition("\n")[0], status=1)
        if not whole or game.replayed != game.total:
            fail("cannot write", video, "the film is not the game that was scored", status=1)
        os.replace(unfinished, video)
        print(f"{video}: game {number + 1}, return {game.total:.2f}, {frames} frames")
