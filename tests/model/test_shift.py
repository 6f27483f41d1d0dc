"""The token shift: a depthwise convolution that looks back only."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from gptblock.config import ModelConfig
from gptblock.model import GPT, count_parameters
from gptblock.model.shift import TokenShift

B, T, C = 2, 9, 6


@pytest.mark.parametrize("token_shift", [1, 3, 12])  # 12: further back than there are tokens
def test_it_is_torchs_depthwise_convolution(token_shift: int) -> None:
    shift, x = TokenShift(C, token_shift), torch.randn(B, T, C)
    kernel = shift.weight.flip(0).T[:, None]  # (C, 1, taps), the oldest first
    expected = F.conv1d(F.pad(x.transpose(1, 2), (token_shift, 0)), kernel, groups=C).transpose(1, 2)
    torch.testing.assert_close(shift(x), expected)


def test_each_token_sees_itself_and_so_many_before() -> None:
    shift, x = TokenShift(C, 2), torch.randn(B, T, C, requires_grad=True)
    shift(x)[0, 5].sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum(-1).nonzero().tolist() == [[0, 3], [0, 4], [0, 5]]


def test_with_the_tokens_before_at_hand_a_part_is_as_the_whole() -> None:
    shift, x = TokenShift(C, 2), torch.randn(B, T, C)
    assert torch.equal(shift.mix(x[:, 3:]), shift(x)[:, 5:])


def test_it_costs_a_weight_a_tap_and_feature_of_each_layer(tiny: ModelConfig) -> None:
    without, with_it = (count_parameters(GPT(tiny.replace(token_shift=taps))) for taps in (0, 3))
    assert with_it - without == tiny.n_layer * 4 * tiny.n_embd


def test_a_model_with_it_is_causal(tiny: ModelConfig) -> None:
    model = GPT(tiny.replace(token_shift=3)).eval()
    ids = torch.randint(tiny.vocab_size, (1, tiny.block_size))
    other = ids.clone()
    other[0, 7] = (other[0, 7] + 1) % tiny.vocab_size
    moved = (model(ids) - model(other)).abs().amax(-1)[0]
    assert moved[:7].max() == 0
    assert moved[7:11].min() > 0
