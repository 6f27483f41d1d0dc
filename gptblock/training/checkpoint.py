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

from gptblock.bundle.manifest import SourceRecord, TrainingRecord
from gptblock.bundle.store import read_tensors, recover_folder, replace_folder, write_file, write_tensors
from gptblock.config import ModelConfig, TrainConfig
from gptblock.errors import ConfigError, CorruptError, NotFoundError
from gptblock.model import GPT
from gptblock.text.kinds import tokenizer_from_dict
from gptblock.text.tokenizer import Tokenizer
from gptblock.training.folder import CHECKPOINTS, is_converted, is_run, no_run, no_training
from gptblock.training.sharding import gathered

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


class ConvertedState(TypedDict):
    """state.json of a converted run, which has one checkpoint, `best`, and no optimizer in it."""

    schema_version: int
    source: dict[str, Any]  # the fields of a SourceRecord
    model: dict[str, Any]  # ModelConfig.to_dict()
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
    """A model in eval mode on the CPU, with its tokenizer and where it comes from."""

    model: GPT
    tokenizer: Tokenizer
    record: TrainingRecord | SourceRecord


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
    """The state of a trained run's checkpoint. Raises NotFoundError, or CorruptError naming the file."""
    values, path = _read_state(run, which)
    if is_converted(run):
        raise no_training(run)
    return _checked(values, State, path)  # type: ignore[return-value]


def _read_state(run: Path, which: Which) -> tuple[object, Path]:
    """What the state.json of a run's checkpoint holds, and its path."""
    folder = checkpoint_folder(run, which)
    recover_folder(folder)
    if not folder.is_dir():
        if not is_run(run):
            raise no_run(run)
        if is_converted(run):
            raise no_training(run)
        has_last = which == "best" and checkpoint_folder(run, "last").is_dir()
        flag, outcome = ("--resume", "goes on") if has_last else ("--overwrite", "with its data begins anew")
        raise NotFoundError(
            f"the run in {run} has no checkpoint {which!r}: it was stopped before its first; "
            f"gptblock train --out {shlex.quote(str(run))} {flag} {outcome}"
        )
    path = folder / STATE
    try:
        return json.loads(path.read_text(encoding="utf-8")), path
    except (OSError, ValueError) as error:
        raise CorruptError(f"{path} cannot be read: {error}") from None


def load_model(run: Path, which: Which = "best") -> LoadedRun:
    """The model of a run's checkpoint, trained or converted.

    Raises NotFoundError where there is none, and CorruptError, naming the file, where its files are cut
    short or do not fit each other.
    """
    values, path = _read_state(run, which)
    is_foreign = is_converted(run)
    state = _checked(values, ConvertedState if is_foreign else State, path)
    record: TrainingRecord | SourceRecord
    try:
        tokenizer = tokenizer_from_dict(state["tokenizer"])
        if is_foreign:
            config = ModelConfig.from_dict(state["model"])
            record = SourceRecord(**state["source"])
        else:
            config = TrainConfig.from_dict(state["config"]).model(tokenizer.vocab_size)
            record = _training_record(state)  # type: ignore[arg-type]
    except (ConfigError, CorruptError, TypeError) as error:
        raise CorruptError(f"{path} is not as gptblock wrote it: {error}") from None
    with torch.random.fork_rng(devices=[]):  # the weights drawn here are replaced at once
        model = GPT(config)
    restore_weights(model, read_tensors(path.with_name(MODEL), "pt"), path.with_name(MODEL))
    return LoadedRun(model.eval(), tokenizer, record)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """All that a checkpoint keeps of a model, by name; what is shared, as by a tied head, once."""
    return {name: gathered(parameter.detach()) for name, parameter in model.named_parameters()}


def restore_weights(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy a checkpoint's weights, read from `path`, into `model`. Raises CorruptError naming it."""
    require_shapes(tensors, {name: tuple(value.shape) for name, value in weights_of(model).items()}, path)
    model.load_state_dict(tensors, strict=False)  # not strict: a tied head has no name of its own


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


def _training_record(state: State) -> TrainingRecord:
    return TrainingRecord(
        data=state["data"],
        data_sha256=state["data_sha256"],
        steps=state["step"],
        train_loss=state["train_loss"],
        val_loss=state["val_loss"],
        command=state["command"],
        config=state["config"],
    )


def _checked(values: object, kind: type, path: Path) -> dict[str, Any]:
    """`values` with keys and types as in the TypedDict `kind`. Raises CorruptError."""
    version = values.get("schema_version") if isinstance(values, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise CorruptError(
            f"{path} was written by a newer gptblock "
            f"(schema {version}, this one reads {SCHEMA_VERSION}): upgrade gptblock"
        )
    hints = {name: get_origin(hint) or hint for name, hint in get_type_hints(kind).items()}
    if not isinstance(values, dict) or values.keys() != hints.keys():
        raise CorruptError(f"{path} is not a checkpoint's state: expected the keys {', '.join(hints)}")
    for name, hint in hints.items():
        if type(values[name]) is not hint:
            raise CorruptError(f"{path}: {name} must be {hint.__name__}: got {values[name]!r}")
    return values


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def _tensors(path: Path) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in read_tensors(path).items()}
