"""Normalisation: each token's features brought to one scale, whatever the other tokens are."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gptblock.config import ModelConfig


class LayerNorm(nn.Module):
    """Bring the last dimension of x (..., n_embd) to mean 0 and variance 1, then scale and shift it.

    The statistics are those of the very features that are normalised, so nothing is remembered between
    calls, nothing moves between positions or rows, and training and evaluation are the same
    (Ba et al. 2016, section 3).
    """

    def __init__(self, n_embd: int, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(n_embd))
        self.bias = nn.Parameter(torch.zeros(n_embd)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)  # (..., n_embd)


class RMSNorm(nn.Module):
    """Bring the last dimension of x (..., n_embd) to a mean square of 1, then scale it.

    LayerNorm without the mean and the shift (Zhang and Sennrich 2019, section 4). The mean square is taken in
    float32: half precision ends at 65504, which the square of 256 is beyond.
    """

    def __init__(self, n_embd: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(n_embd))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        scale = torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + self.eps)  # (..., 1)
        return (y * scale).type_as(x) * self.weight  # (..., n_embd)


def make_norm(config: ModelConfig) -> nn.Module:
    """The norm of the residual stream's features that `config` asks for."""
    match config.norm:
        case "layernorm":
            return LayerNorm(config.n_embd, config.norm_eps, bias=config.bias != "none")
        case "rmsnorm":
            return RMSNorm(config.n_embd, config.norm_eps)
        case "none":
            return nn.Identity()
