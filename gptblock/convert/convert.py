"""From another program's checkpoint to a run that `export` takes."""

from __future__ import annotations

import dataclasses
import hashlib
import platform
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

import gptblock
from gptblock.bundle.manifest import SourceRecord
from gptblock.bundle.store import hash_file
from gptblock.config import ModelConfig, SamplingConfig
from gptblock.convert.evidence import MINIMUM_ERRORS, MINIMUM_GAIN, best_fit, draw_windows, window_losses
from gptblock.convert.gpt2 import read_gpt2
from gptblock.convert.lecture import Scale, beyond_scales, read_lecture, with_scale
from gptblock.convert.nanogpt import read_nanogpt
from gptblock.convert.tensors import Reading
from gptblock.errors import ConfigError
from gptblock.model import GPT, count_parameters
from gptblock.training.checkpoint import SCHEMA_VERSION, ConvertedState, restore_weights, weights_of
from gptblock.training.converted import refuse_run, replace_run

Source = Literal["lecture", "nanogpt", "gpt2"]

SAMPLE_TOKENS = 60

_OPTIONS: dict[str, tuple[Source, ...]] = {  # those that only some sources have a use for
    "vocab": ("lecture", "nanogpt"),
    "tokenizer": ("nanogpt", "gpt2"),
    "scale": ("lecture",),
}


@dataclass(frozen=True)
class Conversion:
    """What a conversion came to. `notes` say what was decided or left out, a sentence each."""

    config: ModelConfig
    parameters: int
    record: SourceRecord
    notes: tuple[str, ...]
    sample: str  # greedy, from a newline, or token 0 where the vocabulary has none


def convert(
    checkpoint: Path,
    source: Source,
    out: Path,
    *,
    vocab: Path | None = None,
    tokenizer: Path | None = None,
    scale: Scale | None = None,
    dropout: float | None = None,
    data: str | None = None,
    block_size: int | None = None,
    overwrite: bool = False,
    finish: Callable[[Path, Conversion], object] | None = None,
) -> Conversion:
    """Make `out` a run with the model that `checkpoint` holds, as `source` writes it.

    `vocab` is a text with the lecture's vocabulary, or nanoGPT's meta.pkl; `tokenizer` a tokenizer.json.
    `scale` is how the lecture's file scaled the scores; without it, `data` (a corpus) decides. Of `data` the
    loss is measured. A `block_size` below the checkpoint's crops the positions; `dropout` is what a training
    would use. `finish` gets the complete run before it takes its place at `out`; if it raises, `out` stays
    as it was, and so it does after any other error.

    Raises ConfigError for an option that is not allowed or lacking, RunExistsError for `out`, NotFoundError
    or CorruptError for files, CorpusError for `data`.
    """
    given = {"vocab": vocab, "tokenizer": tokenizer, "scale": scale}
    _refuse_unusable(source, given)
    refuse_run(out, overwrite)
    reading = _cropped(_read(checkpoint, source, vocab, tokenizer), block_size)
    if dropout is not None:
        reading = replace(reading, config=reading.config.replace(dropout=dropout))
    windows = draw_windows(data, reading.tokenizer, reading.config.block_size) if data is not None else None
    if source == "lecture" and reading.config.n_head > 1:
        reading = _scaled(reading, scale, windows)
    model = _model(reading.config, reading.weights, checkpoint)
    record = SourceRecord(
        format=source,
        file=_name(checkpoint),
        sha256=_hash(reading.files),
        command=_command(
            checkpoint, source, given | {"dropout": dropout, "data": data, "block-size": block_size}
        ),
        data=None if data is None else _name(data),
        loss=None if windows is None else window_losses(model, windows).mean().item(),
    )
    conversion = Conversion(
        reading.config, count_parameters(model), record, reading.notes, _sample(model, reading)
    )
    state = ConvertedState(
        schema_version=SCHEMA_VERSION,
        source=dataclasses.asdict(record),
        model=reading.config.to_dict(),
        tokenizer=reading.tokenizer.to_dict(),
        versions={
            "gptblock": gptblock.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
    )
    weights = weights_of(model)
    del model, reading  # a large model is not to be in memory twice while `finish` exports it
    with replace_run(out, weights, state) as run:
        del weights
        if finish:
            finish(run, conversion)
    return conversion


def _refuse_unusable(source: Source, given: Mapping[str, object]) -> None:
    if source not in get_args(Source):
        raise ConfigError(f"from must be one of {', '.join(get_args(Source))}: got {source!r}")
    for name, sources in _OPTIONS.items():
        if given[name] is not None and source not in sources:
            raise ConfigError(f"--{name} is for --from {' and '.join(sources)}: got it with --from {source}")
    if given["scale"] not in (None, *get_args(Scale)):
        raise ConfigError(f"scale must be one of {', '.join(get_args(Scale))}: got {given['scale']!r}")


def _read(checkpoint: Path, source: Source, vocab: Path | None, tokenizer: Path | None) -> Reading:
    if source == "lecture":
        return read_lecture(checkpoint, vocab)
    if source == "nanogpt":
        return read_nanogpt(checkpoint, vocab, tokenizer)
    return read_gpt2(checkpoint, tokenizer)


def _cropped(reading: Reading, block_size: int | None) -> Reading:
    """The model with its first `block_size` positions."""
    had = reading.config.block_size
    if block_size is None or block_size == had:
        return reading
    config = reading.config.replace(block_size=block_size)
    if block_size > had:
        raise ConfigError(
            f"block_size must be at most {had}, the positions that the checkpoint learned: got {block_size}"
        )
    positions = reading.weights["position_embedding.weight"][:block_size]
    weights = reading.weights | {"position_embedding.weight": positions}
    note = f"positions: the first {block_size} of {had} are kept"
    return replace(reading, config=config, weights=weights, notes=(*reading.notes, note))


def _scaled(reading: Reading, scale: Scale | None, windows: Tensor | None) -> Reading:
    """The model with its scores scaled as they were: as `scale` says, or else as fits the text."""
    scales: dict[Scale, dict[str, Tensor]] = {name: with_scale(reading, name) for name in get_args(Scale)}
    if windows is None:
        if scale is None:
            raise ConfigError(
                "the lecture's early files scale scores by n_embd and its later ones by head_size, and the "
                "weights do not tell which: give --scale head_size or --scale n_embd, or let the loss "
                "decide by --data, a text like those it was trained on"
            )
        return replace(reading, weights=scales[scale])

    def losses_of(weights: Mapping[str, Tensor]) -> Tensor:
        return window_losses(_model(reading.config, weights, reading.files[0]), windows)

    losses = {name: losses_of(weights) for name, weights in scales.items()}
    fit = best_fit(losses, map(losses_of, beyond_scales(reading)))
    found = " and ".join(f"{values.mean().item():.4f} by {name}" for name, values in losses.items())
    measured = f"the loss is {found} (fits: {fit or 'neither clearly'})"
    if scale is None and fit is None:
        raise ConfigError(
            f"the data does not tell whether scores were scaled by head_size or by n_embd: {measured}. "
            f"Clear is a difference of {MINIMUM_GAIN} nats and {MINIMUM_ERRORS:g} standard errors, and no "
            f"lower loss for scores yet larger or smaller; give --scale, or --data with a text like those it "
            f"was trained on"
        )
    chosen = scale or fit
    assert chosen
    note = f"scores: scaled by {chosen}, as {'--scale says' if scale else 'fits the data'}; {measured}"
    return replace(reading, weights=scales[chosen], notes=(*reading.notes, note))


def _model(config: ModelConfig, weights: Mapping[str, Tensor], path: Path) -> GPT:
    with torch.random.fork_rng(devices=[]):  # the weights drawn here are replaced at once
        model = GPT(config)
    restore_weights(model, weights, path)
    return model.eval()


def _sample(model: GPT, reading: Reading) -> str:
    start = reading.tokenizer.encode("\n", unknown="skip")[:1].tolist() or [0]
    ids = model.generate(torch.tensor([start]), SAMPLE_TOKENS, SamplingConfig(temperature=0.0), seed=0)
    return reading.tokenizer.decode(ids[0, 1:].tolist())


def _hash(files: tuple[Path, ...]) -> str:
    """The SHA-256 of the file; of several, that of their SHA-256s in order."""
    hashes = [hash_file(file) for file in files]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def _command(checkpoint: Path, source: Source, options: Mapping[str, object]) -> str:
    """The command that converts so, with names of files in place of paths, which differ between machines."""
    words = ["gptblock", "convert", _name(checkpoint), "--from", source]
    for name, value in options.items():
        if value is not None:
            is_path = isinstance(value, Path) or name == "data"
            words += [f"--{name}", _name(str(value)) if is_path else str(value)]
    return shlex.join(words)


def _name(path: str | Path) -> str:
    return Path(path).resolve().name
