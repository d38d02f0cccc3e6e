"""compute_gae of ppo.py against the reference's sums over single episodes.

All files have one text of it (test_pair).
"""

from types import SimpleNamespace

import numpy as np
import pytest
import reference
from helpers import load

compute_gae = load("ppo").compute_gae
GAMMA, LAMBDA = 0.97, 0.9


def check(rewards, dones, terminations, values):
    h, over = SimpleNamespace(gamma=GAMMA, gae_lambda=LAMBDA), dones == 1
    expected = reference.advantages(h, rewards, values, over, terminations == 1, over)
    arrays = rewards, dones, terminations, values
    inputs = [x.copy() for x in arrays]
    advantages = compute_gae(*inputs, GAMMA, LAMBDA)
    assert advantages.shape == expected.shape and advantages.dtype == np.float64
    valid = ~np.isnan(expected)
    assert (valid == ~over[:-1]).all()
    np.testing.assert_allclose(advantages[valid], expected[valid], rtol=1e-12, atol=1e-12)
    for before, after in zip(arrays, inputs, strict=True):
        np.testing.assert_array_equal(before, after, "an input was changed")


@pytest.mark.parametrize("done_row", [0, 1, 5, 11, 12], ids=lambda row: f"autoreset_step_{row}")
@pytest.mark.parametrize("terminal", [True, False], ids=["termination", "truncation"])
def test_one_end(done_row, terminal):
    """Row 0 is the carry from the last rollout, row 11 the last of the rollout, row 12 next_obs."""
    rng = np.random.default_rng(done_row)
    dones, terminations = np.zeros((2, 13, 2))
    dones[done_row, 0] = 1
    terminations[done_row, 0] = terminal
    check(rng.normal(size=(12, 2)), dones, terminations, rng.normal(size=(13, 2)))


@pytest.mark.parametrize("T", [1, 2, 3, 64])
def test_many_ends(T):
    rng, dones = np.random.default_rng(T), np.zeros((T + 1, 8))
    for t in range(T + 1):  # two rows in a row never end
        dones[t] = (rng.random(8) < 0.3) & (dones[t - 1] == 0 if t else True)
    terminations = dones * (rng.random((T + 1, 8)) < 0.5)
    check(rng.normal(size=(T, 8)), dones, terminations, rng.normal(size=(T + 1, 8)))


def test_truncation_bootstraps_and_termination_does_not():
    """One step, reward 1, value 10 before and 20 after: 1 + 0.97 * 20 - 10, and 1 - 10."""
    rewards, values = np.array([[1.0]]), np.array([[10.0], [20.0]])
    dones = np.array([[0.0], [1.0]])
    for terminations, expected in ((np.zeros((2, 1)), 10.4), (dones, -9.0)):
        advantages = compute_gae(rewards, dones, terminations, values, GAMMA, LAMBDA)
        assert advantages.item() == pytest.approx(expected)
