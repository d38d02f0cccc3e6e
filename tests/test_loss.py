"""ppo_loss: autoreset steps weigh nothing, and the clipping is the paper's; distributions and
running statistics. All else of it: test_reference.
"""

import math

import gymnasium as gym
import numpy as np
import pytest
from helpers import TINY, agent, batch_of, load, memory, random_storage, run_main, scalars

import torch
from torch.distributions import Categorical, Independent, Normal

module = load("ppo")


def test_no_valid_row_is_harmless():
    *leaves, logprobs, values, advantages, returns = torch.randn(7, 8)
    mb = {"logprobs": logprobs, "values": values, "advantages": advantages, "returns": returns}
    mb["valid"], leaves = torch.zeros(8), [x.clone().requires_grad_() for x in leaves]
    loss, losses = module.ppo_loss(*leaves, mb, module.Args())
    loss.backward()
    assert loss == 0 and not losses.any()
    assert all(torch.equal(x.grad, torch.zeros(8)) for x in leaves)


# one of each compute_gradients, and of each kind of distribution
GRADIENTS = "ppo ppo_masked ppo_continuous_action ppo_rnd ppo_lstm ppo_trxl".split()


@pytest.mark.parametrize("name", [*GRADIENTS, "ppo_atari_envpool_multigpu"])
def test_poisoned_autoreset_steps_change_no_bit(name):
    """Observations, actions, rewards and values of autoreset steps, through advantages to
    gradients."""
    module = load(name)
    args = module.Args()

    def gradients(poisoned):
        storage, rewards, dones, terminations = random_storage(name, 8, 4)
        dones[1], dones[3, 0], dones[0, 1] = 0, 1, 1
        rows = torch.from_numpy(dones == 1)
        rows[-1] = False  # row T is no part of the batch
        # a truncation bootstraps from its autoreset step, whose value is then no poison: terminate
        terminations = dones
        if poisoned:
            storage["actions"][rows] = 1
            storage["values"][rows] = 1e6
            storage["logprobs"][rows] = -1e3  # the ratio would be inf
            if "rnd" in name:
                storage["int_returns"][rows] = 1e6
            rewards[rows[:-1]] = -1e6
        values = storage["values"].double().numpy()
        advantages = module.compute_gae(rewards, dones, terminations, values, 0.99, 0.95)
        storage["advantages"][:-1] = torch.from_numpy(advantages)
        storage["returns"][:-1] = torch.from_numpy(advantages + values[:-1])
        valid = torch.from_numpy(dones[:-1] == 0)
        storage["valid"][:-1] = valid
        if "dones" in storage:
            storage["dones"][:] = torch.from_numpy(dones)
        if "weights" in storage:
            storage["weights"][:-1] = valid / valid.sum()
        torch.manual_seed(0)
        network = agent(name)
        batch = {key: field.clone() for key, field in batch_of(name, storage).items()}
        assert 0 < batch["valid"].sum() < 32
        for key in batch.keys() & {"obs", "next_obs"} if poisoned else ():
            batch[key][batch["valid"] == 0] = 100
        mb_inds = torch.arange(4 if "lstm" in name else 32)
        state = memory(name, network, 4)
        losses = module.compute_gradients(network, batch, *state, args, mb_inds)
        return [losses, *(p.grad for p in network.parameters() if p.requires_grad)]

    for clean, poisoned in zip(gradients(False), gradients(True), strict=True):
        assert torch.equal(clean, poisoned) and clean.isfinite().all()


def test_distributions_are_pytorchs():
    """Log-probabilities, entropies and modes of torch.distributions, and for a seed its draws."""
    torch.manual_seed(1)
    logits, mean, std = torch.randn(9, 4, 5), torch.randn(9, 4, 3), torch.rand(1, 3) + 0.5
    pairs = [
        (module.Categorical(logits), Categorical(logits=logits)),
        (load("ppo_continuous_action").Gaussian(mean, std), Independent(Normal(mean, std), 1)),
    ]
    for ours, theirs in pairs:
        samples = []
        for probs in (ours, theirs):
            torch.manual_seed(0)
            samples.append(probs.sample())
        torch.testing.assert_close(*samples)
        for action in (samples[0], samples[0].roll(1, 0)):
            torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action))
        torch.testing.assert_close(ours.entropy(), theirs.entropy())
        torch.testing.assert_close(ours.mode(), theirs.mode)


def test_statistics_are_those_of_all_rows():
    """That are valid, in several parts, one of which has none; then what they scale."""
    torch.manual_seed(1)
    rms, rows = load("ppo_continuous_action").RunningMeanStd(3), torch.randn(6, 8, 4, 3).double()
    rows = rows * torch.tensor([1.0, 20.0, 0.1]) + torch.tensor([0.0, -50.0, 3.0])
    valid = torch.rand(6, 8, 4) < 0.7
    valid[2] = False
    rows[~valid] = torch.inf
    for part, weigh in zip(rows, valid, strict=True):
        rms.update(part.float(), weigh.float())
    seen = rows[valid]
    torch.testing.assert_close(rms.mean, seen.mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(rms.var, seen.var(0, correction=0), rtol=1e-4, atol=1e-5)
    assert rms.count.item() == pytest.approx(len(seen) + 1e-4)
    scaled = rms(seen.float())
    assert scaled.dtype == torch.float32 and scaled.mean().abs() < 1e-3
    torch.testing.assert_close(scaled.std(0, correction=0), torch.ones(3), rtol=1e-3, atol=0)
    assert rms(torch.tensor([1e6, -1e6, torch.inf])).tolist() == [10, -10, 10]


CLIPPED_POLICY = [  # ratio, advantage, policy loss and d loss / d log-probability, clip_coef 0.1
    (1.05, 2.0, -2.1, -2.1),  # inside: the plain objective
    (1.5, 2.0, -2.2, 0.0),  # good action, already likelier: held at 1.1
    (0.5, 2.0, -1.0, -1.0),  # good action, less likely: not held
    (0.5, -2.0, 1.8, 0.0),  # bad action, already less likely: held at 0.9
    (1.5, -2.0, 3.0, 3.0),  # bad action, likelier: not held
]


@pytest.mark.parametrize(("ratio", "advantage", "loss", "slope"), CLIPPED_POLICY)
def test_policy_clipping(ratio, advantage, loss, slope):
    newlogprob, zero = torch.tensor([ratio, ratio]).log().requires_grad_(), torch.zeros(2)
    mb = dict.fromkeys(("logprobs", "values", "returns"), zero)
    mb |= {"advantages": torch.full((2,), advantage), "valid": torch.ones(2)}
    args = module.Args(norm_adv=False, vf_coef=0.0, ent_coef=0.0, clip_coef=0.1)
    total, losses = module.ppo_loss(newlogprob, zero, zero, mb, args)
    total.backward()
    assert losses[0].item() == pytest.approx(loss, rel=1e-5)
    assert newlogprob.grad.sum().item() == pytest.approx(slope, rel=1e-5, abs=1e-7)


class OneStep(gym.Env):
    """Each episode is a step that pays 1."""

    observation_space, action_space = gym.spaces.Box(-1.0, 1.0, (2,)), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random(2, dtype=np.float32), {}

    def step(self, action):
        return self.np_random.random(2, dtype=np.float32), 1.0, True, False, {}


gym.register("OneStep-v0", OneStep)


def test_explained_variance_of_equal_returns(tmp_path):
    """There is nothing to explain: nan, and the run goes on. Autoreset steps, whose targets vary,
    do not count. (Of returns that vary: test_reference.)"""
    run = run_main("ppo", *TINY, "--env-id", "OneStep-v0", runs_dir=tmp_path)
    curve = scalars(run.run_dir)["losses/explained_variance"]
    assert len(curve) == 3 and all(math.isnan(value) for _, value in curve)
    assert run.returns.var() > 0 and run.valid.any() and not run.valid.all()
