"""The lecture's feed-forward layer and transformer block."""

from __future__ import annotations

from torch import Tensor, nn

from gptblock.lecture.attention import MultiHeadAttention


class FeedForward(nn.Module):
    """Linear, ReLU, linear, four times as wide inside. x (B, T, n_embd) -> (B, T, n_embd)."""

    def __init__(self, n_embd: int, dropout: float) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd),
            nn.ReLU(),
            nn.Linear(4 * n_embd, n_embd),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out


FeedFoward = FeedForward  # as the lecture spells it


class Block(nn.Module):
    """Communication, then computation, each added to the stream. x (B, T, n_embd) -> (B, T, n_embd)."""

    def __init__(self, n_embd: int, n_head: int, block_size: int, dropout: float) -> None:
        super().__init__()
        self.sa = MultiHeadAttention(n_embd, n_head, block_size, dropout)
        self.ffwd = FeedForward(n_embd, dropout)
        self.ln1 = nn.LayerNorm(n_embd)
        self.ln2 = nn.LayerNorm(n_embd)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.sa(self.ln1(x))
        out: Tensor = x + self.ffwd(self.ln2(x))
        return out
