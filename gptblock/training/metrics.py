"""The losses of a run: estimated on both splits, one line each time in metrics.jsonl."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from gptblock.bundle.store import write_file
from gptblock.config import TrainConfig
from gptblock.errors import CorruptError
from gptblock.model import eval_mode, loss
from gptblock.training.batches import draw_batch


@dataclass(frozen=True)
class Measurement:
    """One evaluation. Losses in nats per token; the speed is that of the steps since the one before."""

    step: int
    train_loss: float
    val_loss: float
    lr: float
    tokens_per_second: float
    seconds: float  # spent on steps since the start of the run, evaluations not counted


def estimate_losses(
    model: nn.Module, splits: Mapping[str, Tensor], config: TrainConfig, seed: int
) -> dict[str, float]:
    """The mean loss over `eval_iters` random batches of each split, dropout off.

    The draws depend on `seed` alone: every estimate of a run sees the same batches, so that two differ by
    the model only, and nothing that training draws from is touched.
    """
    generator = torch.Generator().manual_seed(seed)
    means = {}
    with eval_mode(model), torch.no_grad():
        for name, windows in splits.items():
            total = torch.zeros((), dtype=torch.float64, device=windows.device)
            for _ in range(config.eval_iters):
                inputs, targets = draw_batch(windows, config.batch_size, generator)
                total += loss(model(inputs), targets)
            means[name] = total.item() / config.eval_iters
    return means


def append_measurement(path: Path, measurement: Measurement) -> None:
    """Add a line to metrics.jsonl."""
    with path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(json.dumps(dataclasses.asdict(measurement)) + "\n")


def read_measurements(path: Path) -> list[Measurement]:
    """The lines of metrics.jsonl; of a last one that was cut off, nothing. Raises CorruptError for others."""
    measurements = []
    lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            measurements.append(Measurement(**json.loads(line)))
        except (TypeError, ValueError) as error:
            raise CorruptError(
                f"line {number} of {path} is no measurement ({error}); remove it, or the file"
            ) from None
    return measurements


def rewind_measurements(path: Path, step: int) -> None:
    """Drop what was measured after `step`: resuming measures it again."""
    kept = [measurement for measurement in read_measurements(path) if measurement.step <= step]
    write_file(path, "".join(json.dumps(dataclasses.asdict(measurement)) + "\n" for measurement in kept))
