"""MuJoCo Warp's tasks against Gymnasium's, worlds that start anew, captured physics, classes of
one's own in its place."""

import runpy
import sys
from functools import partial

import gymnasium as gym
import mujoco
import my_warp_env
import numpy as np
import pytest
import worlds
from helpers import PPO, TINY, compile_kernels, insert, load, run_main
from lib.parity import curves
from test_mutants import mistakes, mutate

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

pytestmark = pytest.mark.slow  # kernels are compiled
EAGER, FAST = "ppo_continuous_action_warp", "ppo_continuous_action_warp_torchcompile"
CPU = torch.device("cpu")


# relative to a number's size and 1: observations and rewards after a step, and rewards of 30, as
# rounding grows where bodies touch. Seen: half of it, or less
NEAR = {
    "HalfCheetah-v5": (5e-4, 2e-5, 1e-2),
    "Hopper-v5": (1e-5, 1e-5, 2e-5),
    "Walker2d-v5": (5e-4, 1e-5, 2e-5),
    "Swimmer-v5": (1e-5, 1e-5, 2e-5),
    "Humanoid-v5": (3e-3, 5e-5, 2e-5),
}
TASKS = pytest.mark.parametrize("env_id", NEAR)


def warp_envs(script, env_id, num_envs, seed=1, capture=False):
    """Worlds of a script, its variables by name, in their first states."""
    compile_kernels(env_id)
    envs = script["WarpVectorEnv"](env_id, num_envs, CPU)
    if capture:
        for name in ("simulate", "derive"):
            setattr(envs, name, load(FAST).captured_by_warp(getattr(envs, name), envs.device))
    torch.manual_seed(seed)
    return envs, envs.reset()


def set_states(envs, qpos, qvel):
    """Puts worlds into states, (N, ...), in the middle of their episodes."""
    envs.qpos.copy_(torch.as_tensor(np.array(qpos)))
    envs.qvel.copy_(torch.as_tensor(np.array(qvel)))
    envs.qacc_warmstart.zero_()
    envs.done.zero_()
    envs.derive()
    envs.x.copy_(envs.position())


def in_mujoco(env, qpos, qvel):
    """Puts an environment of Gymnasium's into one of these states."""
    mujoco.mj_resetData(env.model, env.data)
    env.set_state(qpos.double().numpy(), qvel.double().numpy())
    env.data.qacc_warmstart[:] = 0
    return env._get_obs()


def close(found, expected, near, what):
    scale = 1 + np.abs(expected)
    error = np.abs(np.asarray(found, dtype=float) - expected) / scale
    assert error.max() < near, f"{what}: {error.max()}"


def check_one_step(script, env_id, count=256):
    """From states that random actions lead to: observation, reward, end."""
    env, rng = gym.make(env_id).unwrapped, np.random.default_rng(0)
    space, states = env.action_space, []
    env.reset(seed=0)
    while len(states) < count:
        states.append((np.float32(env.data.qpos), np.float32(env.data.qvel)))
        if env.step(rng.uniform(space.low, space.high))[2] or len(states) % 100 == 0:
            env.reset(seed=len(states))
    envs, _ = warp_envs(script, env_id, count)
    set_states(envs, *zip(*states, strict=True))
    actions = rng.uniform(space.low, space.high, (count, *space.shape)).astype(np.float32)
    obs, reward, terminated, truncated = envs.step(torch.from_numpy(actions))
    expected = []
    for (qpos, qvel), action in zip(states, actions, strict=True):
        in_mujoco(env, torch.from_numpy(qpos), torch.from_numpy(qvel))
        expected.append(env.step(action.astype(float))[:3])
    close(obs, np.stack([x[0] for x in expected]), NEAR[env_id][0], "observations")
    close(reward, np.array([x[1] for x in expected]), NEAR[env_id][1], "rewards")
    ends = [x[2] for x in expected]
    assert terminated.tolist() == ends and not truncated.any()
    assert any(ends) == (env_id not in ("HalfCheetah-v5", "Swimmer-v5"))
    assert envs.metrics["dropped_contacts"] == 0


def check_steps(script, env_id, count=8, steps=30):
    """From first states, through ends: first observations, rewards, flags. Every other world is cut
    in its tenth step."""
    envs, _ = warp_envs(script, env_id, count, seed=2, capture=True)
    space, limit = envs.single_action_space, envs.max_episode_steps
    assert limit == gym.spec(env_id).max_episode_steps
    single = [gym.make(env_id).unwrapped for _ in range(count)]
    rng, ends = np.random.default_rng(1), np.zeros(2, int)
    envs.done.fill_(True)
    anew, t = np.ones(count, bool), np.zeros(count, int)
    for step in range(steps):
        action = rng.uniform(space.low, space.high, (count, *space.shape)).astype(np.float32)
        obs, reward, terminated, truncated = envs.step(torch.from_numpy(action))
        if step == 0:
            envs.elapsed[::2] = limit - 10
            t[::2] = limit - 10
        for i, env in enumerate(single):
            if anew[i]:
                first, expected = in_mujoco(env, envs.qpos[i], envs.qvel[i]), (0.0, False)
                close(obs[i], first, 1e-5, f"world {i}'s first observation")
                noise = np.abs(env.data.qpos - env.init_qpos)
                assert 0 < noise.max() < 1.001 * envs.task.noise
                t[i] = t[i] * (step == 0)
            else:
                _, *expected = env.step(action[i].astype(float))[:3]
                t[i] += 1
            close(reward[i], expected[0], NEAR[env_id][2], f"reward {i} of step {step}")
            assert bool(terminated[i]) == expected[1], f"end of world {i} in step {step}"
            assert bool(truncated[i]) == (t[i] == limit and not anew[i])
        anew = (terminated | truncated).numpy()
        ends += [int(terminated.sum()), int(truncated.sum())]
    assert ends[1] > 0 and (ends[0] > 0) == (env_id not in ("HalfCheetah-v5", "Swimmer-v5"))


def check_ends(script, env_id, count=512):
    """What is seen and ends an episode, of states far and wide; nothing moves."""
    env, rng = gym.make(env_id).unwrapped, np.random.default_rng(2)
    envs, _ = warp_envs(script, env_id, count)
    envs.simulate = envs.derive = lambda: None
    qpos = rng.uniform(-2.5, 2.5, envs.qpos.shape).astype(np.float32)
    qpos[::2, 2] /= 20
    qvel = rng.uniform(-12, 12, envs.qvel.shape).astype(np.float32)
    qvel[::9] *= 10
    set_states(envs, qpos, qvel)
    obs, _, terminated, _ = envs.step(torch.zeros_like(envs.ctrl))
    ends, size = [], obs.shape[1] if env_id != "Humanoid-v5" else 45  # then come forces
    for i in range(count):
        env.data.qpos[:], env.data.qvel[:] = qpos[i], qvel[i]
        ends.append(not getattr(env, "is_healthy", True))
        np.testing.assert_array_equal(obs[i, :size], np.float32(env._get_obs()[:size]))
    assert terminated.tolist() == ends
    assert sum(ends) == 0 if not hasattr(env, "is_healthy") else 5 < sum(ends) < count - 5


def variables(edit=None, folder=None):
    """Of the eager script, by name, as they are without its main; its text edited on request."""
    if edit is None:
        return vars(load(EAGER))
    path = folder / f"{EAGER}.py"
    path.write_text(edit((PPO / path.name).read_text()))
    return runpy.run_path(str(path))


@pytest.mark.parametrize("check", [check_ends, check_one_step, check_steps])
@TASKS
def test_the_task_is_gymnasiums(env_id, check):
    check(variables(), env_id)


# as in test_mutants, and a task where it shows
MUTANTS = r"""
== task: Humanoid-v5
controls of a first state: {{torch.where(anew[:, None], 0.0, action)=>action}}
x of the next physics step: {{torch.where(anew, =>}}self.position(){{, x)=>}}
forces of the episode before: {{self.cfrc_ext.zero_()=>pass}}
no forces: {{mjw.rne_postconstraint(self.model, self.data)=>pass}}
inertias of the state before: {{self.derive()=>}}
x of the torso: {{(self.xipos[:, :, 0] * self.mass).sum(1=>self.qpos[:, 0].clone(}})
== task: HalfCheetah-v5
x of the episode before: {{torch.where(anew, self.position(), x)=>x}}
controls are free: {{reward -= self.cost()=>pass}}
first velocities are uniform: 0.1{{, normal=True=>}})
== task: Swimmer-v5
a physics step less: range(self.task.frame_skip{{=> - 1}})
the time of one physics step: {{* task.frame_skip=>}}
positions are seen: self.qpos{{[:, self.task.hidden :]=>}}
no time limit: self.elapsed {{>= self.max_episode_steps=>< 0}}
a step too many: self.elapsed {{>= self=>> self}}.max
the limit of the episode before: {{.masked_fill_(anew, 0)=>}}
starts anew at a fall alone: self.done.copy_(terminated |{{ truncated |=>}}
== task: Hopper-v5
health pays none: {{+ task.healthy_reward * healthy=>}}
velocities are not clipped: self.qvel{{.clamp(-limit, limit)=>}}
any height is healthy: {{(1, 0.7, INF), =>}}
first states are all one: self.first_qpos + {{self.task.noise=>0}}
first states on one side: {{2 * =>}}torch.rand_like(self.qpos){{ - 1=>}}
the reward of an autoreset step: {{torch.where(anew, 0.0, reward)=>reward}}
== task: Walker2d-v5
any angle is healthy: {{(2, -1.0, 1.0)=>}}
ends twice: ~healthy & sound{{ & ~anew=>}}
"""


def check_first_states(script, env_id):
    """Their distribution: of 4,096 worlds."""
    envs, _ = warp_envs(script, env_id, 64)
    qpos, qvel = (torch.cat(x) for x in zip(*[envs.first_states() for _ in range(64)], strict=True))
    noise = envs.task.noise
    offsets = (qpos - envs.first_qpos) / noise
    uniform = [offsets] if env_id == "HalfCheetah-v5" else [offsets, qvel / noise]
    for x in uniform:
        assert -1 <= x.min() < -0.99 and 0.99 < x.max() <= 1
        assert x.mean(0).abs().max() < 0.05 and (x.std(0) - 3**-0.5).abs().max() < 0.02
    if env_id == "HalfCheetah-v5":
        x = qvel / noise
        assert x.mean(0).abs().max() < 0.08 and (x.std(0) - 1).abs().max() < 0.05
        assert x.abs().max() > 3


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Humanoid-v5"])
def test_first_states(env_id):
    check_first_states(variables(), env_id)


@pytest.mark.parametrize(
    ("env_id", "changes"),
    [pytest.param(env_id, changes, id=what) for _, env_id, what, changes in mistakes(MUTANTS)],
)
def test_mutant_is_seen(env_id, changes, tmp_path):
    script = variables(partial(mutate, changes=changes), tmp_path)
    with pytest.raises((AssertionError, ValueError)):
        check_steps(script, env_id)  # sees most of them
        check_first_states(script, env_id)
        check_ends(script, env_id)


# Worlds


def actions_of(envs, rng):
    return 2 * torch.rand(envs.ctrl.shape, generator=rng) - 1


@pytest.mark.parametrize(
    ("env_id", "what"),
    [("HalfCheetah-v5", x) for x in (torch.nan, torch.inf, 1e12)] + [("Humanoid-v5", torch.nan)],
)
def test_a_world_that_diverges(env_id, what):
    """Says so by its reward, is no end of an episode, starts anew, and touches no other."""
    found = []
    for bad in (False, True):
        envs, _ = warp_envs(variables(), env_id, 4)
        rng = torch.Generator().manual_seed(4)
        torch.manual_seed(3)
        if bad:
            envs.qvel[2] = what
        found.append([envs.step(actions_of(envs, rng)) for _ in range(5)])
    good, bad = found
    others = [0, 1, 3]
    for a, b in zip(good, bad, strict=True):
        assert all(torch.equal(x[others], y[others]) for x, y in zip(a, b, strict=True))
    assert not any(bool(row[2][2]) for row in bad)
    assert bad[0][1][2].isnan() and bad[1][1][2] == 0
    assert all(x.isfinite().all() for row in bad[1:] for x in row)


def test_dropped_contacts_are_counted(capfd):
    """By world and step; that a solver stopped early is another matter. Warp prints nothing."""
    script = variables()
    envs, _ = warp_envs(script, "HalfCheetah-v5", 4)
    assert envs.model.opt.warn_overflow == 0
    kinds, simulate = script["mjw"].OverflowType, envs.simulate

    def overflow():
        simulate()
        envs.overflow[1] = int(kinds.NEFC | kinds.ITERATIONS)
        envs.overflow[2] = int(kinds.NARROWPHASE | kinds.BROADPHASE)
        envs.overflow[3] = int(kinds.ITERATIONS)

    envs.simulate = overflow
    for count in (2, 4, 6):
        envs.step(torch.zeros_like(envs.ctrl))
        assert envs.metrics["dropped_contacts"] == count
    assert not capfd.readouterr().out


# Scripts


def train(name, *flags, folder):
    """A run whose episodes are cut in their fifth step, and its curves."""
    line = "obs_shape, action_shape = envs.single_observation_space.shape, "
    short = insert(f"{line}envs.single_action_space.shape", "envs.max_episode_steps = 5")
    flags = [*TINY, "--num-envs", 4, "--total-timesteps", 128, *flags]
    run = run_main(name, *flags, runs_dir=folder, edit=short)
    return run, curves(run)


def test_captured_is_eager(tmp_path, monkeypatch):
    """--compile without what the compiler makes: physics is captured, and no bit differs."""
    monkeypatch.setattr(torch, "compile", lambda function: function)
    one, expected = train(EAGER, folder=tmp_path / "1")
    assert len(one.episodic_returns) > 10
    assert expected["charts/dropped_contacts"] == [(32 * i, 0.0) for i in range(1, 5)]
    for flags in ([], ["--no-physics-graph"]):
        two, others = train(FAST, "--compile", *flags, folder=tmp_path / f"2{len(flags)}")
        assert expected == others
        for key, rows in one.storage.items():
            assert torch.equal(rows, two.storage[key]), key
        launches = two.envs.simulate.__name__ == "simulate"
        assert launches == bool(flags), "captured, or launched kernel by kernel"


def test_seeds_share_no_episode(tmp_path):
    """Nor does a run that goes on play what it played before."""
    few = "--total-timesteps", 32
    one, _ = train(EAGER, *few, folder=tmp_path / "1")
    two, _ = train(EAGER, *few, "--seed", 2, folder=tmp_path / "2")
    again, _ = train(EAGER, "--resume", one.run_dir, "--total-timesteps", 64, folder="unused")
    first = torch.stack([run.storage["obs"][0] for run in (one, two, again)]).flatten(0, 1)
    assert len(first.unique(dim=0)) == len(first)


def test_a_pendulum_of_ones_own():
    """The example is Gymnasium's, step by step. It trains: test_scripts."""
    torch.manual_seed(1)
    envs, env = my_warp_env.Pendulum(3, CPU), gym.make("Pendulum-v1").unwrapped
    obs, _ = envs.reset(), env.reset()
    for step in range(envs.max_episode_steps):
        env.state = np.array([envs.angle[1].item(), envs.speed[1].item()])
        np.testing.assert_allclose(obs[1], env._get_obs(), atol=1e-6)
        action = 4 * torch.rand(3, 1) - 2
        obs, reward, terminated, truncated = envs.step(action)
        expected, paid, *_ = env.step(action[1].numpy())
        np.testing.assert_allclose(obs[1], expected, atol=1e-5)
        np.testing.assert_allclose(reward[1], paid, atol=1e-5)
        assert truncated.all() == (step == 199) and not terminated.any()
    obs, reward, *flags = envs.step(action)
    assert not reward.any() and not torch.stack(flags).any() and envs.elapsed.eq(0).all()


def test_where_all_worlds_diverge(tmp_path, monkeypatch):
    """The run ends before that gets into a checkpoint, at once where first observations are odd."""
    with pytest.raises(FloatingPointError, match="in iteration 1 88% of steps diverged"):
        run_main(EAGER, *TINY, "--env-id", "worlds:Broken", runs_dir=tmp_path)
    assert not [*tmp_path.glob("*/checkpoint.pt")]
    monkeypatch.setattr(worlds.Worlds, "reset", lambda self: torch.full((len(self.n), 3), 1e11))
    with pytest.raises(AssertionError, match="a first observation is not sound"):
        run_main(EAGER, *TINY, "--env-id", "worlds:Worlds", runs_dir=tmp_path)


# What a graph could not have


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Humanoid-v5"])
def test_no_host_read_and_no_dynamic_shape(env_id):
    """Of a step in WarpVectorEnv, Warp's own launches left out: on tensors without data. The
    script's own lines: test_device."""
    script = variables()
    envs, obs = warp_envs(script, env_id, 4)
    envs.simulate = envs.derive = lambda: None
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        for name, value in vars(envs).items():
            if isinstance(value, torch.Tensor):
                setattr(envs, name, mode.from_tensor(value))
        envs.metrics = {name: mode.from_tensor(x) for name, x in envs.metrics.items()}
        shapes = {"obs": obs.shape, "actions": envs.ctrl.shape, "valid": (4,)}
        storage = {key: torch.zeros((2, *shape)) for key, shape in shapes.items()}
        signals = torch.zeros((7, 2, 4), dtype=torch.float64)
        args = script["Args"](num_steps=1, num_envs=4, num_minibatches=2)
        script["rollout"](script["Agent"](envs), envs, storage, signals, args)


# Arguments


def test_the_tasks_arguments():
    """A number of Gymnasium's task, and what a class of one's own takes."""
    script = variables()
    task = script["Args"](env_id="Hopper-v5", num_envs=2, env_kwargs='{"healthy_reward": 0.0}')
    envs = script["make_envs"](task, CPU)
    given = script["TASKS"]["Hopper-v5"].healthy_reward
    assert envs.task.healthy_reward == 0 and given == 1
    envs.reset()
    _, reward, *_ = envs.step(torch.zeros(2, 3))
    assert reward.abs().max() < 0.5, "of its speed alone"
    mine = script["Args"](env_id="worlds:Unbounded", num_envs=2, env_kwargs='{"limit": 7}')
    with pytest.raises(TypeError, match="limit"):
        script["make_envs"](mine, CPU)


# Bad input


def test_an_unknown_task(tmp_path):
    with pytest.raises(SystemExit, match="there are HalfCheetah-v5, "):
        run_main(EAGER, "--env-id", "Halfcheetah-v4", runs_dir=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="Warp may find the GPU")
def test_a_gpu_that_warp_does_not_find():
    script = variables()
    with pytest.raises(SystemExit, match="driver 580; else .warp-lang<1.18."):
        script["make_envs"](script["Args"](), torch.device("cuda"))


@pytest.mark.parametrize("package", ["mujoco_warp", "warp"])
def test_a_missing_package_is_named(package, tmp_path, monkeypatch):
    """Where a task needs it; a class of one's own may not."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit, match="pip install mujoco mujoco-warp warp-lang$"):
        run_main(EAGER, *TINY, "--env-id", "Hopper-v5", runs_dir=tmp_path)
    run = run_main(EAGER, *TINY, "--env-id", "worlds:Unbounded", runs_dir=tmp_path)
    assert run.summary["complete"]
