"""Batches: random windows of a text, and the targets one position later."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor


class Windows:
    """Every window of (N,) ids and its target: N - block_size of block_size + 1 tokens, without copies.

    The ids may be of any integer type; what is taken is int64. Those of a numpy.memmap stay where they are,
    and others lie on `device`.
    """

    def __init__(self, ids: NDArray[np.integer[Any]], block_size: int, device: torch.device) -> None:
        self.device = device
        self._rows: NDArray[np.integer[Any]] | Tensor = sliding_window_view(ids, block_size + 1)
        if device.type != "cpu" and not isinstance(ids, np.memmap):
            self._rows = torch.from_numpy(ids.astype(np.int32)).to(device).unfold(0, block_size + 1, 1)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, starts: Tensor) -> Tensor:
        """The windows (B, block_size + 1) int64, on the device, that begin at `starts` (B,): one gather."""
        if isinstance(self._rows, Tensor):
            return self._rows[starts.to(self.device)].long()
        batch = torch.from_numpy(self._rows[starts.numpy()].astype(np.int64))
        if self.device.type == "cuda":
            batch = batch.pin_memory()  # so that it is copied while the GPU still works at the step before
        return batch.to(self.device, non_blocking=True)


def draw_batch(windows: Windows, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """`batch_size` windows drawn with replacement: inputs (B, T) and targets (B, T), one gather in all.

    `generator` lives on the CPU whatever the device, so that all devices see the same batches.
    """
    starts = torch.randint(len(windows), (batch_size,), generator=generator)  # (B,)
    batch = windows[starts]  # (B, T + 1)
    return batch[:, :-1], batch[:, 1:]
