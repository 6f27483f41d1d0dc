"""The ids of a whole corpus, as small as its vocabulary allows: in memory, or mapped from a file.

A large corpus is encoded once, block by block, into a file of the cache folder, known by the sums of text
and tokenizer. Its pages are the system's to keep or to drop; no process has to hold it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gptblock.errors import CorpusError
from gptblock.text.cache import cached_ids
from gptblock.text.corpus import TextSource
from gptblock.text.kinds import parts_for
from gptblock.text.survey import Survey
from gptblock.text.tokenizer import Tokenizer

MAPPED_FROM = 2**25  # bytes of text from which its ids are mapped from a file

Ids = NDArray[np.unsignedinteger[Any]]


def is_large(source: TextSource) -> bool:
    """Whether the corpus is one whose ids are mapped from a file."""
    return source.size >= MAPPED_FROM


def corpus_ids(
    source: TextSource,
    survey: Survey,
    tokenizer: Tokenizer,
    on_encoded: Callable[[int], None] | None = None,
) -> Ids:
    """The (N,) ids of a corpus, uint8 where 256 are enough, else uint16 or uint32. `survey` is its own.

    Of a large one they are a numpy.memmap of a file in the cache folder, which is made where there is none
    that is whole; `on_encoded` then hears how many of its characters are encoded by then. Raises CorpusError
    where it cannot be written, or where the text is not that of the survey any more; UnknownCharacterError
    for a character outside the vocabulary.
    """
    dtype = id_type(tokenizer.vocab_size)
    if not is_large(source):
        return np.concatenate(list(_encoded(source, survey, tokenizer, dtype, on_encoded)))
    record = {
        "text": survey.sha256,
        "tokenizer": hashlib.sha256(json.dumps(tokenizer.to_dict(), sort_keys=True).encode()).hexdigest(),
    }
    return cached_ids(record, dtype, lambda: _encoded(source, survey, tokenizer, dtype, on_encoded))


def id_type(vocab_size: int) -> np.dtype[np.unsignedinteger[Any]]:
    """The smallest type of the ids below `vocab_size`."""
    return np.dtype(np.min_scalar_type(vocab_size - 1))


def _encoded(
    source: TextSource,
    survey: Survey,
    tokenizer: Tokenizer,
    dtype: np.dtype[np.unsignedinteger[Any]],
    on_encoded: Callable[[int], None] | None,
) -> Iterator[Ids]:
    """The ids, part by part. Raises CorpusError at the end if the text was not that of the survey."""
    digest, length = hashlib.sha256(), 0
    for part in parts_for(tokenizer, source.blocks()):
        digest.update(part.encode())
        length += len(part)
        yield tokenizer.encode(part).astype(dtype)
        if on_encoded:
            on_encoded(length)
    if digest.hexdigest() != survey.sha256:
        raise CorpusError(f"{source.data!r} was changed while it was read: leave it alone and try again")
