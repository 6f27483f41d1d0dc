"""The names that GPT-2 gives its tensors, which nanoGPT took over."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from gptblock.config import ModelConfig
from gptblock.convert.tensors import require_exactly, shapes_of

HEAD = "lm_head.weight"
_PREFIX = "transformer."
_MASK = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")
_PARTS = {  # ours: GPT-2's
    "token_embedding": "wte",
    "position_embedding": "wpe",
    "blocks": "h",
    "ln1": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.proj": "attn.c_proj",
    "ln2": "ln_2",
    "feedforward.up": "mlp.c_fc",
    "feedforward.down": "mlp.c_proj",
}
_OURS = re.compile("|".join(map(re.escape, _PARTS)))
_CONV1D = re.compile(r"h\.\d+\.(attn|mlp)\.c_\w+\.weight")


def bare(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict by GPT-2's names without `transformer.`; masks are left out."""
    tensors = {name.removeprefix(_PREFIX): tensor for name, tensor in state.items()}
    return {name: tensor for name, tensor in tensors.items() if not _MASK.fullmatch(name)}


def is_tied(tensors: Mapping[str, Tensor]) -> bool:
    """Whether `bare` tensors have no head that differs from the embedding."""
    head, embedding = tensors.get(HEAD), tensors.get("wte.weight")
    return head is None or (embedding is not None and torch.equal(head, embedding))


def to_model(
    tensors: Mapping[str, Tensor], config: ModelConfig, path: Path, *, conv1d: bool
) -> dict[str, Tensor]:
    """The weights of `gptblock.model.GPT` out of `bare` tensors. Raises CorruptError listing what is amiss.

    `conv1d`: the matrices inside the blocks are (in, out), as GPT-2's own, and the square ones too.
    """
    shapes = shapes_of(config)
    names = {name: _OURS.sub(lambda match: _PARTS[match[0]], name) for name in shapes}  # ours: theirs
    turned = {name for name in names.values() if conv1d and _CONV1D.fullmatch(name)}
    theirs = {names[name]: shape[::-1] if names[name] in turned else shape for name, shape in shapes.items()}
    if config.tie_weights:
        tensors = {name: tensor for name, tensor in tensors.items() if name != HEAD}
    require_exactly(tensors, theirs, path)
    return {name: tensors[key].T if (key := names[name]) in turned else tensors[key] for name in shapes}
