"""Layer normalisation: each token's features brought to mean 0 and variance 1, then scaled and shifted."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LayerNorm(nn.Module):
    """Normalise the last dimension of x (..., n_embd), each position by itself.

    The statistics are those of the very features that are normalised, so nothing is remembered between
    calls, nothing moves between positions or rows, and training and evaluation are the same
    (Ba et al. 2016, section 3).
    """

    def __init__(self, n_embd: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(n_embd))
        self.bias = nn.Parameter(torch.zeros(n_embd))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)  # (..., n_embd)
