"""Token shift: each token sees a little of the tokens just before it, without attending to them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TokenShift(nn.Module):
    """Each feature mixed with itself up to `token_shift` tokens earlier. x (B, T, C) -> (B, T, C).

    A causal depthwise convolution; with one token before, RWKV's token shift (Peng et al. 2023, section
    3.1.1). Row j of `weight` (token_shift + 1, C) belongs to the token j places back; before the first token
    all is zero. The weights start anywhere in -1..1: features that all look back alike learn more slowly.
    """

    def __init__(self, n_embd: int, token_shift: int) -> None:
        super().__init__()
        self.token_shift = token_shift
        self.weight = nn.Parameter(torch.empty(token_shift + 1, n_embd).uniform_(-1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(F.pad(x, (0, 0, self.token_shift, 0)))

    def mix(self, x: Tensor) -> Tensor:
        """x with the token_shift tokens before it in front, (B, token_shift + T, C) -> (B, T, C)."""
        T = x.size(1) - self.token_shift
        mixed = x[:, self.token_shift :] * self.weight[0]
        for j in range(1, self.token_shift + 1):
            mixed = mixed + x[:, self.token_shift - j : self.token_shift - j + T] * self.weight[j]
        return mixed
