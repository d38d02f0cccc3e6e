"""The environments of examples/: by Gymnasium's own checks, and played to their ends."""

import importlib
import sys
from types import SimpleNamespace

import deep_sea  # noqa: F401, registers DeepSea-v0
import gymnasium as gym
import lock  # noqa: F401, registers Lock-v0
import my_envs  # noqa: F401, registers HiddenCartPole-v1
import numpy as np
import ppo_eval
import pytest
import rsl_env
import shop
import tmaze  # noqa: F401, registers TMaze-v0
from gymnasium.utils.env_checker import check_env
from helpers import ROOT, TINY, command, run_main, run_script

import torch


@pytest.mark.parametrize(
    "env_id", "Lock-v0 DeepSea-v0 HiddenCartPole-v1 HiddenPendulum-v1 Shop-v0".split()
)
def test_gymnasium_accepts_it(env_id):
    check_env(gym.make(env_id).unwrapped, skip_render_check=True)


def play(env, actions):
    """Observations, rewards and the last flags of an episode of these actions."""
    seen, rewards, ends = [env.reset(seed=1)[0]], [], (False, False)
    for action in actions:
        assert not any(ends)
        obs, reward, *ends, _ = env.step(action)
        seen.append(obs)
        rewards.append(reward)
    return np.stack(seen), rewards, ends


def test_the_lock_opens_by_its_combination():
    env = gym.make("Lock-v0")
    keys = env.unwrapped.combination
    wrong = [*keys[:5], (keys[5] + 1) % 4, *keys]  # back to the start, where all begins anew
    seen, rewards, ends = play(env, wrong)
    assert seen.argmax(1).tolist() == [*range(6), *range(21)] and (seen.sum(1) == 1).all()
    assert rewards == [0.0] * 25 + [1.0] and ends == [True, False]
    assert play(env, [(keys[0] + 1) % 4] * 100)[2] == [False, True], "its time limit"


def test_the_treasure_is_where_all_steps_go_right():
    env = gym.make("DeepSea-v0")
    right = env.unwrapped.right
    _, rewards, ends = play(env, right.diagonal())
    assert sum(rewards) == pytest.approx(0.99) and ends == [True, False]
    seen, rewards, ends = play(env, [1 - right[row, 0] for row in range(20)])  # along the left edge
    assert rewards == [0.0] * 20 and ends == [True, False] and not seen[-1].any()
    assert seen[:20].argmax(1).tolist() == [20 * row for row in range(20)]


def test_the_shop(tmp_path):
    """By the patches that its header names, in processes; it plays here, by what the shop says."""
    patches = shop.__doc__.partition("--patch ")[2].partition("\n")[0].split()
    assert len(patches) == 4
    assert command("fork", "ppo", tmp_path / "mine", "--patch", *patches).returncode == 0
    words = *TINY, "--async-envs", "--env-id", "shop:Shop-v0"
    env = {"PYTHONPATH": str(ROOT / "examples")}
    done = run_script(tmp_path / "mine.py", *words, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    policy, env = ppo_eval.load(run), gym.make("Shop-v0")
    action = policy.act(env.reset(seed=1)[0])
    assert env.action_space.contains(action) and not env.step(action)[2]


def test_the_maze(tmp_path):
    """The cue once, the junction once, noise; 1 for the cue's action there and nowhere else. It is
    trained on."""
    env, returns = gym.make("tmaze:TMaze-v0", length=7), []
    env.action_space.seed(0)
    for episode in range(40):
        obs, _ = env.reset(seed=episode)
        cue, over = obs[0], False
        right = int(cue == 1) if episode % 2 else int(cue == -1)
        for step in range(8):
            assert not over and env.observation_space.contains(obs)
            assert (obs[0] != 0) == (step == 0) and (obs[1] == 1) == (step == 7)
            action = right if step == 7 else env.action_space.sample()
            obs, reward, over, cut, _ = env.step(action)
            assert not cut and (reward == 0 or over)
        returns.append((reward, cue))
    assert over and [x for x, _ in returns] == [-1.0, 1.0] * 20
    assert {cue for _, cue in returns} == {-1.0, 1.0}
    run = run_main("ppo_trxl", *TINY, "--env-id", "tmaze:TMaze10-v0", runs_dir=tmp_path)
    assert run.episodic_returns and set(run.episodic_returns) <= {-1.0, 1.0}


class Manager:
    """The parts of mjlab's ManagerBasedRlEnv that an adapter needs: counters that walk to 6 where
    they end, or are cut after 9 steps; what is seen is the world's number and the counter, and of
    the critic's group the counter alone."""

    def __init__(self, cfg, device):
        self.num_envs, self.cfg = cfg.scene.num_envs, cfg
        boxes = {"actor": gym.spaces.Box(-9, 9, (2,)), "critic": gym.spaces.Box(-9, 9, (1,))}
        self.single_observation_space = gym.spaces.Dict(boxes)
        self.single_action_space = gym.spaces.Box(-np.inf, np.inf, (1,))
        self.max_episode_length, self.common_step_counter = 9, 0
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.int64)
        self._manual_reset_pending = torch.zeros(self.num_envs, dtype=torch.bool)
        self.at, self.extras = torch.zeros(self.num_envs), {"log": {}}
        self.scene = SimpleNamespace(terrain=None)

    def seen(self):
        actor = torch.stack([torch.arange(self.num_envs).float(), self.at], 1)
        return {"actor": actor, "critic": self.at[:, None]}

    def reset(self, env_ids=slice(None)):
        self.at[env_ids], self.episode_length_buf[env_ids] = -1.0, 0
        self._manual_reset_pending[env_ids] = False
        return self.seen(), {}

    def step(self, action):
        assert not self._manual_reset_pending.any()
        self.common_step_counter += 1
        self.at += 1.0 + (torch.arange(self.num_envs) % 2) * (action[:, 0] > -9e9)
        self.episode_length_buf += 1
        terminated = self.at >= 6.0 + 9 * (torch.arange(self.num_envs) == 0)
        truncated = (self.episode_length_buf >= 9) & ~terminated
        self._manual_reset_pending[:] = terminated | truncated
        self.extras["log"] = {"Episode_Reward/at": self.at.mean(), "level": 2}
        return self.seen(), self.at.clone(), terminated, truncated, self.extras


class Vec:
    """The same by rsl_rl's VecEnv, which resets in the step that ends an episode."""

    def __init__(self, env, last):
        self.env, self.last, self.num_actions = env, last, 1
        self.max_episode_length = env.max_episode_length
        env.reset()

    @property
    def episode_length_buf(self):
        return self.env.episode_length_buf

    def get_observations(self):
        return self.env.seen()

    def step(self, action):
        obs, reward, terminated, truncated, extras = self.env.step(action)
        extras = extras | {"time_outs": truncated} | ({"final_obs": obs} if self.last else {})
        done = terminated | truncated
        if done.any():
            obs, _ = self.env.reset(done.nonzero().squeeze(1))
        return obs, reward, done.long(), extras


def walk(envs, steps):
    """What is seen at first and after each step, rewards, ends and cuts, of all worlds."""
    rows = [(envs.reset(), *torch.zeros(3, 3))]
    rows += [envs.step(torch.zeros(3, 1)) for _ in range(steps)]
    return [torch.stack([torch.as_tensor(x[i]).float() for x in rows]) for i in range(4)]


def test_a_task_of_mjlab(monkeypatch):
    """By a stand-in, as mjlab wants an environment of its own: world 0 is cut at its time limit,
    the others end; the step behind an end starts anew. A resumed run's curriculum goes on."""
    cfg = SimpleNamespace(scene=SimpleNamespace(), is_finite_horizon=False)
    parts = {"": {}, ".tasks": {}, ".envs": {"ManagerBasedRlEnv": Manager}}
    parts[".tasks.registry"] = {"load_env_cfg": lambda task: cfg}
    for name, names in parts.items():
        monkeypatch.setitem(sys.modules, f"mjlab{name}", SimpleNamespace(**names))
    mjlab = importlib.import_module("mjlab_env")
    envs = getattr(mjlab, "Mjlab-Some-Task")(3, "cpu")
    envs.load({"steps": 100, "levels": None})
    obs, rewards, terminated, truncated = walk(envs, 10)
    assert obs[:, 0, 1].tolist() == [-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, -1]
    assert obs[:, 1, 1].tolist() == [-1, 1, 3, 5, 7, -1, 1, 3, 5, 7, -1]
    assert truncated[:, 0].nonzero().tolist() == [[9]] and not truncated[:, 1:].any()
    assert terminated[:, 1].nonzero().tolist() == [[4], [9]] and not terminated[:, 0].any()
    assert rewards[:, 1].tolist() == [0, 1, 3, 5, 7, 0, 1, 3, 5, 7, 0]
    assert envs.metrics["level"] == 2 and not envs.metrics, "means since they were read"
    assert envs.state()["steps"] == 100 + 10 and envs.see("actor", "critic") == [2, 1]
    assert envs.single_observation_space.shape == (3,) and not envs.capturable
    envs.time_limits_end = True
    *_, terminated, truncated = walk(envs, 10)
    assert terminated[9, 0] and not truncated.any()


@pytest.mark.parametrize("last", [False, True])
def test_a_simulator_that_resets_at_once(last):
    """Its last observation where it is given, else the one before; a row behind an end is none."""
    cfg = SimpleNamespace(scene=SimpleNamespace(num_envs=3))
    envs = rsl_env.RslRl(Vec(Manager(cfg, "cpu"), last))
    obs, rewards, terminated, truncated = walk(envs, 10)
    end = 8 if last else 7
    assert obs[:, 0, 1].tolist() == [-1, 0, 1, 2, 3, 4, 5, 6, 7, end, 0]
    fall = 7 if last else 5
    assert obs[:, 1, 1].tolist() == [-1, 1, 3, 5, fall, 1, 3, 5, fall, 1, 3]
    assert terminated[:, 1].nonzero().tolist() == [[4], [8]] and rewards[5, 1] == 0
    assert truncated[:, 0].nonzero().tolist() == [[9]] and rewards[4, 1] == 7
    envs.obs[:], envs.elapsed[:] = torch.nan, 9  # as the script does with worlds that diverge
    assert envs.step(torch.zeros(3, 1))[0].isfinite().all()
    assert envs.see("critic", "actor") == [1, 2] and envs.reset().shape == (3, 3)
    assert set(envs.metrics) == {"Episode_Reward/at", "level"}
