"""One id per character: its place in the sorted vocabulary, as in the lecture."""

from __future__ import annotations

import unicodedata
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gptblock.errors import ConfigError, UnknownCharacterError
from gptblock.text.tokenizer import SHOWN, Ids, Unknown, as_ids, named, require_policy

_ACCENTS: dict[Literal["NFC", "NFD"], str] = {"NFC": "composed", "NFD": "decomposed"}


class CharTokenizer:
    """One id per character.

    `vocab` holds every character once, in the order of code points; ConfigError otherwise. Lone
    surrogates are refused too: they are no characters, and JSON may fuse two of them into one.
    """

    def __init__(self, vocab: str) -> None:
        if not vocab or vocab != "".join(sorted(set(vocab))):
            raise ConfigError(
                f"a vocabulary is one or more characters, each once, in the order of code points: "
                f"got {vocab[:SHOWN]!a}"
            )
        if surrogate := next((one for one in vocab if "\ud800" <= one <= "\udfff"), None):
            raise ConfigError(f"a vocabulary must not hold lone surrogates: got {named(surrogate)}")
        self.vocab = vocab
        self._points = _code_points(vocab)  # (V,)
        # id of each code point, -1 of those between; one more entry stands for all that lie above
        self._ids = np.full(int(self._points[-1]) + 2, -1, dtype=np.int64)
        self._ids[self._points] = np.arange(len(vocab))

    @classmethod
    def train(cls, text: str) -> CharTokenizer:
        """The tokenizer whose vocabulary is the characters of `text`."""
        return cls("".join(sorted(set(text))))

    @property
    def vocab_size(self) -> int:
        return len(self.vocab)

    def encode(self, text: str, unknown: Unknown = "error") -> NDArray[np.int64]:
        """The (N,) ids of the text's characters.

        A character outside the vocabulary is an UnknownCharacterError, or left out with
        `unknown="skip"`.
        """
        require_policy(unknown)
        points = _code_points(text)  # (N,)
        ids = self._ids.take(points, mode="clip")  # (N,)
        outside = ids < 0
        if not outside.any():
            return ids
        if unknown == "skip":
            return ids[~outside]
        raise UnknownCharacterError(self._complaint(text, int(outside.argmax())))

    def decode(self, ids: Ids) -> str:
        """The text of (N,) ids. Raises InputError for an id that is none."""
        points: NDArray[np.uint32] = self._points[as_ids(ids, self.vocab_size)]  # (N,)
        return points.tobytes().decode("utf-32-le")

    def decoder(self) -> CharDecoder:
        """A fresh decoder for one text."""
        return CharDecoder(self)

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON; `gptblock.text.kinds` reads them."""
        return {"type": "char", "vocab": self.vocab}

    def _complaint(self, text: str, position: int) -> str:
        vocab = ascii(self.vocab[:SHOWN]) + ("..." if self.vocab_size > SHOWN else "")
        message = (
            f"the character {named(text[position])} at position {position} (the first is 0) is not in the "
            f"vocabulary, whose {self.vocab_size} characters are {vocab}; --unknown skip leaves it out"
        )
        for form, accents in _ACCENTS.items():
            if set(unicodedata.normalize(form, text)) <= set(self.vocab):
                message += (
                    f". With its accents {accents} (Unicode's {form}) the text would be in the vocabulary"
                )
        return message


class CharDecoder:
    """Each id at once: a character is never split."""

    def __init__(self, tokenizer: CharTokenizer) -> None:
        self._tokenizer = tokenizer

    def push(self, token_id: int) -> str:
        vocab = self._tokenizer.vocab
        return vocab[token_id] if 0 <= token_id < len(vocab) else self._tokenizer.decode([token_id])

    def finish(self) -> str:
        return ""


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
