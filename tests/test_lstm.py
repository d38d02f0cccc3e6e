"""The memory: nn.LSTM's cell, zeroed after an episode's last row; a sequence is its steps.

Of one script, where all have one text of it (test_pair).
"""

from functools import partial

import envpool
import gymnasium as gym
import numpy as np
import pytest
from helpers import SCRIPTS, insert, load, run_main
from test_reference import ScriptedGames

import torch
import torch.nn as nn

LSTMS = [name for name in SCRIPTS if name.endswith("lstm")]
close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6)


def lstm():
    """The scripts', with biases, which are 0 at first; a state, and rows of 3 environments."""
    torch.manual_seed(0)
    ours = load("ppo_lstm").LSTM(5, 7)
    for parameter in ours.parameters():
        parameter.data.uniform_(-0.7, 0.7)
    return ours, torch.randn(2, 3, 7), torch.randn(9, 3, 5)


def test_the_cell_is_pytorchs():
    """A row is nn.LSTM's step, a sequence its steps; with ends there are several, each from no
    memory, and after an end there is none."""
    ours, state, x = lstm()
    theirs, dones = nn.LSTM(5, 7), torch.zeros(9, 3)
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


def test_one_call_is_row_by_row():
    """Learning's call and acting's: hidden states of transitions, the state after them, gradients;
    dones amid the sequence, in its last row and one after the other."""
    ours, state, x = lstm()
    dones, results = torch.zeros(9, 3), []
    dones[4, 0] = dones[3:5, 1] = dones[0, 2] = dones[8, 2] = 1

    def row_by_row(state):
        rows = []
        for row, done in zip(x, dones, strict=True):
            hidden, state = ours(row, state)
            state = state * (1 - done).unsqueeze(1)  # as in act
            rows.append(hidden)
        return torch.stack(rows), state

    def one_call(state):
        hidden, state = ours(x.flatten(0, 1), state, dones.flatten())
        return hidden.unflatten(0, (9, 3)), state

    for way in (row_by_row, one_call):
        ours.zero_grad()
        hidden, after = way(state)
        (hidden[dones == 0] * torch.arange(7)).square().sum().backward()
        results.append([hidden[dones == 0], after, *(p.grad.clone() for p in ours.parameters())])
    for rows, call in zip(*results, strict=True):
        torch.testing.assert_close(call, rows, rtol=1e-4, atol=1e-5)
    assert not results[1][1][:, 2].any() and results[1][1][:, :2].all(), "zero after a done alone"


@pytest.fixture
def short_games(monkeypatch):
    """Games that lose lives, end and are cut, by a script; poles that fall or are cut at 12."""
    monkeypatch.setattr(envpool, "make", ScriptedGames)
    monkeypatch.setattr(gym, "make", partial(gym.make, max_episode_steps=12))


@pytest.mark.parametrize("name", LSTMS)
def test_a_sequence_is_its_steps(name, tmp_path, short_games):
    """What learning computes of all transitions before its first step is what acting found row by
    row: in the second rollout, whose first rows go on with episodes of the first. With continuous
    actions before the statistics know the rollout."""
    look = """
mb = {key: rows.flatten(0, 1) for key, rows in batch.items()}
with torch.no_grad():
    probs, newvalue, _ = agent(mb["obs"], initial_lstm_state, mb["dones"])
newlogprob, carried = probs.log_prob(mb["actions"]), initial_lstm_state.clone()
"""
    counts = 'agent.obs_rms.update(obs[:T], storage["valid"][:T])'
    edit = insert(counts if "continuous" in name else "# Update", look)
    flags = "--num-envs 4 --num-steps 8 --num-minibatches 2 --total-timesteps 64".split()
    run = run_main(name, *flags, runs_dir=tmp_path, edit=edit)
    ends, valid = run.storage["dones"][:8], run.mb["valid"] == 1
    assert ends.any() and not ends.all(0).any() and run.carried.any()
    torch.testing.assert_close(run.newlogprob[valid], run.mb["logprobs"][valid], rtol=0, atol=1e-6)
    torch.testing.assert_close(run.newvalue[valid], run.mb["values"][valid], rtol=0, atol=1e-6)


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
