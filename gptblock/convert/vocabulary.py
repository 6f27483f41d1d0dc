"""From a model with a row for each symbol, and maybe more, to one with just the tokenizer's symbols."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from gptblock.config import ModelConfig
from gptblock.convert.tensors import Reading
from gptblock.errors import ConfigError
from gptblock.text.tokenizer import Tokenizer

_OF_VOCABULARY = ("token_embedding.weight", "lm_head.weight")


def with_vocabulary(
    weights: Mapping[str, Tensor],
    config: ModelConfig,
    tokenizer: Tokenizer,
    rows: Tensor,
    files: tuple[Path, ...],
) -> Reading:
    """The model whose symbol i is row rows[i] (V,) int64 of `weights`, which were read from `files`.

    Rows beyond pad the vocabulary to a round number: they are left out, and so never drawn. Raises
    ConfigError where the model has fewer rows than the tokenizer has symbols.
    """
    size, had = tokenizer.vocab_size, config.vocab_size
    if size > had:
        raise ConfigError(
            f"the tokenizer has {size} symbols, and the model in {files[0]} knows {had}: "
            f"give the one it was trained with"
        )
    return Reading(
        config.replace(vocab_size=size),
        {name: tensor[rows] if name in _OF_VOCABULARY else tensor for name, tensor in weights.items()},
        tokenizer,
        files,
        (f"vocabulary: of {had} rows {had - size} are padding, and left out",) if had > size else (),
    )
