"""From the lecture's weights, one head at a time, to those of `gptblock.model`, all heads in one matrix."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor

from gptblock.errors import CorruptError

_HEAD = re.compile(r"(blocks\.\d+)\.sa\.heads\.(\d+)\.(query|key|value)\.weight")
_MASK = re.compile(r"blocks\.\d+\.sa\.heads\.\d+\.tril")
_PARTS = {  # the lecture's name: ours; each holds a weight, and a bias where it has one
    "token_embedding_table": "token_embedding",
    "position_embedding_table": "position_embedding",
    "sa.proj": "attention.proj",
    "ffwd.net.0": "feedforward.up",
    "ffwd.net.2": "feedforward.down",
    "ln1": "ln1",
    "ln2": "ln2",
    "ln_f": "ln_f",
    "lm_head": "lm_head",
}
_OTHER = re.compile(rf"(blocks\.\d+\.)?({'|'.join(map(re.escape, _PARTS))})\.(weight|bias)")


def to_model(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of `gptblock.model.GPT` that computes what the lecture's `state` computes.

    The mask `tril` of each head is dropped, whether or not it is there: `model` masks without a buffer.
    Gradients by name may be mapped just so. Raises CorruptError for a name that the lecture's model does not
    have and for a block whose heads are not complete; what else is missing, load_state_dict tells.
    """
    mapped: dict[str, Tensor] = {}
    heads: defaultdict[str, dict[tuple[str, int], Tensor]] = defaultdict(dict)
    for name, tensor in state.items():
        if _MASK.fullmatch(name):
            continue
        if match := _HEAD.fullmatch(name):
            block, index, kind = match.groups()
            heads[block][kind, int(index)] = tensor  # (head_size, n_embd)
        elif match := _OTHER.fullmatch(name):
            block, part, kind = match.groups(default="")
            mapped[f"{block}{_PARTS[part]}.{kind}"] = tensor
        else:
            raise CorruptError(f"the lecture's model has no tensor {name!r}: is this another model's file?")
    for block, parts in heads.items():
        mapped[f"{block}.attention.qkv.weight"] = _joined(block, parts)
    return mapped


def _joined(block: str, parts: Mapping[tuple[str, int], Tensor]) -> Tensor:
    """All queries, then all keys, then all values, head after head: (3 * n_embd, n_embd)."""
    n_head = 1 + max(index for _, index in parts)
    order = [(kind, index) for kind in ("query", "key", "value") for index in range(n_head)]
    for kind, index in order:
        if (kind, index) not in parts:
            raise CorruptError(f"a head is not complete: {block}.sa.heads.{index}.{kind}.weight is missing")
    return torch.cat([parts[key] for key in order])
