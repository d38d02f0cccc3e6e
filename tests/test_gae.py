"""compute_gae against sums over single episodes in float64.

Of one pair: all eager files have one text of it, all fast ones another (test_one_name_one_text).
"""

import numpy as np
import pytest
from helpers import PAIRS, load

import torch

GAMMA, LAMBDA = 0.97, 0.9


def episode_advantages(rewards, dones, terminations, values):
    """Each transition's advantage, summed over its episode's TD errors; nan on reset rows."""
    rewards, values = rewards.numpy(), values.numpy()
    T, N = len(values) - 1, values.shape[1]
    advantages = np.full((T, N), np.nan)
    for n in range(N):
        episodes, current = [], []
        for t in range(T):
            if dones[t, n]:  # the last observation of an episode: no transition starts here
                continue
            current.append(t)
            if dones[t + 1, n]:
                episodes.append(current)
                current = []
        for episode in [*episodes, current]:
            errors = []
            for t in episode:
                future = 0.0 if terminations[t + 1, n] else values[t + 1, n]
                errors.append(rewards[t, n] + GAMMA * future - values[t, n])
            for i, t in enumerate(episode):
                rest = errors[i:]
                advantages[t, n] = sum((GAMMA * LAMBDA) ** k * e for k, e in enumerate(rest))
    return advantages


def rollout(T, N, seed):
    rng = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, T + 1, N, generator=rng, dtype=torch.float64)
    return rewards, torch.zeros_like(rewards), torch.zeros_like(rewards), values


def check(name, rewards, dones, terminations, values):
    expected = episode_advantages(rewards, dones, terminations, values)
    inputs = [x.clone() for x in (rewards, dones, terminations, values)]
    advantages = load(name).compute_gae(*inputs, GAMMA, LAMBDA)
    assert advantages.shape == expected.shape
    valid = ~np.isnan(expected)
    np.testing.assert_allclose(advantages.numpy()[valid], expected[valid], rtol=1e-12, atol=1e-12)
    for before, after in zip((rewards, dones, terminations, values), inputs, strict=True):
        assert torch.equal(before, after), "an input was changed"


@pytest.mark.parametrize("name", PAIRS[-1])
@pytest.mark.parametrize("done_row", [0, 1, 5, 11, 12], ids=lambda row: f"reset_row_{row}")
@pytest.mark.parametrize("terminal", [True, False], ids=["termination", "truncation"])
def test_one_end(name, done_row, terminal):
    """Row 0 is the carry from the last rollout, row 11 the last of the rollout, row 12 next_obs."""
    rewards, dones, terminations, values = rollout(12, 2, seed=done_row)
    dones[done_row, 0] = 1
    terminations[done_row, 0] = float(terminal)
    check(name, rewards, dones, terminations, values)


@pytest.mark.parametrize("name", PAIRS[-1])
@pytest.mark.parametrize("T", [1, 2, 3, 64, 100, 128])
def test_many_ends(name, T):
    rewards, dones, terminations, values = rollout(T, 8, seed=T)
    rng = torch.Generator().manual_seed(T)
    for t in range(T + 1):  # two rows in a row never end
        ends = (torch.rand(8, generator=rng) < 0.3).double()
        dones[t] = ends * (1 - dones[t - 1]) if t else ends
    terminations[:] = dones * (torch.rand(T + 1, 8, generator=rng) < 0.5)
    check(name, rewards, dones, terminations, values)


@pytest.mark.parametrize("name", PAIRS[-1])
def test_truncation_bootstraps_and_termination_does_not(name):
    """One step, reward 1, value 10 before and 20 after: 1 + 0.97 * 20 - 10, and 1 - 10."""
    rewards, values = torch.tensor([[1.0], [0.0]]), torch.tensor([[10.0], [20.0]])
    dones = torch.tensor([[0.0], [1.0]])
    for terminations, expected in ((torch.zeros(2, 1), 10.4), (dones, -9.0)):
        advantages = load(name).compute_gae(rewards, dones, terminations, values, GAMMA, LAMBDA)
        assert advantages.item() == pytest.approx(expected)
