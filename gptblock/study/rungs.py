"""The rungs of the ladder: the lecture's model as it grows, one part after the other.

Each `rung` takes the shape of the last one, and makes of it what is there by then. Dropout is off.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gptblock.config import ModelConfig
from gptblock.lecture import Block, Head, MultiHeadAttention


class Bigram(nn.Module):
    """The next token from the last one alone: idx (B, T) int64 -> logits (B, T, vocab_size)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.token_embedding_table = nn.Embedding(config.vocab_size, config.vocab_size)

    def forward(self, idx: Tensor) -> Tensor:
        logits: Tensor = self.token_embedding_table(idx)  # (B, T, vocab_size)
        return logits


class Rung(nn.Module):
    """Embeddings, some parts, a head: idx (B, T) int64 -> logits (B, T, vocab_size), with T <= block_size.

    `blocks` and `ln_f` map (B, T, n_embd) to the same. The names are those of the lecture's GPT, which the
    last rung is.
    """

    def __init__(self, config: ModelConfig, blocks: nn.Module, ln_f: nn.Module | None = None) -> None:
        super().__init__()
        self.token_embedding_table = nn.Embedding(config.vocab_size, config.n_embd)
        self.position_embedding_table = nn.Embedding(config.block_size, config.n_embd)
        self.blocks = blocks
        self.ln_f = ln_f or nn.Identity()
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size)

    def forward(self, idx: Tensor) -> Tensor:
        positions = torch.arange(idx.shape[1], device=idx.device)  # (T,)
        x = self.token_embedding_table(idx) + self.position_embedding_table(positions)  # (B, T, C)
        x = self.ln_f(self.blocks(x))  # (B, T, C)
        logits: Tensor = self.lm_head(x)  # (B, T, vocab_size)
        return logits


def one_head(config: ModelConfig) -> Rung:
    """A single head as wide as the model."""
    return Rung(config, Head(config.n_embd, config.n_embd, config.block_size, dropout=0.0))


def heads(config: ModelConfig) -> Rung:
    """Narrower heads side by side, and no projection behind them yet."""
    return Rung(config, _heads(config))


def with_feedforward(config: ModelConfig) -> Rung:
    """And a feed-forward layer, not wider inside, without a projection."""
    return Rung(config, nn.Sequential(_heads(config), _narrow_feedforward(config)))


def without_residual(config: ModelConfig) -> Rung:
    """Blocks of both, one behind the other, nothing added to a stream."""
    blocks = (nn.Sequential(_heads(config), _narrow_feedforward(config)) for _ in range(config.n_layer))
    return Rung(config, nn.Sequential(*blocks))


def with_residual(config: ModelConfig) -> Rung:
    """The lecture's blocks but for their norms: additions, projections, a feed-forward four times as wide."""
    blocks = nn.Sequential(*(_block(config) for _ in range(config.n_layer)))
    for block in blocks:
        block.ln1, block.ln2 = nn.Identity(), nn.Identity()
    return Rung(config, blocks)


def with_norm(config: ModelConfig) -> Rung:
    """The lecture's blocks, and the norm behind them: `gptblock.lecture.GPT`."""
    blocks = (_block(config) for _ in range(config.n_layer))
    return Rung(config, nn.Sequential(*blocks), nn.LayerNorm(config.n_embd))


def _block(config: ModelConfig) -> Block:
    return Block(config.n_embd, config.n_head, config.block_size, dropout=0.0)


def _heads(config: ModelConfig) -> MultiHeadAttention:
    layer = MultiHeadAttention(config.n_embd, config.n_head, config.block_size, dropout=0.0)
    layer.add_module("proj", nn.Identity())
    return layer


def _narrow_feedforward(config: ModelConfig) -> nn.Sequential:
    return nn.Sequential(nn.Linear(config.n_embd, config.n_embd), nn.ReLU())
