"""Attention: what a row sees, and nothing else; the T-maze that asks for it."""

import importlib
import sys

import gymnasium as gym
import pytest
from helpers import ROOT, TINY, agent, load, run_main
from helpers import spaces as spaces_of

import torch

sys.path.insert(0, str(ROOT / "examples"))
importlib.import_module("tmaze")
NAME = "ppo_trxl"


@pytest.mark.parametrize("age", [0, 1, 3, 4, 9])
def test_a_row_sees_its_episode_and_no_more(age):
    """Of a window of 4, the last `age` rows: each changes what is computed, the others no bit. A
    row without any before it is computed as if there were no memory."""
    args = load(NAME).Args(trxl_memory_length=4, trxl_num_layers=2, trxl_dim=8)
    torch.manual_seed(0)
    network, window = agent(NAME, args=args), torch.randn(1, 4, 2, 8)
    obs, ages = torch.randn(1, *spaces_of(NAME).single_observation_space.shape), [age]

    def values(window):
        probs, value, _ = network(obs, window, torch.tensor(ages))
        return torch.cat([probs.logits[0], value])

    with torch.no_grad():
        before = values(window)
        for row in range(4):
            changed = window.clone()
            changed[:, row] += 1
            assert torch.equal(values(changed), before) == (4 - row > age)
    x = network.encoder(obs).tanh().requires_grad_()
    layer = network.layers[0]
    read = layer(x, window[:, :, 0], torch.tensor([0])) if age == 0 else None
    if read is not None:  # what is read is the row itself: no difference
        alone = x + layer.out(layer.norm.bias.expand(1, layer.heads, 8).flatten(1))
        torch.testing.assert_close(read, alone + layer.hidden(alone).relu())


def test_learning_sends_no_gradient_into_older_rows(tmp_path):
    """The windows are views of the memory, which has what acting handed on."""
    run = run_main(NAME, *TINY, runs_dir=tmp_path)
    window, memory = run.storage["window"], run.memory
    assert window.data_ptr() == memory.data_ptr() and not memory.requires_grad
    for step in range(run.T + 1):
        assert torch.equal(window[step].transpose(0, 1), memory[step : step + run.L])
    assert torch.equal(window[run.T], run.window)


def test_the_maze(tmp_path):
    """The cue once, the junction once, noise; 1 for the cue's action there and nowhere else. It is
    trained on."""
    env, returns = gym.make("tmaze:TMaze-v0", length=7), []
    env.action_space.seed(0)
    for episode in range(40):
        obs, _ = env.reset(seed=episode)
        cue, over = obs[0], False
        right = int(cue == 1) if episode % 2 else int(cue == -1)
        for step in range(8):
            assert not over and env.observation_space.contains(obs)
            assert (obs[0] != 0) == (step == 0) and (obs[1] == 1) == (step == 7)
            action = right if step == 7 else env.action_space.sample()
            obs, reward, over, cut, _ = env.step(action)
            assert not cut and (reward == 0 or over)
        returns.append((reward, cue))
    assert over and [x for x, _ in returns] == [-1.0, 1.0] * 20
    assert {cue for _, cue in returns} == {-1.0, 1.0}
    run = run_main(NAME, *TINY, "--env-id", "tmaze:TMaze10-v0", runs_dir=tmp_path)
    assert run.episodic_returns and set(run.episodic_returns) <= {-1.0, 1.0}
