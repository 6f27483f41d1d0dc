from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gptblock.training.batches import Windows, draw_batch

CPU = torch.device("cpu")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_windows_are_every_window_without_a_copy() -> None:
    ids = np.arange(6)
    windows = Windows(ids, 3, CPU)
    assert len(windows) == 3
    assert windows[torch.arange(3)].tolist() == [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]
    ids[0] = 7
    assert windows[torch.tensor([0])].tolist() == [[7, 1, 2, 3]]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.int64])
def test_small_types_give_the_same_batches(dtype: type[np.integer[Any]], tmp_path: Path) -> None:
    """In memory, mapped, and on another device: bit for bit what int64 in one tensor gives."""
    ids = np.random.default_rng(0).integers(0, 256, 100)
    mapped = np.memmap(tmp_path / "ids", dtype, mode="w+", shape=ids.shape)
    mapped[:] = ids
    expected = torch.from_numpy(ids).unfold(0, 9, 1)[torch.randint(92, (16,), generator=generator(3))]
    on_device = Windows(ids.astype(dtype), 8, torch.device("meta"))
    on_device._rows = torch.from_numpy(ids.astype(np.int32)).unfold(0, 9, 1)  # what a GPU holds
    on_device.device = CPU
    for windows in (Windows(ids.astype(dtype), 8, CPU), Windows(mapped, 8, CPU), on_device):
        inputs, targets = draw_batch(windows, 16, generator(3))
        assert inputs.dtype == targets.dtype == torch.int64
        assert torch.equal(inputs, expected[:, :-1])
        assert torch.equal(targets, expected[:, 1:])


def test_a_device_holds_what_is_in_memory_and_not_what_is_mapped(tmp_path: Path) -> None:
    ids = np.zeros(20, np.uint8)
    mapped = np.memmap(tmp_path / "ids", np.uint8, mode="w+", shape=ids.shape)
    meta = torch.device("meta")  # stands for a GPU
    assert isinstance(Windows(ids, 4, meta)._rows, torch.Tensor)
    assert isinstance(Windows(mapped, 4, meta)._rows, np.ndarray)
    assert Windows(mapped, 4, meta)[torch.tensor([0, 3])].shape == (2, 5)
    assert Windows(mapped, 4, meta)[torch.tensor([0, 3])].device == meta


def test_batch_is_the_lectures() -> None:
    """The same draws as the lecture's get_batch, which stacks slices row by row."""
    ids = np.random.default_rng(0).integers(0, 65, 100)
    inputs, targets = draw_batch(Windows(ids, 8, CPU), 16, generator(3))
    data = torch.from_numpy(ids)
    starts = torch.randint(len(data) - 8, (16,), generator=generator(3))
    assert torch.equal(inputs, torch.stack([data[i : i + 8] for i in starts]))
    assert torch.equal(targets, torch.stack([data[i + 1 : i + 9] for i in starts]))


def test_the_shortest_text_has_one_window() -> None:
    inputs, targets = draw_batch(Windows(np.arange(4), 3, CPU), 2, generator())
    assert inputs.tolist() == [[0, 1, 2]] * 2
    assert targets.tolist() == [[1, 2, 3]] * 2


def test_every_window_is_drawn_the_last_one_too() -> None:
    inputs, _ = draw_batch(Windows(np.arange(12), 4, CPU), 400, generator())
    assert set(inputs[:, 0].tolist()) == set(range(8))


def test_only_the_given_generator_is_drawn_from() -> None:
    before = torch.get_rng_state()
    draw_batch(Windows(np.arange(50), 4, CPU), 8, generator())
    assert torch.equal(torch.get_rng_state(), before)
