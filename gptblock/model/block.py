"""The transformer block: communication, then computation."""

from __future__ import annotations

from torch import Tensor, nn

from gptblock.config import ModelConfig
from gptblock.model.attention import MultiHeadAttention
from gptblock.model.feedforward import FeedForward
from gptblock.model.norm import make_norm


class Block(nn.Module):
    """Attention and feed-forward, each adding to the residual stream. x (B, T, n_embd) -> (B, T, n_embd).

    Pre-norm: what a layer reads is normalised, the stream itself never is, so the gradient reaches the
    embeddings undisturbed (Xiong et al. 2020; the lecture departs from Vaswani et al. 2017 here too).
    Post-norm, as in Vaswani et al.: the stream is normalised after each addition.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.is_pre = config.norm_placement == "pre"
        self.ln1 = make_norm(config)
        self.attention = MultiHeadAttention(config)
        self.ln2 = make_norm(config)
        self.feedforward = FeedForward(config)

    def forward(self, x: Tensor) -> Tensor:
        return self.after_attention(x, self.attention(self.before_attention(x)))  # (B, T, C)

    def before_attention(self, x: Tensor) -> Tensor:
        """What attention reads of the stream x (B, T, C)."""
        y: Tensor = self.ln1(x) if self.is_pre else x  # (B, T, C)
        return y

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """The stream x (B, T, C) after the block, given what attention has gathered, (B, T, C)."""
        if self.is_pre:
            x = x + attended
            out: Tensor = x + self.feedforward(self.ln2(x))
        else:
            x = self.ln1(x + attended)
            out = self.ln2(x + self.feedforward(x))
        return out  # (B, T, C)
