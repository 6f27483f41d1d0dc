"""What a graph of lower precision costs: its loss on a text, beside that of the fp32 graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gptblock.bundle.manifest import Cost, TrainingRecord
from gptblock.errors import CorpusError
from gptblock.runtime.decoder import Decoder, Ids
from gptblock.text.corpus import open_corpus, split, spread_windows
from gptblock.text.ids import corpus_ids
from gptblock.text.survey import survey_text
from gptblock.text.tokenizer import Tokenizer

_TOKENS = 16_384  # that are predicted, about, evenly spread over the text
_LOGITS = 2**23  # in memory at once


@dataclass(frozen=True)
class Excerpt:
    """Windows of a text to measure on, (N, T + 1) with T <= block_size."""

    name: str
    windows: Ids


@dataclass(frozen=True)
class Reading:
    """What a graph makes of an Excerpt: at each position (N, T) the loss in nats, and the likeliest token."""

    losses: NDArray[np.float64]
    choices: Ids


def draw_excerpt(
    tokenizer: Tokenizer, block_size: int, training: TrainingRecord | None, data: str | None = None
) -> Excerpt:
    """The text to measure on: of the training's own the part to validate on, of another `data` all.

    Raises CorpusError where there is no such text, where it is too short, or where what now goes by the name
    of the training's text is another; InputError for characters outside the vocabulary.
    """
    source = data or (str(training.config["data"]) if training else None)
    if source is None:
        raise CorpusError("the model's record names no text; --data names one")
    corpus = open_corpus(source)
    survey = survey_text(corpus.blocks())
    is_own = training and survey.sha256 == training.data_sha256
    if not is_own and data is None:
        raise CorpusError(f"{source} is not the text of the training any more; --data names another")
    ids: NDArray[np.integer[Any]]  # (L,)
    if is_own:
        ids = split(corpus_ids(corpus, survey, tokenizer), block_size)[1]
    else:  # at once, so that a character outside the vocabulary is told by its place in the whole
        ids = tokenizer.encode("".join(corpus.blocks()))
    name = f"{corpus.name}, validation part" if is_own else corpus.name
    return Excerpt(name, spread_windows(source, ids, block_size, _TOKENS))


def read(decoder: Decoder, excerpt: Excerpt) -> Reading:
    """Let a graph predict each token of the excerpt from those before it in its window."""
    T = excerpt.windows.shape[1] - 1
    batch_size = max(1, _LOGITS // (T * decoder.metadata.model.vocab_size))
    losses, choices = [], []
    for start in range(0, len(excerpt.windows), batch_size):
        batch = excerpt.windows[start : start + batch_size]  # (B, T + 1)
        logits = decoder.logits(batch[:, :-1])  # (B, T, vocab_size)
        top = logits.max(axis=-1)  # (B, T)
        total = np.exp(logits - top[..., None]).sum(axis=-1, dtype=np.float64)  # (B, T)
        target = np.take_along_axis(logits, batch[:, 1:, None], axis=-1)[..., 0]  # (B, T)
        losses.append(np.log(total) + top - target)
        choices.append(logits.argmax(axis=-1))
    return Reading(np.concatenate(losses), np.concatenate(choices))


def cost_of(excerpt: Excerpt, fp32: Reading, lower: Reading) -> Cost:
    """What is lost by `lower` where `fp32` might be run."""
    return Cost(
        text=excerpt.name,
        tokens=fp32.losses.size,
        fp32_loss=float(fp32.losses.mean()),
        loss=float(lower.losses.mean()),
        changed=float((fp32.choices != lower.choices).mean()),
    )
