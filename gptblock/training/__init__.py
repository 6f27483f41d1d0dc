"""Training: text and a configuration become a run directory."""

from gptblock.training.checkpoint import LoadedRun, State, load_model
from gptblock.training.events import (
    Evaluated,
    Event,
    Noted,
    Reading,
    Sampled,
    Saved,
    Started,
    Stepped,
    Stopping,
)
from gptblock.training.loop import TrainResult, train

__all__ = [
    "train",
    "TrainResult",
    "Event",
    "Reading",
    "Started",
    "Stepped",
    "Evaluated",
    "Sampled",
    "Saved",
    "Noted",
    "Stopping",
    "load_model",
    "LoadedRun",
    "State",
]
