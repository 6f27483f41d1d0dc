"""Checkpoints: a folder of two safetensors files and a JSON file, replaced as a whole. No pickle."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from gptblock.bundle.store import read_tensors, recover_folder, replace_folder, write_file, write_tensors
from gptblock.config import TrainConfig
from gptblock.errors import ConfigError, CorruptError, NotFoundError
from gptblock.model import GPT
from gptblock.text.tokenizer import Tokenizer, tokenizer_from_dict
from gptblock.training.folder import CHECKPOINTS, is_run, no_run

Which = Literal["best", "last"]

SCHEMA_VERSION = 1
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"


class State(TypedDict):
    """state.json: what a checkpoint knows besides tensors. Losses in nats per token."""

    schema_version: int
    step: int  # steps done
    train_loss: float  # of the evaluation at `evaluated_step`, the latest
    val_loss: float
    evaluated_step: int
    best_val_loss: float
    best_step: int
    seconds: float  # spent on steps
    data: str
    data_sha256: str  # of the corpus as UTF-8
    command: str
    config: dict[str, Any]  # TrainConfig.to_dict(), resolved: lr_decay_iters is the schedule's length
    tokenizer: dict[str, Any]  # Tokenizer.to_dict()
    versions: dict[str, str]


@dataclass(frozen=True)
class Checkpoint:
    """A moment of a run, to go on from. `optimizer` holds the states of the generators, too."""

    state: State
    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]


@dataclass(frozen=True)
class LoadedRun:
    """A trained model in eval mode on the CPU, with all that belongs to it."""

    model: GPT
    tokenizer: Tokenizer
    config: TrainConfig
    state: State


def checkpoint_folder(run: Path, which: Which) -> Path:
    """Where a run keeps that checkpoint."""
    return run / CHECKPOINTS / which


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint in `folder`: whoever reads it sees the old one or the new one."""
    with replace_folder(folder) as new:
        write_tensors(new / MODEL, _arrays(checkpoint.model))
        write_tensors(new / OPTIMIZER, _arrays(checkpoint.optimizer))
        write_file(new / STATE, json.dumps(checkpoint.state, indent=2, allow_nan=False) + "\n")


def read_checkpoint(run: Path, which: Which) -> Checkpoint:
    """A checkpoint with its tensors on the CPU. Raises NotFoundError, or CorruptError naming the file."""
    folder = checkpoint_folder(run, which)
    return Checkpoint(read_state(run, which), _tensors(folder / MODEL), _tensors(folder / OPTIMIZER))


def read_state(run: Path, which: Which) -> State:
    """The state of a run's checkpoint. Raises NotFoundError, or CorruptError naming the file."""
    folder = checkpoint_folder(run, which)
    recover_folder(folder)
    if not folder.is_dir():
        if not is_run(run):
            raise no_run(run)
        has_last = which == "best" and checkpoint_folder(run, "last").is_dir()
        flag, outcome = ("--resume", "goes on") if has_last else ("--overwrite", "with its data begins anew")
        raise NotFoundError(
            f"the run in {run} has no checkpoint {which!r}: it was stopped before its first; "
            f"gptblock train --out {shlex.quote(str(run))} {flag} {outcome}"
        )
    path = folder / STATE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorruptError(f"{path} cannot be read: {error}") from None
    return _checked(values, path)


def load_model(run: Path, which: Which = "best") -> LoadedRun:
    """The model of a run's checkpoint, in eval mode on the CPU, with its tokenizer.

    Raises NotFoundError where there is none, and CorruptError, naming the file, where its files are cut
    short or do not fit each other.
    """
    state = read_state(run, which)
    path = checkpoint_folder(run, which) / STATE
    try:
        config = TrainConfig.from_dict(state["config"])
        tokenizer = tokenizer_from_dict(state["tokenizer"])
    except (ConfigError, CorruptError) as error:
        raise CorruptError(f"{path} is not as gptblock wrote it: {error}") from None
    with torch.random.fork_rng(devices=[]):  # the weights drawn here are replaced at once
        model = GPT(config.model(tokenizer.vocab_size))
    restore_weights(model, _tensors(path.with_name(MODEL)), path.with_name(MODEL))
    return LoadedRun(model.eval(), tokenizer, config, state)


def restore_weights(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy a checkpoint's weights, read from `path`, into `model`. Raises CorruptError naming it."""
    require_shapes(tensors, {name: tuple(value.shape) for name, value in model.state_dict().items()}, path)
    model.load_state_dict(tensors)


def require_shapes(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], path: Path) -> None:
    """Raise CorruptError, naming the file and the tensor, unless `tensors` are just those of `shapes`."""
    problems = [f"it lacks {name}" for name in shapes if name not in tensors]
    problems += [f"it has an unknown {name}" for name in tensors if name not in shapes]
    problems += [
        f"{name} is {tuple(tensors[name].shape)} and should be {shape}"
        for name, shape in shapes.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    if problems:
        more = f", and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise CorruptError(f"{path} does not fit the run: {'; '.join(problems[:3])}{more}")


def _checked(values: object, path: Path) -> State:
    """`values` as a State, keys and types compared. Raises CorruptError."""
    version = values.get("schema_version") if isinstance(values, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise CorruptError(
            f"{path} was written by a newer gptblock "
            f"(schema {version}, this one reads {SCHEMA_VERSION}): upgrade gptblock"
        )
    hints = {name: get_origin(hint) or hint for name, hint in get_type_hints(State).items()}
    if not isinstance(values, dict) or values.keys() != hints.keys():
        raise CorruptError(f"{path} is not a checkpoint's state: expected the keys {', '.join(hints)}")
    for name, hint in hints.items():
        if type(values[name]) is not hint:
            raise CorruptError(f"{path}: {name} must be {hint.__name__}: got {values[name]!r}")
    return values  # type: ignore[return-value]


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def _tensors(path: Path) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in read_tensors(path).items()}
