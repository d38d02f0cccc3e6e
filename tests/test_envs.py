"""Episode statistics, flags and seeds, on scripted environments and on EnvPool's Atari."""

import envpool
import numpy as np
import pytest
from helpers import SCRIPTS, AtariSpaces, load, run_main

ATARI = [name for name in SCRIPTS if "atari" in name]


class ScriptedAtari(AtariSpaces):
    """Games that follow a script: {game: [(terminated, truncated, game over), ...]}, a row a step.

    A row after one with a flag is a reset row: it pays 100, which nobody may count.
    """

    def __init__(self, script):
        self.script, self.t = script, 0
        self.reset_row = np.zeros(len(script), dtype=bool)

    def observation(self):
        return np.full((len(self.script), 4, 84, 84), self.t % 256, dtype=np.uint8)

    def reset(self):
        return self.observation(), {}

    def step(self, actions):
        assert actions.shape == (len(self.script),) and actions.dtype == np.int64
        rows = [game[self.t % len(game)] for game in self.script]
        terminated, truncated, over = np.array(rows, dtype=bool).T.copy()
        reward = np.where(self.reset_row, 100.0, 1.0).astype(np.float32)
        self.reset_row = terminated | truncated
        self.t += 1
        # the raw reward is 3 times the clipped one
        info = {"reward": 3 * reward, "terminated": over.astype(np.int32), "lives": over * 0}
        return self.observation(), reward, terminated, truncated, info

    def close(self):
        pass


GO_ON, LOST_LIFE, GAME_OVER = (0, 0, 0), (1, 0, 0), (1, 0, 1)
TIMEOUT, GAME_OVER_AT_LIMIT = (0, 1, 0), (0, 1, 1)
RESET = GO_ON


@pytest.mark.parametrize("name", ATARI)
@pytest.mark.parametrize(
    ("script", "games"),
    [
        ([GO_ON, GAME_OVER, RESET, GAME_OVER], [(6.0, 2), (3.0, 1)]),
        ([GO_ON, LOST_LIFE, RESET, GO_ON, GAME_OVER], [(12.0, 4)]),
        ([LOST_LIFE, RESET, GO_ON, TIMEOUT, RESET, GAME_OVER], [(9.0, 3), (3.0, 1)]),
        ([GO_ON, GO_ON, GAME_OVER_AT_LIMIT, RESET, GO_ON], [(9.0, 3)]),
    ],
    ids=["game_over", "lost_life", "timeout_with_lives_left", "game_over_at_the_limit"],
)
def test_statistics_scripted(name, script, games):
    envs = ScriptedAtari([script])
    statistics = load(name).EpisodeStatistics(1)
    found = []
    for _ in script:
        _, *outcome = envs.step(np.zeros(1, dtype=np.int64))
        found += statistics.step(*outcome)
    assert found == games


@pytest.mark.parametrize("name", ATARI)
def test_statistics_without_lives(name):
    """An environment that knows no lives and no raw reward: terminated or truncated ends a game."""
    statistics = load(name).EpisodeStatistics(2)
    no, yes = np.zeros(2, dtype=bool), np.array([True, False])
    reward = np.array([1.0, 2.0], dtype=np.float32)
    assert statistics.step(reward, no, no, {}) == []
    assert statistics.step(reward, yes, no, {}) == [(2.0, 2)]
    assert statistics.step(reward, no, no, {}) == []
    assert statistics.step(reward, no, yes, {}) == [(1.0, 1)]
    assert statistics.step(reward, no, ~yes, {}) == [(10.0, 5)]


@pytest.mark.parametrize("name", ATARI)
def test_statistics_on_breakout(name):
    """Games of 5 lives and games cut at 100 steps, against a count of our own."""
    envs = envpool.make(
        "Breakout-v5",
        env_type="gym",
        num_envs=4,
        episodic_life=True,
        reward_clip=True,
        seed=3,
        max_episode_steps=100,
    )
    envs.reset()
    statistics, rng = load(name).EpisodeStatistics(4), np.random.default_rng(0)
    found, expected = [], []
    returns, lengths, resetting = [0.0] * 4, [0] * 4, [False] * 4
    lives_lost = timeouts = 0
    for _ in range(600):
        _, reward, terminated, truncated, info = envs.step(rng.integers(0, 4, 4))
        found += statistics.step(reward, terminated, truncated, info)
        for i in range(4):
            if resetting[i]:
                resetting[i] = False
                continue
            returns[i] += float(info["reward"][i])
            lengths[i] += 1
            resetting[i] = bool(terminated[i] or truncated[i])
            if truncated[i] or (terminated[i] and info["lives"][i] == 0):
                expected.append((returns[i], lengths[i]))
                returns[i], lengths[i] = 0.0, 0
                timeouts += int(truncated[i])
            elif terminated[i]:
                lives_lost += 1
    envs.close()
    assert found == expected and len(found) > 5
    assert lives_lost > 5 and timeouts > 5
    assert {length for _, length in found} >= {100}


@pytest.mark.parametrize("name", ATARI)
def test_main_masks_reset_rows_and_carries_flags(name, monkeypatch, tmp_path):
    """Two rollouts of 4 steps. Game 0 ends in step 3: row 4, next_obs, is then row 0, a reset row.

    Game 1 is cut in step 1, game 2 ends exactly at its limit in step 1, game 3 never ends.
    """
    never = [GO_ON] * 8
    script = [list(never) for _ in range(4)]
    script[0][3] = GAME_OVER
    script[1][1], script[2][1] = TIMEOUT, GAME_OVER_AT_LIMIT
    monkeypatch.setattr(envpool, "make", lambda *args, **kwargs: ScriptedAtari(script))
    flags = "--num-envs 4 --num-steps 4 --num-minibatches 2 --update-epochs 1".split()

    run = run_main(name, *flags, "--total-timesteps", 16, runs_dir=tmp_path)
    assert run.host_dones[:, 0].tolist() == [0, 0, 0, 0, 1]
    assert run.host_terminations[:, 0].tolist() == [0, 0, 0, 0, 1]
    assert run.host_dones[:, 1].tolist() == run.host_dones[:, 2].tolist() == [0, 0, 1, 0, 0]
    assert run.host_terminations[:, 1].tolist() == [0, 0, 0, 0, 0], "a time limit bootstraps"
    assert run.host_terminations[:, 2].tolist() == [0, 0, 1, 0, 0], "a game over does not"
    valid = [[1, 1, 1, 1], [1, 1, 0, 1], [1, 1, 0, 1], [1, 1, 1, 1]]
    assert run.storage["valid"][:4].T.tolist() == valid
    assert run.batch["valid"].reshape(4, 4).T.tolist() == valid

    run = run_main(name, *flags, "--total-timesteps", 32, runs_dir=tmp_path)
    assert run.storage["valid"][:4, 0].tolist() == [0, 1, 1, 1], "row 0 is the reset row"
    assert run.storage["obs"][:, 0, 0, 0, 0].tolist() == [4, 5, 6, 7, 8]
    assert run.summary["episodes"] == 3
    assert run.summary["mean_return"] == pytest.approx((4 * 3 + 2 * 3 + 2 * 3) / 3)

    run = run_main(name, *flags, "--total-timesteps", 16, "--cleanrl-semantics", runs_dir=tmp_path)
    assert run.storage["valid"][:4].min() == 1
    assert np.array_equal(run.host_terminations, run.host_dones)


def cleanrl_advantages(rewards, values, dones, next_value, next_done, gamma, gae_lambda):
    """CleanRL's formula: every done is terminal and every row is a transition (ppo.py)."""
    T = len(rewards)
    values = np.concatenate([values, next_value[None]]).astype(np.float64)
    alive = 1.0 - np.concatenate([dones, next_done[None]]).astype(np.float64)
    advantages, last = np.zeros(rewards.shape), 0.0
    for t in range(T - 1, -1, -1):
        delta = rewards[t] + gamma * values[t + 1] * alive[t + 1] - values[t]
        last = delta + gamma * gae_lambda * alive[t + 1] * last
        advantages[t] = last
    return advantages


@pytest.mark.parametrize("name", ATARI)
def test_cleanrl_semantics(name, tmp_path):
    """On a real rollout of Breakout the flag gives CleanRL's advantages, on all rows."""
    run = run_main(name, "--cleanrl-semantics", "--total-timesteps", 1024, runs_dir=tmp_path)
    values, dones, T = run.storage["values"].numpy(), run.host_dones, 128
    assert dones[1:T].sum() > 3
    expected = cleanrl_advantages(
        run.host_rewards[:T], values[:T], dones[:T], values[T], dones[T], 0.99, 0.95
    )
    advantages = run.storage["advantages"][:T].numpy()
    np.testing.assert_allclose(advantages, expected, rtol=1e-4, atol=1e-5)
    assert run.storage["valid"][:T].min() == 1

    run = run_main(name, "--total-timesteps", 1024, runs_dir=tmp_path)
    assert np.array_equal(run.storage["valid"][:T].numpy(), 1 - run.host_dones[:T])


@pytest.mark.parametrize("name", ATARI)
def test_seeds_share_no_game(name):
    """EnvPool's own scheme gives seeds 1 and 2 all games but one in common; ours gives none."""
    module = load(name)
    seeds = {}
    for seed in (1, 2, 3):
        envs = module.make_envs(module.Args(seed=seed, num_envs=16))
        seeds[seed] = set(envs.spec.config.env_seed)
        envs.close()
        assert len(seeds[seed]) == 16
    assert not (seeds[1] & seeds[2] or seeds[1] & seeds[3] or seeds[2] & seeds[3])

    def stream(**kwargs):
        envs = envpool.make("Pong-v5", env_type="gym", num_envs=2, **kwargs)
        frames = [envs.reset()[0]]
        frames += [envs.step(np.full(2, step % 6))[0] for step in range(80)]
        envs.close()
        return np.stack(frames)

    first, second = stream(seed=1), stream(seed=2)
    assert np.array_equal(first[:, 1], second[:, 0]), "the trap that make_envs avoids"
    assert np.array_equal(stream(seed=[7, 9])[:, 0], stream(seed=[9, 7])[:, 1])
