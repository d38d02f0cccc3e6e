"""The environments of examples/: by Gymnasium's own checks, and played to their ends."""

import deep_sea  # noqa: F401, registers DeepSea-v0
import gymnasium as gym
import lock  # noqa: F401, registers Lock-v0
import my_envs  # noqa: F401, registers HiddenCartPole-v1
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env


@pytest.mark.parametrize("env_id", ["Lock-v0", "DeepSea-v0", "HiddenCartPole-v1"])
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
