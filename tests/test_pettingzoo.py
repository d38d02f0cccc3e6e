"""Several agents: scored as they play, filmed; no window opens. Rows: test_reference."""

import json

import imageio.v2 as imageio
import meadow
import numpy as np
import pygame
import pytest
from helpers import TINY, evaluate, load, run_main

import torch

KAZ = "pettingzoo.butterfly.knights_archers_zombies_v11"
NAME = "ppo_pettingzoo"  # its fast version has one text with it (test_pair)


def alone(game):
    """A game of the meadow by its actions: the mean of its agents' returns, and its length."""
    env, names = meadow.parallel_env(), meadow.parallel_env.possible_agents
    env.reset(seed=game.seed)
    paid = {}
    for t, chosen in enumerate(game.actions, 1):
        there = env.agents
        acts = dict(zip(names, map(int, chosen), strict=True))
        _, rewards, *_ = env.step({name: acts[name] for name in there})
        for name in there:
            paid.setdefault(name, []).append(rewards[name])
        if not env.agents or t == env.limit:
            return np.mean([sum(x) for x in paid.values()]), t, len(paid)


def test_a_game_is_scored_as_its_agents_play_it(tmp_path):
    """By sampled and by most likely actions."""
    run_main(NAME, *TINY, "--env-id", "meadow", runs_dir=tmp_path)
    (run_dir,) = tmp_path.iterdir()
    evaluation = load("ppo_eval")
    for deterministic in (False, True):
        policy, lengths, agents = evaluation.load(str(run_dir)), set(), set()
        for game in (evaluation.play(policy, seed, deterministic, 1000) for seed in range(8)):
            total, length, took_part = alone(game)
            assert game.total == pytest.approx(total, abs=1e-9) and len(game.actions) == length
            lengths.add(length)
            agents.add(took_part)
        assert len(lengths) > 3 and len(agents) > 1


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["mpe2.simple_spread_v3", KAZ])
def test_play_and_film(env_id, tmp_path):
    """Each of them without a window, and so is training."""
    run = run_main(NAME, *TINY, "--env-id", env_id, runs_dir=tmp_path)
    assert not pygame.display.get_init()
    evaluate(run.run_dir, "--episodes", 2, "--max-steps", 60, "--capture-video")
    result = json.loads((tmp_path / run.run_dir / "eval.json").read_text())
    frames = imageio.mimread(f"{run.run_dir}/video.mp4", memtest=False)
    assert len(frames) == result["lengths"][0] + 1
    assert pygame.display.get_surface() is None


def test_an_end_without_a_last_observation(tmp_path):
    """Of one that terminated nothing hangs on it: all else is as with it. Of one that was cut its
    value bootstraps: the run ends, as it would learn from the value of zeros."""
    flags = [*TINY, "--env-id", "meadow", "--num-steps", 32, "--total-timesteps", 64]
    run = run_main(NAME, *flags, runs_dir=tmp_path / "seen")
    flags.append("--env-kwargs")
    blind = run_main(NAME, *flags, '{"blind": "terminated"}', runs_dir=tmp_path / "blind")
    lost = (run.storage["obs"] != blind.storage["obs"]).any(2)[:-1]
    assert lost.any() and not blind.valid[lost.numpy()].any()
    assert (blind.valid == run.valid).all() and not run.valid.all()
    assert blind.episodic_returns == run.episodic_returns
    valid = run.storage["valid"] == 1
    for key in ("advantages", "returns"):
        assert torch.equal(run.storage[key][valid], blind.storage[key][valid]), key
    with pytest.raises(AssertionError, match="sheep_. gave no observation"):
        run_main(NAME, *flags, '{"blind": "truncated"}', runs_dir=tmp_path / "cut")
