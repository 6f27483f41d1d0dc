from __future__ import annotations

import pytest
import torch
from torch import nn

from gptblock.config import ModelConfig
from gptblock.model import Block


@pytest.fixture
def block(tiny: ModelConfig) -> Block:
    return Block(tiny)


def test_each_layer_reads_the_normalised_stream_and_adds_to_the_bare_one(block: Block) -> None:
    with torch.no_grad():
        for norm in (block.ln1, block.ln2):
            norm.weight.copy_(torch.randn(32))
            norm.bias.copy_(torch.randn(32))
    x = torch.randn(3, 16, 32)
    middle = x + block.attention(block.ln1(x))
    assert torch.equal(block(x), middle + block.feedforward(block.ln2(middle)))


def test_with_its_projections_zeroed_it_is_the_identity_and_the_gradient_passes_unchanged(
    block: Block,
) -> None:
    for projection in (block.attention.proj, block.feedforward.down):
        nn.init.zeros_(projection.weight)
        nn.init.zeros_(projection.bias)
    x = torch.randn(3, 16, 32, requires_grad=True)
    y = block(x)
    assert torch.equal(y, x)
    gradient = torch.randn(3, 16, 32)
    y.backward(gradient)
    assert torch.equal(x.grad, gradient)


@pytest.mark.parametrize("projection", ["attention.proj", "feedforward.down"])
def test_one_projection_is_enough_to_move_the_stream(block: Block, projection: str) -> None:
    for name in {"attention.proj", "feedforward.down"} - {projection}:
        nn.init.zeros_(block.get_submodule(name).weight)
        nn.init.zeros_(block.get_submodule(name).bias)
    x = torch.randn(3, 16, 32)
    assert (block(x) - x).abs().mean() > 0.01


@pytest.mark.parametrize("T", [1, 16])
def test_keeps_the_shape(block: Block, T: int) -> None:
    assert block(torch.randn(3, T, 32)).shape == (3, T, 32)
