"""The feed-forward layer: what each token thinks about what it has gathered."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from gptblock.config import ModelConfig


class FeedForward(nn.Module):
    """Two linear layers around a non-linearity, wider inside, applied to each position by itself.

    x (B, T, n_embd) -> (B, T, n_embd). `down` projects back into the residual stream (Vaswani et al. 2017,
    section 3.3). With "swiglu" the rows of `up` are twice as many, the gate's first (Shazeer 2020).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        has_gate = config.feedforward == "swiglu"
        bias = config.bias != "none"
        self.up = nn.Linear(config.n_embd, (1 + has_gate) * config.ff_size, bias=bias)
        self.activation = _ACTIVATIONS[config.feedforward]()
        self.down = nn.Linear(config.ff_size, config.n_embd, bias=bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.up(x))  # (B, T, C) -> (B, T, ff_size)
        out: Tensor = self.dropout(self.down(x))  # (B, T, ff_size) -> (B, T, C)
        return out


class SquaredReLU(nn.Module):
    """relu(x) ** 2 (So et al. 2021, section 4)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x).square()


class SwiGLU(nn.Module):
    """One half of the features gates the other: (..., 2N) -> (..., N) (Shazeer 2020, section 2)."""

    def forward(self, x: Tensor) -> Tensor:
        gate, value = x.chunk(2, dim=-1)
        return F.silu(gate) * value


class TanhGELU(nn.Module):
    """GELU by its tanh approximation, which is GPT-2's (Hendrycks and Gimpel 2016, section 2)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")


_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "relu_squared": SquaredReLU,
    "gelu": nn.GELU,
    "gelu_tanh": TanhGELU,
    "swiglu": SwiGLU,
}
