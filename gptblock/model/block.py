"""The transformer block: communication, then computation."""

from __future__ import annotations

from torch import Tensor, nn

from gptblock.config import ModelConfig
from gptblock.model.attention import MultiHeadAttention
from gptblock.model.feedforward import FeedForward
from gptblock.model.norm import LayerNorm


class Block(nn.Module):
    """Attention and feed-forward, each adding to the residual stream. x (B, T, n_embd) -> (B, T, n_embd).

    Pre-norm: what a layer reads is normalised, the stream itself never is, so the gradient reaches the
    embeddings undisturbed (Xiong et al. 2020; the lecture departs from Vaswani et al. 2017 here too).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.ln1 = LayerNorm(config.n_embd)
        self.attention = MultiHeadAttention(config)
        self.ln2 = LayerNorm(config.n_embd)
        self.feedforward = FeedForward(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln1(x))  # (B, T, C)
        out: Tensor = x + self.feedforward(self.ln2(x))  # (B, T, C)
        return out
