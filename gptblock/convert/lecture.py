"""Checkpoints of the lecture's gpt.py.

One thing leaves no trace in them: early versions of the file scale the scores by n_embd ** -0.5, later ones
by head_size ** -0.5, with the same state dict. Our model always does the latter, so of an early one
the queries are multiplied by (head_size / n_embd) ** 0.5. With one head both are the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from gptblock.config import ModelConfig
from gptblock.convert.files import read_checkpoint, state_dict
from gptblock.convert.tensors import Reading, require_exactly, scale_queries
from gptblock.errors import ConfigError, CorpusError, CorruptError
from gptblock.lecture import GPT, to_model
from gptblock.text.char import CharTokenizer

Scale = Literal["head_size", "n_embd"]

_MASK = ".tril"


def read_lecture(path: Path, vocab: Path | None) -> Reading:
    """The model of a state dict that the lecture's gpt.py saved, scores taken as scaled by head_size.

    Sizes are read from names and shapes; masks are passed over. `vocab` is a text whose set of characters is
    the vocabulary. Raises ConfigError without one or where its size is another, NotFoundError and
    CorruptError for the file.
    """
    state = state_dict(read_checkpoint(path), path)
    state = {name: tensor for name, tensor in state.items() if not name.endswith(_MASK)}
    config = _config(state, path)
    with torch.device("meta"):
        shapes = {name: tuple(tensor.shape) for name, tensor in GPT(config).state_dict().items()}
    shapes = {name: shape for name, shape in shapes.items() if not name.endswith(_MASK)}
    require_exactly(state, shapes, path)
    return Reading(config, to_model(state), _tokenizer(vocab, config.vocab_size), (path,))


def with_scale(reading: Reading, scale: Scale) -> dict[str, Tensor]:
    """The weights of `reading` where the checkpoint's scores were scaled by `scale` ** -0.5."""
    return _with_scores(reading, 1.0 if scale == "head_size" else _step(reading))


def beyond_scales(reading: Reading) -> list[dict[str, Tensor]]:
    """The weights with scores as much larger than by any scale, and smaller, as one scale's than the other's.

    No version of the file scales so: a trained model has a higher loss with either.
    """
    return [_with_scores(reading, factor) for factor in (1 / _step(reading), _step(reading) ** 2)]


def _step(reading: Reading) -> float:
    """What leads from scores scaled by head_size to those scaled by n_embd."""
    return math.sqrt(reading.config.head_size / reading.config.n_embd)


def _with_scores(reading: Reading, factor: float) -> dict[str, Tensor]:
    return scale_queries(reading.weights, reading.config, [factor] * reading.config.n_layer)


def _config(state: Mapping[str, Tensor], path: Path) -> ModelConfig:
    tables = [state.get(f"{kind}_embedding_table.weight") for kind in ("token", "position")]
    n_layer = _count(r"blocks\.(\d+)\.", state)
    n_head = _count(r"blocks\.\d+\.sa\.heads\.(\d+)\.", state)
    sizes = [tuple(table.shape) for table in tables if table is not None and table.ndim == 2]
    if len(sizes) < 2 or not n_layer or not n_head:
        raise CorruptError(
            f"{path} is no checkpoint of the lecture's gpt.py, which has token_embedding_table.weight, "
            f"position_embedding_table.weight and blocks.N.sa.heads.N.key.weight: it holds "
            f"{', '.join(list(state)[:5]) or 'no tensors'}; for another program's give another --from"
        )
    (vocab_size, n_embd), (block_size, _) = sizes
    return ModelConfig(vocab_size, block_size, n_layer, n_head, n_embd)


def _count(pattern: str, names: Iterable[str]) -> int:
    """One more than the highest number in the pattern's place."""
    return max((1 + int(match[1]) for name in names if (match := re.match(pattern, name))), default=0)


def _tokenizer(vocab: Path | None, size: int) -> CharTokenizer:
    if vocab is None:
        raise ConfigError(
            f"the lecture's checkpoint holds no vocabulary: give it by --vocab FILE, the text it was "
            f"trained on, or any whose {size} different characters are the same"
        )
    try:
        # As the lecture reads it: CRLF is one newline, a byte order mark is a character.
        text = vocab.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"--vocab {vocab} cannot be read as UTF-8 text: {error}") from None
    found = len(set(text))
    if found != size:
        raise ConfigError(
            f"--vocab {vocab} has {found} different characters, and the checkpoint's vocabulary {size}: "
            f"give the text it was trained on (a newline at the end counts, and so does a byte order mark)"
        )
    return CharTokenizer.train(text)
