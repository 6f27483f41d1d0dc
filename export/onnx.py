"""The model as an ONNX file: opset 24, standard operators only, self-contained."""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gptblock.bundle.manifest import ModelMetadata
from gptblock.config import ModelConfig
from gptblock.errors import MissingExtraError
from gptblock.export.graph import OPSET, CachedGPT
from gptblock.export.serialize import write_model
from gptblock.model.gpt import GPT
from gptblock.runtime.decoder import cache_names

if TYPE_CHECKING:
    from torch.onnx import ONNXProgram

# A protobuf message cannot be larger than 2 GiB; larger weights go to a second file.
LARGEST_SINGLE_FILE = 2**31 - 2**20


def export_onnx(
    model: GPT, path: Path, metadata: ModelMetadata, *, largest_single_file: int = LARGEST_SINGLE_FILE
) -> list[Path]:
    """Write `model` to `path` with `metadata` inside, and return the files written.

    One file; above `largest_single_file` bytes of weights a second, `<path>.data`, lies beside it. Where
    `metadata.precision` is "fp16", weights and cache are in half precision, else as the model's.
    The model is exported in eval mode, whatever its mode; its mode is restored.
    """
    if metadata.precision == "fp16":
        model = copy.deepcopy(model).half()
    was_training = model.training
    model.eval()
    try:
        with _quiet():
            program = _program(CachedGPT(model))
    finally:
        model.train(was_training)
    _drop_traces(program)
    program.model.graph.name = "gptblock"
    program.model.producer_name = "gptblock"
    program.model.metadata_props.update(metadata.to_metadata())
    weights = sum(parameter.nbytes for parameter in model.parameters())
    if weights > largest_single_file:
        program.save(path, external_data=True)
        return [path, path.with_name(path.name + ".data")]
    write_model(program.model, path)
    return [path]


def _example(config: ModelConfig, weight: Tensor) -> tuple[object, ...]:
    """Inputs to follow the module with. No size is 1: torch would bake that into the graph."""
    batch, time, kept, capacity = 2, 2, 2, 4
    device = weight.device
    return (
        torch.zeros(batch, time, dtype=torch.int64, device=device),
        torch.zeros(batch, dtype=torch.int64, device=device),
        torch.zeros(batch, kept, dtype=torch.int64, device=device),
        [weight.new_zeros(batch, capacity, config.n_embd) for _ in cache_names(config)],
    )


def _program(module: CachedGPT) -> ONNXProgram:
    """Run torch's exporter, with names for the inputs, outputs and sizes that vary."""
    config = module.model.config
    B, T, K, capacity = (torch.export.Dim(name) for name in ("batch", "time", "kept", "capacity"))
    caches = cache_names(config)
    program = torch.onnx.export(
        module,
        _example(config, module.model.lm_head.weight),
        dynamo=True,
        opset_version=OPSET,
        verbose=False,
        external_data=False,
        input_names=["input_ids", "past_length", "logits_positions", *caches],
        output_names=["logits", *caches.values()],
        dynamic_shapes=({0: B, 1: T}, {0: B}, {0: B, 1: K}, [{0: B, 1: capacity}] * len(caches)),
    )
    assert program is not None
    return program


def _drop_traces(program: ONNXProgram) -> None:
    """Remove from each node where in whose source files it stands: large, and nobody else's business."""
    graph = program.model.graph
    values = [*graph.inputs, *graph.initializers.values(), *(out for node in graph for out in node.outputs)]
    for part in (program.model, graph, *graph, *values):
        part.metadata_props.clear()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch's exporter warns of its own affairs (torchvision missing, names it will drop)."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ModuleNotFoundError as error:
        raise MissingExtraError("exporting to ONNX", error.name or "onnx", "train") from None
    finally:
        logger.setLevel(level)
