from __future__ import annotations

import numpy as np
import torch

from gptblock.training.batches import draw_batch, windows_of

CPU = torch.device("cpu")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_windows_are_every_window_without_a_copy() -> None:
    ids = np.arange(6)
    windows = windows_of(ids, 3, CPU)
    assert windows.tolist() == [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]
    ids[0] = 7
    assert windows[0, 0] == 7


def test_batch_is_the_lectures() -> None:
    """The same draws as the lecture's get_batch, which stacks slices row by row."""
    ids = np.random.default_rng(0).integers(0, 65, 100)
    inputs, targets = draw_batch(windows_of(ids, 8, CPU), 16, generator(3))
    data = torch.from_numpy(ids)
    starts = torch.randint(len(data) - 8, (16,), generator=generator(3))
    assert torch.equal(inputs, torch.stack([data[i : i + 8] for i in starts]))
    assert torch.equal(targets, torch.stack([data[i + 1 : i + 9] for i in starts]))


def test_the_shortest_text_has_one_window() -> None:
    inputs, targets = draw_batch(windows_of(np.arange(4), 3, CPU), 2, generator())
    assert inputs.tolist() == [[0, 1, 2]] * 2
    assert targets.tolist() == [[1, 2, 3]] * 2


def test_every_window_is_drawn_the_last_one_too() -> None:
    inputs, _ = draw_batch(windows_of(np.arange(12), 4, CPU), 400, generator())
    assert set(inputs[:, 0].tolist()) == set(range(8))


def test_only_the_given_generator_is_drawn_from() -> None:
    before = torch.get_rng_state()
    draw_batch(windows_of(np.arange(50), 4, CPU), 8, generator())
    assert torch.equal(torch.get_rng_state(), before)
