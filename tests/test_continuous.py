"""Normalisation, time limits, masks and NumPy acting of the continuous-action scripts."""

import gymnasium as gym
import numpy as np
import pytest
from helpers import SCRIPTS, TINY, load, run_main

import torch
from torch.distributions import Normal

CONTINUOUS = [name for name in SCRIPTS if "continuous" in name]
pytestmark = pytest.mark.parametrize("name", CONTINUOUS)


def make_hoppers():
    """3 Hoppers that fall within some 20 random steps, or are cut at 25."""
    return gym.vector.SyncVectorEnv(
        [lambda: gym.make("Hopper-v4", max_episode_steps=25, disable_env_checker=True)] * 3
    )


def test_normalisation_equals_gymnasium(name):
    """400 steps with terminations and truncations, against Gymnasium's vector wrappers, clipped."""
    gamma = 0.97
    raw = make_hoppers()
    wrapped = gym.wrappers.vector.NormalizeObservation(make_hoppers())
    wrapped = gym.wrappers.vector.NormalizeReward(wrapped, gamma=gamma)
    normalizer = load(name).Normalizer(3, raw.single_observation_space.shape, gamma)
    rng = np.random.default_rng(0)
    obs, _ = raw.reset(seed=[1, 2, 3])
    expected, _ = wrapped.reset(seed=[1, 2, 3])
    np.testing.assert_allclose(normalizer.observation(obs), expected.clip(-10, 10), atol=1e-6)
    ends, clipped = np.zeros(2, dtype=int), 0
    for _ in range(400):
        actions = rng.uniform(-1, 1, (3, 3))
        obs, reward, terminated, truncated, _ = raw.step(actions)
        expected_obs, expected_reward, *_ = wrapped.step(actions)
        ends += terminated.sum(), truncated.sum()
        clipped += (np.abs(expected_obs) > 10).sum() + (np.abs(expected_reward) > 10).sum()
        found = normalizer.observation(obs)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected_obs.clip(-10, 10), rtol=1e-6, atol=1e-6)
        found = normalizer.reward(reward, terminated, truncated)
        np.testing.assert_allclose(found, expected_reward.clip(-10, 10), rtol=1e-6, atol=1e-6)
    assert (ends > 3).all() and clipped > 0
    np.testing.assert_allclose(normalizer.obs.mean, wrapped.env.obs_rms.mean, rtol=1e-6)
    np.testing.assert_allclose(normalizer.obs.var, wrapped.env.obs_rms.var, rtol=1e-6)
    # Gymnasium sums the discounted rewards in float32
    np.testing.assert_allclose(normalizer.returns.var, wrapped.return_rms.var, rtol=1e-5)


class Counter(gym.Env):
    """Counts its steps, pays 1 for each, and ends after `length` of them."""

    def __init__(self, length, terminal):
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (1,))
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,))
        self.length, self.terminal = length, terminal

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action):
        assert action.shape == (2,) and np.abs(action).max() <= 1, (
            "actions are clipped to the space"
        )
        self.t += 1
        end = self.t == self.length
        obs = np.full(1, self.t, dtype=np.float32)
        return obs, 1.0, end and self.terminal, end and not self.terminal, {}


class DictCounter(Counter):
    def __init__(self):
        super().__init__(3, False)
        box = self.observation_space
        self.observation_space = gym.spaces.Dict({"one": box, "two": box})

    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        return {"one": obs, "two": 2 * obs}, info

    def step(self, action):
        obs, *rest = super().step(action)
        return {"one": obs, "two": 2 * obs}, *rest


gym.register("Cut-v0", lambda: Counter(3, False))
gym.register("Ends-v0", lambda: Counter(3, True))
gym.register("Dict-v0", DictCounter)

GAMMA, VALUE = 0.75, 4.0  # 1 / (1 - GAMMA): the value of a reward of 1 for ever


def known_value(text):
    """The script with the critic's answer set to VALUE and rewards left as they are."""
    for old, new in (
        ("self.critic(obs).squeeze(-1)", f"self.critic(obs).squeeze(-1) * 0 + {VALUE}"),
        ("normalizer.reward(reward, terminated, truncated)", "reward"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


def test_time_limits_bootstrap(name, tmp_path):
    """A reward of 1 for ever is worth 4 at a discount of 0.75, cut into episodes of 3 or not.

    With that value every advantage is 0; where the end is taken as terminal, its row has 1 - 4.
    """
    flags = "--num-envs 2 --num-steps 10 --num-minibatches 2 --total-timesteps 20".split()
    flags += ["--gamma", GAMMA, "--gae-lambda", 0.5]
    for env_id, extra, last in (
        ("Cut-v0", [], 0.0),
        ("Ends-v0", [], 1 - VALUE),
        ("Cut-v0", ["--cleanrl-semantics"], 1 - VALUE),
    ):
        all_flags = [*flags, "--env-id", env_id, *extra]
        run = run_main(name, *all_flags, runs_dir=tmp_path / "runs", edit=known_value)
        # rows 0 to 2 are an episode's steps, row 3 its last observation, and so on
        ends = [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]
        assert run.host_dones[:, 0].tolist() == run.host_dones[:, 1].tolist() == ends
        advantages = run.storage["advantages"][:10, 0].tolist()
        decay = GAMMA * 0.5
        expected = [last * decay**2, last * decay, last]
        assert advantages[0:3] == advantages[4:7] == pytest.approx(expected, abs=1e-6)
        valid = run.storage["valid"][:10, 0].tolist()
        assert valid == ([1] * 10 if extra else [1, 1, 1, 0, 1, 1, 1, 0, 1, 1])
        if not extra:
            assert advantages[8:] == pytest.approx([0, 0], abs=1e-6), "the rollout's end bootstraps"


def test_statistics_and_carry(name, tmp_path):
    """2 rollouts of 3 steps of episodes of 3: row 0 of the second is the reset row."""
    flags = "--num-envs 2 --num-steps 3 --num-minibatches 2 --total-timesteps 12".split()
    run = run_main(name, *flags, "--env-id", "Cut-v0", runs_dir=tmp_path)
    assert run.storage["valid"][:3, 0].tolist() == [0, 1, 1]
    assert list(run.recent_returns) == [3.0, 3.0]
    statistics = load(name).EpisodeStatistics(1)
    no, yes, one = np.array([False]), np.array([True]), np.ones(1)
    assert statistics.step(one, no, no) == []
    assert statistics.step(one, no, yes) == [(2.0, 2)]
    assert statistics.step(100 * one, no, no) == [], "a reset row"
    assert statistics.step(one, yes, no) == [(1.0, 1)]


def test_dictionary_observations_are_flattened(name, tmp_path):
    run = run_main(name, *TINY, "--env-id", "Dict-v0", runs_dir=tmp_path)
    assert run.storage["obs"].shape == (9, 2, 2)


def test_logprob_is_of_the_unclipped_action(name, tmp_path):
    """With a standard deviation of 1 a third of the actions leaves ±1; they are stored as drawn."""
    run = run_main(name, *TINY, "--env-id", "Cut-v0", runs_dir=tmp_path)
    actions = run.storage["actions"][:8]
    assert (actions.abs() > 1).any()
    assert actions.std() > 0.7


def test_seeds_share_no_environment(name):
    module = load(name)
    first = {}
    for seed in (1, 2, 3):
        run = np.random.SeedSequence(seed).generate_state(16).tolist()
        envs = module.make_envs(module.Args(seed=seed, num_envs=16, env_id="Pendulum-v1"))
        first[seed] = {tuple(row) for row in envs.reset(seed=run)[0].tolist()}
        assert len(first[seed]) == 16
    assert not (first[1] & first[2] or first[2] & first[3] or first[1] & first[3])


def test_numpy_acting_is_the_policy(name, tmp_path):
    """What NumPy sampled, and what one pass says of it, is what the network says row by row."""
    if not name.endswith("_torchcompile"):
        pytest.skip("the eager script acts in PyTorch")
    run = run_main(name, *TINY, "--compile", runs_dir=tmp_path)
    assert run.acts_in_numpy
    with torch.no_grad():  # agent_inference still has the weights of the last rollout
        mean, std, values = run.agent_inference(run.storage["obs"])
    close = dict(rtol=1e-5, atol=1e-6)
    expected = mean + std * run.noise
    torch.testing.assert_close(run.storage["actions"][:8], expected[:8], **close)
    logprobs = Normal(mean, std).log_prob(run.storage["actions"]).sum(-1)
    torch.testing.assert_close(run.storage["logprobs"][:8], logprobs[:8], **close)
    torch.testing.assert_close(run.storage["values"], values, **close)
