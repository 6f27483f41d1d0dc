"""The transformer block: communication, then computation."""

from __future__ import annotations

from torch import Tensor, nn

from gptblock.config import ModelConfig
from gptblock.model.attention import MultiHeadAttention
from gptblock.model.feedforward import FeedForward
from gptblock.model.norm import make_norm
from gptblock.model.shift import TokenShift


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
        self.shift = TokenShift(config.n_embd, config.token_shift) if config.token_shift else nn.Identity()
        self.feedforward = FeedForward(config)

    def forward(self, x: Tensor) -> Tensor:
        x = self.after_attention(x, self.attention(self.before_attention(x)))  # (B, T, C)
        read = self.shift(self.before_feedforward(x))  # (B, T, C)
        return self.after_feedforward(x, self.feedforward(read))  # (B, T, C)

    def before_attention(self, x: Tensor) -> Tensor:
        """What attention reads of the stream x (B, T, C)."""
        y: Tensor = self.ln1(x) if self.is_pre else x  # (B, T, C)
        return y

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """The stream x (B, T, C) with what attention has gathered, (B, T, C)."""
        y: Tensor = x + attended if self.is_pre else self.ln1(x + attended)  # (B, T, C)
        return y

    def before_feedforward(self, x: Tensor) -> Tensor:
        """What the feed-forward, or the token shift before it, reads of the stream x (B, T, C)."""
        y: Tensor = self.ln2(x) if self.is_pre else x  # (B, T, C)
        return y

    def after_feedforward(self, x: Tensor, thought: Tensor) -> Tensor:
        """The stream x (B, T, C) with what the feed-forward made of it, (B, T, C)."""
        y: Tensor = x + thought if self.is_pre else self.ln2(x + thought)  # (B, T, C)
        return y
