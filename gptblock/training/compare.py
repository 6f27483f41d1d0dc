"""Two runs beside each other: what they were told differently, and where that led."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import torch

from gptblock.bundle.manifest import MANIFEST_NAME
from gptblock.config import TrainConfig
from gptblock.errors import InputError, NotFoundError
from gptblock.model import GPT, count_parameters
from gptblock.text.kinds import tokenizer_from_dict
from gptblock.training.checkpoint import read_state
from gptblock.training.folder import METRICS, is_converted, is_run, read_config
from gptblock.training.metrics import Measurement, best_of, read_measurements


@dataclass(frozen=True)
class RunSummary:
    """A run as its folder tells it, without its weights."""

    path: Path
    config: TrainConfig
    data_sha256: str  # of the corpus as UTF-8
    parameters: int
    measurements: tuple[Measurement, ...]  # one at least

    @property
    def last(self) -> Measurement:
        return self.measurements[-1]

    @property
    def best(self) -> Measurement:
        return best_of(self.measurements)


def read_runs(first: Path, second: Path) -> tuple[RunSummary, RunSummary]:
    """Both runs. Raises InputError where they are one, else as `read_run` does."""
    if first.resolve() == second.resolve():
        raise InputError(f"{first} and {second} are the same run: give two different ones to compare")
    return read_run(first), read_run(second)


def read_run(folder: Path) -> RunSummary:
    """The run in `folder`. Raises NotFoundError where it has none, or none that was trained and measured;
    CorruptError, naming the file, for one that cannot be read.
    """
    if not is_run(folder):
        raise _no_run(folder)
    if is_converted(folder):
        raise NotFoundError(
            f"the run in {folder} was converted from another program's checkpoint: it has no losses to "
            f"compare. Give a run that gptblock train made"
        )
    config = read_config(folder)
    measurements = read_measurements(folder / METRICS)
    if not measurements:
        raise NotFoundError(
            f"the run in {folder} has no losses to compare ({METRICS} is missing or empty): "
            f"gptblock train --resume --out {shlex.quote(str(folder))} goes on with it"
        )
    state = read_state(folder, "last")
    tokenizer = tokenizer_from_dict(state["tokenizer"])
    with torch.device("meta"):  # shapes alone
        parameters = count_parameters(GPT(config.model(tokenizer.vocab_size)))
    return RunSummary(folder, config, state["data_sha256"], parameters, tuple(measurements))


def differing(first: TrainConfig, second: TrainConfig) -> dict[str, tuple[object, object]]:
    """The fields in which two configurations differ, in their order, with both values."""
    one, other = first.to_dict(), second.to_dict()
    return {name: (value, other[name]) for name, value in one.items() if value != other[name]}


def _no_run(folder: Path) -> NotFoundError:
    """The error for what is no run; of a bundle, with the run it lies in, if there is one."""
    if folder.suffix.lower() == ".onnx" or (folder / MANIFEST_NAME).is_file():
        inside = folder.parent if folder.is_dir() else folder.parent.parent
        hint = f", such as {inside}" if is_run(inside) else ""
        return NotFoundError(
            f"{folder} is a bundle, which has no losses to compare: give the folder of the run{hint}"
        )
    problem = "is not there" if not folder.exists() else "holds no run"
    return NotFoundError(
        f"{folder} {problem}: to compare, give two folders that gptblock train wrote "
        f"(gptblock train --out {shlex.quote(str(folder))} makes one)"
    )
