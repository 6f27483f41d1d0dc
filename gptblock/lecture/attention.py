"""Self-attention as the lecture builds it: one head, then a list of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Head(nn.Module):
    """One head of causal self-attention. x (B, T, n_embd) -> (B, T, head_size), with T <= block_size.

    The mask `tril` is a buffer: it moves with the module and is in its state dict, but nothing trains it.
    """

    tril: Tensor

    def __init__(self, n_embd: int, head_size: int, block_size: int, dropout: float) -> None:
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)

    def affinities(self, x: Tensor) -> Tensor:
        """The share that each token (row) takes of every token (column): (B, T, T), rows sum to 1."""
        T = x.shape[1]
        k, q = self.key(x), self.query(x)  # (B, T, head_size) each
        scores = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5  # (B, T, T)
        scores = scores.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return F.softmax(scores, dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        shares = self.dropout(self.affinities(x))  # (B, T, T)
        out: Tensor = shares @ self.value(x)  # (B, T, head_size)
        return out


class MultiHeadAttention(nn.Module):
    """Heads side by side, computed one by one, and a projection. x (B, T, n_embd) -> (B, T, n_embd)."""

    def __init__(self, n_embd: int, n_head: int, block_size: int, dropout: float) -> None:
        super().__init__()
        head_size = n_embd // n_head
        self.heads = nn.ModuleList(Head(n_embd, head_size, block_size, dropout) for _ in range(n_head))
        self.proj = nn.Linear(n_head * head_size, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        gathered = torch.cat([head(x) for head in self.heads], dim=-1)  # (B, T, n_head * head_size)
        out: Tensor = self.dropout(self.proj(gathered))  # (B, T, n_embd)
        return out
