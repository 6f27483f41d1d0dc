from __future__ import annotations

import copy

import torch

from gptblock.model import LayerNorm
from gptblock.model.norm import RMSNorm


def test_mean_0_and_variance_1_then_scale_and_shift() -> None:
    norm = LayerNorm(32)
    x = 7 + 5 * torch.randn(3, 4, 32)
    y = norm(x)
    torch.testing.assert_close(y.mean(-1), torch.zeros(3, 4), atol=1e-5, rtol=0)
    torch.testing.assert_close(y.var(-1, unbiased=False), torch.ones(3, 4), atol=1e-4, rtol=0)
    with torch.no_grad():
        norm.weight.fill_(2.0)
        norm.bias.fill_(-1.0)
    torch.testing.assert_close(norm(x), 2 * y - 1)


def test_agrees_with_torch() -> None:
    norm, theirs = LayerNorm(32), torch.nn.LayerNorm(32)
    theirs.load_state_dict({"weight": torch.randn(32), "bias": torch.randn(32)})
    norm.load_state_dict(theirs.state_dict())
    x = 1e-3 * torch.randn(3, 4, 32)  # so small that another epsilon would show
    assert torch.equal(norm(x), theirs(x))


def test_moves_nothing_between_positions_or_rows() -> None:
    norm = LayerNorm(32)
    x = torch.randn(3, 4, 32)
    changed = x.clone()
    changed[1, 2] += torch.randn(32)
    moved = (norm(x) != norm(changed)).any(-1)  # (B, T)
    assert moved.nonzero().tolist() == [[1, 2]]


def test_keeps_no_statistics_and_is_the_same_in_both_modes() -> None:
    norm = LayerNorm(32)
    before = copy.deepcopy(norm.state_dict())
    assert list(before) == ["weight", "bias"]
    assert not list(norm.buffers())
    x = 7 + 5 * torch.randn(3, 4, 32)
    training, evaluating = norm.train()(x), norm.eval()(x)
    assert torch.equal(training, evaluating)
    assert all(torch.equal(before[name], value) for name, value in norm.state_dict().items())


def test_a_mean_square_beyond_half_precision_is_none_of_its_ends() -> None:
    norm = RMSNorm(32)
    x = 1000 * torch.randn(3, 4, 32)
    half = norm.half()(x.half())
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.float(), norm.float()(x), atol=2e-3, rtol=2e-3)
