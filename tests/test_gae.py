"""compute_gae against sums over single episodes in float64.

Of ppo.py: all files have one text of it (test_pair).
"""

import numpy as np
import pytest
from helpers import load

compute_gae = load("ppo").compute_gae
GAMMA, LAMBDA = 0.97, 0.9


def episode_advantages(rewards, dones, terminations, values):
    """Each transition's advantage, summed over its episode's TD errors; nan on autoreset steps."""
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
    rng = np.random.default_rng(seed)
    dones, terminations = np.zeros((2, T + 1, N))
    return rng.normal(size=(T, N)), dones, terminations, rng.normal(size=(T + 1, N))


def check(*arrays):
    expected = episode_advantages(*arrays)
    inputs = [x.copy() for x in arrays]
    advantages = compute_gae(*inputs, GAMMA, LAMBDA)
    assert advantages.shape == expected.shape and advantages.dtype == np.float64
    valid = ~np.isnan(expected)
    np.testing.assert_allclose(advantages[valid], expected[valid], rtol=1e-12, atol=1e-12)
    for before, after in zip(arrays, inputs, strict=True):
        np.testing.assert_array_equal(before, after, "an input was changed")


@pytest.mark.parametrize("done_row", [0, 1, 5, 11, 12], ids=lambda row: f"autoreset_step_{row}")
@pytest.mark.parametrize("terminal", [True, False], ids=["termination", "truncation"])
def test_one_end(done_row, terminal):
    """Row 0 is the carry from the last rollout, row 11 the last of the rollout, row 12 next_obs."""
    rewards, dones, terminations, values = rollout(12, 2, seed=done_row)
    dones[done_row, 0] = 1
    terminations[done_row, 0] = terminal
    check(rewards, dones, terminations, values)


@pytest.mark.parametrize("T", [1, 2, 3, 64, 100, 128])
def test_many_ends(T):
    rewards, dones, terminations, values = rollout(T, 8, seed=T)
    rng = np.random.default_rng(T)
    for t in range(T + 1):  # two rows in a row never end
        dones[t] = (rng.random(8) < 0.3) & (dones[t - 1] == 0 if t else True)
    terminations[:] = dones * (rng.random((T + 1, 8)) < 0.5)
    check(rewards, dones, terminations, values)


def test_truncation_bootstraps_and_termination_does_not():
    """One step, reward 1, value 10 before and 20 after: 1 + 0.97 * 20 - 10, and 1 - 10."""
    rewards, values = np.array([[1.0]]), np.array([[10.0], [20.0]])
    dones = np.array([[0.0], [1.0]])
    for terminations, expected in ((np.zeros((2, 1)), 10.4), (dones, -9.0)):
        advantages = compute_gae(rewards, dones, terminations, values, GAMMA, LAMBDA)
        assert advantages.item() == pytest.approx(expected)
