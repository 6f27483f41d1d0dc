from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gptblock.config import ModelConfig
from gptblock.model import MultiHeadAttention, count_parameters


def by_hand(layer: MultiHeadAttention, x: Tensor, scale: float) -> Tensor:
    """The layer's formula, one head at a time, with a scale of one's own."""
    C, T, size = x.size(2), x.size(1), layer.head_size
    query, key, value = layer.qkv.weight.split(C)  # (C, C) each
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    heads = []
    for start in range(0, C, size):
        rows = slice(start, start + size)
        q, k, v = x @ query[rows].T, x @ key[rows].T, x @ value[rows].T  # (B, T, head_size)
        scores = (q @ k.transpose(1, 2) * scale).masked_fill(future, float("-inf"))  # (B, T, T)
        heads.append(scores.softmax(-1) @ v)
    return torch.cat(heads, -1) @ layer.proj.weight.T + layer.proj.bias


def reading_out_shares(config: ModelConfig) -> tuple[MultiHeadAttention, Tensor]:
    """A layer of one head and an input (1, T, C), so made that the output's first T features are the shares.

    Token t has feature t set, of the first T; values pass those features on, queries and keys are random.
    """
    layer = MultiHeadAttention(config)
    T, C = config.block_size, config.n_embd
    x = torch.randn(1, T, C)
    x[0, :, :T] = torch.eye(T)
    with torch.no_grad():
        layer.qkv.weight[: 2 * C] *= 4  # far from uniform
        layer.qkv.weight[2 * C :] = torch.eye(C)
        layer.proj.weight.copy_(torch.eye(C))
        layer.proj.bias.zero_()
    return layer, x


@pytest.mark.parametrize("n_head", [1, 2, 4, 8])
def test_scores_are_scaled_by_head_size_not_by_n_embd(tiny: ModelConfig, n_head: int) -> None:
    layer = MultiHeadAttention(tiny.replace(n_head=n_head)).double()
    with torch.no_grad():
        layer.qkv.weight *= 4
    x = torch.randn(2, 16, 32, dtype=torch.float64)
    y = layer(x)
    torch.testing.assert_close(y, by_hand(layer, x, scale=(32 / n_head) ** -0.5), atol=1e-12, rtol=0)
    error = (y - by_hand(layer, x, scale=32**-0.5)).abs().max()
    assert error < 1e-12 if n_head == 1 else error > 0.01


def test_four_heads_of_8_cost_what_one_of_32_does(tiny: ModelConfig) -> None:
    four = MultiHeadAttention(tiny.replace(n_head=4))
    one = MultiHeadAttention(tiny.replace(n_head=1))
    assert (four.head_size, one.head_size) == (8, 32)
    assert count_parameters(four) == count_parameters(one) == 3 * 32 * 32 + 32 * 32 + 32


def test_queries_keys_and_values_have_no_bias_and_there_is_no_mask_to_store(tiny: ModelConfig) -> None:
    assert set(MultiHeadAttention(tiny).state_dict()) == {"qkv.weight", "proj.weight", "proj.bias"}


def test_shares_sum_to_1_and_the_future_has_none() -> None:
    config = ModelConfig(vocab_size=65, block_size=16, n_head=1, n_embd=32, init="torch")
    layer, x = reading_out_shares(config)
    shares = layer(x)[0, :, :16]  # (T, T)
    torch.testing.assert_close(shares.sum(-1), torch.ones(16))
    future = torch.ones(16, 16, dtype=torch.bool).triu(1)
    assert (shares[future] == 0).all()
    assert (shares[~future] > 0).all()
    assert shares.std() > 0.1


def test_moves_from_past_to_future_only_and_never_between_rows(tiny: ModelConfig) -> None:
    layer = MultiHeadAttention(tiny)
    x = torch.randn(3, 16, 32)
    for t in range(16):
        changed = x.clone()
        changed[1, t] += torch.randn(32)
        moved = (layer(x) != layer(changed)).any(-1)  # (B, T)
        assert moved.nonzero().tolist() == [[1, later] for later in range(t, 16)]


def test_drops_shares_in_training_alone() -> None:
    config = ModelConfig(vocab_size=65, block_size=16, n_head=1, n_embd=32, init="torch", dropout=0.5)
    layer, x = reading_out_shares(config)
    layer.resid_dropout.p = 0.0
    whole = layer.eval()(x)[0, :, :16]  # (T, T)
    assert torch.equal(whole, layer(x)[0, :, :16])
    dropped = layer.train()(x)[0, :, :16]
    kept = dropped != 0
    torch.testing.assert_close(dropped, torch.where(kept, 2 * whole, 0.0))
    past = torch.ones(16, 16, dtype=torch.bool).tril()
    assert 0.3 < kept[past].float().mean() < 0.7


def test_drops_what_it_adds_to_the_stream_in_training_alone(tiny: ModelConfig) -> None:
    layer = MultiHeadAttention(tiny.replace(dropout=0.5)).eval()
    layer.dropout = 0.0
    x = torch.randn(8, 16, 32)
    whole = layer(x)
    dropped = layer.train()(x)
    kept = dropped != 0
    torch.testing.assert_close(dropped, torch.where(kept, 2 * whole, 0.0))
    assert 0.45 < kept.float().mean() < 0.55
