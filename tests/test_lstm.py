"""The memory: nn.LSTM's cell, zeroed after an episode's last row; what is hidden.

Of one script: all have one text of it (test_pair). That learning computes what acting did, and its
gradient: test_reference.
"""

from functools import partial

import gymnasium as gym
import numpy as np
from helpers import load, run_main

import torch
import torch.nn as nn

close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6)


def test_the_cell_is_pytorchs():
    """A row is nn.LSTM's step, a sequence its steps; with ends there are several, each from no
    memory, and after an end there is none."""
    torch.manual_seed(0)
    ours, theirs = load("ppo_lstm").LSTM(5, 7), nn.LSTM(5, 7)
    for parameter in ours.parameters():  # biases are 0 at first
        parameter.data.uniform_(-0.7, 0.7)
    state, x, dones = torch.randn(2, 3, 7), torch.randn(9, 3, 5), torch.zeros(9, 3)
    weights = ours.from_x.weight, ours.from_h.weight, ours.from_x.bias, ours.from_h.bias
    for parameter, value in zip(theirs.parameters(), weights, strict=True):
        parameter.data.copy_(value)
    given = tuple(state[:, None])  # hidden and cell, (1, 3, 7) each
    expected, (h, c) = theirs(x, given)
    hidden, after = ours(x.flatten(0, 1), state, dones.flatten())
    close(hidden, expected.flatten(0, 1)), close(after, torch.cat([h, c]))
    for row, found in zip(x, expected, strict=True):
        hidden, state = ours(row, state)
        close(hidden, found)
    close(state, after)
    dones[4] = dones[8] = 1  # the last rows of two episodes
    hidden, after = ours(x.flatten(0, 1), torch.cat(given), dones.flatten())
    expected = torch.cat([theirs(x[:5], given)[0], theirs(x[5:])[0]])
    expected[dones == 1] = 0
    close(hidden, expected.flatten(0, 1))
    assert not after.any()


class Counts(gym.Env):
    """Three numbers without bounds of their own to be seen."""

    observation_space, action_space = gym.spaces.MultiDiscrete([5, 5, 5]), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.arange(3), {}

    def step(self, action):
        return np.arange(3), 1.0, False, False, {}


gym.register("Counts-v0", Counts)


def test_others_keep_their_entries(tmp_path):
    """--hide takes CartPole's velocities by default, of other environments nothing unasked; of
    whole numbers too."""
    sizes = "--num-envs 4 --num-steps 8 --num-minibatches 2 --total-timesteps 32".split()
    for env_id, hide, entries in (
        ("CartPole-v1", [], 2),
        ("CartPole-v1", ["--hide", 2], 3),
        ("Acrobot-v1", [], 6),
        ("Acrobot-v1", ["--hide", 4, 5], 4),
        ("CliffWalking-v1", [], 48),
        ("Counts-v0", ["--hide", 1], 2),
    ):
        folder = tmp_path / f"{env_id} {len(hide)}"
        run = run_main("ppo_lstm", "--env-id", env_id, *hide, *sizes, runs_dir=folder)
        assert run.obs.shape == (9, 4, entries)
        assert run.args.hide == (tuple(hide[1:]) or None)
    assert (run.obs == torch.tensor([0.0, 2.0])).all()


def test_statistics_of_what_is_seen(tmp_path):
    """With continuous actions: hidden entries have no statistics, and by default Pendulum's cosine
    and sine are left."""
    sizes = "--num-envs 4 --num-steps 8 --num-minibatches 2 --total-timesteps 32".split()
    for env_id, hide, entries in (
        ("Hopper-v4", [], 11),
        ("Hopper-v4", ["--hide", 0, 10], 9),
        ("Pendulum-v1", [], 2),
    ):
        folder = tmp_path / f"{env_id} {len(hide)}"
        flags = ["--env-id", env_id, *hide, *sizes]
        run = run_main("ppo_continuous_action_lstm", *flags, runs_dir=folder)
        assert run.obs.shape == (9, 4, entries)
        assert run.agent.obs_rms.mean.shape == (entries,)
    torch.testing.assert_close(run.obs.square().sum(-1), torch.ones(9, 4))
