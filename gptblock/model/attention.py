"""Causal self-attention, all heads at once: how a token gathers from the tokens before it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from gptblock.config import ModelConfig
from gptblock.model.norm import RMSNorm
from gptblock.model.rotary import Rotary, Unrotated


class MultiHeadAttention(nn.Module):
    """Several heads of causal self-attention in one batched computation. x (B, T, n_embd) -> (B, T, n_embd).

    The rows of `qkv.weight` (3 * n_embd, n_embd) are all heads' queries, then all keys, then all values;
    inside each third head h owns the rows h * head_size to (h + 1) * head_size. `proj` leads back into the
    residual stream. Scores are scaled by head_size ** -0.5, which keeps their variance at 1 whatever
    the number of heads (Vaswani et al. 2017, section 3.2). With `qk_norm` each head's queries and keys are
    brought to one length first, so that no score can run away (Henry et al. 2020).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.head_size = config.head_size
        self.scale = config.head_size**-0.5
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias == "gpt2")
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias != "none")
        self.resid_dropout = nn.Dropout(config.dropout)
        is_rotary = config.positions == "rope"
        self.q_norm, self.k_norm = (
            RMSNorm(config.head_size, config.norm_eps) if config.qk_norm else nn.Identity() for _ in range(2)
        )
        self.rotary = Rotary(config.head_size, config.block_size) if is_rotary else Unrotated()
        self.treats_heads = config.qk_norm or is_rotary

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.project(x, None)  # three times (B, T, C)
        heads = (B, T, self.n_head, self.head_size)
        y = F.scaled_dot_product_attention(
            q.view(heads).transpose(1, 2),  # (B, n_head, T, head_size)
            k.view(heads).transpose(1, 2),
            v.view(heads).transpose(1, 2),
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
            scale=self.scale,
        )  # (B, n_head, T, head_size)
        y = y.transpose(1, 2).reshape(B, T, C)  # heads side by side again
        out: Tensor = self.resid_dropout(self.proj(y))  # (B, T, C)
        return out

    def project(self, x: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of x at `positions` (B, T), or 0 to T - 1: three times (B, T, C)."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)  # (B, T, 3C) -> three times (B, T, C)
        if self.treats_heads:
            heads = (x.size(0), x.size(1), self.n_head, self.head_size)
            q = self.rotary(self.q_norm(q.reshape(heads)), positions).flatten(2)  # (B, T, C)
            k = self.rotary(self.k_norm(k.reshape(heads)), positions).flatten(2)
        return q, k, v
