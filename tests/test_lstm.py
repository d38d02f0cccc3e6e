"""What --hide leaves out of what is seen. The memory itself: test_reference."""

from helpers import run_main

import torch

SIZES = "--num-envs 4 --num-steps 8 --num-minibatches 2 --total-timesteps 32".split()
DISCRETE, CONTINUOUS = "ppo_lstm", "ppo_continuous_action_lstm"


def test_what_is_hidden(tmp_path):
    """By default velocities of CartPole and Pendulum, of other environments nothing; and no
    statistics are kept of it."""
    for name, env_id, hide, entries in (
        (DISCRETE, "CartPole-v1", [], 2),
        (DISCRETE, "CartPole-v1", ["--hide", 2], 3),
        (DISCRETE, "Acrobot-v1", [], 6),
        (DISCRETE, "Acrobot-v1", ["--hide", 4, 5], 4),
        (DISCRETE, "CliffWalking-v1", [], 48),
        (CONTINUOUS, "Hopper-v4", [], 11),
        (CONTINUOUS, "Hopper-v4", ["--hide", 0, 10], 9),
        (CONTINUOUS, "Pendulum-v1", [], 2),
    ):
        folder = tmp_path / f"{env_id} {len(hide)}"
        run = run_main(name, "--env-id", env_id, *hide, *SIZES, runs_dir=folder)
        assert run.obs.shape == (9, 4, entries)
        assert run.args.hide == (tuple(hide[1:]) or None)
        assert name == DISCRETE or run.agent.obs_rms.mean.shape == (entries,)
    torch.testing.assert_close(run.obs.square().sum(-1), torch.ones(9, 4))  # cosine and sine
