"""Batches: random windows of a text, and the targets one position later."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def windows_of(ids: NDArray[np.int64], block_size: int, device: torch.device) -> Tensor:
    """Every window of (N,) ids and its target: (N - block_size, block_size + 1), a view without copies."""
    return torch.from_numpy(ids).to(device).unfold(0, block_size + 1, 1)


def draw_batch(windows: Tensor, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """`batch_size` windows drawn with replacement: inputs (B, T) and targets (B, T), one gather in all.

    `generator` lives on the CPU whatever the device, so that all devices see the same batches.
    """
    starts = torch.randint(len(windows), (batch_size,), generator=generator)  # (B,)
    batch = windows[starts.to(windows.device)]  # (B, T + 1)
    return batch[:, :-1], batch[:, 1:]
