"""Rotary positions: where a token stands, told by turning its queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn

THETA = 10_000.0  # the slowest pair turns once in about 2 * pi * THETA tokens


class Rotary(nn.Module):
    """Turn the features of each head by angles that grow with the position.

    The score of a query and a key then depends on how far apart they stand, not on where (Su et al. 2021,
    section 3.2). Feature i is paired with feature i + head_size / 2, as in Llama.
    """

    def __init__(self, head_size: int, block_size: int) -> None:
        super().__init__()
        speeds = THETA ** (-torch.arange(0, head_size, 2) / head_size)  # (head_size / 2,)
        angles = torch.outer(torch.arange(block_size), speeds)  # (block_size, head_size / 2)
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor, positions: Tensor | None) -> Tensor:
        """x (B, T, n_head, head_size) at `positions` (B, T), by default 0 to T - 1 -> the same shape."""
        if positions is None:
            cos, sin = self.cos[: x.size(1)], self.sin[: x.size(1)]  # (T, head_size / 2)
        else:
            cos, sin = self.cos[positions], self.sin[positions]  # (B, T, head_size / 2)
        cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)  # (..., T, 1, head_size / 2), the same for all heads
        first, second = x.chunk(2, dim=-1)  # (B, T, n_head, head_size / 2)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Unrotated(nn.Module):
    """In the place of Rotary where positions are told otherwise, or not at all."""

    def forward(self, x: Tensor, positions: Tensor | None) -> Tensor:  # noqa: ARG002
        return x
