"""What happens during a training run, for whoever watches it: the library itself prints nothing.

`step` counts the steps done so far, from the start of the run, stops and resumes included.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gptblock.training.metrics import Measurement

Stage = Literal["reading", "learning", "encoding"]  # a text, a tokenizer from it, the text with that


@dataclass(frozen=True)
class Reading:
    """A large text is on its way to ids, before anything else; of a small one nothing is told."""

    stage: Stage
    data: str
    size: int  # of the text, in bytes
    share: float  # of the stage that is done, 0 to 1


@dataclass(frozen=True)
class Started:
    """Everything is loaded; steps `step` to `stop_at` follow."""

    run: Path
    device: str
    parameters: int
    vocab_size: int
    tokens: int  # of the training part
    tokens_per_step: int
    step: int
    stop_at: int
    max_iters: int


@dataclass(frozen=True)
class Stepped:
    """One step, with the loss of its batch and the learning rate it was made with."""

    step: int
    loss: float
    learning_rate: float


@dataclass(frozen=True)
class Evaluated:
    """Both losses were estimated. `is_best`: the lowest validation loss so far."""

    measurement: Measurement
    is_best: bool


@dataclass(frozen=True)
class Sampled:
    """What the model writes by now, of itself; also in samples.jsonl."""

    step: int
    text: str


@dataclass(frozen=True)
class Saved:
    """A checkpoint is on the disk."""

    step: int
    path: Path


@dataclass(frozen=True)
class Noted:
    """Something turned out otherwise than one might think; training goes on."""

    text: str


@dataclass(frozen=True)
class Stopping:
    """The run was asked to stop before its time; what follows is saving."""

    step: int


Event = Reading | Started | Stepped | Evaluated | Sampled | Saved | Noted | Stopping
