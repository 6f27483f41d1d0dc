"""The feed-forward layer: what each token thinks about what it has gathered."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from gptblock.config import ModelConfig


class FeedForward(nn.Module):
    """Two linear layers around a ReLU, four times as wide inside, applied to each position by itself.

    x (B, T, n_embd) -> (B, T, n_embd). `down` projects back into the residual stream (Vaswani et al. 2017,
    section 3.3).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.down = nn.Linear(4 * config.n_embd, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.up(x))  # (B, T, C) -> (B, T, 4C)
        out: Tensor = self.dropout(self.down(x))  # (B, T, 4C) -> (B, T, C)
        return out
