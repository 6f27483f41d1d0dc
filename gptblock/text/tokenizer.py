"""Text to ids and back. The id of a character is its place in the sorted vocabulary, as in the lecture."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from gptblock.errors import ConfigError, CorruptError, InputError, UnknownCharacterError

Unknown = Literal["error", "skip"]

_ACCENTS: dict[Literal["NFC", "NFD"], str] = {"NFC": "composed", "NFD": "decomposed"}

_SHOWN = 120  # characters of a vocabulary that an error message lists


class Tokenizer(Protocol):
    """What the other rooms need of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str, unknown: Unknown = "error") -> NDArray[np.int64]: ...

    def decode(self, ids: Iterable[int] | NDArray[np.integer]) -> str: ...

    def to_dict(self) -> dict[str, object]: ...


class CharTokenizer:
    """One id per character.

    `vocab` holds every character once, in the order of code points; ConfigError otherwise. Lone
    surrogates are refused too: they are no characters, and JSON may fuse two of them into one.
    """

    def __init__(self, vocab: str) -> None:
        if not vocab or vocab != "".join(sorted(set(vocab))):
            raise ConfigError(
                f"a vocabulary is one or more characters, each once, in the order of code points: "
                f"got {vocab[:_SHOWN]!a}"
            )
        if surrogate := next((character for character in vocab if _is_surrogate(character)), None):
            raise ConfigError(f"a vocabulary must not hold lone surrogates: got {_named(surrogate)}")
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
        if unknown not in get_args(Unknown):
            raise InputError(f"unknown must be one of {', '.join(get_args(Unknown))}: got {unknown!r}")
        points = _code_points(text)  # (N,)
        ids = self._ids.take(points, mode="clip")  # (N,)
        outside = ids < 0
        if not outside.any():
            return ids
        if unknown == "skip":
            return ids[~outside]
        raise UnknownCharacterError(self._complaint(text, int(outside.argmax())))

    def decode(self, ids: Iterable[int] | NDArray[np.integer]) -> str:
        """The text of (N,) ids. Raises InputError for an id that is none."""
        if isinstance(ids, list) and len(ids) == 1 and type(ids[0]) is int and 0 <= ids[0] < len(self.vocab):
            return self.vocab[ids[0]]  # a stream decodes token by token
        array = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids))
        if array.size == 0:
            return ""
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise InputError(
                f"decode takes a sequence of integers: got {array.dtype} values of shape {array.shape}"
            )
        outside = (array < 0) | (array >= self.vocab_size)
        if outside.any():
            raise InputError(
                f"{array[outside.argmax()]} at position {outside.argmax()} is no id; "
                f"this vocabulary has the ids 0 to {self.vocab_size - 1}"
            )
        points: NDArray[np.uint32] = self._points[array]  # (N,)
        return points.tobytes().decode("utf-32-le")

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON; `tokenizer_from_dict` reads them."""
        return {"type": "char", "vocab": self.vocab}

    def _complaint(self, text: str, position: int) -> str:
        vocab = ascii(self.vocab[:_SHOWN]) + ("..." if self.vocab_size > _SHOWN else "")
        message = (
            f"the character {_named(text[position])} at position {position} (the first is 0) is not in the "
            f"vocabulary, whose {self.vocab_size} characters are {vocab}; --unknown skip leaves it out"
        )
        for form, accents in _ACCENTS.items():
            if set(unicodedata.normalize(form, text)) <= set(self.vocab):
                message += (
                    f". With its accents {accents} (Unicode's {form}) the text would be in the vocabulary"
                )
        return message


def tokenizer_from_dict(values: Mapping[str, object]) -> Tokenizer:
    """The tokenizer that `to_dict` wrote. Raises CorruptError where it is not understood."""
    vocab = values.get("vocab")
    if values.get("type") != "char" or not isinstance(vocab, str) or len(values) != 2:
        raise CorruptError(
            f"this is no tokenizer that this version knows: expected "
            f'{{"type": "char", "vocab": "..."}} and got {ascii(dict(values))[:_SHOWN]}'
        )
    try:
        return CharTokenizer(vocab)
    except ConfigError as error:
        raise CorruptError(f"the tokenizer is broken: {error}") from None


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def _is_surrogate(character: str) -> bool:
    return "\ud800" <= character <= "\udfff"


def _named(character: str) -> str:
    """The character and its code point, safe for any console."""
    name = f"{character!a} (U+{ord(character):04X}"
    if "\udc80" <= character <= "\udcff":  # how Python passes on what it could not decode (PEP 383)
        return f"{name}: the byte 0x{ord(character) - 0xDC00:02X}, which is not UTF-8)"
    return f"{name})" if _is_surrogate(character) else f"{name} {unicodedata.name(character, 'unnamed')})"
