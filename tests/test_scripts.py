"""The scripts as commands: alone in an empty folder, their flags, their outputs, bad input."""

import ast
import inspect
import json
import re
import shutil
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import doors
import gymnasium as gym
import numpy as np
import pytest
from helpers import (
    FAST,
    MARKED,
    PAIRS,
    PPO,
    TINY,
    agent,
    envpool_of_gymnasium,
    kind,
    load,
    run_main,
    run_script,
    said,
    scalars,
    task,
)
from lib import parity
from lib.parity import assert_the_same

import torch

SUMMARY = "script args device global_step complete sps mean_return episodes"
CHECKPOINT = "format args global_step episodic_returns agent adam rng"


@pytest.mark.parametrize(("eager", "fast"), MARKED)
def test_what_a_run_leaves(eager, fast, tmp_path, capsys):
    """Curves, a summary, a checkpoint from which the same network can be made; in the environment
    itself and by default both versions compute the same, to the last bit."""
    runs = []
    for name, flags in ((eager, []), (fast, ["--cudagraphs"])):
        flags = [*TINY, *flags, "--measure-burnin", 1]
        runs.append(run_main(name, *flags, runs_dir=tmp_path / name))
        check_what_is_left(name, runs[-1], tmp_path / name, capsys.readouterr().out.splitlines())
    assert_the_same(*map(parity.curves, runs), *runs)


def check_what_is_left(name, run, folder, printed):
    rows = 8 * run.args.num_envs  # environment steps in an iteration
    expected = ["--cudagraphs needs a CUDA device: running without"]
    expected = expected if name in FAST else []
    expected.append(f"{name} on cpu: {run.args.env_id}, {run.args.num_envs} envs x 8 steps")
    if task(name) == "warp":
        cache = run.wp.config.kernel_cache_dir
        expected.append(f"kernels: compiled once, for about a minute, into {cache}")
    assert printed[:-1] == expected
    (run_dir,) = folder.iterdir()
    assert printed[-1] == f"{run_dir}: {run.score}, {run.sps} steps/s"
    assert re.fullmatch(rf"[\w.]+[-_]v\d__{name}__1__\d{{6}}-\d{{6}}-\d+", run_dir.name)
    assert (run_dir / "script.py").read_bytes() == (PPO / f"{name}.py").read_bytes()
    summary = json.loads((run_dir / "summary.json").read_text())
    assert list(summary) == SUMMARY.split()
    assert (summary["script"], summary["global_step"]) == (name, 3 * rows)
    assert summary["complete"] and isinstance(summary["sps"], int) and summary["sps"] > 0
    curves = scalars(run_dir)
    assert {tag for tag in curves if tag.startswith("losses/")} == {
        f"losses/{loss}" for loss in (*load(name).LOSSES, "explained_variance")
    }
    lr = load(name).Args.learning_rate
    expected = [(rows, lr), (2 * rows, lr * 2 / 3), (3 * rows, lr / 3)]
    np.testing.assert_allclose(curves["charts/learning_rate"], expected, rtol=1e-6)
    assert [step for step, _ in curves["charts/SPS"]] == [2 * rows, 3 * rows]

    checkpoint = torch.load(run_dir / "checkpoint.pt", weights_only=True)
    statistics = {"return_rms"} if "continuous" in name else set()
    if "rnd" in name:
        statistics = {"bonus_rms", "bonus_sums"}
    of_envs = {"envs"} if "warp" in name else set()  # their state, of those that have one
    assert checkpoint.keys() == set(CHECKPOINT.split()) | statistics | of_envs
    network = agent(name, run.envs, run.args)
    network.load_state_dict(checkpoint["agent"])
    for trained, loaded in zip(run.agent.parameters(), network.parameters(), strict=True):
        assert torch.equal(trained, loaded)
    assert json.loads(json.dumps(checkpoint["args"])) == summary["args"]
    assert checkpoint["global_step"] == 3 * rows
    assert list(checkpoint["rng"]) == ["cpu"]
    learn = [key for key, x in run.agent.named_parameters() if x.requires_grad]
    steps = {float(checkpoint["adam"][key]["step"]) for key in learn}
    assert steps == {3 * 2 * 2}, "iterations, epochs and minibatches"
    if statistics:
        assert torch.equal(checkpoint["agent"]["obs_rms.var"], run.agent.obs_rms.var)
        least = run.N * 20 if "continuous" in name else 1
        assert least < checkpoint["agent"]["obs_rms.count"], "of transitions in three rollouts"


@pytest.mark.slow
@pytest.mark.parametrize("name", FAST)
def test_what_is_compiled_is_compiled_whole(name, tmp_path):
    """A graph for each torch.compile, of which nothing is left to Python; without kernels."""
    torch.compiler.reset()
    with parity.counted("eager") as graphs:
        run_main(name, *TINY, "--compile", "--total-timesteps", 32, runs_dir=tmp_path)
    text = (PPO / f"{name}.py").read_text()
    assert len(graphs) == text.count("= torch.compile(") + text.count(".compile()\n") > 0
    assert all(graphs.values()), graphs


def test_a_fork_drops_what_is_not_ppo(tmp_path):
    """Checkpoint and signals, each function with its one call: the copy trains."""

    def fork(text):
        for name in ("save_checkpoint", "catch_signals"):
            (function,) = [x for x in ast.parse(text).body if getattr(x, "name", "") == name]
            text = text.replace(ast.get_source_segment(text, function), "")
            text, count = re.subn(
                rf"^( +){name}\(.*\)(  # .*)?$", r"\1pass", text, flags=re.MULTILINE
            )
            assert count == 1 and f"{name}(" not in text
        return text

    run = run_main("ppo", *TINY, runs_dir=tmp_path, edit=fork)
    assert run.summary["complete"] and run.global_step == 48
    assert not [*Path(run.run_dir).glob("checkpoint*")]


CHECKS = {}  # a script of each text of the checks
for name, _ in PAIRS:
    CHECKS.setdefault(inspect.getsource(load(name).Args.__post_init__), name)


@pytest.mark.parametrize("name", CHECKS.values())
def test_two_checks_of_the_flags(name, tmp_path, capsys, monkeypatch):
    """A rollout in equal minibatches and one rollout at least: tyro's message and status 2."""
    monkeypatch.chdir(tmp_path)
    cases = [
        ("--num-envs 4 --num-steps 8 --num-minibatches 3", "--num-minibatches"),
        # a minibatch of a single row would never learn
        ("--num-envs 4 --num-steps 1 --num-minibatches 4", "--num-minibatches"),
        ("--num-envs 4 --num-steps 16 --total-timesteps 63", "--total-timesteps must be at least"),
        ("--trxl-memory-length 0", "--trxl-memory-length must be at least 1"),
    ]
    for flags, message in cases if "trxl" in name else cases[:-1]:
        with pytest.raises(SystemExit) as stop:
            run_main(name, *flags.split(), runs_dir="runs")
        assert stop.value.code == 2, flags
        assert message in said(capsys.readouterr().err), flags
    assert not [*tmp_path.iterdir()]


class Odd(doors.Still):
    """An environment of these spaces."""

    def __init__(self, obs_shape, action_space):
        self.observation_space = gym.spaces.Box(-1.0, 1.0, obs_shape)
        self.action_space = action_space


Box, Discrete = gym.spaces.Box, gym.spaces.Discrete
BAD_SPACES = {
    "Board": ((3, 3), Discrete(2)),
    "Several": ((3,), gym.spaces.MultiDiscrete([2, 3])),
    "FromOne": ((3,), Discrete(2, start=1)),
    "Whole": ((3,), Box(0, 2, (2,), np.int64)),
    "Unbounded": ((3,), Box(-np.inf, np.inf, (2,))),
}
for name, given in BAD_SPACES.items():
    gym.register(f"{name}-v0", partial(Odd, *given))
MUJOCO, POOL = "ppo_continuous_action", "ppo_continuous_action_envpool"
REFUSED = [  # script, flags after --env-id, words of the error
    ("ppo", "Pendulum-v1", "(Box: ppo_continuous_action; MultiDiscrete: --patch multidiscrete)"),
    ("ppo", "Several-v0", "must be Discrete"),
    ("ppo", "FromOne-v0", "must be Discrete"),
    (MUJOCO, "CartPole-v1", "of floats (Discrete: ppo)"),
    (MUJOCO, "Unbounded-v0", "must be a bounded Box"),
    (MUJOCO, "Whole-v0", "must be a bounded Box"),
    (POOL, "CartPole-v1", "(Discrete: ppo_envpool)"),
    (POOL, "CarRacing-v3", "has pixels"),
    (POOL, "Go1JoystickFlatTerrain-v1", "must not see {'privileged_state'}"),
    ("ppo_pixels", "CartPole-v1", "must be an image of uint8 or bool"),
    ("ppo_pixels", "Board-v0", "must be an image of uint8 or bool"),
    ("ppo_pixels", "CarRacing-v3", "must be Discrete"),
    ("ppo_masked", "CliffWalking-v1", "0 of 2 environments gave"),
    ("ppo_rnd", "CarRacing-v3", "has pixels: see ppo_pixels.py"),
    ("ppo_pettingzoo", 'meadow --env-kwargs {"wolf":"observation_space"}', "sheep_0 has "),
    ("ppo_pettingzoo", 'meadow --env-kwargs {"wolf":"action_space"}', "sheep_2 has Box"),
    ("ppo_pettingzoo", "pettingzoo.butterfly.cooperative_pong_v6", "has pixels"),
]


@pytest.mark.parametrize(("name", "flags", "words"), REFUSED)
def test_environments_that_do_not_fit(name, flags, words, tmp_path):
    """Raise by themselves or by an assertion, and leave no folder behind."""
    with pytest.raises(Exception, match=re.escape(words)):
        run_main(name, *TINY, "--env-id", *flags.split(), runs_dir=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


NUMBERS = {"bytes": Box(0, 255, (8,), np.uint8), "speed": Box(-1.0, 1.0, (2,))}
EYES = {"eyes": gym.spaces.Dict({"left": Box(0, 255, (6, 6, 3), np.uint8)})}
SEEN = {"numbers": gym.spaces.Dict(NUMBERS), "images": gym.spaces.Dict(NUMBERS | EYES)}
SEEN["choices"] = gym.spaces.MultiDiscrete([2, 3, 4])


class Samples(gym.Env):
    """Shows samples of a space. All actions are possible. PettingZoo's wants dictionaries, of one
    agent."""

    possible_agents = agents = ("one",)

    def __init__(self, seen, continuous, together):
        done = self.action_space = Box(-1.0, 1.0, (2,)) if continuous else Discrete(3)
        self.observation_space = seen
        if together:
            self.observation_space, self.action_space = lambda agent: seen, lambda agent: done
        self.give = lambda x: {"one": x} if together else x
        self.look = lambda: self.give(seen.sample())

    def reset(self, *, seed=None, options=None):
        return self.look(), {"action_mask": np.ones(3, np.int8)}

    def step(self, action):
        rest = (self.give(x) for x in (0.0, False, False))
        return self.look(), *rest, {"action_mask": np.ones(3, np.int8)}


VECTORS = [x for x, _ in PAIRS if kind(x) != "atari" and "warp" not in x]


@pytest.mark.parametrize("name", VECTORS)
def test_observations_are_joined(name, tmp_path, monkeypatch):
    """A dictionary's numbers are one vector; an image in it is refused as alone: it would be joined
    as 0 to 255. Of several choices each is a one-hot vector."""
    envpool_of_gymnasium(monkeypatch)
    for word, seen in SEEN.items():
        make = partial(Samples, seen, kind(name) == "continuous", "pettingzoo" in name)
        spec = gym.envs.registration.EnvSpec(f"{word}-v0", make)
        monkeypatch.setitem(gym.registry, f"{word}-v0", spec)
        monkeypatch.setitem(sys.modules, f"{word}-v0", SimpleNamespace(parallel_env=make))

    def trained(word):
        return run_main(name, *TINY, "--env-id", f"{word}-v0", runs_dir=tmp_path / word)

    masks = 3 * ("masked" in name)  # are behind what is seen
    obs = trained("numbers").storage["obs"]
    assert obs.shape[2] == 10 + masks and obs[..., 8:10].abs().max() <= 1
    assert obs[..., :8].max() > 1 and (obs[..., :8] == obs[..., :8].round()).all()
    with pytest.raises(AssertionError, match="has pixels"):
        trained("images")
    assert not (tmp_path / "images").exists()
    if "envpool" not in name:
        obs = trained("choices").storage["obs"]
        first = obs[..., :9]
        assert obs.shape[2] == 9 + masks
        assert ((first == 0) | (first == 1)).all() and (first.sum(2) == 3).all()


OTHERS = [  # by flags alone: other actions, other lengths, several environments
    ("ppo_atari_envpool", "Pong-v5"),
    ("ppo_atari", "Tetris-v5 --repeat-action-probability 0.25"),
    ("ppo_pixels", "my_pixels:Reach-v0"),  # 40 x 40 x 3
    ("ppo_pixels", "my_pixels:CarRacing4-v0 --num-envs 1"),  # 4 x 48 x 48
    ("ppo_pixels", "my_pixels:FastCarRacing4-v0"),  # EnvPool's, one by one
    ("ppo_pixels", "MinAtar/Seaquest-v1 --num-steps 9 --total-timesteps 54"),
    ("ppo", "Acrobot-v1 --num-envs 1"),
    ("ppo", "Board-v0"),
    ("ppo_envpool", "Acrobot-v1 --num-envs 33 --total-timesteps 528"),
    ("ppo_masked", "Taxi-v4 --num-envs 1"),
    (POOL, "Ant-v5 --num-envs 33 --total-timesteps 528"),
    (POOL, "BipedalWalker-v3 --num-envs 1"),
    (POOL, "Pendulum-v1 --num-steps 300 --total-timesteps 1200"),
    ("ppo_continuous_action_warp", "Swimmer-v5 --num-envs 1"),
    ("ppo_continuous_action_warp", "my_warp_env:Pendulum --num-envs 8 --total-timesteps 128"),
    (MUJOCO, "Pendulum-v1 --num-envs 8 --total-timesteps 128"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "flags"), OTHERS)
def test_other_environments(name, flags, tmp_path):
    run = run_main(name, *TINY, "--env-id", *flags.split(), runs_dir=tmp_path)
    assert run.global_step == run.args.total_timesteps and all(map(np.isfinite, run.losses))
    (run_dir,) = tmp_path.iterdir()
    env_id = re.sub("[/:]", "_", run.args.env_id)
    assert run_dir.name.startswith(f"{env_id}__{name}__1__")


@pytest.mark.slow
def test_alone_in_an_empty_folder(tmp_path):
    """Copied elsewhere, a script trains, as it imports nothing from here, which test_pair shows;
    wandb takes the run without a network, under its folder's name, which has no odd letter."""
    script = shutil.copy(PPO / "ppo.py", tmp_path / "mine.py")
    env = {"WANDB_MODE": "offline", "HOME": str(tmp_path / "home")}
    flags = [*TINY, "--env-id", "json:CartPole-v1", "--exp-name", "try #2", "--track"]
    done = run_script(script, *flags, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert run_dir.name.startswith("json_CartPole-v1__try__2__1__")
    assert json.loads((run_dir / "summary.json").read_text())["script"] == "mine"
    assert [*tmp_path.glob(f"wandb/offline-run-*/run-{run_dir.name}.wandb")]
