"""The memory: nn.LSTM's cell, zeroed after an episode's last row; a sequence is its steps."""

from functools import partial

import envpool
import gymnasium as gym
import numpy as np
import pytest
from helpers import SCRIPTS, insert, load, run_main
from test_reference import ScriptedGames

import torch
import torch.nn as nn

LSTMS = [name for name in SCRIPTS if "lstm" in name]


@pytest.fixture(autouse=True)
def short_games(monkeypatch):
    """Games that lose lives, end and are cut, by a script; poles that fall or are cut at 12."""
    monkeypatch.setattr(envpool, "make", ScriptedGames)
    monkeypatch.setattr(gym, "make", partial(gym.make, max_episode_steps=12))


@pytest.mark.parametrize("name", LSTMS[::2])
def test_the_cell_is_pytorchs(name):
    """Without ends a sequence is nn.LSTM's; with them there are several, each from no memory."""
    torch.manual_seed(0)
    ours, theirs = load(name).LSTM(5, 7), nn.LSTM(5, 7)
    for parameter in ours.parameters():  # biases are 0 at first
        parameter.data.uniform_(-0.7, 0.7)
    weights = ours.from_x.weight, ours.from_h.weight, ours.from_x.bias, ours.from_h.bias
    for parameter, value in zip(theirs.parameters(), weights, strict=True):
        parameter.data.copy_(value)
    x, state, dones = torch.randn(9, 3, 5), torch.randn(2, 3, 7), torch.zeros(9, 3)
    close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6)
    given = tuple(state[:, None])  # hidden and cell, (1, 3, 7) each
    hidden, after = ours(x.flatten(0, 1), dones.flatten(), state)
    expected, (h, c) = theirs(x, given)
    close(hidden, expected.flatten(0, 1)), close(after, torch.cat([h, c]))
    dones[4] = dones[8] = 1  # the last rows of two episodes
    hidden, after = ours(x.flatten(0, 1), dones.flatten(), state)
    close(hidden, torch.cat([theirs(x[:5], given)[0], theirs(x[5:])[0]]).flatten(0, 1))
    assert not after.any()


@pytest.mark.parametrize("name", LSTMS[1::2])
def test_one_call_is_row_by_row(name):
    """The fast scripts' fused call: hidden states of transitions, the state after them, gradients;
    dones amid the sequence, in its last row and one after the other."""
    torch.manual_seed(0)
    module, results = load(name), []
    lstm, x, dones = module.LSTM(5, 7), torch.randn(9 * 3, 5), torch.zeros(9, 3)
    for parameter in lstm.parameters():
        parameter.data.uniform_(-0.7, 0.7)
    dones[4, 0] = dones[3:5, 1] = dones[0, 2] = dones[8, 2] = 1
    valid, state = (dones == 0).flatten(), torch.randn(2, 3, 7)
    for fused in (False, True):
        lstm.fused = fused
        lstm.zero_grad()
        hidden, after = lstm(x, dones.flatten(), state)
        (hidden[valid] * torch.arange(7)).square().sum().backward()
        results.append([hidden[valid], after, *(p.grad.clone() for p in lstm.parameters())])
    for row_by_row, one_call in zip(*results, strict=True):
        torch.testing.assert_close(one_call, row_by_row, rtol=1e-4, atol=1e-5)
    assert not torch.equal(results[0][0], results[1][0]), "another computation"
    assert not results[1][1][:, 2].any() and results[1][1][:, :2].all(), "zero after a done alone"


@pytest.mark.parametrize("name", LSTMS)
@pytest.mark.parametrize("flags", [[], ["--cleanrl-semantics"]], ids=["defaults", "cleanrl"])
def test_a_sequence_is_its_steps(name, flags, tmp_path):
    """What learning computes of all rows before its first step is what acting found row by row:
    in the second rollout, whose first rows go on with episodes of the first."""
    look = insert(
        "# Update",
        """
mb = {key: rows.flatten(0, 1) for key, rows in batch.items()}
with torch.no_grad():
    probs, newvalue, _ = agent(mb["obs"], mb["dones"], initial_lstm_state)
newlogprob, carried = probs.log_prob(mb["actions"]), initial_lstm_state.clone()
""",
    )
    flags = [*flags, *"--num-envs 4 --num-steps 8 --num-minibatches 2".split()]
    run = run_main(name, *flags, "--total-timesteps", 64, runs_dir=tmp_path, edit=look)
    ends = run.storage["dones"][:8]
    assert ends.any() and not ends.all(0).any() and run.carried.any()
    assert (run.mb["valid"].min() == 1) == ("--cleanrl-semantics" in flags and "atari" in name)
    torch.testing.assert_close(run.newlogprob, run.mb["logprobs"], rtol=0, atol=1e-6)
    torch.testing.assert_close(run.newvalue, run.mb["values"], rtol=0, atol=1e-6)


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
        assert run.obs.shape == (9, 4, entries) and run.obs_rms.mean.shape == (entries,)
    last = run.obs[-1].numpy() * np.sqrt(run.obs_rms.var + 1e-8) + run.obs_rms.mean
    np.testing.assert_allclose((last**2).sum(-1), 1, rtol=1e-5)
