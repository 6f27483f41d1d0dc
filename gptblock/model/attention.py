"""Causal self-attention, all heads at once: how a token gathers from the tokens before it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from gptblock.config import ModelConfig


class MultiHeadAttention(nn.Module):
    """Several heads of causal self-attention in one batched computation. x (B, T, n_embd) -> (B, T, n_embd).

    The rows of `qkv.weight` (3 * n_embd, n_embd) are all heads' queries, then all keys, then all values;
    inside each third head h owns the rows h * head_size to (h + 1) * head_size. `proj` leads back into the
    residual stream. Scores are scaled by head_size ** -0.5, which keeps their variance at 1 whatever
    the number of heads (Vaswani et al. 2017, section 3.2).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.head_size = config.head_size
        self.scale = config.head_size**-0.5
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.proj = nn.Linear(config.n_embd, config.n_embd)
        self.resid_dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        qkv = self.qkv(x).view(B, T, 3, self.n_head, self.head_size)  # (B, T, 3, n_head, head_size)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # three times (B, n_head, T, head_size)
        y = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True, scale=self.scale
        )  # (B, n_head, T, head_size)
        y = y.transpose(1, 2).reshape(B, T, C)  # heads side by side again
        out: Tensor = self.resid_dropout(self.proj(y))  # (B, T, C)
        return out
