"""Rewards and returns that are rare; what --hide leaves out; images and
numbers as a network sees them. All else: test_reference."""

from types import SimpleNamespace

import doors
import envpool
import gymnasium as gym
import numpy as np
import pytest
from helpers import AtariSpaces, load, run_main

import torch


class Counter(doors.Still):
    """Pays for a step by the number of steps so far, in all its episodes."""

    def __init__(self, length, pay):
        self.length, self.pay, self.total = length, pay, 0

    def reset(self, *, seed=None, options=None):
        self.total = 0 if seed is not None else self.total
        return super().reset(seed=seed)

    def step(self, action):
        self.total += 1
        obs, _, *rest = super().step(action)
        return obs, self.pay(self.total), *rest


class Pushed(Counter):
    action_space = gym.spaces.Box(-1.0, 1.0, (2,))


gym.register("Game-v0", lambda: Counter(1, float))  # its returns are 1, 2, 3, ...
gym.register("Falls-v0", "gymnasium.envs.mujoco.hopper_v4:HopperEnv", max_episode_steps=25)
gym.register("Rare-v0", lambda: Pushed(400, lambda t: float(t == 100)))


@pytest.mark.parametrize("name", ["ppo_continuous_action", "ppo_continuous_action_lstm"])
def test_a_rare_reward_is_clipped(name, tmp_path):
    """One of 1 in 300 steps, hardly discounted: 17 of its sums' deviations."""
    flags = "--env-id Rare-v0 --num-envs 1 --num-steps 300 --total-timesteps 300".split()
    flags += "--num-minibatches 1 --update-epochs 1 --gamma 0.01".split()
    rewards = run_main(name, *flags, runs_dir=tmp_path).rewards
    assert (rewards == 10).sum() == 1 and (rewards == 0).sum() == 299


def test_rewards_are_scaled_as_by_gymnasium(tmp_path):
    """130 steps of 3 Hoppers that fall or are cut at 25, against Gymnasium's vector wrapper, which
    scales a step's rewards by what is known then."""
    flags = "--env-id Falls-v0 --num-envs 3 --num-steps 130 --total-timesteps 390".split()
    flags += "--num-minibatches 2 --update-epochs 1 --gamma 0.97".split()
    run = run_main("ppo_continuous_action", *flags, runs_dir=tmp_path)
    envs = gym.vector.SyncVectorEnv([lambda: gym.make("Falls-v0", disable_env_checker=True)] * 3)
    wrapped, ends = gym.wrappers.vector.NormalizeReward(envs, gamma=0.97), np.zeros(2, dtype=int)
    wrapped.reset(seed=run.seeds.tolist())
    for actions in run.storage["actions"][:-1].numpy():
        _, reward, terminated, truncated, _ = wrapped.step(actions.clip(-1, 1))
        ends += terminated.sum(), truncated.sum()
    assert ends[0] > 3 and ends[1] > 0
    # Gymnasium sums the discounted rewards in float32
    np.testing.assert_allclose(run.return_rms.var[0], wrapped.return_rms.var, rtol=1e-5)
    np.testing.assert_allclose(run.rewards[-1], reward.clip(-10, 10), rtol=1e-5, atol=1e-5)


def test_mean_return_is_of_the_last_100_games(tmp_path):
    """Of the last N where there are more environments: 100 would hold just the short games."""
    flags = ["--env-id", "Game-v0", "--num-minibatches", 1, "--update-epochs", 1]
    sizes = ["--num-envs", 1, "--num-steps", 220, "--total-timesteps", 220]
    run = run_main("ppo", *flags, *sizes, runs_dir=tmp_path)
    assert run.episodic_returns == [*range(1, 111)]
    assert run.summary["mean_return"] == np.mean(range(11, 111))
    sizes = ["--num-envs", 120, "--num-steps", 3, "--total-timesteps", 360]
    run = run_main("ppo", *flags, *sizes, runs_dir=tmp_path / "many")
    assert run.episodic_returns == [1] * 120 + [2] * 120 and run.summary["mean_return"] == 2
    assert len(run.recent) == 120


SIZES = "--num-envs 4 --num-steps 8 --num-minibatches 2 --total-timesteps 32".split()
DISCRETE, CONTINUOUS = "ppo_lstm", "ppo_continuous_action_lstm"


def test_what_is_hidden(tmp_path):
    """By default velocities of CartPole and Pendulum, of other environments nothing; and no
    statistics are kept of it."""
    for name, env_id, hide, entries in (
        (DISCRETE, "CartPole-v1", [], 2),
        (DISCRETE, "CartPole-v1", ["--hide", 2], 3),
        (DISCRETE, "Acrobot-v1", [], 6),
        (DISCRETE, "Acrobot-v1", ["--hide", 4, 5], 4),
        (DISCRETE, "CliffWalking-v1", [], 48),
        (CONTINUOUS, "Hopper-v4", [], 11),
        (CONTINUOUS, "Hopper-v4", ["--hide", 0, 10], 9),
        (CONTINUOUS, "Pendulum-v1", [], 2),
    ):
        folder = tmp_path / f"{env_id} {len(hide)}"
        run = run_main(name, "--env-id", env_id, *hide, *SIZES, runs_dir=folder)
        assert run.obs.shape == (9, 4, entries)
        hidden = {"CartPole-v1": (1, 3), "Pendulum-v1": (2,)}.get(env_id, ())
        assert run.args.hide == (tuple(hide[1:]) or hidden)
        assert name == DISCRETE or run.agent.obs_rms.mean.shape == (entries,)
    torch.testing.assert_close(run.obs.square().sum(-1), torch.ones(9, 4))  # cosine and sine


@pytest.mark.parametrize("size", [(40, 50), (50, 36), (10, 10), (3, 7)])
def test_forms_of_an_image(size):
    """Grey, colours last or first, frames in front of either, bits: one image, one network."""
    pixels = np.random.default_rng(0).integers(0, 256, (5, 2, 3, *size), np.uint8)  # frames, C
    forms = {  # axes of an observation, its pixels as the network is to see them
        "grey": (pixels[:, 0, 0], pixels[:, :1, 0]),
        "colours last": (np.moveaxis(pixels[:, 0], 1, 3), pixels[:, 0]),
        "frames, colours last": (np.moveaxis(pixels, 2, 4), pixels.reshape(5, 6, *size)),
    }
    if size != (3, 7):  # there colours in front are as many as rows
        forms["colours first"] = pixels[:, 0], pixels[:, 0]
        forms["frames, colours first"] = pixels, pixels.reshape(5, 6, *size)
    for form, (obs, seen) in forms.items():
        space = gym.spaces.Box(0, 255, obs.shape[1:], np.uint8)
        envs = SimpleNamespace(
            single_observation_space=space, single_action_space=AtariSpaces().single_action_space
        )
        agent = load("ppo_pixels").Agent(envs)
        expected = agent.critic(agent.network(torch.from_numpy(seen) / 255))[:, 0]
        probs, value = agent(torch.from_numpy(obs))
        torch.testing.assert_close(value, expected, msg=form)
        assert probs.logits.shape == (5, 4)
        envs.single_observation_space = gym.spaces.Box(0, 1, obs.shape[1:], bool)
        of_bits = load("ppo_pixels").Agent(envs)
        of_bits.load_state_dict(agent.state_dict())
        white = torch.from_numpy(obs > 99)
        assert torch.equal(of_bits(white)[1], agent(white.byte() * 255)[1])


def test_whole_numbers_are_one_hot(monkeypatch):
    """As Gymnasium flattens them: alone, counted from another number, and in dictionaries within
    dictionaries, whose arrays are joined in the order in which EnvPool gives them."""
    make_envs, flags = load("ppo_envpool").make_envs, {"env_kwargs": "{}"}
    envs = make_envs(SimpleNamespace(env_id="Taxi-v3", **flags), np.arange(3))
    obs, _ = envs.reset()
    raw, _ = envpool.make("Taxi-v3", env_type="gym", num_envs=3, seed=[0, 1, 2]).reset()
    assert obs.shape == (3, *envs.single_observation_space.shape) and (obs.sum(1) == 1).all()
    assert obs.argmax(1).tolist() == raw.tolist()

    space = gym.spaces.Dict(
        a=gym.spaces.Discrete(3, start=5),
        b=gym.spaces.Dict(c=gym.spaces.Box(-1, 1, (2, 2)), d=gym.spaces.Discrete(2)),
    )
    given = {"a": np.array([5, 7]), "b": {"c": np.ones((2, 2, 2)), "d": np.array([1, 0])}}

    class Odd(gym.vector.VectorEnv):
        num_envs = 2
        single_observation_space, single_action_space = space, gym.spaces.Discrete(2)
        observation_space = gym.vector.utils.batch_space(space, 2)

        def reset(self, *, seed=None, options=None):
            return given, {}

    monkeypatch.setattr(envpool, "make", lambda *args, **more: Odd())
    envs = make_envs(SimpleNamespace(env_id="Odd", **flags), np.arange(2))
    obs, _ = envs.reset()
    assert obs.tolist() == [[1, 0, 0, 1, 1, 1, 1, 0, 1], [0, 0, 1, 1, 1, 1, 1, 1, 0]]


def test_numbers_become_planes():
    """By the example's wrapper: behind the colours, each as grey as it is large."""
    spaces = {
        "image": gym.spaces.Box(0, 255, (4, 5, 3), np.uint8),
        "speed": gym.spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 10.0]), dtype=np.float64),
    }
    env = gym.Env()
    env.observation_space = gym.spaces.Dict(spaces)
    planes = load("my_pixels").Planes(env, "image")
    image = spaces["image"].sample()
    seen = planes.observation({"image": image, "speed": np.array([1.0, 12.0])})
    assert planes.observation_space.contains(seen) and seen.shape == (4, 5, 5)
    assert np.array_equal(seen[..., :3], image)
    assert (seen[..., 3] == 191).all() and (seen[..., 4] == 255).all()
