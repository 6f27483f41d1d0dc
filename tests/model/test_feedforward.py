from __future__ import annotations

import torch

from gptblock.config import ModelConfig
from gptblock.model import FeedForward


def test_is_linear_relu_linear_four_times_as_wide(tiny: ModelConfig) -> None:
    layer = FeedForward(tiny)
    assert layer.up.weight.shape == (128, 32)
    assert layer.down.weight.shape == (32, 128)
    x = torch.randn(3, 4, 32)
    hidden = (x @ layer.up.weight.T + layer.up.bias).clamp(min=0)
    torch.testing.assert_close(layer(x), hidden @ layer.down.weight.T + layer.down.bias)


def test_moves_nothing_between_positions_or_rows(tiny: ModelConfig) -> None:
    layer = FeedForward(tiny)
    x = torch.randn(3, 4, 32)
    changed = x.clone()
    changed[1, 2] += torch.randn(32)
    moved = (layer(x) != layer(changed)).any(-1)  # (B, T)
    assert moved.nonzero().tolist() == [[1, 2]]


def test_drops_what_it_adds_to_the_stream_in_training_alone(tiny: ModelConfig) -> None:
    layer = FeedForward(tiny.replace(dropout=0.5)).eval()
    x = torch.randn(8, 16, 32)
    whole = layer(x)
    assert torch.equal(whole, layer(x))
    dropped = layer.train()(x)
    kept = dropped != 0
    torch.testing.assert_close(dropped, torch.where(kept, 2 * whole, 0.0))
    assert 0.45 < kept.float().mean() < 0.55
