"""GPT-2 as transformers saves it: a folder of config.json, weights and a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from gptblock.config import FeedForwardKind, ModelConfig
from gptblock.convert.files import read_checkpoint, state_dict
from gptblock.convert.layout import HEAD, bare, is_tied, to_model
from gptblock.convert.tensors import Reading, scale_queries
from gptblock.convert.vocabulary import with_vocabulary
from gptblock.errors import ConfigError, CorruptError, NotFoundError
from gptblock.text.subword import SubwordTokenizer

_CONFIG = "config.json"
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_ACTIVATIONS: dict[str, FeedForwardKind] = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
}
_DEFAULTS: dict[str, object] = {  # of transformers' GPT2Config: what config.json may leave out
    "activation_function": "gelu_new",
    "n_inner": None,
    "layer_norm_epsilon": 1e-5,
    "resid_pdrop": 0.1,
    "tie_word_embeddings": True,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}


def read_gpt2(folder: Path, tokenizer: Path | None) -> Reading:
    """The model in a folder that transformers wrote, whether with its head (GPT2LMHeadModel) or without.

    Its tokenizer is `tokenizer` (a tokenizer.json), or the folder's own. Rows of the vocabulary beyond it are
    left out. Raises NotFoundError for what is not there, CorruptError for what is no such model.
    """
    values = _DEFAULTS | _read_json(folder / _CONFIG)
    files = _weight_files(folder)
    tensors = bare(
        {name: value for file in files for name, value in state_dict(read_checkpoint(file), file).items()}
    )
    config = _config(values, tensors, folder / _CONFIG)
    weights = scale_queries(
        to_model(tensors, config, files[0], conv1d=True), config, _factors(values, config)
    )
    vocabulary = _tokenizer(folder, tokenizer)
    rows = torch.arange(vocabulary.vocab_size)
    return with_vocabulary(weights, config, vocabulary, rows, files)


def _config(values: Mapping[str, object], tensors: Mapping[str, Tensor], path: Path) -> ModelConfig:
    """The model's shape; the head is tied where there is no other. Raises CorruptError for other models."""
    if values.get("model_type") != "gpt2":
        raise CorruptError(f"{path} must be of model_type 'gpt2': got {values.get('model_type')!r}")
    if values["add_cross_attention"]:
        raise CorruptError(f"{path} asks for add_cross_attention, which gptblock does not have")
    activation = values["activation_function"]
    if activation not in _ACTIVATIONS:
        raise CorruptError(
            f"activation_function in {path} must be one of {', '.join(_ACTIVATIONS)}: got {activation!r}"
        )
    sizes = {name: values.get(name) for name in ("vocab_size", "n_layer", "n_head", "n_embd")}
    sizes["block_size"] = values.get("n_positions", values.get("n_ctx"))
    n_inner, n_embd = values["n_inner"], sizes["n_embd"]
    for name, size in {**sizes, "n_inner": 1 if n_inner is None else n_inner}.items():
        if type(size) is not int or size < 1:
            raise CorruptError(f"{path} must have an integer >= 1 as {name}: got {size!r}")
    try:
        return ModelConfig(
            **sizes,  # type: ignore[arg-type]
            dropout=values["resid_pdrop"],  # type: ignore[arg-type]
            norm_eps=values["layer_norm_epsilon"],  # type: ignore[arg-type]
            feedforward=_ACTIVATIONS[str(activation)],
            ff_ratio=n_inner / n_embd if n_inner else 0.0,  # type: ignore[operator]
            bias="gpt2",
            tie_weights=is_tied(tensors) and (HEAD in tensors or bool(values["tie_word_embeddings"])),
        )
    except ConfigError as error:
        raise CorruptError(f"{path} is no model that gptblock has: {error}") from None


def _factors(values: Mapping[str, object], config: ModelConfig) -> list[float]:
    """What the scores of each block are multiplied by besides head_size ** -0.5."""
    by_size = 1.0 if values["scale_attn_weights"] else config.head_size**0.5
    by_layer = values["scale_attn_by_inverse_layer_idx"]
    return [by_size / (index + 1 if by_layer else 1) for index in range(config.n_layer)]


def _weight_files(folder: Path) -> tuple[Path, ...]:
    """The files that hold the tensors: one, or the parts that an index names."""
    for name in _WEIGHTS:
        if (folder / name).is_file():
            return (folder / name,)
        index = folder / f"{name}.index.json"
        if index.is_file():
            parts = _read_json(index).get("weight_map")
            if not isinstance(parts, dict) or not parts:
                raise CorruptError(f"{index} must hold weight_map, the file of each tensor")
            names = sorted(set(map(str, parts.values())))
            if others := [name for name in names if Path(name).name != name]:
                raise CorruptError(f"{index} must name files of its own folder: got {', '.join(others)}")
            return tuple(folder / name for name in names)
    raise NotFoundError(f"{folder} holds no weights: there is neither {' nor '.join(_WEIGHTS)}")


def _tokenizer(folder: Path, given: Path | None) -> SubwordTokenizer:
    if given or (folder / "tokenizer.json").is_file():
        return SubwordTokenizer.from_file(given or folder / "tokenizer.json")
    vocab, merges = folder / "vocab.json", folder / "merges.txt"
    if vocab.is_file() and merges.is_file():
        return SubwordTokenizer.from_vocab(vocab, merges)
    raise NotFoundError(
        f"{folder} has neither tokenizer.json nor vocab.json and merges.txt: give --tokenizer TOKENIZER.JSON"
    )


def _read_json(path: Path) -> dict[str, object]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(
            f"there is no {path}: --from gpt2 takes a folder with {_CONFIG}, {_WEIGHTS[0]} and a tokenizer"
        ) from None
    except (OSError, ValueError) as error:
        raise CorruptError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(values, dict):
        raise CorruptError(f"{path} must hold a JSON object: got {type(values).__name__}")
    return values
