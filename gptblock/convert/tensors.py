"""Tensors by name: are they just those that are expected; and what is done to them on the way in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gptblock.config import ModelConfig
from gptblock.errors import CorruptError
from gptblock.model import GPT
from gptblock.text.tokenizer import Tokenizer

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Reading:
    """What a reader makes of a checkpoint: the weights by `gptblock.model.GPT`'s names, and what they mean.

    `weights` fit `config`, vocabulary included. `files` hold them, the first of them lends its name.
    """

    config: ModelConfig
    weights: dict[str, Tensor]
    tokenizer: Tokenizer
    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()  # what was left out or decided, a sentence each


def shapes_of(config: ModelConfig) -> Shapes:
    """The shape of every weight of a GPT, by name; what is shared, as by a tied head, once."""
    with torch.device("meta"):
        model = GPT(config)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def require_exactly(tensors: Mapping[str, Tensor], shapes: Shapes, path: Path) -> None:
    """Raise CorruptError unless `tensors` are just those of `shapes` and finite, listing what is not."""
    missing = [name for name in shapes if name not in tensors]
    extra = [name for name in tensors if name not in shapes]
    both = {name: tensor for name, tensor in tensors.items() if name in shapes}
    problems = [f"missing: {', '.join(missing)}"] if missing else []
    problems += [f"unknown: {', '.join(extra)}"] if extra else []
    problems += [
        f"{name} is {tuple(tensor.shape)} and should be {shapes[name]}"
        for name, tensor in both.items()
        if tuple(tensor.shape) != shapes[name]
    ]
    problems += [f"{name} is not finite" for name, tensor in both.items() if not tensor.isfinite().all()]
    if problems:
        raise CorruptError(f"the tensors of {path} are not those of its model; {'; '.join(problems)}")


def scale_queries(
    weights: Mapping[str, Tensor], config: ModelConfig, factors: list[float]
) -> dict[str, Tensor]:
    """The weights with the queries of block i, and so its scores, multiplied by factors[i].

    A model whose scores are scaled otherwise than by head_size ** -0.5 becomes one of ours this way.
    """
    scaled = dict(weights)
    for index, factor in enumerate(factors):
        for kind in ("weight", "bias"):
            name = f"blocks.{index}.attention.qkv.{kind}"
            if name in scaled and factor != 1:
                scaled[name] = scaled[name].clone()
                scaled[name][: config.n_embd] *= factor  # the first third of the rows are the queries
    return scaled
