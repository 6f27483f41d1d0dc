from __future__ import annotations

import torch
from torch import nn

from gptblock import lecture
from gptblock.lecture import Block, FeedForward


def test_feedforward_answers_to_the_lectures_spelling() -> None:
    assert lecture.FeedFoward is FeedForward
    assert lecture.block.FeedFoward is FeedForward


def test_feedforward_is_linear_relu_linear_and_dropout() -> None:
    layer = FeedForward(n_embd=32, dropout=0.5)
    assert [type(part) for part in layer.net] == [nn.Linear, nn.ReLU, nn.Linear, nn.Dropout]
    x = torch.randn(3, 4, 32)
    up, _, down, _ = layer.net
    whole = layer.eval()(x)
    torch.testing.assert_close(whole, down((x @ up.weight.T + up.bias).clamp(min=0)))
    dropped = layer.train()(x)
    torch.testing.assert_close(dropped, torch.where(dropped != 0, 2 * whole, 0.0))
    assert 0 < (dropped == 0).float().mean() < 1


def test_feedforward_moves_nothing_between_positions_or_rows() -> None:
    layer = FeedForward(n_embd=32, dropout=0.0)
    x = torch.randn(3, 4, 32)
    changed = x.clone()
    changed[1, 2] += torch.randn(32)
    moved = (layer(x) != layer(changed)).any(-1)  # (B, T)
    assert moved.nonzero().tolist() == [[1, 2]]


def test_each_layer_reads_the_normalised_stream_and_adds_to_the_bare_one() -> None:
    block = Block(n_embd=32, n_head=4, block_size=16, dropout=0.0)
    x = torch.randn(3, 16, 32)
    middle = x + block.sa(block.ln1(x))
    assert torch.equal(block(x), middle + block.ffwd(block.ln2(middle)))


def test_with_its_projections_zeroed_it_is_the_identity_and_the_gradient_passes_unchanged() -> None:
    block = Block(n_embd=32, n_head=4, block_size=16, dropout=0.0)
    for projection in (block.sa.proj, block.ffwd.net[2]):
        nn.init.zeros_(projection.weight)
        nn.init.zeros_(projection.bias)
    x = torch.randn(3, 16, 32, requires_grad=True)
    y = block(x)
    assert torch.equal(y, x)
    gradient = torch.randn(3, 16, 32)
    y.backward(gradient)
    assert torch.equal(x.grad, gradient)
