"""Time limits and returns on Gymnasium, by numbers that are known; all else: test_reference."""

import re

import gymnasium as gym
import numpy as np
import pytest
from helpers import PAIRS, PPO, kind, run_main

# values by one pass, of two heads, row by row
BOOTSTRAPS = "ppo", "ppo_rnd", "ppo_continuous_action_lstm"


class Counter(gym.Env):
    """Counts its steps, pays as many or 1 for each, and ends after `length` of them. Takes the
    actions of the script that is tested."""

    discrete = True

    def __init__(self, length, terminal, pay=lambda t: 1.0):
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (1,))
        box, choice = gym.spaces.Box(-1.0, 1.0, (2,)), gym.spaces.Discrete(3)
        self.action_space = choice if self.discrete else box
        self.length, self.terminal, self.pay = length, terminal, pay
        self.total = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.total = 0, 0 if seed is not None else self.total
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), "clipped to the space"
        self.t += 1
        self.total += 1
        end = self.t == self.length
        obs = np.full(1, self.t, dtype=np.float32)
        return obs, self.pay(self.total), end and self.terminal, end and not self.terminal, {}


gym.register("Cut-v0", lambda: Counter(3, False))
gym.register("Ends-v0", lambda: Counter(3, True))
gym.register("Game-v0", lambda: Counter(1, True, pay=float))  # its returns are 1, 2, 3, ...
gym.register("Rare-v0", lambda: Counter(400, True, pay=lambda t: float(t == 100)))


@pytest.mark.parametrize("name", ["ppo_continuous_action", "ppo_continuous_action_lstm"])
def test_a_rare_reward_is_clipped(name, tmp_path, monkeypatch):
    """One of 1 in 300 steps, hardly discounted: 17 of its sums' deviations."""
    monkeypatch.setattr(Counter, "discrete", False)
    flags = "--env-id Rare-v0 --num-envs 1 --num-steps 300 --total-timesteps 300".split()
    flags += "--num-minibatches 1 --update-epochs 1 --gamma 0.01".split()
    rewards = run_main(name, *flags, runs_dir=tmp_path).scaled
    assert (rewards == 10).sum() == 1 and (rewards == 0).sum() == 299


@pytest.mark.parametrize("name", [eager for eager, _ in PAIRS])
def test_what_has_one_text(name):
    """What the next tests show of one script."""
    text = (PPO / f"{name}.py").read_text()
    end = "terminations[step + 1] = terminated | (truncated & args.cleanrl_semantics)\n"
    assert text.count(end) == 1
    assert re.search(r"recent = episodic_returns\[-max\(100, (N|E|args\.num_envs)\) :\]\n", text)


GAMMA, VALUE = 0.75, 4.0  # 1 / (1 - GAMMA): the value of a reward of 1 for ever


def known_value(text):
    """The script with the critic's answer set to VALUE and rewards left as they are."""
    value = r"(self\.critic\(.*\)\.squeeze\(-1\)|value\.squeeze\(-1\)|values\[\.\.\., 0\])"
    text, count = re.subn(value, rf"\1 * 0 + {VALUE}", text)
    assert count == 1
    return re.sub(r"np\.clip\(rewards / .*\)", "rewards", text)


@pytest.mark.parametrize("name", BOOTSTRAPS)
def test_time_limits_bootstrap(name, tmp_path, monkeypatch):
    """A reward of 1 for ever is worth 4 at a discount of 0.75, cut into episodes of 3 or not.

    With that value every advantage is 0; where the end is taken as terminal, its row has 1 - 4.
    """
    monkeypatch.setattr(Counter, "discrete", kind(name) != "continuous")
    flags = "--num-envs 2 --num-steps 10 --num-minibatches 2 --total-timesteps 20".split()
    flags += ["--gamma", GAMMA, "--gae-lambda", 0.5]
    flags += ["--ext-coef", 1, "--int-coef", 0] if "rnd" in name else []
    for env_id, extra, last in (
        ("Cut-v0", [], 0.0),
        ("Ends-v0", [], 1 - VALUE),
        ("Cut-v0", ["--cleanrl-semantics"], 1 - VALUE),
    ):
        folder, more = tmp_path / f"{env_id}{len(extra)}", ["--env-id", env_id, *extra]
        run = run_main(name, *flags, *more, runs_dir=folder, edit=known_value)
        # rows 0 to 2 are an episode's steps, row 3 its last observation, and so on
        ends = [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]
        assert run.dones[:, 0].tolist() == run.dones[:, 1].tolist() == ends
        advantages = run.storage["advantages"][:10, 0].tolist()
        decay = GAMMA * 0.5
        expected = [last * decay**2, last * decay, last]
        assert advantages[0:3] == advantages[4:7] == pytest.approx(expected, abs=1e-6)
        assert advantages[8:] == pytest.approx([0, 0], abs=1e-6), "the rollout's end bootstraps"
        valid = run.storage["valid"][:10, 0].tolist()
        assert valid == [1, 1, 1, 0, 1, 1, 1, 0, 1, 1], "the mask stays with --cleanrl-semantics"


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
