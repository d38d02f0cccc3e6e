"""ppo_loss, which is one text in all files (test_pair): what test_reference cannot show, as a row
there is never that odd."""

from helpers import load

import torch

module = load("ppo")


def test_autoreset_steps_change_no_bit():
    """Some rows, then all of them, whose ratios would be inf."""
    found = []
    for valid in (torch.tensor([1.0, 0, 1, 1, 0, 1]), torch.zeros(6)):
        for odd in (1.0, 1e3):
            rows = torch.randn(7, 6, generator=torch.Generator().manual_seed(1))
            *leaves, logprobs, values, advantages, returns = rows * (valid + odd * (1 - valid))
            mb = {"logprobs": logprobs, "values": values, "valid": valid}
            mb |= {"advantages": advantages, "returns": returns}
            leaves = [x.clone().requires_grad_() for x in leaves]
            loss, losses = module.ppo_loss(*leaves, mb, module.Args())
            loss.backward()
            found.append(torch.stack([loss.expand(6).detach(), losses, *(x.grad for x in leaves)]))
            assert (found[-1][2:, valid == 0] == 0).all()
    assert torch.equal(found[0], found[1]) and found[0].isfinite().all() and found[0].any()
    assert not found[2].any() and not found[3].any()
