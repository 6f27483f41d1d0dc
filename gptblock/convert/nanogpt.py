"""nanoGPT's ckpt.pt: a state dict by GPT-2's names, with exact GELU and plain linear layers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from gptblock.config import ModelConfig
from gptblock.convert.files import read_checkpoint, state_dict
from gptblock.convert.layout import bare, is_tied, to_model
from gptblock.convert.pickles import read_plain_pickle
from gptblock.convert.tensors import Reading
from gptblock.convert.vocabulary import with_vocabulary
from gptblock.errors import ConfigError, CorruptError
from gptblock.text.char import CharTokenizer
from gptblock.text.subword import SubwordTokenizer
from gptblock.text.tokenizer import Tokenizer

_META = "meta.pkl"
_PADDED_TO = 8  # what makes a product faster; GPT-2's is padded to a multiple of 64
_SIZES = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd")


def read_nanogpt(path: Path, meta: Path | None, tokenizer: Path | None) -> Reading:
    """The model of a ckpt.pt, by its `model_args`; what else is in it (optimizer, config) is passed over.

    Its vocabulary is `meta` (a meta.pkl, by default the one beside it) or `tokenizer` (a tokenizer.json).
    Rows that pad the vocabulary beyond it are left out. Raises ConfigError without either, CorruptError and
    NotFoundError for the files.
    """
    if meta and tokenizer:
        raise ConfigError("a model has one vocabulary: give --vocab (a meta.pkl) or --tokenizer, not both")
    if not tokenizer and not meta:
        meta = path.with_name(_META)
        if not meta.is_file():
            raise ConfigError(
                f"{path} holds no vocabulary, and there is no {_META} beside it: give --vocab META.PKL "
                f"for a model of characters, or --tokenizer TOKENIZER.JSON for one of other tokens (GPT-2's)"
            )
    values = read_checkpoint(path)
    tensors = bare(state_dict(values, path))
    config = _config(values, tensors, path)
    weights = to_model(tensors, config, path, conv1d=False)
    vocabulary: Tokenizer
    if tokenizer:
        vocabulary = SubwordTokenizer.from_file(tokenizer)
        rows = torch.arange(vocabulary.vocab_size)
    else:
        assert meta
        vocabulary, rows = _characters(meta)
        if (had := config.vocab_size) > vocabulary.vocab_size and had % _PADDED_TO:
            raise ConfigError(
                f"{meta} has {vocabulary.vocab_size} characters and the model in {path} has {had} rows, "
                f"which is no vocabulary padded to a multiple of {_PADDED_TO}: "
                f"give the meta.pkl that it was trained with"
            )
    return with_vocabulary(weights, config, vocabulary, rows, (path,))


def _config(values: Mapping[str, object], tensors: Mapping[str, Tensor], path: Path) -> ModelConfig:
    args = values.get("model_args")
    if not isinstance(args, dict) or any(type(args.get(name)) is not int for name in _SIZES):
        raise CorruptError(
            f"{path} is no checkpoint of nanoGPT, which has model_args with {', '.join(_SIZES)}: "
            f"it holds {', '.join(map(str, list(values)[:5]))}; for another program's give another --from"
        )
    try:
        return ModelConfig(
            **{name: args[name] for name in _SIZES},
            dropout=args.get("dropout", 0.0),
            feedforward="gelu",
            bias="gpt2" if args.get("bias", True) else "none",  # before there was the choice, all had one
            tie_weights=is_tied(tensors),
        )
    except ConfigError as error:
        raise CorruptError(f"the model_args of {path} are not allowed: {error}") from None


def _characters(path: Path) -> tuple[CharTokenizer, Tensor]:
    """The vocabulary of a meta.pkl, sorted, and the row (V,) at which the model keeps each character."""
    values = read_plain_pickle(path)
    stoi = values.get("stoi")
    if not isinstance(stoi, dict) or not all(
        isinstance(symbol, str) and len(symbol) == 1 and type(row) is int for symbol, row in stoi.items()
    ):
        raise CorruptError(f"{path} must hold stoi, the id of each character: got {str(stoi)[:60]}")
    if sorted(stoi.values()) != list(range(len(stoi))):
        raise CorruptError(
            f"the ids in {path} must be 0 to {len(stoi) - 1}, each once: got {sorted(stoi.values())}"
        )
    stated = {"vocab_size": len(stoi), "itos": {row: symbol for symbol, row in stoi.items()}}
    if others := [name for name, value in stated.items() if values.get(name, value) != value]:
        raise CorruptError(f"{path} contradicts itself: {' and '.join(others)} are not those of stoi")
    vocab = "".join(sorted(stoi))
    return CharTokenizer(vocab), torch.tensor([stoi[symbol] for symbol in vocab])
