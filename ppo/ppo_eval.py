"""Scores what a run has learned, films it, and writes it to a file: whole games, played by the very
script that trained.

    python ppo/ppo_eval.py runs/<run>                              # 20 games, actions sampled
    python ppo/ppo_eval.py runs/<run> --deterministic              # the most likely actions
    python ppo/ppo_eval.py runs/<run> --capture-video --video-game best
    python ppo/ppo_eval.py runs/<run> --onnx                       # leaves the policy, policy.onnx

There is no network in this file. `script.py` in a run's folder is a copy of the script that
trained it, and is executed: its Agent acts in what its make_envs makes, and of its main the lines
count that say what the agent sees of an observation, how to reset, and how large a memory is.
What is here are the games: each alone, with a seed of its own, Atari to the last life and with raw
rewards. Leaves eval.json, and on request a video, beside the checkpoint. In a program: load().
Shapes: R rows, 1 or the K agents of a game, D numbers of an observation, A actions.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch>=2.11,<2.16",
#   "ale-py>=0.12",
#   "envpool>=1.2.5; sys_platform != 'darwin' or platform_machine == 'arm64'",
#   "gymnasium[classic-control,mujoco]>=1.3",
#   "gymnasium[box2d]>=1.3; python_version < '3.14'",
#   "minatar",
#   "pettingzoo>=1.27",
#   "mpe2>=1.1",
#   "numpy>=2",
#   "tyro>=1.0.17",
#   "tqdm",
#   "tensorboard",
#   "imageio",
#   "imageio-ffmpeg",
#   "onnx",  # these three for --onnx
#   "onnxscript",
#   "onnxruntime",
# ]
# ///
import ast
import copy
import ctypes
import importlib.util
import inspect
import io
import json
import logging
import os
import random
import re
import sys
import tempfile
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from types import SimpleNamespace
from typing import Literal

import gymnasium as gym
import imageio.v2 as imageio
import numpy as np
import tyro
from tqdm import tqdm

import torch
from torch.distributions import Categorical, Distribution, Independent, Normal

# a flag that a fork has annealed by NumPy: its scalar types, which torch.load asks to be told of
SCALARS = {type(np.dtype(code)) for code in "?bBhHiIlLqQefd"}
SCALARS = [np.dtype, *SCALARS, np.float64(0).__reduce__()[0]]
PPO = os.path.dirname(os.path.abspath(__file__))
CPU = torch.device("cpu")
HINT = "on Debian, apt install libegl1 (MUJOCO_GL=egl) or libosmesa6 (MUJOCO_GL=osmesa)"


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
        self.run = os.path.expanduser(self.run)
        if min(self.episodes, self.max_steps) < 1 or self.seed < 0:
            raise ValueError("give 1 or more --episodes and --max-steps; a --seed from 0")


class CannotPlay(Exception):
    """A run, or what its script has, that cannot be played; says in one line why."""


def refusal(error, what):
    """The CannotPlay of what a script or an environment raised, which may be anything."""
    if isinstance(error, CannotPlay):
        return error
    missing = isinstance(error, ImportError | gym.error.DependencyNotInstalled)
    why = "needs what is not installed" if missing else "cannot be played"
    return CannotPlay(f"{what} {why}: {' '.join(str(error).split()) or type(error).__name__}")


def find_script(run, kind):
    """The script of a run, and what has to be said of it. kind: its checkpoint's format."""
    for folder in (run, os.path.dirname(os.path.abspath(run))):  # runs/<run>/best has its run's
        path = os.path.join(folder, "script.py")
        if os.path.exists(path) and os.path.exists(os.path.join(folder, "checkpoint.pt")):
            return path, ""
    name = kind.partition(" ")[0]  # of some kinds there was another network, and a number tells
    path = os.path.join(PPO, f"{name}.py")
    if not re.fullmatch(r"\w+", name) or not os.path.exists(path):
        raise CannotPlay(f"{run} has no script.py, and there is no {path}: name one with --script")
    with open(path, encoding="utf-8") as file:
        today = re.search(r'(?m)^FORMAT = "(.+?)"', file.read())[1]
    if " " in today and kind != today:
        raise CannotPlay(f"{run} has no script.py, and {path} another network: see --script")
    return path, "; the run is from before scripts were kept: did a fork train it? See --script"


def execute(path):
    """A script as a module; its main does not run."""
    name = f"script_{len(sys.modules)}"
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)  # dataclasses look there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise refusal(error, path) from error
    for needed in ("Args", "make_envs", "Agent"):
        if not hasattr(module, needed):
            raise CannotPlay(f"{path} has no {needed}")
    return module


def close(envs):
    """Closes environments, if they can be; what goes wrong then has no consequence."""
    try:
        getattr(envs, "close", lambda: None)()
    except Exception as error:
        print(f"environments failed to close: {error!r}", file=sys.stderr)


@contextmanager
def making(film):
    """While a script makes its environments: ALE's games do not end with a life, and to film,
    environments render."""
    pool, shows = sys.modules.get("envpool"), {"render_mode": "rgb_array"} if film else {}
    make, make_vec, make_pool = gym.make, gym.make_vec, getattr(pool, "make", None)

    def one(*args, **kwargs):
        """Gymnasium's environment; MuJoCo's is seen by the camera that follows the body."""
        env = make(*args, **kwargs | shows)
        model = getattr(env.unwrapped, "model", None) if film else None
        if "track" in (model.camera(i).name for i in range(getattr(model, "ncam", 0))):
            env = make(*args, **kwargs | shows, camera_name="track")
        return env

    def many(env_id, *args, **kwargs):
        """Gymnasium's vector environment; ALE's cannot render, but plays in colour."""
        if not str(env_id).startswith("ALE/"):
            return make_vec(env_id, *args, **kwargs | shows)
        screen = {"img_height": 210, "img_width": 160, "grayscale": False, "stack_num": 1}
        kwargs |= {"life_loss_info": False, **(screen if film else {})}
        envs = make_vec(env_id, *args, **kwargs)
        if film:
            envs.reset, envs.step = partial(keep, envs, envs.reset), partial(keep, envs, envs.step)
        return envs

    def keep(envs, call, *args, **kwargs):
        """Calls, and keeps the screen, (210, 160, 3) uint8."""
        found = call(*args, **kwargs)
        envs.screen = found[0][0, 0]
        return found

    gym.make, gym.make_vec = one, many
    if make_pool:
        pool.make = lambda *args, **kwargs: make_pool(*args, **kwargs | shows)
    try:
        yield
    finally:
        gym.make, gym.make_vec = make, make_vec
        if make_pool:
            pool.make = make_pool


def load(run, script=None):
    """The policy of a run's folder. Executes the run's script.py, or the script that is named.

    CannotPlay says what is missing or does not fit.
    """
    try:
        with torch.serialization.safe_globals(SCALARS):
            checkpoint = torch.load(f"{run}/checkpoint.pt", map_location=CPU, weights_only=True)
        kind = checkpoint["format"]
        dict(checkpoint["agent"]), checkpoint["args"]["env_id"]
    except Exception as error:  # what a damaged file raises depends on its bytes
        raise CannotPlay(f"{run}: no checkpoint that can be read ({error!r})") from error
    if script is None:
        return Policy(checkpoint, *find_script(run, kind))
    sys.path.append(os.path.dirname(os.path.abspath(script)))  # as when it is run
    return Policy(checkpoint, script)


class Policy:
    """What a run has learned, by the code of a script and the weights of a checkpoint.

    act(obs) is for one environment, reset() begins a game. script: the module; args: the run's,
    with one environment; agent: with its weights; space: that of the actions.
    """

    def __init__(self, checkpoint, path, note=""):
        self.checkpoint, self.path, self.note, self.session = checkpoint, path, note, None
        self.script = execute(path)
        with open(path, encoding="utf-8") as file:
            self.text = file.read()
        tree = ast.parse(self.text)
        nodes = (x for x in ast.walk(tree) if hasattr(x, "lineno"))
        nodes = sorted(nodes, key=lambda node: node.lineno)
        self.assigned = [x for x in nodes if isinstance(x, ast.Assign | ast.AugAssign)]
        # where the loop is, whose step is a function on the device
        loop = [x for x in tree.body if isinstance(x, ast.If) or "env_step" == vars(x).get("name")]
        self.in_loop = {x for part in loop for x in ast.walk(part)}
        self.lines = [ast.unparse(x) for x in nodes if isinstance(x, ast.Assign)]
        self.calls = [ast.unparse(x) for x in nodes if isinstance(x, ast.Call)]
        saved, known = checkpoint["args"], self.script.Args.__annotations__
        try:
            self.args = self.script.Args(**{key: x for key, x in saved.items() if key in known})
            self.args.num_envs = 1
            self.values = vars(self.script) | {"args": self.args, "device": CPU}
            self.in_gymnasium = self.stands_in()
            envs = self.make_envs(seed=0)
            self.space = envs.single_action_space
            with torch.random.fork_rng(devices=[]):  # the weights that it draws are replaced
                agent = self.called(self.script.Agent, envs, args=self.args, device=CPU)
            self.agent = self.values["agent"] = agent.requires_grad_(False).eval()
            self.load_weights(checkpoint["agent"])
            self.read_main()
            self.note_act()
            self.reset(seed=0)
            close(envs)
        except (Exception, SystemExit) as error:
            raise refusal(error, saved["env_id"]) from error

    def called(self, function, first, **known):
        """What a function of the script's returns, called with what its parameters name."""
        _, *others = inspect.signature(function).parameters.values()
        for x in others:
            if x.name not in known and x.default is x.empty:
                text = f"{function.__name__} wants {x.name!r}, which ppo_eval does not know"
                raise CannotPlay(f"{self.path}: {text}")
        return function(first, **{x.name: known[x.name] for x in others if x.name in known})

    def stands_in(self):
        """Whether Gymnasium's task stands in for MuJoCo Warp's, which it does for the simulator of
        the project's own script; that of a fork plays itself."""
        if self.args.env_id not in getattr(self.script, "TASKS", {}):
            return False
        with open(os.path.join(PPO, "ppo_continuous_action_warp.py"), encoding="utf-8") as file:
            own = file.read()
        names = "Task", "WarpVectorEnv", "make_envs"
        parts = [inspect.getsource(getattr(self.script, name)) for name in names]
        parts += re.findall(r"^TASKS = .*?^}", self.text, re.M | re.S)
        same = all(part in own for part in parts)
        self.note += "" if same else "; its simulator is not the project's, so it plays in that"
        return same

    def load_weights(self, saved):
        """Gives the agent the checkpoint's weights, if each has its place there."""
        own = self.agent.state_dict()
        for key in own | saved:
            here, there = (tuple(x[key].shape) if key in x else "missing" for x in (own, saved))
            if here != there:
                text = f"{key} is {there} in the checkpoint, {here} in Agent"
                raise CannotPlay(f"the weights do not fit {self.path}: {text}")
        self.agent.load_state_dict(saved)

    def line(self, target, value):
        """The value that the script first assigns to a target, both by patterns, as a text."""
        for text in self.lines:
            name, _, found = text.partition(" = ")
            if re.fullmatch(target, name) and re.search(value, found):
                return found
        text = re.sub(r"\\b|[\\^]", "", f"{target} = {value}")
        raise CannotPlay(f"{self.path} has no line like `{text}`, by which ppo_eval plays")

    def value(self, text, **names):
        """What an expression of the script's main is, where these names have these values."""
        return eval(compiled(text), self.values | names)

    def read_main(self):
        """What main does around the agent: its reset, what the agent sees, how it acts."""
        saved = {f"agent.{name}" for name in self.agent.state_dict()}
        for node in self.assigned:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            name = ast.unparse(target)
            # it would play with the number that __init__ gives
            if name.startswith("agent.") and name not in saved:
                why = "which a checkpoint does not have: a buffer (register_buffer) it has"
                raise CannotPlay(f"{self.path} sets {name}, {why}")
            parts = [*ast.walk(node.value)]
            again = isinstance(node, ast.AugAssign)
            again |= name in {x.id for x in parts if isinstance(x, ast.Name)}
            if name.startswith("action["):
                name, again = "action", True
            acts = [x for x in parts if isinstance(x, ast.Call) and ast.unparse(x.func) == "act"]
            if acts and node in self.in_loop:
                whose = ast.unparse(acts[0].args[0]) if acts[0].args else "none"
                if whose != "agent":
                    why = "and a checkpoint has that of agent alone"
                    raise CannotPlay(f"{self.path}: main acts by the network of {whose}, {why}")
                if acts[0] is not node.value:
                    name, again = "action", True
            if name in ("obs[T]", "obs[step + 1]"):
                again |= name in ast.unparse(node.value)
            elif name not in ("action", "actions", "next_obs") or node not in self.in_loop:
                again = False
            if again:
                why = "which ppo_eval does not do: put it into make_envs or Agent"
                raise CannotPlay(f"{self.path}: main has {ast.unparse(node)!r}, {why}")
        self.reset_call = self.line(".*", r"^envs\.reset\(")
        rows = [self.line(x, r"\bnext_obs\b") for x in (r"obs\[T\]", r"obs\[step \+ 1\]")]
        if rows[0] != rows[1]:
            raise CannotPlay(f"{self.path} stores an observation as {' and as '.join(rows)}")
        self.row = rows[0]
        if "obs_rms" in self.row:
            if "obs_rms" not in self.checkpoint:
                raise CannotPlay(f"{self.path} scales by obs_rms, and the checkpoint has none")
            text = self.line("obs_rms", r"\bcheckpoint\b")
            self.values["obs_rms"] = self.value(text, checkpoint=self.checkpoint)
        sent = {text for text in self.calls if text.startswith("envs.step(")}
        looped = {ast.unparse(x) for x in self.assigned if x in self.in_loop}
        sent |= {text for text in looped if text.startswith("clipped = ")}
        plain = r"envs\.step\((actions?|clipped)(\.\w+\((-1)?\))*\)"
        bounded = r"clipped = (np\.clip\(action\.cpu\(\)\.numpy\(\), |action\.clamp\()low, high\)"
        if odd := [text for text in sent if not re.fullmatch(f"{plain}|{bounded}", text)]:
            raise CannotPlay(f"{self.path}: ppo_eval does not know how to do {odd[0]}")
        self.clips = any(text.startswith("clipped") for text in sent)
        # policy, where there is one, does without the values
        self.network = getattr(self.agent, "policy", self.agent)
        if not {*self.reads(self.network)} <= {"mask"}:
            self.network = self.agent
        self.names = self.reads(self.network)
        self.kept = [name for name in self.names if name in ("lstm_state", "window", "ages")]
        if odd := {*self.names} - {*self.kept, "mask", "dones"}:
            raise CannotPlay(f"{self.path}: Agent wants {min(odd)!r}, which ppo_eval does not know")

    def note_act(self):
        """Says so where act() is none of the project's, as it is not called."""

        def body(text):
            found = [x for x in ast.parse(text).body if getattr(x, "name", None) == "act"]
            return [ast.dump(x) for part in found for x in part.body[1:]]  # no docstring

        known = []
        for name in os.listdir(PPO):
            if re.fullmatch(r"ppo\w*\.py", name) and "torchcompile" not in name:
                with open(os.path.join(PPO, name), encoding="utf-8") as file:
                    known.append(body(file.read()))
        if body(self.text) not in known and len(known) > 1:  # a copy of this file may be alone
            self.note += "; its act() is its own, and is not called: Agent's policy plays"

    def reads(self, network):
        """Names of what a network takes beside observations."""
        found = inspect.signature(getattr(network, "forward", network)).parameters.values()
        return [x.name for x in found if x.default is x.empty][1:]

    def make_envs(self, seed, film=False):
        """The script's own environments, a single one of them, still to be reset."""
        args = copy.copy(self.args)
        if film and hasattr(args, "env_kwargs"):  # PettingZoo's
            args.env_kwargs = json.dumps(json.loads(args.env_kwargs) | {"render_mode": "rgb_array"})
        with making(film):
            if self.in_gymnasium:
                make = partial(gym.make, args.env_id, disable_env_checker=True)
                envs = gym.vector.SyncVectorEnv([make])
                envs.reset = partial(envs.reset, seed=[seed])
                return envs
            return self.called(self.script.make_envs, args, seeds=np.array([seed]), device=CPU)

    def reset(self, seed=None, rows=1):
        """Begins a game, or after a lost life: the memory is zero. With a seed, sampling begins
        anew as well."""
        if seed is not None:
            self.noise = torch.Generator().manual_seed(seed).get_state()
        self.memory = {}
        if "lstm_state" in self.kept:
            zeros = self.line("lstm_state", r"^torch\.zeros")
            self.memory["lstm_state"] = self.value(zeros, N=rows)
        if "window" in self.kept:
            length = self.value(self.line("L", r"\bargs\b"))
            size = self.value(self.line("memory", r"^torch\.zeros"), L=0, T=0, N=1).shape[2:]
            self.memory["window"] = torch.zeros(rows, length, *size)
            self.memory["ages"] = torch.zeros(rows, dtype=torch.int64)

    def act(self, obs, mask=None, deterministic=True):
        """The action for one observation of the script's environments, as they take it.

        mask: (A,), what is possible, where the policy wants to know that.
        """
        mask = None if mask is None else np.asarray(mask)[None]
        return self.act_rows(np.asarray(obs)[None], mask, deterministic)[0]

    @torch.no_grad()
    def act_rows(self, obs, mask=None, deterministic=True):
        """As act, of observations (R, ...) and masks (R, A)."""
        inputs = {"obs": torch.as_tensor(obs), **self.memory}
        if "mask" in self.names:
            if mask is None:
                raise CannotPlay(f"{self.path}: the policy wants a mask beside each observation")
            inputs["mask"] = torch.as_tensor(mask).bool()
        if self.session is None:
            probs, self.memory = self.probs(self.see(inputs["obs"]), inputs)
        else:
            probs, self.memory = self.probs_of_file(inputs)
        if deterministic:
            action = mode(probs)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(self.noise)
                action = probs.sample()
                self.noise = torch.get_rng_state()
        low, high = (self.space.low, self.space.high) if self.clips else (None, None)
        return np.clip(action.numpy(), low, high)

    def see(self, obs):
        """(R, ...) -> what the network sees, as main stores it: images stay uint8."""
        on_host = "from_numpy" in self.row
        seen = self.value(self.row, next_obs=obs.numpy() if on_host else obs)
        return seen if seen.dtype == torch.uint8 and seen.dim() > 2 else seen.float()

    def probs(self, seen, inputs):
        """The distribution of the agent's actions, and the memory of the next rows."""
        inputs = {"dones": torch.zeros(seen.shape[0]), **inputs}  # reset() does what they would
        found = self.network(seen, *(inputs[name] for name in self.names))
        probs, *rest = found if isinstance(found, tuple) else (found,)
        if not hasattr(probs, "sample"):
            raise CannotPlay(f"{self.path}: Agent gives a {type(probs).__name__}, no distribution")
        memory = {}
        if "lstm_state" in self.kept:
            memory["lstm_state"] = rest[1]
        if "window" in self.kept:
            window = torch.cat([inputs["window"], rest[1].unsqueeze(1)], 1)
            memory |= {"window": window[:, 1:], "ages": inputs["ages"] + 1}
        return probs, memory

    def probs_of_file(self, inputs):
        """As probs, by the ONNX file that is open."""
        fed = {name: x.numpy() for name, x in inputs.items()}
        names = [x.name for x in self.session.get_outputs()]
        given = dict(zip(names, map(torch.from_numpy, self.session.run(None, fed)), strict=True))
        memory = {name: given.pop(f"next_{name}") for name in self.kept}
        if "logits" in given:
            return Categorical(logits=given["logits"]), memory
        return Normal(*given.values()) if "mean" in given else SimpleNamespace(**given), memory


@cache
def compiled(text):
    """An expression as code."""
    return compile(text, "a line of main", "eval")


def mode(probs):
    """The most likely actions of a distribution."""
    return probs.mode() if callable(probs.mode) else probs.mode


def heads(probs):
    """What a distribution is made of, by the names that this has in an ONNX file."""
    if type(probs) is Categorical:
        return {"logits": probs.logits}
    base = probs.base_dist if type(probs) is Independent else probs
    if type(base) is Normal:
        return {"mean": base.loc, "std": base.scale}
    return {"mode": mode(probs)}


class Exported(torch.nn.Module):
    """A policy as a function of all that it reads: obs, (R, ...), as the environment gives them,
    mask, (R, A) bool, lstm_state, or window and ages. Gives heads, and next_lstm_state, ...."""

    def __init__(self, policy):
        super().__init__()
        self.policy, self.agent = policy, policy.agent
        self.inputs = ["obs", *(name for name in policy.names if name != "dones")]

    def forward(self, inputs):
        """What the agent gives for inputs in the order of their names."""
        policy, obs = self.policy, inputs[0]
        if "obs_rms" in policy.row:
            # the same sums in tensors, as the exporter follows no NumPy; write() compares them
            mean, var, _ = (torch.tensor(x).double() for x in policy.checkpoint["obs_rms"])
            obs = ((obs.double() - mean) / (var + 1e-8).sqrt()).clamp(-10.0, 10.0)
        seen = obs if obs.dtype == torch.uint8 and obs.dim() > 2 else obs.float()
        probs, memory = policy.probs(seen, dict(zip(self.inputs, inputs, strict=True)))
        self.kind = type(probs).__name__
        self.outputs = [*heads(probs), *(f"next_{name}" for name in policy.kept)]
        return *heads(probs).values(), *(memory[name] for name in policy.kept)

    def examples(self, obs, mask, rows):
        """Inputs for so many rows, like those that the environment gave, but random."""
        shown, rng = np.asarray(obs)[:1].repeat(rows, 0), np.random.default_rng(0)
        if shown.dtype in (np.uint8, bool):
            shown = rng.integers(0, 256, shown.shape, np.uint8).astype(shown.dtype)
        else:
            shown = (shown + rng.normal(scale=3.0, size=shown.shape)).astype(shown.dtype)
        self.policy.reset(rows=rows)
        found = {name: 9 * torch.rand(x.shape) for name, x in self.policy.memory.items()}
        found = {name: x.to(self.policy.memory[name]) for name, x in found.items()}
        found["obs"] = torch.as_tensor(shown)
        if mask is not None:
            found["mask"] = torch.rand(rows, mask.shape[1]) < 0.5
        return [found[name] for name in self.inputs]

    def write(self, path, obs, mask):
        """Writes the file, holds it against the agent, and lets it play from now on."""
        import onnxruntime

        # subtle: two rows, as of a single one the exporter would make a constant
        two, three = (self.examples(obs, mask, rows) for rows in (2, 3))
        rows = torch.export.Dim("rows")
        axes = [
            next(i for i, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)) if m < n)
            for a, b in zip(two, three, strict=True)
        ]
        # it warns of old names within PyTorch, and that there is no torchvision, which is harmless
        logging.getLogger("torch").setLevel(logging.ERROR)
        Distribution.set_default_validate_args(False)  # as it branches on values
        self(two)
        # subtle: len(x) of a script would be a number, and the rows in the file as many
        vars(self.policy.script)["len"] = lambda x: x.shape[0] if torch.is_tensor(x) else len(x)
        with redirect_stderr(io.StringIO()):
            program = torch.onnx.export(
                self.eval(),
                (two,),
                input_names=self.inputs,
                output_names=self.outputs,
                dynamic_shapes=([{axis: rows} for axis in axes],),
                verbose=False,
            )
        del vars(self.policy.script)["len"]
        for node in program.model.graph:
            node.metadata_props.clear()  # lines and folders of this machine's files
        program.save(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()  # else one for each core
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = onnxruntime.InferenceSession(path, options)
        probs, memory = self.policy.probs(
            self.policy.see(three[0]), dict(zip(self.inputs, three, strict=True))
        )
        expected = [*heads(probs).values(), *memory.values()]
        fed = {name: x.numpy() for name, x in zip(self.inputs, three, strict=True)}
        for name, a, b in zip(self.outputs, session.run(None, fed), expected, strict=True):
            if not np.allclose(a, b, rtol=1e-4, atol=1e-4):
                os.remove(path)
                raise ValueError(f"its {name} is not the agent's")
        self.policy.session = session


class Game:
    """One game in environments of its own, by a seed of its own.

    obs: (R, D), what the environment shows; total: the return, of several agents the mean over
    those who took part; life_over: whether the memory ends with this observation.
    """

    def __init__(self, policy, seed, film=False):
        # environments may draw from any of these, as in training
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        self.policy, self.seed, self.actions, self.over, self.cut = policy, seed, [], False, False
        self.envs = policy.make_envs(seed, film)
        found = policy.value(policy.reset_call, envs=self.envs, seeds=np.array([seed]))
        self.obs, self.info = found if isinstance(found, tuple) else (found, {})
        self.there = np.ones(1, bool)  # (R,), who acts
        self.together = hasattr(self.envs, "num_agents")
        if self.together:  # ParallelEnvs, whose reset says who is absent
            self.there, self.info = ~self.info, {}
        self.took_part, self.returns = np.zeros_like(self.there), np.zeros(self.there.shape)
        self.life_over = False
        self.in_envpool = hasattr(getattr(self.envs, "unwrapped", None), "async_reset")
        simulated = self.in_envpool or policy.args.env_id.startswith("ALE/")
        self.on_atari = simulated and "lives" in self.info

    @property
    def total(self):
        """The return so far."""
        return float(self.returns.sum() / max(1, self.took_part.sum()))

    def masks(self):
        """(R, A) bool, or None where all actions are possible."""
        if "mask" in self.policy.names:
            return self.policy.script.action_masks(self.envs, self.info)

    def step(self, action):
        """Takes the actions, (R, ...)."""
        self.actions.append(action)
        torchy = torch.is_tensor(self.obs)
        found = self.envs.step(torch.from_numpy(action) if torchy else action)
        self.obs, reward, terminated, truncated, *info = found
        reward, ends = np.asarray(reward), np.asarray(terminated | truncated)
        before, self.info = self.info, info[0] if info else {}
        over = ends
        if self.on_atari and self.in_envpool:
            reward = self.info["reward"]  # not clipped
            over = (self.info["terminated"] > 0) | truncated
            # the no-ops after a lost life can end the game too; only lives that rise may show it
            over |= self.life_over & (self.info["lives"] > before["lives"])
        elif self.on_atari:  # ALE's games, which do not end with a life
            ends = ends | (self.info["lives"] < before["lives"])
        self.life_over = bool(ends.any())
        self.returns += reward * self.there
        self.took_part |= self.there
        self.there = ~over
        self.over = bool(over.all())

    def frame(self):
        """What is to be seen, (height, width, 3) uint8."""
        made = getattr(self.envs, "unwrapped", self.envs)
        if self.together:
            frame = made.envs[0].render()
        elif self.in_envpool:  # by MuJoCo's first camera, which follows the body
            frame = made.render(camera_id=0)[0]
        else:  # ALE's vector environment has a screen, see making()
            frame = made.screen if hasattr(made, "screen") else self.envs.render()[0]
        if getattr(frame, "shape", ())[:2] == (10, 10) and frame.dtype == float:  # MinAtar's
            frame = np.rint(255 * frame).astype(np.uint8).repeat(20, 0).repeat(20, 1)
        return frame.repeat(2, 0).repeat(2, 1) if self.on_atari else frame

    def fps(self):
        """Frames a second."""
        known = (self.envs.envs[0] if self.together else self.envs).metadata
        with suppress(Exception):  # EnvPool does not say; Gymnasium may have the same environment
            if self.in_envpool:
                entry = gym.registry[self.policy.args.env_id].entry_point
                known = gym.envs.registration.load_env_creator(entry).metadata
        fps = known.get("render_fps", 50 if self.in_envpool else 30)
        return 15 if self.on_atari else fps  # Atari's agent sees every fourth of 60


def play(policy, seed, deterministic, max_steps):
    """A game to its end, or for so many steps."""
    game = None
    try:
        game = Game(policy, seed)
        policy.reset(seed, rows=len(game.there))
        while not (game.over or game.cut):
            action = policy.act_rows(game.obs, game.masks(), deterministic)
            if game.life_over:
                policy.reset(rows=len(game.there))
            game.step(action)
            game.cut = not game.over and len(game.actions) == max_steps
    except SystemExit as error:  # its status may be 0, as of a success
        raise RuntimeError("an environment ended the process") from error
    except Exception as error:
        if game and game.actions:  # its own affair
            raise
        raise refusal(error, policy.args.env_id) from error
    close(game.envs)
    return game


def film(policy, game, path):
    """Plays a game once more, by its actions, and films it; SystemExit says why it cannot."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # no window
    try:
        if game.in_envpool and not game.on_atari:
            ctypes.CDLL("libEGL.so.1")  # OSError where it is missing: MuJoCo in EnvPool would abort
        again = Game(policy, game.seed, film=True)
        frame = again.frame()
        if frame is None:
            raise ValueError("its render() returns None")
    except Exception as error:  # what a missing renderer raises depends on which
        sys.unraisablehook = lambda _: None  # and taking down what is half made raises again
        sys.exit(f"--capture-video: nothing renders {policy.args.env_id} ({error}); {HINT}")
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as folder:
        part = f"{folder}/video.mp4"
        try:
            with imageio.get_writer(part, fps=again.fps(), macro_block_size=2) as writer:
                writer.append_data(frame)
                for action in game.actions:
                    again.step(action)
                    writer.append_data(again.frame())
        except Exception as error:  # a frame that is no array, or of another size than the first
            sys.exit(f"--capture-video: no film of {policy.args.env_id}: {error}")
        os.replace(part, path)
    if not np.array_equal(again.total, game.total, equal_nan=True):
        sys.exit(f"{path}: the film's return is {again.total}, not the game's {game.total}")


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


if __name__ == "__main__":
    args, games = tyro.cli(Args), []
    # kept for filming: where this renderer is missing, mujoco could not even be imported
    renderer = os.environ.pop("MUJOCO_GL", "egl")
    if args.capture_video:
        with suppress(OSError):  # MuJoCo in EnvPool looks for it when it is first used
            ctypes.CDLL("libEGL.so.1", ctypes.RTLD_GLOBAL)
    gym.logger.min_level = gym.logger.ERROR  # v4 is out of date, but what the tables used
    needs = ["onnx", "onnxscript", "onnxruntime"] if args.onnx else []
    if missing := [name for name in needs if importlib.util.find_spec(name) is None]:
        fail("--onnx", f"not installed: {', '.join(missing)} (pip install {' '.join(missing)})")
    # a game's seed starts its environment and draws its actions; no game of training has it
    seeds = np.random.SeedSequence(args.seed, spawn_key=(1,)).generate_state(args.episodes) >> 1
    try:
        policy = load(args.run, args.script)
        print(f"plays: {policy.path}{policy.note}")
        if args.onnx:
            file = Exported(policy)
            try:
                first = Game(policy, int(seeds[0]))
                file.write(f"{args.run}/policy.onnx", first.obs, first.masks())
                close(first.envs)
            except Exception as error:  # of a network that cannot be traced, of a full disk
                text, *_ = str(error.__cause__ or error).strip().splitlines() or [repr(error)]
                fail("--onnx", f"{args.run}/policy.onnx cannot be written: {text}")
            if "mode" in file.outputs and not args.deterministic:
                text = "is in the file by its most likely actions alone: add --deterministic"
                fail("--onnx", f"a {file.kind} {text}")
        for seed in tqdm(seeds.tolist(), unit="game"):
            games.append(play(policy, seed, args.deterministic, args.max_steps))
    except CannotPlay as error:
        fail("run", error)

    returns = [game.total for game in games]
    with np.errstate(invalid="ignore"):  # of inf and nan
        mean, std, median = (float(f(returns)) for f in (np.mean, np.std, np.median))
    cut = sum(game.cut for game in games)
    result = {
        "env_id": policy.args.env_id,
        "global_step": policy.checkpoint["global_step"],
        **asdict(args),
        "script": policy.path,
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
    print(f"{result['env_id']} after {result['global_step']:,} steps of training, {way}")
    print(f"{'game':>6}{'return':>12}{'length':>9}")
    for number, game in enumerate(games, 1):
        print(f"{number:>6}{game.total:>12.2f}{len(game.actions):>9}")
    print(f"mean {mean:.2f}, std {std:.2f}, median {median:.2f}")
    if cut:
        print(f"{cut} of {len(games)} games were cut after {args.max_steps} steps (--max-steps);")
        print("their returns count as they were")
    if args.capture_video:
        os.environ["MUJOCO_GL"] = renderer
        best = int(np.argmax(np.nan_to_num(returns, nan=-np.inf)))
        number = best if args.video_game == "best" else 0
        game, video = games[number], f"{args.run}/video.mp4"
        film(policy, game, video)
        frames = len(game.actions) + 1
        print(f"{video}: game {number + 1}, return {game.total:.2f}, {frames} frames")
