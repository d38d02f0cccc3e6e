"""Scores, films and exports what a run has learned, in whole games by the script that trained.

    python ppo/ppo_eval.py runs/<run>                   # 20 games; --deterministic: likeliest moves
    python ppo/ppo_eval.py runs/<run> --capture-video   # films the first, or --video-game best
    python ppo/ppo_eval.py runs/<run> --onnx            # writes policy.onnx, which then plays

A policy is three names of script.py, which a run keeps: make_envs, Agent and act. What main does
beside them is training and is not played, so training's own mean return stands beside the score.
Atari is played to the last life, with raw rewards. In a program: load(). R: rows, 1 or K agents.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch>=2.11,<2.16", "numpy>=2", "tyro>=1.0.17", "tqdm", "tensorboard", "minatar",
#   "gymnasium[classic-control,mujoco]>=1.3", "ale-py>=0.12", "pettingzoo>=1.27", "mpe2>=1.1",
#   "gymnasium[box2d]>=1.3; python_version < '3.14'", "imageio", "imageio-ffmpeg",
#   "envpool>=1.2.5; sys_platform != 'darwin' or platform_machine == 'arm64'",
#   "onnx", "onnxscript", "onnxruntime",  # for --onnx
# ]
# ///
import ctypes
import importlib.util
import inspect
import json
import os
import random
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Literal

import gymnasium as gym
import imageio.v2 as imageio
import numpy as np
import tyro
from tqdm import tqdm

import torch


@dataclass
class Args:
    run: tyro.conf.Positional[str]  # folder of a run, with a checkpoint.pt in it
    script: str | None = None  # the script that plays; by default script.py in that folder
    episodes: int = 20  # games to play
    deterministic: bool = False  # take the most likely actions; else they are sampled
    seed: int = 1  # of the games and of the sampling, 0 or more
    capture_video: bool = False  # film one of the games: video.mp4
    video_game: Literal["first", "best"] = "first"  # which game to film
    max_steps: int = 27_000  # after which a game is cut; Atari's own limit
    onnx: bool = False  # write the policy to policy.onnx, which then plays

    def __post_init__(self):
        if min(self.episodes, self.max_steps) < 1 or self.seed < 0:
            raise ValueError("give 1 or more --episodes and --max-steps; a --seed from 0")


def load(run, script=None):
    """The policy of a run's folder, by its script.py or the script that is named; or ValueError."""
    path = script or os.path.join(run, "script.py")
    sys.path.append(os.path.dirname(os.path.abspath(path)))  # for what lies beside it
    try:
        checkpoint = torch.load(f"{run}/checkpoint.pt", map_location="cpu", weights_only=True)
        if 0 in checkpoint.get("adam", ()):  # moments by numbers, not by names
            raise ValueError("a run of version 0.2; score it by that version's ppo_eval")
        return Policy(checkpoint, path)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{path}: {type(error).__name__}: {error} (or --script PATH)") from error


class Policy(torch.nn.Module):
    """A run's script, executed, with its Agent as it was trained. act(obs) is for one environment,
    reset() begins a game; args: the run's, for one environment; space: that of actions."""

    def __init__(self, checkpoint, path):
        super().__init__()
        self.checkpoint, self.path, self.deterministic = checkpoint, path, False
        spec = importlib.util.spec_from_file_location("script", path)
        sys.modules["script"] = self.script = script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(script)  # its main does not run
        known = script.Args.__dataclass_fields__
        self.args = script.Args(**{k: x for k, x in checkpoint["args"].items() if k in known})
        self.args.num_envs, script.args, script.device = 1, self.args, torch.device("cpu")
        self.args.async_envs = False  # of a patch: a game needs no process of its own
        self.playing, self.filming = {}, {"render_mode": "rgb_array"}  # beside --env-kwargs
        self.stands_in = self.args.env_id in getattr(script, "TASKS", ())
        envs = self.make_envs(0, self.playing)
        made = getattr(envs, "unwrapped", envs)
        env = getattr(made, "envs", [made])[0]
        self.in_agents, self.in_envpool = hasattr(envs, "num_agents"), hasattr(made, "async_reset")
        self.in_ale = type(made).__module__.startswith("ale_py")
        if self.in_ale:  # it does not render, but what it shows can have colours
            self.playing = {"life_loss_info": False}
            self.filming = {"img_height": 210, "img_width": 160, "grayscale": False, "stack_num": 1}
        elif hasattr(getattr(env, "unwrapped", env), "camera_name"):  # MuJoCo's
            self.filming["camera_name"] = "track"
        self.space = made.single_action_space
        self.obs_space = getattr(envs, "obs_space", made.single_observation_space)
        if isinstance(env, gym.wrappers.FlattenObservation):
            self.obs_space = env.env.observation_space
        self.agent = self.call(script.Agent, envs).requires_grad_(False).eval()
        self.agent.load_state_dict(checkpoint["agent"])
        self.agent.register_forward_hook(lambda agent, inputs, found: self.watch(found))
        if policy := getattr(self.agent, "policy", None):
            self.agent.policy = lambda *inputs: self.watch(policy(*inputs))
        self.memory = [x for x in inspect.signature(script.act).parameters if x.endswith("state")]
        self.reset(seed=0)

    def call(self, function, *given, **known):
        """Calls a function of the script's, with what its other parameters name."""
        known |= {"args": self.args, "device": self.script.device}
        names = [*inspect.signature(function).parameters][len(given) :]
        return function(*given, **{name: known[name] for name in names if name in known})

    def make_envs(self, seed, more):
        """The script's own environments, a single one, not reset; more: arguments of it."""
        if self.stands_in:
            assert self.args.env_kwargs == "{}", "Gymnasium's task has other --env-kwargs"
            return gym.wrappers.vector.ClipAction(gym.make_vec(self.args.env_id, 1, **more))
        given = json.loads(self.checkpoint["args"].get("env_kwargs", "{}"))
        self.args.env_kwargs = json.dumps(given | more)
        return self.call(self.script.make_envs, self.args, seeds=np.array([seed]))

    def watch(self, found):
        """Keeps the distribution that a network gives; deterministic, it samples its mode."""
        for probs in found if isinstance(found, tuple) else (found,):
            if hasattr(type(probs), "sample"):
                self.probs = probs
                if self.deterministic and hasattr(type(probs), "mode"):
                    mode = probs.mode if callable(probs.mode) else lambda *_, x=probs.mode: x
                    probs.sample = probs.rsample = mode
        return found

    def reset(self, seed=None, rows=1):
        """Begins a game with an empty memory; with a seed, sampling begins anew as well."""
        self.noise = self.noise if seed is None else torch.Generator().manual_seed(seed).get_state()
        state = self.agent.initial_state(rows) if self.memory else ()
        self.state = state if isinstance(state, tuple) else (state,)

    def act(self, obs, deterministic=True):
        """The action for one observation, as make_envs gives it or, where it flattens one, raw."""
        if isinstance(obs, dict | tuple | int | np.integer):
            obs = gym.spaces.flatten(self.obs_space, obs)
        (action,) = self.act_rows(np.asarray(obs)[None], np.zeros(1), deterministic)
        return action.clip(self.space.low, self.space.high) if action.dtype.kind == "f" else action

    def act_rows(self, obs, dones, deterministic):
        """Actions for observations (R, ...); dones: (R,), where an episode's last one is."""
        self.deterministic, before = deterministic, self.noise
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(before)
            dones = torch.as_tensor(dones).float()
            action, *self.state = self.step(torch.as_tensor(obs), dones, *self.state)
            self.noise = torch.get_rng_state()
        if deterministic and not torch.equal(before, self.noise):
            raise ValueError("act samples from what has no mode, or what agent does not give")
        return np.asarray(action)

    def step(self, obs, dones, *state):
        """What act gives for observations as main stores them: actions, and the memory."""
        image = obs.dim() > 2 and obs.dtype in (torch.uint8, torch.bool)
        obs = obs if image else obs.float()
        memory = {self.memory[0]: state if len(state) > 1 else state[0]} if state else {}
        found = self.call(self.script.act, self.agent, obs, dones=dones, **memory)
        action, *_, after = found if isinstance(found, tuple) else (found, None)
        return action, *(after if len(state) > 1 else [after] * len(state))

    def forward(self, inputs):
        """What an ONNX file computes: the distribution's tensors, and the memory."""
        obs, *state = inputs
        _, *state = self.step(obs, torch.zeros(obs.shape[0]), *state)
        return *(x for x in vars(self.probs).values() if torch.is_tensor(x)), *state


class Game:
    """A game by a seed of its own. dones: (R,), where obs is an episode's last; there: who acts."""

    def __init__(self, policy, seed, more):
        for start in (random.seed, np.random.seed, torch.manual_seed):  # environments draw from any
            start(seed)
        self.policy, self.seed, self.actions, self.over = policy, seed, [], False
        self.envs = envs = policy.make_envs(seed, more)
        seeded = inspect.signature(envs.reset).parameters and not policy.in_envpool
        found = envs.reset(seed=[seed] if policy.in_agents else seed) if seeded else envs.reset()
        self.obs, self.info = found if isinstance(found, tuple) else (found, {})
        self.there = ~self.info if policy.in_agents else np.ones(1, bool)
        self.dones, self.took_part, self.returns = ~self.there, self.there & False, 0.0
        self.on_atari = (policy.in_envpool or policy.in_ale) and "lives" in self.info

    def step(self, action):
        """Takes actions, (R, ...). total: the return, or the mean over agents that took part."""
        self.actions.append(action)
        sent = torch.from_numpy(action) if torch.is_tensor(self.obs) else action
        self.obs, reward, terminated, truncated, *info = self.envs.step(sent)
        before, self.info = self.info, info[0] if info else {}
        over = dones = np.asarray(terminated | truncated)
        if self.on_atari and self.policy.in_envpool:  # where terminated may be a lost life
            reward = self.info["reward"]  # not clipped
            over = (self.info["terminated"] > 0) | truncated
            # no-ops after a lost life can end a game, too: lives then rise at an autoreset step
            over |= self.dones & (self.info["lives"] > before["lives"])
        elif self.on_atari:  # in ALE no life ends a game, but it ends the memory
            dones = dones | (self.info["lives"] < before["lives"])
        self.returns += np.asarray(reward, float) * self.there
        self.took_part |= self.there
        self.total = float(self.returns.sum() / max(1, self.took_part.sum()))
        self.dones, self.there, self.over = dones, ~over, bool(over.all())

    def frame(self):
        """What is to be seen, (height, width, 3) uint8."""
        camera = {"camera_id": 0} if self.policy.in_envpool else {}  # MuJoCo's, of the body
        if self.policy.in_ale:
            frame = self.obs[0, 0]
        elif self.policy.in_agents:
            frame = self.envs.envs[0].render()
        else:
            frame = self.envs.unwrapped.render(**camera)[0]
        if frame.shape[:2] == (10, 10) and frame.dtype == float:  # MinAtar's
            frame = np.rint(255 * frame).astype(np.uint8).repeat(20, 0).repeat(20, 1)
        return frame.repeat(2, 0).repeat(2, 1) if self.on_atari else frame


def play(policy, seed, deterministic, max_steps):
    """A game to its end, or for so many steps."""
    game = Game(policy, seed, policy.playing)
    policy.reset(seed, rows=len(game.there))
    while not game.over and len(game.actions) < max_steps:
        game.step(policy.act_rows(game.obs, game.dones, deterministic))
    with suppress(Exception):
        game.envs.close()
    return game


def film(policy, game, path):
    """Plays a game once more, by its actions, and films it; SystemExit says why it cannot."""
    os.environ |= {"SDL_VIDEODRIVER": "dummy", "MUJOCO_GL": "egl", **os.environ}  # no windows
    known = getattr(game.envs.envs[0] if policy.in_agents else game.envs, "metadata", {})
    fps = 15 if game.on_atari else known.get("render_fps", 50 if policy.in_envpool else 30)
    try:
        if policy.in_envpool and not game.on_atari:
            ctypes.CDLL("libEGL.so.1")  # OSError where it is missing: MuJoCo in EnvPool would abort
        again = Game(policy, game.seed, policy.playing | policy.filming)
        with imageio.get_writer(path, fps=fps, macro_block_size=2) as writer:
            writer.append_data(again.frame())
            for action in game.actions:
                again.step(action)
                writer.append_data(again.frame())
    except Exception as error:  # what a missing renderer raises depends on which
        why = f"({error}); on Debian, MuJoCo needs libegl1 (MUJOCO_GL=egl) or libosmesa6 (=osmesa)"
        if "rgb_array" not in known.get("render_modes", ()):
            why = "it has no render_mode rgb_array"
        sys.exit(f"--capture-video: nothing renders {policy.args.env_id}: {why}")
    if not np.array_equal(again.total, game.total, equal_nan=True):
        sys.exit(f"{path}: the film's return is {again.total}, not the game's {game.total}")


def export(policy, path):
    """Writes a policy to a file and holds that against the script; from then on the file plays."""
    import onnxruntime

    obs = np.asarray(Game(policy, 0, policy.playing).obs)[:1]
    policy.act_rows(obs, np.zeros(1), deterministic=False)
    inputs, probs, rng = [], policy.probs, np.random.default_rng(0)
    for rows in (2, 3):  # to export, as one row would be a constant, and to compare
        policy.reset(rows=rows)
        state = [(9 * torch.rand(x.shape)).to(x) for x in policy.state]
        inputs.append([torch.from_numpy(rng.permuted(obs.repeat(rows, 0), axis=-1)), *state])
    rows, pairs = torch.export.Dim("rows"), zip(*inputs, strict=True)
    axes = [{i: rows for i, n in enumerate(x.shape) if n < y.shape[i]} for x, y in pairs]
    heads = [name for name, x in vars(probs).items() if torch.is_tensor(x)]
    assert heads, f"a {type(probs).__name__} has no tensors"
    kept = [*inspect.signature(policy.agent.forward).parameters][1 : len(axes)]
    names = {"input_names": ["obs", *kept], "output_names": heads + [f"next_{x}" for x in kept]}
    names["verbose"] = False
    policy.deterministic = True  # the file draws nothing
    program = torch.onnx.export(policy.eval(), (inputs[0],), dynamic_shapes=(axes,), **names)
    for node in program.model.graph:
        node.metadata_props.clear()  # folders of this machine
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    policy.deterministic, expected = False, policy(inputs[1])

    def step(obs, dones, *state):
        fed = zip(session.get_inputs(), (obs, *state), strict=True)
        found = session.run(None, {node.name: x.numpy() for node, x in fed})
        found = [*map(torch.from_numpy, found)]
        vars(probs).update(zip(heads, found, strict=False))
        policy.watch(probs)
        if dones.any():
            policy.reset(rows=len(obs))
        return probs.sample(), *(policy.state if dones.any() else found[len(heads) :])

    policy.step = step
    torch.testing.assert_close(policy(inputs[1]), expected, rtol=1e-4, atol=1e-4)
    program.save(path)


if __name__ == "__main__":
    args, games = tyro.cli(Args), []
    if args.capture_video:  # MuJoCo in EnvPool looks for it when it is first used
        with suppress(OSError):
            ctypes.CDLL("libEGL.so.1", ctypes.RTLD_GLOBAL)
    gym.logger.min_level = gym.logger.ERROR  # v4 is out of date, but what the tables used
    # a game's seed starts its environment and draws its actions; no game of training has it
    seeds = np.random.SeedSequence(args.seed, spawn_key=(1,)).generate_state(args.episodes) >> 1
    try:
        policy = load(args.run, args.script)
        note = "; Gymnasium's task stands in for MuJoCo Warp's" if policy.stands_in else ""
        print(f"plays: {policy.path}{note}")
        if args.onnx:
            export(policy, f"{args.run}/policy.onnx")
        for seed in tqdm(seeds.tolist(), unit="game"):
            games.append(play(policy, seed, args.deterministic, args.max_steps))
    except SystemExit as error:  # its status may be 0, as of a success
        raise RuntimeError("an environment ended the process") from error
    except Exception as error:
        if games:  # what a later game raises is its own affair
            raise
        text = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        print(f"ppo_eval.py: error: argument run: {text}", file=sys.stderr)
        sys.exit(2)

    returns, lengths = [game.total for game in games], [len(game.actions) for game in games]
    recent, steps = (policy.checkpoint[key] for key in ("episodic_returns", "global_step"))
    recent, cut = recent[-100:], sum(not game.over for game in games)
    trained = float(np.mean(recent)) if recent else None
    result = {"env_id": policy.args.env_id, "global_step": steps, **asdict(args)}
    result |= {name: float(getattr(np, name)(returns)) for name in ("mean", "std", "median")}
    result |= {"script": policy.path, "training_mean": trained, "cut": cut}
    # at games' ends; who does not tell has not won. subtle: an np.bool_ is an object in Gymnasium's
    # arrays, and np.mean of those an or
    keys = ("success", "is_success")
    told = [[np.ravel(game.info[x])[0] for x in keys if x in [*game.info]] for game in games]
    wins = [float(x[0] or 0) if x else 0.0 for x in told]
    result |= {"success": float(np.mean(wins))} if any(told) else {}
    with open(f"{args.run}/eval.json", "w") as file:
        json.dump(result | {"returns": returns, "lengths": lengths}, file, indent=2)
    way = "most likely actions" if args.deterministic else "sampled actions"
    print(f"{policy.args.env_id} after {steps:,} steps of training, {way}")
    print(f"{'game':>6}{'return':>12}{'length':>9}")
    for number, (total, length) in enumerate(zip(returns, lengths, strict=True), 1):
        print(f"{number:>6}{total:>12.2f}{length:>9}")
    won = ", success {success:.0%}" if any(told) else ""
    print(f"mean {{mean:.2f}}, std {{std:.2f}}, median {{median:.2f}}{won}".format(**result))
    if cut:
        print(f"{cut} of {len(games)} games were cut after {args.max_steps} steps (--max-steps)")
    if recent:
        low, high, of = min(recent), max(recent), "whole games" if games[0].on_atari else "episodes"
        print(f"training: mean {trained:.2f}, {low:.2f} to {high:.2f}, last {len(recent)} {of}")
        if not (args.deterministic or low <= result["mean"] <= high):  # training samples
            print("warning: outside that: does main do what belongs into make_envs, Agent or act?")
    if args.capture_video:
        number = int(np.nanargmax(returns)) if args.video_game == "best" else 0
        film(policy, games[number], f"{args.run}/video.mp4")
        told = f"game {number + 1}, return {returns[number]:.2f}, {lengths[number] + 1} frames"
        print(f"{args.run}/video.mp4: {told}")
