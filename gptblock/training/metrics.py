"""The losses of a run: estimated on both splits, one line each time in metrics.jsonl."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from gptblock.bundle.store import write_file
from gptblock.config import TrainConfig
from gptblock.errors import CorruptError
from gptblock.model import eval_mode, loss
from gptblock.training.batches import Windows, draw_batch
from gptblock.training.compute import autocast
from gptblock.training.processes import Processes

# Of an evaluation: few calls cost less than many, up to where what they compute leaves the CPU's caches.
_TOKENS_AT_ONCE = 2048


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
    model: nn.Module,
    splits: Mapping[str, Windows],
    config: TrainConfig,
    seed: int,
    processes: Processes = Processes(),
) -> dict[str, float]:
    """The mean loss over `eval_iters` random batches of each split, dropout off.

    The draws depend on `seed` alone: every estimate of a run sees the same windows, so that two differ by
    the model only, and nothing that training draws from is touched. Each process takes its share of them.
    """
    generator = torch.Generator().manual_seed(seed)
    count = config.eval_iters * config.batch_size
    at_once = config.micro_batch_size or max(config.batch_size, _TOKENS_AT_ONCE // config.block_size)
    parts = -(-processes.largest_share(count) // at_once)
    means = {}
    with eval_mode(model), torch.no_grad():
        for name, windows in splits.items():
            inputs, targets = (processes.share(drawn) for drawn in draw_batch(windows, count, generator))
            total = torch.zeros((), dtype=torch.float64, device=inputs.device)
            for x, y in zip(inputs.tensor_split(parts), targets.tensor_split(parts), strict=True):
                with autocast(config):
                    logits = model(x)  # (rows, T, vocab_size)
                if len(x):
                    total += loss(logits.float(), y) * len(x)
            means[name] = processes.sum(total).item() / count
    return means


def best_of(measurements: Sequence[Measurement]) -> Measurement:
    """The measurement of the lowest validation loss, the first of equals; there is one at least."""
    return min(measurements, key=lambda measurement: measurement.val_loss)


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
