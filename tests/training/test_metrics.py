from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gptblock.config import ModelConfig, TrainConfig
from gptblock.errors import CorruptError
from gptblock.model import GPT, loss
from gptblock.training.batches import Windows, draw_batch
from gptblock.training.metrics import (
    Measurement,
    append_measurement,
    estimate_losses,
    read_measurements,
    rewind_measurements,
)


def measurement(step: int) -> Measurement:
    return Measurement(
        step, train_loss=2.5, val_loss=2.75, lr=1e-3, tokens_per_second=1000.5, seconds=step / 7
    )


def tiny_gpt() -> GPT:
    torch.manual_seed(0)
    config = ModelConfig(vocab_size=7, block_size=8, n_layer=1, n_head=2, n_embd=8, dropout=0.5, init="torch")
    return GPT(config)


def splits() -> dict[str, torch.Tensor]:
    ids = np.random.default_rng(0).integers(0, 7, 200)
    return {
        "train": Windows(ids[:150], 8, torch.device("cpu")),
        "val": Windows(ids[150:], 8, torch.device("cpu")),
    }


def test_estimate_is_the_mean_over_the_batches_without_dropout() -> None:
    model, windows = tiny_gpt(), splits()
    config = TrainConfig(batch_size=4, eval_iters=3)
    estimated = estimate_losses(model, windows, config, seed=5)
    generator = torch.Generator().manual_seed(5)
    model.eval()
    for name in ("train", "val"):
        batches = [draw_batch(windows[name], 4, generator) for _ in range(3)]
        expected = sum(loss(model(inputs), targets).item() for inputs, targets in batches) / 3
        assert estimated[name] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("at_once", [1, 5, 7, 100])
def test_estimate_is_the_same_however_many_windows_are_computed_at_once(at_once: int) -> None:
    config = TrainConfig(batch_size=4, eval_iters=3)
    expected = estimate_losses(tiny_gpt(), splits(), config, seed=5)
    several = config.replace(micro_batch_size=at_once)
    estimated = estimate_losses(tiny_gpt(), splits(), several, seed=5)
    assert estimated == pytest.approx(expected, rel=1e-6)


def test_estimate_leaves_no_trace() -> None:
    model, config = tiny_gpt(), TrainConfig(batch_size=4, eval_iters=2)
    before = torch.get_rng_state()
    first = estimate_losses(model, splits(), config, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert estimate_losses(model, splits(), config, seed=5) == first
    assert estimate_losses(model, splits(), config, seed=6) != first


def test_lines_come_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_measurements(path) == []
    for step in (0, 10, 20):
        append_measurement(path, measurement(step))
    assert path.read_text().count("\n") == 3
    assert read_measurements(path) == [measurement(0), measurement(10), measurement(20)]


def test_rewinding_drops_later_lines_and_a_cut_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for step in (0, 10, 20):
        append_measurement(path, measurement(step))
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(whole) + '{"step": 30, "train_l')
    rewind_measurements(path, 10)
    assert path.read_text() == whole[0] + whole[1]


def test_a_foreign_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append_measurement(path, measurement(0))
    with path.open("a") as file:
        file.write("{}\n")
    with pytest.raises(CorruptError, match=r"line 2 of .*metrics\.jsonl"):
        read_measurements(path)
