"""TensorBoard's event files, for whoever watches with that: the measurements of a run as scalars.

The writer comes with the extra `tensorboard`.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from gptblock.errors import MissingExtraError
from gptblock.training.events import Evaluated, Event, Started
from gptblock.training.folder import METRICS, TENSORBOARD
from gptblock.training.metrics import Measurement, read_measurements

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardLog:
    """Keeps RUN/tensorboard as RUN/metrics.jsonl is; call it with the events of a training run.

    At the start the folder is made anew from what is measured already: after a resumption every step is
    there once, also those from before there was a log. Use as a context, so that the file is closed.
    Raises MissingExtraError where there is no tensorboard.
    """

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("--log tensorboard", "tensorboard", "tensorboard") from None
        self._make = SummaryWriter
        self._writer: SummaryWriter | None = None
        self._metrics = Path()
        self._written = 0  # measurements
        self._zero = 0.0  # the time at which the run would have begun, had it only stepped and never stopped

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer:
            self._writer.close()

    def __call__(self, event: Event) -> None:
        match event:
            case Started():
                self._start(event.run)
            case Evaluated():
                self._write_new()

    def _start(self, run: Path) -> None:
        folder = run / TENSORBOARD
        if folder.exists():
            shutil.rmtree(folder)
        self._metrics = run / METRICS
        self._writer = self._make(str(folder))
        measured = read_measurements(self._metrics)
        self._zero = time.time() - (measured[-1].seconds if measured else 0.0)
        self._write_new()

    def _write_new(self) -> None:
        """Bring the event file up to date. An evaluation that a stop alone brought about is in neither."""
        for measurement in read_measurements(self._metrics)[self._written :]:
            self._add(measurement)
            self._written += 1
        if self._writer:
            self._writer.flush()

    def _add(self, measurement: Measurement) -> None:
        scalars = {
            "loss/train": measurement.train_loss,
            "loss/validation": measurement.val_loss,
            "learning_rate": measurement.lr,
            "tokens_per_second": measurement.tokens_per_second,
        }
        assert self._writer
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, measurement.step, walltime=self._zero + measurement.seconds)
