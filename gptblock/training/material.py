"""The text of a run, from the corpus that its configuration names to windows to draw from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from gptblock.config import TrainConfig
from gptblock.errors import CorpusError
from gptblock.text.char import CharTokenizer
from gptblock.text.corpus import TextSource, open_corpus, split
from gptblock.text.ids import corpus_ids, is_large
from gptblock.text.kinds import tokenizer_from_dict, train_tokenizer
from gptblock.text.survey import Survey, survey_text
from gptblock.text.tokenizer import Tokenizer
from gptblock.training.batches import Windows
from gptblock.training.checkpoint import State
from gptblock.training.events import Event, Reading, Stage

LEARNED = 2**25  # characters, from the start, that byte pairs are learned from: half a minute's worth


@dataclass(frozen=True)
class Material:
    """The text of a run, ready to draw from."""

    tokenizer: Tokenizer
    train: Windows  # of block_size + 1 tokens, on the run's device
    val: Windows
    sha256: str  # of the text as UTF-8


def prepare(
    config: TrainConfig, state: State | None = None, emit: Callable[[Event], None] = lambda _: None
) -> Material:
    """The text of the run; `state` is the one of the run that goes on, whose text it must be.

    The text is never held as a whole. Byte pairs are learned from its first LEARNED characters. Of a large
    one, `emit` hears how far it is read. Raises CorpusError where the corpus cannot be used, or is another
    than the run's.
    """
    source = open_corpus(config.data)
    tell = emit if is_large(source) else lambda _: None
    survey = survey_text(source.blocks(), _share(tell, "reading", source, source.size))
    if state:
        # The run's own: another version of a library might learn another from the same text.
        tokenizer = tokenizer_from_dict(state["tokenizer"])
        if state["data_sha256"] != survey.sha256:
            raise _other_corpus(config.data, survey, tokenizer, state)
    else:
        # Characters need no second reading, and bytes none at all.
        is_bpe = config.tokenizer == "bpe"
        text = _beginning(source, survey, tell) if is_bpe else [survey.characters]
        tokenizer = train_tokenizer(config.tokenizer, text, config.bpe_vocab_size)
    ids = corpus_ids(source, survey, tokenizer, _share(tell, "encoding", source, survey.length))
    train_ids, val_ids = split(ids, config.block_size)
    device = torch.device(config.device)
    return Material(
        tokenizer,
        Windows(train_ids, config.block_size, device),
        Windows(val_ids, config.block_size, device),
        survey.sha256,
    )


def _share(
    emit: Callable[[Event], None], stage: Stage, source: TextSource, total: int
) -> Callable[[int], None]:
    """What turns how much of `total` is done into an event."""
    return lambda done: emit(Reading(stage, source.data, source.size, min(done / max(total, 1), 1.0)))


def _beginning(source: TextSource, survey: Survey, emit: Callable[[Event], None]) -> Iterator[str]:
    """The blocks that a tokenizer learns from, each told of when it is through."""
    told, done = _share(emit, "learning", source, min(survey.length, LEARNED)), 0
    for block in source.blocks():
        yield block[: LEARNED - done]
        done += len(block)
        told(done)
        if done >= LEARNED:
            return


def _other_corpus(data: str, survey: Survey, tokenizer: Tokenizer, state: State) -> CorpusError:
    known = tokenizer.vocab if isinstance(tokenizer, CharTokenizer) else survey.characters
    new = [f"{symbol!a} (U+{ord(symbol):04X})" for symbol in sorted(set(survey.characters) - set(known))]
    if new:
        more = f" and {len(new) - 5} more" if len(new) > 5 else ""
        return CorpusError(
            f"{data} has characters that the run to resume never saw: {', '.join(new[:5])}{more}; "
            f"it was trained on {state['data']}. Give that text, or train anew with another --out"
        )
    return CorpusError(
        f"{data} is not the text of the run to resume, which was trained on {state['data']} "
        f"(SHA-256 {state['data_sha256']}). Give that text, or train anew with another --out"
    )
