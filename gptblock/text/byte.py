"""One id per byte of UTF-8: any text in 256 ids, and bytes that are no text shown as U+FFFD."""

from __future__ import annotations

import codecs
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gptblock.text.tokenizer import Ids, Unknown, as_ids, without_surrogates


class ByteTokenizer:
    """The id of a byte is its value; nothing is learned, and no character is unknown."""

    vocab_size = 256

    def encode(self, text: str, unknown: Unknown = "error") -> NDArray[np.int64]:
        """The (N,) bytes of the text. Lone surrogates have none: an UnknownCharacterError, or skipped."""
        data = without_surrogates(text, unknown).encode("utf-8")
        return np.frombuffer(data, np.uint8).astype(np.int64)

    def decode(self, ids: Ids) -> str:
        """The text of (N,) ids. Raises InputError for an id that is none."""
        return as_ids(ids, self.vocab_size).astype(np.uint8).tobytes().decode("utf-8", "replace")

    def decoder(self) -> BytesDecoder:
        """A fresh decoder for one text."""
        return BytesDecoder(lambda token_id: bytes(as_ids([token_id], self.vocab_size).tolist()))

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON; `gptblock.text.kinds` reads them."""
        return {"type": "byte"}


class BytesDecoder:
    """Ids that stand for bytes, to text: a character comes once it is whole.

    Broken bytes become U+FFFD as when all are decoded at once (The Unicode Standard 3.9, U+FFFD
    Substitution of Maximal Subparts).
    """

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._utf8.decode(self._bytes_of(token_id))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)
